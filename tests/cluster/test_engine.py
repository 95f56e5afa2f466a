"""Real Ray, one machine: the same bits for any number of workers and whatever happens to them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import toy_scorers as toys
from scipy.stats import norm
from toy_runs import SIZE, UNITS, contents, job

from cluster import engine as engine_module
from cluster import run_on_ray
from cluster import workers as pools_module
from cluster.engine import run
from cluster.workers import Attempt, Member, NoWorkers, Pool, Resources, WorkerDiffers, hung
from pac_core import InvalidInput, PACLevel
from pac_core.errors import Incomplete, ShardFailed
from pac_core.runs import (
    Engine,
    Job,
    Receipt,
    RunFolder,
    Shard,
    Stage,
    State,
    cut,
    estimate,
    find_versions,
    run_here,
    shown,
)
from pac_core.runs.engines import words
from pac_core.thresholds import fit_threshold

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.xdist_group("ray")]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_bits_of_the_twin(
    tmp_path: Path, undisturbed: list[str], workers: int
) -> None:
    state = run(job(), RunFolder(tmp_path), workers=(workers, workers))
    assert contents(tmp_path) == undisturbed
    assert (state.done, state.finished, state.retries) == (UNITS, UNITS // SIZE, 0)


def test_every_engine_writes_the_same_folder(tmp_path: Path) -> None:
    """To the last byte, description included; and says the same of it."""
    engines: dict[str, Engine] = {"here": run_here, "ray": run_on_ray}
    states = [engine(job(), RunFolder(tmp_path / name)) for name, engine in engines.items()]
    here, there = (
        {path.relative_to(home): path.read_bytes() for path in home.rglob("*") if path.is_file()}
        for home in (tmp_path / name for name in engines)
    )
    assert here == there
    assert len(here) == UNITS // SIZE + 1
    assert {(state.done, state.finished, state.damaged) for state in states} == {(UNITS, UNITS // SIZE, 0)}


def test_two_stages_in_two_pools_give_the_bits_of_one_worker_that_does_both(tmp_path: Path) -> None:
    def chain(cpus: int) -> Job:
        return Job.of("two", range(60), [Stage(toys.Draw), Stage(toys.Square, cpus=cpus)], size=6)

    run_here(chain(1), RunFolder(tmp_path / "twin"))
    run(chain(1), RunFolder(tmp_path / "fused"))
    run(chain(2), RunFolder(tmp_path / "pools"), workers=(1, 1))  # other needs, so pools of their own
    assert contents(tmp_path / "twin") == contents(tmp_path / "fused") == contents(tmp_path / "pools")


@pytest.mark.parametrize("scorer", [toys.DiesOnce, toys.RunsOutOfMemoryOnce])
def test_a_worker_that_dies_changes_nothing(
    tmp_path: Path, notes: Path, undisturbed: list[str], scorer: type
) -> None:
    state = run(job(scorer, str(notes)), RunFolder(tmp_path / "run"), workers=(1, 1))
    assert contents(tmp_path / "run") == undisturbed
    assert state.retries == 1
    assert len(list(notes.glob("worker-*"))) == 2, "the worker and the one that took its place"


def test_a_straggler_is_overtaken(tmp_path: Path, notes: Path, undisturbed: list[str]) -> None:
    state = run(job(toys.HangsOnce, str(notes)), RunFolder(tmp_path / "run"), workers=(2, 2))
    assert contents(tmp_path / "run") == undisturbed
    assert state.repeats >= 1
    assert state.retries == 0


def test_a_worker_that_hangs_is_replaced_though_nobody_is_idle(
    tmp_path: Path, notes: Path, undisturbed: list[str]
) -> None:
    state = run(job(toys.HangsOnce, str(notes)), RunFolder(tmp_path / "run"), workers=(1, 1), wait=8.0)
    assert contents(tmp_path / "run") == undisturbed
    assert state.retries >= 1  # a machine that stands still for eight seconds loses another
    assert state.repeats == 0


@pytest.mark.parametrize(
    ("took", "limit"), [([], 200.0), ([0.1, 0.1, 90.0], 10.0), ([2.0, 3.0, 4.0], 60.0)], ids=str
)
def test_a_worker_hangs_after_twenty_medians_and_never_before_the_least(
    took: list[float], limit: float
) -> None:
    now = time.monotonic()
    busy = [SimpleNamespace(hands=[SimpleNamespace(since=now - limit - more)]) for more in (-5.0, 5.0)]
    pool: Any = SimpleNamespace(seconds=took, members=[*busy, SimpleNamespace(hands=[])])
    assert hung(pool, 10.0) == ([busy[1]], limit)


class Meeting(RunFolder):
    """A folder that writes no shard before another is written at the same time."""

    def keep(self, receipt: Receipt, content: Any) -> None:
        if not hasattr(self, "both"):
            self.both = threading.Barrier(2)
        self.both.wait(toys.WAIT)
        super().keep(receipt, content)


def test_shards_are_written_at_the_same_time(tmp_path: Path, undisturbed: list[str]) -> None:
    state = run(job(), Meeting(tmp_path), workers=(1, 1))
    assert contents(tmp_path) == undisturbed
    assert state.finished == UNITS // SIZE


class Full(RunFolder):
    """A folder with room for a few shards; what it has is counted when it is asked for one more."""

    def keep(self, receipt: Receipt, content: Any) -> None:
        if receipt.number == 5:
            raise OSError(28, "No space left on device")
        super().keep(receipt, content)


def test_what_a_write_raises_stops_the_run_and_no_such_shard_is_counted(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    states: list[State] = []
    with pytest.raises(OSError, match="No space left"):
        run(job(), Full(tmp_path), workers=(1, 1), progress=states.append)
    assert states[-1].finished <= len(contents(tmp_path)) < UNITS // SIZE
    run(job(), RunFolder(tmp_path))
    assert contents(tmp_path) == undisturbed


def test_what_is_done_beside_a_poisoned_shard_is_kept(
    tmp_path: Path, notes: Path, undisturbed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is away until everything that was handed out is done; the poisoned shard is the first."""
    wait = ray.wait

    def late(refs: list[Any], *, num_returns: int = 1, **options: Any) -> Any:
        return wait(refs, num_returns=len(refs), timeout=toys.WAIT, fetch_local=False)

    monkeypatch.setattr(engine_module.ray, "wait", late)
    with pytest.raises(ShardFailed, match=r"shard 0 \(10 units, 0 to 9\)"):
        run(job(toys.PoisonedAtOnce, str(notes)), RunFolder(tmp_path / "run"), workers=(2, 2))
    assert contents(tmp_path / "run") == undisturbed[1:4], "two workers had two shards each"


