"""The one number that calibration fits: T, the (k*+1)-th largest calibration score."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pac_core.arrays import numbers
from pac_core.bounds import Bound, PACLevel, max_errors
from pac_core.errors import TooManyFailures
from pac_core.selection import CountDigits, digit_counts, select_largest
from pac_core.texts import at_least


@dataclass(frozen=True, repr=False)
class Threshold:
    """T and the evidence for it: prediction sets are `{y : score(x, y) <= value}`.

    value: T; it may be rounded up, never down
    n: calibration units
    errors: how many of them may score above T (k*)
    level: the level this proves
    bound: the name of the bound that gave `errors`

    The promise is about new units, provided that they and the calibration units are independent draws from
    one distribution and that the calibration units were not used to choose the score.
    """

    value: float
    n: int
    errors: int
    level: PACLevel
    bound: str = max_errors.__name__

    def __repr__(self) -> str:
        return (
            f"T = {at_least(self.value)} from {self.n:,} calibration units, of which {self.errors:,} may lie "
            f"above: error at most {at_least(self.level.epsilon)} with confidence 1 - "
            f"{at_least(self.level.delta)}, for units drawn like these."
        )


@dataclass(frozen=True, eq=False)
class ShardedScores:
    """Scores that stay in their shards; only a function's value for each shard is collected.

    sizes: states beforehand which shards there are and how many scores each holds
    over: called with a function of scores `[n]`; yields each shard's id, once, with the function's value
    """

    sizes: Mapping[Hashable, int]
    over: Callable[[Callable[[Any], Any]], Iterable[tuple[Hashable, Any]]]

    def __len__(self) -> int:
        return sum(self.sizes.values())


def fit_threshold(scores: Any, level: PACLevel, *, bound: Bound = max_errors) -> Threshold:
    """The smallest T that proves the level on calibration scores `[N]` (algorithm 1 of the paper).

    From `ShardedScores` T is the same to the last bit. Tied scores need no care. Failed units score +inf; if
    they outnumber the errors allowed, there is no threshold: `TooManyFailures`.

    >>> fit_threshold(range(100), PACLevel(epsilon=0.1, delta=0.1)).value
    94.0
    """
    if isinstance(scores, ShardedScores):
        return fit_threshold_from_shards(
            lambda prefix: scores.over(lambda part: digit_counts(part, prefix)),
            scores.sizes,
            level,
            bound=bound,
        )
    array = numbers("scores", scores, "[N]")
    n = len(array)
    errors = bound(n, level)
    value = float(np.partition(array, n - 1 - errors)[n - 1 - errors])
    if np.isinf(value):
        raise TooManyFailures(int(np.isinf(array).sum()), errors, n)
    return Threshold(value + 0.0, n, errors, level, bound_name(bound))


def bound_name(bound: Bound) -> str:
    """The name under which a threshold records its bound."""
    return getattr(bound, "__name__", type(bound).__name__)


def fit_threshold_from_shards(
    count: CountDigits, sizes: Mapping[Hashable, int], level: PACLevel, *, bound: Bound = max_errors
) -> Threshold:
    """The same T, bit for bit, from scores that stay in their shards.

    `count(prefix)` yields each shard's id with `digit_counts(scores, prefix)`; it is called four times.
    `sizes` states beforehand which shards there are and how many scores each holds.

    >>> shards = {"a": range(0, 50), "b": range(50, 100)}
    >>> def count(prefix):
    ...     return [(name, digit_counts(scores, prefix)) for name, scores in shards.items()]
    >>> fit_threshold_from_shards(count, {"a": 50, "b": 50}, PACLevel(epsilon=0.1, delta=0.1)).value
    94.0
    """
    n = sum(sizes.values())
    errors = bound(n, level)
    selected = select_largest(count, errors, sizes)
    if np.isinf(selected.value):
        raise TooManyFailures(selected.ties, errors, n)
    return Threshold(selected.value, n, errors, level, bound_name(bound))
