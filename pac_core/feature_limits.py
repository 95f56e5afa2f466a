"""Limits on a function of the state, with a proof of its range over a tube."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from pac_core.arrays import Array, like, norm, number, returned
from pac_core.errors import InvalidInput
from pac_core.features import LinearFeatures
from pac_core.limits import (
    Steps,
    TubeLike,
    at_steps,
    axes_of,
    broken,
    corners,
    features_of,
    sides,
    some_axes,
)


@dataclass(frozen=True, eq=False)
class FeatureLimit:
    """lower <= g(x) <= upper, for a function g of some of the state's numbers.

    value: g, from states `[..., K]` to exactly `[...]`: nothing is broadcast. Like the other functions it
        gets doubles in the tube's own library, numpy or torch, and true states in numpy
    axes: `[K]` which numbers of the state g reads; None for all of them
    bounds: an interval extension: from lower and upper ends `[..., K]` to two ends `[...]` between which g
        stays on that box
    lipschitz: L with |g(x) - g(y)| <= L |x - y| (Euclid's) wherever the tube may be
    gradient, curvature: the gradient of g, `[..., K]` to `[..., K]`, and a bound on the absolute eigenvalues
        of its Hessian wherever the tube may be

    One of the three proofs is enough; if there are several, the tighter one counts. The margin is a lower
    bound, up to rounding, and only as good as what was given: a wrong constant proves nothing. A tube of
    shape `features` that has the feature `name` is read directly and needs no proof.

    >>> class Tube:
    ...     def support(self, direction): ...
    ...     def box(self):
    ...         return np.array([[[-1.0, 1.0]]]), np.array([[[0.0, 2.0]]])
    >>> FeatureLimit("distance", lambda x: np.sqrt((x**2).sum(-1)), upper=3.0, lipschitz=1.0).margin(Tube())
    array([[0.71175439]])
    """

    name: str
    value: Callable[[Any], Any]
    lower: float = -np.inf
    upper: float = np.inf
    axes: Sequence[int] | None = None
    bounds: Callable[[Any, Any], tuple[Any, Any]] | None = None
    lipschitz: float | None = None
    gradient: Callable[[Any], Any] | None = None
    curvature: float | None = None
    steps: Steps = None

    def __post_init__(self) -> None:
        for name in ("lower", "upper", "lipschitz", "curvature"):
            if getattr(self, name) is not None or name in ("lower", "upper"):
                object.__setattr__(self, name, number(name, getattr(self, name)))
        if not self.lower < self.upper or not np.isfinite([self.lower, self.upper]).any():
            raise InvalidInput(
                f"lower must be below upper, and one finite, got {self.lower} and {self.upper}"
            )
        for name in ("lipschitz", "curvature"):
            constant = getattr(self, name)
            if constant is not None and not 0 <= constant < np.inf:
                raise InvalidInput(f"{name} must be finite and at least 0, got {constant}")
        if (self.gradient is None) != (self.curvature is None):
            raise InvalidInput("gradient and curvature must be given together: one proves nothing alone")
        object.__setattr__(self, "axes", axes_of(self.axes))

    def margin(self, tube: TubeLike) -> Array:
        with np.errstate(all="ignore"):  # a tube may be infinite, or know nothing
            low, high = self._interval(tube)
            xp = array_namespace(low)
            gaps = [low - self.lower] if np.isfinite(self.lower) else []
            gaps += [self.upper - high] if np.isfinite(self.upper) else []
            margin = gaps[0] if len(gaps) == 1 else xp.minimum(*gaps)
            known = (low <= high) & (low < np.inf) & (high > -np.inf)  # an overflow proves nothing
            margin = xp.where(known, margin, like(margin, np.nan))
        return at_steps(self.name, self.steps, margin)

    def violated(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        with np.errstate(all="ignore"):
            value = self._value(some_axes(states, self.axes))
            return broken(states, self.steps, ~((self.lower <= value) & (value <= self.upper)))

    def words(self, margin: float) -> str:
        return f"may leave [{self.lower:.4g}, {self.upper:.4g}] by {-margin:.2g}"

    def _interval(self, tube: TubeLike) -> tuple[Array, Array]:
        """`[B, H]` two ends between which g stays in the tube."""
        features = features_of(tube)
        if features is not None and self.name in features.names:
            self._refuse_another(features)
            lower, _ = corners(tube)
            return self._two("interval", tube.interval(self.name), lower)  # type: ignore[attr-defined]
        if self.bounds is None and self.lipschitz is None and self.gradient is None:
            raise InvalidInput(
                f"the feature {self.name!r} has neither bounds, lipschitz nor gradient with curvature, so "
                "nothing can be proved of it in this tube; give one of them, or calibrate a tube of shape "
                f"'features' with LinearFeatures(({self.name!r},), matrix), which is read directly"
            )
        lower, upper = sides(tube, self.axes)
        proofs = [] if self.bounds is None else [self._two("bounds", self.bounds(lower, upper), lower)]
        proofs += self._around((lower + upper) / 2, (upper - lower) / 2)
        low, high = proofs[0]
        xp = array_namespace(lower)
        for other in proofs[1:]:
            low, high = xp.maximum(low, other[0]), xp.minimum(high, other[1])
        unknown = xp.any(xp.isnan(lower), axis=-1)  # what the functions make of an empty tube does not count
        return xp.where(unknown, like(low, np.nan), low), high

    def _around(self, center: Array, widths: Array) -> list[tuple[Array, Array]]:
        """What the constants prove for a box with this centre and these half-widths `[B, H, K]`."""
        if self.lipschitz is None and self.gradient is None:
            return []
        xp, value, radius = array_namespace(center), self._value(center), norm(widths)
        reaches = []
        if self.lipschitz is not None:
            reaches.append(self.lipschitz * radius)
        if self.gradient is not None and self.curvature is not None:
            shape = tuple(center.shape)
            slope = xp.abs(returned(f"gradient of {self.name!r}", self.gradient(center), shape, center))
            # The square of a tiny radius would underflow before it meets a large curvature.
            reaches.append(xp.sum(slope * widths, axis=-1) + self.curvature / 2 * radius * radius)
        return [(value - reach, value + reach) for reach in reaches]

    def _value(self, states: Array) -> Array:
        """`[...]` g at states `[..., K]`."""
        return returned(f"value of {self.name!r}", self.value(states), tuple(states.shape[:-1]), states)

    def _two(self, what: str, ends: Any, lower: Array) -> tuple[Array, Array]:
        """The two ends `[B, H]` that a function returned for a tube with corners `lower` `[B, H, D]`."""
        name, shape = f"{what} of {self.name!r}", tuple(lower.shape[:-1])
        if len(ends) != 2:
            raise InvalidInput(f"{name} must be two ends, a lower and an upper one, got {len(ends)}")
        return returned(name, ends[0], shape, lower), returned(name, ends[1], shape, lower)

    def _refuse_another(self, features: LinearFeatures) -> None:
        """Refuse a tube whose feature of this name is another function, compared at a few states."""
        row = features.matrix[features.names.index(self.name)]
        states = np.random.default_rng(0).normal(size=(4, len(row))) * [[1e-3], [1.0], [1e2], [1e4]]
        here = some_axes(states, self.axes)
        if not (abs(self._value(here) - states @ row) <= 1e-6 * (abs(states) @ abs(row))).all():
            raise InvalidInput(f"the tube's feature {self.name!r} must be this limit's, got another function")
