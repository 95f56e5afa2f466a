"""The exact k-th largest of scores that stay in their shards: radix selection.

The bits of a float, with the sign turned, sort as floats do. Four passes fix sixteen bits each: every shard
counts its scores by the next digit, and the driver adds the counts and picks the digit. A shard sends a few
kilobytes per pass however many scores it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import numbers
from pac_core.errors import InvalidInput

_DIGIT = 16
_PASSES = 4
_SIGN = np.uint64(1 << 63)

Counts: TypeAlias = tuple[NDArray[np.uint16], NDArray[np.int64]]
"""The digits that occur, and how often."""
CountDigits: TypeAlias = Callable[[tuple[int, ...]], Iterable[tuple[Hashable, Counts]]]
"""Given the digits fixed so far: the id of every shard, each once, with its counts."""


@dataclass(frozen=True)
class Selected:
    """The score at a rank, and how many equal it."""

    value: float
    ties: int


def digit_counts(scores: Any, prefix: tuple[int, ...]) -> Counts:
    """How many scores `[N]` continue the digits `prefix` with each next digit."""
    keys = _keys(numbers("scores", scores, "[N]"))
    shift = np.uint64(_DIGIT * (_PASSES - len(prefix)))
    if prefix:
        keys = keys[keys >> shift == np.uint64(_join_digits(prefix))]
    digits = (keys >> (shift - np.uint64(_DIGIT))) & np.uint64((1 << _DIGIT) - 1)
    counts = np.bincount(digits.astype(np.int64), minlength=1 << _DIGIT)
    present = np.flatnonzero(counts)
    return present.astype(np.uint16), counts[present]


def select_largest(count: CountDigits, rank: int, sizes: Mapping[Hashable, int]) -> Selected:
    """The score at `rank` (0 is the largest) among the scores of all shards.

    `sizes` states beforehand which shards there are and how many scores each holds. A shard that is missing,
    repeated or changed is refused: it must never make a smaller sample.
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
    return Selected(_value(prefix), expected)


def _keys(scores: Any) -> NDArray[np.uint64]:
    bits = (scores.astype(np.float64) + 0.0).view(np.uint64)  # + 0.0 makes -0.0 the same as 0.0
    keys: NDArray[np.uint64] = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return keys


def _join_digits(digits: tuple[int, ...]) -> int:
    return sum(digit << (_DIGIT * (len(digits) - 1 - i)) for i, digit in enumerate(digits))


def _value(digits: tuple[int, ...]) -> float:
    key = np.uint64(_join_digits(digits))
    bits = key & ~_SIGN if key & _SIGN else ~key
    return float(np.array([bits], dtype=np.uint64).view(np.float64)[0])
