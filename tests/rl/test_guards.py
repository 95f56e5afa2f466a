"""Guarded objectives and agents on a line where the best safe plan is known, with mbrl-lib's planners."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import omegaconf
import pytest
import torch
from mbrl.models import ModelEnv
from mbrl.planning import TrajectoryOptimizerAgent
from toy_line import WALL, WIDTH, Tubes, forecast, rightwards

from pac_core import GaussianForecast, HalfSpace, InvalidInput, TubeChecker
from pac_core.safety import CheckResult
from pac_rl import (
    ActionFilter,
    Controller,
    Dynamics,
    Ensemble,
    Guard,
    GuardedAgent,
    NoSafePlan,
    SearchPlanner,
    forecast_plans,
    guard_agent,
    guard_plans,
)
from pac_rl.planning import GuardedPlans, MeanTubes, MemberForecast, MemberTubes, hold_action
from pac_rl.planning.candidates import propose_unguarded
from pac_rl.planning.guard import FLOOR, WORST, rank, ranked_safe
from pac_rl.rollouts import Rollouts

HORIZON = 3
PLANS = torch.tensor([[0.5, 0.3, 0.0], [0.5, 0.5, 0.0], [0.9, 0.9, 0.9], [-1.0, 0.0, 0.0]])[..., None]
SAFE = [True, False, False, True]


def line(fallback: Any) -> GuardedPlans:
    return guard_plans(rightwards, forecast, Guard(WALL, Tubes(), fallback))


def checked_of(*worst: float) -> CheckResult:
    margin = torch.tensor(worst, dtype=torch.float64)[:, None, None]
    return CheckResult(margin, margin[:, 0, 0] >= 0, ("wall",))


def test_safe_plans_keep_their_value_and_unsafe_ones_rank_by_how_unsafe_they_are() -> None:
    values = guard_plans(rightwards, forecast, Guard(WALL, Tubes()))(np.zeros(1), PLANS)
    assert values.dtype == torch.float32
    assert values[[0, 3]].tolist() == pytest.approx([0.5 + 0.8 + 0.8, -3.0])
    assert values.argsort(descending=True).tolist() == [0, 3, 1, 2]
    assert ranked_safe(values).tolist() == SAFE


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_every_safe_plan_outranks_every_unsafe_one_and_all_values_are_finite(dtype: torch.dtype) -> None:
    checked = checked_of(0.0, 3.0, 1.0, 2.0, -1e-300, -0.1, -0.2, -3.0, -1e5, -np.inf, np.nan)
    values = torch.tensor([-np.inf, np.inf, -6e4, 0.0, *([np.inf] * 5), 7.0, np.nan], dtype=dtype)
    ranked = rank(values, checked)
    assert ranked.isfinite().all()
    assert ranked[:4].min() > ranked[4:].max()
    assert ranked_safe(ranked).tolist() == [True] * 4 + [False] * 7
    worse = ranked[[4, 5, 6, 7, 8, 9]]
    assert (worse.diff() < 0).all()
    assert ranked[9] == ranked[10] == ranked.min()  # what is unknown is worst
    assert ranked[3] == 0.0


def test_violations_of_any_size_are_told_apart_in_single_precision() -> None:
    sizes = np.geomspace(1e-12, 1e25, 75)
    ranked = rank(torch.zeros(150), checked_of(*np.stack([-sizes, -sizes * 1.00001], axis=1).ravel()))
    assert ranked.dtype == torch.float32
    assert (ranked.diff() < 0).all()
    assert ranked[0] < -FLOOR
    assert ranked[-1] > rank(torch.zeros(1), checked_of(np.nan))[0]
    assert (400 * ranked).isfinite().all()  # a planner may add them up


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_margins_of_any_precision_give_finite_values(dtype: torch.dtype) -> None:
    margin = torch.tensor([1.0, -0.5, -2.0, -np.inf], dtype=dtype)[:, None, None]
    ranked = rank(torch.zeros(4), CheckResult(margin, margin[:, 0, 0] >= 0, ("wall",)))
    assert ranked.isfinite().all()
    assert (ranked.diff() < 0).all()


def test_a_check_of_other_plans_or_of_fewer_steps_is_refused() -> None:
    """A verdict about one plan would be taken for that of all, and steps that were not forecast for safe."""
    with pytest.raises(InvalidInput, match=r"the check must return values of shape \(3,\), got \(1,\)"):
        rank(torch.zeros(3), checked_of(1.0))
    for short in (lambda s, p: forecast(s[:1], p[:1]), lambda s, p: forecast(s, p[:, :2])):
        with pytest.raises(InvalidInput, match="of 4 plans x 3 steps, got"):
            guard_plans(rightwards, short, Guard(WALL, Tubes()))(np.zeros(1), PLANS)
        with pytest.raises(InvalidInput, match="of 4 plans x 3 steps, got"):
            guard_plans(rightwards, short, Guard(WALL, Tubes())).check(np.zeros(1), PLANS)


def test_a_safe_plan_of_unknown_value_is_as_bad_as_can_be() -> None:
    ranked = rank(torch.tensor([np.nan, -5.0, 1.0]), checked_of(1.0, 1.0, -1e6))
    assert ranked.argsort(descending=True).tolist() == [1, 2, 0]
    assert not ranked_safe(ranked)[0]
    assert ranked[0] == -WORST


def test_values_survive_the_arithmetic_of_path_integrals() -> None:
    ranked = rank(torch.tensor([5.0, 5.0, 5.0]), checked_of(-1.0, -2.0, np.nan))
    weights = torch.exp(10.0 * (ranked - ranked.max()))  # what MPPI does
    assert weights.tolist() == [1.0, 0.0, 0.0]


def test_the_tubes_own_mean_can_score_the_return_in_one_pass() -> None:
    calls = []

    def counted(starts: Any, plans: Any) -> Any:
        calls.append(plans.shape[1])
        return forecast(starts, plans)

    tubes = Tubes(2)
    alone = guard_plans(None, counted, Guard(WALL, tubes), reward=lambda states, actions: states[..., 0])
    plans = torch.cat([PLANS, torch.ones_like(PLANS[:, :1])], dim=1)  # a fourth step, beyond the wall
    values = alone(np.zeros(1), plans)
    assert (calls, tubes.seen) == ([4], [2])  # one pass of all steps; the tube is of the first two
    both = guard_plans(rightwards, counted, Guard(WALL, Tubes(2)))(np.zeros(1), plans)
    assert calls == [4, 2]
    torch.testing.assert_close(values, both)
    assert ranked_safe(values).tolist() == SAFE


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="one of evaluate, reward and a forecast by ScoredPlans, got 0"):
        guard_plans(None, forecast, Guard(WALL, Tubes()))
    with pytest.raises(InvalidInput, match="at least the tube's 4 steps, got 3"):
        guard_plans(rightwards, forecast, Guard(WALL, Tubes(4)))(np.zeros(1), PLANS)
    with pytest.raises(InvalidInput, match=r"evaluate must return values of shape \(4,\), got \(4, 1\)"):
        guard_plans(lambda s, p: p.sum(1), forecast, Guard(WALL, Tubes()))(np.zeros(1), PLANS)
    with pytest.raises(InvalidInput, match=r"initial state must have shape \[D\]"):
        guard_plans(rightwards, forecast, Guard(WALL, Tubes()))(np.zeros((1, 1)), PLANS)


def test_what_objectives_and_forecasts_return_is_not_broadcast() -> None:
    one: Any = lambda s, p: forecast(s[:1], p[:1])  # noqa: E731
    with pytest.raises(InvalidInput, match=r"forecast must be of 4 plans x 3 steps, got \(1, 3\)"):
        guard_plans(None, one, Guard(WALL, Tubes()), reward=lambda x, a: x[..., 0])(np.zeros(1), PLANS)
    with pytest.raises(InvalidInput, match="forecast must return a GaussianForecast, got tuple"):
        guard_plans(rightwards, lambda s, p: (s, p), Guard(WALL, Tubes()))(np.zeros(1), PLANS)  # type: ignore[arg-type, return-value]


COMMON = {"num_iterations": 4, "population_size": 80, "device": "cpu"}
PLANNERS = {
    "CEM": {"_target_": "mbrl.planning.CEMOptimizer", "elite_ratio": 0.1, "alpha": 0.1, **COMMON},
    "CEM, mean of elites": {
        "_target_": "mbrl.planning.CEMOptimizer", "elite_ratio": 0.1, "alpha": 0.1,
        "return_mean_elites": True, **COMMON,
    },
    "iCEM": {
        "_target_": "mbrl.planning.ICEMOptimizer", "elite_ratio": 0.1, "alpha": 0.1, "keep_elite_frac": 0.1,
        "population_decay_factor": 1.3, "colored_noise_exponent": 2.0, **COMMON,
    },
    "MPPI": {"_target_": "mbrl.planning.MPPIOptimizer", "gamma": 20.0, "sigma": 1.0, "beta": 0.9, **COMMON},
}  # fmt: skip


def planner(name: str, **options: Any) -> TrajectoryOptimizerAgent:
    torch.manual_seed(0)
    config = omegaconf.OmegaConf.create(PLANNERS[name])
    return TrajectoryOptimizerAgent(config, [-1.0], [1.0], planning_horizon=HORIZON, **options)


def walk(act: Any, steps: int = 8) -> np.ndarray:
    position, path = np.zeros(1), []
    for _ in range(steps):
        position = position + act(position)
        path.append(position[0])
    return np.array(path)


@pytest.mark.parametrize("name", PLANNERS)
def test_mbrl_libs_planners_keep_the_wall_and_come_near_it(name: str) -> None:
    bare = planner(name)
    bare.set_trajectory_eval_fn(rightwards)
    assert walk(bare.act).max() > 3.0  # the return alone leads through the wall
    guarded = GuardedAgent(planner(name), guard_plans(rightwards, forecast, Guard(WALL, Tubes(), "stop")))
    path = walk(guarded.act)
    assert path.max() <= 1.0 - WIDTH + 1e-6
    assert path.max() > 0.35  # and the way up to it is used, by MPPI with its large noise the least
    assert (guarded.decisions, guarded.fallbacks) == (8, 0)


@pytest.mark.parametrize("name", PLANNERS)
def test_with_no_safe_plan_the_chosen_fallback_acts_and_is_counted(name: str) -> None:
    beyond = np.array([9.0])  # from here no plan of three steps is safe
    hold = GuardedAgent(planner(name), line("hold"))
    assert hold.act(beyond).tolist() == [0.0]
    assert np.abs(hold.act(np.array([-3.0]))).max() > 0  # and it plans again where it can
    assert (hold.decisions, hold.fallbacks) == (2, 1)
    backup = GuardedAgent(planner(name), line(lambda state: -state))
    assert backup.act(beyond).tolist() == [-1.0]  # within the range of actions
    stop = GuardedAgent(planner(name), line("stop"))
    with pytest.raises(NoSafePlan, match="wall: may reach"):
        stop.act(beyond)
    assert stop.fallbacks == 1


@pytest.mark.parametrize("name", PLANNERS)
def test_from_a_state_that_is_no_number_the_fallback_acts(name: str) -> None:
    lost = np.array([np.nan])
    hold = GuardedAgent(planner(name), line("hold"))
    assert hold.act(lost).tolist() == [0.0]
    assert (hold.decisions, hold.fallbacks, hold.reason) == (1, 1, "the state is not a number")
    assert np.abs(hold.act(np.array([-3.0]))).max() > 0
    with pytest.raises(NoSafePlan, match="the state is not a number"):
        GuardedAgent(planner(name), line("stop")).act(lost)
    with pytest.raises(InvalidInput, match="the fallback must return 1 finite numbers"):
        GuardedAgent(planner(name), line(lambda state: -state)).act(lost)


def test_what_was_checked_while_planning_is_not_checked_again() -> None:
    for name, checks in (("CEM", 4), ("CEM, mean of elites", 5), ("MPPI", 5)):
        tubes = Tubes()
        agent = GuardedAgent(planner(name), guard_plans(rightwards, forecast, Guard(WALL, tubes, "hold")))
        assert agent.safe_plan(np.zeros(1)) is not None
        assert len(tubes.seen) == checks  # one for each iteration, and one for a plan never seen
        assert (agent.reason == "safe: checked while planning") == (checks == 4)


class MeansOnly:
    """A planner that evaluates two safe ways round an obstacle and returns their unsafe mean."""

    replan_freq = 2
    optimizer_args = {"action_lb": np.array([-1.0]), "action_ub": np.array([1.0])}  # noqa: RUF012
    optimizer = SimpleNamespace(initial_solution=torch.zeros(1), optimizer=None)

    def set_trajectory_eval_fn(self, evaluate: Any) -> None:
        self.evaluate = evaluate

    def plan(self, observation: Any) -> np.ndarray:
        self.evaluate(observation, PLANS[[0, 3, 2]])
        self.evaluate(observation, PLANS[[3]])  # what came before is not forgotten
        return PLANS[2].numpy()


def test_an_unsafe_mean_gives_way_to_the_best_safe_plan_seen() -> None:
    agent = GuardedAgent(MeansOnly(), guard_plans(rightwards, forecast, Guard(WALL, Tubes(2), "stop")))
    assert agent.act(np.zeros(1)).item() == pytest.approx(0.5)
    assert agent.reason == "wall: may reach 1.9, 0.9 above 1 at step 2 of 2"
    assert agent.act(np.zeros(1)).item() == pytest.approx(0.3)
    assert (agent.decisions, agent.replaced, agent.fallbacks) == (1, 1, 0)
    with pytest.raises(NoSafePlan):  # a plan that was safe a decision ago is not safe now
        agent.act(np.full(1, 5.0))


def test_a_waiting_plan_is_checked_from_each_new_observation() -> None:
    """What is left of a plan was safe from where it began; a push later it leads through the wall."""
    agent = GuardedAgent(MeansOnly(), guard_plans(rightwards, forecast, Guard(WALL, Tubes(2), "hold")))
    assert agent.act(np.zeros(1)).item() == pytest.approx(0.5)  # and 0.3 waits
    assert agent.act(np.full(1, 0.7)).item() == -1.0  # from 0.7 it would end at 1, and 1.1 with the tube
    assert (agent.decisions, agent.fallbacks) == (2, 0)
    assert agent.act(np.full(1, 0.95)).item() == pytest.approx(-1.0)  # 0.0 waits, and 0.95 is too near
    assert agent.act(np.full(1, np.nan)).item() == 0.0
    assert agent.reason == "the state is not a number"
    assert (agent.decisions, agent.fallbacks) == (4, 1)


def test_what_is_left_of_a_plan_is_as_long_as_the_tube_or_made_anew() -> None:
    """A tube of three steps says nothing of the two that are left."""
    agent = GuardedAgent(MeansOnly(), guard_plans(rightwards, forecast, Guard(WALL, Tubes(3), "stop")))
    for decisions in (1, 2, 3):
        agent.act(np.zeros(1))
        assert agent.decisions == decisions


def test_what_is_left_of_a_plan_never_meets_a_tube_for_the_whole_of_it() -> None:
    """A guard that was not told its tube's steps hands whole plans to it, also after the first action."""

    class Whole(Tubes):
        def tube(self, forecast: Any) -> Any:
            if forecast.mean.shape[1] != HORIZON:
                raise InvalidInput(f"the tube is of {HORIZON} steps, got {forecast.mean.shape[1]}")
            return super().tube(forecast)

    agent = GuardedAgent(
        planner("CEM", replan_freq=2), guard_plans(rightwards, forecast, Guard(WALL, Whole(), "stop"))
    )
    assert agent.guard.horizon is None
    walk(agent.act, 3)
    assert agent.decisions == 3


