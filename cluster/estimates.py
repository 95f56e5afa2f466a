"""What a run will take, from one shard that was really computed."""

from __future__ import annotations

from cluster.engines import State
from cluster.jobs import Receipt
from cluster.progress import duration


def estimate(state: State, receipt: Receipt) -> str:
    """Time, memory and storage of what is left, in a sentence: with all the workers that it has work for.

    Where pools work hand in hand, the slowest of them sets the pace.

    >>> from cluster.jobs import Effort
    >>> shard = Receipt(0, n=500, digest="", size=4_000_000, effort=Effort((5.0,), 600_000_000))
    >>> estimate(State(units=15_000, shards=30, done=500, finished=1, most=(2,)), shard)
    'a shard takes 5.0 s and 600 MB of memory: 29 left, about 1 min 12 s on 2 workers; 120 MB to store'
    >>> shard = Receipt(0, n=500, digest="", size=4_000_000, effort=Effort((5.0, 4.0), 600_000_000))
    >>> estimate(State(units=15_000, shards=30, done=500, finished=1, most=(4, 1)), shard)[:60]
    'a shard takes 5.0 + 4.0 s and 600 MB of memory: 29 left, abo'
    >>> estimate(State(units=15_000, shards=30, done=500, finished=1, most=(4, 1)), shard)[56:]
    ' about 1 min 56 s on 4 + 1 workers; 120 MB to store'
    """
    left = state.shards - state.finished
    many = [max(1, min(count, left)) for count in state.most]
    pace = max(seconds / workers for seconds, workers in zip(receipt.effort.seconds, many, strict=True))
    took = " + ".join(f"{seconds:.1f}" for seconds in receipt.effort.seconds)
    stored = receipt.size / receipt.n * state.units
    return (
        f"a shard takes {took} s and {size(receipt.effort.memory)} of memory: {left:,} left, about "
        f"{duration(left * pace)} on {' + '.join(map(str, many))} worker{'s' * (many != [1])}; "
        f"{size(stored)} to store"
    )


def size(count: float) -> str:
    """Bytes in words.

    >>> size(950), size(5e6), size(2.5e9)
    ('1 kB', '5 MB', '2.5 GB')
    """
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{max(1, round(count / 1e3))} kB"
