"""Limits that a state must keep, and how far a tube keeps them: half-spaces and boxes to stay in.

A margin is at least 0 only where every state of the tube keeps the limit; NaN means that nothing is known.
Obstacles are in `obstacles`, limits on functions of the state in `feature_limits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from pac_core.arrays import Array, doubles, like, number, numbers, plain, returned
from pac_core.errors import InvalidInput
from pac_core.features import LinearFeatures

Steps: TypeAlias = slice | Sequence[int] | None
"""The steps at which a limit holds, from 0 as in `states[:, steps]`; None for all."""


class TubeLike(Protocol):
    """What limits need of a tube of B plans x H steps; anything with these methods can be checked.

    Margins are computed in doubles. A tube that also has `features` (`LinearFeatures`) and `interval(name)`
    knows only those numbers of the state: its box is theirs.
    """

    def support(self, direction: Any) -> Array:
        """`[B, H]` the largest value of `direction . x` over the tube; NaN where it is empty."""

    def box(self) -> tuple[Array, Array]:
        """`[B, H, D]` lower and upper corners of the bounding boxes; NaN where empty."""


class Limit(Protocol):
    """Something that a state must keep.

    `margin` is at least 0 where every state of the tube keeps it; NaN where nothing is known. A limit may
    also have `words(margin)`, which explains a negative margin in reports.
    """

    @property
    def name(self) -> str: ...

    def margin(self, tube: TubeLike) -> Array:
        """`[B, H]` how far the tube stays inside: exact, or a proven lower bound."""

    def violated(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        """`[..., H]` whether true states `[..., H, D]` violate it."""


@dataclass(frozen=True, eq=False)
class HalfSpace:
    """normal . x <= bound. The margin is exact: the bound minus the largest value in the tube.

    normal: `[D]`

    >>> from pac_core import GaussianForecast, gaussian_sets
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
        normal = numbers("normal", self.normal, "[D]", finite=True)
        object.__setattr__(self, "bound", number("bound", self.bound))
        if not normal.any() or not np.isfinite(self.bound):
            raise InvalidInput(f"normal must not be all 0 and bound be finite, got {normal}, {self.bound}")
        if not 1e-300 <= abs(normal).max() <= 1e300:  # products with it would vanish or overflow
            raise InvalidInput(
                f"the largest entry of normal must lie between 1e-300 and 1e300, got {normal}; divide normal "
                "and bound by it"
            )
        object.__setattr__(self, "normal", normal.astype(np.float64))

    def margin(self, tube: TubeLike) -> Array:
        return at_steps(self.name, self.steps, self.bound - attained(doubles(tube.support(self.normal))))

    def violated(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        seen = some_axes(states, None, len(self.normal))
        with np.errstate(invalid="ignore"):
            return broken(states, self.steps, ~(seen @ self.normal <= self.bound))

    def words(self, margin: float) -> str:
        return f"may reach {self.bound - margin:.4g}, {-margin:.2g} above {self.bound:.4g}"


@dataclass(frozen=True, eq=False)
class BoxLimit:
    """A box in some of the state's numbers.

    lower, upper: `[K]`; a side may be infinite
    axes: `[K]` which numbers of the state; None for all of them
    """

    name: str
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    axes: Sequence[int] | None = None
    steps: Steps = None

    def __post_init__(self) -> None:
        lower, upper = box_of(self.lower, self.upper)
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        object.__setattr__(self, "axes", axes_of(self.axes, len(lower)))


class StayIn(BoxLimit):
    """lower <= x <= upper on some of the state's numbers; see `BoxLimit` for the fields.

    The margin is exact: the distance to the nearest side, each number in its own unit.
    """

    def margin(self, tube: TubeLike) -> Array:
        lower, upper = sides(tube, self.axes, len(self.lower))
        xp = array_namespace(lower)
        below, above = np.flatnonzero(np.isfinite(self.lower)), np.flatnonzero(np.isfinite(self.upper))
        gaps = [lower[..., i] - float(self.lower[i]) for i in below.tolist()]
        gaps += [float(self.upper[i]) - upper[..., i] for i in above.tolist()]
        return at_steps(self.name, self.steps, xp.min(xp.stack(gaps, axis=-1), axis=-1))

    def violated(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        seen = some_axes(states, self.axes, len(self.lower))
        return broken(states, self.steps, ~((self.lower <= seen) & (seen <= self.upper)).all(axis=-1))

    def words(self, margin: float) -> str:
        return f"may leave its box by {-margin:.2g}"


def sides(tube: TubeLike, axes: Sequence[int] | None, count: int | None = None) -> tuple[Array, Array]:
    """`[B, H, K]` lower and upper ends of the tube along some numbers of the state; NaN where it is empty.

    axes: which numbers, or None for all, of which there must be `count`
    """
    features = features_of(tube)
    if features is not None:
        # Its box is that of the features; of the state it knows only directions that are features.
        dims = features.matrix.shape[1]
        rows = np.eye(dims)[_within(axes, count, dims)]
        ends = [(-doubles(tube.support(-row)), doubles(tube.support(row))) for row in rows]
        xp = array_namespace(ends[0][0])
        lower, upper = (xp.stack(list(end), axis=-1) for end in zip(*ends, strict=True))
    else:
        lower, upper = corners(tube)
        chosen = _within(axes, count, int(lower.shape[-1]))
        xp = array_namespace(lower)
        if axes is not None:
            lower, upper = (xp.stack([end[..., i] for i in chosen], axis=-1) for end in (lower, upper))
    empty = empty_at(lower, upper)[..., None]
    unknown = like(lower, np.nan)
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
    lower, upper = (returned("each corner of a tube's box", end, shape, ends[0]) for end in ends)
    return lower, upper


def features_of(tube: TubeLike) -> LinearFeatures | None:
    """The features that are all the tube knows of the state, or None."""
    features = getattr(tube, "features", None)
    return features if isinstance(features, LinearFeatures) else None


def empty_at(lower: Array, upper: Array) -> Array:
    """`[B, H]` where a tube with these corners `[B, H, D]` is empty: inverted, at infinity or NaN."""
    xp = array_namespace(lower)
    return ~xp.all((lower <= upper) & (lower < np.inf) & (upper > -np.inf), axis=-1)


def attained(support: Array) -> Array:
    """`support`, with NaN for -inf: the tube is empty there, or its forecast diverged."""
    xp = array_namespace(support)
    return xp.where(support > -np.inf, support, like(support, np.nan))


def at_steps(name: str, steps: Steps, margin: Array) -> Array:
    """`margin` `[B, H]` where the limit holds, +inf at the other steps; NaN stays NaN."""
    if margin.ndim != 2:
        raise InvalidInput(f"a tube of plans x steps is checked, got one of shape {tuple(margin.shape)}")
    if steps is None:
        return margin
    xp = array_namespace(margin)
    holds = held(name, steps, int(margin.shape[1]))
    kept = xp.asarray(holds, device=margin.device) | xp.isnan(margin)
    return xp.where(kept, margin, like(margin, np.inf))


def held(name: str, steps: Steps, horizon: int) -> NDArray[np.bool_]:
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


def broken(states: NDArray[np.float64], steps: Steps, outside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`outside` `[..., H]` at the limit's steps, and True wherever a state is not finite."""
    if steps is not None:
        outside = outside & held("this limit", steps, states.shape[-2])
    return np.asarray(outside | ~np.isfinite(states).all(axis=-1))


def some_axes(states: Any, axes: Sequence[int] | None, count: int | None = None) -> Any:
    """`[..., K]` these numbers of `states` `[..., D]`."""
    chosen = _within(axes, count, int(states.shape[-1]))
    return states if axes is None else states[..., chosen]


def axes_of(axes: Any, count: int | None = None) -> tuple[int, ...] | None:
    """`axes` as whole numbers, one for each of `count`, none twice."""
    if axes is None:
        return None
    chosen = plain("axes", axes, "[K]")
    count = len(chosen) if count is None else count
    different = len(set(chosen.tolist())) == len(chosen) == count
    if chosen.dtype.kind not in "iu" or chosen.min() < 0 or not different:
        raise InvalidInput(f"axes must be {count} different whole numbers from 0 on, got {axes!r}")
    return tuple(chosen.tolist())


def box_of(lower: Any, upper: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The two ends of a box, `[K]`; sides may be infinite, but not all of them."""
    low, high = (plain(name, end, "[K]") for name, end in (("lower", lower), ("upper", upper)))
    if low.dtype.kind not in "fiu" or high.dtype.kind not in "fiu" or low.shape != high.shape:
        raise InvalidInput(f"lower and upper must be equally many numbers, got {low.shape} and {high.shape}")
    low, high = low.astype(np.float64), high.astype(np.float64)
    if not (low < high).all() or not np.isfinite([low, high]).any():
        raise InvalidInput(f"lower must be below upper, and one side finite, got {low} and {high}")
    return low, high


def _within(axes: Sequence[int] | None, count: int | None, dims: int) -> list[int]:
    if axes is None and count not in (None, dims):
        raise InvalidInput(f"the limit reads states of {count} numbers, got {dims}; name its axes")
    chosen = list(range(dims) if axes is None else axes)
    if max(chosen) >= dims:
        raise InvalidInput(f"the limit reads number {max(chosen)} of the state, got states of {dims}")
    return chosen
