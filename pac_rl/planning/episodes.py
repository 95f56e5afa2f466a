"""Episodes of a controller in batches: whole ones, and up to a decision drawn beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pac_core import InvalidInput, Trajectories
from pac_core.arrays import check_returned
from pac_core.bounds import check_integer
from pac_core.safety import Limit
from pac_rl.planning.controller import Controller, Decision
from pac_rl.rollouts import Simulator, by_seed, check_bools, observed, take_rows
from pac_rl.systems import Floats

BATCH = 32
"""Episodes that are computed together, part of the configuration: seed i is always computed in row
i % BATCH, whoever else is there, see `rollouts.BATCH`."""


class Run:
    """A compute batch of episodes under way.

    Where the fallback is "stop" and nothing is safe, a robot's episode ends at that decision, before it acts.
    """

    def __init__(self, controller: Controller, seeds: NDArray[np.int64]) -> None:
        if controller.ensemble.trained_on is not None:
            controller.ensemble.refuse_seen(seeds, "episodes")
        self.environment, self._stops = controller.environment, controller.fallback == "stop"
        # One robot that stops must not stop the others of its batch.
        self.controller = replace(controller, fallback="hold") if self._stops else controller
        self.rows = np.asarray(seeds % BATCH)
        self.physics = np.zeros((BATCH, len(self.environment.reset(0))))
        for row, seed in zip(self.rows.tolist(), seeds.tolist(), strict=True):
            drawn = np.random.default_rng(seed).integers(2**31)
            self.physics[row] = self.environment.reset(int(drawn))
        still = self.physics[self.rows]
        self.seen = np.zeros((BATCH, len(self.environment.names)))
        self.seen[self.rows] = observed(self.environment, still, still, np.zeros(len(still), bool))
        self.alive = np.zeros(BATCH, bool)
        self.alive[self.rows] = True
        self.diverged = np.zeros(BATCH, bool)
        self._simulator = Simulator(self.environment)

    def decide(self) -> Decision:
        """What each does; those that stop are no longer alive."""
        decision = self.controller.decide(self.seen, asked=torch.from_numpy(self.alive))
        if self._stops:
            self.alive &= decision.accepted.cpu().numpy()
        return decision

    def step(self, rows: NDArray[np.intp], actions: Floats) -> Floats:
        """Moves these rows on; the states they reach, infinite where the simulation diverged."""
        states, ended, diverged = self._simulator.step(self.physics, rows, actions)
        states[diverged] = np.inf
        over = ended | diverged
        self.seen[rows] = np.where(over[:, None], 0.0, states)  # what is over is still computed with
        self.alive[rows[over]] = False
        self.diverged[rows[diverged]] = True
        return states


def broken_limits(limits: Sequence[Limit], states: Floats) -> NDArray[np.bool_]:
    """`[n, C]` which limits each state `[n, D]` breaks; a state that is not finite breaks all."""
    found = np.ones((len(states), len(limits)), bool)
    went = np.isfinite(states).all(axis=1)
    for i, limit in enumerate(limits):
        violated, count = limit.violated(states[went, None]), int(went.sum())
        name, what = f"violated of {limit.name!r}", f"{count} states x 1 step"
        found[went, i] = check_bools(name, violated, (count, 1), what)[:, 0]
    return found


@dataclass(frozen=True, eq=False)
class Traces:
    """What happened at each of T steps of N episodes; NaN after an episode's end.

    states: `[N, T, D]` reached
    actions: `[N, T, A]` done
    chosen: `[N, T]` the candidate that was chosen, -1 for the fallback, -2 after the end
    margin: `[N, T]` of its tube, see `Decision`
    lower, upper: `[N, T, H]` ends of the acting plan's tube along the direction asked for
    """

    states: Floats
    actions: Floats
    chosen: NDArray[np.int64]
    margin: Floats
    lower: Floats
    upper: Floats


@dataclass(frozen=True, eq=False)
class Episodes:
    """N episodes, in the order of `seeds`.

    seeds: `[N]` each episode's own; its id
    returns: `[N]` sum of the rewards
    unbroken: `[N]` sum of the rewards before a limit is first broken: all that counts where that ends it
    violated: `[N, C]` whether each limit was broken at any step; a simulation that diverged broke all
    violation_steps: `[N]` steps at which some limit was broken; those lost by diverging count
    fallbacks: `[N]` decisions at which the fallback acted
    decisions: `[N]` decisions made; where the fallback is "stop", its decision is the last one, and what
        the robot would do after it is not in the count of violations
    names: C names of the limits
    traces: of each step, if they were asked for
    """

    seeds: NDArray[np.int64]
    returns: Floats
    unbroken: Floats
    violated: NDArray[np.bool_]
    violation_steps: NDArray[np.int64]
    fallbacks: NDArray[np.int64]
    decisions: NDArray[np.int64]
    names: tuple[str, ...]
    traces: Traces | None = None

    @property
    def errors(self) -> NDArray[np.bool_]:
        """`[N]` whether any limit was broken: the error of the certificate of episodes."""
        return np.asarray(self.violated.any(axis=1))

    def __repr__(self) -> str:
        return (
            f"Episodes({len(self.seeds)}: {int(self.errors.sum())} with a violation, "
            f"mean return {self.returns.mean():.1f})"
        )


def run_episodes(
    controller: Controller,
    seeds: Sequence[int] | NDArray[np.int64],
    *,
    steps: int = 200,
    along: Any = None,
    threads: int | None = None,
) -> Episodes:
    """Episodes of the controller from rest, one for each seed, fallback included; bits as in `simulate`.

    steps: of an episode, unless the environment ends it
    along: `[D]` keeps the traces, with the ends of the chosen tubes along this direction
    threads: the CPUs by default
    """
    check_integer("steps", steps, least=1)
    dims = len(controller.environment.names)
    direction = None if along is None else np.asarray(along, dtype=np.float64)
    if direction is not None and direction.shape != (dims,):
        raise InvalidInput(f"along must have shape [{dims}], got {direction.shape}")
    return by_seed(lambda block: _run(controller, block, steps, direction), seeds, BATCH, threads)


def _run(controller: Controller, seeds: NDArray[np.int64], steps: int, along: Floats | None) -> Episodes:
    run, limits = Run(controller, seeds), controller.limits
    names = tuple(limit.name for limit in limits)
    kept = _no_traces(controller, steps) if along is not None else None
    (returns, unbroken), (broken, fallbacks, decisions) = np.zeros((2, BATCH)), np.zeros((3, BATCH), np.int64)
    violated, each = np.zeros((BATCH, len(limits)), bool), np.arange(BATCH)
    made = Episodes(each, returns, unbroken, violated, broken, fallbacks, decisions, names, kept)
    for t in range(steps):
        moving = np.flatnonzero(run.alive)
        if not len(moving):
            break
        decision = run.decide()
        made.decisions[moving] += 1
        made.fallbacks[moving] += ~decision.accepted.cpu().numpy()[moving]
        if kept is not None:
            kept.chosen[moving, t] = decision.chosen.cpu().numpy()[moving]
            kept.margin[moving, t] = decision.margin.cpu().numpy()[moving]
        moving = moving[run.alive[moving]]  # without those that stop here
        done = decision.plans[:, 0].double().cpu().numpy()[moving]
        states = run.step(moving, done)
        went = np.isfinite(states).all(axis=1)
        earned = np.zeros(len(moving))
        rewards = controller.reward(states[went], done[went])
        earned[went] = check_returned("reward", rewards, (int(went.sum()),), states)
        now = broken_limits(limits, states)
        made.violated[moving] |= now
        made.returns[moving] += earned
        made.unbroken[moving] += np.where(made.violated[moving].any(axis=1), 0.0, earned)
        made.violation_steps[moving] += np.where(went, now.any(axis=1), steps - t)
        if kept is not None and along is not None:
            kept.states[moving, t], kept.actions[moving, t] = states, done
            if controller.guard is not None:
                tube = controller.guard.tube(decision.acting.forecast)
                for ends, sign in ((kept.upper, 1), (kept.lower, -1)):
                    given = tube.support(sign * along)
                    reach = check_returned("support", given, (BATCH, controller.horizon), states)
                    ends[moving, t] = sign * reach[moving]
    return replace(take_rows(made, run.rows), seeds=seeds)


def _no_traces(controller: Controller, steps: int) -> Traces:
    dims, width = len(controller.environment.names), len(controller.environment.low)

    def unknown(*shape: int) -> Floats:
        return np.full((BATCH, steps, *shape), np.nan)

    ends = unknown(controller.horizon), unknown(controller.horizon)
    return Traces(unknown(dims), unknown(width), np.full((BATCH, steps), -2), unknown(), *ends)


@dataclass(frozen=True, eq=False)
class Selections:
    """One decision of each of N episodes, drawn before the episode began, and what came of its plan.

    seeds: `[N]`
    steps: `[N]` at which the decision fell
    errors: `[N]` whether the plan, carried out open-loop for H steps, left its tube
    accepted: `[N]` whether the guard accepted a candidate there
    unsafe: `[N]` whether the plan broke a limit within the steps that were checked, all H unless the
        controller checks fewer: of the later ones, acceptance says nothing

    Where no candidate was safe, the fallback's plan is carried out and its own tube is checked, so every
    episode counts towards the promise of the tube, and `accepted` is False. An episode that diverged
    before its decision counts against everything (left its tube, accepted, unsafe); one that ended by the
    environment's rule made no decision: no error, and not accepted; so does one whose fallback is to stop,
    from the decision on at which it stopped.
    """

    seeds: NDArray[np.int64]
    steps: NDArray[np.int64]
    errors: NDArray[np.bool_]
    accepted: NDArray[np.bool_]
    unsafe: NDArray[np.bool_]


def run_to_selection(
    controller: Controller, seeds: Sequence[int] | NDArray[np.int64], *, steps: int = 200
) -> Selections:
    """What came of one decision in each episode: the unit of the tube under selection.

    The step of the decision is drawn from the seed, evenly from the `steps` of an episode, before it
    begins. The guarded controller runs to that step; the plan that it chooses there is carried out
    open-loop, whatever happens.
    """
    check_integer("steps", steps, least=1)
    if controller.guard is None:
        raise InvalidInput("guard must make tubes, for a plan to leave its own, got None")
    return by_seed(lambda block: _select(controller, block, steps), seeds, BATCH)


@dataclass(frozen=True, eq=False)
class Starts:
    """Where each of N episodes stands at one decision, drawn before it began as in `run_to_selection`.

    start, physics: `[N, D]` and `[N, S]`, see `Rollouts`; 0 where the step was not reached
    reached: `[N]` 1; 0 if the episode was over by then, and there is no decision; -1 if it diverged
    """

    seeds: NDArray[np.int64]
    start: Floats
    physics: Floats
    reached: NDArray[np.int64]


def run_to_start(
    controller: Controller, seeds: Sequence[int] | NDArray[np.int64], *, steps: int = 200
) -> Starts:
    """The start of one decision in each episode of the controller; see `pac_rl.candidates`."""
    check_integer("steps", steps, least=1)
    return by_seed(lambda block: _to_start(controller, block, steps), seeds, BATCH)


def _to_start(controller: Controller, seeds: NDArray[np.int64], steps: int) -> Starts:
    run, due = Run(controller, seeds), np.full(BATCH, -1)
    due[run.rows] = _draw_steps(seeds, steps)
    start, physics, reached = np.zeros_like(run.seen), np.zeros_like(run.physics), np.zeros(BATCH, np.int64)
    for t in range(int(due.max()) + 1):
        ready = np.flatnonzero(run.alive & (due == t))
        start[ready], physics[ready], reached[ready] = run.seen[ready], run.physics[ready], 1
        run.alive[ready] = False
        if not run.alive.any():
            break
        plans = run.decide().plans[:, 0].double().cpu().numpy()
        moving = np.flatnonzero(run.alive)
        run.step(moving, plans[moving])
    reached[run.diverged] = -1
    return replace(take_rows(Starts(due, start, physics, reached), run.rows), seeds=seeds)


def _draw_steps(seeds: NDArray[np.int64], steps: int) -> NDArray[np.int64]:
    return np.array([np.random.default_rng((3, seed)).integers(steps) for seed in seeds.tolist()])


def _select(controller: Controller, seeds: NDArray[np.int64], steps: int) -> Selections:
    run, horizon = Run(controller, seeds), controller.horizon
    drawn = _draw_steps(seeds, steps)
    due = np.full(BATCH, -1)
    due[run.rows] = drawn
    dims = len(controller.environment.names)
    error, accepted, unsafe = (np.zeros(BATCH, bool) for _ in range(3))
    for t in range(int(due.max()) + 1):
        if not run.alive.any():
            break
        decision = run.decide()
        plans = decision.plans.double().cpu().numpy()
        ready = np.flatnonzero(run.alive & (due == t))
        if len(ready):
            tube = controller.guard.tube(decision.acting.forecast)  # type: ignore[union-attr]
            states = np.full((BATCH, horizon, dims), np.inf)
            lengths = np.full(BATCH, horizon)
            going = ready
            for s in range(horizon):
                states[going, s] = run.step(going, plans[going, s])
                lengths[going[~run.alive[going] & ~run.diverged[going]]] = s + 1
                going = going[run.alive[going]]
            holds = tube.contains(Trajectories(states, lengths)).cpu()  # a diverged simulation is in no tube
            inside = check_bools("contains", holds, lengths.shape, f"{BATCH} trajectories")
            chosen = decision.accepted.cpu().numpy()
            lived = np.arange(horizon) < np.minimum(lengths[ready, None], controller.checked or horizon)
            broken = broken_limits(controller.limits, states[ready].reshape(-1, dims)).any(axis=1)
            error[ready], accepted[ready] = ~inside[ready], chosen[ready]
            unsafe[ready] = (broken.reshape(-1, horizon) & lived).any(axis=1)
            run.alive[ready] = False
        moving = np.flatnonzero(run.alive)
        run.step(moving, plans[moving, 0])
        broke = moving[run.diverged[moving]]
        error[broke] = accepted[broke] = unsafe[broke] = True
    rows = run.rows
    return Selections(seeds, drawn, error[rows], accepted[rows], unsafe[rows])
