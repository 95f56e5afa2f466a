"""Limits that a state must keep, and how far a tube keeps them: half-spaces, boxes, obstacles, features.

A margin is exact, or a proven lower bound; NaN is unsafe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from pac_core.arrays import (
    Array,
    check_array,
    check_number,
    check_numbers,
    check_returned,
    convert_like,
    norm,
    to_float64,
)
from pac_core.errors import InvalidInput
from pac_core.sets.kinds import Ellipsoids
from pac_core.tubes import LinearFeatures

Axes: TypeAlias = Sequence[int] | Sequence[str] | None
Steps: TypeAlias = slice | Sequence[int] | None
"""The steps at which a limit holds, from 0 as in `states[:, steps]`; None for all."""


class TubeLike(Protocol):
    """What limits need of a tube of B plans x H steps; anything with these methods can be checked.

    A tube that also has `features` (`LinearFeatures`) and `interval(name)` knows only those numbers of the
    state: its box is theirs.
    """

    def support(self, direction: Any) -> Array:
        """`[B, H]` the largest value of `direction . x` over the tube; NaN where it is empty."""

    def box(self) -> tuple[Array, Array]:
        """`[B, H, D]` lower and upper corners of the bounding boxes; NaN where empty."""


class Limit(Protocol):
    """What a state must keep; it may also have `words(margin)`, which explains a negative margin."""

    @property
    def name(self) -> str: ...

    def margin(self, tube: TubeLike) -> Array:
        """`[B, H]` how far the tube stays inside: exact, or a proven lower bound."""

    def violated(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        """`[..., H]` whether true states `[..., H, D]` violate it."""


class _Stepped:
    """A limit that holds at some steps; a subclass has `_margin(tube)` and `_outside(states)` of all."""

    name: str
    steps: Steps
    _margin: Callable[[TubeLike], Array]
    _outside: Callable[[NDArray[np.float64]], NDArray[np.bool_]]

    def margin(self, tube: TubeLike) -> Array:
        with np.errstate(all="ignore"):  # a tube may be infinite, or know nothing
            margin = self._margin(tube)
        if margin.ndim != 2:
            raise InvalidInput(f"a tube of plans x steps is checked, got one of shape {tuple(margin.shape)}")
        if self.steps is None:
            return margin
        xp, holds = array_namespace(margin), active_steps(self.name, self.steps, int(margin.shape[1]))
        kept = xp.asarray(holds, device=margin.device) | xp.isnan(margin)
        return xp.where(kept, margin, convert_like(margin, np.inf))

    def violated(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        with np.errstate(all="ignore"):
            outside = self._outside(states)
        if self.steps is not None:
            outside = outside & active_steps("this limit", self.steps, states.shape[-2])
        return np.asarray(outside | ~np.isfinite(states).all(axis=-1))


@dataclass(frozen=True, eq=False)
class HalfSpace(_Stepped):
    """normal . x <= bound. The margin is exact: the bound minus the largest value in the tube.

    normal: `[D]`

    >>> from pac_core import GaussianForecast
    >>> from pac_core.sets import gaussian_sets
    >>> tube = gaussian_sets(GaussianForecast(np.zeros((1, 1, 2)), np.ones((1, 1, 2))), 2.0)
    >>> limit = HalfSpace("speed", np.array([1.0, 0.0]), 3.0)
    >>> bool(limit.margin(tube)[0, 0] == 3.0 - tube.support([1.0, 0.0])[0, 0])
    True
    """

    name: str
    normal: NDArray[np.float64]
    bound: float
    steps: Steps = None

    def __post_init__(self) -> None:
        normal = check_numbers("normal", self.normal, "[D]", finite=True)
        _fix(self, normal=normal.astype(np.float64), bound=check_number("bound", self.bound))
        # Products with a smaller or larger one would vanish or overflow.
        if not 1e-300 <= abs(normal).max() <= 1e300 or not np.isfinite(self.bound):
            raise InvalidInput(
                "the largest entry of normal must lie between 1e-300 and 1e300 and bound be finite, got "
                f"{normal} and {self.bound}"
            )

    def _margin(self, tube: TubeLike) -> Array:
        support = to_float64(tube.support(self.normal))
        nothing = convert_like(support, np.nan)  # -inf: the tube is empty, or diverged
        return self.bound - array_namespace(support).where(support > -np.inf, support, nothing)

    def _outside(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.asarray(~(select_axes(states, None, len(self.normal)) @ self.normal <= self.bound))

    def words(self, margin: float) -> str:
        return f"may reach {self.bound - margin:.4g}, {-margin:.2g} above {self.bound:.4g}"


@dataclass(frozen=True, eq=False)
class BoxLimit(_Stepped):
    """A box in some of the state's numbers.

    lower, upper: `[K]`; a side may be infinite
    axes: `[K]` which numbers of the state, or their names in a system; None for all of them
    """

    name: str
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    axes: Axes = None
    steps: Steps = None

    def __post_init__(self) -> None:
        low, high = check_array("lower", self.lower, "[K]"), check_array("upper", self.upper, "[K]")
        if low.dtype.kind not in "fiu" or high.dtype.kind not in "fiu" or low.shape != high.shape:
            raise InvalidInput(f"lower and upper must be equally many numbers, got {low} and {high}")
        low, high = low.astype(np.float64), high.astype(np.float64)
        if not (low < high).all() or not np.isfinite([low, high]).any():
            raise InvalidInput(f"lower must be below upper, and one side finite, got {low} and {high}")
        _fix(self, lower=low, upper=high, axes=check_axes(self.axes, len(low)))


class StayIn(BoxLimit):
    """lower <= x <= upper on some of the state's numbers; see `BoxLimit` for the fields.

    The margin is exact: the distance to the nearest side, each number in its own unit.
    """

    def _margin(self, tube: TubeLike) -> Array:
        lower, upper = tube_ends(tube, self.axes, len(self.lower))
        xp = array_namespace(lower)
        below, above = np.flatnonzero(np.isfinite(self.lower)), np.flatnonzero(np.isfinite(self.upper))
        gaps = [lower[..., i] - float(self.lower[i]) for i in below.tolist()]
        gaps += [float(self.upper[i]) - upper[..., i] for i in above.tolist()]
        return xp.min(xp.stack(gaps, axis=-1), axis=-1)

    def _outside(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        seen = select_axes(states, self.axes, len(self.lower))
        return np.asarray(~((self.lower <= seen) & (seen <= self.upper)).all(axis=-1))

    def words(self, margin: float) -> str:
        return f"may leave its box by {-margin:.2g}"


def tube_ends(tube: TubeLike, axes: Axes, count: int | None = None) -> tuple[Array, Array]:
    """`[B, H, K]` lower and upper ends of the tube along some numbers of the state; NaN where it is empty.

    axes: which numbers, or None for all, of which there must be `count`
    """
    features = features_of(tube)
    if features is not None:
        # Its box is that of the features; of the state it knows only directions that are features.
        dims = features.matrix.shape[1]
        rows = np.eye(dims)[_within(axes, count, dims)]
        ends = [(-to_float64(tube.support(-row)), to_float64(tube.support(row))) for row in rows]
        xp = array_namespace(ends[0][0])
        lower, upper = (xp.stack(list(end), axis=-1) for end in zip(*ends, strict=True))
    else:
        lower, upper = corners(tube)
        chosen = _within(axes, count, int(lower.shape[-1]))
        xp = array_namespace(lower)
        if axes is not None:
            lower, upper = (xp.stack([end[..., i] for i in chosen], axis=-1) for end in (lower, upper))
    empty = empty_at(lower, upper)[..., None]
    unknown = convert_like(lower, np.nan)
    return xp.where(empty, unknown, lower), xp.where(empty, unknown, upper)


def corners(tube: TubeLike) -> tuple[Array, Array]:
    """`[B, H, D]` the tube's corners in doubles; refuse any other shape."""
    ends = tube.box()
    shape = tuple(np.shape(ends[0]))
    if len(ends) != 2 or len(shape) != 3 or 0 in shape:
        raise InvalidInput(
            "a tube's box must be two corners of shape [B, H, D], plans x steps x numbers, each at least 1, "
            f"got {len(ends)} of {shape}"
        )
    lower, upper = (check_returned("each corner of a tube's box", end, shape, ends[0]) for end in ends)
    return lower, upper


