"""A promise as a document: what is promised, from which evidence, and under which assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pac_core.arrays import numbers
from pac_core.bounds import BOUNDS
from pac_core.costs import Family
from pac_core.errors import BadCertificate, InvalidInput, PACError
from pac_core.predictors import Predictor
from pac_core.splits import add_digests, digest_of, ids_digest, unit_names
from pac_core.thresholds import ShardedScores, fit_threshold


@dataclass(frozen=True)
class Record:
    """What is known of a part of the data, of the model, or of a file.

    name: in words, such as "ImageNet train"
    n: number of units, where known
    digest: fingerprint of the unit ids, or SHA-256 of the file, where known
    """

    name: str
    n: int | None = None
    digest: str | None = None


@dataclass(frozen=True)
class SplitRecord:
    """How the parts were drawn, so that anybody can draw them again: see `pac_core.split`."""

    seed: int
    pool: str
    """digest of all unit ids"""
    ids: str = "ids"
    """name of the array that held them"""


@dataclass(frozen=True)
class MenuRecord:
    """How many certificates were asked for in one look, and the probability that any of them fails.

    family: all that the ledger held when they were issued, whatever it was called
    """

    asked: int
    cost: float
    family: Family | None = None


@dataclass(frozen=True, eq=False)
class Certificate:
    """A predictor with everything needed to check it.

    predictor: score and threshold
    unit: what is drawn independently, in one word, such as "image" or "rollout"
    parts: records of "train", "tune", "calibrate" and "test"
    scores: fingerprint of the calibration scores
    model, data: which model, and which file the units came from
    split: how the parts were drawn, where one draw made them
    menu: how many certificates the look was for, and what they cost together, where a ledger knows
    versions: of the programs that made it
    """

    predictor: Predictor
    unit: str
    parts: Mapping[str, Record]
    scores: str
    model: Record
    data: Record
    split: SplitRecord | None = None
    menu: MenuRecord | None = None
    versions: Mapping[str, str] = field(default_factory=lambda: _versions())

    @property
    def promise(self) -> str:
        """The promise in words, with what it rests on."""
        level = self.predictor.threshold.level
        more = ""
        if self.menu is not None and self.menu.asked > 1:
            more = (
                f" It is one of {self.menu.asked} asked for in one look, of which any fails with "
                f"probability below {self.menu.cost!r}."
            )
        if self.menu is not None and self.menu.family is not None:
            more += f" {self.menu.family}"
        return (
            f"The set of a new {self.unit} misses its truth with probability at most "
            f"{level.epsilon!r}; this holds with confidence at least 1 - {level.delta!r} over the draw "
            f"of the {self.predictor.threshold.n} calibration units, if they and the new ones are "
            "independent draws from one source, and if neither the model nor the score was chosen by "
            "looking at them. It is a promise about all units together, not about each kind of unit." + more
        )

    def __str__(self) -> str:
        threshold = self.predictor.threshold
        records = {"model": self.model, "data": self.data, **self.parts}
        known = [f"  {name}: {_say(record)}" for name, record in records.items()]
        return "\n".join([self.promise, f"  {threshold}", *known])


@dataclass(frozen=True)
class Check:
    """One thing that `verify` compared: `holds` is None where there was nothing to compare with."""

    name: str
    holds: bool | None
    text: str


def issue(
    predictor: Predictor,
    scores: Any,
    *,
    unit: str,
    ids: Any = None,
    train: Record | None = None,
    tune: Record | None = None,
    test: Record | None = None,
    model: Record | None = None,
    data: Record | None = None,
    split: SplitRecord | None = None,
    menu: MenuRecord | None = None,
) -> Certificate:
    """The certificate of a predictor; refused unless its threshold follows from these scores.

    It keeps no ledger and cannot know of other looks at these units; `certify` does.

    `scores` `[n]` are the calibration scores, or `ShardedScores`, and `ids` `[n]` the ids of their units.
    """
    array = scores if isinstance(scores, ShardedScores) else numbers("scores", scores, "[N]")
    if predictor.threshold.bound not in BOUNDS:
        raise InvalidInput(
            f"a certificate needs a bound of {sorted(BOUNDS)}, got {predictor.threshold.bound!r}"
        )
    refit = fit_threshold(array, predictor.threshold.level, bound=BOUNDS[predictor.threshold.bound])
    if (refit.n, refit.errors) != (predictor.threshold.n, predictor.threshold.errors) or (
        predictor.threshold.value < refit.value
    ):
        raise BadCertificate(f"the threshold does not follow from these scores, which give: {refit}")
    check_unit(unit)
    if ids is not None and len(np.unique(unit_names("ids", ids))) != len(array):
        raise InvalidInput(f"ids must be unique, one for each of {len(array)} scores")
    unknown = Record("not named")
    parts = {
        "train": train or unknown,
        "tune": tune or unknown,
        "calibrate": Record("calibrate", len(array), None if ids is None else ids_digest(ids)),
        "test": test or unknown,
    }
    digest = scores_digest(array)
    return Certificate(predictor, unit, parts, digest, model or unknown, data or unknown, split, menu)


def check_unit(unit: Any) -> None:
    """Refuse what is not a word for the promise."""
    if not isinstance(unit, str) or not unit.strip() or not unit.isprintable():
        raise InvalidInput(f"unit must be a word such as 'image', got {unit!r}")


def verify(certificate: Certificate, scores: Any, ids: Any = None) -> list[Check]:
    """Whether the certificate follows from these calibration scores, point by point and to the last bit.

    It says that the arithmetic is right, not that the world obeys.
    """
    array = numbers("scores", scores, "[N]")
    threshold = certificate.predictor.threshold
    checks = [
        Check("n", len(array) == threshold.n, f"{len(array)} scores, the certificate says {threshold.n}"),
    ]
    try:
        refit = fit_threshold(array, threshold.level, bound=BOUNDS[threshold.bound])
    except PACError as error:
        return [*checks, Check("T", False, str(error))]
    checks += [
        Check(
            "k", refit.errors == threshold.errors, f"{refit.errors} errors allowed, stated {threshold.errors}"
        ),
        Check("T", threshold.value >= refit.value, _compare(refit.value, threshold.value)),
        _same_scores(scores_digest(array) == certificate.scores),
    ]
    stated = certificate.parts["calibrate"].digest
    if ids is None or stated is None:
        return [*checks, Check("ids", None, "the unit ids were not compared: none given")]
    same = ids_digest(ids) == stated
    return [*checks, Check("ids", same, f"the unit ids are {'those' if same else 'not those'} stated")]


def scores_digest(scores: Any) -> str:
    """A fingerprint of the scores as doubles; their order does not matter, and shards add up."""
    if isinstance(scores, ShardedScores):
        return add_digests(digest for _, digest in scores.over(scores_digest))
    data = (np.asarray(scores, dtype=np.float64) + 0.0).astype("<f8").tobytes()
    return digest_of(data[i : i + 8] for i in range(0, len(data), 8))


def _same_scores(same: bool) -> Check:
    words = "those" if same else "others than those"
    return Check("scores", same, f"the scores are {words} the certificate was made from")


def _compare(found: float, stated: float) -> str:
    other = "larger, hence safe" if stated > found else "smaller, hence void"
    word = "the same" if stated == found else other
    return f"T is {found!r}, stated {stated!r}: {word}"


def _say(record: Record) -> str:
    n = "" if record.n is None else f", {record.n:,} units"
    return f"{record.name}{n}" + ("" if record.digest is None else f", digest {record.digest[:12]}")


def _versions() -> dict[str, str]:
    import platform  # both are kept out of the import time of the package
    from importlib.metadata import PackageNotFoundError, version

    try:
        ours = version("pac-sets")
    except PackageNotFoundError:
        ours = "not installed"
    return {
        "pac-sets": ours,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": version("scipy"),
    }
