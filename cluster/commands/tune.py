"""`pac tune`: the candidates, by Ray Tune the smallest on the tune part, one look for all, and a table."""

from __future__ import annotations

import csv
import io
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import click
import numpy as np

from cluster.commands.launch import check_levels, ledger_for, ledger_option, resumable, saying_failures
from cluster.session import ADDRESSES, connected
from pac_core import InvalidInput, NotEnoughData, PACError, PACLevel, Trajectories
from pac_core.arrays import round_up
from pac_core.bounds import max_errors
from pac_core.certificates import LedgerPath
from pac_core.cli import level_options, refuse_unwritable, say, say_cost
from pac_core.evaluation import format_table
from pac_core.fitting import check_score, score_fitter
from pac_core.forecasts import drop_failed
from pac_core.runs import (
    ALL,
    Finding,
    Results,
    RunFolder,
    Task,
    View,
    certify_choices,
    counted,
    refuse_second_look,
)
from pac_core.sets import LABEL_SCORES, RankedScore, Score

DEFAULT_SHAPES = ("box", "max", "joint")
_SIZED = 1000  # units on which a mean size is measured: it needs no more


@click.command("tune")
@click.argument("folder")
@level_options(multiple=True)
@ledger_option
@click.option("--shape", "shapes", multiple=True, help="Tube shapes to try.  [default: box, max, joint]")
@click.option("--horizon", "horizons", multiple=True, type=int, help="Steps, once or more.  [default: all]")
@click.option("--members", multiple=True, type=int, help="Ensemble sizes of the run, beside all members.")
@click.option("--same-score", is_flag=True, help="One score for all levels: together they fail less often.")
@click.option("--address", default="local", show_default=True, help=f"Ray: {ADDRESSES}.")
def tune(
    folder: str,
    levels: list[PACLevel],
    ledger: LedgerPath | None,
    shapes: tuple[str, ...],
    horizons: tuple[int, ...],
    members: tuple[int, ...],
    same_score: bool,
    address: str,
) -> None:
    """Sweep epsilon and delta, and what changes the scores, with Ray Tune.

    \b
    pac run rl --folder cheetah                    # forecasts, once
    pac tune cheetah --epsilon 0.01 --epsilon 0.05 --delta 1e-3 --delta 1e-5   # four levels
    pac tune cheetah --level 0.01,1e-3 --level 0.05,1e-5                       # two

    Every choice is made on the tune part. The calibrate part is opened once, for what was chosen: the
    ledger has it all before, and says what the certificates cost together.
    """
    place = RunFolder(folder)
    with resumable(place), connected(address) as session:
        say("ray", session)
        options: Any = {"horizons": horizons or (None,), "members": (None, *members), "same": same_score}
        tune_run(place, levels, ledger_for(place, ledger), shapes=shapes, **options)


def tune_run(place: RunFolder, levels: Sequence[PACLevel], book: LedgerPath, **options: Any) -> None:
    """A sweep over a finished run, on a Ray that is connected: its table in the terminal and as csv; the
    options are those of `sweep`."""
    task = Task.read(place)
    refuse_unwritable("--ledger", book)
    results = task.results(place)
    with saying_failures(results), counted("trials") as progress:
        rows, cost = sweep(results, levels, book, progress=progress, **options)
    names = [name for name in rows[0] if any(row[name] != "" for row in rows)]
    click.echo(format_table([names, *([_cell(name, row[name]) for name in names] for row in rows)]))
    say_cost(len(rows), cost, book)
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    say("wrote", place.put_text("tune.csv", text.getvalue()))