def features_of(tube: TubeLike) -> LinearFeatures | None:
    """The features that are all the tube knows of the state, or None."""
    features = getattr(tube, "features", None)
    return features if isinstance(features, LinearFeatures) else None


def empty_at(lower: Array, upper: Array) -> Array:
    """`[B, H]` where a tube with these corners `[B, H, D]` is empty: inverted, at infinity or NaN."""
    xp = array_namespace(lower)
    return ~xp.all((lower <= upper) & (lower < np.inf) & (upper > -np.inf), axis=-1)


def active_steps(name: str, steps: Steps, horizon: int) -> NDArray[np.bool_]:
    """`[H]` the steps at which a limit holds; refuse steps beyond the horizon."""
    holds = np.zeros(horizon, dtype=bool)
    try:
        index = steps if steps is None or isinstance(steps, slice) else np.asarray(steps)
        if isinstance(index, np.ndarray) and index.dtype.kind not in "iu":
            raise TypeError(f"they must be whole numbers, got {steps!r}")  # a mask would mean steps 0 and 1
        if isinstance(index, slice) and any(abs(end or 0) > horizon for end in (index.start, index.stop)):
            raise IndexError(f"{steps!r} reaches beyond them")  # numpy would cut a slice silently
        holds[index] = True
    except (IndexError, TypeError, ValueError) as error:
        raise InvalidInput(f"steps of {name!r} must lie within the {horizon} of the tube: {error}") from None
    if not holds.any():
        raise InvalidInput(f"steps of {name!r} must be among the {horizon} of the tube, got {steps!r}")
    return holds


