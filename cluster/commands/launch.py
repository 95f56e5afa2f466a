"""What happens between a command and its answer: run, show, certify, say."""

from __future__ import annotations

import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from cluster.session import ADDRESSES, connect
from pac_core import Groups, InvalidInput, PACLevel
from pac_core.bounds import max_errors
from pac_core.certificates import Certified, LedgerPath
from pac_core.cli import LEDGER, LedgerName, ledger_beside, level_options, refuse_unwritable, say, say_cost
from pac_core.errors import ShardFailed, TooManyFailures
from pac_core.evaluation import describe_accuracy, error_interval
from pac_core.exchangeability import describe_world
from pac_core.files import real_path
from pac_core.runs import (
    Finding,
    Receipt,
    Results,
    RunFolder,
    State,
    Task,
    certify_run,
    estimate,
    refuse_second_look,
    run_here,
    size,
    watch,
)
from pac_core.sets import LABEL_SCORES, RankedScore
from pac_core.tubes import check_shape

DATA = "data.txt"
"""Of a run folder: where the files of the units lie."""
PARTS = ("tune", "calibrate", "test")
FAILED = {"labels": ("broken", "are broken")}
"""What became of units without a forecast, in the name of the file that lists them and in words."""


def launch(
    task: Task,
    folder: RunFolder,
    *,
    address: str,
    workers: tuple[int, int] | None,
    gpus: float | None,
    levels: list[PACLevel],
    ledger: LedgerPath | None,
    dashboard: bool,
    estimate: bool,
    score: str | None = None,
    features: Sequence[str] = (),
    groups: str | Groups | None = None,
    data: Path | None = None,
) -> list[Finding]:
    """Runs a task where the user wants it, and certifies what was asked for.

    score, groups: see `certify_run`
    data: what the units are read from, if they are; the ledger is beside it
    """
    check_levels(task.calibrate, levels)
    if score not in (None, *LABEL_SCORES):
        check_shape(score)
    results = task.results(folder)
    book = ledger_for(folder, ledger, data) if levels else Path(LEDGER)
    refuse_unwritable("--ledger", book)
    task.write(folder)
    if levels:
        refuse_second_look(results, levels, book, None if groups is None else {"groups": None})
    if data is not None:
        folder.put_text(DATA, str(real_path(data)))
    say("units", f"{task.job.units:,} {task.unit}s in {len(task.job.shards):,} shards, kept in {folder}")
    on_ray: Any = {} if address == "none" else {"workers": workers, "gpus": gpus}
    try:
        with engine_at(address, dashboard=dashboard) as engine:
            limit, tell = 1 if estimate else None, _estimate_once(task, folder)
            state = engine(task.job, folder, limit=limit, tell=tell, **on_ray)
    except ShardFailed as failure:
        if failure.details:
            say("worker", f"what it said: {folder.put_text('failure.txt', failure.details)}")
        raise
    if estimate:
        if state.finished == state.shards:
            say("estimate", f"nothing is left to compute: all {state.shards:,} shards are finished")
        return []
    _say_accuracy(results)
    with saying_failures(results, PARTS if levels else PARTS[:1]):
        chosen: Any = {"score": score, "features": features, "groups": groups}
        return _certify(results, levels, book, **chosen) if levels else []


@contextmanager
def engine_at(
    address: str, device: str = "cpu", *, dashboard: bool = False
) -> Iterator[Callable[..., State]]:
    """What runs jobs and shows how far they are: Ray at an address, or with "none" this process.

    device: of the scorers in this process
    """
    if address == "none":
        yield partial(watch, partial(run_here, device=device))
    else:
        with connect(address, dashboard=dashboard, say=partial(say, "ray")) as engine:
            yield engine


def check_levels(calibrate: int, levels: Sequence[PACLevel]) -> None:
    """Refuse before any work levels that so many units cannot prove."""
    for level in levels:
        max_errors(calibrate, level)


