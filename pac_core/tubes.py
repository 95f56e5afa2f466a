"""Trajectory tubes: four shapes, each a score fitted on the tune split, one threshold theorem.

Every shape keeps the same promise; they differ in how much room they waste. `joint` is the
paper's, `box` the smallest in all coordinates, `features` the smallest in the few that count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from array_api_compat import array_namespace

from pac_core import plugins
from pac_core.arrays import Array, Floats, like, numbers, up
from pac_core.bounds import Bound, PACLevel, max_errors
from pac_core.errors import InvalidInput, NotEnoughData
from pac_core.forecasts import GaussianForecast
from pac_core.predictors import Likelihood, Predictor, Score, accumulated, calibrate
from pac_core.sets import Boxes, ConfidenceSets, Ellipsoids, limit_of
from pac_core.temperatures import fit_temperature
from pac_core.thresholds import Threshold

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
SPREADS = (None, 0.9, 0.99, 1.0)
"""How a scale is read off the tune errors: root-mean-square (None), or this quantile."""

Shape = TypeVar("Shape", bound="MaxShape | BoxShape")


@dataclass(frozen=True, eq=False)
class MaxShape:
    """Score: the largest over t of Mahalanobis^2_t / c_t. Set: an ellipsoid of radius^2 T c_t per step.

    scale: `[H]` c_t
    accumulate: whether variances are summed over the steps so far
    """

    kind: ClassVar[str] = "max"
    scale: Floats
    accumulate: bool

    @classmethod
    def fit(cls, forecast: GaussianForecast, states: Any, level: PACLevel) -> MaxShape:
        """The candidate that is smallest on the half of the tune split it was not fitted on."""
        fits = [
            partial(cls._fit_one, accumulate=accumulate, spread=spread)
            for accumulate in (False, True)
            for spread in SPREADS
        ]
        return choose(fits, forecast, states, level)

    @classmethod
    def _fit_one(cls, forecast: GaussianForecast, states: Any, *, accumulate: bool, spread: Any) -> MaxShape:
        distances = _variances(forecast, accumulate).mahalanobis2(states)
        return cls(_scale(np.sqrt(distances), spread, floor=1e-6) ** 2, accumulate)

    def scores(self, forecast: GaussianForecast, truth: Any) -> Array:
        return self._scores(forecast, forecast.check(truth))

    def _scores(self, forecast: GaussianForecast, truth: Array) -> Array:
        xp = array_namespace(forecast.mean)
        distances = _variances(forecast, self.accumulate).mahalanobis2(truth)
        return xp.max(distances / like(distances, self.scale), axis=-1)

    def sets(self, forecast: GaussianForecast, threshold: Threshold | float) -> ConfidenceSets:
        limit = up(limit_of(threshold), forecast.mean)
        prepared = _variances(forecast, self.accumulate)
        radius2 = limit * like(forecast.mean, self.scale) + 0 * forecast.mean[..., 0]
        return ConfidenceSets(
            Ellipsoids(prepared, radius2), lambda truth: self._scores(forecast, truth), limit
        )

    def to_json(self) -> dict[str, Any]:
        return {"scale": self.scale.tolist(), "accumulate": self.accumulate}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> MaxShape:
        scale = numbers("scale", parts["scale"], "[H]", finite=True)
        return cls(_above_zero(scale), bool(parts["accumulate"]))


@dataclass(frozen=True, eq=False)
class BoxShape:
    """Score: the largest over t and dimensions of |error| / (sigma^p c). Set: a box per step.

    scale: `[H, D]` c
    power: p, from 0 (the forecast's spread is ignored) to 1 (it is trusted)
    accumulate: whether variances are summed over the steps so far
    sides: `[D]` 0 for both, 1 where only an upper limit counts, -1 where only a lower one does
    """

    kind: ClassVar[str] = "box"
    scale: Floats
    power: float
    accumulate: bool
    sides: tuple[int, ...]

    @classmethod
    def fit(
        cls, forecast: GaussianForecast, states: Any, level: PACLevel, *, sides: Sequence[int] | None = None
    ) -> BoxShape:
        """The candidate that is smallest on the half of the tune split it was not fitted on."""
        dims = forecast.mean.shape[-1]
        sides = tuple(sides) if sides is not None else (0,) * dims
        if len(sides) != dims or not set(sides) <= {-1, 0, 1}:
            raise InvalidInput(f"sides must be {dims} of -1, 0 or 1, got {sides}")
        fits = [
            partial(cls._fit_one, power=power, accumulate=accumulate, spread=spread, sides=sides)
            for accumulate in (False, True)
            for power in POWERS
            for spread in SPREADS
            if power or not accumulate  # at p = 0 the variances do not count
        ]
        return choose(fits, forecast, states, level)

    @classmethod
    def _fit_one(
        cls,
        forecast: GaussianForecast,
        states: Any,
        *,
        power: float,
        accumulate: bool,
        spread: Any,
        sides: tuple[int, ...],
    ) -> BoxShape:
        units = _variances(forecast, accumulate).variances ** (power / 2)
        errors = _sided(states - forecast.mean, sides) / units
        floor = 1e-6 * np.maximum(_deviation(states), 1e-6) / units.mean(axis=0)
        return cls(_scale(np.maximum(errors, 0), spread, floor), power, accumulate, sides)

    def scores(self, forecast: GaussianForecast, truth: Any) -> Array:
        return self._scores(forecast, forecast.check(truth))

    def _scores(self, forecast: GaussianForecast, truth: Array) -> Array:
        xp = array_namespace(forecast.mean)
        relative = _sided(truth - forecast.mean, self.sides) / self._reach(forecast)
        worst = xp.max(relative, axis=(1, 2))
        failed = xp.any(xp.isinf(truth), axis=(1, 2))  # an error of -inf must not pass one side
        return xp.where(failed, like(worst, np.inf), worst)

    def sets(self, forecast: GaussianForecast, threshold: Threshold | float) -> ConfidenceSets:
        limit, region = self._boxes(forecast, threshold)
        return ConfidenceSets(region, lambda truth: self._scores(forecast, truth), limit)

    def _boxes(self, forecast: GaussianForecast, threshold: Threshold | float) -> tuple[float, Boxes]:
        limit = up(limit_of(threshold), forecast.mean)
        reach = limit * self._reach(forecast)
        sides = np.asarray(self.sides)
        open_below = like(reach, np.where(sides > 0, np.inf, 0.0))
        open_above = like(reach, np.where(sides < 0, np.inf, 0.0))
        return limit, Boxes(
            forecast.mean, forecast.mean - reach - open_below, forecast.mean + reach + open_above
        )

    def _reach(self, forecast: GaussianForecast) -> Array:
        """`[B, H, D]` how far a set of T = 1 reaches."""
        scale = like(forecast.mean, self.scale)
        if self.power == 0:
            return scale + 0 * forecast.mean
        return scale * _variances(forecast, self.accumulate).variances ** (self.power / 2)

    def to_json(self) -> dict[str, Any]:
        parts = {"scale": self.scale.tolist(), "power": self.power}
        return parts | {"accumulate": self.accumulate, "sides": list(self.sides)}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> BoxShape:
        scale = numbers("scale", parts["scale"], "[H, D]", finite=True)
        return cls(
            _above_zero(scale), float(parts["power"]), bool(parts["accumulate"]), tuple(parts["sides"])
        )


@dataclass(frozen=True, eq=False)
class LinearFeatures:
    """The few numbers that limits read: matrix @ state.

    names: F names, for reports and certificates
    matrix: `[F, D]`
    """

    names: tuple[str, ...]
    matrix: Floats

    def __post_init__(self) -> None:
        matrix = numbers("matrix", self.matrix, "[F, D]", finite=True)
        if len(self.names) != len(matrix) or not matrix.any(axis=1).all():
            raise InvalidInput(f"matrix must have one row, not all 0, for each of {self.names}")
        object.__setattr__(self, "matrix", matrix.astype(np.float64))
        object.__setattr__(self, "names", tuple(self.names))

    def of(self, states: Array) -> Array:
        """`[B, H, F]`; a failed unit (infinite state) has infinite features."""
        xp = array_namespace(states)
        matrix = like(states, self.matrix)
        failed = xp.any(xp.isinf(states), axis=-1, keepdims=True)
        features = xp.where(failed, xp.zeros_like(states), states) @ matrix.T
        return xp.where(failed, like(features, np.inf), features)

    def forecast(self, forecast: GaussianForecast) -> GaussianForecast:
        """The Gaussian of the features, each on its own."""
        xp = array_namespace(forecast.mean)
        matrix = like(forecast.mean, self.matrix)
        spreads = [forecast.spread2(matrix[i, :]) for i in range(len(self.names))]
        return GaussianForecast(forecast.mean @ matrix.T, xp.stack(spreads, axis=-1))


@dataclass(frozen=True, eq=False)
class FeatureTube(ConfidenceSets):
    """A tube of intervals, one per feature and step; it says nothing of other directions."""

    features: LinearFeatures

    def support(self, direction: Array) -> Array:
        """`[B, H]`; +inf along a direction that is not a multiple of a feature's."""
        wanted = np.asarray(direction, dtype=np.float64)
        for i, row in enumerate(self.features.matrix):
            factor = float(wanted @ row / (row @ row))
            if factor and np.allclose(factor * row, wanted, rtol=1e-12, atol=0):
                along = np.zeros(len(self.features.names))
                along[i] = factor
                return super().support(along)
        unknown = 0 * self.region.center[..., 0] + np.inf
        return array_namespace(unknown).where(self.region.empty, like(unknown, np.nan), unknown)

    def interval(self, name: str) -> tuple[Array, Array]:
        """Lower and upper ends `[B, H]` of the feature `name`."""
        if name not in self.features.names:
            raise InvalidInput(f"feature must be one of {self.features.names}, got {name!r}")
        lower, upper = self.box()
        i = self.features.names.index(name)
        return lower[..., i], upper[..., i]


@dataclass(frozen=True, eq=False)
class FeatureShape:
    """`box` on the features the limits read: far smaller, because there are few of them."""

    kind: ClassVar[str] = "features"
    features: LinearFeatures
    box: BoxShape

    @classmethod
    def fit(
        cls,
        forecast: GaussianForecast,
        states: Any,
        level: PACLevel,
        *,
        features: LinearFeatures | None = None,
        sides: Sequence[int] | None = None,
    ) -> FeatureShape:
        if features is None:
            raise InvalidInput("the shape 'features' needs features=LinearFeatures(names, matrix)")
        box = BoxShape.fit(features.forecast(forecast), features.of(states), level, sides=sides)
        return cls(features, box)

    def scores(self, forecast: GaussianForecast, truth: Any) -> Array:
        return self.box.scores(self.features.forecast(forecast), self.features.of(forecast.check(truth)))

    def sets(self, forecast: GaussianForecast, threshold: Threshold | float) -> FeatureTube:
        projected = self.features.forecast(forecast)
        limit, region = self.box._boxes(projected, threshold)
        score = lambda truth: self.box._scores(projected, self.features.of(truth))  # noqa: E731
        return FeatureTube(region, score, limit, self.features)

    def to_json(self) -> dict[str, Any]:
        names, matrix = list(self.features.names), self.features.matrix.tolist()
        return {"names": names, "matrix": matrix, "box": self.box.to_json()}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> FeatureShape:
        features = LinearFeatures(tuple(parts["names"]), parts["matrix"])
        return cls(features, BoxShape.from_json(parts["box"]))


def _fit_joint(forecast: GaussianForecast, states: Any, level: PACLevel) -> Likelihood:
    """The paper's shape: accumulated variances, one temperature per step (A + C)."""
    return Likelihood.fit(forecast, states, (accumulated, fit_temperature))


SHAPES: dict[str, Callable[..., Score]] = {
    "joint": _fit_joint,
    "max": MaxShape.fit,
    "box": BoxShape.fit,
    "features": FeatureShape.fit,
}


def fit_shape(
    forecast: GaussianForecast, states: Any, level: PACLevel, *, shape: str = "box", **options: Any
) -> Score:
    """A tube score fitted on the tune split: one of `SHAPES`, or one a plugin registered."""
    if shape not in (*SHAPES, *plugins.names("shapes")):
        known = ", ".join((*SHAPES, *plugins.names("shapes")))
        raise InvalidInput(f"shape must be one of {known}, got {shape!r}")
    fit = SHAPES.get(shape) or plugins.load("shapes", shape).fit
    if forecast.mean.ndim != 3:
        raise InvalidInput(
            f"a tube needs a horizon [B, H, D], got mean of shape {tuple(forecast.mean.shape)}"
        )
    states = np.asarray(forecast.check(states), dtype=np.float64)
    mean, var = (np.asarray(part, dtype=np.float64) for part in (forecast.mean, forecast.var))
    return fit(GaussianForecast(mean, var), states, level, **options)


def fit_tube(
    tune_forecast: GaussianForecast,
    tune_states: Any,
    cal_forecast: GaussianForecast,
    cal_states: Any,
    level: PACLevel,
    *,
    shape: str = "box",
    bound: Bound = max_errors,
    **options: Any,
) -> Predictor:
    """A predictor whose `.tube(forecast)` holds the whole trajectory with the promised probability.

    Forecasts carry one-step variances `[B, H, D]`; states are `[B, H, D]`, infinite where a
    simulation failed. All choices are made on the tune split, T on the calibrate split.

    >>> rng = np.random.default_rng(0)
    >>> forecast = GaussianForecast(np.zeros((400, 5, 2)), np.ones((400, 5, 2)))
    >>> walk = lambda: rng.normal(size=(400, 5, 2)).cumsum(axis=1)
    >>> predictor = fit_tube(forecast, walk(), forecast, walk(), PACLevel(0.1, 0.01))
    >>> tube = predictor.tube(forecast)
    >>> tube.support([1.0, 0.0]).shape, bool(tube.contains(walk()).mean() > 0.9)
    ((400, 5), True)
    """
    score = fit_shape(tune_forecast, tune_states, level, shape=shape, **options)
    return calibrate(score, cal_forecast, cal_states, level, bound=bound)


def choose(
    fits: Sequence[Callable[[GaussianForecast, Any], Shape]],
    forecast: GaussianForecast,
    states: Floats,
    level: PACLevel,
) -> Shape:
    """The best of several fits, then fitted on all units that did not fail.

    Each is fitted on one half of the units; the best has the smallest mean normalised size on
    the other half, at the threshold that half would give. The halves differ because hundreds of
    scales fit too well the half they were fitted on.
    """
    whole = np.isfinite(states).all(axis=(1, 2))
    if whole.sum() < 4:
        raise InvalidInput(f"a tube shape needs at least 4 tune units that did not fail, got {whole.sum()}")
    forecast, states = forecast.take(whole), states[whole]
    order = np.random.default_rng(0).permutation(len(states))
    fit_on, compare_on = order[::2], order[1::2]
    deviation = np.maximum(_deviation(states), 1e-12)

    def size(fit: Callable[[GaussianForecast, Any], Shape]) -> float:
        shape = fit(forecast.take(fit_on), states[fit_on])
        other = forecast.take(compare_on)
        scores = np.sort(shape._scores(other, states[compare_on]))
        sets = shape.sets(other, float(scores[-1 - _errors(len(scores), level)]))
        return float(np.mean(sets.normalised_size(deviation)))

    return min(fits, key=size)(forecast, states)


def _errors(n: int, level: PACLevel) -> int:
    try:
        return max_errors(n, level)
    except NotEnoughData:  # a choice needs no proof
        return int(level.epsilon * n)


def _variances(forecast: GaussianForecast, accumulate: bool) -> GaussianForecast:
    return forecast.accumulated() if accumulate else forecast


def _deviation(states: Floats) -> Floats:
    return np.asarray(states.std(axis=(0, 1)))


def _scale(errors: Floats, spread: float | None, floor: Any) -> Floats:
    """A scale per step (and dimension) from errors `[B, H, ...]`, never below `floor`."""
    scale = np.sqrt(np.mean(errors**2, axis=0)) if spread is None else np.quantile(errors, spread, axis=0)
    return np.asarray(np.maximum(scale, floor))


def _sided(errors: Array, sides: tuple[int, ...]) -> Array:
    """|error| where both sides count, the error towards the side otherwise."""
    xp = array_namespace(errors)
    if not any(sides):
        return xp.abs(errors)
    side = like(errors, sides)
    return xp.where(side == 0, xp.abs(errors), side * errors)


def _above_zero(scale: Floats) -> Floats:
    if not (scale > 0).all():
        raise InvalidInput("scale must be above 0 everywhere, got others")
    return scale.astype(np.float64)
