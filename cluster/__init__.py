"""Scoring on Ray: shards, workers, run folders, certificates from what they hold."""

from cluster.driver import Finding, Task, certify_run
from cluster.errors import Incomplete, NoWorkers, ShardFailed, WorkerDiffers
from cluster.inprocess import run_here
from cluster.results import Results, View
from cluster.scoring import Job, Receipt, Scorer, Stage
from cluster.session import Session, connected, run_on_ray
from cluster.shards import Shard, cut
from cluster.states import State
from cluster.storage import RunFolder

__all__ = [
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
