"""Scoring on Ray: shards, workers, run folders, certificates from what they hold."""

from cluster.driver import Finding, Task, certify_run
from cluster.engines import Engine, State, run_here
from cluster.errors import NoWorkers, WorkerDiffers
from cluster.folders import RunFolder
from cluster.jobs import Job, Receipt, Scorer, Shard, Stage, cut
from cluster.results import Results, View
from cluster.session import Session, connected, run_on_ray
from pac_core.errors import Incomplete, ShardFailed

__all__ = [
    "Engine",
    "Finding",
    "Incomplete",
    "Job",
    "NoWorkers",
    "Receipt",
    "Results",
    "RunFolder",
    "Scorer",
    "Session",
    "Shard",
    "ShardFailed",
    "Stage",
    "State",
    "Task",
    "View",
    "WorkerDiffers",
    "certify_run",
    "connected",
    "cut",
    "run_here",
    "run_on_ray",
]
