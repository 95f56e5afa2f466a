"""Certificates as JSON files: written whole, and refused unless every field is understood."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import numpy as np

from pac_core import plugins
from pac_core.bounds import BOUNDS, PACLevel
from pac_core.certificates import Certificate, MenuRecord, Record, SplitRecord, check_unit
from pac_core.costs import Family
from pac_core.errors import BadCertificate, InvalidInput, PACError
from pac_core.features import FeatureShape
from pac_core.files import whole_file
from pac_core.predictors import Accumulated, GivenScore, Likelihood, Predictor, Score
from pac_core.ranked_scores import RankedScore
from pac_core.shapes import BoxShape, MaxShape
from pac_core.temperatures import Temperature
from pac_core.thresholds import Threshold

FORMAT = "pac-sets certificate"
VERSION = 1
KINDS: dict[str, Any] = {
    kind.kind: kind for kind in (GivenScore, Likelihood, RankedScore, MaxShape, BoxShape, FeatureShape)
}
PARTS = ("train", "tune", "calibrate", "test")


def write_certificate(certificate: Certificate, path: str | os.PathLike[str]) -> None:
    """Write the certificate as JSON, whole or not at all."""
    write_json(path, as_document(certificate))


def as_document(certificate: Certificate) -> dict[str, Any]:
    """The certificate as a sealed document; refused if JSON cannot hold it."""
    if not isinstance(certificate, Certificate):
        raise InvalidInput(f"certificate must be a Certificate, got {type(certificate).__name__}")
    threshold, score = certificate.predictor.threshold, certificate.predictor.score
    stated, menu = asdict(threshold), asdict(certificate.menu) if certificate.menu else None
    if menu is not None and menu["family"] is None:
        del menu["family"]  # as in documents from before it was kept
    document = {
        "format": FORMAT,
        "version": VERSION,
        "promise": certificate.promise,
        "unit": certificate.unit,
        "level": stated.pop("level"),
        "threshold": stated,
        "forecast": None if certificate.predictor.domain is None else list(certificate.predictor.domain),
        "score": {"kind": score.kind} | score.to_json(),
        "parts": {name: asdict(record) for name, record in certificate.parts.items()},
        "scores": certificate.scores,
        "model": asdict(certificate.model),
        "data": asdict(certificate.data),
        "split": asdict(certificate.split) if certificate.split else None,
        "menu": menu,
        "versions": dict(certificate.versions),
    }
    try:
        json.dumps(document, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"a certificate must hold text and finite numbers only, got others in its score ({score.kind}) "
            f"or its records: {error}"
        ) from None
    return document | {"seal": seal(document)}


def seal(document: Mapping[str, Any]) -> str:
    """SHA-256 of all fields but the seal: a change by hand or by accident shows."""
    fields = {name: value for name, value in document.items() if name != "seal"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def read_certificate(path: str | os.PathLike[str]) -> Certificate:
    """The certificate in a file, refused with the reason unless every field is understood.

    Its sets: ``read_certificate("certificate.json").predictor.sets(LogitForecast(logits))``.
    """
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
    except (PACError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadCertificate(f"{path} is damaged: {error}") from None


def _from_document(document: dict[str, Any]) -> Certificate:
    _check_fields("the certificate", document, _FIELDS | _types(Certificate, without=("predictor",)))
    if seal(document) != document["seal"]:
        raise BadCertificate("it was changed after it was written: its seal does not fit its content")
    check_unit(document["unit"])
    level = _build(PACLevel, "level", document["level"])
    threshold = _build(Threshold, "threshold", document["threshold"], level=level)
    if not math.isfinite(threshold.value):
        raise BadCertificate(f"threshold.value must be finite, got {threshold.value}")
    if threshold.bound not in BOUNDS:
        raise BadCertificate(f"threshold.bound must be one of {sorted(BOUNDS)}, got {threshold.bound!r}")
    if BOUNDS[threshold.bound](threshold.n, level) != threshold.errors:
        raise BadCertificate(f"n = {threshold.n} units do not allow the stated {threshold.errors} errors")
    _check_fields("parts", document["parts"], dict.fromkeys(PARTS, (dict,)))
    parts = {name: _build(Record, f"parts.{name}", document["parts"][name]) for name in PARTS}
    if parts["calibrate"].n != threshold.n:
        raise BadCertificate(f"parts.calibrate.n is {parts['calibrate'].n}, threshold.n is {threshold.n}")
    score, domain = _score(document["score"]), _domain(document["forecast"])
    if isinstance(score, Likelihood) and domain is not None:
        _refuse_misfit(score, domain)
    read = {name: document[name] for name in ("unit", "scores", "versions")} | {"parts": parts}
    for name, kind in {"model": Record, "data": Record, "split": SplitRecord, "menu": MenuRecord}.items():
        read[name] = None if document[name] is None else _build(kind, name, document[name])
    certificate = Certificate(Predictor(score, threshold, domain), **read)
    if certificate.promise != document["promise"]:
        raise BadCertificate("the promise in words is not the promise of its numbers")
    return certificate


_FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("format", "promise", "seal"), (str,)),
    **dict.fromkeys(("level", "threshold", "score"), (dict,)),
    **{"version": (int,), "forecast": (list, NoneType)},
}
"""Of a document, beside those of `Certificate`."""


def _types(kind: type[Any], without: Collection[str] = ()) -> dict[str, tuple[type, ...]]:
    """What JSON makes of each field of a dataclass."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in without}
    kinds = {name: get_args(hint) if isinstance(hint, UnionType) else (hint,) for name, hint in hints.items()}
    return {name: tuple(one if one in _PLAIN else dict for one in some) for name, some in kinds.items()}