def test_a_plan_of_another_shape_is_refused() -> None:
    class Flat(MeansOnly):
        def plan(self, observation: Any) -> np.ndarray:
            return np.zeros(3)

    agent = GuardedAgent(Flat(), guard_plans(rightwards, forecast, Guard(WALL, Tubes(), "stop")))
    with pytest.raises(InvalidInput, match=r"the agent's plan must have shape \[H, 1\], got \(3,\)"):
        agent.act(np.zeros(1))


def test_the_fallback_must_be_chosen() -> None:
    """The action 0 is not rest for every robot."""
    for make in (
        lambda: GuardedAgent(MeansOnly(), line(None)),
        lambda: ActionFilter(-np.ones(1), np.ones(1), forecast, Guard(WALL, Tubes()), hold_action(1)),
        lambda: Controller(None, None, None, (), None, 3),  # type: ignore[arg-type]
    ):
        with pytest.raises((TypeError, InvalidInput), match="fallback"):
            make()


def test_an_episode_does_not_lean_on_the_one_before() -> None:
    for name in ("iCEM", "MPPI", "CEM"):
        agent = GuardedAgent(planner(name), guard_plans(rightwards, forecast, Guard(WALL, Tubes(), "hold")))
        torch.manual_seed(1)
        first = walk(agent.act, 3)
        agent.reset()
        torch.manual_seed(1)
        assert walk(agent.act, 3).tolist() == first.tolist()


