"""The paper's experiments on small tables: certify, compare D and C+D, repeat on other draws of the rows."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pac_core import (
    Certified,
    ConfidenceSets,
    Evaluation,
    NoTemperature,
    PACLevel,
    Predictor,
    Record,
    calibrate,
    certify,
    evaluate,
    max_errors,
    split,
    tempered,
)
from pac_core.predictors import Likelihood, Score
from pac_vision.tabular import Table
from pac_vision.tabular_designs import TableDesign
from pac_vision.tabular_forecasts import TableForecast, TableModel, forecast_rest


@dataclass(frozen=True, eq=False)
class Widths:
    """Intervals measured by their full width; `sets` measures them by half of it."""

    sets: ConfidenceSets
    size_in: str

    def contains(self, truth: Any) -> Any:
        return self.sets.contains(truth)

    def size(self) -> Any:
        return 2 * self.sets.size()

    @property
    def empty(self) -> Any:
        return self.sets.empty


@dataclass(frozen=True, eq=False)
class Ablated:
    """One row of the ablation on the test rows.

    name: "D" (the forecaster as it is) or "C+D" (with a temperature)
    sets: of the test rows, with `size()` in labels or as a full width
    """

    name: str
    predictor: Predictor
    sets: Any
    found: Evaluation


def tempered_if_any(forecast: Any, truth: Any, level: PACLevel) -> Score:
    """The paper's C, or the forecaster as it is where the tune rows have no most likely temperature.

    That happens if the model is right about every one of them. Either way it is a choice on the tune rows.
    """
    try:
        return tempered(forecast, truth, level)
    except NoTemperature:
        return Likelihood()


def certify_table(
    table: Table, design: TableDesign, *, ledger: str | os.PathLike[str], seed: int = 0
) -> tuple[TableForecast, Certified]:
    """The certificate of C+D, with a row as the unit, from one look that the ledger records.

    The promise is about rows drawn like those of the file, independently of each other: where rows belong
    together (one patient, one device) it does not hold.
    """
    made = forecast_rest(table, design, seed=seed)
    found = certify(
        made.forecast,
        made.truth,
        design.level,
        ids=made.ids,
        tune=design.tune,
        calibrate=design.calibrate,
        ledger=ledger,
        seed=seed,
        fit=tempered_if_any,
        unit="row",
        train_ids=made.train_ids,
        train=f"rows of {table.name}",
        model=Record("five small networks", digest=made.model.networks.digest),
        data=Record(table.name, len(table), table.digest),
    )
    return made, found


def ablate(made: TableForecast, design: TableDesign, *, seed: int) -> list[Ablated]:
    """D and C+D on the test rows; a comparison, which certifies nothing.

    Both come from the same rows as the certificate of the same seed; C+D has its threshold.
    """
    parts = split(made.ids, tune=design.tune, calibrate=design.calibrate, seed=seed)
    (tune, tune_truth), (cal, cal_truth), (test, truth) = (
        (made.forecast.take(part.rows), made.truth[part.rows]) for part in parts
    )
    rows = []
    for name in ("D", "C+D"):
        score = tempered_if_any(tune, tune_truth, design.level) if name == "C+D" else Likelihood()
        predictor = calibrate(score, cal, cal_truth, design.level)
        sets = predictor.sets(test)
        shown = sets if design.task == "labels" else Widths(sets, design.size_in)
        rows.append(Ablated(name, predictor, shown, evaluate(shown, truth, design.level)))
    return rows


def sets_of(predictor: Predictor, model: TableModel, table: Table) -> list[dict[str, Any]]:
    """A row for each of a table's: its id and the labels of its set, or the ends of its interval.

    The promise holds for rows drawn like those calibrated on. An empty set or interval says that the model
    holds no answer for likely enough; it counts as a miss.
    """
    sets = predictor.sets(model.forecast(table))
    if model.classes:
        held = [" or ".join(model.classes[place] for place in labels) for labels in sets.labels()]
        return [{"id": name, "set": text} for name, text in zip(table.ids.tolist(), held, strict=True)]
    ends = zip(*(np.asarray(end)[:, 0].tolist() for end in sets.box()), strict=True)
    return [
        {"id": name, "lower": low, "upper": high}
        for name, (low, high) in zip(table.ids.tolist(), ends, strict=True)
    ]


@dataclass(frozen=True)
class Repeats:
    """The same experiment on other draws of all the rows. A comparison, no certificate: the draws overlap.

    errors: of C+D on the test rows of each draw; n: test rows of each
    sizes: mean size of C+D in each draw; plain_sizes: that of D
    expected: the share of draws whose measured error is expected above epsilon
    breach: the probability that the true error is, below delta
    """

    errors: tuple[int, ...]
    sizes: tuple[float, ...]
    plain_sizes: tuple[float, ...]
    n: int
    level: PACLevel
    expected: float
    breach: float

    @property
    def above(self) -> int:
        """Draws whose measured error was above epsilon."""
        return sum(errors / self.n > self.level.epsilon for errors in self.errors)


def repeat(table: Table, design: TableDesign, seeds: Iterable[int]) -> Repeats:
    """C+D on a new draw of training, tune, calibration and test rows for each seed.

    For exchangeable rows without ties the errors among m test rows are beta-binomial(m, k* + 1, n - k*), so
    it is known how often the measured error should exceed epsilon; the true one does with probability
    P[Binomial(n, epsilon) <= k*]. A measured error above epsilon is thus no broken promise yet.
    """
    from scipy.stats import betabinom, binom

    n, m = design.calibrate, design.test_rows(table)
    drawn = [ablate(forecast_rest(table, design, seed=seed), design, seed=seed) for seed in seeds]
    plain, found = ([one[place].found.all for one in drawn] for place in (0, 1))
    allowed, most = max_errors(n, design.level), int(np.floor(design.level.epsilon * m + 1e-9))
    return Repeats(
        tuple(row.errors for row in found),
        tuple(row.mean for row in found),
        tuple(row.mean for row in plain),
        m,
        design.level,
        float(betabinom.sf(most, m, allowed + 1, n - allowed)),
        float(binom.cdf(allowed, n, design.level.epsilon)),
    )
