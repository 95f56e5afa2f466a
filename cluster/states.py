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
    workers: ready ones
    retries: shards begun again because a worker died
    repeats: shards begun a second time because their worker was slow
    last: the latest receipt
    """

    units: int
    shards: int
    ready: int = 0
    done: int = 0
    finished: int = 0
    workers: int = 1
    retries: int = 0
    repeats: int = 0
    last: Receipt | None = None

    @classmethod
    def of(cls, job: Job, found: Mapping[int, Receipt]) -> State:
        """At the start, with these shards finished already."""
        ready = sum(receipt.n for receipt in found.values())
        return cls(job.units, len(job.shards), ready, ready, len(found))

    def kept(self, receipt: Receipt) -> None:
        """One more shard is finished."""
        self.last = receipt
        self.finished += 1
        self.done += receipt.n
