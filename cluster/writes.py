"""Shards on their way into the run folder: several at once, because a store far away is slow to answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from cluster.folders import RunFolder
from cluster.jobs import Receipt

AT_ONCE = 8
"""Shards that are written at the same time, at most."""
BYTES = 64 << 20
"""No further one is begun above so many bytes: they are the driver's memory."""


class Writes:
    """Writes under way. Leaving it waits for them: what was computed is kept, whatever else failed."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(1 if folder.alone else AT_ONCE)
        self._under_way: dict[Future[None], Receipt] = {}

    def __enter__(self) -> Writes:
        return self

    def __exit__(self, *raised: object) -> None:
        self._threads.shutdown()

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def full(self) -> bool:
        """Whether another has to wait."""
        return len(self) >= AT_ONCE or sum(receipt.size for receipt in self._under_way.values()) >= BYTES

    def begin(self, receipt: Receipt, content: Any) -> None:
        """Writes a shard's file in the background."""
        self._under_way[self._threads.submit(self._folder.keep, receipt, content)] = receipt

    def wait(self, seconds: float | None = None) -> None:
        """Returns when one is finished, or after so many seconds."""
        wait(self._under_way, seconds, FIRST_COMPLETED)

    def finished(self) -> Iterator[Receipt]:
        """Those that are written since this was last asked; raises what a write raised."""
        for write in [write for write in self._under_way if write.done()]:
            receipt = self._under_way.pop(write)
            write.result()
            yield receipt
