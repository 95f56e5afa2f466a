"""The episodes of a descent through the engine: each scale is a run of its own, in a folder of its own.

What the engine guarantees carries over: exactly the planned episodes, each once, whatever dies on the way; a
descent that was interrupted goes on with the episodes that are finished.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster.scoring import Job, Stage
from cluster.storage import RunFolder

Launch = Callable[[Job, RunFolder], Any]
"""Runs a job to its end: `run_here`, `run_on_ray`, or either with options."""


def episodes_through(
    launch: Launch, stage: Callable[[float], Stage], root: str, *, size: int, **configuration: Any
) -> Callable[[float, NDArray[Any]], NDArray[np.bool_]]:
    """The `run` that `pac_core.descend` asks for: from a scale and the ids of its episodes to their errors.

    stage: from a scale to its scorer, whose arrays have `errors`, a boolean for each episode
    root: folder or URL; each scale gets a folder below it
    size: episodes of a shard
    configuration: all that decides what an episode does, beside its id and the scale; a folder belongs to one
    """

    def run(scale: float, ids: NDArray[Any]) -> NDArray[np.bool_]:
        job = Job.of("episodes", ids.tolist(), [stage(scale)], size=size, scale=scale, **configuration)
        folder = RunFolder(f"{root.rstrip('/')}/scale-{scale!r}")
        launch(job, folder)
        return np.concatenate([errors for _, errors in folder.over(job.shards, _errors)])

    return run


def _errors(shard: Any, arrays: Any) -> NDArray[np.bool_]:
    errors: NDArray[np.bool_] = arrays["errors"]
    return errors