def select_axes(states: Any, axes: Axes, count: int | None = None) -> Any:
    """`[..., K]` these numbers of `states` `[..., D]`."""
    chosen = _within(axes, count, int(states.shape[-1]))
    return states if axes is None else states[..., chosen]


def check_axes(axes: Any, count: int | None = None) -> tuple[int, ...] | None:
    """`axes` as whole numbers, or names of a system's numbers, one for each of `count`, none twice."""
    if axes is None:
        return None
    chosen = check_array("axes", axes, "[K]")
    count = len(chosen) if count is None else count
    different = len(set(chosen.tolist())) == len(chosen) == count
    if not different or not (chosen.dtype.kind == "U" or (chosen.dtype.kind in "iu" and chosen.min() >= 0)):
        rule = f"{count} different whole numbers from 0 on, or names"
        raise InvalidInput(f"axes must be {rule}, got {axes!r}")
    return tuple(chosen.tolist())


def parse_limit(text: str) -> tuple[str, float, bool]:
    """Name, bound, and whether it is an upper one, of a text such as "speed <= 3.2"."""
    found = re.fullmatch(r"\s*(.+?)\s*(<=|>=)\s*(\S+)\s*", text)
    try:
        bound = float(found[3]) if found else np.nan
    except ValueError:
        bound = np.nan
    if found is None or not np.isfinite(bound):
        raise InvalidInput(f"a limit must be NAME<=NUMBER or NAME>=NUMBER, got {text!r}")
    return found[1], bound, found[2] == "<="


def number_axes(limit: Any, names: Sequence[str]) -> Any:
    """The limit with its named axes as places among `names`; refused if one is not there.

    A text such as "speed <= 3.2" or "height >= 1" is a limit on one number of the state.

    >>> number_axes(KeepOutBall("rock", [2, 0], 0.5, axes=("x", "y")), ("x", "y", "speed")).axes
    (0, 1)
    >>> number_axes("speed <= 3.2", ("x", "speed"))
    HalfSpace(name='speed <= 3.2', normal=array([0., 1.]), bound=3.2, steps=None)
    """
    if isinstance(limit, str):
        name, bound, upper = parse_limit(limit)
        if name not in names:
            rule = f"NAME<=NUMBER or NAME>=NUMBER, with a name of {', '.join(names)}"
            raise InvalidInput(f"a limit that is a text must be {rule}, got {limit!r}")
        sign = 1.0 if upper else -1.0
        words = f"{name} {'<=' if upper else '>='} {bound:g}"
        return HalfSpace(words, sign * np.eye(len(names))[list(names).index(name)], sign * bound)
    axes = getattr(limit, "axes", None) or ()
    if not any(isinstance(axis, str) for axis in axes):
        return limit
    if missing := [axis for axis in axes if axis not in names]:
        known = ", ".join(names)
        raise InvalidInput(
            f"the limit {limit.name!r} reads {missing[0]!r}, which the system has not: {known}"
        )
    return replace(limit, axes=tuple(names.index(axis) for axis in axes))


def _fix(limit: Any, **fields: Any) -> None:
    """Set the checked fields of a frozen dataclass."""
    for name, value in fields.items():
        object.__setattr__(limit, name, value)


def _within(axes: Axes, count: int | None, dims: int) -> list[int]:
    if axes is None and count not in (None, dims):
        raise InvalidInput(f"the limit reads states of {count} numbers, got {dims}; name its axes")
    chosen: list[Any] = list(range(dims) if axes is None else axes)
    if any(isinstance(axis, str) for axis in chosen):
        raise InvalidInput(f"axes must be numbers where no system says what they are called, got {chosen}")
    if max(chosen) >= dims:
        raise InvalidInput(f"the limit reads number {max(chosen)} of the state, got states of {dims}")
    return chosen


