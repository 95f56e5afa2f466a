"""Real Ray, one machine: the same bits for any number of workers and whatever happens to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import toy_scorers as toys
from scipy.stats import norm
from toy_runs import SIZE, UNITS, files, job

from cluster import engine as engine_module
from cluster.engine import run
from cluster.errors import NoWorkers, ShardFailed, WorkerDiffers
from cluster.inprocess import run_here
from cluster.progress import words
from cluster.scoring import Job, Stage, versions
from cluster.storage import RunFolder
from pac_core import InvalidInput, PACLevel, fit_threshold

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.xdist_group("ray")]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_bits_of_the_twin(
    tmp_path: Path, undisturbed: list[str], workers: int
) -> None:
    state = run(job(), RunFolder(tmp_path), workers=(workers, workers))
    assert files(tmp_path) == undisturbed
    assert (state.done, state.finished, state.retries) == (UNITS, UNITS // SIZE, 0)


def test_two_stages_in_two_pools_give_the_bits_of_one_worker_that_does_both(tmp_path: Path) -> None:
    def chain(cpus: int) -> Job:
        return Job.of("two", range(60), [Stage(toys.Draw), Stage(toys.Square, cpus=cpus)], size=6)

    run_here(chain(1), RunFolder(tmp_path / "twin"))
    run(chain(1), RunFolder(tmp_path / "fused"))
    run(chain(2), RunFolder(tmp_path / "pools"), workers=(1, 1))  # other needs, so pools of their own
    assert files(tmp_path / "twin") == files(tmp_path / "fused") == files(tmp_path / "pools")


@pytest.mark.parametrize("scorer", [toys.DiesOnce, toys.RunsOutOfMemoryOnce])
def test_a_worker_that_dies_changes_nothing(
    tmp_path: Path, notes: Path, undisturbed: list[str], scorer: type
) -> None:
    state = run(job(scorer, str(notes)), RunFolder(tmp_path / "run"), workers=(1, 1))
    assert files(tmp_path / "run") == undisturbed
    assert state.retries == 1
    assert len(list(notes.glob("worker-*"))) == 2, "the worker and the one that took its place"


def test_a_straggler_is_overtaken(tmp_path: Path, notes: Path, undisturbed: list[str]) -> None:
    state = run(job(toys.HangsOnce, str(notes)), RunFolder(tmp_path / "run"), workers=(2, 2))
    assert files(tmp_path / "run") == undisturbed
    assert state.repeats >= 1
    assert state.retries == 0


def test_a_shard_that_kills_every_worker_stops_the_run(tmp_path: Path, notes: Path) -> None:
    with pytest.raises(ShardFailed, match=r"shard 3 \(10 units, 30 to 39\).*died 4 times"):
        run(job(toys.DiesAlways, str(notes)), RunFolder(tmp_path), workers=(1, 1), retries=2)


def test_a_poisoned_shard_stops_the_run_and_the_rest_is_kept(
    tmp_path: Path, notes: Path, undisturbed: list[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(
        ShardFailed, match=r"shard 3 \(10 units, 30 to 39\) failed: ValueError: image 35"
    ) as said:
        run(job(toys.Poisoned, str(notes)), folder, workers=(1, 1))
    assert "start the same command again" in str(said.value)
    assert "toy_scorers.py" in said.value.details, "the traceback of the worker"
    kept = files(tmp_path / "run")
    assert kept == undisturbed[:3]
    begun = len(list(notes.glob("begun-*")))
    run(job(toys.Marked, str(notes)), folder, workers=(1, 1))  # the file was mended
    assert files(tmp_path / "run") == undisturbed
    assert len(list(notes.glob("begun-*"))) == begun + 17, "three of twenty were not computed again"


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        (toys.CannotStart, "the start of a worker failed: FileNotFoundError: weights.bin"),
        (toys.Forgets, "must have a row for each of the 10 units, got (9,)"),
        (toys.Mixes, "a scorer must return `ids`"),
    ],
)
def test_a_scorer_that_cannot_be_trusted_is_refused(tmp_path: Path, scorer: type, said: str) -> None:
    with pytest.raises(ShardFailed) as error:
        run(job(scorer), RunFolder(tmp_path), workers=(1, 1))
    assert said in str(error.value)
    assert not (tmp_path / "shards").exists()


def test_a_worker_with_other_versions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = versions(("numpy",)) | {"numpy": "1.0"}
    monkeypatch.setattr(engine_module, "versions", lambda needs: here)
    with pytest.raises(WorkerDiffers, match=rf"numpy \({np.__version__} there, 1.0 here\)"):
        run(job(), RunFolder(tmp_path), workers=(1, 1))


def test_threads_are_the_cpus_of_the_worker(tmp_path: Path) -> None:
    for cpus in (1, 2):
        stages = [Stage(toys.Tells, cpus=cpus, needs=("numpy", "torch"))]
        asked, folder = Job.of("tells", range(4), stages, size=4), RunFolder(tmp_path / str(cpus))
        run(asked, folder, workers=(1, 1))
        [(_, told)] = folder.over(asked.shards, lambda shard, arrays: arrays)
        assert (told["torch"][0], told["blas"][0], told["cuda"][0]) == (cpus, cpus, 0)


def test_what_no_cluster_can_do_is_refused_before_any_work(tmp_path: Path) -> None:
    needs_gpu = Job.of("gpu", range(4), [Stage(toys.Draw, gpus=1)], size=2)
    with pytest.raises(
        NoWorkers, match="a worker of each kind needs 1 CPU and 1 GPU, but the cluster has 3 CPU"
    ):
        run(needs_gpu, RunFolder(tmp_path / "a"))
    with pytest.raises(InvalidInput, match="workers must be at least 1"):
        run(job(), RunFolder(tmp_path / "b"), workers=(2, 1))


@pytest.mark.parametrize(("scorer", "cpus"), [(toys.Draw, 4), (toys.NeverReady, 1)])
def test_a_run_that_nobody_works_for_gives_up(tmp_path: Path, scorer: type, cpus: int) -> None:
    """Machines that never come (the engine has three CPUs and may grow to four), and a worker that hangs."""
    said = []
    stuck = Job.of("stuck", range(20), [Stage(scorer, cpus=cpus)], size=10)
    with pytest.raises(NoWorkers, match=f"no worker with {cpus} CPU was ready within 0.05 minutes"):
        run(stuck, RunFolder(tmp_path), workers=(1, 2), wait=3.0, progress=lambda s: said.append(words(s)))
    assert said[-1] == f"waiting for a worker with {cpus} CPU"


def test_a_limit_stops_early_and_the_next_run_goes_on(tmp_path: Path, undisturbed: list[str]) -> None:
    state = run(job(), RunFolder(tmp_path), workers=(1, 1), limit=2)
    assert (state.finished, state.shards) == (2, 20)
    seen: list[int] = []
    run(job(), RunFolder(tmp_path), progress=lambda state: seen.append(state.done))
    assert seen[0] == 20, "what was found counts as done"
    assert files(tmp_path) == undisturbed


def test_shards_that_fail_because_they_are_hard_are_not_lost(tmp_path: Path, notes: Path) -> None:
    """A job that dropped them would promise too much; this one has every unit, and the same threshold."""
    asked, level = job(toys.HardOnesFail, str(notes), units=400), PACLevel(0.1, 0.05)
    folder = RunFolder(tmp_path / "run")
    state = run(asked, folder, workers=(2, 2), retries=4)
    scores = {
        shard.number: found for shard, found in folder.over(asked.shards, lambda s, arrays: arrays["scores"])
    }
    hard = [number for number, found in scores.items() if found.max() > 1.5]
    assert len(hard) >= 10
    assert state.retries >= 5
    direct = [np.random.default_rng(unit).normal() for unit in range(400)]
    kept = np.concatenate([found for number, found in scores.items() if number not in hard])
    threshold = fit_threshold(np.concatenate(list(scores.values())), level)
    assert threshold == fit_threshold(direct, level)
    assert 1 - norm.cdf(threshold.value) <= level.epsilon
    assert 1 - norm.cdf(fit_threshold(kept, level).value) > level.epsilon, "dropping them breaks the promise"
