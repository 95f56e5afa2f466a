"""Tubes that a guard checks: fitted ones, scaled about their centre, and the usual ones of ensembles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace

from pac_core import (
    ConfidenceSets,
    GaussianForecast,
    InvalidInput,
    LinearFeatures,
    Threshold,
    Trajectories,
    TubeLike,
)
from pac_core.arrays import Array, doubles, like
from pac_core.predictors import Score
from pac_rl.guards import MemberForecast


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

    >>> from pac_core import Boxes, GaussianForecast, fit_shape, PACLevel
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
        checked_scale(self.scale)
        if tuple(self.center.shape) != self.tube.shape:
            raise InvalidInput(f"center must have shape {self.tube.shape}, got {tuple(self.center.shape)}")

    def support(self, direction: Any) -> Array:
        """`[B, H]` c.d + scale * (support of the tube - c.d)."""
        along = like(self.center, direction)
        xp = array_namespace(self.center)
        middle = xp.sum(self.center * along, axis=-1)
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
        states = like(self.center, truth.states if ended else truth)
        drawn = self.center + (states - self.center) / self.scale
        return self.tube.contains(Trajectories(drawn, truth.lengths) if ended else drawn)


def checked_scale(scale: Any) -> None:
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
        checked_scale(self.scale)

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
        return array_namespace(self.ways).max(self.ways @ like(self.ways, direction), axis=0)

    def box(self) -> tuple[Array, Array]:
        xp = array_namespace(self.ways)
        return xp.min(self.ways, axis=0), xp.max(self.ways, axis=0)

    def contains(self, truth: Any) -> Array:
        """`[B]` whether the truth is within the box of the trajectories; a single one holds nothing else."""
        marked = truth.marked() if isinstance(truth, Trajectories) else truth
        states = like(self.ways, marked)
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
        return HullTube(doubles(forecast.members))
