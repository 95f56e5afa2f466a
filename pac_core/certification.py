"""The whole way from forecasts to certificates: split, tune, write down the menu, calibrate, issue."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pac_core.arrays import Array
from pac_core.bounds import PACLevel, max_errors
from pac_core.certificates import Certificate, Record, SplitRecord, issue
from pac_core.forecasts import GaussianForecast, LogitForecast
from pac_core.ledger import Entry, Opening, open_split, score_digest
from pac_core.predictors import Likelihood, Predictor, Score
from pac_core.splits import Splits, ids_digest, split
from pac_core.temperatures import fit_temperature
from pac_core.thresholds import fit_threshold

FitScore: TypeAlias = Callable[[Any, Any, PACLevel], Score]
"""From tune forecast, tune truth and level to a score, such as `tempered` or a tube shape's fit."""


@dataclass(frozen=True, eq=False)
class Certified:
    """What `certify` made.

    look: what the ledger holds; its `cost` is what the certificates cost together
    score: fitted on the tune part
    ids, scores: `[n]` of the calibration units, for `verify`
    certificates: one per level
    parts: the split, whose `test` part nobody has looked at; None if the scores were given
    """

    look: Opening
    score: Score
    ids: Any
    scores: Array
    certificates: tuple[Certificate, ...]
    parts: Splits | None = None


def tempered(forecast: Any, truth: Any, level: PACLevel) -> Score:
    """The paper's score with its temperature (C)."""
    return Likelihood.fit(forecast, truth, (fit_temperature,))


def certify(
    forecast: LogitForecast | GaussianForecast,
    truth: Any,
    levels: PACLevel | Sequence[PACLevel],
    *,
    ids: Any,
    tune: int,
    calibrate: int,
    ledger: str | os.PathLike[str],
    seed: int = 0,
    fit: FitScore = tempered,
    unit: str = "unit",
    train_ids: Iterable[Any] = (),
    train: str = "not named",
    model: Record | None = None,
    data: Record | None = None,
) -> Certified:
    """Certificates at one or more levels from one look at `calibrate` of the units.

    The units are split by `ids` and `seed`; `fit` chooses the score on the tune part; the menu goes
    into the ledger before any calibration score is computed, and a second look is refused. What is
    not tuned or calibrated on is left in `parts.test`. A level that so few units cannot prove is
    refused first.
    """
    wanted = [levels] if isinstance(levels, PACLevel) else list(levels)
    parts = split(ids, tune=tune, calibrate=calibrate, seed=seed, train=(known := list(train_ids)))
    for level in wanted:
        max_errors(parts.calibrate.n, level)
    truth = truth if hasattr(truth, "shape") else np.asarray(truth)
    tuning, rows = parts.tune.rows, parts.calibrate.rows
    score = fit(forecast.take(tuning), truth[tuning], wanted[0]) if tune else Likelihood()
    names = np.asarray(ids).astype(str)
    return certify_scores(
        score,
        lambda: score.scores(forecast.take(rows), truth[rows]),
        wanted,
        ids=names[rows],
        ledger=ledger,
        pool=ids_digest(names),
        parts=parts,
        unit=unit,
        train=train_record(train, known),
        tune=Record("tune", parts.tune.n, parts.tune.digest),
        model=model,
        data=data,
        split=SplitRecord(seed, ids_digest(names)),
    )


def train_record(name: str, ids: Sequence[Any]) -> Record:
    """What the model was trained on, with the digest of its ids where they are known."""
    return Record(name, len(ids), ids_digest(ids)) if ids else Record(name)


def certify_scores(
    score: Score,
    scores: Callable[[], Array],
    levels: Sequence[PACLevel],
    *,
    ids: Any,
    ledger: str | os.PathLike[str],
    pool: str | None = None,
    parts: Splits | None = None,
    **about: Any,
) -> Certified:
    """The same for a score that is fitted already; `scores()` is called after the ledger is written.

    `about` goes to `issue`: unit, train, tune, model, data, split.
    """
    n, digest = len(ids), score_digest(score)
    for level in levels:
        max_errors(n, level)
    menu = tuple(Entry(digest, level.epsilon, level.delta) for level in levels)
    look = open_split(ledger, Opening(pool or ids_digest(ids), ids_digest(ids), n, menu))
    found = scores()
    certificates = tuple(
        issue(Predictor(score, fit_threshold(found, level)), found, ids=ids, **about) for level in levels
    )
    return Certified(look, score, ids, found, certificates, parts)
