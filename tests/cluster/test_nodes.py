"""Several raylets on one machine: lost nodes, workers killed at random, GPUs that are only counted."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import toy_scorers as toys
from ray.cluster_utils import Cluster
from scipy.stats import binom
from toy_runs import SIZE, UNITS, contents, job

from cluster import workers as attempts
from cluster.engine import run
from cluster.workers import NoWorkers
from pac_core import PACLevel
from pac_core.certificates import Record
from pac_core.runs import Job, RunFolder, Stage, State, Task, certify_run, run_here

pytestmark = [pytest.mark.doors, pytest.mark.xdist_group("ray")]  # one Ray at a time

QUICK = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 2,
}


@contextmanager
def nodes(*resources: dict[str, float]) -> Iterator[tuple[Cluster, list[Any]]]:
    """A head without CPUs and a raylet for each of the resources; Ray is connected to them."""
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": QUICK})
    try:
        added = [cluster.add_node(**{f"num_{kind}": n for kind, n in each.items()}) for each in resources]
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster, added
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_node_that_disappears_changes_nothing(
    tmp_path: Path, notes: Path, undisturbed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node goes that has a shard in hand; with more patience than usual, so that nobody overtakes it."""
    monkeypatch.setattr(attempts, "PATIENCE", toys.WAIT)
    with nodes({"cpus": 1}, {"cpus": 1}) as (cluster, added):
        removed: list[int] = []

        def remove(state: State) -> None:
            held = [path.name.removeprefix("held-") for path in notes.glob("held-*")]
            if held and not removed:
                removed.append(state.finished)
                [gone] = [node for node in added if node.node_id == held[0]]
                cluster.remove_node(gone, allow_graceful=False)

        state = run(job(toys.Holds, str(notes)), RunFolder(tmp_path / "run"), progress=remove)
    assert removed[0] < UNITS // SIZE, "a node was taken away in the middle"
    assert contents(tmp_path / "run") == undisturbed
    assert (state.done, state.retries) == (UNITS, 1)


def test_a_node_between_two_stages_disappears(tmp_path: Path, notes: Path) -> None:
    """What the first stage made lies on the lost node: it is made again.

    The second stage waits meanwhile. Its worker may have fetched two shards, so a third of one node is lost.
    """
    stages = [Stage(toys.Bulky, (str(notes),)), Stage(toys.SquareWhenTold, (str(notes),), gpus=1)]
    asked = Job.of("two", range(60), stages, size=4)
    plain = Job.of("two", range(60), [Stage(toys.Draw), Stage(toys.Square)], size=4)
    run_here(plain, RunFolder(tmp_path / "twin"))
    with nodes({"cpus": 1}, {"cpus": 1}, {"cpus": 1, "gpus": 1}) as (cluster, added):

        def remove(state: State) -> None:
            made = Counter(path.name.split("-")[1] for path in notes.glob("made-*"))
            for node in added[:2]:
                if made[node.node_id] >= 3 and not (notes / "go").exists():
                    cluster.remove_node(node, allow_graceful=False)
                    (notes / "go").touch()

        state = run(asked, RunFolder(tmp_path / "run"), workers=(1, 2), progress=remove)
    assert contents(tmp_path / "run") == contents(tmp_path / "twin")
    assert state.retries >= 1


def test_a_straggler_that_was_overtaken_does_not_hide_a_loss(tmp_path: Path, tmp_path_factory: Any) -> None:
    """Shard 3 hangs in the first stage, is begun again, and then loses its worker in the second."""
    notes = [str(tmp_path_factory.mktemp("notes")) for _ in range(2)]
    stages = [Stage(toys.HangsOnce, (notes[0],)), Stage(toys.SquareDiesOnce, (notes[1],), cpus=2)]
    asked = Job.of("two", range(60), stages, size=6)
    plain = Job.of("two", range(60), [Stage(toys.Draw), Stage(toys.Square, cpus=2)], size=6)
    run_here(plain, RunFolder(tmp_path / "twin"))
    with nodes({"cpus": 6}):
        state = run(asked, RunFolder(tmp_path / "run"), workers=(2, 2))
    assert contents(tmp_path / "run") == contents(tmp_path / "twin")
    assert (state.retries, state.repeats >= 1) == (1, True)


