"""The threshold T with its evidence, exact also where the scores stay in their shards."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pac_core.arrays import Floats, check_numbers, round_up
from pac_core.bounds import Bound, PACLevel, max_errors
from pac_core.errors import InvalidInput, TooManyFailures


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
    """Scores that stay in their shards, of which one is read at a time.

    sizes: which shards there are and how many scores each holds
    read: yields each shard's id, once, with its scores `[n]`
    """

    sizes: Mapping[Any, int]
    read: Callable[[], Iterable[tuple[Hashable, Any]]]

    def __len__(self) -> int:
        return sum(self.sizes.values())

    def __iter__(self) -> Iterator[Floats]:
        """Each shard's scores; one that is lost, repeated or cut must never make a smaller sample."""
        due = dict(self.sizes)
        for shard, scores in self.read():
            part = check_numbers("scores", scores, "[N]")
            if len(part) != (expected := due.pop(shard, 0)):
                raise InvalidInput(
                    f"each of the {len(self.sizes):,} expected shards must come once with its scores, got "
                    f"{len(part):,} of shard {shard!r} where {expected:,} were due"
                )
            yield part
        if due:
            raise InvalidInput(f"all {len(self.sizes):,} expected shards must come, got no {[*due][:3]}")


def fit_threshold(scores: Any, level: PACLevel, *, bound: Bound = max_errors) -> Threshold:
    """The smallest T that proves the level on calibration scores `[N]` (algorithm 1 of the paper).

    From `ShardedScores` T is the same to the last bit. Tied scores need no care. Failed units score +inf; if
    they outnumber the errors allowed, there is no threshold: `TooManyFailures`.

    >>> fit_threshold(range(100), PACLevel(epsilon=0.1, delta=0.1)).value
    94.0
    >>> shards = {"a": range(0, 50), "b": range(50, 100)}
    >>> sharded = ShardedScores({"a": 50, "b": 50}, shards.items)
    >>> fit_threshold(sharded, PACLevel(epsilon=0.1, delta=0.1)).value
    94.0
    """
    whole = None if isinstance(scores, ShardedScores) else check_numbers("scores", scores, "[N]")
    shards, n = (scores, len(scores)) if whole is None else ([whole], len(whole))
    errors = bound(n, level)
    largest: Floats = np.empty(0)  # of those seen so far, as many as may be needed; T first
    for part in shards:
        seen = np.concatenate([largest, part]) if len(largest) else part
        place = max(0, len(seen) - 1 - errors)
        largest = np.partition(seen, place)[place:]
    value = float(largest[0])
    if np.isinf(value):
        raise TooManyFailures(sum(int(np.isinf(part).sum()) for part in shards), errors, n)
    name = getattr(bound, "__name__", type(bound).__name__)
    return Threshold(value + 0.0, n, errors, level, name)
