"""Tube shapes `max` and `box`: scores of whole trajectories, fitted on the tune part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from pac_core.arrays import Array, Floats, like, listed, numbers
from pac_core.bounds import PACLevel
from pac_core.choices import Chosen, Tuning, balance, choose, deviation, relative_widths, width_remarks
from pac_core.errors import InvalidInput
from pac_core.forecasts import GaussianForecast
from pac_core.regions import Boxes, Ellipsoids
from pac_core.sets import ConfidenceSets, limit_of, widened
from pac_core.thresholds import Threshold

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
SPREADS = (None, 0.99, 1.0)
"""How a scale is computed from the tune errors: root mean square (None), or this quantile."""


class TubeShape:
    """What the shapes share; a shape has `_scores` and `_region`."""

    def scores(self, forecast: GaussianForecast, truth: Any) -> Array:
        return self._scores(forecast.wide(), forecast.check(truth))

    def sets(self, forecast: GaussianForecast, threshold: Threshold | float) -> ConfidenceSets:
        (forecast, sound), limit = forecast.for_sets(), widened(limit_of(threshold))
        region, score = self._region(forecast, limit), partial(self._scores, forecast)
        return ConfidenceSets(region, score, limit, sound, tuple(forecast.mean.shape))

    def _scores(self, forecast: GaussianForecast, truth: Array) -> Array:
        raise NotImplementedError

    def _region(self, forecast: GaussianForecast, limit: float) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class MaxShape(TubeShape):
    """Score: the largest over t of Mahalanobis^2_t / c_t. Set: an ellipsoid of radius^2 T c_t per step.

    scale: `[H]` c_t
    accumulate: whether variances are summed over the steps so far
    widths: `[D]` mean half-widths of the tune units at T = 1, in deviations of their states; not stored
    """

    kind: ClassVar[str] = "max"
    scale: Floats
    accumulate: bool
    widths: Floats | None = None

    def __post_init__(self) -> None:
        _above_zero(self.scale)

    @classmethod
    def fit(cls, forecast: GaussianForecast, states: Any, level: PACLevel) -> MaxShape:
        """The candidate that is smallest on units it was not fitted on."""
        fits = [
            partial(cls._fit_one, accumulate=accumulate, spread=spread)
            for accumulate in (False, True)
            for spread in SPREADS
        ]
        tuning = Tuning.of(forecast, states, level)
        chosen: Chosen[MaxShape] = choose(fits, tuning)
        tubes = chosen.whole.sets(tuning.forecast, 1.0).region.half_widths()
        return replace(chosen.whole, widths=relative_widths(tubes, tuning.states))

    def remarks(self, threshold: float) -> list[str]:
        """What a user should know about tubes at this T."""
        return [] if self.widths is None else width_remarks(np.sqrt(max(threshold, 0.0)) * self.widths)

    @classmethod
    def _fit_one(cls, forecast: GaussianForecast, states: Any, *, accumulate: bool, spread: Any) -> MaxShape:
        distances = _variances(forecast, accumulate).mahalanobis2(states) + 0 * states[..., 0]
        return cls(_scale(np.sqrt(distances), spread, floor=1e-6) ** 2, accumulate)

    def _scores(self, forecast: GaussianForecast, truth: Array) -> Array:
        _refuse_other_shape(self.scale, forecast.mean.shape[1:2])
        xp = array_namespace(forecast.mean)
        distances = _variances(forecast, self.accumulate).mahalanobis2(truth)
        return xp.max(distances / like(distances, self.scale), axis=-1)

    def _region(self, forecast: GaussianForecast, limit: float) -> Ellipsoids:
        _refuse_other_shape(self.scale, forecast.mean.shape[1:2])
        radius2 = limit * like(forecast.mean, self.scale) + 0 * forecast.mean[..., 0]
        return Ellipsoids(_variances(forecast, self.accumulate), radius2)

    def to_json(self) -> dict[str, Any]:
        return {"scale": self.scale.tolist(), "accumulate": self.accumulate}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> MaxShape:
        scale = numbers("scale", parts["scale"], "[H]", finite=True)
        return cls(scale.astype(np.float64), bool(parts["accumulate"]))


@dataclass(frozen=True, eq=False)
class BoxShape(TubeShape):
    """Score: the largest over t and dimensions of |error| / (sigma^p c). Set: a box per step.

    scale: `[2, H, D]` c, for errors below the mean and above it
    power: p, from 0 (ignore the forecast's spread) to 1 (trust it)
    accumulate: whether variances are summed over the steps so far
    sides: `[D]` 0 for both, 1 where only an upper end counts, -1 where only a lower one does
    widths: `[D]` mean half-widths of the tune units at T = 1, in deviations of their states; not stored
    """

    kind: ClassVar[str] = "box"
    scale: Floats
    power: float
    accumulate: bool
    sides: tuple[int, ...]
    widths: Floats | None = None

    def __post_init__(self) -> None:
        _above_zero(self.scale)

    @classmethod
    def fit(
        cls,
        forecast: GaussianForecast,
        states: Any,
        level: PACLevel,
        *,
        sides: Sequence[int] | None = None,
        units: Sequence[float] | None = None,
    ) -> BoxShape:
        """The candidate that is smallest on units it was not fitted on, with balanced scales."""
        dims = forecast.mean.shape[-1]
        sides = tuple(listed("sides", sides)) if sides is not None else (0,) * dims
        if len(sides) != dims or any(np.ndim(side) or side not in (-1, 0, 1) for side in sides):
            raise InvalidInput(f"sides must be {dims} of -1, 0 or 1, got {sides}")
        fits = [
            partial(cls._fit_one, power=power, accumulate=accumulate, spread=spread, sides=sides)
            for accumulate in (False, True)
            for power in POWERS
            for spread in SPREADS
            if power or not accumulate  # at p = 0 the variances do not count
        ]
        if units is not None:
            each = numbers("units", units, "[D]", finite=True)
            if len(each) != dims or each.min() <= 0:
                raise InvalidInput(f"units must be {dims} numbers above 0, got {units}")
        tuning = Tuning.of(forecast, states, level, units)
        chosen: Chosen[BoxShape] = choose(fits, tuning)
        reach = np.concatenate([shape._unit(other) * shape.scale[1] for shape, other, _ in chosen.crossed])
        errors = np.concatenate([truth - other.mean for _, other, truth in chosen.crossed])
        factors = balance(errors / reach, reach / tuning.deviation, tuning.band, sides)
        shape = replace(chosen.whole, scale=chosen.whole.scale * factors)
        tubes = shape._region(tuning.forecast, 1.0).half_widths()
        return replace(shape, widths=relative_widths(tubes, tuning.states))

    def remarks(self, threshold: float, names: Sequence[str] | None = None) -> list[str]:
        """What a user should know about tubes at this T; `names` are those of the dimensions."""
        flat = "this tube ignores the model's variance (power 0): all tubes are of one size"
        wide = [] if self.widths is None else width_remarks(max(threshold, 0.0) * self.widths, names)
        return [flat] * (self.power == 0) + wide

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
        floor = 1e-6 * np.maximum(deviation(states), 1e-6) / units.mean(axis=0)
        scale = _scale(np.maximum(errors, 0), spread, floor)
        return cls(np.stack([scale, scale]), power, accumulate, sides)

    def _scores(self, forecast: GaussianForecast, truth: Array) -> Array:
        xp = array_namespace(forecast.mean)
        lost = xp.isinf(truth)
        near = xp.where(lost, forecast.mean, truth)  # the sign of an infinite error means nothing
        error = (near - forecast.mean) / self._unit(forecast)
        side = np.asarray(self.sides)  # the scale is infinite on a side that does not count
        lower = like(error, np.where(side > 0, np.inf, self.scale[0]))
        upper = like(error, np.where(side < 0, np.inf, self.scale[1]))
        relative = xp.maximum(-error / lower, error / upper)
        relative = xp.where(xp.isnan(truth), like(relative, -np.inf), relative)  # steps after an end
        worst = xp.max(relative, axis=(1, 2))
        return xp.where(xp.any(lost, axis=(1, 2)), like(worst, np.inf), worst)

    def _region(self, forecast: GaussianForecast, limit: float) -> Boxes:
        reach = limit * self._unit(forecast)
        xp = array_namespace(reach)
        below, above = (reach * like(reach, scale) for scale in self.scale)
        if any(self.sides):  # not reach * inf, which is NaN where the reach is 0
            side, no_end = like(reach, self.sides), like(reach, np.inf if limit >= 0 else -np.inf)
            below, above = xp.where(side > 0, no_end, below), xp.where(side < 0, no_end, above)
        return Boxes(forecast.mean, forecast.mean - below, forecast.mean + above)

    def _unit(self, forecast: GaussianForecast) -> Array:
        """`[B, H, D]` sigma^p, the unit of errors."""
        _refuse_other_shape(self.scale[0], forecast.mean.shape[1:])
        if self.power == 0:
            return 1 + 0 * forecast.mean
        return _variances(forecast, self.accumulate).variances ** (self.power / 2)

    def to_json(self) -> dict[str, Any]:
        parts = {"scale": self.scale.tolist(), "power": self.power}
        return parts | {"accumulate": self.accumulate, "sides": list(self.sides)}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> BoxShape:
        scale = numbers("scale", parts["scale"], "[2, H, D]", finite=True)
        power, sides = parts["power"], parts["sides"]
        if not 0 <= power <= 1 or len(sides) != scale.shape[2] or any(s not in (-1, 0, 1) for s in sides):
            raise InvalidInput(f"power must lie in [0, 1] and sides be -1, 0 or 1, got {power} and {sides}")
        return cls(scale.astype(np.float64), float(power), bool(parts["accumulate"]), tuple(sides))


def _refuse_other_shape(scale: Floats, steps: tuple[int, ...]) -> None:
    if scale.shape != tuple(steps):
        raise InvalidInput(f"the forecast must be of the fitted shape {scale.shape}, got {tuple(steps)}")


def _variances(forecast: GaussianForecast, accumulate: bool) -> GaussianForecast:
    return forecast.accumulated() if accumulate else forecast


def _scale(errors: Floats, spread: float | None, floor: Any) -> Floats:
    """A scale per step (and dimension) from errors `[B, H, ...]`, never below `floor`.

    Errors are NaN after a unit's end. A step that no unit reached is scaled like the one before.
    """
    lived = int((~np.isnan(errors)).reshape(*errors.shape[:2], -1)[..., 0].any(axis=0).sum())
    mean, quantile = (np.nanmean, np.nanquantile) if np.isnan(errors).any() else (np.mean, np.quantile)
    seen = errors[:, :lived]
    scale = np.sqrt(mean(seen**2, axis=0)) if spread is None else quantile(seen, spread, axis=0)
    unseen = errors.shape[1] - lived
    return np.asarray(np.maximum(np.concatenate([scale, np.repeat(scale[-1:], unseen, axis=0)]), floor))


def _sided(errors: Array, sides: tuple[int, ...]) -> Array:
    """|error| where both sides count, the error towards the side otherwise."""
    xp = array_namespace(errors)
    if not any(sides):
        return xp.abs(errors)
    side = like(errors, sides)
    return xp.where(side == 0, xp.abs(errors), side * errors)


def _above_zero(scale: Floats) -> None:
    if not ((scale > 0) & (scale < np.inf)).all():
        raise InvalidInput(f"scale must be finite and above 0, got {np.min(scale):g} to {np.max(scale):g}")
