"""Actions one at a time: the filter, the Gymnasium wrapper, and the state it reads from MuJoCo."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from toy_line import WALL, WIDTH, Tubes
from toy_line import forecast as torch_forecast

from pac_core import GaussianForecast, HalfSpace, InvalidInput, TubeChecker
from pac_rl import (
    ActionFilter,
    Dynamics,
    Ensemble,
    Guard,
    GuardedEnv,
    GuardedVectorEnv,
    GymSystem,
    MujocoSystem,
    NoSafePlan,
    forecast_plans,
    make_environment,
    simulate,
)
from pac_rl.planning import Filtered, MeanTubes, MujocoState, continue_with_policy, hold_action
from pac_rl.policies import Network, actions
from pac_rl.systems import Environment

LOW, HIGH = np.array([-1.0]), np.array([1.0])


def forecast(starts: Any, plans: Any) -> Any:
    return torch_forecast(torch.from_numpy(starts), torch.from_numpy(plans))


def line_filter(**changes: Any) -> ActionFilter:
    options: dict[str, Any] = {"continue_with": hold_action(2), "fallback": "hold", "checker": WALL} | changes
    guard = Guard(options.pop("checker"), Tubes(), options.pop("fallback"))
    return ActionFilter(LOW, HIGH, forecast, guard, **options)


def test_a_safe_action_is_handed_on_and_an_unsafe_one_replaced() -> None:
    guard = line_filter()
    kept = guard(np.zeros(1), np.array([0.4]))  # held twice it ends at 0.8, and 0.9 with the tube
    assert (kept.action.tolist(), kept.safe, kept.replaced) == ([0.4], True, False)
    assert kept.margin == pytest.approx(1 - 0.8 - WIDTH)
    other = guard(np.zeros(1), np.array([0.5]))
    assert (other.action.tolist(), other.safe, other.replaced) == ([0.0], True, True)
    assert other.reason == "wall: may reach 1.1, 0.1 above 1 at step 2 of 2"
    assert other.margin == pytest.approx(1 - WIDTH)  # of what is done, not of what was proposed
    beyond = guard(np.full(1, 5.0), np.array([-1.0]))
    assert (beyond.action.tolist(), beyond.safe, beyond.replaced) == ([0.0], False, True)


def test_certify_action_says_whether_what_it_returns_is_safe() -> None:
    guard = line_filter(fallback=lambda state: np.array([-3.0]))
    assert guard.certify_action(np.zeros(1), [0.4]) == (np.array([0.4]), True)
    assert guard.certify_action(np.zeros(1), [1.0]) == (np.array([-1.0]), True)
    assert guard.certify_action(np.full(1, 9.0), [1.0]) == (np.array([-1.0]), False)


def test_the_action_that_stands_in_is_the_one_that_was_checked() -> None:
    """A backup policy that draws its actions would answer otherwise when it is asked again."""
    answers = iter([-0.5, 1.0])
    decision = line_filter(fallback=lambda state: np.array([next(answers)]))(np.zeros(1), [0.9])
    assert (decision.action.tolist(), decision.safe) == ([-0.5], True)


def test_actions_out_of_range_are_cut_off_and_those_that_are_no_numbers_replaced() -> None:
    guard = line_filter(continue_with=hold_action(1))
    far = guard(np.full(1, -2.0), [7.0])
    assert (far.action.tolist(), far.safe, far.replaced) == ([1.0], True, True)
    none = line_filter(fallback=lambda state: np.array([-0.5]))(np.zeros(1), [np.nan])
    assert (none.action.tolist(), none.safe, none.replaced) == ([-0.5], True, True)
    assert none.reason == "the action is not a number"
    with pytest.raises(InvalidInput, match=r"action must have shape \(1,\), got \(2,\)"):
        guard(np.zeros(1), [0.0, 0.0])
    with pytest.raises(NoSafePlan, match="wall: may reach"):
        line_filter(fallback="stop")(np.zeros(1), [1.0])
    assert line_filter(fallback="stop")(np.zeros(1), [0.1]).safe
    with pytest.raises(InvalidInput, match="the fallback must return 1 finite numbers"):
        line_filter(fallback=lambda state: np.array([np.nan]))(np.zeros(1), [1.0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_in_a_state_that_is_no_number_the_fallback_acts(value: float) -> None:
    lost = np.full(1, value)
    for fallback, wanted in (("hold", 0.0), (lambda state: np.array([-0.5]), -0.5)):
        decision = line_filter(fallback=fallback)(lost, [0.1])
        assert (decision.action.tolist(), decision.safe, decision.fallback) == ([wanted], False, True)
        assert (decision.reason, decision.margin) == ("the state is not a number", -np.inf)
    with pytest.raises(NoSafePlan, match="the state is not a number"):
        line_filter(fallback="stop")(lost, [0.1])
    with pytest.raises(InvalidInput, match="the fallback must return 1 finite numbers"):
        line_filter(fallback=lambda state: -state)(lost, [0.1])


def test_a_tube_of_fewer_steps_than_the_plan_is_refused() -> None:
    guard = line_filter(continue_with=hold_action(3))
    short = replace(guard, forecast=lambda starts, plans: forecast(starts, plans[:, :2]))
    with pytest.raises(InvalidInput, match="forecast must be of 1 plans x 3 steps, got"):
        short(np.zeros(1), [0.1])


class Line(gymnasium.Env[Any, Any]):
    """The line as an environment; with a cost, in the manner of Safety-Gymnasium, if asked."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, cost: bool = False) -> None:
        self.cost, self.at = cost, np.zeros(1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.at = np.zeros(1)
        return self.at, {"fresh": True}

    def step(self, action: Any) -> Any:
        assert action.dtype == np.float32
        self.at = self.at + action
        cost = (float(self.at[0] > 1),) if self.cost else ()
        return self.at, float(action[0]), *cost, False, False, {"seen": 1}


@pytest.mark.parametrize("cost", [False, True])
def test_the_wrapper_keeps_the_wall_and_tells_what_it_did(cost: bool) -> None:
    env = GuardedEnv(Line(cost), line_filter(continue_with=hold_action(1)))
    with pytest.raises(InvalidInput, match="reset must be called"):
        env.step(np.ones(1))
    assert env.reset(seed=0)[1] == {"fresh": True}
    told = []
    for _ in range(3):
        values = env.step(np.array([0.4]))
        assert len(values) == (6 if cost else 5)
        told.append(values[-1]["guard"])
        assert values[-1]["seen"] == 1
        assert not cost or values[2] == 0.0
    assert [guard["replaced"] for guard in told] == [False, False, True]
    assert all(guard["safe"] for guard in told)
    assert told[2]["reason"] == "wall: may reach 1.3, 0.3 above 1 at step 1 of 1"
    assert [guard["fallback"] for guard in told] == [False, False, True]
    done = float(np.float32(0.4))  # as the environment takes it
    assert [guard["action"].tolist() for guard in told] == [[done], [done], [0.0]]
    assert (env.decisions, env.replaced, env.fallbacks, env.unsafe) == (3, 1, 1, 0)
    env.step(np.array([-7.0]))  # cut off, and safe
    assert (env.decisions, env.replaced, env.fallbacks, env.unsafe) == (4, 2, 1, 0)
    env._now = np.full(1, np.nan)
    assert env.step(np.array([0.1]))[-1]["guard"]["reason"] == "the state is not a number"
    assert (env.decisions, env.replaced, env.fallbacks, env.unsafe) == (5, 3, 2, 1)
    stopping = GuardedEnv(Line(cost), line_filter(fallback="stop"))
    stopping.reset(seed=0)
    with pytest.raises(NoSafePlan, match="wall"):
        stopping.step(np.ones(1))
    assert (stopping.decisions, stopping.fallbacks) == (1, 1)
    assert env.certify_action(np.zeros(1), [0.3]) == (np.array([np.float32(0.3)]), True)


NEAR = TubeChecker([HalfSpace("near", np.ones(1), 0.5)])
"""Kept by the action 0.4, and not by the single that is nearest to it, 0.4000000059604645."""


class Noting(Line):
    """Keeps the last action that it was given."""

    def step(self, action: Any) -> Any:
        self.done = action
        return super().step(action)


def test_an_action_is_checked_as_the_environment_takes_it() -> None:
    nearest = float(np.float32(0.4))
    guard = line_filter(continue_with=hold_action(1), checker=NEAR)
    assert guard(np.zeros(1), [0.4]).safe  # in doubles it is
    assert not replace(guard, dtype=np.float32)(np.zeros(1), [0.4]).reason.startswith("safe")
    env = GuardedEnv(Noting(), guard)
    env.reset(seed=0)
    told = env.step(np.array([0.4]))[-1]["guard"]
    assert (told["action"].tolist(), told["safe"], told["fallback"]) == ([0.0], True, True)
    assert told["reason"].startswith("near: may reach 0.5")
    near = line_filter(continue_with=hold_action(1), checker=NEAR, fallback=lambda state: np.array([0.4]))
    backup = GuardedEnv(Noting(), near)
    backup.reset(seed=0)
    told = backup.step(np.array([1.0]))[-1]["guard"]
    assert (told["action"].tolist(), told["safe"]) == ([nearest], False)  # the fallback's own, as it acts
    assert backup.env.done.dtype == np.float32  # type: ignore[attr-defined]
    assert backup.unsafe == 1
    huge = env.step(np.array([1e300]))[-1]["guard"]  # no single: not a number
    assert (huge["fallback"], huge["reason"]) == (True, "the action is not a number")


def test_the_range_of_a_filter_ends_at_numbers_of_its_dtype() -> None:
    hold = Guard(WALL, Tubes(), "hold")
    guard = ActionFilter(np.array([0.4]), np.array([0.9]), forecast, hold, hold_action(1), np.float32)
    assert 0.4 <= guard.low[0] < 0.4 + 1e-7
    assert 0.9 - 1e-7 < guard.high[0] <= 0.9
    for end in (guard.low[0], guard.high[0]):
        assert float(np.float32(end)) == end
    assert guard(np.full(1, -5.0), [7.0]).action.tolist() == [guard.high[0]]
    with pytest.raises(InvalidInput, match="dtype must be one of floats, got int64"):
        replace(guard, dtype=np.int64)
    for low, high in (([], []), ([0.1], [0.1 + 1e-12]), ([1.0], [0.0]), ([[0.0]], [[1.0]])):
        with pytest.raises(InvalidInput, match=r"low and high must be \[A\]"):
            replace(guard, low=np.array(low), high=np.array(high))


@pytest.mark.parametrize("action", [0.1, 1.5, np.nan])
def test_an_action_that_is_not_the_environments_is_refused_before_it_is_taken(action: float) -> None:
    """0.1 is no single, and 1.5 would be cut off after the check."""

    def certify(state: Any, wanted: Any) -> Filtered:
        return Filtered(np.array([action]), True, False, "mine", 1.0)

    env = GuardedEnv(Noting(), certify)
    env.reset(seed=0)
    with pytest.raises(InvalidInput, match="guard must return actions of Box"):
        env.step(np.zeros(1))
    assert not hasattr(env.env, "done")


@pytest.mark.parametrize(
    ("continue_with", "sentence"),
    [
        (lambda states, first: first[:0, None], r"shape \(1, 1, 1\), got \(0, 1, 1\)"),
        (lambda states, first: first, r"shape \(1, 1, 1\), got \(1, 1\)"),
        (lambda states, first: np.zeros((1, 0, 1)), r"shape \(1, 1, 1\), got \(1, 0, 1\)"),
        (lambda states, first: np.zeros((1, 2, 3)), r"shape \(1, 2, 1\), got \(1, 2, 3\)"),
        (lambda states, first: 0 * first[:, None], "continue_with must begin with the actions"),
    ],
)
def test_a_plan_that_does_not_begin_with_the_action_is_refused(continue_with: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        line_filter(continue_with=continue_with)(np.zeros(1), [0.3])


def test_states_and_fallbacks_are_not_broadcast() -> None:
    with pytest.raises(InvalidInput, match=r"state must have shape \[D\], got \(1, 1\)"):
        line_filter()(np.zeros((1, 1)), [0.1])
    with pytest.raises(
        InvalidInput, match=r"the fallback's action must be numbers of shape \(1,\), got \(\)"
    ):
        line_filter(fallback=lambda state: 0.0)(np.zeros(1), [0.9])
    env = GuardedEnv(Line(), line_filter(), state=lambda env, observation: observation[None])
    with pytest.raises(InvalidInput, match=r"state must be \[D\], got \(1, 1\)"):
        env.reset(seed=0)


def test_actions_that_would_be_rounded_are_refused() -> None:
    """An action of 0.9 that was checked would be carried out as 0."""
    env = Line()
    env.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.int64)
    with pytest.raises(InvalidInput, match="actions of floats, got an action space of dtype int64"):
        GuardedEnv(env, line_filter())


def test_the_state_is_the_one_that_rollouts_are_made_of(cheetah: Environment, policy: Network) -> None:
    rollout = simulate(cheetah, policy, [5], horizon=4, burn_in=(0, 0))
    env, state = make_environment().gym, MujocoState(cheetah)
    physics = rollout.physics[0, 1:]
    for _ in range(2):  # a second episode starts at velocity 0 again
        observation, _ = env.reset(seed=5)
        env.set_state(physics[: env.model.nq], physics[env.model.nq : env.model.nq + env.model.nv])
        np.testing.assert_allclose(state(env, observation), rollout.start[0], atol=1e-12)
        for t in range(4):
            observation, *_ = env.step(rollout.actions[0, t])
            # Solver warm starts differ from rollouts, which leaves the last digits.
            np.testing.assert_allclose(state(env, observation), rollout.states[0, t], atol=1e-5)


def test_a_plan_follows_the_action_with_the_policy_along_the_mean(
    ensemble: Ensemble, cheetah: Environment, policy: Network
) -> None:
    states, first = np.full((2, 18), 0.05), np.array([np.full(6, 0.5), np.full(6, -0.5)])
    model = Dynamics.of(ensemble, propagation="one-step", batch=2)
    plans = continue_with_policy(MujocoSystem(), model, policy, horizon=3)(states, first)
    assert plans.shape == (2, 3, 6)
    np.testing.assert_allclose(plans[:, 0], first, atol=1e-6)
    mean = forecast_plans(ensemble, states, plans, propagation="one-step", batch=2).mean
    for t in (1, 2):
        wanted = actions(cheetah, policy, torch.from_numpy(mean[:, t - 1]), torch.zeros(2, 6))
        np.testing.assert_allclose(plans[:, t], wanted.numpy(), atol=1e-5)


@dataclass(frozen=True)
class Fitted:
    """What the wrappers read of a `FittedGuard`."""

    guard: Guard
    model: Any
    base: Any = None


def test_a_half_cheetah_under_guard_alone_and_as_one_of_three(
    ensemble: Ensemble, cheetah: Environment
) -> None:
    """In one line each; the state, with the forward velocity, is read from the simulation."""
    model = Dynamics.of(ensemble, batch=4)
    calm = TubeChecker([HalfSpace("speed", np.eye(18)[0], 1e3)])
    fast = TubeChecker([HalfSpace("speed", np.eye(18)[0], -1e3)])
    base = SimpleNamespace(system=MujocoSystem())
    for checker, safe in ((calm, True), (fast, False)):
        fitted = Fitted(Guard(checker, MeanTubes(), "hold", 3), model, base)
        env = GuardedEnv(make_environment().gym, fitted)
        env.reset(seed=7)
        envs = GuardedVectorEnv(gymnasium.make_vec("HalfCheetah-v5", 3, vectorization_mode="sync"), fitted)
        envs.reset(seed=5)  # 5, 6 and 7
        for _ in range(3):
            _, _, _, _, info = env.step(np.full(6, 0.25, dtype=np.float32))
            _, _, _, _, infos = envs.step(np.full((3, 6), 0.25, dtype=np.float32))
            assert (info["guard"]["safe"], info["guard"]["replaced"]) == (safe, not safe)
            assert infos["guard"]["safe"].tolist() == [safe] * 3
            assert infos["guard"]["margin"][2] == info["guard"]["margin"]
            assert len(set(infos["guard"]["margin"])) == 3  # each is forecast from its own state
            assert info["x_velocity"] == infos["x_velocity"][2]
        assert env._now is not None
        assert env._now[0] == pytest.approx(info["x_velocity"], abs=1e-9)
        envs.close()


def vector(count: int = 3, mode: str = "NextStep", **changes: Any) -> GuardedVectorEnv:
    def make() -> Short:
        return Short()

    envs = gymnasium.vector.SyncVectorEnv([make] * count, autoreset_mode=mode)
    return GuardedVectorEnv(envs, line_filter(**{"continue_with": hold_action(1)} | changes))


class Short(Line):
    """The line, where an episode ends beyond -1; a reset leads to 0."""

    def step(self, action: Any) -> Any:
        seen, reward, _, cut, info = super().step(action)
        return seen, reward, bool(seen[0] <= -1), cut, info


def test_the_actions_of_a_vector_environment_are_checked_together() -> None:
    calls: list[int] = []

    def counted(starts: Any, plans: Any) -> Any:
        calls.append(len(plans))
        return forecast(starts, plans)

    envs = vector(4)
    envs.filter = replace(envs.filter, forecast=counted)
    with pytest.raises(InvalidInput, match="reset must be called"):
        envs.step(np.zeros((4, 1)))
    envs.reset(seed=0)
    _, rewards, _, _, infos = envs.step(np.array([[0.4], [0.95], [np.nan], [-7.0]]))
    assert calls == [3, 2]  # what is no number is not forecast; then the fallback's, where it acts
    told = infos["guard"]
    assert told["action"][:, 0].tolist() == [float(np.float32(0.4)), 0.0, 0.0, -1.0] == rewards.tolist()
    assert told["safe"].tolist() == [True] * 4
    assert told["replaced"].tolist() == [False, True, True, True]
    assert told["fallback"].tolist() == [False, True, True, False]
    assert told["margin"] == pytest.approx([0.5, 0.9, 0.9, 1.9])
    assert told["reason"][1] == "wall: may reach 1.05, 0.05 above 1 at step 1 of 1"
    assert told["reason"][2] == "the action is not a number"
    assert infos["_guard"].tolist() == [True] * 4
    assert infos["seen"].tolist() == [1] * 4
    assert (envs.decisions, envs.replaced, envs.fallbacks, envs.unsafe) == (4, 3, 2, 0)
    with pytest.raises(InvalidInput, match=r"actions must have shape \(4, 1\), got \(1, 1\)"):
        envs.step(np.zeros((1, 1)))
    assert envs.certify_action(np.zeros(1), [0.3]) == (np.array([np.float32(0.3)]), True)


def test_in_a_vector_environment_a_lost_robot_falls_back_and_the_others_go_on() -> None:
    envs = vector(3, fallback=lambda state: np.array([-0.5]))
    envs.reset(seed=0)
    assert envs._now is not None
    envs._now[1] = np.nan
    told = envs.step(np.full((3, 1), 0.25))[-1]["guard"]
    assert told["action"][:, 0].tolist() == [0.25, -0.5, 0.25]
    assert told["safe"].tolist() == [True, False, True]
    assert told["reason"][1] == "the state is not a number"
    assert told["margin"][1] == -np.inf
    assert envs.unsafe == 1


def test_where_an_episode_is_over_the_next_step_resets_it_and_nothing_is_checked() -> None:
    """An action of 0.4 for an environment that is reset is not carried out, whatever a check would say."""
    envs = vector(2)
    envs.reset(seed=0)
    ends = envs.step(np.array([[-1.0], [0.4]]))[2]
    assert ends.tolist() == [True, False]
    observed, _, _, _, infos = envs.step(np.array([[0.4], [0.4]]))
    assert infos["_guard"].tolist() == [False, True]
    assert infos["guard"]["reason"][0] is None
    assert (envs.decisions, observed[0, 0]) == (3, 0.0)  # it was reset
    _, _, _, _, infos = envs.step(np.array([[0.95], [0.0]]))  # from 0 again: 0.95 is too far
    assert infos["_guard"].tolist() == [True, True]
    assert infos["guard"]["fallback"].tolist() == [True, False]


def test_a_step_that_only_resets_checks_nothing() -> None:
    envs = vector(1)
    envs.reset(seed=0)
    envs.step(np.array([[-1.0]]))
    assert envs.step(np.array([[0.4]]))[-1]["_guard"].tolist() == [False]
    assert envs.decisions == 1


def test_where_an_episode_is_reset_in_the_same_step_the_next_action_starts_from_there() -> None:
    envs = vector(2, "SameStep")
    envs.reset(seed=0)
    _, _, ends, _, infos = envs.step(np.array([[-1.0], [0.4]]))
    assert ends.tolist() == [True, False]
    assert infos["final_obs"][0].tolist() == [-1.0]
    told = envs.step(np.array([[0.95], [0.4]]))[-1]
    assert told["_guard"].tolist() == [True, True]
    assert told["guard"]["fallback"].tolist() == [True, False]  # from -1 the action 0.95 would be safe


def test_environments_that_are_reset_by_hand_keep_the_state_of_the_others() -> None:
    envs = vector(2, "Disabled")
    envs.reset(seed=0)
    envs.step(np.array([[-1.0], [0.4]]))
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert envs._now is not None
    assert envs._now[:, 0].tolist() == [0.0, float(np.float32(0.4))]
    told = envs.step(np.array([[0.4], [0.95]]))[-1]
    assert told["_guard"].tolist() == [True, True]
    assert told["guard"]["fallback"].tolist() == [False, True]


def test_a_vector_environment_of_mujoco_that_is_reset_by_hand_keeps_the_velocities(
    cheetah: Environment,
) -> None:
    made = gymnasium.make_vec(
        "HalfCheetah-v5", 2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": "Disabled"}
    )
    fitted = Fitted(Guard(WALL, MeanTubes(), "hold", 1), None, SimpleNamespace(system=MujocoSystem()))
    envs = GuardedVectorEnv(made, fitted)
    envs.filter = replace(envs.filter, guard=Guard(SPEED, MeanTubes(), "hold"), forecast=stand_still)
    envs.reset(seed=0)
    for _ in range(2):
        speed = envs.step(np.ones((2, 6), np.float32))[-1]["x_velocity"]
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert envs._now is not None
    assert envs._now[0, 0] == 0.0
    assert envs._now[1, 0] == pytest.approx(speed[1], abs=1e-9)
    speed = envs.step(np.ones((2, 6), np.float32))[-1]["x_velocity"]
    np.testing.assert_allclose(envs._now[:, 0], speed, atol=1e-9)
    envs.close()


SPEED = TubeChecker([HalfSpace("speed", np.eye(18)[0], 1e3)])


def stand_still(starts: Any, plans: Any) -> GaussianForecast:
    mean = np.repeat(starts[:, None], plans.shape[1], axis=1)
    return GaussianForecast(mean, 0 * mean + 1)


def test_what_a_vector_environment_cannot_do_is_refused_when_it_is_made() -> None:
    with pytest.raises(InvalidInput, match="must act, got 'stop': it would stop all"):
        vector(fallback="stop")
    with pytest.raises(InvalidInput, match="envs must be a vector environment of Gymnasium, got Line"):
        GuardedVectorEnv(Line(), line_filter())
    with pytest.raises(InvalidInput, match="guard must be a FittedGuard or an ActionFilter, got int"):
        GuardedEnv(Line(), 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="continue_with must be the filter's own"):
        GuardedEnv(Line(), line_filter(), continue_with=hold_action(2))
    with pytest.raises(InvalidInput, match="continue_with must be given for a guard without a horizon"):
        GuardedEnv(Line(), Fitted(Guard(WALL, Tubes(), "hold"), forecast))  # type: ignore[arg-type]
    wide = ActionFilter(2 * LOW, 2 * HIGH, forecast, Guard(WALL, Tubes(), "hold"), hold_action(1))
    with pytest.raises(InvalidInput, match=r"range must lie within that of Box\(-1.0, 1.0, .*got \[-2.\]"):
        GuardedVectorEnv(gymnasium.vector.SyncVectorEnv([Short]), wide)
    discrete = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    with pytest.raises(InvalidInput, match="actions of floats, got an action space of dtype int64"):
        GuardedVectorEnv(discrete, line_filter())


def test_a_fitted_guard_makes_its_own_filter() -> None:
    """The range is the environment's, and an action is held for the guard's horizon."""
    fitted: Any = Fitted(Guard(WALL, Tubes(2), "hold"), forecast)
    env = GuardedEnv(Line(), fitted)
    env.reset(seed=0)
    assert env.step(np.array([0.4]))[-1]["guard"]["margin"] == pytest.approx(1 - 0.8 - WIDTH, abs=1e-6)
    once = GuardedEnv(Line(), fitted, continue_with=lambda states, first: np.stack([first, -first], axis=1))
    once.reset(seed=0)
    assert once.step(np.array([0.4]))[-1]["guard"]["margin"] == pytest.approx(1 - 0.4 - WIDTH, abs=1e-6)
    assert once.step(np.array([7.0]))[-1]["guard"]["fallback"]  # cut off at 1, it would end at 1.4


def test_the_state_of_a_gymnasium_system_is_read_from_the_environment() -> None:
    system = GymSystem(Short, lambda env: env.at + 0.5, None, ("position",), steps=5)
    fitted: Any = Fitted(Guard(WALL, Tubes(1), "hold"), forecast, SimpleNamespace(system=system))
    env = GuardedEnv(Short(), fitted)
    env.reset(seed=0)
    assert env.step(np.array([0.45]))[-1]["guard"]["fallback"]  # from 0.5, not from the observation 0
    envs = GuardedVectorEnv(gymnasium.vector.SyncVectorEnv([Short, Short]), fitted)
    envs.reset(seed=0)
    told = envs.step(np.array([[0.45], [0.25]]))[-1]["guard"]
    assert told["fallback"].tolist() == [True, False]
