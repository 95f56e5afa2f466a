"""Why a run on Ray stopped: each says what is kept and what to do next."""

from __future__ import annotations

from pac_core import PACError


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
