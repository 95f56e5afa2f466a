"""Many certificates compared with Ray Tune: epsilon and delta, and what changes the scores.

Forecasts were computed once, by `pac run`; trials share them through the object store. Every choice is
made on the tune part, by sizes on units a candidate was not fitted on. The calibrate part is opened once,
for what was chosen, after the ledger has it all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cluster.driver import Task, certify_results, found
from cluster.results import ALL, Results, View
from cluster.storage import RunFolder
from pac_core import (
    Asked,
    InvalidInput,
    Likelihood,
    NotEnoughData,
    PACLevel,
    accumulated,
    fit_shape,
    fit_temperature,
    max_errors,
)
from pac_core.ledger import score_digest
from pac_core.predictors import Score
from pac_core.truths import Trajectories

SHAPES = ("box", "max", "joint")
_SIZED = 1000  # units on which a mean size is measured: it needs no more


@dataclass(frozen=True)
class Candidate:
    """One way to score.

    shape: a tube shape, or "labels" for a classifier
    accumulate, temperature: the paper's A and C, where the shape leaves the choice
    view: which of the stored forecasts
    """

    shape: str
    accumulate: bool = False
    temperature: bool = False
    view: View = ALL

    def __str__(self) -> str:
        extra = [word for flag, word in ((self.accumulate, "A"), (self.temperature, "C")) if flag]
        return " ".join([self.shape, *(["with " + "+".join(extra)] if extra else [])])

    def fit(self, forecast: Any, truth: Any, level: PACLevel) -> Score:
        """The score, fitted on these tune units."""
        if self.shape not in ("joint", "labels"):
            return fit_shape(forecast, truth, level, shape=self.shape)
        steps = [accumulated] * self.accumulate + [fit_temperature] * self.temperature
        return Likelihood.fit(forecast, truth, steps)


def candidates(kind: str, shapes: Sequence[str], views: Sequence[View]) -> list[Candidate]:
    """Every way to score forecasts of this kind; `shapes` are for trajectories."""
    if kind != "trajectories":
        return [Candidate("labels", temperature=flag) for flag in (True, False)]
    unknown = set(shapes) - set(SHAPES)
    if unknown:
        raise InvalidInput(f"shapes must be of {', '.join(SHAPES)}, got {', '.join(sorted(unknown))}")
    plain = [Candidate(shape) for shape in shapes if shape != "joint"]
    paper = [Candidate("joint", a, c) for a in (True, False) for c in (True, False)]
    every = plain + (paper if "joint" in shapes else [])
    return [Candidate(c.shape, c.accumulate, c.temperature, view) for view in views for c in every]


def held_out_size(candidate: Candidate, forecast: Any, truth: Any, level: PACLevel) -> float:
    """The mean size on tune units the candidate was not fitted on: either half judges the other.

    Tubes are measured in units of the tune deviation, because their dimensions have different units.
    """
    order = np.random.default_rng(0).permutation(len(truth))
    halves = [(forecast.take(rows), truth[rows]) for rows in (np.sort(order[::2]), np.sort(order[1::2]))]
    crossed = [(candidate.fit(*halves[i], level), *halves[1 - i]) for i in (0, 1)]
    scores = np.sort(np.concatenate([np.asarray(s.scores(f, t)) for s, f, t in crossed]))
    limit = float(scores[-1 - _allowed(len(scores), level)])
    if not np.isfinite(limit):
        return float("inf")
    some = slice(0, _SIZED // 2)
    sets = [score.sets(half.take(some), limit) for score, half, _ in crossed]
    if not isinstance(truth, Trajectories):
        return float(np.mean(np.concatenate([one.size() for one in sets])))
    marked = truth.marked()
    deviation = np.nanstd(np.where(np.isinf(marked), np.nan, marked), axis=(0, 1))
    return float(np.mean(np.concatenate([one.normalised_size(deviation) for one in sets])))


def trial(config: dict[str, Any], tune: dict[View, Any]) -> dict[str, float]:
    """One trial of Ray Tune: a candidate at a level, on the tune part that all trials share."""
    candidate, level = config["candidate"], PACLevel(config["epsilon"], config["delta"])
    forecast, truth = tune[candidate.view]
    return {"size": held_out_size(candidate, forecast, truth, level)}


def sizes_by_tune(
    tune: dict[View, Any],
    menu: Sequence[Candidate],
    levels: Sequence[PACLevel],
    storage: Path,
    progress: Callable[[int, int], Any] | None = None,
) -> dict[tuple[Candidate, PACLevel], float]:
    """The held-out size of every candidate at every level, in parallel; Ray must be initialised.

    progress: called with the number of finished trials and of all, whenever one is finished
    """
    from ray import tune as ray_tune

    total, done = len(menu) * len(levels), 0

    class Told(ray_tune.Callback):
        def on_trial_complete(self, *args: Any, **info: Any) -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, total)

    grid = {
        "candidate": ray_tune.grid_search(list(menu)),
        "epsilon": ray_tune.grid_search(sorted({level.epsilon for level in levels})),
        "delta": ray_tune.grid_search(sorted({level.delta for level in levels})),
    }
    tuner = ray_tune.Tuner(
        ray_tune.with_resources(ray_tune.with_parameters(trial, tune=tune), {"cpu": 1}),
        param_space=grid,
        tune_config=ray_tune.TuneConfig(metric="size", mode="min", reuse_actors=True),
        run_config=ray_tune.RunConfig(
            name="tune",
            storage_path=str(storage.resolve()),
            verbose=0,
            callbacks=[Told()],
            failure_config=ray_tune.FailureConfig(max_failures=3),  # a worker that dies is no answer
        ),
    )
    found = {}
    grid_of_results = tuner.fit()
    for result in (grid_of_results[i] for i in range(len(grid_of_results))):
        if result.error is not None or result.config is None or result.metrics is None:
            raise InvalidInput(f"a trial failed: {result.error}")
        level = PACLevel(result.config["epsilon"], result.config["delta"])
        found[result.config["candidate"], level] = float(result.metrics["size"])
    return found


def choose(
    sizes: dict[tuple[Candidate, PACLevel], float], *, same: bool = False
) -> dict[tuple[int | None, PACLevel], Candidate]:
    """For each horizon and level, the candidate of the smallest held-out size.

    same: one candidate for all levels of a horizon, by the mean logarithm of its sizes
    """
    chosen: dict[tuple[int | None, PACLevel], Candidate] = {}
    for horizon in dict.fromkeys(candidate.view.horizon for candidate, _ in sizes):
        menu = list(dict.fromkeys(c for c, _ in sizes if c.view.horizon == horizon))
        levels = list(dict.fromkeys(level for _, level in sizes))

        def mean_log(candidate: Candidate, levels: list[PACLevel] = levels) -> float:
            return float(np.mean([np.log(sizes[candidate, level]) for level in levels]))

        for level in levels:
            key: Callable[[Candidate], float] = mean_log if same else partial(_at, sizes, level)
            chosen[horizon, level] = min(menu, key=key)
    return chosen


def sweep(
    task: Task,
    folder: RunFolder,
    levels: Sequence[PACLevel],
    ledger: Path,
    storage: Path,
    *,
    shapes: Sequence[str] = SHAPES,
    horizons: Sequence[int | None] = (None,),
    members: Sequence[int | None] = (None,),
    same: bool = False,
    progress: Callable[[int, int], Any] | None = None,
) -> tuple[list[dict[str, Any]], float]:
    """A row for each horizon and level: what was chosen on the tune part, its certificate and its test.

    Returns the rows, and the probability below which any of the certificates fails.
    """
    task.check(levels)
    results = task.results(folder)
    if task.score is not None or not results.parts.tune.n:
        raise InvalidInput("a sweep needs forecasts and tune units, but the run stores scores or has none")
    views = [View(size, horizon) for horizon in horizons for size in members]
    tune = {view: results.gathered("tune", view) for view in views}
    kind = next(iter(tune.values()))[0].domain[0]
    sizes = sizes_by_tune(tune, candidates(kind, shapes, views), levels, storage, progress)
    chosen = choose(sizes, same=same)
    fitted = {
        place: candidate.fit(*tune[candidate.view], levels[0] if same else place[1])
        for place, candidate in chosen.items()
    }
    menu: dict[tuple[str, View], list[Any]] = {}
    for place, score in fitted.items():
        menu.setdefault((score_digest(score), chosen[place].view), []).append(place)
    asked = [_asked(results, fitted[places[0]], places, view) for (_, view), places in menu.items()]
    made = certify_results(task, results, asked, ledger)
    rows = []
    for certified, ((_, view), places) in zip(made, menu.items(), strict=True):
        issued = {c.predictor.threshold.level: c for c in certified.certificates}
        rows += [_row(results, p, chosen[p], sizes, issued.get(p[1]), view) for p in places]
    order = {place: i for i, place in enumerate(chosen)}
    rows.sort(key=lambda row: order[row["horizon"] or None, PACLevel(row["epsilon"], row["delta"])])
    return rows, made[0].look.cost


def _asked(results: Results, score: Score, places: Sequence[Any], view: View) -> Asked:
    """One score on the menu, with a file for its calibration scores."""
    levels = tuple(level for _, level in places)
    asked = Asked(score, levels, lambda: results.scores(score, target, view), results.domain(view), str(view))
    target = f"scores-{asked.digest[:12]}.parquet"
    return asked


def _row(
    results: Results,
    place: tuple[int | None, PACLevel],
    candidate: Candidate,
    sizes: dict[tuple[Candidate, PACLevel], float],
    certificate: Any,
    view: View,
) -> dict[str, Any]:
    horizon, level = place
    row = {
        "epsilon": level.epsilon,
        "delta": level.delta,
        "horizon": horizon or "",
        "members": candidate.view.members or "",
        "score": str(candidate),
        "tune size": sizes[candidate, level],
    }
    if certificate is None:
        return row | {"T": "", "test error": "", "interval": "", "size": "", "refuted": "", "file": "refused"}
    prefix = f"horizon-{horizon}-" if horizon else ""
    finding = found(results, certificate, view, prefix)
    row["T"] = certificate.predictor.threshold.value
    if finding.evaluation is None:
        return row | {"test error": "", "interval": "", "size": "", "refuted": "", "file": finding.file}
    whole = finding.evaluation.all
    return row | {
        "test error": whole.error,
        "interval": f"{whole.interval[0]:.4f}..{whole.interval[1]:.4f}",
        "size": whole.mean,
        "refuted": "yes" if finding.evaluation.refuted else "no",
        "file": finding.file,
    }


def _at(sizes: dict[tuple[Candidate, PACLevel], float], level: PACLevel, candidate: Candidate) -> float:
    return sizes[candidate, level]


def _allowed(n: int, level: PACLevel) -> int:
    try:
        return max_errors(n, level)
    except NotEnoughData:  # a choice needs no proof
        return int(level.epsilon * n)
