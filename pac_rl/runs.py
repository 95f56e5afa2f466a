"""Batches of episodes under way in the simulator, and which limits they break."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_rl.controllers import Controller, Decision
from pac_rl.limits import Limit
from pac_rl.simulators import Simulator, observed

BATCH = 32
"""Episodes that are computed together, part of the configuration: seed i is always computed in row
i % BATCH, whoever else is there, see `trajectories.BATCH`."""


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
