"""Prediction sets: label sets, and confidence sets made of regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from pac_core.arrays import Array, labels_for, like, number, numbers, plain, returned
from pac_core.errors import InvalidInput
from pac_core.forecasts import GaussianForecast, LogitForecast, a_forecast
from pac_core.normalisers import EXACT_TO
from pac_core.regions import Ellipsoids, Region
from pac_core.scores import gaussian_nll, label_nll, volume_term
from pac_core.thresholds import Threshold
from pac_core.truths import a_truth


def limit_of(threshold: Threshold | float) -> float:
    """T as a number, from a `Threshold` or a bare number."""
    value = threshold.value if isinstance(threshold, Threshold) else threshold
    return number("threshold", value)


def widened(limit: float, *, least: float = 1e-290) -> float:
    """T enlarged by a billionth, so that another library's last bit never decides at a tie.

    T = 0 becomes positive, because a square that underflowed is not 0.
    """
    return limit + 1e-9 * max(abs(limit), least) if np.isfinite(limit) else limit


def label_limit(threshold: Threshold | float, *, moves: int = 1) -> float:
    """T of label sets, widened so that the promise holds on a CPU other than the calibrating one.

    moves: how many times `EXACT_TO` a score may be off if its normalisers are off by `EXACT_TO`

    If every score is within b of its exact value, T of the exact scores is at most T + b, and a new label
    whose exact score is at most that scores at most T + 2 b, whichever CPU computed which. The same covers
    another precision of the same logits.
    """
    return widened(limit_of(threshold), least=1.0) + 2 * moves * EXACT_TO


@dataclass(frozen=True, eq=False)
class LabelSets:
    """`member` `[N, K]` bool: the labels in each set."""

    member: NDArray[np.bool_]
    size_in: ClassVar[str] = "labels"

    def contains(self, labels: Any) -> NDArray[np.bool_]:
        """`[N]` whether each set contains its label."""
        chosen = labels_for("labels", labels, *self.member.shape)
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

    T is widened by 2e-5 (see `label_limit`). Membership agrees with `nll(forecast, y) <= label_limit(T)` to
    the last bit: each row's limit is moved to the smallest logit whose score passes, and logits are compared
    with it.

    Appendix A.1 of the paper: of the forecasts (1/3, 1/3, 1/3) and (3/4, 1/4, 0), no threshold gives the sets
    {} and {0, 1}; a temperature near 0 turns the second into (1/2, 1/2, 0).

    >>> import math
    >>> two = LogitForecast.from_probabilities(np.array([[1/3, 1/3, 1/3], [3/4, 1/4, 0.0]]))
    >>> target = [[False, False, False], [True, True, False]]
    >>> any(label_sets(two, T).member.tolist() == target for T in np.linspace(0.0, 5.0, 1001).tolist())
    False
    >>> label_sets(two.tempered(1e-3), -math.log(2/5)).member.tolist() == target
    True
    """
    limit = label_limit(threshold)
    logits, (shift, log) = a_forecast(forecast, LogitForecast).logits, forecast.normaliser

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
class ConfidenceSets:
    """One set per unit, with one region per step if it is a tube.

    region: geometry with batch shape `[B]`, or `[B, H]` for a tube
    score: maps a truth to its score `[B]`
    limit: T, widened by a billionth

    `contains` is `score(truth) <= limit`, the event that the promise is about. For the paper's `joint` shape
    the regions are projections of one larger ellipsoid: a truth may be in every projection and still outside.
    """

    region: Region
    score: Callable[[Array], Array]
    limit: float
    sound: Array
    """`[B]` whether the forecast is Gaussian; if not, the set is empty"""
    shape: tuple[int, ...]
    """of the truth: `[B, D]` or `[B, H, D]`"""
    size_in: ClassVar[str] = "half-diagonal of the bounding box"

    def contains(self, truth: Any) -> Array:
        """`[B]` whether each set contains its truth; NaN and infinity are never contained."""
        states = a_truth(truth, self.region.center, self.shape)
        score = returned("the score of a set", self.score(states), self.shape[:1], states)
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
        here = numbers("direction", direction, "[D]", finite=True).astype(np.float64)
        if here.shape != (dims,):
            raise InvalidInput(f"direction must have shape [{dims}], got {here.shape}")
        return self._if_empty(self.region.support(here), np.nan)

    def box(self) -> tuple[Array, Array]:
        """Lower and upper corners `[..., D]` of the bounding boxes; NaN where empty."""
        lower, upper = self.region.corners()
        return self._if_empty(lower, np.nan), self._if_empty(upper, np.nan)

    def size(self) -> Array:
        """`[B]` the paper's size ||Lambda||_F, the half-diagonal of the bounding box; 0 where empty.

        Averaged over the steps of a tube.
        """
        return self._mean_over_steps(self.step_size())

    def step_size(self) -> Array:
        """`[B]` or `[B, H]` the size at each step."""
        xp = array_namespace(self.region.center)
        return self._if_empty(xp.sqrt(xp.sum(self.region.half_widths() ** 2, axis=-1)), 0.0)

    def normalised_size(self, scale: Any) -> Array:
        """`[B]` root-mean-square half-width in units of `scale` `[D]` (the tune deviations)."""
        xp = array_namespace(self.region.center)
        widths = self.region.half_widths()
        if (unit := plain("scale", scale, "[D]")).shape != widths.shape[-1:] or unit.dtype.kind not in "fiu":
            raise InvalidInput(f"scale must be {widths.shape[-1]} numbers, got {unit!r}")
        widths = widths / like(widths, unit)
        return self._mean_over_steps(self._if_empty(xp.sqrt(xp.mean(widths**2, axis=-1)), 0.0))

    def volume_root(self) -> Array:
        """`[B]` volume^(1/D), averaged over steps."""
        return self._mean_over_steps(self._if_empty(self.region.volume_root(), 0.0))

    def mean_width(self, directions: int = 256, seed: int = 0) -> Array:
        """`[B]` the mean of the full width over random directions, averaged over steps."""
        drawn = np.random.default_rng(seed).normal(size=(directions, self.region.center.shape[-1]))
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        total = sum(self.region.support(sign * row) for row in drawn for sign in (1, -1))
        return self._mean_over_steps(self._if_empty(total / directions, 0.0))

    def _if_empty(self, values: Array, instead: float) -> Array:
        xp = array_namespace(values)
        empty = xp.reshape(self.empty, (-1,) + (1,) * (values.ndim - 1))
        return xp.where(empty, like(values, instead), values)

    def _mean_over_steps(self, values: Array) -> Array:
        return array_namespace(values).mean(values, axis=-1) if values.ndim == 2 else values


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
    forecast, usable = a_forecast(forecast, GaussianForecast).for_sets()
    limit = widened(limit_of(threshold), least=1.0)
    xp = array_namespace(forecast.mean)
    volume = volume_term(forecast)
    if volume.ndim == 2:
        volume = xp.sum(volume, axis=-1, keepdims=True) + xp.zeros_like(volume)
    region = Ellipsoids(forecast, 2 * limit - volume)
    sound = usable if sound is None else sound & usable
    return ConfidenceSets(region, partial(gaussian_nll, forecast), limit, sound, tuple(forecast.mean.shape))
