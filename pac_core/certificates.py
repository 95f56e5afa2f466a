"""A promise as a document: what is promised, from which evidence, and under which assumptions."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import scipy

from pac_core import plugins
from pac_core.arrays import numbers
from pac_core.bounds import BOUNDS, PACLevel
from pac_core.errors import BadCertificate, InvalidInput, PACError
from pac_core.ledger import read_json, write_json
from pac_core.predictors import GivenScore, Likelihood, Predictor, Score
from pac_core.splits import ids_digest
from pac_core.thresholds import Threshold, fit_threshold
from pac_core.tubes import BoxShape, FeatureShape, MaxShape

FORMAT = "pac-sets certificate"
VERSION = 1
KINDS: dict[str, Any] = {
    kind.kind: kind for kind in (GivenScore, Likelihood, MaxShape, BoxShape, FeatureShape)
}
PARTS = ("train", "tune", "calibrate")


@dataclass(frozen=True)
class PartRecord:
    """What is known of one part of the data.

    name: in words, such as "ImageNet train"
    n: number of units, where known
    digest: fingerprint of the unit ids, where known
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


@dataclass(frozen=True, eq=False)
class Certificate:
    """A predictor with everything needed to check it.

    predictor: score and threshold
    unit: what is drawn independently, in one word, such as "image" or "rollout"
    parts: records of "train", "tune" and "calibrate"
    scores: SHA-256 of the sorted calibration scores
    model: name and, where known, digest of the model
    split: how the parts were drawn, where one draw made them
    versions: of the programs that made it
    """

    predictor: Predictor
    unit: str
    parts: Mapping[str, PartRecord]
    scores: str
    model: PartRecord
    split: SplitRecord | None = None
    versions: Mapping[str, str] = field(default_factory=lambda: _versions())

    @property
    def promise(self) -> str:
        """The promise in words, with what it rests on."""
        level = self.predictor.threshold.level
        return (
            f"The set of a new {self.unit} misses its truth with probability at most "
            f"{level.epsilon!r}; this holds with confidence at least 1 - {level.delta!r} over the draw "
            f"of the {self.predictor.threshold.n} calibration units, if new ones are drawn "
            "independently and like them, and if neither the model nor the score was chosen by looking at "
            "them. It is a promise about all units together, not about each kind of unit."
        )

    def __str__(self) -> str:
        threshold = self.predictor.threshold
        known = [f"{name}: {_say(record)}" for name, record in self.parts.items()]
        return "\n".join(
            [self.promise, f"  {threshold}", f"  model: {_say(self.model)}", *(f"  {k}" for k in known)]
        )


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
    train: PartRecord | None = None,
    tune: PartRecord | None = None,
    model: PartRecord | None = None,
    split: SplitRecord | None = None,
) -> Certificate:
    """The certificate of a predictor; refused unless its threshold follows from these scores.

    `scores` `[n]` are the calibration scores and `ids` `[n]` the ids of their units.
    """
    array = numbers("scores", scores, "[N]")
    refit = fit_threshold(array, predictor.threshold.level, bound=BOUNDS[predictor.threshold.bound])
    if (refit.n, refit.errors) != (predictor.threshold.n, predictor.threshold.errors) or (
        predictor.threshold.value < refit.value
    ):
        raise BadCertificate(f"the threshold does not follow from these scores, which give: {refit}")
    if not unit or not unit.isprintable():
        raise InvalidInput(f"unit must be a word such as 'image', got {unit!r}")
    if ids is not None and len(np.unique(np.asarray(ids).astype(str))) != len(array):
        raise InvalidInput(f"ids must be unique, one for each of {len(array)} scores")
    digest = None if ids is None else ids_digest(ids)
    unknown = PartRecord("not named")
    parts = {
        "train": train or unknown,
        "tune": tune or unknown,
        "calibrate": PartRecord("calibrate", len(array), digest),
    }
    return Certificate(predictor, unit, parts, scores_digest(array), model or unknown, split)


def verify(certificate: Certificate, scores: Any, ids: Any = None) -> list[Check]:
    """Whether the certificate follows from these calibration scores, point by point.

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
        Check("T", threshold.value >= refit.value, f"T is {refit.value!r}, stated {threshold.value!r}"),
        Check(
            "scores",
            scores_digest(array) == certificate.scores,
            "the scores are those the certificate was made from"
            if scores_digest(array) == certificate.scores
            else "the scores are others than those the certificate was made from",
        ),
    ]
    stated = certificate.parts["calibrate"].digest
    if ids is None or stated is None:
        return [*checks, Check("ids", None, "the unit ids were not compared: none given")]
    same = ids_digest(ids) == stated
    return [*checks, Check("ids", same, f"the unit ids are {'those' if same else 'not those'} stated")]


def scores_digest(scores: Any) -> str:
    """SHA-256 of the scores as sorted little-endian doubles, so their order does not matter."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64) + 0.0)
    return hashlib.sha256(ordered.astype("<f8").tobytes()).hexdigest()


