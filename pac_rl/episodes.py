"""Whole episodes of a controller in the simulator, each with its own seed: what certificates count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_core.arrays import returned
from pac_core.bounds import whole
from pac_rl.controllers import Controller
from pac_rl.runs import BATCH, Run, broken_limits
from pac_rl.trajectories import by_seed, take_rows


@dataclass(frozen=True, eq=False)
class Traces:
    """What happened at each of T steps of N episodes; NaN after an episode's end.

    states: `[N, T, D]` reached
    actions: `[N, T, A]` done
    chosen: `[N, T]` the candidate that was chosen, -1 for the fallback, -2 after the end
    margin: `[N, T]` of its tube, see `Decision`
    lower, upper: `[N, T, H]` ends of the acting plan's tube along the direction asked for
    """

    states: NDArray[np.float64]
    actions: NDArray[np.float64]
    chosen: NDArray[np.int64]
    margin: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


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
    returns: NDArray[np.float64]
    unbroken: NDArray[np.float64]
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
    progress: Callable[[int], None] | None = None,
) -> Episodes:
    """Episodes of the controller from rest, one for each seed, fallback included.

    Everything random in an episode comes from its seed, and nothing else does: the result is the same,
    bit for bit, for any order of the seeds, any grouping into calls and any number of threads.

    steps: of an episode, unless the environment ends it
    along: `[D]` keeps the traces, with the ends of the chosen tubes along this direction
    threads: the CPUs by default
    progress: called with the number of episodes that were finished
    """
    whole("steps", steps, least=1)
    direction = None if along is None else np.asarray(along, dtype=np.float64)
    if direction is not None and direction.shape != (len(controller.environment.names),):
        raise InvalidInput(
            f"along must have shape [{len(controller.environment.names)}], got {direction.shape}"
        )
    return by_seed(lambda block: _run(controller, block, steps, direction), seeds, BATCH, threads, progress)


def _run(
    controller: Controller, seeds: NDArray[np.int64], steps: int, along: NDArray[np.float64] | None
) -> Episodes:
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
        earned[went] = returned("reward", rewards, (int(went.sum()),), states)
        now = broken_limits(limits, states)
        made.violated[moving] |= now
        made.returns[moving] += earned
        made.unbroken[moving] += np.where(made.violated[moving].any(axis=1), 0.0, earned)
        made.violation_steps[moving] += np.where(went, now.any(axis=1), steps - t)
        if kept is not None and along is not None:
            kept.states[moving, t], kept.actions[moving, t] = states, done
            if controller.guard is not None:
                tube = controller.guard.tube(decision.acting.forecast)
                shape = (BATCH, controller.horizon)
                ends = (returned("support", tube.support(way), shape, states) for way in (along, -along))
                kept.upper[moving, t], kept.lower[moving, t] = (
                    sign * end[moving] for sign, end in zip((1, -1), ends, strict=True)
                )
    return replace(take_rows(made, run.rows), seeds=seeds)


def _no_traces(controller: Controller, steps: int) -> Traces:
    dims, width = len(controller.environment.names), len(controller.environment.low)

    def unknown(*shape: int) -> NDArray[np.float64]:
        return np.full((BATCH, steps, *shape), np.nan)

    ends = unknown(controller.horizon), unknown(controller.horizon)
    return Traces(unknown(dims), unknown(width), np.full((BATCH, steps), -2), unknown(), *ends)
