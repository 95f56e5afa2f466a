"""One decision of each episode, and what came of its plan: the tube under selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, Trajectories
from pac_core.bounds import whole
from pac_rl.controllers import Controller
from pac_rl.runs import BATCH, Run, broken_limits
from pac_rl.scaled_tubes import TrajectoryTube
from pac_rl.trajectories import by_seed


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
    controller: Controller,
    seeds: Sequence[int] | NDArray[np.int64],
    *,
    steps: int = 200,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Selections:
    """What came of one decision in each episode: the unit of the tube under selection.

    The step of the decision is drawn from the seed, evenly from the `steps` of an episode, before it
    begins. The guarded controller runs to that step; the plan that it chooses there is carried out
    open-loop, whatever happens. Bit for bit the same for any grouping, as `run_episodes`.
    """
    whole("steps", steps, least=1)
    if controller.guard is None:
        raise InvalidInput("guard must make tubes, for a plan to leave its own, got None")
    return by_seed(lambda block: _select(controller, block, steps), seeds, BATCH, threads, progress)


def _select(controller: Controller, seeds: NDArray[np.int64], steps: int) -> Selections:
    run, horizon = Run(controller, seeds), controller.horizon
    drawn = np.array([np.random.default_rng((3, seed)).integers(steps) for seed in seeds.tolist()])
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
            inside, chosen = _inside(tube, states, lengths), decision.accepted.cpu().numpy()
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


def _inside(
    tube: TrajectoryTube, states: NDArray[np.float64], lengths: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """`[B]` whether each tube holds what happened; a diverged simulation is in none."""
    inside = np.asarray(tube.contains(Trajectories(states, lengths)).cpu())
    if inside.shape != lengths.shape or inside.dtype != np.bool_:
        raise InvalidInput(
            f"contains must return a bool for each of {len(lengths)} trajectories, got {inside.dtype} of "
            f"{inside.shape}"
        )
    return inside
