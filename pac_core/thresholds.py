"""The threshold T with its evidence, by exact selection from scores that stay in their shards."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import check_numbers, round_up
from pac_core.bounds import Bound, PACLevel, max_errors
from pac_core.errors import InvalidInput, TooManyFailures

_DIGIT = 16
_PASSES = 4
_SIGN = np.uint64(1 << 63)

Counts: TypeAlias = tuple[NDArray[np.uint16], NDArray[np.int64]]
"""The digits that occur, and how often."""
CountDigits: TypeAlias = Callable[[tuple[int, ...]], Iterable[tuple[Hashable, Counts]]]
"""Given the digits fixed so far: the id of every shard, each once, with its counts."""


def digit_counts(scores: Any, prefix: tuple[int, ...]) -> Counts:
    """How many scores `[N]` continue the digits `prefix` with each next digit."""
    bits = (check_numbers("scores", scores, "[N]").astype(np.float64) + 0.0).view(np.uint64)  # -0.0 is 0.0
    keys = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    shift = np.uint64(_DIGIT * (_PASSES - len(prefix)))
    if prefix:
        keys = keys[keys >> shift == np.uint64(_join_digits(prefix))]
    digits = (keys >> (shift - np.uint64(_DIGIT))) & np.uint64((1 << _DIGIT) - 1)
    counts = np.bincount(digits.astype(np.int64), minlength=1 << _DIGIT)
    present = np.flatnonzero(counts)
    return present.astype(np.uint16), counts[present]


def select_largest(count: CountDigits, rank: int, sizes: Mapping[Hashable, int]) -> tuple[float, int]:
    """The score at `rank` (0 is the largest) among the scores of all shards, and how many equal it.

    A shard that is missing, repeated or changed is refused: it must never make a smaller sample.
    """
    prefix: tuple[int, ...] = ()
    expected = sum(sizes.values())
    while len(prefix) < _PASSES:
        total = np.zeros(1 << _DIGIT, dtype=np.int64)
        seen: set[Hashable] = set()
        for shard, (digits, counts) in count(prefix):
            wrong = not prefix and counts.sum() != sizes.get(shard)
            if wrong or shard in seen or shard not in sizes:
                raise InvalidInput(
                    f"each of the {len(sizes):,} expected shards must come once with its scores, got shard "
                    f"{shard!r} with {int(counts.sum()):,} of {sizes.get(shard, 0):,} scores"
                    + (" a second time" if shard in seen else "")
                )
            seen.add(shard)
            total[digits] += counts
        if len(seen) != len(sizes) or int(total.sum()) != expected:
            lost = [shard for shard in sizes if shard not in seen]
            raise InvalidInput(
                f"pass {len(prefix) + 1} must count {expected:,} scores of {len(sizes):,} shards, got "
                f"{int(total.sum()):,} of {len(seen):,}; missing shards: {lost[:3]}"
            )
        above = np.cumsum(total[::-1])
        turned = int(np.searchsorted(above, rank, side="right"))
        digit = len(total) - 1 - turned
        rank -= int(above[turned] - total[digit])
        expected = int(total[digit])
        prefix += (digit,)
    key = np.uint64(_join_digits(prefix))
    bits = key & ~_SIGN if key & _SIGN else ~key
    return float(np.array([bits], dtype=np.uint64).view(np.float64)[0]), expected


def _join_digits(digits: tuple[int, ...]) -> int:
    return sum(digit << (_DIGIT * (len(digits) - 1 - i)) for i, digit in enumerate(digits))


@dataclass(frozen=True, repr=False)
class Threshold:
    """T and the evidence for it: prediction sets are `{y : score(x, y) <= value}`.

    value: T; it may be rounded up, never down
    n, errors: calibration units, and how many of them may score above T (k*), by the named bound
    level: what this proves of new units, if they and the calibration units are independent draws from one
        distribution and the calibration units were not used to choose the score
    """

    value: float
    n: int
    errors: int
    level: PACLevel
    bound: str = max_errors.__name__

    def __repr__(self) -> str:
        return (
            f"T = {round_up(self.value)} from {self.n:,} calibration units, of which {self.errors:,} may lie "
            f"above: error at most {round_up(self.level.epsilon)} with confidence 1 - "
            f"{round_up(self.level.delta)}, for units drawn like these."
        )


@dataclass(frozen=True, eq=False)
class ShardedScores:
    """Scores that stay in their shards; only a function's value for each shard is collected.

    sizes: which shards there are and how many scores each holds
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
        over = scores.over
        return fit_threshold_from_shards(
            lambda prefix: over(lambda part: digit_counts(part, prefix)), scores.sizes, level, bound=bound
        )
    array = check_numbers("scores", scores, "[N]")
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

    >>> shards = {"a": range(0, 50), "b": range(50, 100)}
    >>> def count(prefix):
    ...     return [(name, digit_counts(scores, prefix)) for name, scores in shards.items()]
    >>> fit_threshold_from_shards(count, {"a": 50, "b": 50}, PACLevel(epsilon=0.1, delta=0.1)).value
    94.0
    """
    n = sum(sizes.values())
    errors = bound(n, level)
    value, ties = select_largest(count, errors, sizes)
    if np.isinf(value):
        raise TooManyFailures(ties, errors, n)
    return Threshold(value, n, errors, level, bound_name(bound))
