"""The tube shape `features`: intervals for the few numbers that limits read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace

from pac_core.arrays import Array, Floats, like, listed, numbers
from pac_core.bounds import PACLevel
from pac_core.errors import InvalidInput
from pac_core.forecasts import GaussianForecast
from pac_core.sets import ConfidenceSets, limit_of, widened
from pac_core.shapes import BoxShape
from pac_core.thresholds import Threshold
from pac_core.truths import Trajectories


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
        object.__setattr__(self, "names", tuple(listed("names", self.names)))
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
        return xp.where(failed, like(features, np.inf), features)

    def _matrix(self, states: Array) -> Array:
        if (got := states.shape[-1]) != (dims := self.matrix.shape[1]):
            raise InvalidInput(f"the features {self.names} read states of {dims} numbers, got {got}")
        return like(states, self.matrix)

    def forecast(self, forecast: GaussianForecast) -> GaussianForecast:
        """The Gaussian of each feature on its own."""
        xp = array_namespace(forecast.mean)
        matrix = self._matrix(forecast.mean)
        spreads = [forecast.spread2(matrix[i, :]) for i in range(len(self.names))]
        return GaussianForecast(forecast.mean @ matrix.T, xp.stack(spreads, axis=-1))


@dataclass(frozen=True, eq=False)
class FeatureTube(ConfidenceSets):
    """A tube of intervals, one per feature and step; other directions are unbounded.

    `box()` and the sizes are those of the features, `[B, H, F]`.
    """

    features: LinearFeatures

    def support(self, direction: Array) -> Array:
        """`[B, H]`; +inf along a direction that is not a multiple of a feature's."""
        vector, matrix = like(np.zeros(1), direction), self.features.matrix
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
    ) -> FeatureShape:
        if not isinstance(features, LinearFeatures):
            raise InvalidInput("the shape 'features' needs features=LinearFeatures(names, matrix)")
        states = states.marked() if isinstance(states, Trajectories) else states
        seen = features.forecast(forecast)
        seen.check()  # a variance may vanish along a feature
        return cls(features, BoxShape.fit(seen, features.of(states), level, sides=sides, units=units))

    def scores(self, forecast: GaussianForecast, truth: Any) -> Array:
        states, wide = forecast.check(truth), forecast.wide()
        self.features.forecast(wide).check()
        return self._scores(wide, states)

    def _scores(self, forecast: GaussianForecast, truth: Array) -> Array:
        return self.box._scores(self.features.forecast(forecast), self.features.of(truth))

    def sets(self, forecast: GaussianForecast, threshold: Threshold | float) -> FeatureTube:
        (forecast, sound), limit = forecast.for_sets(), widened(limit_of(threshold))
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
