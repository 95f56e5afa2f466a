"""The engine against the same loop without Ray, its start-up, and the memory of its driver."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, faster, peak, within
from cluster import connected, run_on_ray
from cluster.session import STORE
from pac_core.runs import (
    Job,
    Receipt,
    RunFolder,
    Stage,
    State,
    finish_shard,
    make_scorers,
    run_here,
    run_stages,
)

ROUNDS, SHARDS = 5, 100
PICTURES = 4  # of a shard
NAMES = [f"{i:05d}.jpg" for i in range(SHARDS * PICTURES)]


def rollout_job() -> Job:
    """Short rollouts, so that a hundred shards of 512 take a bearable time."""
    from pac_rl import load_policy
    from pac_rl.tasks import NEEDS, UNITS, SimulateRollouts

    stage = Stage(SimulateRollouts, ("HalfCheetah-v5", load_policy(), 5, (0, 0)), needs=NEEDS)
    return Job.of("rollouts", range(SHARDS * UNITS), [stage], size=UNITS)


def image_job(folder: str) -> Job:
    """Random pictures of ImageNet's usual size, through EfficientNet-Lite0."""
    from pac_vision.images import Images
    from pac_vision.images.decoding import FileReader
    from pac_vision.tasks import ClassifyImages

    images = Images(folder, np.array(NAMES), FileReader(folder), labels=np.zeros(len(NAMES), np.int64))
    stage = Stage(ClassifyImages, (images, "efficientnet-lite0"), needs=("torch",))
    return Job.of("images", NAMES, [stage], size=PICTURES)


def draw_pictures(folder: Path) -> None:
    from PIL import Image

    coarse = np.random.default_rng(0).integers(0, 256, size=(len(NAMES), 12, 16, 3), dtype=np.uint8)
    for name, pixels in zip(NAMES, coarse, strict=True):
        Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC).save(folder / name, quality=90)


JOBS: dict[str, Callable[[str], Job]] = {"rollouts": lambda folder: rollout_job(), "images": image_job}


def throughput(job: Job, work: Callable[[RunFolder, Callable[[State], None]], State], workers: int) -> float:
    """Units a second, from the moment every worker has warmed up on a shard or two."""
    begun: list[tuple[float, int]] = []

    def watch(state: State) -> None:
        if not begun and state.workers >= workers and state.finished >= 2 * workers:
            begun.append((time.perf_counter(), state.done))

    with tempfile.TemporaryDirectory() as folder:
        state = work(RunFolder(folder), watch)
        start, done = begun[0]
        return float((state.done - done) / (time.perf_counter() - start))


def side_by_side(kind: str, pictures: str) -> float:
    """Units a second of two bare loops in two processes: what the machine can give without Ray."""
    command = [sys.executable, "-m", "benchmarks.engine", kind, pictures]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    return sum(float(loop.communicate()[0].split()[-1]) for loop in loops)


def engine() -> Iterator[Figure]:
    """One worker against the bare loop, two against one: rollouts and images, in turns."""
    with tempfile.TemporaryDirectory() as pictures, connected("local", cpus=2):
        draw_pictures(Path(pictures))
        for kind in JOBS:
            job = JOBS[kind](pictures)

            def on_ray(count: int, job: Job = job) -> float:
                return throughput(
                    job, lambda f, show: run_on_ray(job, f, workers=(count, count), progress=show), count
                )

            found: dict[str, list[float]] = {"bare": [], "one": [], "two": [], "bare two": []}
            for _ in range(ROUNDS):
                found["bare"].append(throughput(job, lambda f, show: run_here(job, f, progress=show), 1))  # noqa: B023
                found["one"].append(on_ray(1))
                found["two"].append(on_ray(2))
                found["bare two"].append(side_by_side(kind, pictures))
            yield from _figures(kind, job, {name: np.array(rates) for name, rates in found.items()})


def _figures(kind: str, job: Job, found: dict[str, Any]) -> Iterator[Figure]:
    """Medians of the ratios of runs that followed each other, because the machine's speed drifts."""
    shape = f"{job.units:,} units in {len(job.shards)} shards, median of {ROUNDS} ratios of neighbouring runs"
    for name, ours, other, goal in (
        ("one worker, bare loop", "one", "bare", ">= 0.93"),
        ("two workers, one", "two", "one", ">= 1.75"),
        ("two bare loops, one", "bare two", "bare", ""),
        ("two workers, two bare loops", "two", "bare two", ""),
    ):
        ratios = found[ours] / found[other]
        note = f"{shape}: {', '.join(f'{ratio:.2f}' for ratio in ratios)}"
        medians = float(np.median(found[ours])), float(np.median(found[other]))
        yield Figure(f"engine, {kind}: {name}", *medians, "/s", float(np.median(ratios)), goal, note)


