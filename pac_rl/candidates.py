"""Candidates around a policy: its actions scaled down, and what the ensemble forecasts of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from pac_core import GaussianForecast, InvalidInput
from pac_core.arrays import Array, like
from pac_core.bounds import whole
from pac_rl.guards import MemberForecast

if TYPE_CHECKING:
    from torch import Tensor

    from pac_rl.ensembles import Ensemble
    from pac_rl.environments import Environment
    from pac_rl.policies import Policy

FACTORS = tuple(round(0.05 * i, 2) for i in range(21))
"""By which the policy's actions are scaled: from nothing at all to the policy itself."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """C plans from each of E starts, numpy or torch.

    plans: `[E, C, H, A]`
    mean, var: `[E, C, H, D]` forecast states, with the variances of each step alone
    members: `[M, E, C, H, D]` the way each member of the ensemble sees it alone; None unless asked for
    """

    plans: Array
    mean: Array
    var: Array
    members: Array | None = None

    @property
    def forecast(self) -> GaussianForecast:
        """`[E * C, H, D]` of all plans, a row each: what tubes are made of."""
        mean, var = (part.reshape(-1, *part.shape[2:]) for part in (self.mean, self.var))
        if self.members is None:
            return GaussianForecast(mean, var)
        return MemberForecast(mean, var, self.members.reshape(len(self.members), *mean.shape))

    def pick(self, which: Array, instead: Candidates | None = None) -> Candidates:
        """One plan from each start: candidate `which` `[E]`, or where that is -1, the first of `instead`."""
        xp = array_namespace(which)
        each, own = xp.arange(len(which), device=which.device), which >= 0

        def part(mine: Array, stand_in: Array) -> Array:
            taken = mine[each, xp.clip(which, min=0)]
            return xp.where(own[:, None, None], taken, stand_in[:, 0])[:, None]

        other = self if instead is None else instead
        members = None
        if self.members is not None:
            ways = other.members if other.members is not None else self.members
            members = xp.stack([part(*pair) for pair in zip(self.members, ways, strict=True)])
        return Candidates(
            part(self.plans, other.plans), part(self.mean, other.mean), part(self.var, other.var), members
        )

    def table(self, rows: Array) -> Array:
        """`[E, C]` what was found for each of the rows of `forecast`."""
        return rows.reshape(self.plans.shape[:2])


def candidates_around(
    policy: Policy,
    ensemble: Ensemble,
    environment: Environment,
    starts: Array,
    *,
    horizon: int,
    factors: Sequence[float] = FACTORS,
    perturbations: Array | None = None,
    members: bool = False,
) -> Candidates:
    """The policy's mean actions along the predicted mean, times each factor, from starts `[E, D]`.

    All E * C plans go through the ensemble together, once: what it predicts is what the policy acts on,
    so plans and forecast come out of the same pass.

    perturbations: `[E, P, H, A]` for P candidates more, added to the policy's actions, whose factors are
        spread evenly over the range of `factors`
    members: whether to send the plans through each member alone, too, which takes as long again
    """
    import torch  # not at the top: candidates and their tubes need no torch

    from pac_rl.forecasts import matching, one_step, starting
    from pac_rl.policies import actions

    matching(ensemble, environment, policy)
    whole("horizon", horizon, least=1)
    given = starting(ensemble, starts)
    width, count = len(environment.low), len(given)
    scaled = torch.from_numpy(_factors(factors))
    if perturbations is not None:
        extra = like(given, perturbations)
        if extra.ndim != 4 or (len(extra), *extra.shape[2:]) != (count, horizon, width) or not extra.shape[1]:
            wanted = f"[{count}, P, {horizon}, {width}]"
            raise InvalidInput(f"perturbations must have shape {wanted}, got {tuple(extra.shape)}")
        added = extra.shape[1]
        spread = torch.linspace(float(scaled.min()), float(scaled.max()), added, dtype=scaled.dtype)
        none = given.new_zeros((count, len(scaled), horizon, width))
        shift, scaled = torch.cat([none, extra], dim=1).flatten(0, 1), torch.cat([scaled, spread])
    scaled = scaled.to(given)
    low, high = (like(given, end) for end in (environment.low, environment.high))
    by_row = scaled.repeat(count)[:, None]
    plans = given.new_empty((count * len(scaled), horizon, width))

    def act(t: int, states: Tensor, noise: Tensor) -> Tensor:
        wanted = by_row * actions(environment, policy, states, noise)
        if perturbations is not None:
            wanted = wanted + shift[:, t]
        plans[:, t] = torch.clamp(wanted, low, high)
        return plans[:, t]

    table = (count, len(scaled), horizon)
    with torch.no_grad():
        origin = given.repeat_interleave(len(scaled), dim=0)
        mean, var = one_step(ensemble, origin, act, horizon)
        alone = (
            ways_of_members(ensemble, origin, plans).reshape(-1, *table, ensemble.dims) if members else None
        )
    return Candidates(plans.reshape(*table, width), mean.reshape(*table, -1), var.reshape(*table, -1), alone)


def ways_of_members(ensemble: Ensemble, starts: Tensor, plans: Tensor) -> Tensor:
    """`[M, B, H, D]` where each member alone expects the plans `[B, H, A]` to lead."""
    import torch

    members = ensemble.settings.members
    states, steps = starts.expand(members, -1, -1), []
    for t in range(plans.shape[1]):
        states, _ = ensemble.step(states, plans[:, t].expand(members, -1, -1))
        steps.append(states)
    return torch.stack(steps, dim=2)


def _factors(factors: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray(factors, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise InvalidInput(f"factors must be one or more finite numbers, got {factors!r}")
    return values