@contextmanager
def saying_failures(results: Results, parts: Sequence[str] = PARTS) -> Iterator[None]:
    """Says afterwards how many units of these parts have no forecast, if any, and lists them: no part is read
    before its look."""
    try:
        yield
    except TooManyFailures:
        _say_failures(results, parts)
        raise
    _say_failures(results, parts)


def _say_failures(results: Results, parts: Sequence[str]) -> None:
    rows = {part: results.failed(part) for part in parts}
    failed = np.sort(np.concatenate(list(rows.values())))
    domain = results.domain()
    if domain is None or not len(failed):
        return
    task, read = results.task, sum(len(results.units(part)) for part in parts)
    word, why = FAILED.get(domain[0], ("exploded", "have a forecast that is no Gaussian (NaN, say)"))
    listed = results.folder.put_text(f"{word}.txt", "".join(f"{name}\n" for name in task.names[failed]))
    errors = " and ".join(f"{len(rows[part]):,} to {part} on" for part in parts if part != "tune")
    say(
        word,
        f"{len(failed):,} of {read:,} {task.unit}s {why}: {len(rows['tune']):,} to tune on are not used"
        f"{f', {errors} count as errors' if errors else ''}; see {listed}",
    )


@contextmanager
def resumable(folder: RunFolder) -> Iterator[None]:
    """Work that Ctrl-C stops without losing what is finished."""
    try:
        yield
    except KeyboardInterrupt:
        say("stopped", f"what is finished is kept in {folder}; the same command goes on from there")
        sys.exit(130)


def ledger_for(folder: RunFolder, given: LedgerPath | None = None, data: Path | None = None) -> LedgerPath:
    """The ledger `given`, or the one beside the data of a run, or beside the folder of simulated units.

    A run that was certified has its ledger, and no other is taken.
    data: of the run; by default what its folder says
    """
    if (known := folder.ledger(given) or given) is not None:
        return known
    if data is None and folder.has(DATA):
        data = Path(folder.get(DATA).decode())
    if data is not None:
        return ledger_beside(data)
    if not folder.local:
        raise InvalidInput(
            "--ledger must be given where the run folder is a URL: a place that outlives the machines, "
            "because a ledger that is lost lets units be calibrated on twice"
        )
    return Path(folder.root).parent / LEDGER


def _estimate_once(task: Task, folder: RunFolder) -> Callable[[State], None]:
    """To be called with each state: says after the first shard what all take."""
    told = False

    def tell(state: State) -> None:
        nonlocal told
        if state.last and not told and state.finished < state.shards:
            told = True
            say("estimate", estimate(state, state.last))
            say("estimate", room(folder, state, state.last, task.tune))

    return tell


def _say_accuracy(results: Results) -> None:
    """Says of a run that classified units how often the most likely label of a tune unit is the true one."""
    domain = results.domain()
    if domain is None or domain[0] != "labels":
        return
    try:
        forecast, labels = results.gathered("tune")
    except InvalidInput:  # there are none, or all of them failed
        return say("top-1", f"not known, because there are no {results.task.unit}s to tune on")
    say("top-1", describe_accuracy(forecast.predictions() == labels, labels, domain[1]))


def room(folder: RunFolder, state: State, receipt: Receipt, tune: int) -> str:
    """What the driver takes of memory and disk, in a sentence; refused if the disk has too little left.

    tune: units whose forecasts the driver gathers to choose a score
    """
    each, taken = receipt.size / receipt.n, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    words = f"the driver takes about {size(taken + tune * each)} of memory"
    if not folder.local:
        return words
    wanted, free = each * (state.units - state.done), shutil.disk_usage(folder.root).free
    if wanted > free:
        raise InvalidInput(
            f"--folder must have room for another {size(wanted)}, got {size(free)} free in {folder}: make "
            "room or choose another; finished shards are kept"
        )
    return f"{words}; {size(free)} are free for the {size(wanted)} still to store"


