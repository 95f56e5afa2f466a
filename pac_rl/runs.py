"""Batches of episodes under way in the simulator, and how any set of seeds is cut into them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_core.arrays import threads as usual_threads
from pac_core.bounds import whole
from pac_rl.controllers import Controller, Decision
from pac_rl.limits import Limit
from pac_rl.simulators import Simulator, observed
from pac_rl.trajectories import checked_seeds, one_torch_thread

BATCH = 32
"""Episodes that are computed together, part of the configuration: seed i is always computed in row
i % BATCH, whoever else is there, see `trajectories.BATCH`."""

Part = TypeVar("Part")


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

    def step(self, rows: NDArray[np.intp], actions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Moves these rows on; the states they reach, infinite where the simulation diverged."""
        states, ended, diverged = self._simulator.step(self.physics, rows, actions)
        states[diverged] = np.inf
        over = ended | diverged
        self.seen[rows] = np.where(over[:, None], 0.0, states)  # what is over is still computed with
        self.alive[rows[over]] = False
        self.diverged[rows[diverged]] = True
        return states


def broken_limits(limits: Sequence[Limit], states: NDArray[np.float64]) -> NDArray[np.bool_]:
    """`[n, C]` which limits each state `[n, D]` breaks; a state that is not finite breaks all."""
    found = np.ones((len(states), len(limits)), bool)
    went = np.isfinite(states).all(axis=1)
    for i, limit in enumerate(limits):
        violated, count = np.asarray(limit.violated(states[went, None])), int(went.sum())
        if violated.shape != (count, 1) or violated.dtype != np.bool_:
            raise InvalidInput(
                f"violated of {limit.name!r} must return a bool for each of {count} states x 1 step, got "
                f"{violated.dtype} of {violated.shape}"
            )
        found[went, i] = violated[:, 0]
    return found


def in_blocks(
    work: Callable[[NDArray[np.int64]], Part],
    seeds: Any,
    threads: int | None,
    progress: Callable[[int], None] | None,
) -> Part:
    """The parts of all compute batches, in the order of the seeds; each batch is one thread's work."""
    names = checked_seeds(seeds)
    blocks = [np.sort(names[names // BATCH == block]) for block in np.unique(names // BATCH)]
    count = min(len(blocks), usual_threads() if threads is None else whole("threads", threads, least=1))
    parts = []
    with one_torch_thread(), ThreadPoolExecutor(count) as pool:
        for part, block in zip(pool.map(work, blocks), blocks, strict=True):
            parts.append(part)
            if progress is not None:
                progress(len(block))
    return taken(joined(parts), np.searchsorted(np.concatenate(blocks), names))


def joined(parts: Sequence[Part]) -> Part:
    """Dataclasses of arrays, one after the other; what is no array is the same in all."""
    first: Any = parts[0]
    found: dict[str, Any] = {}
    for field in fields(first):
        values = [getattr(part, field.name) for part in parts]
        if isinstance(values[0], np.ndarray):
            found[field.name] = np.concatenate(values)
        else:
            found[field.name] = joined(values) if is_dataclass(values[0]) else values[0]
    together: Part = type(first)(**found)
    return together


def taken(all_rows: Part, rows: NDArray[np.intp]) -> Part:
    """The same dataclass with these rows of its arrays."""
    given: Any = all_rows
    found: dict[str, Any] = {}
    for field in fields(given):
        value = getattr(given, field.name)
        if isinstance(value, np.ndarray):
            found[field.name] = value[rows]
        else:
            found[field.name] = taken(value, rows) if is_dataclass(value) else value
    part: Part = type(given)(**found)
    return part
