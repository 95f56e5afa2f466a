"""The twin of the engine without Ray: the same shards in this process, with the same bits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

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
    found = folder.receipts(job, mend=True)
    state = State.of(job, found)
    todo = [shard for shard in job.shards if shard.number not in found][:limit]
    if progress is not None:
        progress(state)
    scorers = make_scorers(job.stages, device, job.stages[0].cpus) if todo else []
    for shard in todo:
        started = time.perf_counter()
        receipt, content = finish(shard, run_stages(scorers, shard, {}), started, run)
        folder.keep(receipt, content)
        state.kept(receipt)
        if progress is not None:
            progress(state)
    if limit is None:
        folder.check(job)
    return state
