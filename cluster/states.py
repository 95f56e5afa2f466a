"""Where a run stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cluster.scoring import Job, Receipt


@dataclass
class State:
    """Where a run stands; handed to `progress` whenever something happened.

    units, shards: of the whole run
    ready: units that were found finished at the start
    done, finished: units and shards finished by now
    damaged: files that were found and not taken, because they were damaged or of another run
    pools: ready workers of each pool, in the order in which a shard passes them
    most: workers that each pool may have
    retries: shards begun again because a worker died
    repeats: shards begun a second time because their worker was slow
    last: the latest receipt
    missing: what a worker needs of which there is none yet; empty if there are some of each kind
    """

    units: int
    shards: int
    ready: int = 0
    done: int = 0
    finished: int = 0
    damaged: int = 0
    pools: tuple[int, ...] = (1,)
    most: tuple[int, ...] = (1,)
    retries: int = 0
    repeats: int = 0
    last: Receipt | None = None
    missing: str = ""

    @property
    def workers(self) -> int:
        """Ready ones, of all pools."""
        return sum(self.pools)

    @classmethod
    def of(cls, job: Job, found: Mapping[int, Receipt], damaged: int = 0) -> State:
        """At the start, with these shards finished already."""
        ready = sum(receipt.n for receipt in found.values())
        return cls(job.units, len(job.shards), ready, ready, len(found), damaged)

    def kept(self, receipt: Receipt) -> None:
        """One more shard is finished."""
        self.last = receipt
        self.finished += 1
        self.done += receipt.n
