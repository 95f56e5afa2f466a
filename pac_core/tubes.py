"""Trajectory tubes: their shapes, `joint` (the paper's), `max`, `box`, `features` and plugins', and how one
is tuned, by its size on tune units it was not fitted on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from pac_core import plugins
from pac_core.arrays import Array, Floats, check_list, check_numbers, convert_like, round_up
from pac_core.bounds import Bound, PACLevel, check_integer, max_errors, share_level
from pac_core.errors import InvalidInput, NotEnoughData
from pac_core.forecasts import (
    GaussianForecast,
    Trajectories,
    check_forecast,
    drop_failed,
    flatten_candidates,
    with_lengths,
)
from pac_core.scores import volume_term
from pac_core.sets.kinds import (
    Boxes,
    ConfidenceSets,
    Ellipsoids,
    deviation,
    relative_widths,
    threshold_value,
    widen,
    width_remarks,
)
from pac_core.sets.predictor import Likelihood, Predictor, Score, calibrate, describe_domain
from pac_core.thresholds import Threshold

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
SPREADS = (None, 0.99, 1.0)
"""How a scale is computed from the tune errors: root mean square (None), or this quantile."""
_SIZED = 500  # units of each half on which sizes are compared: their mean needs no more
_STEP = 1.1  # factor by which a scale is tried larger and smaller
_FARTHEST = 4.0  # times larger or smaller: a tail without errors may still have some
_EXPONENTS = (0.0, 0.1, 0.2, 0.3, 0.4)


class TubeShape:
    """What the shapes share; a shape has `_scores` and `_region`."""

    def scores(self, forecast: GaussianForecast, truth: Any) -> Array:
        return self._scores(forecast.wide(), forecast.check(truth))

    def sets(self, forecast: GaussianForecast, threshold: Threshold | float) -> ConfidenceSets:
        (forecast, sound), limit = forecast.for_sets(), widen(threshold_value(threshold))
        region, score = self._region(forecast, limit), partial(self._scores, forecast)
        return ConfidenceSets(region, score, limit, sound, tuple(forecast.mean.shape))

    _scores: Callable[[GaussianForecast, Array], Array]
    _region: Callable[[GaussianForecast, float], Any]


@dataclass(frozen=True, eq=False)
class MaxShape(TubeShape):
    """Score: the largest over t of Mahalanobis^2_t / c_t. Set: an ellipsoid of radius^2 T c_t per step.

    scale: `[H]` c_t; for the other fields see `BoxShape`
    """

    kind: ClassVar[str] = "max"
    scale: Floats
    accumulate: bool
    widths: Floats | None = None

    def __post_init__(self) -> None:
        _above_zero(self.scale)

    @classmethod
    def fit(
        cls, forecast: GaussianForecast, states: Any, level: PACLevel, *, candidates: int = 1
    ) -> MaxShape:
        """The candidate that is smallest on units it was not fitted on."""
        pairs = product((False, True), SPREADS)
        fits = [partial(cls._fit_one, accumulate=accumulate, spread=spread) for accumulate, spread in pairs]
        tuning = Tuning.of(forecast, states, level, candidates=candidates)
        shape: MaxShape = choose(fits, tuning)[0]
        tubes = shape.sets(tuning.forecast, 1.0).region.half_widths()
        return replace(shape, widths=relative_widths(tubes, tuning.states))

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
        return xp.max(distances / convert_like(distances, self.scale), axis=-1)

    def _region(self, forecast: GaussianForecast, limit: float) -> Ellipsoids:
        _refuse_other_shape(self.scale, forecast.mean.shape[1:2])
        radius2 = limit * convert_like(forecast.mean, self.scale) + 0 * forecast.mean[..., 0]
        return Ellipsoids(_variances(forecast, self.accumulate), radius2)

    def to_json(self) -> dict[str, Any]:
        return {"scale": self.scale.tolist(), "accumulate": self.accumulate}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> MaxShape:
        scale = check_numbers("scale", parts["scale"], "[H]", finite=True)
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
        candidates: int = 1,
    ) -> BoxShape:
        """The candidate that is smallest on units it was not fitted on, with balanced scales."""
        dims = forecast.mean.shape[-1]
        sides = tuple(check_list("sides", sides)) if sides is not None else (0,) * dims
        if len(sides) != dims or any(np.ndim(side) or side not in (-1, 0, 1) for side in sides):
            raise InvalidInput(f"sides must be {dims} of -1, 0 or 1, got {sides}")
        fits = [
            partial(cls._fit_one, power=power, accumulate=accumulate, spread=spread, sides=sides)
            for accumulate, power, spread in product((False, True), POWERS, SPREADS)
            if power or not accumulate  # at p = 0 the variances do not count
        ]
        if units is not None:
            each = check_numbers("units", units, "[D]", finite=True)
            if len(each) != dims or each.min() <= 0:
                raise InvalidInput(f"units must be {dims} numbers above 0, got {units}")
        tuning = Tuning.of(forecast, states, level, units, candidates)
        chosen, crossed = choose(fits, tuning)
        reach = np.concatenate([shape._unit(other) * shape.scale[1] for shape, other, _ in crossed])
        errors = np.concatenate([truth - other.mean for _, other, truth in crossed])
        factors = balance(errors / reach, reach / tuning.deviation, tuning.band, sides, candidates)
        shape: BoxShape = replace(chosen, scale=chosen.scale * factors)
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
        lower = convert_like(error, np.where(side > 0, np.inf, self.scale[0]))
        upper = convert_like(error, np.where(side < 0, np.inf, self.scale[1]))
        relative = xp.maximum(-error / lower, error / upper)
        relative = xp.where(xp.isnan(truth), convert_like(relative, -np.inf), relative)  # steps after an end
        worst = xp.max(relative, axis=(1, 2))
        return xp.where(xp.any(lost, axis=(1, 2)), convert_like(worst, np.inf), worst)

    def _region(self, forecast: GaussianForecast, limit: float) -> Boxes:
        reach = limit * self._unit(forecast)
        xp = array_namespace(reach)
        below, above = (reach * convert_like(reach, scale) for scale in self.scale)
        if any(self.sides):  # not reach * inf, which is NaN where the reach is 0
            side = convert_like(reach, self.sides)
            no_end = convert_like(reach, np.inf if limit >= 0 else -np.inf)
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
        scale = check_numbers("scale", parts["scale"], "[2, H, D]", finite=True)
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
    """A scale per step (and dimension) from errors `[B, H, ...]`, NaN after an end; at least `floor`."""
    lived = int((~np.isnan(errors)).reshape(*errors.shape[:2], -1)[..., 0].any(axis=0).sum())
    mean, quantile = (np.nanmean, np.nanquantile) if np.isnan(errors).any() else (np.mean, np.quantile)
    seen = errors[:, :lived]
    scale = np.sqrt(mean(seen**2, axis=0)) if spread is None else quantile(seen, spread, axis=0)
    unseen = errors.shape[1] - lived  # a step that no unit reached is scaled like the one before
    return np.asarray(np.maximum(np.concatenate([scale, np.repeat(scale[-1:], unseen, axis=0)]), floor))


def _sided(errors: Array, sides: tuple[int, ...]) -> Array:
    """|error| where both sides count, the error towards the side otherwise."""
    xp = array_namespace(errors)
    if not any(sides):
        return xp.abs(errors)
    side = convert_like(errors, sides)
    return xp.where(side == 0, xp.abs(errors), side * errors)


def _above_zero(scale: Floats) -> None:
    if not ((scale > 0) & (scale < np.inf)).all():
        raise InvalidInput(f"scale must be finite and above 0, got {np.min(scale):g} to {np.max(scale):g}")


@dataclass(frozen=True, eq=False)
class LinearFeatures:
    """The few numbers that limits read: matrix `[F, D]` @ state, with their F names."""

    names: tuple[str, ...]
    matrix: Floats

    def __post_init__(self) -> None:
        matrix = check_numbers("matrix", self.matrix, "[F, D]", finite=True)
        object.__setattr__(self, "names", tuple(check_list("names", self.names)))
        if not all(isinstance(name, str) for name in self.names) or len(set(self.names)) != len(self.names):
            raise InvalidInput(f"names of features must be different texts, got {self.names}")
        if len(self.names) != len(matrix) or not matrix.any(axis=1).all():
            raise InvalidInput(f"matrix must have one row, not all 0, for each of {self.names}")
        largest = abs(matrix).max(axis=1)
        if largest.min() < 1e-100 or largest.max() > 1e100:  # their squares would vanish or overflow
            raise InvalidInput(
                "the largest entry of each row of matrix must lie between 1e-100 and 1e100, got rows with "
                f"{largest.tolist()}"
            )
        object.__setattr__(self, "matrix", matrix.astype(np.float64))

    def of(self, states: Array) -> Array:
        """`[B, H, F]`; a failed unit (infinite state) has infinite features."""
        xp = array_namespace(states)
        matrix = self._matrix(states)
        failed = xp.any(xp.isinf(states), axis=-1, keepdims=True)
        features = xp.where(failed, xp.zeros_like(states), states) @ matrix.T
        return xp.where(failed, convert_like(features, np.inf), features)

    def _matrix(self, states: Array) -> Array:
        if (got := states.shape[-1]) != (dims := self.matrix.shape[1]):
            raise InvalidInput(f"the features {self.names} read states of {dims} numbers, got {got}")
        return convert_like(states, self.matrix)

    def forecast(self, forecast: GaussianForecast) -> GaussianForecast:
        """The Gaussian of each feature on its own."""
        xp = array_namespace(forecast.mean)
        matrix = self._matrix(forecast.mean)
        spreads = [forecast.spread2(matrix[i, :]) for i in range(len(self.names))]
        return GaussianForecast(forecast.mean @ matrix.T, xp.stack(spreads, axis=-1))


@dataclass(frozen=True, eq=False)
class FeatureTube(ConfidenceSets):
    """A tube of intervals, one per feature and step; `box()` and the sizes are theirs, `[B, H, F]`."""

    features: LinearFeatures

    def support(self, direction: Array) -> Array:
        """`[B, H]`; +inf along a direction that is not a multiple of a feature's."""
        vector, matrix = convert_like(np.zeros(1), direction), self.features.matrix
        if vector.shape != matrix.shape[1:]:
            raise InvalidInput(f"direction must have shape [{matrix.shape[1]}], got {vector.shape}")
        # A direction in single precision need only agree to single precision.
        digits = 1e-6 if "32" in str(getattr(direction, "dtype", "")) else 1e-14
        for i, row in enumerate(matrix):
            most = abs(row).argmax()
            factor = float(vector[most] / row[most])
            if factor and np.allclose(factor * row, vector, rtol=digits, atol=0):
                return super().support(factor * np.eye(len(matrix))[i])
        return self._if_empty(0 * self.region.center[..., 0] + np.inf, np.nan)

    def interval(self, name: str) -> tuple[Array, Array]:
        """Lower and upper ends `[B, H]` of the feature `name`."""
        if name not in self.features.names:
            raise InvalidInput(f"feature must be one of {self.features.names}, got {name!r}")
        lower, upper = self.box()
        i = self.features.names.index(name)
        return lower[..., i], upper[..., i]


