"""MuJoCo's batched stepping, and the states that are observed of it."""

from __future__ import annotations

from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_rl.environments import Environment, Physics, required


class Simulator:
    """MuJoCo's batched stepping in the calling thread; several threads may share one."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._model = environment.gym.model
        self._frames = environment.gym.frame_skip
        self._own = local()  # data and buffers belong to a thread

    def step(
        self, physics: Physics, rows: NDArray[np.intp], controls: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Moves the given rows of `physics` one step on, in place; their states, and which ended or diverged.

        Solver warm starts are not carried over, so that the physics are all there is to know of the past.
        """
        count = len(rows)
        if not count:
            return np.empty((0, len(self.environment.names))), np.empty(0, bool), np.empty(0, bool)
        before = physics[rows]
        held = np.repeat(controls[:, None], self._frames, axis=1)
        frames = np.empty((count, self._frames, physics.shape[1]))
        # The arrays are as MuJoCo wants them; its own checks would take a tenth of the time.
        options = {"skip_checks": True, "nstep": self._frames, "state": frames}
        self._pool().rollout([self._model] * count, self._own.data, before, held, **options)
        after = frames[:, -1]
        # A simulation that breaks is reset by MuJoCo, and its clock with it.
        diverged = ~(abs(after[:, 0] - before[:, 0] - self.environment.dt) < self._model.opt.timestep / 2)
        diverged |= ~np.isfinite(after.sum(axis=1))  # of numbers that are all finite
        physics[rows] = after
        states = observed(self.environment, before, after, diverged)
        ended = np.asarray(self.environment.ends(self.environment.gym, after))
        if ended.shape != (count,) or ended.dtype != np.bool_:
            raise InvalidInput(
                f"ends must return a bool for each of {count} robots, got {ended.dtype} of {ended.shape}"
            )
        return states, ended, diverged

    def _pool(self) -> Any:
        """A pool of no threads: what calls it, does the work."""
        if not hasattr(self._own, "pool"):
            self._own.pool = required("mujoco.rollout").Rollout(nthread=0)
            self._own.data = [required("mujoco").MjData(self._model)]
        return self._own.pool


def observed(
    environment: Environment, before: Physics, after: Physics, diverged: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """`[B, D]` the states after a step; of a simulation that diverged they may be anything."""
    states = np.asarray(environment.observe(environment.gym, before, after), dtype=np.float64)
    wanted = (len(after), len(environment.names))
    if states.shape != wanted:
        raise InvalidInput(f"observe must return states of shape {wanted}, a name each, got {states.shape}")
    if np.isnan(states[~diverged]).any():
        raise InvalidInput("observe must return numbers, got NaN from a simulation that did not diverge")
    return states