def drawn(make: Any, *args: Any) -> Task:
    """A task of 600 drawn scores in sixty shards."""
    names, model = [f"draw/{i}" for i in range(600)], Record("a draw", digest="0" * 64)
    stages, parts = [Stage(make, args, exempt=("notes",))], {"tune": 0, "calibrate": 500, "seed": 0}
    return Task.of(
        "drawn", range(600), stages, size=10, names=names, unit="draw", model=model, score="drawn", **parts
    )


def test_killing_workers_at_random_changes_no_digit_of_the_certificate(tmp_path: Path, notes: Path) -> None:
    asked, killed = drawn(toys.Marked, str(notes)), []
    draw = random.Random(0)

    def kill(state: State) -> None:
        alive = [int(path.name.removeprefix("worker-")) for path in notes.glob("worker-*")]
        if (
            state.finished > 4 * len(killed)
            and state.finished < state.shards - 2
            and len(alive) > len(killed)
        ):
            victim = draw.choice([pid for pid in alive if pid not in killed])
            killed.append(victim)
            os.kill(victim, signal.SIGKILL)

    with nodes({"cpus": 2}):
        state = run(asked.job, RunFolder(tmp_path / "run"), retries=50, progress=kill)
    assert len(killed) >= 5
    assert state.retries >= 1
    level = PACLevel(0.1, 0.01)
    run_here(asked.job, RunFolder(tmp_path / "twin"))
    assert contents(tmp_path / "run") == contents(tmp_path / "twin")
    certificates = []
    for name in ("run", "twin"):
        _, [finding] = certify_run(asked, RunFolder(tmp_path / name), [level], tmp_path / f"{name}.json")
        certificates.append((tmp_path / name / finding.file).read_bytes())
    assert certificates[0] == certificates[1]
    rows = asked.results(RunFolder(tmp_path / "run")).parts.calibrate.rows.tolist()
    scores = sorted((np.random.default_rng(row).normal() for row in rows), reverse=True)
    allowed = int(binom.ppf(0.01, 500, 0.1)) - 1  # the most with P[Binomial(500, 0.1) <= k] < delta
    assert finding.certificate.predictor.threshold.value == scores[allowed]


@pytest.mark.parametrize(("gpus", "workers"), [(None, 2), (0.5, 4)], ids=["one each", "half of one each"])
def test_model_workers_are_placed_on_gpus(
    tmp_path: Path, notes: Path, gpus: float | None, workers: int
) -> None:
    """The GPUs are only counted: what is tested is where workers go and what they are told."""
    stages = [Stage(toys.Draw), Stage(toys.TellsTogether, (str(notes), workers), gpus=None)]
    asked = Job.of("gpu", range(40), stages, size=2)
    with nodes({"cpus": 1}, {"cpus": 4, "gpus": 2}):
        folder = RunFolder(tmp_path)
        run(asked, folder, gpus=gpus)
    told = [arrays for _, arrays in folder.over(asked.shards, lambda shard, arrays: arrays)]
    assert all(arrays["cuda"][0] == arrays["gpus"][0] == 1 for arrays in told)
    places = [path.name.split(" ")[2:] for path in notes.glob("worker *")]
    assert len(places) >= workers, "at work at the same time; a slow one may have been replaced since"
    assert {tuple(place) for place in places} == {("cuda", "0"), ("cuda", "1")}


def test_a_range_of_workers_leaves_room_for_both_kinds(tmp_path: Path) -> None:
    """Two GPUs beside two CPUs: two workers with a GPU would leave no CPU for the first stage."""
    asked = Job.of("gpu", range(40), [Stage(toys.Draw), Stage(toys.Square, gpus=None)], size=2)
    with nodes({"cpus": 2, "gpus": 2}):
        with pytest.raises(NoWorkers, match="2 workers of each kind need 4 CPU and 2 GPU"):
            run(asked, RunFolder(tmp_path), workers=(2, 2))
        assert run(asked, RunFolder(tmp_path), workers=(1, 8), wait=30.0).done == 40


def test_without_gpus_the_same_job_runs_on_cpus(tmp_path: Path) -> None:
    asked = Job.of("cpu", range(8), [Stage(toys.Tells, gpus=None)], size=4)
    with nodes({"cpus": 1}):
        folder = RunFolder(tmp_path)
        run(asked, folder)
    told = [arrays for _, arrays in folder.over(asked.shards, lambda shard, arrays: arrays)]
    assert all(arrays["cuda"][0] == 0 for arrays in told)
