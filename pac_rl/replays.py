"""Fresh units for a planner that has no policy: what it did before, replayed with noise from a new reset."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_core.bounds import whole
from pac_rl.environments import Environment
from pac_rl.policies import Function
from pac_rl.trajectories import Rollouts, execute, simulate

SPREADS = (0.0, 0.1, 0.3)
"""Deviations of the noise on replayed actions; each unit draws one of them."""


def unmoved(environment: Environment, *, std: float = 0.0) -> Function:
    """A policy that does nothing, but for noise of this deviation."""
    seen = environment.view(np.zeros((1, len(environment.names)))).shape[1]
    width = len(environment.low)
    return Function(lambda observed: np.zeros((len(observed), width)), seen, width, std=std)


def replayed(
    environment: Environment, recorded: Rollouts, seeds: NDArray[np.int64], *, horizon: int
) -> Rollouts:
    """A unit for each seed: from its own reset, a recorded episode is replayed with noise up to a drawn step.

    The `horizon` actions from there on are its plan, and `states` what they led to. Which episode, step and
    noise is drawn from the seed, so given what was recorded, units are independent. A unit whose simulation
    diverged or ended before its plan did is infinite: it counts as an error.
    """
    whole("horizon", horizon, least=1)
    longest = recorded.actions.shape[1]
    if horizon > longest:
        raise InvalidInput(f"horizon must be at most the {longest} steps that were recorded, got {horizon}")
    draws = [np.random.default_rng((2, int(seed))) for seed in seeds]
    picked = np.array([draw.integers(len(recorded.seeds)) for draw in draws])
    begins = np.array([draw.integers(longest - horizon + 1) for draw in draws])
    shape = recorded.actions.shape[1:]
    noise = np.stack([draw.choice(SPREADS) * draw.standard_normal(shape) for draw in draws])
    at_rest = simulate(environment, unmoved(environment), seeds, horizon=1, burn_in=(0, 0))
    done = execute(environment, at_rest, recorded.actions[picked] + noise)
    rows, window = np.arange(len(seeds)), begins[:, None] + np.arange(horizon)
    before = np.concatenate([done.start[:, None], done.states[:, :-1]], axis=1)
    start, states = before[rows, begins], done.states[rows[:, None], window]
    ended = done.lengths < begins + horizon
    return Rollouts(
        done.seeds,
        np.where(np.isfinite(start), start, 0.0),
        done.physics,
        np.where(ended[:, None, None], np.inf, states),
        done.actions[rows[:, None], window],
        np.full(len(seeds), horizon),
    )
