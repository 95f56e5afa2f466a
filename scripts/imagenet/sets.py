"""Classifiers of the same images, the levels they can prove, and label sets certified in one look."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np
from baselines import mass_label_sets

from pac_core import InvalidInput, LogitForecast, NotEnoughData, PACLevel, Predictor, evaluate, split
from pac_core.bounds import Entry, joint_failure_probability, max_errors, min_samples, vc_max_errors
from pac_core.certificates import Opening, Record, Request, SplitRecord, certify_several
from pac_core.datasets import file_digest, read_arrays, read_dataset
from pac_core.errors import TooManyFailures, UnreadableFile
from pac_core.forecasts import drop_failed
from pac_core.sets import Likelihood, choose_label_score, fit_tempered, make_sets, score_units
from pac_core.splits import Splits, digest_of, ids_digest
from pac_core.thresholds import fit_threshold

DELTAS = (1e-1, 1e-3, 1e-5)
LADDER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
ALLOWED = 20  # errors: a threshold that fewer decide is mostly chance


@dataclass(frozen=True)
class Levels:
    """What is asked of the calibrate part: the main level, and the epsilons and deltas of the tables."""

    main: PACLevel
    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    @property
    def table(self):
        """Every epsilon with every delta, row by row."""
        return tuple(PACLevel(epsilon, delta) for epsilon in self.epsilons for delta in self.deltas)

    @property
    def along_epsilon(self):
        """The table's epsilons and two larger ones, at the main delta."""
        top = max(self.epsilons)
        wide = {*self.epsilons, self.main.epsilon, *(e for e in (2 * top, 4 * top) if e < 1)}
        return tuple(PACLevel(epsilon, self.main.delta) for epsilon in sorted(wide))

    @property
    def along_delta(self):
        """The table's deltas and two smaller ones, at the main epsilon."""
        least = min(self.deltas)
        wide = {*self.deltas, self.main.delta, *(float(f"{least * step:.3g}") for step in (1e-2, 1e-4))}
        return tuple(PACLevel(self.main.epsilon, delta) for delta in sorted(wide, reverse=True))

    def feasible(self, n):
        """Each level that `n` units can prove once, the main one first."""
        every = dict.fromkeys((self.main, *self.table, *self.along_epsilon, *self.along_delta))
        return tuple(level for level in every if min_samples(level) <= n)


def fit_levels(n, *, epsilon=None, delta=1e-5):
    """Levels for `n` calibration units; the tables have five steps up to 0.05, or to a larger main epsilon.

    epsilon: of the main level; by default the smallest of the ladder of which the units allow 20 errors or
        more, which is the paper's 0.01 at its n of 20,000
    """
    if epsilon is None:
        rich = (e for e in LADDER if min_samples(PACLevel(e, delta), ALLOWED) <= n)
        epsilon = next(rich, LADDER[-1])
    main = PACLevel(epsilon, delta)
    max_errors(n, main)  # refuses here what cannot be proved
    return Levels(main, tuple(round(max(epsilon, 0.05) * step / 5, 10) for step in range(1, 6)), DELTAS)


