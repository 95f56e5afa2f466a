"""Candidates around a policy, and tubes for them: fitted ones larger or smaller, the mean's, the members'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from array_api_compat import array_namespace

from pac_core import GaussianForecast, InvalidInput, LinearFeatures, Trajectories
from pac_core.arrays import Array, convert_like, to_float64
from pac_core.bounds import check_integer
from pac_core.safety import TubeLike
from pac_core.sets import ConfidenceSets, Score
from pac_core.thresholds import Threshold
from pac_rl.planning.guard import MemberForecast

if TYPE_CHECKING:
    from torch import Tensor

    from pac_rl.dynamics.ensemble import Ensemble
    from pac_rl.policies import Policy
    from pac_rl.systems import Environment

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

        other: Any = self if instead is None else instead
        made = {name: part(getattr(self, name), getattr(other, name)) for name in ("plans", "mean", "var")}
        if self.members is not None:
            ways = zip(self.members, other.members, strict=True)
            made["members"] = xp.stack([part(*pair) for pair in ways])
        return Candidates(**made)

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

    from pac_rl.forecasts import check_match, one_step, start_tensor
    from pac_rl.policies import actions

    check_match(ensemble, environment, policy)
    check_integer("horizon", horizon, least=1)
    given = start_tensor(ensemble, starts)
    width, count = len(environment.low), len(given)
    scales = np.asarray(factors, dtype=np.float64)
    if scales.ndim != 1 or not len(scales) or not np.isfinite(scales).all():
        raise InvalidInput(f"factors must be one or more finite numbers, got {factors!r}")
    scaled = torch.from_numpy(scales)
    if perturbations is not None:
        extra = convert_like(given, perturbations)
        if extra.ndim != 4 or (len(extra), *extra.shape[2:]) != (count, horizon, width) or not extra.shape[1]:
            wanted = f"[{count}, P, {horizon}, {width}]"
            raise InvalidInput(f"perturbations must have shape {wanted}, got {tuple(extra.shape)}")
        added = extra.shape[1]
        spread = torch.linspace(float(scaled.min()), float(scaled.max()), added, dtype=scaled.dtype)
        none = given.new_zeros((count, len(scaled), horizon, width))
        shift, scaled = torch.cat([none, extra], dim=1).flatten(0, 1), torch.cat([scaled, spread])
    scaled = scaled.to(given)
    low, high = (convert_like(given, end) for end in (environment.low, environment.high))
    by_row = scaled.repeat(count)[:, None]
    plans = given.new_empty((count * len(scaled), horizon, width))

    def act(t: int, states: Tensor, noise: Tensor) -> Tensor:
        wanted = by_row * actions(environment, policy, states, noise)
        if perturbations is not None:
            wanted = wanted + shift[:, t]
        plans[:, t] = torch.clamp(wanted, low, high)
        return plans[:, t]

    table, alone = (count, len(scaled), horizon), None
    with torch.no_grad():
        origin = given.repeat_interleave(len(scaled), dim=0)
        mean, var = one_step(ensemble, origin, act, horizon)
        if members:
            alone = member_trajectories(ensemble, origin, plans).reshape(-1, *table, ensemble.dims)
    return Candidates(plans.reshape(*table, width), mean.reshape(*table, -1), var.reshape(*table, -1), alone)


def member_trajectories(ensemble: Ensemble, starts: Tensor, plans: Tensor) -> Tensor:
    """`[M, B, H, D]` where each member alone expects the plans `[B, H, A]` to lead."""
    import torch

    members = ensemble.settings.members
    states, steps = starts.expand(members, -1, -1), []
    for t in range(plans.shape[1]):
        states, _ = ensemble.step(states, plans[:, t].expand(members, -1, -1))
        steps.append(states)
    return torch.stack(steps, dim=2)


class TrajectoryTube(TubeLike, Protocol):
    """A tube that also says which trajectories it holds."""

    def contains(self, truth: Any) -> Array:
        """`[B]` whether the tube holds the whole trajectory `[B, H, D]`."""


class Tubes(Protocol):
    """Makes the tubes of a guard; a predictor of trajectories, too, if it says `members`."""

    @property
    def members(self) -> bool:
        """Whether it needs a `MemberForecast`."""

    def tube(self, forecast: GaussianForecast) -> TrajectoryTube: ...


@dataclass(frozen=True, eq=False)
class ScaledTube:
    """A tube of any shape, made larger or smaller about its centre.

    tube: of B plans x H steps
    center: `[B, H, D]` the forecast means
    scale: above 0; 1 leaves the tube as it is

    >>> from pac_core import PACLevel
    >>> from pac_core.tubes import fit_shape
    >>> forecast = GaussianForecast(np.zeros((50, 1, 1)), np.ones((50, 1, 1)))
    >>> box = fit_shape(forecast, np.linspace(-1, 1, 50).reshape(50, 1, 1), PACLevel(0.1, 0.1))
    >>> once = box.sets(forecast, 1.0)
    >>> twice = ScaledTube(once, forecast.mean, 2.0)
    >>> float(twice.support([1.0])[0, 0] / once.support([1.0])[0, 0])
    2.0
    """

    tube: ConfidenceSets
    center: Array
    scale: float

    def __post_init__(self) -> None:
        check_scale(self.scale)
        if tuple(self.center.shape) != self.tube.shape:
            raise InvalidInput(f"center must have shape {self.tube.shape}, got {tuple(self.center.shape)}")

    def support(self, direction: Any) -> Array:
        """`[B, H]` c.d + scale * (support of the tube - c.d)."""
        along = self.center * convert_like(self.center, direction)
        middle = array_namespace(along).sum(along, axis=-1)
        return middle + self.scale * (self.tube.support(direction) - middle)

    def box(self) -> tuple[Array, Array]:
        """`[B, H, D]` corners of the bounding boxes; `[B, H, F]`, of the features, if it is of those."""
        middle = self.tube.region.center
        lower, upper = (middle + self.scale * (corner - middle) for corner in self.tube.box())
        return lower, upper

    @property
    def features(self) -> LinearFeatures | None:
        """What the tube knows of the state, if that is a few features alone."""
        return getattr(self.tube, "features", None)

    def interval(self, name: str) -> tuple[Array, Array]:
        """Lower and upper ends `[B, H]` of the feature `name`."""
        if self.features is None or name not in self.features.names:
            raise InvalidInput(f"the tube must have the feature {name!r}, got one without it")
        row = self.features.matrix[self.features.names.index(name)]
        return -self.support(-row), self.support(row)

    def contains(self, truth: Any) -> Array:
        """`[B]` whether the truth `[B, H, D]`, drawn towards the centre by the scale, is in the tube."""
        ended = isinstance(truth, Trajectories)
        states = convert_like(self.center, truth.states if ended else truth)
        drawn = self.center + (states - self.center) / self.scale
        return self.tube.contains(Trajectories(drawn, truth.lengths) if ended else drawn)


def check_scale(scale: Any) -> None:
    """Refuses a scale that makes no tube: at 0 it would be a line that nothing follows."""
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.floating) or not 0 < scale < np.inf:
        raise InvalidInput(f"scale must be finite and above 0, got {scale!r}")


@dataclass(frozen=True, eq=False)
class FittedTubes:
    """The tubes of a score that was fitted on the tune split, at a threshold, scaled.

    The threshold may come from tune or calibrate units: they were not picked by a planner, so a tube of
    a picked plan has no promise from it. What is promised of picked plans is proved for a `scale`, on
    fresh episodes of the whole controller.
    """

    score: Score
    threshold: Threshold | float
    scale: float = 1.0
    members: bool = False

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def tube(self, forecast: GaussianForecast) -> ScaledTube:
        forecast = forecast.wide()
        return ScaledTube(self.score.sets(forecast, self.threshold), forecast.mean, self.scale)

    def scaled(self, scale: float) -> FittedTubes:
        """The same tubes at another scale."""
        return replace(self, scale=float(scale))


@dataclass(frozen=True, eq=False)
class HullTube:
    """The hull of a few trajectories `[M, B, H, D]`: a point per step if there is one."""

    ways: Array

    def support(self, direction: Any) -> Array:
        return array_namespace(self.ways).max(self.ways @ convert_like(self.ways, direction), axis=0)

    def box(self) -> tuple[Array, Array]:
        xp = array_namespace(self.ways)
        return xp.min(self.ways, axis=0), xp.max(self.ways, axis=0)

    def contains(self, truth: Any) -> Array:
        """`[B]` whether the truth is within the box of the trajectories; a single one holds nothing else."""
        marked = truth.marked() if isinstance(truth, Trajectories) else truth
        states = convert_like(self.ways, marked)
        lower, upper = self.box()
        xp = array_namespace(states)
        inside = (lower <= states) & (states <= upper) & xp.isfinite(states)
        if isinstance(truth, Trajectories):
            inside |= xp.isnan(states)  # steps after the end
        return xp.all(inside, axis=(1, 2))


@dataclass(frozen=True)
class MeanTubes:
    """The predicted mean, as if it were certain: the ensemble heuristic CCE."""

    members: bool = False

    def tube(self, forecast: GaussianForecast) -> HullTube:
        return HullTube(forecast.wide().mean[None])


@dataclass(frozen=True)
class MemberTubes:
    """The way of every member of the ensemble: the heuristic RCE, which trusts the worst of them."""

    members: bool = True

    def tube(self, forecast: GaussianForecast) -> HullTube:
        if not isinstance(forecast, MemberForecast):
            raise InvalidInput("forecast must have the ways of members (members=True), got one without")
        return HullTube(to_float64(forecast.members))