def test_actions_beyond_the_tube_are_never_taken() -> None:
    agent = planner("CEM", replan_freq=3)
    with pytest.raises(InvalidInput, match="replan_freq must be at most the tube's 2 steps, got 3"):
        GuardedAgent(agent, guard_plans(rightwards, forecast, Guard(WALL, Tubes(2), "hold")))
    agent.replan_freq = 1
    guarded = GuardedAgent(agent, guard_plans(rightwards, forecast, Guard(WALL, Tubes(2), "hold")))
    agent.replan_freq = 3
    walk(guarded.act, 6)
    assert guarded.decisions >= 3  # two actions of each plan at most, whose tube is of two steps
    with pytest.raises(InvalidInput, match="fallback must be"):
        GuardedAgent(agent, guard_plans(rightwards, forecast, Guard(WALL, Tubes(), "wait")))  # type: ignore[arg-type]


def test_a_trained_ensemble_plans_under_guard(ensemble: Ensemble) -> None:
    spaces = SimpleNamespace(observation_space=None, action_space=None)
    model = ensemble.for_mbrl()
    model.set_propagation_method("fixed_model")
    never = lambda actions, states: torch.zeros(len(states), 1, dtype=torch.bool)  # noqa: E731
    env = ModelEnv(spaces, model, never, lambda a, s: s[:, :1])

    def returns(state: Any, plans: Any) -> Any:
        return env.evaluate_action_sequences(plans, initial_state=state, num_particles=6)

    def cloud(starts: torch.Tensor, plans: torch.Tensor) -> Any:
        return forecast_plans(ensemble, starts, plans, propagation="one-step", batch=64)

    class Steps:
        def tube(self, forecast: Any) -> Any:
            return Tubes().tube(type(forecast)(forecast.mean[..., :1], forecast.var[..., :1]))

    guard = guard_plans(returns, cloud, Guard(WALL, Steps()))
    rng = np.random.default_rng(0)
    start, plans = rng.normal(size=18, scale=0.1), torch.from_numpy(rng.uniform(-1, 1, (64, 2, 6)))
    values = guard(start, plans.float())
    fastest = cloud(torch.from_numpy(start).expand(64, -1), plans).mean[..., 0].amax(1)
    assert ranked_safe(values).tolist() == (fastest.double() + WIDTH <= 1.0).tolist()


