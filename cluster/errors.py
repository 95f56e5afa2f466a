"""Why a run stopped: each says what is kept and what to do next."""

from __future__ import annotations

from pac_core import PACError


class ShardFailed(PACError):
    """A shard fails by its own fault, or takes every worker down with it; the rest of the run is kept."""

    def __init__(self, shard: str, reason: str, details: str = "") -> None:
        super().__init__(shard, reason, details)
        self.shard, self.reason, self.details = shard, reason, details

    def __str__(self) -> str:
        return (
            f"{self.shard} failed: {self.reason}. Nothing is certified without it, because failures are "
            "no random sample. Finished shards are kept: mend the cause and start the same command again "
            "(in another folder, if the scorer's own code has to change)."
        )


class WorkerDiffers(PACError):
    """A worker has other versions than the driver, so its results could have other digits."""

    def __init__(self, host: str, differences: str) -> None:
        super().__init__(host, differences)
        self.host, self.differences = host, differences

    def __str__(self) -> str:
        return (
            f"the worker on {self.host} differs from the driver in {self.differences}: install the same "
            "versions on every machine (docs/cluster.md), then start again; finished shards are kept."
        )


class NoWorkers(PACError):
    """The cluster has no room for a single worker, or none came in time."""


class Incomplete(PACError):
    """The stored shards are not exactly the promised ones, each once."""
