"""Alarms that may be suppressed: the paper's rule and the rule for true alarms, on the same alarms."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import (
    Certified,
    InvalidInput,
    LabelSets,
    LogitForecast,
    NotEnoughData,
    NothingAccepted,
    PACLevel,
    Record,
    RiskGiven,
    Suppression,
    Threshold,
    certify_scores,
    evaluate,
    fit_alarm_rule,
    fit_threshold,
    label_sets,
    nll,
    risk_given,
    split,
    suppress_by_sets,
    suppression,
)
from pac_core.certification import train_record
from pac_core.predictors import Likelihood
from pac_core.splits import digest_of
from pac_vision.tabular import Table
from pac_vision.tabular_features import fit_encoder
from pac_vision.tabular_models import fit_labels

PAPERS = "set is {false}"
OURS = "true alarms only"
KINDS = ("{}", "{false}", "{true}", "{false, true}")
"""The sets of labels that an alarm may have."""


@dataclass(frozen=True, eq=False)
class Alarms:
    """Alarms that no model was trained on, with forecasts.

    forecast: `[N, 2]`, label 1 is a true alarm; true: `[N]` booleans; ids: `[N]`
    calibrate, test: rows, disjoint

    There is no tune part: with two labels a temperature keeps the order of the scores, so it changes no set.
    """

    title: str
    ids: NDArray[np.str_]
    forecast: LogitForecast
    true: NDArray[np.bool_]
    calibrate: NDArray[np.int64]
    test: NDArray[np.int64]
    model: Record
    source: Record
    train_ids: Sequence[str] = ()

    @property
    def scores(self) -> NDArray[np.float64]:
        """`[N]` -log f(true|x)."""
        return np.asarray(nll(self.forecast, np.ones(len(self.true), dtype=np.int64)))


@dataclass(frozen=True, eq=False)
class RuleResult:
    """What one rule did to the test alarms at one level, or why it could not be had.

    way: `PAPERS` or `OURS`
    promised: limit of P(suppressed given true alarm) that the rule proves, or implies
    given: what follows for P(true alarm given suppressed) from the paper's promise; None where nothing does
    refused: the reason, if the level cannot be proved
    sets: of the test alarms, by the paper's rule
    """

    way: str
    level: PACLevel
    threshold: Threshold | None = None
    promised: float | None = None
    found: Suppression | None = None
    given: RiskGiven | None = None
    refused: str = ""
    sets: LabelSets | None = None

    @property
    def refuted(self) -> bool:
        """Whether P(suppressed given true alarm) is above what was promised beyond doubt (99%)."""
        return bool(self.found and self.promised and self.found.true_interval[0] > self.promised)


def alarms_in(
    table: Table,
    target: str,
    *,
    positive: Collection[str] = (),
    negative: Collection[str] = (),
    train: int | None = None,
    calibrate: int | None = None,
    leave_out: Collection[str] = (),
    seed: int = 0,
) -> Alarms:
    """The rows of a table as alarms; true is a target among `positive`, or one not among `negative`.

    train, calibrate: how many rows for each, by default 45% and 30%; the rest tests
    """
    labels = table.labels(target)
    if bool(positive) == bool(negative):
        raise InvalidInput("give the target's values of a true alarm (positive) or of a false one (negative)")
    named = set(positive or negative)
    for value in sorted(named - set(labels.tolist())):
        there = ", ".join(np.unique(labels)[:10].tolist())
        raise InvalidInput(f"target {target!r} must hold {value!r} in some row, got {there}")
    true = np.isin(labels, list(named)) == bool(positive)
    if true.all():
        raise InvalidInput(f"target {target!r} must hold true and false alarms, got {len(true):,} true ones")
    names = table.inputs(target, leave_out=leave_out)
    trained = int(0.45 * len(table)) if train is None else train
    proved = int(0.3 * len(table)) if calibrate is None else calibrate
    parts = split(table.ids, tune=trained, calibrate=proved, seed=seed)  # the first part trains
    if not parts.test.n:
        raise InvalidInput(f"train + calibrate must leave a row to test, got {trained} + {proved}")
    seen = parts.tune.rows
    inputs = fit_encoder(table, names, seen)(table)
    model = fit_labels(inputs[seen], true[seen].astype(np.int64), ("false", "true"), seed=seed)
    return Alarms(
        table.name,
        table.ids,
        model.forecast(inputs),
        true,
        parts.calibrate.rows,
        parts.test.rows,
        Record("five small networks", digest=model.digest),
        Record(table.name, len(table), table.digest),
        table.ids[seen].tolist(),
    )


def by_the_paper(alarms: Alarms, level: PACLevel) -> RuleResult:
    """Suppress what has the set {false}, from sets calibrated on all alarms.

    Implied, and no more: P(suppressed given true alarm) <= epsilon / P(true alarm), and the like given
    suppressed. Each limit holds with confidence 1 - delta - 0.01, for alarms drawn like these.
    """
    labels = alarms.true.astype(np.int64)
    rows = alarms.calibrate
    try:
        threshold = fit_threshold(nll(alarms.forecast.take(rows), labels[rows]), level)
    except NotEnoughData as error:
        return RuleResult(PAPERS, level, refused=f"refused: {error.needed:,} alarms needed")
    sets = label_sets(alarms.forecast.take(alarms.test), threshold)
    quiet, true = suppress_by_sets(sets), alarms.true[alarms.test]
    result = RuleResult(PAPERS, level, threshold, found=suppression(quiet, true), sets=sets)
    try:
        result = replace(result, promised=risk_given(level, true, kind="a true alarm").limit)
        return replace(result, given=risk_given(level, quiet, kind="suppressed"))
    except NothingAccepted:
        return result


def sets_row(alarms: Alarms, result: RuleResult) -> dict[str, Any]:
    """Error and size of the sets of the test alarms, and the share of them with each of `KINDS`."""
    row: dict[str, Any] = {"epsilon": result.level.epsilon, "delta": result.level.delta}
    if result.sets is None or result.threshold is None:
        return row | dict.fromkeys(("n", "error", "98%", *KINDS, "mean size")) | {"verdict": result.refused}
    found = evaluate(result.sets, alarms.true[alarms.test].astype(np.int64), result.level)
    kinds = np.bincount(result.sets.member @ np.array([1, 2]), minlength=4) / found.all.n
    row |= {
        "n": result.threshold.n,
        "error": found.all.error,
        "98%": "{:.3f}..{:.3f}".format(*found.all.interval),
    }
    row |= dict(zip(KINDS, kinds.tolist(), strict=True)) | {"mean size": found.all.mean}
    return row | {"verdict": "refuted" if found.refuted else "not refuted"}


def by_true_alarms(alarms: Alarms, level: PACLevel) -> RuleResult:
    """Suppress what true alarms seldom look like, from a threshold calibrated on true alarms alone.

    P(suppressed given true alarm) <= epsilon with confidence 1 - delta, for alarms drawn like these.
    """
    rows, scores = alarms.calibrate, alarms.scores
    try:
        rule = fit_alarm_rule(scores[rows], alarms.true[rows], level)
    except NotEnoughData as error:
        return RuleResult(OURS, level, refused=f"refused: {error.needed:,} true alarms needed")
    quiet = rule.suppress(scores[alarms.test])
    found = suppression(quiet, alarms.true[alarms.test])
    return RuleResult(OURS, level, rule.threshold, level.epsilon, found)


def certify_rule(alarms: Alarms, level: PACLevel, *, ledger: str | os.PathLike[str]) -> Certified:
    """The certificate of the rule for true alarms; its unit is a true alarm.

    "Its set misses its truth" then reads: the alarm is suppressed.
    """
    rows = alarms.calibrate[alarms.true[alarms.calibrate]]
    scores = alarms.scores
    return certify_scores(
        Likelihood(),
        lambda: scores[rows],
        level,
        ids=alarms.ids[rows],
        ledger=ledger,
        data=digest_of(row.tobytes() for row in alarms.forecast.logits[rows]),
        domain=alarms.forecast.domain,
        unit="true alarm",
        model=alarms.model,
        source=alarms.source,
        train=train_record("rows of the table", alarms.train_ids) if alarms.train_ids else None,
    )
