"""Plans forecast and scored in one pass: the particles that make the tube also make the return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pac_core import GaussianForecast, InvalidInput
from pac_core.bounds import whole
from pac_rl.forecasts import batches, for_starts, padded, particles, starting

if TYPE_CHECKING:
    from pac_rl.ensembles import Ensemble


@dataclass(frozen=True, eq=False)
class ScoredForecast(GaussianForecast):
    """A forecast, and what its plans are worth.

    returns: `[B]` summed rewards, the mean over the particles
    """

    returns: Tensor


@dataclass(frozen=True, eq=False)
class ScoredPlans:
    """From starts `[N, D]` and plans `[N, H, A]` to their `ScoredForecast`; for `guard_plans`.

    Means and variances are those of `for_plans` with particles, so a predictor calibrated on those fits.

    reward: from states `[..., D]` after each action and actions `[..., A]` to rewards `[...]`
    batch: plans that go through the model together
    """

    ensemble: Ensemble
    reward: Callable[[Tensor, Tensor], Tensor]
    batch: int = 400

    def __post_init__(self) -> None:
        whole("batch", self.batch, least=1)

    def __call__(self, starts: Any, plans: Any) -> ScoredForecast:
        origin, given = starting(self.ensemble, starts), for_starts(self.ensemble, starts, plans)
        with torch.no_grad():
            parts = [self._batch(states, given[rows]) for rows, _, states in batches(origin, self.batch)]
        return ScoredForecast(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def _batch(self, origin: Tensor, plans: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, wanted = origin.new_zeros(self.batch), padded(plans, self.batch)

        def act(t: int, states: Tensor, noise: Tensor) -> Tensor:
            return wanted[:, t].expand(*states.shape[:-1], -1)

        def reached(states: Tensor, actions: Tensor) -> None:
            rewards = self.reward(states, actions)
            if rewards.shape != states.shape[:-1]:
                raise InvalidInput(
                    f"reward must return shape {tuple(states.shape[:-1])}, got {tuple(rewards.shape)}"
                )
            total.add_(rewards.flatten(0, 1).mean(dim=0))

        mean, var = particles(self.ensemble, origin, act, plans.shape[1], reached)
        return mean[: len(plans)], var[: len(plans)], total[: len(plans)]