def write_certificate(certificate: Certificate, path: str | os.PathLike[str]) -> None:
    """Write the certificate as JSON, whole or not at all."""
    threshold, score = certificate.predictor.threshold, certificate.predictor.score
    write_json(
        path,
        {
            "format": FORMAT,
            "version": VERSION,
            "promise": certificate.promise,
            "unit": certificate.unit,
            "level": asdict(threshold.level),
            "threshold": {
                "value": threshold.value,
                "n": threshold.n,
                "errors": threshold.errors,
                "bound": threshold.bound,
            },
            "score": {"kind": score.kind} | score.to_json(),
            "parts": {name: asdict(record) for name, record in certificate.parts.items()},
            "scores": certificate.scores,
            "model": asdict(certificate.model),
            "split": asdict(certificate.split) if certificate.split else None,
            "versions": dict(certificate.versions),
        },
    )


def read_certificate(path: str | os.PathLike[str]) -> Certificate:
    """The certificate in a file, refused with the reason unless every field is understood."""
    document = read_json(path)
    if document.get("format") != FORMAT:
        raise BadCertificate(f"{path} is not a {FORMAT}: its format is {document.get('format')!r}")
    if document.get("version") != VERSION:
        raise BadCertificate(
            f"{path} has version {document.get('version')!r}; this program understands {VERSION}"
        )
    try:
        return _from_document(document)
    except BadCertificate as error:
        raise BadCertificate(f"{path}: {error}") from None
    except (PACError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadCertificate(f"{path} is damaged: {error}") from None


def _from_document(document: dict[str, Any]) -> Certificate:
    _keys("the certificate", document, _FIELDS)
    _keys("threshold", document["threshold"], {"value": float, "n": int, "errors": int, "bound": str})
    _keys("level", document["level"], {"epsilon": float, "delta": float})
    level = PACLevel(**document["level"])
    threshold = Threshold(level=level, **document["threshold"])
    if threshold.bound not in BOUNDS:
        raise BadCertificate(f"threshold.bound must be one of {sorted(BOUNDS)}, got {threshold.bound!r}")
    if BOUNDS[threshold.bound](threshold.n, level) != threshold.errors:
        raise BadCertificate(f"n = {threshold.n} units do not allow the stated {threshold.errors} errors")
    _keys("parts", document["parts"], dict.fromkeys(PARTS, dict))
    parts = {name: _record(f"parts.{name}", document["parts"][name]) for name in PARTS}
    if parts["calibrate"].n != threshold.n:
        raise BadCertificate(f"parts.calibrate.n is {parts['calibrate'].n}, threshold.n is {threshold.n}")
    split = document["split"]
    if split is not None:
        _keys("split", split, {"seed": int, "pool": str})
    certificate = Certificate(
        predictor=Predictor(_score(document["score"]), threshold),
        unit=document["unit"],
        parts=parts,
        scores=document["scores"],
        model=_record("model", document["model"]),
        split=None if split is None else SplitRecord(**split),
        versions=document["versions"],
    )
    if certificate.promise != document["promise"]:
        raise BadCertificate("the promise in words is not the promise of its numbers")
    return certificate


_FIELDS: dict[str, Any] = {
    "format": str,
    "version": int,
    "promise": str,
    "unit": str,
    "level": dict,
    "threshold": dict,
    "score": dict,
    "parts": dict,
    "scores": str,
    "model": dict,
    "split": dict | None,
    "versions": dict,
}


def _keys(name: str, value: Any, wanted: Mapping[str, Any]) -> None:
    """Refuse an object that lacks a field, has one too many, or one of another type."""
    if not isinstance(value, dict):
        raise BadCertificate(f"{name} must be an object, got {value!r}")
    if set(value) != set(wanted):
        missing, extra = sorted(set(wanted) - set(value)), sorted(set(value) - set(wanted))
        raise BadCertificate(
            f"{name} must have the fields {sorted(wanted)}; missing {missing}, not understood {extra}"
        )
    for key, kind in wanted.items():
        if not isinstance(value[key], kind) or isinstance(value[key], bool):
            raise BadCertificate(
                f"{name}.{key} must be of type {getattr(kind, '__name__', kind)}, got {value[key]!r}"
            )


def _record(name: str, value: Any) -> PartRecord:
    _keys(name, value, {"name": str, "n": int | None, "digest": str | None})
    return PartRecord(**value)


def _score(document: dict[str, Any]) -> Score:
    kind = document.get("kind")
    parts = {key: value for key, value in document.items() if key != "kind"}
    if kind in KINDS:
        known = KINDS[kind]
    elif kind in plugins.names("shapes"):
        known = plugins.load("shapes", str(kind))
    else:
        raise BadCertificate(f"score.kind must be one of {sorted(KINDS)} or of a plugin, got {kind!r}")
    score: Score = known.from_json(parts)
    if score.to_json() != parts:
        raise BadCertificate(f"the score of kind {kind!r} has fields that are not understood")
    return score


def _say(record: PartRecord) -> str:
    n = "" if record.n is None else f", {record.n:,} units"
    return f"{record.name}{n}" + ("" if record.digest is None else f", sha256 {record.digest[:12]}")


def _versions() -> dict[str, str]:
    try:
        ours = version("pac-sets")
    except PackageNotFoundError:
        ours = "not installed"
    return {
        "pac-sets": ours,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }
