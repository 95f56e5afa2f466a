"""Episodes belong to their ids, and count what happened in them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import toy_robot as own

from pac_core import GaussianForecast, HalfSpace, InvalidInput, StayIn
from pac_core.errors import OverlappingSplits
from pac_core.runs import cut
from pac_rl import Controller, Dynamics, MujocoSystem, execute, run_episodes
from pac_rl.planning import (
    BATCH,
    FittedTubes,
    HullTube,
    MeanTubes,
    RunEpisodes,
    RunSelections,
    RunToStarts,
    cheetah_reward,
    run_to_selection,
)
from pac_rl.planning.episodes import COUNTED
from pac_rl.rollouts import Rollouts

SEEDS = np.array([5, BATCH + 1, 2, 7 * BATCH + 2])
AHEAD = np.eye(18)[0]


class Shard:
    def __init__(self, ids: np.ndarray) -> None:
        self.array = ids


class Hull:
    """Tubes of a box around the mean: of everything that is finite, or where no limit is."""

    def __init__(self, *ends: float) -> None:
        self.ends = ends

    def tube(self, forecast: GaussianForecast) -> HullTube:
        return HullTube(np.stack([forecast.wide().mean + end for end in self.ends]))


EVERYTHING, NOWHERE = Hull(-np.inf, np.inf), Hull(-1e9)
"""Never left, and keeping no limit; keeping every limit, and always left."""


def speed(controller: Controller, bound: float, **changed: Any) -> Controller:
    return replace(controller, limits=(HalfSpace("speed", AHEAD, bound),), **changed)


def test_an_episode_is_the_same_in_any_company_and_on_a_worker(controller: Controller) -> None:
    """One after the other, in threads, and by a scorer that was handed over: the same bits."""
    together = run_episodes(controller, SEEDS, steps=6, threads=2)
    assert len(set(together.returns)) == 4  # and seeds differ
    backwards = run_episodes(controller, SEEDS[::-1], steps=6, threads=1)
    alone = run_episodes(controller, SEEDS[2:3], steps=6)
    sent = pickle.loads(pickle.dumps(controller))
    there = RunEpisodes(sent, 6)(Shard(SEEDS), {})
    assert {*there} == {"ids", "errors", *COUNTED}
    for name in COUNTED:
        here = getattr(together, name)
        np.testing.assert_array_equal(here[::-1], getattr(backwards, name), err_msg=name)
        np.testing.assert_array_equal(here[2:3], getattr(alone, name), err_msg=name)
        np.testing.assert_array_equal(here, there[name], err_msg=name)
    np.testing.assert_array_equal(there["errors"], together.violated.any(axis=1))
    drawn = run_to_selection(controller, SEEDS, steps=6)
    found = RunSelections(sent, 6)(Shard(SEEDS), {})
    for name in ("errors", "accepted", "unsafe", "steps"):
        np.testing.assert_array_equal(found[name], getattr(drawn, name))


def cart(step: Any = own.step, **changed: Any) -> Controller:
    """The toy cart, which brakes where no predicted mean keeps the wall."""
    limits = (StayIn("wall", np.array([-5.0]), np.array([1.0]), axes=(0,)),)
    made = Controller(own.cart(step=step), own.MODEL, own.PLANNER.at(5), limits, own.brake, 5)
    return replace(made, tubes=MeanTubes(), **changed)


SCORERS = (RunEpisodes(cart(), 10), RunSelections(cart(), 10), RunToStarts(cart(), 10, alone=True))


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda scorer: type(scorer).__name__)
def test_a_unit_of_any_system_depends_on_its_id_alone(scorer: Any) -> None:
    """Shards of 64, of 7, and of ids that would share a row: whoever is there, a unit is the same."""
    whole = scorer(cut(range(64), 64)[0], {})
    for shard in (*cut(range(64), 7), *cut([40, 8, 33, 1], 4)):
        some = scorer(shard, {})
        for name, array in some.items():
            np.testing.assert_array_equal(array, whole[name][shard.array], err_msg=name)
    assert all(len(np.unique(whole[name])) > 8 for name in ("start", "final", "steps") if name in whole)


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda scorer: type(scorer).__name__)
def test_a_step_that_raises_fails_its_own_unit_alone(scorer: Any) -> None:
    """The first step of two ids of 64 crashes; the others come out as if nothing had happened."""
    broken = (9, 41)

    def crashes(state: Any, action: Any, rng: Any) -> Any:
        if rng.bit_generator.seed_seq.entropy in broken:
            raise RuntimeError("the simulator crashed")
        return own.step(state, action, rng)

    shard = cut(range(64), 64)[0]
    usual = scorer(shard, {})
    options = {"alone": True} if isinstance(scorer, RunToStarts) else {}
    made = type(scorer)(cart(crashes), 10, **options)(shard, {})
    others = np.delete(np.arange(64), broken)
    for name, array in made.items():
        np.testing.assert_array_equal(array[others], usual[name][others], err_msg=name)
    if "reached" in made:
        assert made["reached"][[*broken]].tolist() == [-1, -1]
        assert (usual["reached"] == 1).all()
    else:
        assert made["errors"][[*broken]].all()
        assert made.get("violated", made.get("unsafe"))[[*broken]].all()


def test_what_happened_is_not_broadcast(controller: Controller) -> None:
    """One number for all robots would be the return of each, or the verdict on each."""
    mean = replace(controller, reward=lambda x, a: x[..., 0].mean())
    with pytest.raises(InvalidInput, match=r"reward must be numbers of shape \(2,\), got \(\)"):
        run_episodes(mean, [1, 2], steps=1)

    class Lenient(HalfSpace):
        def violated(self, states: Any) -> Any:
            return super().violated(states)[:1]

    lenient = Lenient("speed", np.eye(18)[0], 1.0)
    with pytest.raises(InvalidInput, match="violated of 'speed' must return a bool for each of 2 states"):
        run_episodes(replace(controller, limits=(lenient,)), [1, 2], steps=1)

    class Held(MeanTubes):
        def tube(self, forecast: Any) -> Any:
            tube = super().tube(forecast)
            object.__setattr__(tube, "contains", lambda truth: np.ones(1, bool))
            return tube

    with pytest.raises(InvalidInput, match="contains must return a bool for each of 32 trajectories"):
        run_to_selection(replace(controller, tubes=Held()), [1, 2], steps=1)


@pytest.mark.parametrize("guarded", [False, True])
def test_counts_are_those_of_the_traces(controller: Controller, bare: Controller, guarded: bool) -> None:
    done = run_episodes(controller if guarded else bare, SEEDS, steps=20, along=AHEAD)
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
    assert guarded or 0 < before.sum() < before.size
    np.testing.assert_allclose(done.unbroken, (rewards * before).sum(axis=1), rtol=1e-12)
    # With a guard that looks at means alone, the upper end is the lower end; without one there is none.
    np.testing.assert_array_equal(traces.lower, traces.upper)


def test_returns_are_gymnasiums(bare: Controller) -> None:
    """The bare policy's actions, carried out by Gymnasium from the same reset, earn the same."""
    done = run_episodes(bare, [3], steps=10, along=AHEAD)
    assert done.traces is not None
    gym = gymnasium.make("HalfCheetah-v5")
    gym.reset(seed=int(np.random.default_rng(3).integers(2**31)))
    earned = [float(gym.step(action)[1]) for action in done.traces.actions[0]]
    # Gymnasium carries solver warm starts from step to step, so digits part slowly.
    np.testing.assert_allclose(done.returns[0], sum(earned), rtol=1e-3)
    states = np.array([[2.0, 0.0]])
    assert cheetah_reward(states, np.array([[1.0, 2.0]])).tolist() == [2.0 - 0.5]


