"""Runs: jobs cut into shards, their folder, engines, results and certificates."""

from pac_core.runs.digests import OURS, Digests, Undigested, find_versions
from pac_core.runs.driver import Finding, Held, certify_choices, certify_run, refuse_second_look
from pac_core.runs.engines import (
    Engine,
    State,
    counted,
    describe_error,
    episodes_through,
    estimate,
    run_here,
    shown,
    size,
)
from pac_core.runs.folders import RunFolder
from pac_core.runs.jobs import (
    Arrays,
    Effort,
    Job,
    Receipt,
    Scorer,
    Shard,
    Stage,
    cut,
    finish_shard,
    make_scorers,
    run_stages,
)
from pac_core.runs.reading import ALL, Results, Task, View

__all__ = [
    "ALL",
    "OURS",
    "Arrays",
    "Digests",
    "Effort",
    "Engine",
    "Finding",
    "Held",
    "Job",
    "Receipt",
    "Results",
    "RunFolder",
    "Scorer",
    "Shard",
    "Stage",
    "State",
    "Task",
    "Undigested",
    "View",
    "certify_choices",
    "certify_run",
    "counted",
    "cut",
    "describe_error",
    "episodes_through",
    "estimate",
    "find_versions",
    "finish_shard",
    "make_scorers",
    "refuse_second_look",
    "run_here",
    "run_stages",
    "shown",
    "size",
]