_PLAIN = (str, int, float, NoneType)


def _build(kind: type[Any], name: str, value: Any, **known: Any) -> Any:
    """A dataclass from its fields in a document; `known` are those that stand elsewhere.

    The ledger's family may be absent: certificates of before do not say what else their ledger held.
    """
    if isinstance(value, dict) and "family" in value:
        known |= {"family": _build(Family, f"{name}.family", value["family"])}
    own = {field: part for field, part in value.items() if field != "family"} if known else value
    _check_fields(name, own, _types(kind, without=(*known, "family")))
    return kind(**own, **known)


def _check_fields(name: str, value: Any, wanted: Mapping[str, tuple[type, ...]]) -> None:
    """Refuse an object that lacks a field, has one too many, or one of another type."""
    if not isinstance(value, dict):
        raise BadCertificate(f"{name} must be an object, got {value!r}")
    if set(value) != set(wanted):
        missing, extra = sorted(set(wanted) - set(value)), sorted(set(value) - set(wanted))
        raise BadCertificate(
            f"{name} must have the fields {sorted(wanted)}; missing {missing}, not understood {extra}"
        )
    for key, kinds in wanted.items():
        if not isinstance(value[key], kinds) or isinstance(value[key], bool):
            types = " or ".join(kind.__name__ for kind in kinds)
            raise BadCertificate(f"{name}.{key} must be of type {types}, got {value[key]!r}")


def _domain(document: list[Any] | None) -> tuple[Any, ...] | None:
    if document is None:
        return None
    kind, *sizes = document
    wanted = {"labels": 1, "vectors": 1, "trajectories": 2}
    if wanted.get(kind) != len(sizes) or not all(type(size) is int and size > 0 for size in sizes):
        raise BadCertificate(f"forecast must be a kind of {sorted(wanted)} with its sizes, got {document!r}")
    return (kind, *sizes)


def _refuse_misfit(score: Likelihood, domain: tuple[Any, ...]) -> None:
    """Refuse preparations that such forecasts cannot be given."""
    steps = domain[1] if domain[0] == "trajectories" else None
    for step in score.preparations:
        if isinstance(step, Accumulated) and steps is None:
            raise BadCertificate(f"accumulated variances are of trajectories, not of {domain[0]}")
        if isinstance(step, Temperature) and np.shape(step.tau) not in ((), (steps,)):
            wanted = "one number" if steps is None else f"one number or {steps}"
            raise BadCertificate(f"tau must be {wanted} for {domain[0]}, got shape {np.shape(step.tau)}")


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


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise BadCertificate(f"{path} cannot be read: {error.strerror}") from None
    return parse_json(content, path)


def parse_json(content: bytes, path: str | os.PathLike[str]) -> dict[str, Any]:
    """A JSON object, without repeated keys and without NaN or Infinity; `path` is what messages call it."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a number")

    try:
        document = json.loads(content.decode(), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise BadCertificate(f"{path} is not the JSON it should be: {error}") from None
    if not isinstance(document, dict):
        raise BadCertificate(f"{path} must hold a JSON object, got {type(document).__name__}")
    return document


def write_json(path: str | os.PathLike[str], document: dict[str, Any]) -> None:
    """Write whole or not at all."""
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")
