"""Obstacles to keep out of: boxes and balls in some of the state's numbers.

Two convex sets are apart if some direction separates them, by at least the gap along it, so the largest gap
over a few directions is a lower bound of their distance. For box tubes it is the distance itself. Obstacles
are open: touching is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from pac_core.arrays import Array, doubles, like, norm, number, numbers
from pac_core.errors import InvalidInput
from pac_core.limits import BoxLimit, Steps, TubeLike, at_steps, axes_of, broken, sides, some_axes
from pac_core.regions import Ellipsoids


class KeepOutBox(BoxLimit):
    """Not lower < x < upper on all the given numbers at once; see `BoxLimit` for the fields.

    The distance is the largest gap along one number of the state (Chebyshev's), which does not mix units as
    Euclid's would. For box tubes it is exact; below 0 it is the least move along one number that frees the
    tube. For ellipsoids it is a lower bound: the better of their bounding box and the half-space that
    separates the box from their centre.
    """

    def margin(self, tube: TubeLike) -> Array:
        low, high = sides(tube, self.axes, len(self.lower))
        xp = array_namespace(low)
        lower, upper = like(low, self.lower), like(low, self.upper)
        gap = xp.max(xp.maximum(low - upper, lower - high), axis=-1)
        region = _ellipsoids(tube)
        if region is not None:
            center = some_axes(region.center, self.axes, len(self.lower))
            way = xp.minimum(xp.maximum(center, lower), upper) - center
            # Along a direction of absolute sum 1 a gap is at most Chebyshev's distance.
            gap = _better(gap, region, way, self.axes, _absolute_sum, 0.0)
        return at_steps(self.name, self.steps, gap)

    def violated(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        seen = some_axes(states, self.axes, len(self.lower))
        return broken(states, self.steps, ((self.lower < seen) & (seen < self.upper)).all(axis=-1))

    def words(self, margin: float) -> str:
        return f"may be entered, by up to {-margin:.2g}"


@dataclass(frozen=True, eq=False)
class KeepOutBall:
    """Not |x - center| < radius, on the given numbers of the state.

    center: `[K]`
    axes: `[K]` which numbers of the state; None for all of them

    The distance is Euclid's. For box tubes it is exact (below 0: how deep the nearest point of the tube lies
    in the ball). For ellipsoids it is a lower bound: the better of their bounding box and the half-space
    across the line between the centres.
    """

    name: str
    center: NDArray[np.float64]
    radius: float
    axes: Sequence[int] | None = None
    steps: Steps = None

    def __post_init__(self) -> None:
        center = numbers("center", self.center, "[K]", finite=True).astype(np.float64)
        object.__setattr__(self, "radius", number("radius", self.radius))
        if not 0 < self.radius < np.inf:
            raise InvalidInput(f"radius must be finite and above 0, got {self.radius}")
        object.__setattr__(self, "center", center)
        object.__setattr__(self, "axes", axes_of(self.axes, len(center)))

    def margin(self, tube: TubeLike) -> Array:
        low, high = sides(tube, self.axes, len(self.center))
        xp = array_namespace(low)
        center = like(low, self.center)
        away = xp.maximum(xp.maximum(low - center, center - high), xp.zeros_like(low))
        gap = norm(away) - self.radius
        region = _ellipsoids(tube)
        if region is not None:
            way = center - some_axes(region.center, self.axes, len(self.center))
            gap = _better(gap, region, way, self.axes, norm, self.radius)
        return at_steps(self.name, self.steps, gap)

    def violated(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        seen = some_axes(states, self.axes, len(self.center))
        with np.errstate(invalid="ignore"):
            inside = ~(norm(seen - self.center) >= self.radius)
        return broken(states, self.steps, inside)

    def words(self, margin: float) -> str:
        return f"may be entered, {-margin:.2g} deep"


def _ellipsoids(tube: TubeLike) -> Ellipsoids | None:
    """The tube's ellipsoids in doubles, or None if it is made of something else."""
    region = getattr(tube, "region", None)
    if not isinstance(region, Ellipsoids):
        return None
    return Ellipsoids(region.forecast.wide(), doubles(region.radius2))


def _better(
    gap: Array,
    region: Ellipsoids,
    way: Array,
    axes: Sequence[int] | None,
    length: Callable[[Array], Array],
    less: float,
) -> Array:
    """The larger of `gap` and the gap along `way` `[..., K]`, from the centre to the obstacle.

    Along the direction of `way`, scaled to `length` 1, the obstacle begins `way . direction - less` from the
    centre, and the ellipsoid ends at its spread. A NaN gap stays NaN.
    """
    xp = array_namespace(gap)
    most = xp.max(xp.abs(way), axis=-1)
    nowhere = most == 0  # the centre lies in the obstacle
    direction = way / xp.where(nowhere, xp.ones_like(most), most)[..., None]  # of any magnitude
    direction = direction / xp.where(nowhere, xp.ones_like(most), length(direction))[..., None]
    along = xp.sum(way * direction, axis=-1) - region.spread(direction, axes) - less
    return xp.maximum(gap, xp.where(nowhere, gap, along))


def _absolute_sum(vectors: Array) -> Array:
    xp = array_namespace(vectors)
    return xp.sum(xp.abs(vectors), axis=-1)