def _cell(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return round_up(value, 4) if name == "T" else f"{value:.4g}"


@dataclass(frozen=True)
class Candidate:
    """One way to score: a tube shape, or one of `LABEL_SCORES`, of the forecasts that `view` reads.

    at: the level it is fitted for, where that makes a difference; it may serve others as well
    """

    name: str
    view: View = ALL
    at: PACLevel | None = None

    def __str__(self) -> str:
        return self.name + (f", tuned for ({self.at.epsilon:g}, {self.at.delta:g})" if self.at else "")

    @property
    def for_all(self) -> bool:
        """Whether one fit serves every level; what is chosen for its size is chosen for a level."""
        return self.name in ("joint", "paper", "plain")

    def fit(self, forecast: Any, truth: Any, level: PACLevel, **options: Any) -> Score:
        """The score, fitted on these tune units; the options are those of `score_fitter`."""
        return score_fitter(forecast.domain, self.name, **options)(forecast, truth, level)


def candidates(kind: str, shapes: Sequence[str], views: Sequence[View]) -> list[Candidate]:
    """Every way to score forecasts of this kind; `shapes` are tube shapes, by default box, max and joint."""
    if kind != "trajectories":
        if shapes:
            raise InvalidInput(f"--shape is for trajectories, but the run holds forecasts of {kind}")
        return [Candidate(name) for name in sorted(LABEL_SCORES) if kind == "labels" or name != "smallest"]
    for shape in shapes:
        check_score(shape, (kind,))
    return [Candidate(shape, view) for view in views for shape in shapes or DEFAULT_SHAPES]


def fits(menu: Sequence[Candidate], levels: Sequence[PACLevel]) -> list[Candidate]:
    """What has to be fitted: each is measured at every level, so that none is fitted twice.

    >>> two = (PACLevel(0.1, 0.01), PACLevel(0.05, 0.01))
    >>> [str(one) for one in fits([Candidate("box"), Candidate("joint")], two)]
    ['box, tuned for (0.1, 0.01)', 'box, tuned for (0.05, 0.01)', 'joint']
    """
    own = [(one, (None,) if one.for_all else levels) for one in menu]
    return [replace(one, at=at) for one, places in own for at in places]


def held_out_sizes(
    candidate: Candidate,
    forecast: Any,
    truth: Any,
    levels: Sequence[PACLevel],
    *,
    calibrate: int | None = None,
) -> list[float]:
    """The mean size at each level of one fit: each half of the tune units judges what the other fitted.

    Tubes are measured in units of the tune deviation, because their dimensions have different units.
    calibrate: how many units are to calibrate, which says how many errors are allowed
    """
    order = np.random.default_rng(0).permutation(len(truth))
    halves = [(forecast.take(rows), truth[rows]) for rows in (np.sort(order[::2]), np.sort(order[1::2]))]
    crossed = [(candidate.fit(*halves[i], candidate.at or levels[0]), *halves[1 - i]) for i in (0, 1)]
    scores = [np.sort(np.asarray(score.scores(half, labels))) for score, half, labels in crossed]
    if candidate.name != "smallest":  # whose halves may have chosen scores that do not compare
        scores = 2 * [np.sort(np.concatenate(scores))]
    some = [(score, half.take(slice(0, _SIZED // 2))) for score, half, _ in crossed]
    deviation = None
    if isinstance(truth, Trajectories):
        marked = truth.marked()
        deviation = np.nanstd(np.where(np.isinf(marked), np.nan, marked), axis=(0, 1))

    def size(level: PACLevel) -> float:
        limits = [float(values[-1 - _allowed(len(values), level, calibrate)]) for values in scores]
        if not np.isfinite(limits).all():
            return float("inf")
        sets = [score.sets(half, limit) for (score, half), limit in zip(some, limits, strict=True)]
        parts = [one.size() if deviation is None else one.normalised_size(deviation) for one in sets]
        return float(np.mean(np.concatenate(parts)))

    return [size(level) for level in levels]


def choose(
    sizes: dict[tuple[Candidate, PACLevel], float], *, same: bool = False
) -> dict[tuple[int | None, PACLevel], Candidate]:
    """For each horizon and level, the candidate of the smallest held-out size, whatever it was fitted for: a
    looser level never takes larger sets than a stricter one.

    same: one candidate for all levels of a horizon, by the mean logarithm of its sizes
    """
    levels = list(dict.fromkeys(level for _, level in sizes))

    def size(candidate: Candidate, level: PACLevel) -> float:
        if not same:
            return sizes[candidate, level]
        return float(np.mean([np.log(sizes[candidate, each]) for each in levels]))

    chosen: dict[tuple[int | None, PACLevel], Candidate] = {}
    for horizon in dict.fromkeys(candidate.view.horizon for candidate, _ in sizes):
        menu = list(dict.fromkeys(c for c, _ in sizes if c.view.horizon == horizon))
        for level in levels:
            chosen[horizon, level] = min(menu, key=partial(size, level=level))
    return chosen


def _allowed(n: int, level: PACLevel, calibrate: int | None) -> int:
    """Errors among `n` tune units, in the share that the calibration allows; none where it cannot prove."""
    units = calibrate or n
    try:
        return n * max_errors(units, level) // units
    except NotEnoughData:
        return 0


def trial(
    config: dict[str, Any], tune: dict[View, Any], levels: Sequence[PACLevel], calibrate: int | None
) -> dict[str, Any]:
    """One trial of Ray Tune: a fit, measured at all levels, on the tune part that all trials share.

    A refusal and a bug are answers; what Ray tries again are workers that died.
    """
    fit = config["fit"]
    forecast, truth = tune[fit.view]
    try:
        return {"sizes": held_out_sizes(fit, forecast, truth, levels, calibrate=calibrate)}
    except PACError as error:
        return {"sizes": [float("inf")] * len(levels), "refused": str(error)}
    except MemoryError:
        raise
    except Exception:
        return {"bug": traceback.format_exc()}


def sizes_by_tune(
    tune: dict[View, Any],
    menu: Sequence[Candidate],
    levels: Sequence[PACLevel],
    progress: Callable[[int, int], Any] | None = None,
    calibrate: int | None = None,
) -> dict[tuple[Candidate, PACLevel], float]:
    """The held-out size of every fit of every candidate at every level, in parallel, on a started Ray.

    progress: called with the number of finished trials and of all, whenever one is finished
    """
    from ray import tune as ray_tune

    from cluster.workers import NoWorkers  # imports Ray

    wanted, done = fits(menu, levels), 0

    class Told(ray_tune.Callback):
        def on_trial_complete(self, *args: Any, **info: Any) -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, len(wanted))

    measured = ray_tune.with_parameters(trial, tune=tune, levels=levels, calibrate=calibrate)
    with tempfile.TemporaryDirectory() as storage:
        tuner = ray_tune.Tuner(
            ray_tune.with_resources(measured, {"cpu": 1}),
            param_space={"fit": ray_tune.grid_search(wanted)},
            tune_config=ray_tune.TuneConfig(reuse_actors=True),
            run_config=ray_tune.RunConfig(
                name="tune",
                storage_path=storage,
                verbose=0,
                callbacks=[Told()],
                failure_config=ray_tune.FailureConfig(max_failures=3),  # a worker that dies is no answer
            ),
        )
        grid = tuner.fit()
    found: dict[tuple[Candidate, PACLevel], float] = {}
    for result in (grid[i] for i in range(len(grid))):
        if result.error is not None or result.config is None or result.metrics is None:
            raise NoWorkers(f"a trial lost its worker again and again: {result.error}")
        if "bug" in result.metrics:
            raise RuntimeError(f"a trial failed:\n{result.metrics['bug']}")
        fit = result.config["fit"]
        if "refused" in result.metrics:
            say("left out", f"{fit}: {result.metrics['refused']}")
        for level, size in zip(levels, result.metrics["sizes"], strict=True):
            found[fit, level] = size
    return {(fit, level): found[fit, level] for fit in wanted for level in levels}


def sweep(
    results: Results,
    levels: Sequence[PACLevel],
    ledger: LedgerPath,
    *,
    shapes: Sequence[str] = (),
    horizons: Sequence[int | None] = (None,),
    members: Sequence[int | None] = (None,),
    same: bool = False,
    progress: Callable[[int, int], Any] | None = None,
) -> tuple[list[dict[str, Any]], float]:
    """A row for each horizon and level: what was chosen on the tune part, its certificate and its test.

    Returns the rows, and the probability below which any of the certificates fails. A second look is refused
    before the first trial; the same sweep may be repeated. Each part is read once, whatever is compared.
    """
    task = results.task
    check_levels(task.calibrate, levels)
    views = [View(size, horizon) for horizon in horizons for size in members]
    plan: dict[str, Any] = {"kind": "sweep", "shapes": [*shapes], "horizons": [*horizons]}
    plan |= {"members": [*members], "same": same, "of": [str(view) for view in views]}
    refuse_second_look(results, levels, ledger, plan, [_prefix(horizon) for horizon in horizons])
    if task.score is not None or not results.parts.tune.n:
        raise InvalidInput("a sweep needs forecasts and tune units, but the run stores scores or has none")
    tune = {view: drop_failed(*pair) for view, pair in results.gather("tune", views).items()}
    kind = next(iter(tune.values()))[0].domain[0]
    sizes = sizes_by_tune(tune, candidates(kind, shapes, views), levels, progress, task.calibrate)
    chosen = choose(sizes, same=same)
    fitted = {}
    for (horizon, level), candidate in chosen.items():
        at = candidate.at or level
        others = [other for other in levels if other != at] if same else []
        score = candidate.fit(*tune[candidate.view], at, calibrate=task.calibrate, others=others)
        fitted[_prefix(horizon), level] = score, candidate.view
    made, findings = certify_choices(results, fitted, ledger, plan)
    rows = [
        _row(place, candidate, sizes[candidate, place[1]], findings.get((_prefix(place[0]), place[1])))
        for place, candidate in chosen.items()
    ]
    _say_remarks(list(findings.values()))
    return rows, made[0].look.cost


def _say_remarks(findings: Sequence[Finding]) -> None:
    """What users should know of the first certificate with remarks, and how many more have some."""
    noted = [one for one in findings if one.certificate.predictor.remarks]
    more = f" and {len(noted) - 1} more" if len(noted) > 1 else ""
    for remark in noted[0].certificate.predictor.remarks if noted else ():
        say("note", f"{noted[0].file}{more}: {remark}")


def _prefix(horizon: int | None) -> str:
    return f"horizon-{horizon}-" if horizon else ""


def _row(
    place: tuple[int | None, PACLevel],
    candidate: Candidate,
    size: float,
    finding: Finding | None,
) -> dict[str, Any]:
    horizon, level = place
    row: dict[str, Any] = {
        "epsilon": level.epsilon,
        "delta": level.delta,
        "horizon": horizon or "",
        "members": candidate.view.members or "",
        "score": str(replace(candidate, at=None) if candidate.at == level else candidate),
        "tune size": size,
    }
    row |= dict.fromkeys(("T", "test error", "interval", "size", "refuted"), "") | {"file": "refused"}
    if finding is None:
        return row
    predictor = finding.certificate.predictor
    if isinstance(predictor.score, RankedScore):
        row["score"] = f"{row['score']}: {predictor.score}"
    row |= {"T": predictor.threshold.value, "file": finding.file}
    if finding.evaluation is None:
        return row
    whole, word = finding.evaluation.all, "yes" if finding.evaluation.refuted else "no"
    interval = f"{whole.interval[0]:.4f}..{whole.interval[1]:.4f}"
    return row | {"test error": whole.error, "interval": interval, "size": whole.mean, "refuted": word}
