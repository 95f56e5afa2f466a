"""What several kinds of label sets give: fitted, certified in one look, measured on the test part."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import (
    Asked,
    Certificate,
    Entry,
    Evaluation,
    InvalidInput,
    LabelSets,
    Likelihood,
    LogitForecast,
    NotEnoughData,
    Opening,
    PACLevel,
    Predictor,
    Record,
    SplitRecord,
    Splits,
    certify_menu,
    choose_label_score,
    evaluate,
    fit_threshold,
    ids_digest,
    joint_cost,
    mass_label_sets,
    split,
    tempered,
    vc_max_errors,
)
from pac_core.arrays import labels_for
from pac_core.predictors import Score
from pac_core.splits import digest_of, unit_names
from pac_vision.levels import Levels, feasible

PAPER = "C+D"
OURS = "ours"
WORDS = {
    "C": "calibrated, VC bound",
    "D": "direct bound",
    PAPER: "calibrated, direct bound (the paper's)",
    OURS: "score chosen on the tune part, direct bound",
    "mass": "labels of mass 1 - epsilon, forecast as it is",
    "mass, C": "labels of mass 1 - epsilon, calibrated",
}
"""The kinds of sets that are compared. The first four promise, the last two do not."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a classifier says of labelled images, each of which is one unit.

    name: of the classifier
    ids: `[N]` of the images, `ids_name` where they come from
    forecast: `[N, K]` logits
    labels: `[N]` true classes
    model, data: for the certificate
    """

    name: str
    ids: NDArray[np.str_]
    forecast: LogitForecast
    labels: NDArray[np.int64]
    model: Record
    data: Record
    ids_name: str = "ids"

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", unit_names("ids", self.ids))
        labels = labels_for("labels", self.labels, *self.forecast.logits.shape)
        if len(self.ids) != len(labels):
            raise InvalidInput(f"ids must be {len(labels)}, one for each label, got {len(self.ids)}")
        object.__setattr__(self, "labels", labels)

    @property
    def classes(self) -> int:
        return int(self.forecast.logits.shape[1])

    def take(self, rows: Any) -> tuple[LogitForecast, NDArray[np.int64]]:
        """Forecast and labels of some of the images."""
        return self.forecast.take(rows), self.labels[rows]

    def sorted(self) -> Predictions:
        """The same in the order of the ids, so that several classifiers have the same rows."""
        order = np.argsort(self.ids, kind="stable")
        forecast, labels = self.take(order)
        return replace(self, ids=self.ids[order], forecast=forecast, labels=labels)


@dataclass(frozen=True, eq=False)
class Measured:
    """Sets of one kind at one level on the test part, in the order of its rows.

    model, sets: their names, see `WORDS`
    size, missed: `[n]` labels in each set, and whether it misses the true one
    evaluation: its rows are all images, then those classified correctly and incorrectly
    predictor: None for a baseline
    certificate: None for what was only compared
    """

    model: str
    sets: str
    level: PACLevel
    size: NDArray[np.int64]
    missed: NDArray[np.bool_]
    evaluation: Evaluation
    predictor: Predictor | None = None
    certificate: Certificate | None = None


@dataclass(frozen=True, eq=False)
class ClassResults:
    """Everything that was fitted and measured.

    models: the classifiers, the first of which has the tables; their rows agree
    parts: rows to tune, calibrate and test
    levels: that were asked for
    look: what the ledger holds
    entries: of the menu, by classifier, kind of sets and level
    measured: by the same; a level that so many units cannot prove is missing
    """

    models: tuple[Predictions, ...]
    parts: Splits
    levels: Levels
    look: Opening
    entries: Mapping[tuple[str, str, PACLevel], Entry]
    measured: Mapping[tuple[str, str, PACLevel], Measured]

    def at(self, sets: str, level: PACLevel | None = None, model: str | None = None) -> Measured | None:
        """The sets of a kind at a level (the main one), or None where they are not to be had."""
        return self.measured.get((model or self.models[0].name, sets, level or self.levels.main))

    def main(self, sets: str = OURS, model: str | None = None) -> Measured:
        """The sets of a kind at the main level, which is always feasible."""
        return self.measured[model or self.models[0].name, sets, self.levels.main]

    def cost(self, sets: str | None = None, levels: Iterable[PACLevel] = ()) -> float:
        """The probability that any certificate of this kind of sets at these levels fails is below this."""
        chosen = set(levels)
        menu = [
            entry
            for (_, kind, level), entry in self.entries.items()
            if sets in (None, kind) and (not chosen or level in chosen)
        ]
        return joint_cost(self.parts.calibrate.n, menu)

    @cached_property
    def test(self) -> tuple[LogitForecast, NDArray[np.int64]]:
        """Forecast and labels of the first classifier on the test part."""
        return self.models[0].take(self.parts.test.rows)


def compare_sets(
    models: Sequence[Predictions],
    levels: Levels,
    *,
    tune: int,
    calibrate: int,
    seed: int,
    ledger: str | os.PathLike[str],
) -> ClassResults:
    """The paper's sets, its ablations and baselines, and ours, for one or more classifiers of the same images.

    The first classifier is asked at every level, the others at the main one. All that is certified is one
    menu, which goes into the ledger before the calibrate part is looked at. Our score is chosen for each
    epsilon on the tune part.

    The promise of each certificate is about new images drawn like the calibration images, and of each
    alone; what they cost together is in `ClassResults.cost`.
    """
    models = _same_images(models)
    parts = split(models[0].ids, tune=tune, calibrate=calibrate, seed=seed)
    if not parts.tune.n or not parts.test.n:
        raise InvalidInput(
            f"tune and test must have images too, got {parts.tune.n:,} and {parts.test.n:,} of {len(models[0].ids):,}"
        )
    n = parts.calibrate.n
    fitted: list[tuple[Predictions, str, Score, tuple[PACLevel, ...]]] = []
    for model in models:
        wanted = (
            [level for level in levels.all if feasible(n, level)] if model is models[0] else [levels.main]
        )
        tuning = model.take(parts.tune.rows)
        fitted.append((model, "D", Likelihood(), tuple(wanted)))
        fitted.append((model, PAPER, tempered(*tuning, levels.main), tuple(wanted)))
        for epsilon in dict.fromkeys(level.epsilon for level in wanted):
            score = choose_label_score(*tuning, PACLevel(epsilon, levels.main.delta))
            own = tuple(level for level in wanted if level.epsilon == epsilon)
            fitted.append((model, OURS, score, own))
    menu = [_asked(model, score, wanted, parts) for model, _, score, wanted in fitted]
    made = certify_menu(
        menu,
        ids=models[0].ids[parts.calibrate.rows],
        ledger=ledger,
        data=_content(models, parts.calibrate.rows),
        parts=parts,
        unit="image",
        tune=Record("tune", parts.tune.n, parts.tune.digest),
        test=Record("test", parts.test.n, parts.test.digest),
        split=SplitRecord(seed, ids_digest(models[0].ids), models[0].ids_name),
    )
    entries, measured = {}, {}
    for (model, sets, score, wanted), asked, got in zip(fitted, menu, made, strict=True):
        for level in wanted:
            entries[model.name, sets, level] = Entry(asked.digest, level.epsilon, level.delta)
        for certificate in got.certificates:
            own = replace(certificate, model=model.model, data=model.data)
            found = _measure(model, parts, sets, own.predictor.sets, own.predictor.threshold.level)
            found = replace(found, predictor=own.predictor, certificate=own)
            measured[model.name, sets, found.level] = found
        if sets == PAPER:  # its sets contain those of C+D at the same level, so they cost nothing more
            for level in wanted:
                with suppress(NotEnoughData):
                    threshold = fit_threshold(got.scores, level, bound=vc_max_errors)
                    predictor = Predictor(score, threshold, model.forecast.domain)
                    found = _measure(model, parts, "C", predictor.sets, level)
                    measured[model.name, "C", level] = replace(found, predictor=predictor)
            epsilon = levels.main.epsilon
            masses: dict[str, Score] = {"mass": Likelihood(), "mass, C": score}
            for name, one in masses.items():
                assert isinstance(one, Likelihood)
                baseline = _measure(
                    model,
                    parts,
                    name,
                    lambda forecast, one=one: mass_label_sets(one.prepared(forecast), epsilon),
                    levels.main,
                )
                measured[model.name, name, levels.main] = baseline
    return ClassResults(models, parts, levels, made[0].look, entries, measured)


def _asked(model: Predictions, score: Score, levels: tuple[PACLevel, ...], parts: Splits) -> Asked:
    forecast, labels = model.take(parts.calibrate.rows)
    return Asked(score, levels, lambda: score.scores(forecast, labels), forecast.domain, of=model.name)


def _measure(model: Predictions, parts: Splits, name: str, sets: Any, level: PACLevel) -> Measured:
    forecast, labels = model.take(parts.test.rows)
    made: LabelSets = sets(forecast)
    correct = np.where(forecast.predictions() == labels, "correct", "incorrect")
    found = evaluate(made, labels, level, by={"prediction": correct})
    return Measured(model.name, name, level, made.size(), ~made.contains(labels), found)


def _same_images(models: Sequence[Predictions]) -> tuple[Predictions, ...]:
    """The classifiers with their rows in one order, refused unless they saw the same images."""
    if not models:
        raise InvalidInput("models must be one or more, got none")
    if len({model.name for model in models}) != len(models):
        raise InvalidInput(f"models must have names of their own, got {[model.name for model in models]}")
    ordered = tuple(model.sorted() for model in models)
    first = ordered[0]
    for other in ordered[1:]:
        if not np.array_equal(first.ids, other.ids):
            raise InvalidInput(f"{first.name} and {other.name} must be of the same images, got other ids")
        if not np.array_equal(first.labels, other.labels):
            raise InvalidInput(f"{first.name} and {other.name} must have the same labels, got others")
    return ordered


def _content(models: Sequence[Predictions], rows: Any) -> str:
    """A digest of what all classifiers say of these images, and of the truth."""
    parts = [model.take(rows) for model in models]
    return digest_of(
        b"".join(
            part
            for forecast, labels in parts
            for part in (repr(forecast.tau).encode(), forecast.logits[i].tobytes(), labels[i].tobytes())
        )
        for i in range(len(rows))
    )
