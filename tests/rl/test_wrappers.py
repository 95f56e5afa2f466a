"""Actions one at a time: the filter, the Gymnasium wrapper, and the state it reads from MuJoCo."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from toy_line import WALL, WIDTH, Tubes, forecast

from pac_core import HalfSpace, InvalidInput, PACLevel, TubeChecker, fit_tube
from pac_rl import (
    ActionFilter,
    Ensemble,
    Environment,
    GuardedEnv,
    MujocoState,
    Network,
    NoSafePlan,
    closed_loop,
    for_plans,
    held,
    make_environment,
    simulate,
    then_policy,
)
from pac_rl.policies import actions

LOW, HIGH = np.array([-1.0]), np.array([1.0])


def line_filter(**changes: Any) -> ActionFilter:
    options: dict[str, Any] = {"continue_with": held(2), "fallback": "hold"} | changes
    return ActionFilter(LOW, HIGH, forecast, Tubes(), WALL, **options)


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
    guard = line_filter(continue_with=held(1))
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
    guard = line_filter(continue_with=held(3))
    short = replace(guard, forecast=lambda starts, plans: forecast(starts, plans[:, :2]))
    with pytest.raises(InvalidInput, match="a tube of 2 plans x 3 steps, got"):
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
    env = GuardedEnv(Line(cost), line_filter(continue_with=held(1)))
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
    assert [guard["action"].tolist() for guard in told] == [[0.4], [0.4], [0.0]]
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
    assert env.certify_action(np.zeros(1), [0.3]) == (np.array([0.3]), True)


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
    state, first = np.full(18, 0.05), np.array([np.full(6, 0.5), np.full(6, -0.5)])
    plans = then_policy(ensemble, cheetah, policy, horizon=3)(state, first)
    assert plans.shape == (2, 3, 6)
    np.testing.assert_allclose(plans[:, 0], first, atol=1e-6)
    starts = np.repeat(state[None], 2, axis=0)
    mean = for_plans(ensemble, starts, plans, propagation="one-step", batch=2).mean
    for t in (1, 2):
        wanted = actions(cheetah, policy, torch.from_numpy(mean[:, t - 1]), torch.zeros(2, 6))
        np.testing.assert_allclose(plans[:, t], wanted.numpy(), atol=1e-5)


def test_a_half_cheetah_under_guard(ensemble: Ensemble, cheetah: Environment, policy: Network) -> None:
    rollouts = simulate(cheetah, policy, range(60), horizon=3, burn_in=(0, 20))
    forecast = closed_loop(ensemble, cheetah, policy, rollouts.start, horizon=3)
    tune, cal = (slice(0, 30), slice(30, 60))
    parts = [(forecast.take(part), rollouts.truth[part]) for part in (tune, cal)]
    predictor = fit_tube(*parts[0], *parts[1], PACLevel(0.2, 0.1))
    speed = np.eye(18)[0]
    for bound, safe in ((1e3, True), (-1e3, False)):
        guard = ActionFilter.of(
            ensemble, cheetah, policy, predictor, TubeChecker([HalfSpace("speed", speed, bound)])
        )
        env = GuardedEnv(make_environment().gym, guard, state=MujocoState(cheetah))
        env.reset(seed=0)
        _, _, _, _, info = env.step(np.full(6, 0.25, dtype=np.float32))
        assert (info["guard"]["safe"], info["guard"]["replaced"]) == (safe, not safe)
        assert "x_velocity" in info
    row = torch.from_numpy(rollouts.start[:1])
    backup = actions(cheetah, policy, row, torch.zeros(1, 6))[0].numpy()
    np.testing.assert_allclose(guard.certify_action(rollouts.start[0], np.ones(6))[0], backup, atol=1e-6)
