"""The twin of the engine without Ray: the same shards in this process, with the same bits."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cluster.errors import ShardFailed
from cluster.faults import words
from cluster.scoring import Job, finish, make_scorers, run_stages
from cluster.states import State
from cluster.storage import RunFolder


def run_here(
    job: Job,
    folder: RunFolder,
    *,
    device: str = "cpu",
    limit: int | None = None,
    progress: Callable[[State], Any] | None = None,
) -> State:
    """Every shard of the job, one after the other, written to the folder; what is there is kept.

    limit: stop after so many
    """
    run = folder.claim(job, device)
    found, damaged = folder.mend(job)
    state = State.of(job, found, damaged)
    todo = [shard for shard in job.shards if shard.number not in found][:limit]
    if progress is not None:
        progress(state)
    with _named("the start of a worker"):
        scorers = make_scorers(job.stages, device, job.stages[0].cpus) if todo else []
    for shard in todo:
        started = time.perf_counter()
        with _named(str(shard)):
            receipt, content = finish(shard, run_stages(scorers, shard, {}), started, run)
        folder.keep(receipt, content)
        state.kept(receipt)
        if progress is not None:
            progress(state)
    if limit is None:
        folder.check(job)
    return state


@contextmanager
def _named(what: str) -> Iterator[None]:
    """What a scorer raises, as the engine says it."""
    try:
        yield
    except Exception as raised:
        raise ShardFailed(what, words(raised), traceback.format_exc()) from raised
