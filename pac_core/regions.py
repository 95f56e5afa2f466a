"""The geometry of sets for numpy and torch: ellipsoids and boxes.

An empty set is not a point: `empty` marks it, and its widths are NaN, so that every comparison with a limit
fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from pac_core.arrays import Array, like
from pac_core.errors import InvalidInput
from pac_core.forecasts import GaussianForecast


class Region(Protocol):
    """The geometry of a batch of sets `[...]` in D dimensions."""

    @property
    def empty(self) -> Array:
        """`[...]` whether the set holds nothing."""

    @property
    def center(self) -> Array:
        """`[..., D]`"""

    def half_widths(self) -> Array:
        """`[..., D]` from the centre to the faces of the bounding box."""

    def support(self, direction: NDArray[np.float64]) -> Array:
        """`[...]` the largest value of `direction . x` over the set; `direction` is `[D]`."""

    def corners(self) -> tuple[Array, Array]:
        """`[..., D]` lower and upper corner of the bounding box."""

    def volume_root(self) -> Array:
        """`[...]` the D-th root of the volume."""


@dataclass(frozen=True, eq=False)
class Ellipsoids:
    """Ellipsoids {x : Mahalanobis^2(x) <= radius2} around the means of a forecast.

    forecast: means and covariances `[..., D]`
    radius2: `[...]` squared radius; the set is empty if it is negative or NaN
    """

    forecast: GaussianForecast
    radius2: Array

    @property
    def empty(self) -> Array:
        return ~(self.radius2 >= 0)

    @property
    def center(self) -> Array:
        return self.forecast.mean

    @cached_property
    def radius(self) -> Array:
        """`[...]`, NaN where empty."""
        xp = array_namespace(self.radius2)
        return xp.sqrt(xp.where(self.empty, like(self.radius2, np.nan), self.radius2))

    def half_widths(self) -> Array:
        xp = array_namespace(self.radius2)
        return self.radius[..., None] * xp.sqrt(self.forecast.variances)

    def support(self, direction: NDArray[np.float64]) -> Array:
        xp = array_namespace(self.radius2)
        length = float(abs(direction).max()) or 1.0
        unit = direction / length  # avoids squares of tiny and huge numbers
        if self.forecast.full:
            spread2 = self.forecast.spread2(like(self.center, unit))
        else:
            spread2 = _dot(self.forecast.var, unit, unit)
        return _dot(self.center, direction) + length * (self.radius * xp.sqrt(spread2))

    def spread(self, directions: Array, axes: Sequence[int] | None = None) -> Array:
        """`[...]` how far each set reaches from its centre along its own unit direction `[..., K]`.

        axes: the K of the D dimensions that the directions are in; None for all
        """
        xp = array_namespace(self.radius2)
        var = self.forecast.var
        if axes is not None:
            var = var[..., list(axes)]
            var = var[..., list(axes), :] if self.forecast.full else var
        return self.radius * xp.sqrt(GaussianForecast(directions, var).spread2(directions))

    def corners(self) -> tuple[Array, Array]:
        widths = self.half_widths()
        return self.center - widths, self.center + widths

    def volume_root(self) -> Array:
        xp = array_namespace(self.radius2)
        dims = self.center.shape[-1]
        unit_ball = math.pi ** (dims / 2) / math.gamma(dims / 2 + 1)
        return unit_ball ** (1 / dims) * self.radius * xp.exp(self.forecast.log_det() / (2 * dims))

    def axes(self) -> Array:
        """`[..., D, D]` Lambda: its columns are the semi-axes, so the set is mean + Lambda * ball."""
        xp = array_namespace(self.radius2)
        if self.forecast.full:
            squared, vectors = xp.linalg.eigh(self.forecast.var)
            lengths = xp.sqrt(squared)
        else:
            lengths = xp.sqrt(self.forecast.var)
            vectors = like(lengths, np.eye(lengths.shape[-1]))
        return vectors * (self.radius[..., None] * lengths)[..., None, :]


@dataclass(frozen=True, eq=False)
class Boxes:
    """Axis-aligned boxes.

    center, lower, upper: `[..., D]`; a side may be infinite (one-sided); NaN makes the box empty
    """

    center: Array
    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        shapes = {tuple(part.shape) for part in (self.center, self.lower, self.upper)}
        if len(shapes) > 1 or 0 in (shape := shapes.pop())[-1:] or not shape:
            raise InvalidInput(
                "center, lower and upper must have one shape [..., D], D at least 1, got "
                f"{tuple(self.center.shape)}, {tuple(self.lower.shape)} and {tuple(self.upper.shape)}"
            )

    @property
    def empty(self) -> Array:
        xp = array_namespace(self.center)
        return ~xp.all(self.lower <= self.upper, axis=-1)

    def half_widths(self) -> Array:
        xp = array_namespace(self.center)
        above, below = self.upper - self.center, self.center - self.lower
        # A one-sided interval is measured on the side it has.
        return xp.where(xp.isinf(below), above, xp.where(xp.isinf(above), below, (above + below) / 2))

    def support(self, direction: NDArray[np.float64]) -> Array:
        return _dot(self.upper, np.maximum(direction, 0)) + _dot(self.lower, np.minimum(direction, 0))

    def corners(self) -> tuple[Array, Array]:
        return self.lower, self.upper

    def volume_root(self) -> Array:
        xp = array_namespace(self.center)
        return xp.exp(xp.mean(xp.log(self.upper - self.lower), axis=-1))


def _dot(points: Array, direction: NDArray[np.float64], again: NDArray[np.float64] | None = None) -> Array:
    """`[...]` points `[..., D]` along a direction (times another), over its non-zero dimensions alone.

    Limits look along few dimensions, and infinity times 0 must be 0 in a one-sided box.
    """
    total = array_namespace(points).zeros_like(points[..., 0])
    for i in np.flatnonzero(direction).tolist():
        term = float(direction[i]) * points[..., i]
        total = total + (term if again is None else float(again[i]) * term)
    return total
