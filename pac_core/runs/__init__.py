"""Runs: jobs cut into shards, their folder, engines, results and certificates."""

from pac_core.runs.digests import OURS, find_versions
from pac_core.runs.driver import (
    Finding,
    Task,
    certificate_file,
    certify_results,
    certify_run,
    evaluate_certificates,
    format_csv,
    refuse_second_look,
)
from pac_core.runs.engines import Engine, State, describe_error, episodes_through, run_here
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
from pac_core.runs.progress import counted, estimate, shown, size
from pac_core.runs.results import ALL, Results, View

__all__ = [
    "ALL",
    "OURS",
    "Arrays",
    "Effort",
    "Engine",
    "Finding",
    "Job",
    "Receipt",
    "Results",
    "RunFolder",
    "Scorer",
    "Shard",
    "Stage",
    "State",
    "Task",
    "View",
    "certificate_file",
    "certify_results",
    "certify_run",
    "counted",
    "cut",
    "describe_error",
    "episodes_through",
    "estimate",
    "evaluate_certificates",
    "find_versions",
    "finish_shard",
    "format_csv",
    "make_scorers",
    "refuse_second_look",
    "run_here",
    "run_stages",
    "shown",
    "size",
]
