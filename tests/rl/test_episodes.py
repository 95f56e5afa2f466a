"""Episodes belong to their seeds, and count what happened in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from pac_core import GaussianForecast, HalfSpace, InvalidInput
from pac_core.errors import OverlappingSplits
from pac_rl import Controller, Ensemble, execute, run_episodes
from pac_rl import rollouts as simulators
from pac_rl.planning import BATCH, FittedTubes, HullTube, MeanTubes, cheetah_reward, run_to_selection
from pac_rl.policies import Network
from pac_rl.rollouts import Rollouts
from pac_rl.systems import Environment
from pac_rl.tasks import RunEpisodes, RunSelections

SEEDS = np.array([5, BATCH + 1, 2, 7 * BATCH + 2])


class Shard:
    def __init__(self, ids: np.ndarray) -> None:
        self.ids = ids


class WholeSpace:
    """Tubes that hold everything that is finite, wherever the limits are."""

    members = False

    def tube(self, forecast: GaussianForecast) -> HullTube:
        mean = forecast.wide().mean
        return HullTube(np.inf * mean.new_tensor([-1.0, 1.0])[:, None, None, None] + 0 * mean)


@pytest.fixture(scope="module")
def controller(cheetah: Environment, ensemble: Ensemble, policy: Network) -> Controller:
    speed = HalfSpace("speed", np.eye(18)[0], 1.0)
    pitch = HalfSpace("pitch", np.eye(18)[2], 0.3)
    return Controller(
        cheetah,
        ensemble,
        policy,
        (speed, pitch),
        MeanTubes(),
        horizon=3,
        factors=(0.0, 0.5, 1.0),
        fallback="hold",
    )


def same(one: object, other: object, rows: np.ndarray) -> None:
    for name in ("seeds", "returns", "unbroken", "violated", "violation_steps", "fallbacks", "decisions"):
        np.testing.assert_array_equal(getattr(one, name)[rows], getattr(other, name), err_msg=name)


def test_an_episode_is_the_same_in_any_company(controller: Controller) -> None:
    together = run_episodes(controller, SEEDS, steps=6, threads=2)
    backwards = run_episodes(controller, SEEDS[::-1], steps=6, threads=1)
    same(together, backwards, np.arange(4)[::-1])
    alone = run_episodes(controller, SEEDS[2:3], steps=6)
    same(together, alone, np.array([2]))
    assert len(set(together.returns)) == 4  # and seeds differ


def test_a_worker_computes_the_same_bits(controller: Controller) -> None:
    here = run_episodes(controller, SEEDS, steps=6)
    parts = (controller.policy, controller.ensemble, controller.limits, controller.guard)
    options = {"horizon": 3, "factors": (0.0, 0.5, 1.0), "fallback": "hold"}
    made = RunEpisodes("HalfCheetah-v5", *parts, 6, options)(Shard(SEEDS), {})
    counts = {"violation_steps", "fallbacks", "decisions"}
    assert set(made) == {"ids", "errors", "returns", "unbroken", "violated", *counts}
    np.testing.assert_array_equal(made["ids"], SEEDS)
    for name in set(made) - {"ids"}:
        np.testing.assert_array_equal(made[name], getattr(here, name))
    there = run_to_selection(controller, SEEDS, steps=6)
    found = RunSelections("HalfCheetah-v5", *parts, 6, options)(Shard(SEEDS), {})
    for name in ("errors", "accepted", "unsafe", "steps"):
        np.testing.assert_array_equal(found[name], getattr(there, name))


def test_what_happened_is_not_broadcast(controller: Controller) -> None:
    """One number for all robots would be the return of each, or the verdict on each."""
    mean: Any = lambda x, a: x[..., 0] if x.ndim == 4 else x[..., 0].mean()  # noqa: E731
    with pytest.raises(InvalidInput, match=r"reward must be numbers of shape \(2,\), got \(\)"):
        run_episodes(replace(controller, reward=mean), [1, 2], steps=1)

    class Lenient(HalfSpace):
        def violated(self, states: Any) -> Any:
            return super().violated(states)[:1]

    lenient = Lenient("speed", np.eye(18)[0], 1.0)
    with pytest.raises(InvalidInput, match="violated of 'speed' must return a bool for each of 2 states"):
        run_episodes(replace(controller, limits=(lenient,)), [1, 2], steps=1)

    class Held(MeanTubes):
        def tube(self, forecast: Any) -> Any:
            tube = super().tube(forecast)
            object.__setattr__(tube, "contains", lambda truth: torch.ones(1, dtype=torch.bool))
            return tube

    with pytest.raises(InvalidInput, match="contains must return a bool for each of 32 trajectories"):
        run_to_selection(replace(controller, guard=Held()), [1, 2], steps=1)


@pytest.mark.parametrize("bare", [False, True])
def test_counts_are_those_of_the_traces(controller: Controller, bare: bool) -> None:
    acting = controller.bare() if bare else controller
    done = run_episodes(acting, SEEDS, steps=20, along=np.eye(18)[0])
    traces = done.traces
    assert traces is not None
    over = np.stack([traces.states[..., 0] > 1.0, traces.states[..., 2] > 0.3], axis=-1)
    np.testing.assert_array_equal(done.violated, over.any(axis=1))
    np.testing.assert_array_equal(done.violation_steps, over.any(axis=2).sum(axis=1))
    np.testing.assert_array_equal(done.fallbacks, (traces.chosen == -1).sum(axis=1))
    np.testing.assert_array_equal(done.errors, done.violated.any(axis=1))
    assert (done.decisions == 20).all()
    rewards = traces.states[..., 0] - 0.1 * (traces.actions**2).sum(axis=2)
    np.testing.assert_allclose(done.returns, rewards.sum(axis=1), rtol=1e-12)
    before = np.cumsum(over.any(axis=2), axis=1) == 0  # without the step that breaks it
    assert not bare or 0 < before.sum() < before.size
    np.testing.assert_allclose(done.unbroken, (rewards * before).sum(axis=1), rtol=1e-12)
    # With a guard that looks at means alone, the upper end is the lower end; without one there is none.
    np.testing.assert_array_equal(traces.lower, traces.upper)


def test_returns_are_gymnasiums(controller: Controller) -> None:
    """The bare policy's actions, carried out by Gymnasium from the same reset, earn the same."""
    done = run_episodes(controller.bare(), [3], steps=10, along=np.eye(18)[0])
    assert done.traces is not None
    gym = gymnasium.make("HalfCheetah-v5")
    gym.reset(seed=int(np.random.default_rng(3).integers(2**31)))
    earned = [float(gym.step(action)[1]) for action in done.traces.actions[0]]
    # Gymnasium carries solver warm starts from step to step, so digits part slowly.
    np.testing.assert_allclose(done.returns[0], sum(earned), rtol=1e-3)
    states = np.array([[2.0, 0.0]])
    assert cheetah_reward(states, np.array([[1.0, 2.0]])).tolist() == [2.0 - 0.5]