@dataclass(frozen=True, eq=False)
class FeatureShape:
    """`box` on the features that limits read: far smaller, because they are few."""

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
        units: Sequence[float] | None = None,
        candidates: int = 1,
    ) -> FeatureShape:
        if not isinstance(features, LinearFeatures):
            raise InvalidInput("the shape 'features' needs features=LinearFeatures(names, matrix)")
        states = states.marked() if isinstance(states, Trajectories) else states
        seen = features.forecast(forecast)
        seen.check()  # a variance may vanish along a feature
        known: Any = {"sides": sides, "units": units, "candidates": candidates}
        return cls(features, BoxShape.fit(seen, features.of(states), level, **known))

    def scores(self, forecast: GaussianForecast, truth: Any) -> Array:
        states, wide = forecast.check(truth), forecast.wide()
        self.features.forecast(wide).check()
        return self._scores(wide, states)

    def _scores(self, forecast: GaussianForecast, truth: Array) -> Array:
        return self.box._scores(self.features.forecast(forecast), self.features.of(truth))

    def sets(self, forecast: GaussianForecast, threshold: Threshold | float) -> FeatureTube:
        (forecast, sound), limit = forecast.for_sets(), widen(threshold_value(threshold))
        seen, usable = self.features.forecast(forecast).for_sets()
        region, score = self.box._region(seen, limit), partial(self._scores, forecast)
        shape = tuple(forecast.mean.shape)
        return FeatureTube(region, score, limit, sound & usable, shape, self.features)

    def remarks(self, threshold: float) -> list[str]:
        """What a user should know about tubes at this T."""
        return self.box.remarks(threshold, self.features.names)

    def to_json(self) -> dict[str, Any]:
        names, matrix = list(self.features.names), self.features.matrix.tolist()
        return {"names": names, "matrix": matrix, "box": self.box.to_json()}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> FeatureShape:
        features = LinearFeatures(tuple(parts["names"]), parts["matrix"])
        return cls(features, BoxShape.from_json(parts["box"]))


