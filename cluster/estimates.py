"""What a run will take, from one shard that was really computed."""

from __future__ import annotations

from cluster.progress import duration
from cluster.scoring import Receipt
from cluster.states import State


def estimate(state: State, receipt: Receipt, workers: int) -> str:
    """Time, memory and storage of what is left, in a sentence.

    >>> shard = Receipt(number=0, n=500, digest="", size=4_000_000, seconds=5.0, memory=600_000_000)
    >>> estimate(State(units=15_000, shards=30, done=500, finished=1), shard, workers=2)
    'a shard takes 5.0 s and 600 MB of memory: 29 left, about 1 min 12 s on 2 workers; 120 MB to store'
    """
    left = state.shards - state.finished
    time = duration(left * receipt.seconds / max(workers, 1))
    stored = receipt.size / receipt.n * state.units
    many = f"{workers} worker{'s' * (workers != 1)}"
    return (
        f"a shard takes {receipt.seconds:.1f} s and {size(receipt.memory)} of memory: {left:,} left, about "
        f"{time} on {many}; {size(stored)} to store"
    )


def size(count: float) -> str:
    """Bytes in words.

    >>> size(950), size(5e6), size(2.5e9)
    ('1 kB', '5 MB', '2.5 GB')
    """
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{max(1, round(count / 1e3))} kB"