def say_infeasible(n, needed):
    """Why `n` units give no sets at a level: there are too few, or more are broken than it allows errors."""
    return f"needs {needed:,}" if needed > n else "too many are broken"


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a classifier says of N labelled images, each of which is one unit."""

    name: str
    ids: Any
    forecast: LogitForecast
    labels: Any
    model: Record
    data: Record
    ids_name: str = "ids"

    @property
    def classes(self):
        return int(self.forecast.logits.shape[1])

    def take(self, rows):
        """Forecast and labels of some of the images."""
        return self.forecast.take(rows), self.labels[rows]

    def sort(self):
        """The same in the order of the ids, so that several classifiers have the same rows."""
        order = np.argsort(self.ids, kind="stable")
        forecast, labels = self.take(order)
        return replace(self, ids=self.ids[order], forecast=forecast, labels=labels)


def read_predictions(path):
    """The arrays `logits` `[N, K]`, `labels` and `ids` or `files` `[N]` of an npz or parquet file."""
    arrays = read_arrays(path)
    key = next((key for key in ("ids", "files") if key in arrays), None)
    if key is None:
        raise UnreadableFile(f"{path} must name its images in an array ids or files, got none")
    found = read_dataset(path, ids=key)
    if not isinstance(found.forecast, LogitForecast) or found.truth is None:
        raise UnreadableFile(f"{path} must hold logits and labels, got {', '.join(sorted(arrays))}")
    known, digest = found.model or (path.stem, None)
    records = Record(known, digest=digest), Record(path.name, len(found.ids), file_digest(path))
    return Predictions(path.stem, found.ids, found.forecast, found.truth, *records, key)


def outcomes(forecast, labels):
    """`[N]` "correct" or "incorrect", by the most likely label; "broken" where there is no forecast."""
    found = np.where(forecast.predictions() == labels, "correct", "incorrect")
    return found if forecast.failed is None else np.where(forecast.failed, "broken", found)


def find_places(model, images):
    """The id in a folder of each of the classified images; None for those that are not there.

    Stored logits may know an image by its file name alone, so those are compared where the whole id is not
    found. An image whose folder says another label than the logits' is refused.
    """
    ids = images.ids.tolist()
    names = Counter(PurePosixPath(name).name for name in ids)
    short = {PurePosixPath(name).name: name for name in ids if names[PurePosixPath(name).name] == 1}
    where = short | {name: name for name in ids}
    found = [where.get(name) or where.get(PurePosixPath(name).name) for name in model.ids.tolist()]
    if images.classes is None or len(images.classes) == model.classes:
        truth = dict(zip(ids, images.labels.tolist(), strict=True))
        for place, label in zip(found, model.labels.tolist(), strict=True):
            if place is not None and truth[place] != label:
                raise InvalidInput(
                    f"{place} must have one label, got {truth[place]} from {images.folder} and {label} from "
                    f"{model.name}"
                )
    return found


def align(models):
    """The classifiers with their rows in one order, refused unless they saw the same images."""
    if len({model.name for model in models}) != len(models):
        raise InvalidInput(f"models must have names of their own, got {[model.name for model in models]}")
    first, *others = ordered = tuple(model.sort() for model in models)
    for other in others:
        if not np.array_equal(first.ids, other.ids):
            raise InvalidInput(f"{first.name} and {other.name} must be of the same images, got other ids")
        if not np.array_equal(first.labels, other.labels):
            raise InvalidInput(f"{first.name} and {other.name} must have the same labels, got others")
    return ordered


def content_digest(models, rows):
    """A digest of what all classifiers say of these images, and of the truth."""
    parts = [model.take(rows) for model in models]
    return digest_of(
        b"".join(repr(f.tau).encode() + f.logits[i].tobytes() + labels[i].tobytes() for f, labels in parts)
        for i in range(len(rows))
    )


PAPER = "C+D"
OURS = "ours"
# Sets of these two kinds promise, and so do "C" (calibrated, VC bound) and "D" (direct bound); labels of mass
# 1 - epsilon ("mass", and "mass, C" with a calibrated forecast) do not.


@dataclass(frozen=True, eq=False)
class Measured:
    """Sets of one kind at one level on the test part, with `[n]` labels in each.

    evaluation: its rows are all images, then those classified correctly and incorrectly, and broken ones
    predictor, certificate: None for a baseline, and for what was only compared
    """

    size: Any
    evaluation: Any
    predictor: Any = None
    certificate: Any = None


@dataclass(frozen=True, eq=False)
class ClassResults:
    """All that was fitted and measured, for the entries of the menu that so many units can prove."""

    models: tuple[Predictions, ...]
    parts: Splits
    levels: Levels
    look: Opening
    entries: dict  # by classifier, kind of sets, level
    measured: dict

    def at(self, sets=OURS, level=None, model=None):
        """The sets of a kind at a level, or None where they are not to be had; the main one is feasible."""
        return self.measured.get((model or self.models[0].name, sets, level or self.levels.main))

    def cost(self, sets, levels):
        """The probability that any certificate of this kind of sets at these levels fails is below this."""
        chosen = set(levels)
        menu = [entry for (_, kind, level), entry in self.entries.items() if kind == sets and level in chosen]
        return joint_failure_probability(self.parts.calibrate.n, menu)


def compare_sets(models, levels, *, tune, calibrate, seed, ledger, images=None):
    """The paper's sets, its ablations and baselines, and ours, for classifiers of the same images.

    The first classifier is asked at every level, the others at the main one. All that is certified is one
    menu, in the ledger before the calibrate part is looked at. Our score is chosen for each epsilon on the
    tune part, for all its deltas together: they cost the largest of them. A broken image is an error of every
    kind of sets, and nothing is tuned on it.
    """
    models = align(models)
    if images is not None:
        find_places(models[0], images)
    parts = split(models[0].ids, tune=tune, calibrate=calibrate, seed=seed)
    if not parts.tune.n or not parts.test.n:
        raise InvalidInput(
            f"tune and calibrate must leave images to tune and to test, got {tune:,} and {calibrate:,} of "
            f"{len(models[0].ids):,}"
        )
    asked_of = dict.fromkeys(models, (levels.main,)) | {models[0]: levels.feasible(calibrate)}
    fitted = [(model, *one) for model, some in asked_of.items() for one in _fit(model, parts, some)]
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
    entries, measured = {}, {}
    for (model, sets, asked), got in zip(fitted, made, strict=True):
        if levels.main in got.refused:
            fit_threshold(got.scores, levels.main)  # raises the reason, with its numbers
        for level in asked.levels:
            entries[model.name, sets, level] = Entry(asked.digest, level.epsilon, level.delta)
        test = model.take(parts.test.rows)
        for one in got.certificates:
            own, level = replace(one, model=model.model, data=model.data), one.predictor.threshold.level
            on_test = one.predictor.sets(test[0])
            measured[model.name, sets, level] = _measure(on_test, test, level, one.predictor, own)
        if sets == PAPER:
            for kind, level, found in _compare(asked, got.scores, test):
                measured[model.name, kind, level] = found
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


def _compare(paper, scores, test):
    """What is not certified: the VC bound, whose sets contain those of C+D, and sets of mass 1 - epsilon."""
    for level in paper.levels:
        with suppress(NotEnoughData, TooManyFailures):
            threshold = fit_threshold(scores, level, bound=vc_max_errors)
            predictor = Predictor(paper.score, threshold, paper.domain)
            yield "C", level, _measure(predictor.sets(test[0]), test, level, predictor)
    level = paper.levels[0]
    for sets, score in (("mass", Likelihood()), ("mass, C", paper.score)):
        mass = SimpleNamespace(sets=lambda some, e, score=score: mass_label_sets(score.prepared(some), e))
        yield sets, level, _measure(make_sets(mass, test[0], level.epsilon), test, level)


def _measure(sets, test, level, *made):
    return Measured(sets.size(), evaluate(sets, test[1], level, by={"prediction": outcomes(*test)}), *made)