def _fit_joint(forecast: GaussianForecast, states: Any, level: PACLevel) -> Likelihood:
    """The paper's shape: accumulated variances, one temperature per step (A + C)."""
    return with_typical(Likelihood.fit(forecast, states, accumulate=True), forecast, states)


def with_typical(score: Likelihood, forecast: GaussianForecast, states: Any) -> Likelihood:
    """A joint score that can say when its tube is wider than the states of these tune units vary."""
    prepared = score.prepared(forecast.wide())
    truth = states.marked() if isinstance(states, Trajectories) else states
    volume = float(volume_term(prepared).sum(axis=-1).mean())
    return replace(score, typical=(volume, relative_widths(np.sqrt(prepared.variances), truth)))


TUBES: tuple[Any, ...] = (MaxShape, BoxShape, FeatureShape)
"""Ours, by whose `kind` a certificate reads them back."""


@dataclass(frozen=True, eq=False)
class AnyOf:
    """Score of a unit: the largest over its K candidates. Set: that of each plan by itself, whichever it is.

    shape: of each candidate: one of `TUBES`
    candidates: K
    drawn: whether each unit carried out one candidate, drawn uniformly, instead of all; see `share_level`
    """

    kind: ClassVar[str] = "any of"
    shape: Any
    candidates: int
    drawn: bool = False

    def scores(self, forecast: GaussianForecast, truth: Any) -> Array:
        """`[N]` from forecasts and truths `[N, K, H, D]`; of drawn candidates `[N, H, D]`."""
        shape, wanted = tuple(forecast.mean.shape), "H, D" if self.drawn else f"{self.candidates}, H, D"
        if len(shape) != (3 if self.drawn else 4) or not (self.drawn or shape[1] == self.candidates):
            raise InvalidInput(f"the forecast must have shape [N, {wanted}], as it was tuned, got {shape}")
        if self.drawn:
            return self.shape.scores(forecast, truth)
        states = with_lengths(truth, forecast.check(truth))
        each = self.shape.scores(*flatten_candidates(forecast, states))
        return array_namespace(each).max(array_namespace(each).reshape(each, shape[:2]), axis=1)

    def sets(self, forecast: GaussianForecast, threshold: Threshold | float) -> Any:
        """Of plans `[B, H, D]`, a row each."""
        return self.shape.sets(forecast, threshold)

    @property
    def features(self) -> LinearFeatures | None:
        """What its tubes know of the state, if that is a few features alone."""
        return getattr(self.shape, "features", None)

    def covers(self, unit: str, epsilon: float) -> tuple[str, float]:
        """Whose set it is, and how often that misses."""
        whose = f"whichever of the {self.candidates} candidates of a new {unit} is picked"
        if self.candidates == 1:
            whose = f"the plan drawn at a new {unit}"
        return whose, float(round_up(self.candidates * epsilon)) if self.drawn else epsilon

    def remarks(self, threshold: float) -> list[str]:
        """What a user should know about tubes at this T."""
        if self.candidates == 1:
            return [
                "the promise is about a plan drawn like these, not about one that is picked",
                *self.shape.remarks(threshold),
            ]
        sure = f"the promise covers whichever of the {self.candidates} candidates is picked before it is "
        sure += "carried out, whole and open-loop; no mean of them, and no search that used T"
        if self.drawn:
            sure += f"; epsilon is that of one drawn uniformly, {self.candidates} times it covers all"
        return [sure, *self.shape.remarks(threshold)]

    def to_json(self) -> dict[str, Any]:
        shape = {"kind": self.shape.kind} | self.shape.to_json()
        return {"candidates": self.candidates, "drawn": self.drawn, "shape": shape}

    @classmethod
    def from_json(cls, parts: dict[str, Any]) -> AnyOf:
        inner = dict(parts["shape"])
        known, kind = {tube.kind: tube for tube in TUBES}, inner.pop("kind")
        if kind not in known or type(parts["drawn"]) is not bool:
            raise InvalidInput(f"the shape must be one of {', '.join(known)}, got {kind!r}")
        k = check_integer("candidates", parts["candidates"], least=1)
        return cls(known[kind].from_json(inner), k, parts["drawn"])