def test_fallbacks_are_counted_where_nothing_is_safe(controller: Controller) -> None:
    never = speed(controller, -100.0)
    done = run_episodes(never, SEEDS[:2], steps=5, along=AHEAD)
    assert done.fallbacks.tolist() == [5, 5]
    assert done.violated.all()
    assert done.traces is not None
    assert not done.traces.actions.any()  # hold
    quarter = replace(never, fallback=lambda state: np.full(6, 0.25))
    acted = run_episodes(quarter, SEEDS[:2], steps=5, along=AHEAD)
    assert acted.traces is not None
    assert (acted.traces.actions == 0.25).all()


def test_who_stops_ends_their_own_episode_and_is_counted(controller: Controller) -> None:
    """Near the limit some episodes stop and others go on: those do what they would do without the others."""
    near, seeds = speed(controller, 0.35), np.arange(6)
    hold = run_episodes(near, seeds, steps=8, along=AHEAD)
    stop = run_episodes(replace(near, fallback="stop"), seeds, steps=8, along=AHEAD)
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
    found = run_to_selection(speed(controller, -100.0, fallback="stop"), SEEDS, steps=4)
    assert not (found.errors | found.accepted | found.unsafe).any()


class Breaking(MujocoSystem):
    """Every step of the episode with id 5 diverges."""

    def advance(self, rows: Any, actions: Any, rngs: Any) -> Any:
        rows, ended, failed = super().advance(rows, actions, rngs)
        return rows, ended, failed | [rng.bit_generator.seed_seq.entropy == 5 for rng in rngs]


