"""Many certificates compared with Ray Tune: epsilon and delta, and what changes the scores.

Forecasts were computed once, by `pac run`; trials share them through the object store. A trial
is one fit: its scores are computed once, for all levels that share the fit. Every choice is made on the tune
part, by sizes on units a candidate was not fitted on. The calibrate part is opened once, for what was
chosen, after the ledger has it all.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from cluster.candidates import Candidate, candidates, choose, fits, held_out_sizes
from cluster.driver import (
    Finding,
    Task,
    certificate_file,
    certify_results,
    evaluate_certificates,
    refuse_second_look,
)
from cluster.errors import NoWorkers
from cluster.folders import RunFolder
from cluster.results import Results, View
from pac_core import Asked, InvalidInput, PACError, PACLevel
from pac_core.ledger import LedgerPath, score_digest
from pac_core.options import say
from pac_core.predictors import Score
from pac_core.ranked_scores import RankedScore


def trial(
    config: dict[str, Any], tune: dict[View, Any], levels: Sequence[PACLevel], calibrate: int | None
) -> dict[str, Any]:
    """One trial of Ray Tune: a fit, measured at all levels, on the tune part that all trials share.

    A candidate that these units refuse has infinite sets, and says why: the others may do. Any other
    error is a bug, the same at every try. Both are answers; what Ray tries again are workers that died.
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
    results: of this run, if something was read of it already
    """
    task.check(levels)
    views = [View(size, horizon) for horizon in horizons for size in members]
    plan = {
        "kind": "sweep",
        "shapes": [*shapes],
        "horizons": [*horizons],
        "members": [*members],
        "same": same,
        "of": [str(view) for view in views],
    }
    files = [certificate_file(level, _prefix(horizon)) for horizon in horizons for level in levels]
    refuse_second_look(task, folder, levels, ledger, files, plan)
    results = results or task.results(folder)
    if task.score is not None or not results.parts.tune.n:
        raise InvalidInput("a sweep needs forecasts and tune units, but the run stores scores or has none")
    tune = results.gather("tune", views)
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
    asked = _ask(results, [(fitted[places[0]], places, view) for (_, view), places in menu.items()])
    made = certify_results(task, results, asked, ledger, plan)
    issued: dict[tuple[int | None, PACLevel], Any] = {}
    for certified, ((_, view), places) in zip(made, menu.items(), strict=True):
        proved = {c.predictor.threshold.level: c for c in certified.certificates}
        issued |= {p: (proved[p[1]], view, _prefix(p[0])) for p in places if p[1] in proved}
    findings = dict(zip(issued, evaluate_certificates(results, list(issued.values())), strict=True))
    rows = [_row(place, chosen[place], sizes, findings.get(place)) for place in chosen]
    return rows, made[0].look.cost


def _ask(results: Results, menu: Sequence[tuple[Score, Sequence[Any], View]]) -> list[Asked]:
    """The scores on the menu, each with a file; the first that is asked for computes all, in one pass."""

    @cache
    def written() -> dict[str, Any]:
        return dict(zip(targets, results.write_scores(wanted), strict=True))

    asked, wanted = [], []
    for score, places, view in menu:
        target = f"scores-{score_digest(score, str(view))[:12]}.parquet"
        levels = tuple(level for _, level in places)
        scores = partial(lambda name: written()[name], target)
        asked.append(Asked(score, levels, scores, results.domain(view), str(view)))
        wanted.append((score, target, view))
    targets = [target for _, target, _ in wanted]
    return asked


def _prefix(horizon: int | None) -> str:
    return f"horizon-{horizon}-" if horizon else ""


def _row(
    place: tuple[int | None, PACLevel],
    candidate: Candidate,
    sizes: dict[tuple[Candidate, PACLevel], float],
    finding: Finding | None,
) -> dict[str, Any]:
    horizon, level = place
    row = {
        "epsilon": level.epsilon,
        "delta": level.delta,
        "horizon": horizon or "",
        "members": candidate.view.members or "",
        "score": str(replace(candidate, at=None) if candidate.at == level else candidate),
        "tune size": sizes[candidate, level],
    }
    if finding is None:
        return row | {"T": "", "test error": "", "interval": "", "size": "", "refuted": "", "file": "refused"}
    predictor = finding.certificate.predictor
    for remark in predictor.remarks:
        say("note", f"{finding.file}: {remark}")
    if isinstance(predictor.score, RankedScore):
        row["score"] = f"{row['score']}: {predictor.score}"
    row["T"] = predictor.threshold.value
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