def _count_candidates(forecast: GaussianForecast, shape: str, any_of: Any, drawn_of: Any) -> int | None:
    """K, None where a tube is of one trajectory; refused unless options, shape and forecast go together."""
    got, wanted = tuple(forecast.mean.shape), 4 if any_of and drawn_of is None else 3
    if type(any_of) is not bool or (drawn_of is not None and not any_of):
        raise InvalidInput(f"any_of must be True or False, and True with drawn_of, got {any_of!r}")
    if any_of and shape not in (known := [tube.kind for tube in TUBES]):
        why = "joint adds the volume of each forecast, so that the widest candidate would set T for all"
        raise InvalidInput(f"any_of is for the shapes {', '.join(known)}, got {shape!r} ({why})")
    if len(got) != wanted:
        rule = "[N, K, H, D], all K candidates of each unit" if wanted == 4 else "[N, H, D]"
        hint = "" if any_of else "; any_of=True takes all K candidates of each unit, [N, K, H, D]"
        raise InvalidInput(f"the forecast must have shape {rule}, got {got}{hint}")
    return (got[1] if drawn_of is None else check_integer("drawn_of", drawn_of, least=1)) if any_of else None


SHAPES: dict[str, Callable[..., Score]] = {"joint": _fit_joint} | {tube.kind: tube.fit for tube in TUBES}


