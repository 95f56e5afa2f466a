"""The two kinds of sets: of labels; of vectors and trajectories, with an ellipsoid or a box a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, TypeAlias

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from pac_core.arrays import (
    Array,
    Floats,
    check_array,
    check_labels,
    check_number,
    check_numbers,
    check_returned,
    convert_like,
)
from pac_core.errors import InvalidInput
from pac_core.forecasts import EXACT_TO, GaussianForecast, LogitForecast, check_forecast, truth_for_sets
from pac_core.scores import gaussian_nll, label_nll, volume_term
from pac_core.thresholds import GroupThreshold, Threshold


def threshold_value(threshold: Threshold | float) -> float:
    """T as a number, from a `Threshold` or a bare number."""
    if isinstance(threshold, GroupThreshold):
        raise InvalidInput("threshold must be one number, got one for each group: use Predictor.sets")
    value = threshold.value if isinstance(threshold, Threshold) else threshold
    return check_number("threshold", value)


def widen(limit: float, *, least: float = 1e-290) -> float:
    """T enlarged by a billionth, so that another library's last bit never decides at a tie."""
    return limit + 1e-9 * max(abs(limit), least) if np.isfinite(limit) else limit


def widen_for_labels(threshold: Threshold | float, *, moves: int = 1) -> float:
    """T of label sets, widened so that the promise holds on a CPU other than the calibrating one.

    If every score is within b = `moves` * `EXACT_TO` of its exact value, T of the exact scores is at most
    T + b, and a new label whose exact score is at most that scores at most T + 2 b on any CPU.
    """
    return widen(threshold_value(threshold), least=1.0) + 2 * moves * EXACT_TO


@dataclass(frozen=True, eq=False)
class LabelSets:
    """`member` `[N, K]` bool: the labels in each set."""

    member: NDArray[np.bool_]
    size_in: ClassVar[str] = "labels"

    def contains(self, labels: Any) -> NDArray[np.bool_]:
        """`[N]` whether each set contains its label."""
        chosen = check_labels("labels", labels, *self.member.shape)
        return self.member[np.arange(len(chosen)), chosen]

    def size(self) -> NDArray[np.int64]:
        """`[N]` the number of labels in each set."""
        return np.asarray(np.count_nonzero(self.member, axis=1))

    def labels(self) -> list[list[int]]:
        """The labels of each set."""
        return [np.flatnonzero(row).tolist() for row in self.member]

    @property
    def empty(self) -> NDArray[np.bool_]:
        """`[N]` whether a set contains no label."""
        return np.asarray(~self.member.any(axis=1))


def label_sets(forecast: LogitForecast, threshold: Threshold | float) -> LabelSets:
    """The labels whose score is at most T, for each input: C_T(x) of the paper.

    Membership agrees with `nll(forecast, y) <= widen_for_labels(T)` to the last bit: logits are compared with
    the smallest one whose score passes. Appendix A.1 of the paper: no threshold gives the sets {} and {0, 1}
    of the forecasts (1/3, 1/3, 1/3) and (3/4, 1/4, 0); a temperature near 0 makes the second (1/2, 1/2, 0).

    >>> import math
    >>> two = LogitForecast.from_probabilities(np.array([[1/3, 1/3, 1/3], [3/4, 1/4, 0.0]]))
    >>> target = [[False, False, False], [True, True, False]]
    >>> any(label_sets(two, T).member.tolist() == target for T in np.linspace(0.0, 5.0, 1001).tolist())
    False
    >>> label_sets(two.tempered(1e-3), -math.log(2/5)).member.tolist() == target
    True
    """
    limit = widen_for_labels(threshold)
    logits, (shift, log) = check_forecast(forecast, LogitForecast).logits, forecast.normaliser

    def inside(least: Any) -> Any:
        return label_nll(forecast, least) <= limit

    with np.errstate(over="ignore", invalid="ignore"):
        near = ((shift + (log - limit)) / forecast.tau).astype(logits.dtype)
        below, above = (np.nextafter(near, logits.dtype.type(side)) for side in (-np.inf, np.inf))
        least = np.where(inside(below), below, np.where(inside(near), near, above))
        sure = inside(least) & ~inside(np.nextafter(least, logits.dtype.type(-np.inf)))
    member: NDArray[np.bool_] = logits >= least[:, None]
    for row in np.flatnonzero(~sure):  # rounding hides the limit: compare every label's score
        member[row] = log[row] + (shift[row] - forecast.tau * logits[row].astype(np.float64)) <= limit
    return LabelSets(member)


@dataclass(frozen=True, eq=False)
class Ellipsoids:
    """Ellipsoids {x : Mahalanobis^2(x) <= radius2 `[...]`} around means; empty unless radius2 >= 0."""

    forecast: GaussianForecast
    radius2: Array

    @property
    def empty(self) -> Array:
        """`[...]` whether the set holds nothing."""
        return ~(self.radius2 >= 0)

    @property
    def center(self) -> Array:
        return self.forecast.mean

    @cached_property
    def radius(self) -> Array:
        """`[...]`, NaN where empty."""
        xp = array_namespace(self.radius2)
        return xp.sqrt(xp.where(self.empty, convert_like(self.radius2, np.nan), self.radius2))

    def half_widths(self) -> Array:
        """`[..., D]` from the centre to the faces of the bounding box."""
        xp = array_namespace(self.radius2)
        return self.radius[..., None] * xp.sqrt(self.forecast.variances)

    def support(self, direction: NDArray[np.float64]) -> Array:
        """`[...]` the largest value of `direction . x` over the set; `direction` is `[D]`."""
        xp = array_namespace(self.radius2)
        length = float(abs(direction).max()) or 1.0
        unit = direction / length  # avoids squares of tiny and huge numbers
        if self.forecast.full:
            spread2 = self.forecast.spread2(convert_like(self.center, unit))
        else:
            spread2 = _dot(self.forecast.var, unit, unit)
        return _dot(self.center, direction) + length * (self.radius * xp.sqrt(spread2))

    def spread(self, directions: Array, axes: Sequence[int] | None = None) -> Array:
        """`[...]` how far each set reaches from its centre along a direction `[..., K]` in `axes`."""
        xp = array_namespace(self.radius2)
        var = self.forecast.var
        if axes is not None:
            var = var[..., list(axes)]
            var = var[..., list(axes), :] if self.forecast.full else var
        return self.radius * xp.sqrt(GaussianForecast(directions, var).spread2(directions))

    def corners(self) -> tuple[Array, Array]:
        """`[..., D]` lower and upper corner of the bounding box."""
        widths = self.half_widths()
        return self.center - widths, self.center + widths


@dataclass(frozen=True, eq=False)
class Boxes:
    """Axis-aligned boxes `[..., D]`; a side may be infinite (one-sided); NaN makes the box empty."""

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


Region: TypeAlias = Ellipsoids | Boxes
"""The geometry of a batch of sets `[...]` in D dimensions."""


def _dot(points: Array, direction: NDArray[np.float64], again: NDArray[np.float64] | None = None) -> Array:
    """`[...]` points `[..., D]` along a direction (times another); infinity times 0 is 0."""
    total = array_namespace(points).zeros_like(points[..., 0])
    for i in np.flatnonzero(direction).tolist():
        term = float(direction[i]) * points[..., i]
        total = total + (term if again is None else float(again[i]) * term)
    return total


@dataclass(frozen=True, eq=False)
class ConfidenceSets:
    """One set per unit, with one region per step if it is a tube.

    region: geometry with batch shape `[B]`, or `[B, H]` for a tube
    score, limit: `contains` is score(truth) `[B]` <= limit, a number or `[B]`, as promised. For the
        paper's `joint` shape a truth may be in every region, a projection, and still outside
    sound: `[B]` whether the forecast is Gaussian; if not, the set is empty
    shape: of the truth, `[B, D]` or `[B, H, D]`
    """

    region: Region
    score: Callable[[Array], Array]
    limit: Any
    sound: Array
    shape: tuple[int, ...]
    size_in: ClassVar[str] = "half-diagonal of the bounding box"

    def contains(self, truth: Any) -> Array:
        """`[B]` whether each set contains its truth; NaN and infinity are never contained."""
        states = truth_for_sets(truth, self.region.center, self.shape)
        score = check_returned("the score of a set", self.score(states), self.shape[:1], states)
        return (score <= self.limit) & (score < np.inf) & ~self.empty

    @cached_property
    def empty(self) -> Array:
        """`[B]` whether the set is empty; a tube is empty if it is empty at any step."""
        xp = array_namespace(self.region.center)
        steps = self.region.empty
        return ~self.sound | (xp.any(steps, axis=-1) if steps.ndim == 2 else steps)

    def support(self, direction: Any) -> Array:
        """`[B]` or `[B, H]` the largest value of `direction . x` over the set; NaN where empty."""
        dims = self.region.center.shape[-1]
        here = check_numbers("direction", direction, "[D]", finite=True).astype(np.float64)
        if here.shape != (dims,):
            raise InvalidInput(f"direction must have shape [{dims}], got {here.shape}")
        return self._if_empty(self.region.support(here), np.nan)

    def box(self) -> tuple[Array, Array]:
        """Lower and upper corners `[..., D]` of the bounding boxes; NaN where empty."""
        lower, upper = self.region.corners()
        return self._if_empty(lower, np.nan), self._if_empty(upper, np.nan)

    def size(self) -> Array:
        """`[B]` the paper's size ||Lambda||_F, the half-diagonal of the box, averaged over steps."""
        return self._mean_over_steps(self.step_size())

    def step_size(self) -> Array:
        """`[B]` or `[B, H]` the size at each step."""
        xp = array_namespace(self.region.center)
        return self._if_empty(xp.sqrt(xp.sum(self.region.half_widths() ** 2, axis=-1)), 0.0)

    def normalised_size(self, scale: Any) -> Array:
        """`[B]` root-mean-square half-width in units of `scale` `[D]` (the tune deviations)."""
        xp = array_namespace(self.region.center)
        widths = self.region.half_widths()
        unit = check_array("scale", scale, "[D]")
        if unit.shape != widths.shape[-1:] or unit.dtype.kind not in "fiu":
            raise InvalidInput(f"scale must be {widths.shape[-1]} numbers, got {unit!r}")
        widths = widths / convert_like(widths, unit)
        return self._mean_over_steps(self._if_empty(xp.sqrt(xp.mean(widths**2, axis=-1)), 0.0))

    def _if_empty(self, values: Array, instead: float) -> Array:
        xp = array_namespace(values)
        empty = xp.reshape(self.empty, (-1,) + (1,) * (values.ndim - 1))
        return xp.where(empty, convert_like(values, instead), values)

    def _mean_over_steps(self, values: Array) -> Array:
        return array_namespace(values).mean(values, axis=-1) if values.ndim == 2 else values


