"""`pac tune` with Ray Tune: the candidates, the smallest on the tune part, and a row of results for each."""

from __future__ import annotations

import io
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from cluster.workers import NoWorkers
from pac_core import InvalidInput, NotEnoughData, PACError, PACLevel, Trajectories
from pac_core.bounds import max_errors
from pac_core.certificates import LedgerPath, Request, score_digest
from pac_core.cli import say
from pac_core.fitting import check_score
from pac_core.forecasts import drop_failed
from pac_core.runs import (
    ALL,
    Finding,
    Results,
    RunFolder,
    Task,
    View,
    certificate_file,
    certify_results,
    evaluate_certificates,
    refuse_second_look,
)
from pac_core.scores import fit_temperature
from pac_core.sets import (
    LABEL_SCORES,
    Likelihood,
    RankedScore,
    Score,
    accumulate_variance,
    label_score_fitter,
)
from pac_core.tubes import fit_shape, with_typical

DEFAULT_SHAPES = ("box", "max", "joint")
_SIZED = 1000  # units on which a mean size is measured: it needs no more


@dataclass(frozen=True)
class Candidate:
    """One way to score: a tube shape, or one of `LABEL_SCORES`, of the forecasts that `view` reads.

    accumulate, temperature: the paper's A and C, where the shape leaves the choice
    at: the level it is fitted for, where that makes a difference; it may serve others as well
    """

    shape: str
    accumulate: bool = False
    temperature: bool = False
    view: View = ALL
    at: PACLevel | None = None

    def __str__(self) -> str:
        extra = [word for flag, word in ((self.accumulate, "A"), (self.temperature, "C")) if flag]
        words = [self.shape, *(["with " + "+".join(extra)] if extra else [])]
        if self.at is not None:
            words.append(f"for ({self.at.epsilon:g}, {self.at.delta:g})")
        return " ".join(words)

    @property
    def for_all(self) -> bool:
        """Whether one fit serves every level; what is chosen for its size is chosen for a level."""
        return self.shape in ("joint", "paper", "plain")

    def fit(
        self,
        forecast: Any,
        truth: Any,
        level: PACLevel,
        others: Sequence[PACLevel] = (),
        *,
        calibrate: int | None = None,
    ) -> Score:
        """The score, fitted on these tune units; `others` and `calibrate` as in `choose_label_score`."""
        if self.shape in LABEL_SCORES:
            return label_score_fitter(self.shape, calibrate=calibrate, others=others)(forecast, truth, level)
        if not self.for_all:
            return fit_shape(forecast, truth, level, shape=self.shape)
        steps = [accumulate_variance] * self.accumulate + [fit_temperature] * self.temperature
        return with_typical(Likelihood.fit(forecast, truth, steps), forecast, truth)


def candidates(kind: str, shapes: Sequence[str], views: Sequence[View]) -> list[Candidate]:
    """Every way to score forecasts of this kind; `shapes` are tube shapes, by default box, max and joint."""
    if kind != "trajectories":
        if shapes:
            raise InvalidInput(f"--shape is for trajectories, but the run holds forecasts of {kind}")
        return [Candidate(name) for name in sorted(LABEL_SCORES) if kind == "labels" or name != "smallest"]
    shapes = shapes or DEFAULT_SHAPES
    for shape in shapes:
        check_score(shape, (kind,))
    plain = [Candidate(shape) for shape in shapes if shape != "joint"]
    paper = [Candidate("joint", a, c) for a in (True, False) for c in (True, False)]
    every = plain + (paper if "joint" in shapes else [])
    return [Candidate(c.shape, c.accumulate, c.temperature, view) for view in views for c in every]