def shape_names() -> list[str]:
    """Every tube shape there is: the built-in ones, then those that plugins register (`pac_sets.shapes`)."""
    return [*SHAPES, *plugins.names("shapes")]


def check_shape(name: Any, domain: tuple[Any, ...] = ("trajectories",)) -> None:
    """Refuse a shape that does not exist, or a forecast that is not of trajectories, before any work."""
    if domain[0] != "trajectories":
        raise InvalidInput(f"a tube needs a horizon [B, H, D], got a forecast of {describe_domain(domain)}")
    if name not in (known := shape_names()):
        raise InvalidInput(f"shape must be one of {', '.join(known)}, got {name!r}")


def fit_shape(
    forecast: GaussianForecast,
    states: Any,
    level: PACLevel,
    *,
    shape: str = "box",
    any_of: bool = False,
    drawn_of: int | None = None,
    **options: Any,
) -> Score:
    """Fit a tube score of one of the `shape_names` on the tune split; see `fit_tube` for the options."""
    check_shape(shape, check_forecast(forecast).domain)
    k = _count_candidates(forecast, shape, any_of, drawn_of)
    fit = SHAPES.get(shape) or plugins.load("shapes", shape).fit
    truth = with_lengths(states, convert_like(np.zeros(1), forecast.check(states, failures=True)))
    forecast, truth = drop_failed(forecast, truth)
    if forecast.mean.ndim == 4:
        forecast, truth = flatten_candidates(forecast, truth)
        options["candidates"] = k
    mean, var = (convert_like(np.zeros(1), part) for part in (forecast.mean, forecast.var))  # fitted in numpy
    fitted = fit(GaussianForecast(mean, var), truth, level, **options)
    return fitted if k is None else AnyOf(fitted, k, drawn_of is not None)