def test_fallbacks_are_counted_where_nothing_is_safe(controller: Controller) -> None:
    never = HalfSpace("never", np.eye(18)[0], -100.0)
    done = run_episodes(replace(controller, limits=(never,)), SEEDS[:2], steps=5, along=np.eye(18)[0])
    assert done.fallbacks.tolist() == [5, 5]
    assert done.violated.all()
    assert done.traces is not None
    assert not done.traces.actions.any()  # hold
    backup = replace(controller, limits=(never,), fallback=controller.policy)
    acted = run_episodes(backup, SEEDS[:2], steps=5, along=np.eye(18)[0])
    assert acted.traces is not None
    assert acted.traces.actions.any()


def test_who_stops_ends_their_own_episode_and_is_counted(controller: Controller) -> None:
    """Near the limit some episodes stop and others go on: those do what they would do without the others."""
    limits = (HalfSpace("speed", np.eye(18)[0], 0.35),)
    seeds, ahead = np.arange(6), np.eye(18)[0]
    hold = run_episodes(replace(controller, limits=limits), seeds, steps=8, along=ahead)
    stop = run_episodes(replace(controller, limits=limits, fallback="stop"), seeds, steps=8, along=ahead)
    assert hold.traces is not None
    assert stop.traces is not None
    fell = hold.traces.chosen == -1
    assert 0 < fell.any(axis=1).sum() < 6
    for row, steps in enumerate(fell):
        last = int(steps.argmax()) if steps.any() else 8
        assert stop.fallbacks[row] == steps.any()
        assert stop.decisions[row] == min(last + 1, 8)
        np.testing.assert_array_equal(stop.traces.actions[row, :last], hold.traces.actions[row, :last])
        assert np.isnan(stop.traces.states[row, last:]).all()
        assert stop.violated[row, 0] == (hold.traces.states[row, :last, 0] > 0.35).any()
    never = replace(controller, limits=(HalfSpace("never", ahead, -100.0),), fallback="stop")
    found = run_to_selection(never, SEEDS, steps=4)
    assert not (found.errors | found.accepted | found.unsafe).any()