def join_sets(parts: Sequence[tuple[NDArray[np.int64], Any]]) -> Any:
    """Sets of some units each as sets of all, in their order: rows `[n]` among all units, and sets."""
    order, first = np.argsort(np.concatenate([rows for rows, _ in parts])), parts[0][1]

    def join(values: list[Any]) -> Any:
        if is_dataclass(one := values[0]):
            names = [field.name for field in fields(one)]
            return replace(one, **{name: join([getattr(part, name) for part in values]) for name in names})  # type: ignore[type-var]
        return None if any(v is None for v in values) else array_namespace(*values).concat(values)[order]

    if isinstance(first, LabelSets):
        return join([sets for _, sets in parts])
    made: dict[str, Any] = {name: join([getattr(s, name) for _, s in parts]) for name in ("region", "sound")}
    limits = np.concatenate([np.full(len(rows), sets.limit) for rows, sets in parts])[order]
    made["limit"], made["shape"] = convert_like(made["region"].center, limits), (len(order), *first.shape[1:])
    return replace(first, score=lambda states: join([s.score(states[rows]) for rows, s in parts]), **made)


def gaussian_sets(
    forecast: GaussianForecast, threshold: Threshold | float, *, sound: Array = None
) -> ConfidenceSets:
    """The ellipsoids of density at least e^-T: intervals for D = 1, a tube for a horizon.

    For a horizon the region of step t is the projection of one ellipsoid in H * D dimensions: all steps share
    the radius^2 = 2 T - H D ln(2 pi) - sum_t ln det Sigma_t. `sound` `[B]` marks further sets as empty.

    >>> import math
    >>> forecast = GaussianForecast(np.zeros((1, 1)), np.ones((1, 1)))
    >>> T = 0.5 * (4 + math.log(2 * math.pi))     # the density at two standard deviations
    >>> lower, upper = gaussian_sets(forecast, T).box()
    >>> round(lower.item(), 6), round(upper.item(), 6)
    (-2.0, 2.0)
    """
    forecast, usable = check_forecast(forecast, GaussianForecast).for_sets()
    limit = widen(threshold_value(threshold), least=1.0)
    xp = array_namespace(forecast.mean)
    volume = volume_term(forecast)
    if volume.ndim == 2:
        volume = xp.sum(volume, axis=-1, keepdims=True) + xp.zeros_like(volume)
    region = Ellipsoids(forecast, 2 * limit - volume)
    sound = usable if sound is None else sound & usable
    return ConfidenceSets(region, partial(gaussian_nll, forecast), limit, sound, tuple(forecast.mean.shape))


def deviation(states: Floats) -> Floats:
    """`[D]` standard deviation of each dimension over units and the steps they lived."""
    return np.asarray(np.nanstd(states, axis=(0, 1)))


def relative_widths(half_widths: Floats, states: Floats) -> Floats:
    """`[D]` mean half-widths `[B, H, D]` in deviations of the states; 0 where those are constant."""
    scale = deviation(np.where(np.isinf(states), np.nan, states))
    widths = half_widths.mean(axis=(0, 1))
    return np.asarray(np.divide(widths, scale, out=np.zeros_like(widths), where=scale > 0))


def width_remarks(widths: Floats, names: Sequence[str] | None = None) -> list[str]:
    """What to say about a tube with these half-widths `[D]`, in deviations of the tune states.

    >>> width_remarks(np.array([0.5, 2.0]))
    ['this tube is wider than the states vary: the mean half-width of 1 of 2 numbers is above the deviation \
of the tune states, most of number 1: 2 times']
    """
    wide, worst = int((widths > 1).sum()), int(np.argmax(widths))
    if not wide:
        return []
    return [
        f"this tube is wider than the states vary: the mean half-width of {wide} of {len(widths)} numbers is "
        f"above the deviation of the tune states, most of {names[worst] if names else f'number {worst}'}: "
        f"{widths[worst]:.2g} times"
    ]
