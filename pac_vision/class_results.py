"""What several kinds of label sets give: fitted, certified in one look, measured on the test part."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

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
    TooManyFailures,
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
from pac_core.failures import to_tune_on, unit_scores, unit_sets
from pac_core.predictors import Score
from pac_vision.images import Images
from pac_vision.levels import Levels
from pac_vision.predictions import Predictions, content_digest, outcomes, places, same_images

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
Units: TypeAlias = tuple[LogitForecast, NDArray[np.int64]]
"""Forecast and labels of some images."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Sets of one kind at one level on the test part, in the order of its rows.

    model, sets: their names, see `WORDS`
    size, missed: `[n]` labels in each set, and whether it misses the true one
    evaluation: its rows are all images, then those classified correctly and incorrectly, and broken ones
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

    @property
    def key(self) -> tuple[str, str, PACLevel]:
        return self.model, self.sets, self.level


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
    images: Images | None = None,
) -> ClassResults:
    """The paper's sets, its ablations and baselines, and ours, for classifiers of the same images.

    The first classifier is asked at every level, the others at the main one. All that is certified is one
    menu, which goes into the ledger before the calibrate part is looked at. Our score is chosen for each
    epsilon on the tune part, for all deltas that it serves together: one score at several deltas costs
    the largest of them. A broken image, marked as failed, is an error of every kind of sets, and nothing is
    tuned on it.

    images: those at hand to be drawn; labels that are not the classifiers' are refused before the look

    The promise of each certificate is about new images drawn like the calibration images, and of each
    alone; what they cost together is in `ClassResults.cost`.
    """
    models = same_images(models)
    if images is not None:
        places(models[0], images)
    parts = split(models[0].ids, tune=tune, calibrate=calibrate, seed=seed)
    if not parts.tune.n or not parts.test.n:
        raise InvalidInput(
            f"tune and calibrate must leave images to tune and to test, got {tune:,} and {calibrate:,} of "
            f"{len(models[0].ids):,}"
        )
    fitted = [
        one
        for model in models
        for one in _fit(model, parts, levels.feasible(calibrate) if model is models[0] else (levels.main,))
    ]
    made = certify_menu(
        [one.asked for one in fitted],
        ids=models[0].ids[parts.calibrate.rows],
        ledger=ledger,
        data=content_digest(models, parts.calibrate.rows),
        parts=parts,
        unit="image",
        tune=Record("tune", parts.tune.n, parts.tune.digest),
        test=Record("test", parts.test.n, parts.test.digest),
        split=SplitRecord(seed, ids_digest(models[0].ids), models[0].ids_name),
    )
    entries, measured = {}, []
    tests = {model.name: model.take(parts.test.rows) for model in models}
    for one, got in zip(fitted, made, strict=True):
        if levels.main in got.refused:
            fit_threshold(got.scores, levels.main)  # raises the reason, with its numbers
        model, digest = one.model, one.asked.digest
        for level in one.asked.levels:
            entries[model.name, one.sets, level] = Entry(digest, level.epsilon, level.delta)
        for certificate in got.certificates:
            own = replace(certificate, model=model.model, data=model.data)
            measured.append(_measure(model.name, tests[model.name], one.sets, own.predictor, certificate=own))
        if one.sets == PAPER:
            measured += _compared(one, got.scores, tests[model.name])
    return ClassResults(models, parts, levels, made[0].look, entries, {one.key: one for one in measured})


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A kind of sets of one classifier, as it stands on the menu."""

    model: Predictions
    sets: str
    asked: Asked


def _fit(model: Predictions, parts: Splits, levels: Sequence[PACLevel]) -> list[_Fitted]:
    """The scores of a classifier, fitted on the tune part; `levels` begins with the main one."""
    tuning, (forecast, labels) = to_tune_on(*model.take(parts.tune.rows)), model.take(parts.calibrate.rows)

    def on_menu(sets: str, score: Score, levels: Iterable[PACLevel]) -> _Fitted:
        scores = partial(unit_scores, score, forecast, labels)
        return _Fitted(model, sets, Asked(score, tuple(levels), scores, forecast.domain, of=model.name))

    found = [on_menu("D", Likelihood(), levels), on_menu(PAPER, tempered(*tuning, levels[0]), levels)]
    for epsilon in dict.fromkeys(level.epsilon for level in levels):
        first, *others = row = [level for level in levels if level.epsilon == epsilon]
        score = choose_label_score(*tuning, first, calibrate=parts.calibrate.n, others=others)
        found.append(on_menu(OURS, score, row))
    return found


def _compared(paper: _Fitted, scores: Any, test: Units) -> Iterator[Measured]:
    """What is compared with the paper's sets and not certified: the VC bound, and sets of mass 1 - epsilon.

    With the VC bound sets contain those of C+D at the same level, so they hold whenever those do.
    """
    score, levels = paper.asked.score, paper.asked.levels
    assert isinstance(score, Likelihood)
    for level in levels:
        with suppress(NotEnoughData, TooManyFailures):
            threshold = fit_threshold(scores, level, bound=vc_max_errors)
            yield _measure(paper.model.name, test, "C", Predictor(score, threshold, paper.asked.domain))
    for sets, one in (("mass", Likelihood()), ("mass, C", score)):
        yield _measure(paper.model.name, test, sets, one, level=levels[0])


@dataclass(frozen=True, eq=False)
class _Mass:
    """Sets of mass 1 - epsilon of a forecast that is prepared."""

    score: Likelihood

    def sets(self, forecast: LogitForecast, epsilon: float) -> LabelSets:
        return mass_label_sets(self.score.prepared(forecast), epsilon)


def _measure(
    model: str,
    test: Units,
    name: str,
    source: Predictor | Likelihood,
    *,
    level: PACLevel | None = None,
    certificate: Certificate | None = None,
) -> Measured:
    """Sets of a predictor, or of mass 1 - epsilon of a forecast that is only prepared, on the test part."""
    forecast, labels = test
    predictor = source if isinstance(source, Predictor) else None
    if isinstance(source, Predictor):
        level, made = source.threshold.level, source.sets(forecast)
    else:
        assert level is not None
        made = unit_sets(_Mass(source), forecast, level.epsilon)
    found = evaluate(made, labels, level, by={"prediction": outcomes(forecast, labels)})
    return Measured(model, name, level, made.size(), ~made.contains(labels), found, predictor, certificate)