def fit_tube(
    tune_forecast: GaussianForecast,
    tune_states: Any,
    cal_forecast: GaussianForecast,
    cal_states: Any,
    level: PACLevel,
    *,
    shape: str = "box",
    bound: Bound = max_errors,
    groups: Any = None,
    any_of: bool = False,
    drawn_of: int | None = None,
    **options: Any,
) -> Predictor:
    """A predictor whose `.tube(forecast)` holds the whole trajectory with the promised probability.

    Forecasts carry one-step variances `[B, H, D]`; states are `[B, H, D]`, infinite where a simulation
    failed, or `Trajectories`. The splits must share no unit, and the calibrate split be used once (`certify`
    keeps watch, with ids).

    shape: "joint", "max", "box", "features", or a plugin's
    groups: `[B]` names of the calibration units' groups: a threshold for each (Mondrian), see `Groups`; then
        `.tube(forecast, groups)`
    any_of: for whichever of K candidates a planner picks: forecasts and states are `[N, K, H, D]`, all K
        candidates of each unit carried out, and its score is the largest; `.tube` is of plans `[B, H, D]`
    drawn_of: K, where a unit can carry out one candidate only, drawn uniformly: with any_of, on forecasts
        `[N, H, D]` of it. T is then of `share_level`, which takes K times as many units
    options: `features=LinearFeatures(names, matrix)` for "features"; for it and "box" `sides`, 1 or -1 for
        each dimension of which only the upper or the lower end counts, 0 for both, and `units`, what counts
        as one where widths are traded against each other (by default the deviation on the tune split)

    >>> rng = np.random.default_rng(0)
    >>> forecast = GaussianForecast(np.zeros((400, 5, 2)), np.ones((400, 5, 2)))
    >>> walk = lambda: rng.normal(size=(400, 5, 2)).cumsum(axis=1)
    >>> predictor = fit_tube(forecast, walk(), forecast, walk(), PACLevel(0.1, 0.01))
    >>> tube = predictor.tube(forecast)
    >>> tube.support([1.0, 0.0]).shape, bool(tube.contains(walk()).mean() > 0.9)
    ((400, 5), True)
    """
    if drawn_of is not None:
        level = share_level(level, drawn_of)
        bound(len(cal_states), level)  # refuses too few before any work
    known: dict[str, Any] = {"shape": shape, "any_of": any_of, "drawn_of": drawn_of}
    score = fit_shape(tune_forecast, tune_states, level, **known, **options)
    return calibrate(score, cal_forecast, cal_states, level, bound=bound, groups=groups)