def test_a_diverged_simulation_broke_every_limit(controller: Controller) -> None:
    roomy = speed(controller, 100.0, system=Breaking())
    done = run_episodes(roomy, [5, 6], steps=4)
    assert done.violated[:, 0].tolist() == [True, False]
    assert done.violation_steps.tolist() == [4, 0]
    assert done.decisions.tolist() == [1, 4]
    assert np.isfinite(done.returns).all()
    found = run_to_selection(replace(roomy, tubes=EVERYTHING), [5, 6], steps=4)
    assert found.errors.tolist() == found.unsafe.tolist() == [True, False]


def test_selection_executes_the_plan_that_was_chosen(controller: Controller) -> None:
    """A tube of everything is never left; a tube of one line always; the decision is the seed's own."""
    wide = run_to_selection(replace(controller, tubes=EVERYTHING), SEEDS, steps=8)
    assert not wide.errors.any()
    assert not wide.accepted.any()  # it keeps no limit: the fallback acts, and its tube holds
    thin = run_to_selection(controller, SEEDS, steps=8)
    assert thin.errors.all()
    assert ((thin.steps >= 0) & (thin.steps < 8)).all()
    np.testing.assert_array_equal(wide.steps, thin.steps)
    again = run_to_selection(controller, SEEDS[1:2], steps=8)
    for name in ("steps", "errors", "accepted", "unsafe"):
        assert getattr(again, name)[0] == getattr(thin, name)[1]


def test_the_whole_plan_is_carried_out_from_where_the_robot_stood(controller: Controller) -> None:
    """What the tube is asked about is what `execute` makes of the very plan, from the very reset."""
    asked: list[Any] = []

    class Recording(HullTube):
        def contains(self, truth: Any) -> Any:
            asked.append(truth)
            return super().contains(truth)

    class Tubes:
        def tube(self, forecast: GaussianForecast) -> HullTube:
            return Recording(forecast.wide().mean[None])

    boldest = replace(controller.planner, price=None)  # type: ignore[type-var]
    roomy = speed(controller, 100.0, tubes=Tubes(), planner=boldest)
    run_to_selection(roomy, [5], steps=1)
    environment = controller.system.environment  # type: ignore[attr-defined]
    physics = environment.reset(int(np.random.default_rng(5).integers(2**31)))[None]
    states = environment.observe(environment.gym, physics, physics)
    decided = roomy.decide(states, [np.random.default_rng(0)])
    plan = decided.plans[:, decided.chosen[0]]
    assert len(np.unique(plan, axis=1)[0]) == 3  # its steps differ
    start = Rollouts(np.array([5]), states, physics, np.zeros((1, 3, 18)), plan, np.array([3]))
    # BLAS gives other last digits to a plan that is made in a batch of one.
    done = execute(environment, start, plan).states[0]
    np.testing.assert_allclose(asked[0].states[5], done, rtol=1e-3, atol=1e-4)


def test_unsafe_means_that_the_plan_broke_a_limit(controller: Controller) -> None:
    assert run_to_selection(speed(controller, -100.0), SEEDS, steps=6).unsafe.all()
    found = run_to_selection(speed(controller, 100.0), SEEDS, steps=6)
    assert not found.unsafe.any()
    assert found.accepted.all()


def test_refusals(controller: Controller, bare: Controller) -> None:
    with pytest.raises(InvalidInput, match="tubes must be given, for a plan to leave its own"):
        run_to_selection(bare, SEEDS)
    with pytest.raises(InvalidInput, match="seeds must differ"):
        run_episodes(controller, [1, 1])
    with pytest.raises(InvalidInput, match=r"along must have shape \[18\]"):
        run_episodes(controller, [1], along=[1.0])
    with pytest.raises(InvalidInput, match="scale must be finite and above 0"):
        FittedTubes(None, 1.0, 0.0)  # type: ignore[arg-type]


def test_steps_that_were_not_checked_do_not_make_a_plan_unsafe(controller: Controller) -> None:
    """The same plans at bounds between their speeds: what breaks at the first step breaks among all, too."""
    later = 0
    for bound in (-0.3, 0.0, 0.3):
        blind = speed(controller, bound, tubes=NOWHERE)  # finds everything safe
        first, whole = (
            run_to_selection(replace(blind, checked=steps), range(16), steps=2) for steps in (1, None)
        )
        assert not (first.unsafe & ~whole.unsafe).any()
        later += int((whole.unsafe & ~first.unsafe).sum())
    assert later, "some plan breaks a bound only after its first step"


def test_no_episode_that_the_model_was_trained_on_is_run(controller: Controller) -> None:
    """Whatever is certified or measured on it would be about what the model knows by heart."""
    for run in (run_episodes, run_to_selection):
        with pytest.raises(OverlappingSplits, match="'train' and 'episodes' share 1 units"):
            run(controller, [3, 10**9 + 5], steps=2)
    smaller = Dynamics.of(controller.model.ensemble.first(2))  # type: ignore[union-attr]
    with pytest.raises(OverlappingSplits):
        run_episodes(replace(controller, model=smaller), [10**9], steps=1)
