"""Tables of classification results: rows of plain numbers and words, for the terminal and for csv."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pac_core import (
    LogitForecast,
    PACLevel,
    Temperature,
    calibration_error,
    error_interval,
    min_samples,
    vc_min_samples,
)
from pac_core.evaluation import Evaluation
from pac_core.evaluation import Row as Group
from pac_core.predictors import Likelihood, Score
from pac_vision.class_results import OURS, PAPER, WORDS, ClassResults, Measured
from pac_vision.levels import why_not
from pac_vision.predictions import Predictions, outcomes, readable

Rows = list[dict[str, Any]]
NONE = ""


def ablation_rows(results: ClassResults, level: PACLevel | None = None) -> Rows:
    """The paper's ablation in numbers, with the VC bound and with ours; a row for each kind of sets."""
    level = level or results.levels.main
    return [_row(results, sets, level) for sets in ("C", "D", PAPER, OURS)]


def baseline_rows(results: ClassResults) -> Rows:
    """The paper's comparison with sets that promise nothing."""
    rows = []
    for sets in ("mass", "mass, C", PAPER, OURS):
        found = results.main(sets)
        row = {"sets": sets, "promise": f"error <= {found.level.epsilon:g}"}
        row |= _numbers(found.evaluation, found.evaluation.all)
        if found.predictor is None:
            above = "above epsilon beyond doubt" if found.evaluation.refuted else "nothing to refute"
            row |= {"promise": "none", "verdict": above}
        rows.append(row)
    return rows


def correctness_rows(results: ClassResults) -> Rows:
    """Images that the classifier labels correctly, others, and broken ones; nothing is promised of any."""
    rows = []
    for sets in (PAPER, OURS):
        found = results.main(sets)
        for group in found.evaluation.rows[1:]:
            of = group.name.removeprefix("prediction=")
            rows.append({"sets": sets, "prediction": of, "images": group.n} | _numbers(None, group))
    return rows


def level_rows(results: ClassResults, levels: Sequence[PACLevel]) -> Rows:
    """Sizes and errors at many levels, those of the two kinds of sets that are compared."""
    return [
        {"epsilon": level.epsilon, "delta": level.delta} | _row(results, sets, level)
        for level in levels
        for sets in (PAPER, OURS)
    ]


def grid_rows(results: ClassResults) -> Rows:
    """The ablation at each level of the 5 x 3 table; what is out of reach says so."""
    return [
        {"epsilon": level.epsilon, "delta": level.delta} | row
        for level in results.levels.table
        for row in ablation_rows(results, level)
    ]


def grid_cells(results: ClassResults, sets: str, number: str) -> Rows:
    """One 5 x 3 table: epsilon down, delta across; `number` is ``error`` or ``mean size``."""
    rows = []
    for epsilon in results.levels.epsilons:
        row: dict[str, Any] = {"epsilon": epsilon}
        for delta in results.levels.deltas:
            level = PACLevel(epsilon, delta)
            found = results.at(sets, level)
            if found is None:
                cell: Any = why_not(results.parts.calibrate.n, min_samples(level))
            else:
                all_ = found.evaluation.all
                doubt = " refuted" if found.evaluation.refuted else ""
                cell = f"{all_.error:.4f}{doubt}" if number == "error" else f"{all_.mean:.4g}"
            row[f"delta {delta:g}"] = cell
        rows.append(row)
    return rows


def architecture_rows(results: ClassResults) -> Rows:
    """Each classifier: how often it errs, how calibrated it is, and its sets at the main level.

    Nothing was fitted to the predictions themselves, so their error is counted on all images.
    """
    rows: Rows = []
    for model in results.models:
        forecast, labels = model.take(results.parts.test.rows)
        wrong, n = int((outcomes(model.forecast, model.labels) != "correct").sum()), len(model.labels)
        paper = results.main(PAPER, model.name)
        assert paper.predictor is not None
        row: dict[str, Any] = {
            "classifier": model.name,
            "top-1 error": wrong / n,
            "98% interval": _interval(error_interval(wrong, n)),
            "tau": tau_of(paper.predictor.score),
            "ECE": calibration_error(*readable(forecast, labels)),
            "ECE, C": calibration_error(*readable(calibrated(results, model), labels)),
        }
        for sets in ("D", PAPER, OURS):
            found = results.main(sets, model.name)
            row |= {f"error, {sets}": found.evaluation.all.error}
            row |= {f"mean size, {sets}": found.evaluation.all.mean}
            row |= {f"median, {sets}": found.evaluation.all.median}
            row |= {f"verdict, {sets}": _verdict(found.evaluation)}
        rows.append(row)
    return rows