def test_to_hold_is_the_action_nearest_to_zero() -> None:
    low, high = np.array([-1.0, 0.5]), np.ones(2)
    assert Guard(WALL, Tubes(), "hold").act(np.zeros(3), low, high, "too fast").tolist() == [0.0, 0.5]


def step_by_step(starts: np.ndarray, plans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = starts[:, None] + plans.cumsum(axis=1)
    return mean, np.full_like(mean, 0.01)


LINE = Dynamics(step_by_step)
"""The same line as a model of numpy arrays."""


def fitted(fallback: Any = "hold") -> Any:
    return SimpleNamespace(guard=Guard(WALL, Tubes(HORIZON), fallback), model=LINE)


def test_a_model_of_numpy_arrays_guards_plans_of_torch() -> None:
    one = guard_plans(None, LINE, Guard(WALL, Tubes()), reward=lambda states, actions: states[..., 0])
    values = one(np.zeros(1), PLANS)
    assert isinstance(values, torch.Tensor)
    assert ranked_safe(values).tolist() == SAFE
    assert values[[0, 3]].tolist() == pytest.approx([0.5 + 0.8 + 0.8, -3.0])
    # From a start of its own each: the first is too near the wall, the last but one far enough.
    starts = torch.tensor([[0.5], [0.0], [-9.0], [0.0]])
    assert ranked_safe(one(starts, PLANS)).tolist() == [False, False, True, True]
    with pytest.raises(InvalidInput, match=r"shape \[D\], or \[4, D\] for 4 plans, got \(3, 1\)"):
        one(starts[:3], PLANS)


@pytest.mark.parametrize("name", PLANNERS)
def test_a_line_of_code_guards_an_agent_with_the_objective_it_has(name: str) -> None:
    agent = planner(name)
    with pytest.raises(InvalidInput, match="must have an objective where no reward is given"):
        guard_agent(agent, fitted())
    agent.set_trajectory_eval_fn(rightwards)
    path = walk(guard_agent(agent, fitted()).act)
    assert 0.35 < path.max() <= 1.0 - WIDTH + 1e-6
    own = guard_agent(planner(name), fitted(), reward=lambda states, actions: states[..., 0])
    assert 0.35 < walk(own.act).max() <= 1.0 - WIDTH + 1e-6


def ahead(mean: Any, plans: Any) -> Any:
    return -mean[..., 0].sum(axis=-1)


def searching(name: str, **options: Any) -> SearchPlanner:
    low, high = np.array([-1.0]), np.array([1.0])
    return SearchPlanner(PLANNERS[name], LINE, ahead, low, high, **{"candidates": 5, "horizon": 3} | options)


@pytest.mark.parametrize("name", PLANNERS)
def test_a_search_proposes_the_best_of_its_last_population_and_its_own_plan(name: str) -> None:
    starts = np.array([[0.0], [2.0]])
    search, seeds = searching(name), (3, 4)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    plans = search.propose(starts, [np.random.default_rng(seed) for seed in seeds])
    assert plans.shape == (2, 5, 3, 1)
    assert abs(plans).max() <= 1.0
    assert not np.array_equal(plans[0], plans[1])  # another generator
    assert torch.equal(torch.get_rng_state(), before)  # and nobody else's
    alone = search.propose(starts[1:], [np.random.default_rng(4)])
    assert alone[0].tobytes() == plans[1].tobytes()  # iCEM and MPPI would lean on the search before
    mean = starts[:, None, None] + plans.cumsum(axis=2)
    price = search.cost(GaussianForecast(mean, 0 * mean + 1), plans)
    assert (np.diff(price[:, :-1], axis=1) >= 0).all()  # the cheapest first
    assert (price < -starts.sum(axis=1, keepdims=True) * 3 - 1.0).all()  # all better than to stand still
    if name == "CEM":  # which returns the best that it saw
        assert (price[:, -1] <= price[:, 0]).all()
    again = propose_unguarded(search, starts[0], 7)
    assert again.tobytes() == propose_unguarded(search, starts[0], 7).tobytes()


def test_a_search_is_refused_more_candidates_than_it_has() -> None:
    with pytest.raises(InvalidInput, match="at most one more than the last population's 80 plans, got 82"):
        searching("CEM", candidates=82).propose(np.zeros((1, 1)), [np.random.default_rng(0)])
    with pytest.raises(InvalidInput, match="candidates must be"):
        searching("CEM", candidates=1)
    assert searching("CEM").at(6).propose(np.zeros((1, 1)), [np.random.default_rng(0)]).shape == (1, 5, 6, 1)


def test_a_search_survives_costs_that_are_no_numbers() -> None:
    def price(mean: Any, plans: Any) -> Any:
        return np.where(plans[..., 0, 0] > 0, np.nan, -plans[..., 0, 0])

    low, high = np.array([-1.0]), np.array([1.0])
    search = SearchPlanner(PLANNERS["CEM"], LINE, price, low, high, candidates=4, horizon=2)
    plans = search.propose(np.zeros((1, 1)), [np.random.default_rng(0)])
    assert (plans[0, :, 0, 0] <= 0).all()


AHEAD = np.eye(18)[0]
SIX = np.random.default_rng(0).uniform(-1, 1, size=(5, 4, 6))


def with_members(ensemble: Ensemble, episodes: Rollouts) -> MemberForecast:
    model, starts = Dynamics.of(ensemble, propagation="one-step", batch=5), episodes.start[:5]
    assert model.members is not None
    made = model(starts, SIX)
    return MemberForecast(made.mean, made.var, members=model.members(starts, SIX))


def test_the_worst_member_is_worse_than_the_mean_of_a_first_step(
    ensemble: Ensemble, episodes: Rollouts
) -> None:
    """At the first step the mean is that of the members, so one of them lies at or above it."""
    forecast = with_members(ensemble, episodes)
    ends = [np.asarray(kind.tube(forecast).support(AHEAD))[:, 0] for kind in (MeanTubes(), MemberTubes())]
    np.testing.assert_allclose(ends[0], forecast.mean[:, 0, 0])
    assert (ends[1] > ends[0]).all()


def test_of_longer_plans_a_guard_checks_the_first_steps(ensemble: Ensemble, episodes: Rollouts) -> None:
    forecast, limit = with_members(ensemble, episodes), TubeChecker([HalfSpace("speed", AHEAD, 1.0)])
    for kind in (MeanTubes(), MemberTubes()):
        checked = Guard(limit, kind, horizon=2).check(forecast, SIX)
        assert checked.margin.shape == (5, 2, 1)
        np.testing.assert_allclose(checked.margin, Guard(limit, kind).check(forecast, SIX).margin[:, :2])
