"""What is compared: classifiers of the same images, and the levels that so many images can prove."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from pac_core import InvalidInput, LogitForecast, PACLevel
from pac_core.bounds import max_errors, min_samples
from pac_core.certificates import Record
from pac_core.datasets import file_digest, read_arrays, read_dataset
from pac_core.errors import UnreadableFile
from pac_core.splits import digest_of

DELTAS = (1e-1, 1e-3, 1e-5)
LADDER = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
ALLOWED = 20  # errors: a threshold that fewer decide is mostly chance
CHANCE = 10  # errors: where fewer are allowed, how the sizes of two scores compare is chance, and marked so


@dataclass(frozen=True)
class Levels:
    """What is asked of the calibrate part.

    main: the level of the ablation, the baselines and the pictures
    epsilons, deltas: of the tables, down and across
    """

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


def mark_chance(n, level):
    """What a figure says at a level that allows fewer than ten errors, or nothing."""
    allowed = max_errors(n, level) if min_samples(level) <= n else CHANCE
    return f"k* = {allowed}: chance" if allowed < CHANCE else ""


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


def read_predictions(path, *, name=None):
    """The arrays `logits` `[N, K]`, `labels` and `ids` or `files` `[N]` of an npz or parquet file."""
    arrays = read_arrays(path)
    key = next((key for key in ("ids", "files") if key in arrays), None)
    if key is None:
        raise UnreadableFile(f"{path} must name its images in an array ids or files, got none")
    found, called = read_dataset(path, ids=key), name or path.stem
    if not isinstance(found.forecast, LogitForecast) or found.truth is None:
        raise UnreadableFile(f"{path} must hold logits and labels, got {', '.join(sorted(arrays))}")
    known, digest = found.model or (called, None)
    model = Record(known, digest=digest)
    data = Record(path.name, len(found.ids), file_digest(path))
    return Predictions(called, found.ids, found.forecast, found.truth, model=model, data=data, ids_name=key)


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
        b"".join(
            part
            for forecast, labels in parts
            for part in (repr(forecast.tau).encode(), forecast.logits[i].tobytes(), labels[i].tobytes())
        )
        for i in range(len(rows))
    )