class KeepOutBox(BoxLimit):
    """Not lower < x < upper on all the given numbers at once; see `BoxLimit` for the fields.

    The distance is Chebyshev's, which does not mix units. For box tubes it is exact; below 0 it is the least
    move along one number that frees the tube. For ellipsoids it is a lower bound: the better of their
    bounding box and the half-space that separates the box from their centre.
    """

    def _margin(self, tube: TubeLike) -> Array:
        low, high = tube_ends(tube, self.axes, len(self.lower))
        xp = array_namespace(low)
        lower, upper = convert_like(low, self.lower), convert_like(low, self.upper)
        gap = xp.max(xp.maximum(low - upper, lower - high), axis=-1)
        region = _ellipsoids(tube)
        if region is not None:
            center = select_axes(region.center, self.axes, len(self.lower))
            way = xp.minimum(xp.maximum(center, lower), upper) - center
            # Along a direction of absolute sum 1 a gap is at most Chebyshev's distance.
            gap = _better(gap, region, way, self.axes, lambda way: xp.sum(xp.abs(way), axis=-1), 0.0)
        return gap

    def _outside(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        seen = select_axes(states, self.axes, len(self.lower))
        return np.asarray(((self.lower < seen) & (seen < self.upper)).all(axis=-1))

    def words(self, margin: float) -> str:
        return f"may be entered, by up to {-margin:.2g}"


@dataclass(frozen=True, eq=False)
class KeepOutBall(_Stepped):
    """Not |x - center| < radius, on the given numbers of the state.

    center: `[K]`
    axes: `[K]` which numbers of the state, or their names in a system; None for all of them

    The distance is Euclid's. For box tubes it is exact (below 0: how deep the nearest point of the tube lies
    in the ball). For ellipsoids it is a lower bound: the better of their bounding box and the half-space
    across the line between the centres.
    """

    name: str
    center: NDArray[np.float64]
    radius: float
    axes: Axes = None
    steps: Steps = None

    def __post_init__(self) -> None:
        center = check_numbers("center", self.center, "[K]", finite=True).astype(np.float64)
        _fix(self, center=center, radius=check_number("radius", self.radius))
        if not 0 < self.radius < np.inf:
            raise InvalidInput(f"radius must be finite and above 0, got {self.radius}")
        _fix(self, axes=check_axes(self.axes, len(center)))

    def _margin(self, tube: TubeLike) -> Array:
        low, high = tube_ends(tube, self.axes, len(self.center))
        xp = array_namespace(low)
        center = convert_like(low, self.center)
        away = xp.maximum(xp.maximum(low - center, center - high), xp.zeros_like(low))
        gap = norm(away) - self.radius
        region = _ellipsoids(tube)
        if region is not None:
            way = center - select_axes(region.center, self.axes, len(self.center))
            gap = _better(gap, region, way, self.axes, norm, self.radius)
        return gap

    def _outside(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        away = select_axes(states, self.axes, len(self.center)) - self.center
        return np.asarray(~(norm(away) >= self.radius))

    def words(self, margin: float) -> str:
        return f"may be entered, {-margin:.2g} deep"


def _ellipsoids(tube: TubeLike) -> Ellipsoids | None:
    """The tube's ellipsoids in doubles, or None if it is made of something else."""
    region = getattr(tube, "region", None)
    if not isinstance(region, Ellipsoids):
        return None
    return Ellipsoids(region.forecast.wide(), to_float64(region.radius2))


def _better(
    gap: Array,
    region: Ellipsoids,
    way: Array,
    axes: Any,
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


@dataclass(frozen=True, eq=False)
class FeatureLimit(_Stepped):
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
    axes: Axes = None
    bounds: Callable[[Any, Any], tuple[Any, Any]] | None = None
    lipschitz: float | None = None
    gradient: Callable[[Any], Any] | None = None
    curvature: float | None = None
    steps: Steps = None

    def __post_init__(self) -> None:
        _fix(self, lower=check_number("lower", self.lower), upper=check_number("upper", self.upper))
        if not self.lower < self.upper or not np.isfinite([self.lower, self.upper]).any():
            raise InvalidInput(
                f"lower must be below upper, one of them finite, got {self.lower}, {self.upper}"
            )
        for name in ("lipschitz", "curvature"):
            if (given := getattr(self, name)) is not None:
                _fix(self, **{name: check_number(name, given)})
                if not 0 <= getattr(self, name) < np.inf:
                    raise InvalidInput(f"{name} must be finite and at least 0, got {given}")
        if (self.gradient is None) != (self.curvature is None):
            raise InvalidInput("gradient and curvature must be given together: one proves nothing alone")
        _fix(self, axes=check_axes(self.axes))

    def _margin(self, tube: TubeLike) -> Array:
        low, high = self._interval(tube)
        xp = array_namespace(low)
        gaps = [low - self.lower] if np.isfinite(self.lower) else []
        gaps += [self.upper - high] if np.isfinite(self.upper) else []
        margin = gaps[0] if len(gaps) == 1 else xp.minimum(*gaps)
        known = (low <= high) & (low < np.inf) & (high > -np.inf)  # an overflow proves nothing
        return xp.where(known, margin, convert_like(margin, np.nan))

    def _outside(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        value = self._value(select_axes(states, self.axes))
        return np.asarray(~((self.lower <= value) & (value <= self.upper)))

    def words(self, margin: float) -> str:
        return f"may leave [{self.lower:.4g}, {self.upper:.4g}] by {-margin:.2g}"

    def _interval(self, tube: TubeLike) -> tuple[Array, Array]:
        """`[B, H]` two ends between which g stays in the tube."""
        features = features_of(tube)
        if features is not None and self.name in features.names:
            row = features.matrix[features.names.index(self.name)]
            states = np.random.default_rng(0).normal(size=(4, len(row))) * [[1e-3], [1.0], [1e2], [1e4]]
            apart = abs(self._value(select_axes(states, self.axes)) - states @ row)
            if not (apart <= 1e-6 * (abs(states) @ abs(row))).all():
                raise InvalidInput(
                    f"the tube's feature {self.name!r} must be this limit's, got another function"
                )
            lower, _ = corners(tube)
            return self._two("interval", tube.interval(self.name), lower)  # type: ignore[attr-defined]
        if self.bounds is None and self.lipschitz is None and self.gradient is None:
            raise InvalidInput(
                f"the feature {self.name!r} has neither bounds, lipschitz nor gradient with curvature, so "
                "nothing can be proved of it in this tube; give one of them, or calibrate a tube of shape "
                f"'features' with LinearFeatures(({self.name!r},), matrix), which is read directly"
            )
        lower, upper = tube_ends(tube, self.axes)
        proofs = [] if self.bounds is None else [self._two("bounds", self.bounds(lower, upper), lower)]
        proofs += self._around((lower + upper) / 2, (upper - lower) / 2)
        low, high = proofs[0]
        xp = array_namespace(lower)
        for other in proofs[1:]:
            low, high = xp.maximum(low, other[0]), xp.minimum(high, other[1])
        unknown = xp.any(xp.isnan(lower), axis=-1)  # what the functions make of an empty tube does not count
        return xp.where(unknown, convert_like(low, np.nan), low), high

    def _around(self, center: Array, widths: Array) -> list[tuple[Array, Array]]:
        """What the constants prove for a box with this centre and these half-widths `[B, H, K]`."""
        xp, radius, reaches = array_namespace(center), norm(widths), []
        if self.lipschitz is not None:
            reaches.append(self.lipschitz * radius)
        if self.gradient is not None and self.curvature is not None:
            shape = tuple(center.shape)
            slope = xp.abs(check_returned(f"gradient of {self.name!r}", self.gradient(center), shape, center))
            # The square of a tiny radius would underflow before it meets a large curvature.
            reaches.append(xp.sum(slope * widths, axis=-1) + self.curvature / 2 * radius * radius)
        value = self._value(center) if reaches else None
        return [(value - reach, value + reach) for reach in reaches]

    def _value(self, states: Array) -> Array:
        """`[...]` g at states `[..., K]`."""
        return check_returned(f"value of {self.name!r}", self.value(states), tuple(states.shape[:-1]), states)

    def _two(self, what: str, ends: Any, lower: Array) -> tuple[Array, Array]:
        """The two ends `[B, H]` that a function returned for a tube with corners `lower` `[B, H, D]`."""
        name, shape = f"{what} of {self.name!r}", tuple(lower.shape[:-1])
        if len(ends) != 2:
            raise InvalidInput(f"{name} must be two ends, a lower and an upper one, got {len(ends)}")
        return check_returned(name, ends[0], shape, lower), check_returned(name, ends[1], shape, lower)
