"""How a tube's shape is chosen on the tune part: by its size on units it was not fitted on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Floats
from pac_core.bounds import PACLevel, max_errors
from pac_core.errors import InvalidInput, NotEnoughData
from pac_core.forecasts import GaussianForecast, Trajectories
from pac_core.sets.gaussian import deviation

Shape = TypeVar("Shape")
_SIZED = 500  # units of each half on which sizes are compared: their mean needs no more
_STEP = 1.1  # factor by which a scale is tried larger and smaller
_FARTHEST = 4.0  # times larger or smaller: a tail without errors may still have some
_EXPONENTS = (0.0, 0.1, 0.2, 0.3, 0.4)


@dataclass(frozen=True, eq=False)
class Tuning:
    """The tune units that did not fail, in two halves; states are NaN after a unit's end.

    deviation: `[D]` the units in which half-widths of different dimensions are compared
    band: numbers of errors over which a threshold is averaged: one order statistic of the tail is noise
    """

    forecast: GaussianForecast
    states: Floats
    halves: tuple[tuple[GaussianForecast, Floats], tuple[GaussianForecast, Floats]]
    deviation: Floats
    band: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        forecast: GaussianForecast,
        states: Floats | Trajectories,
        level: PACLevel,
        units: Sequence[float] | None = None,
    ) -> Tuning:
        states = states.marked() if isinstance(states, Trajectories) else states
        whole = ~np.isinf(states).any(axis=(1, 2))
        n = int(whole.sum())
        if n < 4:
            raise InvalidInput(f"a tube shape needs at least 4 tune units that did not fail, got {n}")
        forecast, states = forecast.take(whole), states[whole]
        order = np.random.default_rng(0).permutation(n)
        first, second = ((forecast.take(half), states[half]) for half in (order[::2], order[1::2]))
        scale = np.asarray(units) if units is not None else np.maximum(deviation(states), 1e-12)
        allowed = _errors(n, level)
        band = np.unique(np.clip([allowed // 2, allowed, 2 * allowed], 0, n - 1))
        return cls(forecast, states, (first, second), scale, band)


@dataclass(frozen=True, eq=False)
class Chosen(Generic[Shape]):
    """The best fit, on all units, and on either half with forecast and states of the other."""

    whole: Shape
    crossed: list[tuple[Shape, GaussianForecast, Floats]]


def choose(fits: Sequence[Callable[[GaussianForecast, Any], Any]], tuning: Tuning) -> Chosen[Any]:
    """The fit with the smallest mean normalised size, fitted on either half and measured on the other."""
    first, second = tuning.halves

    def size(pairs: list[tuple[Any, GaussianForecast, Floats]]) -> float:
        limit = _limit(np.concatenate([shape._scores(*other) for shape, *other in pairs]), tuning.band)
        some = slice(0, _SIZED)
        sets = [shape.sets(other.take(some), limit) for shape, other, _ in pairs]
        return float(np.mean(np.concatenate([one.normalised_size(tuning.deviation) for one in sets])))

    tried = []
    for fit in fits:
        pairs = [(fit(*one), *other) for one, other in ((first, second), (second, first))]
        tried.append((size(pairs), fit, pairs))
    _, best, crossed = min(tried, key=lambda one: one[0])
    return Chosen(best(tuning.forecast, tuning.states), crossed)


def balance(
    relative: Floats, reach: Floats, band: NDArray[np.int64], sides: Sequence[int] | None = None
) -> Floats:
    """`[2, H, D]` factors for the scales of a box, below and above, that minimise its mean size.

    relative: `[B, H, D]` errors in units of the reach, of units it was not fitted on; NaN after the end
    reach: `[B, H, D]` normalised half-widths of the box at T = 1
    sides: `[D]` see `BoxShape`

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

        factors, least = _descend((errors / steps[:, None]).max(axis=1), factors, size, band)
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


def _errors(n: int, level: PACLevel) -> int:
    try:
        return max_errors(n, level)
    except NotEnoughData:  # a choice needs no proof
        return int(level.epsilon * n)