def _certify(results: Results, levels: list[PACLevel], book: LedgerPath, **chosen: Any) -> list[Finding]:
    task, folder = results.task, results.folder
    made, findings = certify_run(task, folder, levels, book, results=results, **chosen)
    if task.tune:
        domains = {one.predictor.domain[0] for one in made.certificates if one.predictor.domain}
        known = isinstance(made.score, RankedScore) or domains == {"labels"}
        say("tune", str(made.score) if known else f"{made.score.kind} from {task.tune:,} {task.unit}s")
    say_findings(made, findings, levels, book, folder, task.unit)
    return findings


def say_findings(
    made: Certified,
    findings: Sequence[Finding],
    levels: Sequence[PACLevel],
    book: LedgerPath,
    folder: RunFolder,
    unit: str,
) -> None:
    """What a look cost, what it proved, and what the test part says of it."""
    say_cost(len(levels), made.look.cost, book, made.refused)
    for text in describe_world(made.certificates[0].world):
        say("world", text)
    for finding in findings:
        say("calibrate", str(finding.certificate.predictor.threshold))
        for remark in finding.certificate.predictor.remarks:
            say("note", remark)
        if finding.evaluation is not None:
            say("test", f"{finding.evaluation.verdict}; mean size {finding.evaluation.all.mean:.4g}")
        elif finding.errors is not None:
            low, high = error_interval(*finding.errors)
            missed = f"{finding.errors[0]} of {finding.errors[1]} {unit}s missed"
            say("test", f"{missed} (98% interval {low:.4f} to {high:.4f})")
        say("wrote", f"{folder}/{finding.file}")
    say("wrote", f"{folder}/scores.parquet, for pac verify")


Function = TypeVar("Function", bound=Callable[..., Any])
WORKERS = "how many, or MIN..MAX where the cluster can grow"


class Workers(click.ParamType[tuple[int, int]]):
    """`4`, or `1..16`."""

    name = "N|MIN..MAX"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        ends = str(value).split("..")
        if len(ends) > 2 or not all(end.isdecimal() for end in ends):
            self.fail(f"must be {WORKERS}, got {value!r}")
        least, most = int(ends[0]), int(ends[-1])
        if not 1 <= least <= most:
            self.fail(f"must be at least 1, and MIN at most MAX, got {value!r}")
        return least, most


class Gpus(click.ParamType[float]):
    """`0`, `0.5`, `1`, `2`: Ray gives out parts of one GPU, or whole ones."""

    name = "N"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        try:
            count = float(value)
        except ValueError:
            count = -1.0
        if not 0 <= count < float("inf") or (count > 1 and count != int(count)):
            self.fail(f"must be a part of one, as 0.5, or a whole number, got {value!r}")
        return count


def options(*chosen: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several options at once, in this order."""

    def add(function: Function) -> Function:
        for option in reversed(chosen):
            function = option(function)
        return function

    return add


ledger_option = click.option(
    "--ledger", type=LedgerName(), help="[default: pac-ledger beside the data; see the docs]"
)
address_option = click.option(
    "--address", default="local", show_default=True, help=f"Ray: {ADDRESSES}; none goes without Ray."
)
engine_options = options(
    click.option("--folder", required=True, help="Run folder: a path or a URL such as s3://bucket/run."),
    address_option,
    click.option("--workers", type=Workers(), help=f"Of each kind: {WORKERS}.  [default: all]"),
    click.option(
        "--cpus",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="CPUs, and threads, of a worker.",
    ),
    click.option("--gpus", type=Gpus(), help="GPUs of a model worker, as 0.5.  [default: 1 if any]"),
    click.option("--seed", default=0, show_default=True, help="Of the units and of the split."),
    level_options(multiple=True, required=False),
    ledger_option,
    click.option("--dashboard", is_flag=True, help="Start Ray's dashboard with a local engine."),
    click.option("--estimate", is_flag=True, help="Compute one shard, say what all take, stop."),
)