def fits(menu: Sequence[Candidate], levels: Sequence[PACLevel]) -> list[Candidate]:
    """What has to be fitted: each is measured at every level, so that none is fitted twice.

    >>> two = (PACLevel(0.1, 0.01), PACLevel(0.05, 0.01))
    >>> [str(one) for one in fits([Candidate("box"), Candidate("joint")], two)]
    ['box for (0.1, 0.01)', 'box for (0.05, 0.01)', 'joint']
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
    if candidate.shape != "smallest":  # whose halves may have chosen scores that do not compare
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
    storage: Path,
    progress: Callable[[int, int], Any] | None = None,
    calibrate: int | None = None,
) -> dict[tuple[Candidate, PACLevel], float]:
    """The held-out size of every fit of every candidate at every level, in parallel, on a started Ray.

    progress: called with the number of finished trials and of all, whenever one is finished
    """
    from ray import tune as ray_tune

    wanted, done = fits(menu, levels), 0

    class Told(ray_tune.Callback):
        def on_trial_complete(self, *args: Any, **info: Any) -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, len(wanted))

    measured = ray_tune.with_parameters(trial, tune=tune, levels=levels, calibrate=calibrate)
    tuner = ray_tune.Tuner(
        ray_tune.with_resources(measured, {"cpu": 1}),
        param_space={"fit": ray_tune.grid_search(wanted)},
        tune_config=ray_tune.TuneConfig(reuse_actors=True),
        run_config=ray_tune.RunConfig(
            name="tune",
            storage_path=str(storage.resolve()),
            verbose=0,
            callbacks=[Told()],
            failure_config=ray_tune.FailureConfig(max_failures=3),  # a worker that dies is no answer
        ),
    )
    found: dict[tuple[Candidate, PACLevel], float] = {}
    grid = tuner.fit()
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
    task: Task,
    folder: RunFolder,
    levels: Sequence[PACLevel],
    ledger: LedgerPath,
    storage: Path,
    *,
    shapes: Sequence[str] = (),
    horizons: Sequence[int | None] = (None,),
    members: Sequence[int | None] = (None,),
    same: bool = False,
    progress: Callable[[int, int], Any] | None = None,
    results: Results | None = None,
) -> tuple[list[dict[str, Any]], float]:
    """A row for each horizon and level: what was chosen on the tune part, its certificate and its test.

    Returns the rows, and the probability below which any of the certificates fails. A second look is refused
    before the first trial; the same sweep may be repeated. Each part is read once, whatever is compared.
    """
    task.check(levels)
    views = [View(size, horizon) for horizon in horizons for size in members]
    plan: dict[str, Any] = {"kind": "sweep", "shapes": [*shapes], "horizons": [*horizons]}
    plan |= {"members": [*members], "same": same, "of": [str(view) for view in views]}
    files = [certificate_file(level, _prefix(horizon)) for horizon in horizons for level in levels]
    refuse_second_look(task, folder, levels, ledger, files, plan)
    results = results or task.results(folder)
    if task.score is not None or not results.parts.tune.n:
        raise InvalidInput("a sweep needs forecasts and tune units, but the run stores scores or has none")
    tune = {view: drop_failed(*pair) for view, pair in results.gather("tune", views).items()}
    kind = next(iter(tune.values()))[0].domain[0]
    sizes = sizes_by_tune(tune, candidates(kind, shapes, views), levels, storage, progress, task.calibrate)
    chosen = choose(sizes, same=same)
    fitted = {}
    for place, candidate in chosen.items():
        at = candidate.at or place[1]
        others = [level for level in levels if level != at] if same else []
        fitted[place] = candidate.fit(*tune[candidate.view], at, others, calibrate=task.calibrate)
    menu: dict[tuple[str, View], list[Any]] = {}
    for place, score in fitted.items():
        menu.setdefault((score_digest(score), chosen[place].view), []).append(place)
    files_of = {
        key: f"scores-{score_digest(fitted[p[0]], str(key[1]))[:12]}.parquet" for key, p in menu.items()
    }

    @cache
    def written() -> dict[str, Any]:
        """All scores by their files, in one pass when the first is asked for."""
        wanted = [(fitted[places[0]], files_of[key], key[1]) for key, places in menu.items()]
        return dict(zip(files_of.values(), results.write_scores(wanted), strict=True))

    asked = []
    for key, places in menu.items():
        proved_at, view = tuple(level for _, level in places), key[1]
        scores = partial(lambda name: written()[name], files_of[key])
        asked.append(Request(fitted[places[0]], proved_at, scores, results.domain(view), str(view)))
    made = certify_results(task, results, asked, ledger, plan)
    issued: dict[tuple[int | None, PACLevel], Any] = {}
    for certified, ((_, view), places) in zip(made, menu.items(), strict=True):
        proved = {c.predictor.threshold.level: c for c in certified.certificates}
        issued |= {p: (proved[p[1]], view, _prefix(p[0])) for p in places if p[1] in proved}
    findings = dict(zip(issued, evaluate_certificates(results, list(issued.values())), strict=True))
    rows = [_row(place, chosen[place], sizes, findings.get(place)) for place in chosen]
    return rows, made[0].look.cost


def _prefix(horizon: int | None) -> str:
    return f"horizon-{horizon}-" if horizon else ""


def _row(
    place: tuple[int | None, PACLevel],
    candidate: Candidate,
    sizes: dict[tuple[Candidate, PACLevel], float],
    finding: Finding | None,
) -> dict[str, Any]:
    horizon, level = place
    row: dict[str, Any] = {
        "epsilon": level.epsilon,
        "delta": level.delta,
        "horizon": horizon or "",
        "members": candidate.view.members or "",
        "score": str(replace(candidate, at=None) if candidate.at == level else candidate),
        "tune size": sizes[candidate, level],
    }
    row |= dict.fromkeys(("T", "test error", "interval", "size", "refuted"), "") | {"file": "refused"}
    if finding is None:
        return row
    predictor = finding.certificate.predictor
    for remark in predictor.remarks:
        say("note", f"{finding.file}: {remark}")
    if isinstance(predictor.score, RankedScore):
        row["score"] = f"{row['score']}: {predictor.score}"
    row |= {"T": predictor.threshold.value, "file": finding.file}
    if finding.evaluation is None:
        return row
    whole, word = finding.evaluation.all, "yes" if finding.evaluation.refuted else "no"
    interval = f"{whole.interval[0]:.4f}..{whole.interval[1]:.4f}"
    return row | {"test error": whole.error, "interval": interval, "size": whole.mean, "refuted": word}


def heat_maps(rows: Sequence[dict[str, Any]], title: str) -> bytes:
    """A PNG with two maps: the mean size of the sets, and their error on the test part."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    epsilons = sorted({row["epsilon"] for row in rows})
    deltas = sorted({row["delta"] for row in rows})
    asked = {(row["epsilon"], row["delta"]) for row in rows}
    wide = max(7.0, 2.4 + 1.9 * len(epsilons))
    figure, axes = plt.subplots(1, 2, figsize=(wide, 1.9 + 0.55 * len(deltas)), layout="constrained")
    panels = (("size", "mean size on the test part", "viridis"), ("test error", "measured error", "magma"))
    for axis, (key, words, colours) in zip(axes, panels, strict=True):
        values = np.full((len(deltas), len(epsilons)), np.nan)
        for row in rows:
            if row[key] != "":
                values[deltas.index(row["delta"]), epsilons.index(row["epsilon"])] = row[key]
        image = axis.imshow(values, cmap=colours, aspect="auto")
        figure.colorbar(image, ax=axis)
        middle = np.nanmean([np.nanmin(values), np.nanmax(values)]) if np.isfinite(values).any() else 0.0
        for (y, x), value in np.ndenumerate(values):
            missing = "refused" if (epsilons[x], deltas[y]) in asked else ""
            text = missing if np.isnan(value) else f"{value:.3g}"
            axis.text(x, y, text, ha="center", va="center", color="white" if value <= middle else "black")
        axis.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
        axis.set_yticks(range(len(deltas)), [f"{delta:g}" for delta in deltas])
        axis.set(xlabel="epsilon (promised error)", ylabel="delta", title=words)
    figure.suptitle(title)
    file = io.BytesIO()
    figure.savefig(file, dpi=150)
    plt.close(figure)
    return file.getvalue()
