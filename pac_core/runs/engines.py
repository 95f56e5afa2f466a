"""What runs a job: the protocol, the engine without Ray, and the episodes of a descent through either.

`run_here` computes the same shards in this process, with the same bits as `run_on_ray`.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from pac_core.certificates.descent import Descent
from pac_core.errors import ShardFailed
from pac_core.runs.folders import RunFolder
from pac_core.runs.jobs import Job, Receipt, Stage, finish_shard, make_scorers, run_stages


@dataclass
class State:
    """Where a run stands; handed to `progress` whenever something happened.

    ready: units that were found finished at the start; done, finished: units and shards finished by now
    damaged: files that were not taken, because they were damaged or of another run
    pools, most: ready workers of each pool, in the order in which a shard passes them, and how many it may
        have
    retries, repeats: shards begun again because a worker died, or a second time because it was slow
    last: the latest receipt
    missing: what a worker needs of which there is none yet; empty if there are some of each kind
    """

    units: int
    shards: int
    ready: int = 0
    done: int = 0
    finished: int = 0
    damaged: int = 0
    pools: tuple[int, ...] = (1,)
    most: tuple[int, ...] = (1,)
    retries: int = 0
    repeats: int = 0
    last: Receipt | None = None
    missing: str = ""
    since: float = field(default_factory=time.monotonic)

    @property
    def rate(self) -> float:
        """Units a second, since the start."""
        return (self.done - self.ready) / max(time.monotonic() - self.since, 1e-9)

    @property
    def workers(self) -> int:
        """Ready ones, of all pools."""
        return sum(self.pools)

    @classmethod
    def of(cls, job: Job, found: Mapping[int, Receipt], damaged: int = 0) -> State:
        """At the start, with these shards finished already."""
        ready = sum(receipt.n for receipt in found.values())
        return cls(job.units, len(job.shards), ready, ready, len(found), damaged)

    def add(self, receipt: Receipt) -> None:
        """One more shard is finished."""
        self.last = receipt
        self.finished += 1
        self.done += receipt.n


class Engine(Protocol):
    """Runs a job to its end: `run_here`, `run_on_ray`, or either with options."""

    def __call__(
        self,
        job: Job,
        folder: RunFolder,
        *,
        limit: int | None = None,
        progress: Callable[[State], Any] | None = None,
    ) -> State:
        """Every shard of the job, or the first `limit` that are missing, written to the folder; what is there
        is kept."""


def run_here(
    job: Job,
    folder: RunFolder,
    *,
    device: str = "cpu",
    limit: int | None = None,
    progress: Callable[[State], Any] | None = None,
) -> State:
    """Every shard of the job (at most `limit`), one after the other, written to the folder."""
    run = folder.claim(job, device)
    found, damaged = folder.mend(job)
    state = State.of(job, found, damaged)
    todo = [shard for shard in job.shards if shard.number not in found][:limit]
    if progress is not None:
        progress(state)
    with _restore_threads():
        with _name_failure("the start of a worker"):
            scorers = make_scorers(job.stages, device, job.stages[0].cpus) if todo else []
        for shard in todo:
            started = time.perf_counter()
            with _name_failure(str(shard)):
                receipt, content = finish_shard(shard, run_stages(scorers, shard, {}), started, run)
            folder.keep(receipt, content)
            state.add(receipt)
            if progress is not None:
                progress(state)
    if limit is None:
        folder.check(job)
    return state


@contextmanager
def _restore_threads() -> Iterator[None]:
    """Gives the process back the threads that scorers take from it: what comes after a run needs them."""
    stated, torch = os.environ.get("OMP_NUM_THREADS"), sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    try:
        with threadpool_limits():
            yield
    finally:
        os.environ.pop("OMP_NUM_THREADS", None)
        if stated is not None:
            os.environ["OMP_NUM_THREADS"] = stated
        if torch:
            torch.set_num_threads(before)


@contextmanager
def _name_failure(what: str) -> Iterator[None]:
    """What a scorer raises, as the engine says it."""
    try:
        yield
    except Exception as raised:
        raise ShardFailed(what, describe_error(raised), traceback.format_exc()) from raised


def describe_error(raised: BaseException) -> str:
    """An exception in one line."""
    text = str(raised).strip().splitlines()
    kind = type(raised).__name__
    return f"{kind}: {text[-1]}" if text else kind


def episodes_through(
    engine: Engine,
    stage: Callable[[Any], Stage],
    root: str,
    *,
    size: int,
    plan: Descent | None = None,
    outcome: Callable[[Mapping[str, NDArray[Any]]], NDArray[Any]] = itemgetter("errors"),
    **configuration: Any,
) -> Callable[[Any, NDArray[Any]], NDArray[Any]]:
    """The `run` that `pac_core.descend` asks for: from a scale and the ids of its episodes to their outcomes.

    Each scale is a run of its own: exactly the planned episodes, each once, whatever dies on the way; a
    descent that was interrupted goes on with the episodes that are finished, and computes the others: with
    the same code, arguments and ids they come out the same (`run.repeatable`).

    stage: from a scale to its scorer, whose arrays have `errors`, a boolean for each episode
    outcome: from these arrays to a loss for each episode, such as the share of steps in violation, instead
    root: folder or URL; each scale gets a folder below it
    size: episodes of a shard
    plan: where it may stop early: the run is that of all planned episodes, of which the first shards are
        computed, as many as are asked for
    configuration: all that decides what an episode does, beside its id and the scale
    """

    def run(scale: Any, ids: NDArray[Any]) -> NDArray[Any]:
        planned = ids if plan is None else plan.rows[plan.scales.index(scale)]
        job = Job.of("episodes", planned.tolist(), [stage(scale)], size=size, scale=scale, **configuration)
        folder = RunFolder(f"{root.rstrip('/')}/scale-{scale!r}")
        first = int(np.flatnonzero(planned == ids[0])[0])
        due = job.shards[: -(-(first + len(ids)) // size)]
        if plan is None:
            engine(job, folder)
        else:
            ready = folder.receipts(job)
            engine(job, folder, limit=sum(shard.number not in ready for shard in due))
        parts = [outcome(found) for _, found in folder.over(due, lambda _, found: found)]
        return np.concatenate(parts)[first : first + len(ids)]

    run.repeatable = True  # type: ignore[attr-defined]
    return run


SECONDS = 10.0
"""Between two lines, where there is no terminal."""


def _note(text: str) -> None:
    """What a person may read beside the answer."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def counted(name: str, unit: str = "") -> Iterator[Callable[..., None]]:
    """A function to call, as often as one likes, with how many are done, how many there are, and what to say
    beside that: behind the bar on a terminal, in a line now and then elsewhere."""
    bar: tqdm[Any] | None = None
    said = -SECONDS

    def show(done: int, total: int, beside: str = "", line: str = "") -> None:
        nonlocal bar, said
        if sys.stderr.isatty():
            bar = bar if bar is not None else tqdm(total=total, initial=done, desc=name, unit=unit)
            bar.update(done - bar.n)
            bar.set_postfix_str(beside, refresh=False)
        elif time.monotonic() - said >= SECONDS or done == total:
            said = time.monotonic()
            _note(f"{name}: {done:,} of {total:,}{unit}{line}")

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()