@dataclass(frozen=True, eq=False)
class Tuning:
    """The tune units that did not fail, in two halves; states are NaN after a unit's end.

    deviation: `[D]` the units in which half-widths of different dimensions are compared
    band: numbers of errors over which a threshold is averaged: one order statistic of the tail is noise
    candidates: K, rows of a unit, whose score is their largest; the halves are of units
    """

    forecast: GaussianForecast
    states: Floats
    halves: tuple[tuple[GaussianForecast, Floats], tuple[GaussianForecast, Floats]]
    deviation: Floats
    band: NDArray[np.int64]
    candidates: int = 1

    @classmethod
    def of(
        cls,
        forecast: GaussianForecast,
        states: Floats | Trajectories,
        level: PACLevel,
        units: Sequence[float] | None = None,
        candidates: int = 1,
    ) -> Tuning:
        states = states.marked() if isinstance(states, Trajectories) else states
        whole = ~_per_unit(np.isinf(states).any(axis=(1, 2)), candidates)
        n = int(whole.sum())
        if n < 4:
            raise InvalidInput(f"a tube shape needs at least 4 tune units that did not fail, got {n}")
        kept: NDArray[np.bool_] = np.repeat(whole, candidates)
        forecast, states = forecast.take(kept), states[kept]
        order = np.random.default_rng(0).permutation(n)
        rows = order[:, None] * candidates + np.arange(candidates)
        halves = (rows[::2].ravel(), rows[1::2].ravel())
        first, second = ((forecast.take(half), states[half]) for half in halves)
        scale = np.asarray(units) if units is not None else np.maximum(deviation(states), 1e-12)
        allowed = _errors(n, level)
        band = np.unique(np.clip([allowed // 2, allowed, 2 * allowed], 0, n - 1))
        return cls(forecast, states, (first, second), scale, band, candidates)


def choose(
    fits: Sequence[Callable[[GaussianForecast, Any], Any]], tuning: Tuning
) -> tuple[Any, list[tuple[Any, GaussianForecast, Floats]]]:
    """The fit with the smallest mean normalised size, fitted on either half and measured on the other: on all
    units, and on each half with forecast and states of the other."""
    (first, second), k = tuning.halves, tuning.candidates
    some = k * np.arange(_SIZED) + np.arange(_SIZED) % k  # a row of each unit, of all candidates in turn

    def size(pairs: list[tuple[Any, GaussianForecast, Floats]]) -> float:
        scores = np.concatenate([shape._scores(*other) for shape, *other in pairs])
        limit = _limit(_per_unit(scores, k), tuning.band)
        sets = [shape.sets(other.take(some[: len(truth) // k]), limit) for shape, other, truth in pairs]
        return float(np.mean(np.concatenate([one.normalised_size(tuning.deviation) for one in sets])))

    tried = []
    for fit in fits:
        pairs = [(fit(*one), *other) for one, other in ((first, second), (second, first))]
        tried.append((size(pairs), fit, pairs))
    _, best, crossed = min(tried, key=lambda one: one[0])
    return best(tuning.forecast, tuning.states), crossed


def balance(
    relative: Floats,
    reach: Floats,
    band: NDArray[np.int64],
    sides: Sequence[int] | None = None,
    candidates: int = 1,
) -> Floats:
    """`[2, H, D]` factors for the scales of a box, below and above, that minimise its mean size.

    relative: `[B, H, D]` errors in units of the reach, of units it was not fitted on; NaN after the end
    reach: `[B, H, D]` normalised half-widths of the box at T = 1
    sides: `[D]` see `BoxShape`
    candidates: rows of a unit, see `Tuning`

    The steps share one exponent (wide steps are narrowed by a power of their width), and each dimension has a
    factor below and one above, because errors are often skewed: so few numbers do not overfit.
    """
    lived = int((~np.isnan(relative[..., 0])).any(axis=0).sum())  # later steps were never reached
    errors = np.concatenate([-relative, relative], axis=2)[:, :lived]
    errors = np.where(np.isnan(errors), -np.inf, errors)
    side = np.zeros(reach.shape[2]) if sides is None else np.asarray(sides)
    share = np.stack([1 - side, 1 + side]) / 2  # of a half-width, below and above
    errors[:, :, share.ravel() == 0] = -np.inf
    some = reach[np.random.default_rng(0).permutation(len(reach))[:_SIZED], :lived]
    wide = np.sqrt(np.mean(some**2, axis=(0, 2)))
    factors, tried = np.ones(share.size), []
    for exponent in _EXPONENTS:
        steps = (wide / wide.max()) ** -exponent
        squares = (some * steps[:, None]) ** 2

        def size(factors: Floats, squares: Floats = squares) -> float:
            widths = (share * factors.reshape(share.shape)).sum(axis=0)
            return float(np.mean(np.sqrt(np.mean(squares * widths**2, axis=2))))

        worst = _per_unit((errors / steps[:, None]).max(axis=1), candidates)
        factors, least = _descend(worst, factors, size, band)
        tried.append((least, np.append(steps, np.full(reach.shape[1] - lived, steps[-1])), factors))
    _, steps, factors = min(tried, key=lambda one: one[0])
    return np.asarray(steps[:, None] * factors.reshape(2, 1, -1))


def _descend(
    worst: Floats, factors: NDArray[np.float64], size: Callable[[Floats], float], band: NDArray[np.int64]
) -> tuple[NDArray[np.float64], float]:
    """Coordinate descent in the factors `[K]` of the scores `worst` `[B, K]`, and the size it reaches."""
    best = _limit((worst / factors).max(axis=1), band) * size(factors)
    improved = best > 0
    while improved:
        improved = False
        for k in range(len(factors)):
            others = np.delete(worst / factors, k, axis=1).max(axis=1)
            for step in (_STEP, 1 / _STEP):
                new = factors.copy()
                new[k] = np.clip(step * new[k], 1 / _FARTHEST, _FARTHEST)
                reached = _limit(np.maximum(others, worst[:, k] / new[k]), band) * size(new)
                if 0 < reached < best * (1 - 1e-3):
                    best, factors, improved = reached, new, True
                    break
    return factors, best


def _limit(scores: Floats, band: NDArray[np.int64]) -> float:
    """The threshold of these scores, averaged over the band of allowed errors."""
    places = len(scores) - 1 - band
    return float(np.partition(scores, places)[places].mean())


def _per_unit(rows: Any, candidates: int) -> NDArray[Any]:
    """The largest of each unit's rows."""
    return np.asarray(rows.reshape(-1, candidates, *rows.shape[1:]).max(axis=1))


def _errors(n: int, level: PACLevel) -> int:
    try:
        return max_errors(n, level)
    except NotEnoughData:  # a choice needs no proof
        return int(level.epsilon * n)