class ByData:
    """The same scorers as a callable class of Ray Data."""

    def __init__(self, job: Job) -> None:
        self.job, self.scorers = job, make_scorers(job.stages, "cpu", 1)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        shard = self.job.shards[int(batch["id"][0])]
        receipt, content = finish_shard(shard, run_stages(self.scorers, shard, {}), time.perf_counter())
        return {"id": batch["id"], "digest": [receipt.digest], "content": [content.tobytes()]}


def data() -> Iterator[Figure]:
    """Ray Data's actor pool on the same shards, from start to end; two workers each."""
    job, seconds = rollout_job(), {}
    with (
        connected("local", cpus=2),
        tempfile.TemporaryDirectory() as ours,
        tempfile.TemporaryDirectory() as other,
    ):
        import ray.data

        from benchmarks.engine import ByData as Scored

        start = time.perf_counter()
        run_on_ray(job, RunFolder(ours), workers=(2, 2))
        seconds["ours"] = time.perf_counter() - start
        start, folder = time.perf_counter(), RunFolder(other)
        ray.data.DataContext.get_current().enable_progress_bars = False
        numbers = [{"id": shard.number} for shard in job.shards]
        rows = ray.data.from_items(numbers, override_num_blocks=len(numbers)).map_batches(
            Scored, fn_constructor_args=(job,), batch_size=1, concurrency=2, num_cpus=1
        )
        for row in rows.iter_rows():
            receipt = Receipt(row["id"], len(job.shards[row["id"]]), row["digest"], len(row["content"]))
            folder.keep(receipt, np.frombuffer(row["content"], np.uint8))
        seconds["data"] = time.perf_counter() - start
    note = f"{len(job.shards)} shards of rollouts from start to end, workers included"
    yield faster("engine: Ray Data", seconds["ours"], seconds["data"], "", note)


def memory() -> Iterator[Figure]:
    """A hundred million scores through shards to the exact threshold, in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.engine"], check=True, capture_output=True, text=True
    )
    peak, seconds = map(float, done.stdout.split()[-2:])
    note = f"10^8 scores in 100 shards, computed on two workers, T exact; {seconds:.0f} s in all"
    yield within("engine: the driver's memory", peak / 1e6, 500.0, "MB", "<= 1", note)


def startup() -> Iterator[Figure]:
    """From a local engine's start to the first shard of rollouts, scored and kept."""
    command = [sys.executable, "-m", "benchmarks.engine", "first"]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(5)]
    seconds = [float(run.stdout.split()[-1]) for run in runs]
    note = f"each in a new process: {', '.join(f'{s:.1f}' for s in seconds)} s"
    yield within("engine: start to the first shard", statistics.median(seconds), 10.0, "s", "<= 1", note)


class Uniform:
    """Scores that cost nothing."""

    def __init__(self, *, device: str) -> None:
        pass

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        rng = np.random.default_rng(shard.seed)
        return {"ids": shard.array, "scores": rng.uniform(size=len(shard))}


def _many() -> None:
    """Prints the peak memory of this process in bytes, and the seconds it took."""
    from benchmarks.engine import Uniform as Scorer
    from pac_core import PACLevel
    from pac_core.thresholds import ShardedScores, fit_threshold

    start = time.perf_counter()
    job = Job.of("many", range(10**8), [Stage(Scorer)], size=10**6)
    with tempfile.TemporaryDirectory() as place, connected("local", cpus=2, store=STORE):
        folder = RunFolder(place)
        run_on_ray(job, folder)
        sizes = {shard.number: len(shard) for shard in job.shards}

        def over(function: Callable[[Any], Any]) -> Iterator[tuple[Any, Any]]:
            for shard, value in folder.over(job.shards, lambda shard, arrays: function(arrays["scores"])):
                yield shard.number, value

        level = PACLevel(0.01, 1e-5)
        threshold = fit_threshold(ShardedScores(sizes, lambda: over(lambda scores: scores)), level)
        above = sum(int(count) for _, count in over(lambda scores: (scores > threshold.value).sum()))
        assert above <= threshold.errors < above + 2, "T must be exact"
    print(peak(), time.perf_counter() - start)


def _first() -> None:
    """Prints the seconds from the start of Ray to the first shard."""

    job, start = rollout_job(), time.perf_counter()
    with tempfile.TemporaryDirectory() as place, connected("local"):
        assert run_on_ray(job, RunFolder(place), workers=(1, 1), limit=1).finished == 1
        print(time.perf_counter() - start)


ALL = {"engine": engine, "data": data, "memory": memory, "startup": startup}

if __name__ == "__main__":
    if sys.argv[1:] == ["first"]:
        _first()
    elif sys.argv[1:]:
        loop = JOBS[sys.argv[1]](sys.argv[2])
        print(throughput(loop, lambda folder, show: run_here(loop, folder, progress=show), 1))
    else:
        _many()
