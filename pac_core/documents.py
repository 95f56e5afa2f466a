"""Certificates as JSON files: written whole, and refused unless every field is understood."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
    document = {
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
        "forecast": None if certificate.predictor.domain is None else list(certificate.predictor.domain),
        "score": {"kind": score.kind} | score.to_json(),
        "parts": {name: asdict(record) for name, record in certificate.parts.items()},
        "scores": certificate.scores,
        "model": asdict(certificate.model),
        "data": asdict(certificate.data),
        "split": asdict(certificate.split) if certificate.split else None,
        "menu": _told(asdict(certificate.menu)) if certificate.menu else None,
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


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "family" or value is not None}


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
    _keys("the certificate", document, _FIELDS)
    if seal(document) != document["seal"]:
        raise BadCertificate("it was changed after it was written: its seal does not fit its content")
    check_unit(document["unit"])
    _keys("threshold", document["threshold"], {"value": float, "n": int, "errors": int, "bound": str})
    _keys("level", document["level"], {"epsilon": float, "delta": float})
    level = PACLevel(**document["level"])
    threshold = Threshold(level=level, **document["threshold"])
    if not math.isfinite(threshold.value):
        raise BadCertificate(f"threshold.value must be finite, got {threshold.value}")
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
        _keys("split", split, {"seed": int, "pool": str, "ids": str})
    score, domain = _score(document["score"]), _domain(document["forecast"])
    if isinstance(score, Likelihood) and domain is not None:
        _refuse_misfit(score, domain)
    certificate = Certificate(
        predictor=Predictor(score, threshold, domain),
        unit=document["unit"],
        parts=parts,
        scores=document["scores"],
        model=_record("model", document["model"]),
        data=_record("data", document["data"]),
        split=None if split is None else SplitRecord(**split),
        menu=_menu(document["menu"]),
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
    "forecast": list | None,
    "score": dict,
    "parts": dict,
    "scores": str,
    "model": dict,
    "data": dict,
    "split": dict | None,
    "menu": dict | None,
    "versions": dict,
    "seal": str,
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


def _record(name: str, value: Any) -> Record:
    _keys(name, value, {"name": str, "n": int | None, "digest": str | None})
    return Record(**value)


def _menu(document: dict[str, Any] | None) -> MenuRecord | None:
    """Certificates of before do not say what else their ledger held."""
    if document is None:
        return None
    told = "family" in document
    _keys("menu", document, {"asked": int, "cost": float} | ({"family": dict} if told else {}))
    family = Family(**document["family"]) if told else None
    return MenuRecord(document["asked"], document["cost"], family)


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
    """A JSON object, without repeated keys and without NaN or Infinity."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a number")

    try:
        text = Path(path).read_text(encoding="utf-8")
        document = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except OSError as error:
        raise BadCertificate(f"{path} cannot be read: {error.strerror}") from None
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