def test_a_diverged_simulation_broke_every_limit(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = simulators.Simulator.step

    def breaking(self: object, physics: np.ndarray, rows: np.ndarray, controls: np.ndarray) -> Any:
        states, ended, diverged = real(self, physics, rows, controls)  # type: ignore[arg-type]
        diverged |= rows == 5
        return states, ended, diverged

    monkeypatch.setattr(simulators.Simulator, "step", breaking)
    roomy = replace(controller, limits=(HalfSpace("speed", np.eye(18)[0], 100.0),))
    done = run_episodes(roomy, [5, 6], steps=4)
    assert done.violated[:, 0].tolist() == [True, False]
    assert done.violation_steps.tolist() == [4, 0]
    assert done.decisions.tolist() == [1, 4]
    assert np.isfinite(done.returns).all()
    found = run_to_selection(replace(roomy, guard=WholeSpace()), [5, 6], steps=4)
    assert found.errors.tolist() == found.unsafe.tolist() == [True, False]


def test_selection_executes_the_plan_that_was_chosen(controller: Controller) -> None:
    """A tube of everything is never left; a tube of one line always; the decision is the seed's own."""
    wide = run_to_selection(replace(controller, guard=WholeSpace()), SEEDS, steps=8)
    assert not wide.errors.any()
    assert not wide.accepted.any()  # it keeps no limit: the fallback acts, and its tube holds
    thin = run_to_selection(controller, SEEDS, steps=8)
    assert thin.errors.all()
    assert ((thin.steps >= 0) & (thin.steps < 8)).all()
    np.testing.assert_array_equal(wide.steps, thin.steps)
    again = run_to_selection(controller, SEEDS[1:2], steps=8)
    for name in ("steps", "errors", "accepted", "unsafe"):
        assert getattr(again, name)[0] == getattr(thin, name)[1]


def test_the_whole_plan_is_carried_out_from_where_the_robot_stood(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tube is asked about is what `execute` makes of the very plan, from the very reset."""
    asked: dict[str, Any] = {}

    class Recording(HullTube):
        def contains(self, truth: Any) -> Any:
            asked["truth"] = truth
            return super().contains(truth)

    class Tubes:
        members = False

        def tube(self, forecast: GaussianForecast) -> HullTube:
            return Recording(forecast.wide().mean[None])

    roomy = (HalfSpace("speed", np.eye(18)[0], 100.0),)
    decide = Controller.decide

    def deciding(self: Controller, *states: Any, **options: Any) -> Any:
        asked["plans"] = (found := decide(self, *states, **options)).plans
        return found

    monkeypatch.setattr(Controller, "decide", deciding)
    run_to_selection(replace(controller, guard=Tubes(), limits=roomy, choice="factor"), [5], steps=1)
    plan = asked["plans"][5:6].double().numpy()
    assert len(np.unique(plan, axis=1)[0]) == 3  # its steps differ
    physics = controller.environment.reset(int(np.random.default_rng(5).integers(2**31)))[None]
    blank = np.zeros((1, 3, 18))
    start = Rollouts(np.array([5]), blank[:, 0], physics, blank, plan, np.array([3]))
    np.testing.assert_array_equal(
        asked["truth"].states[5], execute(controller.environment, start, plan).states[0]
    )


def test_unsafe_means_that_the_plan_broke_a_limit(controller: Controller) -> None:
    below = replace(controller, limits=(HalfSpace("never", np.eye(18)[0], -100.0),))
    assert run_to_selection(below, SEEDS, steps=6).unsafe.all()
    above = replace(controller, limits=(HalfSpace("always", np.eye(18)[0], 100.0),))
    found = run_to_selection(above, SEEDS, steps=6)
    assert not found.unsafe.any()
    assert found.accepted.all()


def test_refusals(controller: Controller) -> None:
    with pytest.raises(InvalidInput, match="guard must make tubes"):
        run_to_selection(controller.bare(), SEEDS)
    with pytest.raises(InvalidInput, match="seeds must differ"):
        run_episodes(controller, [1, 1])
    with pytest.raises(InvalidInput, match=r"along must have shape \[18\]"):
        run_episodes(controller, [1], along=[1.0])
    with pytest.raises(InvalidInput, match="guard must be FittedTubes"):
        controller.scaled(2.0)
    with pytest.raises(InvalidInput, match="scale must be finite and above 0"):
        FittedTubes(None, 1.0, 0.0)  # type: ignore[arg-type]


class Blind:
    """A guard that finds everything safe."""

    members = False

    def tube(self, forecast: GaussianForecast) -> HullTube:
        return HullTube(forecast.wide().mean[None] - 1e9)


def test_steps_that_were_not_checked_do_not_make_a_plan_unsafe(controller: Controller) -> None:
    """The same plans at bounds between their speeds: what breaks at the first step breaks among all, too."""
    later = 0
    for bound in (-0.3, 0.0, 0.3):
        limits = (HalfSpace("speed", np.eye(18)[0], float(bound)),)
        first, whole = (
            run_to_selection(
                replace(controller, guard=Blind(), limits=limits, checked=steps), range(16), steps=2
            )
            for steps in (1, None)
        )
        assert not (first.unsafe & ~whole.unsafe).any()
        later += int((whole.unsafe & ~first.unsafe).sum())
    assert later, "some plan breaks a bound only after its first step"


def test_no_episode_that_the_model_was_trained_on_is_run(controller: Controller) -> None:
    """Whatever is certified or measured on it would be about what the model knows by heart."""
    for run in (run_episodes, run_to_selection):
        with pytest.raises(OverlappingSplits, match="'train' and 'episodes' share 1 units"):
            run(controller, [3, 10**9 + 5], steps=2)
    smaller = replace(controller, ensemble=controller.ensemble.first(2))
    with pytest.raises(OverlappingSplits):
        run_episodes(smaller, [10**9], steps=1)
