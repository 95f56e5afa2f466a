"""A shard in the hands of a worker: when it is slow, when it hangs, and how often it may be lost."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from cluster.jobs import Shard
from cluster.pools import Member, Pool
from pac_core.errors import ShardFailed

SLOW = 3.0
"""A shard that takes this many times the median, while others are idle, is begun a second time."""
PATIENCE = 2.0
"""Seconds below which nothing is slow."""
HUNG = 20.0
"""A worker that takes this many times the median for a shard counts as dead, if nothing else ends it."""


@dataclass(eq=False)
class Attempt:
    """A shard in the hands of a worker."""

    receipt: Any
    payload: Any
    shard: Shard
    given: Any
    pool: Pool
    member: Member
    since: float = field(default_factory=time.monotonic)


def slow(pool: Pool) -> list[Attempt]:
    """What workers have in hand that take far longer than others did."""
    if not pool.seconds:
        return []
    limit = max(PATIENCE, SLOW * statistics.median(pool.seconds))
    return [attempt for member in _busy_for(pool, limit) for attempt in member.hands]


def hung(pool: Pool, least: float) -> tuple[list[Member], float]:
    """Workers that will not come back, and the seconds after which that is said: never below `least`.

    While nothing is known of how long a shard takes, `least` stands for it.
    """
    limit = max(least, HUNG * statistics.median(pool.seconds or [least]))
    return _busy_for(pool, limit), limit


def _busy_for(pool: Pool, seconds: float) -> list[Member]:
    now = time.monotonic()
    return [member for member in pool.members if member.hands and now - member.hands[0].since > seconds]


class Losses:
    """How often each shard lost its worker.

    allowed: for each; a worker that dies at once may have been dead before it was given the shard, so then
        one more for every worker of its pool
    """

    def __init__(self, allowed: int) -> None:
        self._allowed, self._counts = allowed, Counter[int]()

    def count(self, attempt: Attempt, why: str) -> None:
        """One more; too many are the shard's own fault."""
        number, limit = attempt.shard.number, self._allowed
        self._counts[number] += 1
        if time.monotonic() - attempt.since < PATIENCE:
            limit += attempt.pool.most
        if self._counts[number] > limit:
            raise ShardFailed(
                str(attempt.shard),
                f"its worker was lost {self._counts[number]} times ({why}); if memory ran out, try smaller "
                "shards or workers with more of it",
            )