def reliability_rows(results: ClassResults, bins: int = 15) -> Rows:
    """Confidence and accuracy of the first classifier's predictions on the test part, in equal bins."""
    forecast, truth = results.test
    rows = []
    for name, whole in (("as it is", forecast), ("calibrated", calibrated(results))):
        one, labels = readable(whole, truth)
        confidence = np.exp(-Likelihood().scores(one, one.predictions()))
        hit = one.predictions() == labels
        which = np.minimum((confidence * bins).astype(int), bins - 1)
        for i in range(bins):
            mine = which == i
            n, hits = int(mine.sum()), int(hit[mine].sum())
            row = {"forecast": name, "from": i / bins, "to": (i + 1) / bins, "images": n}
            low, high = error_interval(hits, n) if n else (float("nan"),) * 2
            rows.append(
                row
                | {
                    "confidence": float(confidence[mine].mean()) if n else float("nan"),
                    "accuracy": hits / n if n else float("nan"),
                    "accuracy, low": low,
                    "accuracy, high": high,
                }
            )
    return rows


def coverage_rows(results: ClassResults, names: Sequence[str], sets: str = OURS) -> Rows:
    """The share of each class's test images whose set holds the truth, the surely least covered first.

    The promise is about all images together. A class that is covered less than 1 - epsilon breaks nothing.
    """
    found, (_, labels) = results.main(sets), results.test
    rows = []
    for label in np.unique(labels).tolist():
        mine = labels == label
        n, missed = int(mine.sum()), int(found.missed[mine].sum())
        low, high = error_interval(missed, n)
        rows.append(
            {
                "label": label,
                "class": names[label],
                "images": n,
                "covered": n - missed,
                "coverage": 1 - missed / n,
                "low": 1 - high,
                "high": 1 - low,
                "mean size": float(found.size[mine].mean()),
            }
        )
    return sorted(rows, key=lambda row: (row["high"], row["coverage"], row["label"]))


def tau_of(score: Score) -> float:
    """The temperature of the paper's score; 1 where it has none."""
    taus = [float(step.tau) for step in getattr(score, "preparations", ()) if isinstance(step, Temperature)]
    return math.prod(taus)


def _row(results: ClassResults, sets: str, level: PACLevel) -> dict[str, Any]:
    found, n = results.at(sets, level), results.parts.calibrate.n
    if found is not None:
        head = {"sets": sets, "what": WORDS[sets], "allowed errors": _allowed(found)}
        return head | _numbers(found.evaluation, found.evaluation.all)
    needed = vc_min_samples(level) if sets == "C" else min_samples(level)
    head = {"sets": sets, "what": WORDS[sets], "allowed errors": NONE}
    words = f"not feasible with n = {n:,}, {why_not(n, needed)}"
    return head | {"error": NONE, "98% interval": NONE, "verdict": words} | dict.fromkeys(_SIZES, NONE)


_SIZES = ("mean size", "median", "smallest", "largest")


def _numbers(evaluation: Evaluation | None, group: Group) -> dict[str, Any]:
    row = {"error": group.error, "98% interval": _interval(group.interval)}
    if evaluation is not None:
        row |= {"verdict": _verdict(evaluation)}
    sizes = (group.mean, group.median, group.smallest, group.largest)
    return row | dict(zip(_SIZES, sizes, strict=True))


def _verdict(evaluation: Evaluation) -> str:
    return "refuted" if evaluation.refuted else "not refuted"


def _interval(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.4f}..{ends[1]:.4f}"


def _allowed(found: Measured) -> Any:
    return NONE if found.predictor is None else found.predictor.threshold.errors


def calibrated(results: ClassResults, model: Predictions | None = None) -> LogitForecast:
    """A classifier's forecast of the test part with the temperature that the tune part gave."""
    one = model or results.models[0]
    paper = results.main(PAPER, one.name).predictor
    assert paper is not None
    assert isinstance(paper.score, Likelihood)
    return paper.score.prepared(one.take(results.parts.test.rows)[0])  # type: ignore[no-any-return]
