"""Plans as a planner proposes them: the policy's actions along the predicted mean, perturbed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_core.arrays import like
from pac_core.bounds import whole
from pac_rl.forecasts import BATCH, batches, matching, one_step, starting
from pac_rl.policies import Policy, actions
from pac_rl.trajectories import checked_seeds

if TYPE_CHECKING:
    from pac_rl.ensembles import Ensemble
    from pac_rl.environments import Environment

SPREADS = (0.1, 0.3, 0.6)
"""Deviations of the perturbation; each plan draws one of them."""


def propose(
    ensemble: Ensemble,
    environment: Environment,
    policy: Policy,
    starts: NDArray[np.float64],
    seeds: NDArray[np.int64],
    *,
    horizon: int,
    batch: int = BATCH,
) -> NDArray[np.float64]:
    """`[B, H, A]` one plan for each start `[B, D]`: what a planner that starts from the policy would weigh.

    The plan is fixed before the first step is taken; its perturbation comes from the unit's seed.
    """
    matching(ensemble, environment, policy)
    whole("horizon", horizon, least=1)
    given, names = starting(ensemble, starts), checked_seeds(seeds)
    if len(names) != len(given):
        raise InvalidInput(f"seeds must be one for each start, got {len(names)} for {len(given)} starts")
    low, high = environment.low, environment.high
    perturbation = np.stack([_drawn(int(seed), horizon, len(low)) for seed in names]) * (high - low) / 2
    plans = np.empty_like(perturbation)
    for rows, n, states in batches(given, batch):

        def act(t: int, states: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
            wanted = actions(environment, policy, states, noise).nan_to_num()  # where the ensemble explodes
            plans[rows, t] = np.clip(wanted[:n].cpu().numpy() + perturbation[rows, t], low, high)  # noqa: B023
            wanted[:n] = like(wanted, plans[rows, t])  # noqa: B023
            return wanted

        with torch.no_grad():
            one_step(ensemble, states, act, horizon)
    return plans


def _drawn(seed: int, horizon: int, width: int) -> NDArray[np.float64]:
    draw = np.random.default_rng((1, seed))  # another stream than the rollout's
    return np.asarray(draw.choice(SPREADS) * draw.standard_normal((horizon, width)))
