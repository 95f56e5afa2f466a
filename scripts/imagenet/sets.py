"""Several kinds of label sets: fitted, certified in one look, measured on the test part."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any

from imagenet.inputs import Levels, Predictions, align, content_digest, find_places, outcomes

import pac_core as pac
from pac_core.bounds import Entry, joint_failure_probability, vc_max_errors
from pac_core.certificates import Opening, Record, Request, SplitRecord, certify_several
from pac_core.errors import TooManyFailures
from pac_core.evaluation import Evaluation, mass_label_sets
from pac_core.forecasts import drop_failed
from pac_core.sets import Likelihood, choose_label_score, fit_tempered, make_sets, score_units
from pac_core.splits import Splits, ids_digest
from pac_core.thresholds import fit_threshold

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
Key = tuple[str, str, pac.PACLevel]
"""Classifier, kind of sets, level."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Sets of one kind at one level on the test part: `[n]` labels in each, and whether it misses the truth.

    evaluation: its rows are all images, then those classified correctly and incorrectly, and broken ones
    predictor, certificate: None for a baseline, and for what was only compared
    """

    model: str
    sets: str
    level: pac.PACLevel
    size: Any
    missed: Any
    evaluation: Evaluation
    predictor: pac.Predictor | None = None
    certificate: pac.Certificate | None = None


@dataclass(frozen=True, eq=False)
class ClassResults:
    """Everything that was fitted and measured; the first of the models has the tables, and their rows agree.

    entries, measured: of the menu; a level that so many units cannot prove is missing in the latter
    """

    models: tuple[Predictions, ...]
    parts: Splits
    levels: Levels
    look: Opening
    entries: Mapping[Key, Entry]
    measured: Mapping[Key, Measured]

    def at(self, sets, level=None, model=None):
        """The sets of a kind at a level (the main one), or None where they are not to be had."""
        return self.measured.get((model or self.models[0].name, sets, level or self.levels.main))

    def main(self, sets=OURS, model=None):
        """The sets of a kind at the main level, which is always feasible."""
        return self.measured[model or self.models[0].name, sets, self.levels.main]

    def cost(self, sets, levels):
        """The probability that any certificate of this kind of sets at these levels fails is below this."""
        chosen = set(levels)
        menu = [entry for (_, kind, level), entry in self.entries.items() if kind == sets and level in chosen]
        return joint_failure_probability(self.parts.calibrate.n, menu)

    @cached_property
    def test(self):
        """Forecast and labels of the first classifier on the test part."""
        return self.models[0].take(self.parts.test.rows)


def compare_sets(models, levels, *, tune, calibrate, seed, ledger, images=None):
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
    models = align(models)
    if images is not None:
        find_places(models[0], images)
    parts = pac.split(models[0].ids, tune=tune, calibrate=calibrate, seed=seed)
    if not parts.tune.n or not parts.test.n:
        raise pac.InvalidInput(
            f"tune and calibrate must leave images to tune and to test, got {tune:,} and {calibrate:,} of "
            f"{len(models[0].ids):,}"
        )
    fitted = [
        (model, sets, asked)
        for model in models
        for sets, asked in _fit(
            model, parts, levels.feasible(calibrate) if model is models[0] else (levels.main,)
        )
    ]
    made = certify_several(
        [asked for *_, asked in fitted],
        ids=models[0].ids[parts.calibrate.rows],
        ledger=ledger,
        data=content_digest(models, parts.calibrate.rows),
        parts=parts,
        unit="image",
        tune=Record("tune", parts.tune.n, parts.tune.digest),
        test=Record("test", parts.test.n, parts.test.digest),
        split=SplitRecord(seed, ids_digest(models[0].ids), models[0].ids_name),
    )
    entries = {}
    measured = {}
    for (model, sets, asked), got in zip(fitted, made, strict=True):
        if levels.main in got.refused:
            fit_threshold(got.scores, levels.main)  # raises the reason, with its numbers
        for level in asked.levels:
            entries[model.name, sets, level] = Entry(asked.digest, level.epsilon, level.delta)
        test = model.take(parts.test.rows)
        found = [
            _measure(model.name, sets, own.predictor, test, own)
            for certificate in got.certificates
            for own in (replace(certificate, model=model.model, data=model.data),)
        ]
        if sets == PAPER:
            found += _compare(model.name, asked, got.scores, test)
        measured |= {(one.model, one.sets, one.level): one for one in found}
    return ClassResults(models, parts, levels, made[0].look, entries, measured)


def _fit(model, parts, levels):
    """The scores of a classifier, fitted on the tune part; `levels` begins with the main one."""
    tuning, (forecast, labels) = drop_failed(*model.take(parts.tune.rows)), model.take(parts.calibrate.rows)

    def on_menu(score, levels):
        scores = partial(score_units, score, forecast, labels)
        return Request(score, tuple(levels), scores, forecast.domain, of=model.name)

    yield "D", on_menu(Likelihood(), levels)
    yield PAPER, on_menu(fit_tempered(*tuning, levels[0]), levels)
    for epsilon in dict.fromkeys(level.epsilon for level in levels):
        first, *others = row = [level for level in levels if level.epsilon == epsilon]
        score = choose_label_score(*tuning, first, calibrate=parts.calibrate.n, others=others)
        yield OURS, on_menu(score, row)


def _compare(model, paper, scores, test):
    """What is compared with the paper's sets and not certified: the VC bound, and sets of mass 1 - epsilon.

    With the VC bound sets contain those of C+D at the same level, so they hold whenever those do.
    """
    for level in paper.levels:
        with suppress(pac.NotEnoughData, TooManyFailures):
            threshold = fit_threshold(scores, level, bound=vc_max_errors)
            yield _measure(model, "C", pac.Predictor(paper.score, threshold, paper.domain), test)
    level, (forecast, labels) = paper.levels[0], test
    for sets, score in (("mass", Likelihood()), ("mass, C", paper.score)):
        mass = SimpleNamespace(sets=lambda some, e, score=score: mass_label_sets(score.prepared(some), e))
        made = make_sets(mass, forecast, level.epsilon)
        yield Measured(model, sets, level, made.size(), ~made.contains(labels), _evaluate(made, test, level))


def _measure(model, sets, predictor, test, certificate=None):
    made, level = predictor.sets(test[0]), predictor.threshold.level
    found = _evaluate(made, test, level)
    return Measured(model, sets, level, made.size(), ~made.contains(test[1]), found, predictor, certificate)


def _evaluate(made, test, level):
    return pac.evaluate(made, test[1], level, by={"prediction": outcomes(*test)})