def test_a_shard_that_is_kept_is_never_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of it waits behind a slow shard in the first pool, while its worker in the second one dies."""
    monkeypatch.setattr(pools_module.ray, "kill", lambda actor: None)
    monkeypatch.setattr(engine_module.ray, "get", lambda ref: b"")
    written: list[int] = []
    folder: Any = SimpleNamespace(alone=True, keep=lambda receipt, content: written.append(receipt.number))
    shards = cut(range(4), 2)
    first, last = (Pool([], Resources(1, 0), 1, 3, {}, last) for last in (False, True))
    driver = engine_module._Engine(folder, State(4, 2), shards, [first, last], 4, 60.0, lambda state: None)

    def member(pool: Pool) -> Member:
        pool.members.append(Member(None, None, "host"))
        return pool.members[-1]

    def given(pool: Pool, worker: Member, shard: Shard) -> Attempt:
        attempt = Attempt(object(), object(), shard, None, pool, worker)
        worker.hands.append(attempt)
        driver.running[attempt.receipt] = attempt
        return attempt

    def finished(attempt: Attempt) -> None:
        monkeypatch.setattr(engine_module.ray, "get", lambda ref: Receipt(attempt.shard.number, 2, "", 1))
        driver._take(attempt)
        driver._keep(everything=True)

    slow, fast, third, fourth = member(first), member(first), member(last), member(last)
    given(first, slow, shards[1])
    given(first, slow, shards[0])
    with driver.writes:
        finished(given(first, fast, shards[0]))
        shard, _ = last.waiting.popleft()
        given(last, third, shard)
        copy = given(last, fourth, shard)
        driver._replace_worker(last, third, "killed")
        finished(copy)
        driver._replace_worker(first, slow, "killed")
    assert written == [0]
    assert [shard.number for shard, _ in first.waiting] == [1], "the other one is begun again, this one not"


def test_more_workers_than_there_is_room_for_are_refused_at_once(tmp_path: Path) -> None:
    """The pool that comes second would wait for ever."""
    two = Job.of("two", range(8), [Stage(toys.Draw), Stage(toys.Square, cpus=2)], size=2)
    with pytest.raises(NoWorkers, match="2 workers of each kind need 6 CPU, but the cluster has 3 CPU"):
        run(two, RunFolder(tmp_path), workers=(2, 2))


def test_an_estimate_counts_the_workers_that_there_will_be(tmp_path: Path) -> None:
    state = run(job(), RunFolder(tmp_path), limit=1)
    assert state.last is not None
    assert "19 left" in estimate(state, state.last)
    assert "on 3 workers" in estimate(state, state.last)


def test_a_finished_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(job(), RunFolder(tmp_path))
    with shown("toy", "unit") as show:
        run(job(), RunFolder(tmp_path), progress=show)
    assert capsys.readouterr().err == "200 of 200 units were finished already\n"


def test_a_shard_that_kills_every_worker_stops_the_run(tmp_path: Path, notes: Path) -> None:
    with pytest.raises(ShardFailed, match=r"shard 3 \(10 units, 30 to 39\).*was lost 4 times"):
        run(job(toys.DiesAlways, str(notes)), RunFolder(tmp_path), workers=(1, 1), retries=2)


def test_a_shard_that_vanishes_is_noticed_at_the_end(tmp_path: Path) -> None:
    def remove(state: State) -> None:
        for path in (tmp_path / "shards").glob("000003-*.arrow"):
            path.unlink()

    with pytest.raises(Incomplete, match=r"lacks 1 of 20 shards.*first shard 3 \(10 units, 30 to 39\)"):
        run(job(), RunFolder(tmp_path), workers=(1, 1), progress=remove)


def test_a_poisoned_shard_stops_the_run_and_the_rest_is_kept(
    tmp_path: Path, notes: Path, undisturbed: list[str]
) -> None:
    folder, stage = RunFolder(tmp_path / "run"), Stage(toys.Poisoned, (str(notes),), exempt=("notes",))
    asked = Job.of("toy", range(UNITS), [stage], size=SIZE)
    with pytest.raises(
        ShardFailed, match=r"shard 3 \(10 units, 30 to 39\) failed: ValueError: image 35"
    ) as said:
        run(asked, folder, workers=(1, 1))
    assert "start the same command again" in str(said.value)
    assert "toy_scorers.py" in said.value.details, "the traceback of the worker"
    kept = contents(tmp_path / "run")
    assert kept == undisturbed[:3]
    assert [path.name for path in notes.glob("begun-3-*")] == ["begun-3-0"], "it is not tried again"
    for note in notes.glob("begun-*"):
        note.unlink()
    (notes / "mended").touch()
    run(asked, folder, workers=(1, 1))
    assert contents(tmp_path / "run") == undisturbed
    begun = {int(path.name.split("-")[1]) for path in notes.glob("begun-*")}
    assert begun == set(range(3, UNITS // SIZE)), "what was kept is not computed again"


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        (toys.CannotStart, "the start of a worker failed: FileNotFoundError: weights.bin"),
        (toys.Forgets, "must have a row for each of the 10 units, got (9,)"),
        (toys.Mixes, "a scorer must return `ids`"),
        (toys.NotANumber, "shard 3 (10 units, 30 to 39) failed: InvalidInput: unit 35: scores must not"),
    ],
)
def test_a_scorer_that_cannot_be_trusted_is_refused(tmp_path: Path, scorer: type, said: str) -> None:
    with pytest.raises(ShardFailed) as error:
        run(job(scorer), RunFolder(tmp_path / "run"), workers=(1, 1))
    assert said in str(error.value)
    with pytest.raises(ShardFailed) as twin:
        run_here(job(scorer), RunFolder(tmp_path / "twin"))
    assert str(twin.value) == str(error.value), "the twin says the same"
    assert "toy_scorers.py" in error.value.details or "jobs.py" in error.value.details
    assert "Traceback" in twin.value.details
    kept = contents(tmp_path / "run") if (tmp_path / "run" / "shards").exists() else []
    assert len(kept) == (3 if scorer is toys.NotANumber else 0), "nothing that cannot be certified is stored"


def test_a_worker_with_other_versions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = find_versions(("numpy",)) | {"numpy": "1.0"}
    monkeypatch.setattr(engine_module, "find_versions", lambda needs: here)
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
    assert contents(tmp_path) == undisturbed


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