@contextmanager
def shown(name: str, unit: str) -> Iterator[Callable[[State], None]]:
    """A function to call with the state of a run, as often as one likes."""
    begun = False
    with counted(name, f" {unit}s") as count:

        def show(state: State) -> None:
            nonlocal begun
            if not begun and state.damaged:
                _note(f"{state.damaged:,} shards were damaged, and are computed again")
            if not begun and state.ready:
                _note(f"{state.ready:,} of {state.units:,} {unit}s were finished already")
            begun = True
            if state.ready == state.units:
                return
            left = (state.units - state.done) / state.rate if state.rate else 0.0
            ahead = f", {tqdm.format_interval(left)} left" if left else ""
            line = f", {state.rate:.3g} a second, {words(state)}{ahead}"
            count(state.done, state.units, words(state), line)

        yield show


def watch(
    run: Callable[..., State],
    job: Job,
    folder: RunFolder,
    *,
    tell: Callable[[State], None] | None = None,
    progress: Callable[[State], Any] | None = None,
    **options: Any,
) -> State:
    """An engine that shows how far it is, as ``partial(watch, run_here)``; `tell` hears of it first."""
    about = job.configuration
    named = [str(about[name]) for name in ("part", "guard") if name in about] or [job.name]
    named += [f"scale {about['scale']:g}"] if "scale" in about else []
    with shown(", ".join(named), about.get("unit", "unit")) as show:

        def all_of(state: State) -> None:
            for one in (tell, progress, show):
                if one is not None:
                    one(state)

        return run(job, folder, progress=all_of, **options)


def words(state: State) -> str:
    """Workers and what went wrong, in words."""
    if state.missing:
        return f"waiting for a worker with {state.missing}"
    parts = [f"{state.workers} worker{'s' * (state.workers != 1)}"]
    parts += [f"{state.retries} retr{'ies' if state.retries != 1 else 'y'}"]
    parts += [f"{state.repeats} begun twice"] * bool(state.repeats)
    return ", ".join(parts)


size = partial(tqdm.format_sizeof, suffix="B")
"""Bytes in words."""


def estimate(state: State, receipt: Receipt) -> str:
    """Time, memory and storage of what is left, in a sentence; the slowest pool sets the pace.

    >>> from pac_core.runs import Effort
    >>> shard = Receipt(0, n=500, digest="", size=4_000_000, effort=Effort((5.0,), 600_000_000))
    >>> estimate(State(units=15_000, shards=30, done=500, finished=1, most=(2,)), shard)
    'a shard takes 5.0 s and 600MB of memory: 29 left, about 01:12 on 2 workers; 120MB to store'
    >>> shard = Receipt(0, n=500, digest="", size=4_000_000, effort=Effort((5.0, 4.0), 600_000_000))
    >>> estimate(State(units=15_000, shards=30, done=500, finished=1, most=(4, 1)), shard)
    'a shard takes 5.0 + 4.0 s and 600MB of memory: 29 left, about 01:56 on 4 + 1 workers; 120MB to store'
    """
    left = state.shards - state.finished
    many = [max(1, min(count, left)) for count in state.most]
    pace = max(seconds / workers for seconds, workers in zip(receipt.effort.seconds, many, strict=True))
    took = " + ".join(f"{seconds:.1f}" for seconds in receipt.effort.seconds)
    stored = receipt.size / receipt.n * state.units
    return (
        f"a shard takes {took} s and {size(receipt.effort.memory)} of memory: {left:,} left, about "
        f"{tqdm.format_interval(left * pace)} on {' + '.join(map(str, many))} worker{'s' * (many != [1])}; "
        f"{size(stored)} to store"
    )
