"""A promise as a document: what is promised, from which evidence, under which assumptions; and its JSON."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import numpy as np

from pac_core import plugins
from pac_core.arrays import check_numbers
from pac_core.bounds import BOUNDS, Family, PACLevel
from pac_core.errors import BadCertificate, InvalidInput, PACError
from pac_core.exchangeability import AS_THEY_COME, compare_scores, describe_world
from pac_core.files import whole_file
from pac_core.sets.label_scores import RankedScore
from pac_core.sets.predictor import GivenScore, Likelihood, Predictor, Score, describe_promise
from pac_core.splits import add_digests, digest_of, ids_digest, unit_names
from pac_core.thresholds import OTHER, Groups, GroupThreshold, ShardedScores, Threshold, fit_threshold
from pac_core.tubes import TUBES, AnyOf


@dataclass(frozen=True)
class Record:
    """What is known of a part of the data, of the model, or of a file: its name in words, number of units,
    and digest of the unit ids or of the file."""

    name: str
    n: int | None = None
    digest: str | None = None


@dataclass(frozen=True)
class SplitRecord:
    """How `pac_core.split` drew the parts: its seed, digest of all ids, and the name of their array."""

    seed: int
    pool: str
    ids: str = "ids"


@dataclass(frozen=True)
class MenuRecord:
    """How many certificates a look was for, the probability that any fails, and all that the ledger held."""

    asked: int
    cost: float
    family: Family | None = None


@cache  # looking them up takes longer than the rest of a certificate
def _versions() -> dict[str, str]:
    import platform  # both are kept out of the import time of the package
    from importlib.metadata import PackageNotFoundError, version

    try:
        ours = version("pac-sets")
    except PackageNotFoundError:
        ours = "not installed"
    own = {"pac-sets": ours, "python": platform.python_version()}
    return own | {"numpy": np.__version__, "scipy": version("scipy")}


@dataclass(frozen=True, eq=False)
class Certificate:
    """A predictor with everything needed to check it.

    unit: what is drawn independently, in one word, such as "image" or "rollout"
    parts: records of "train", "tune", "calibrate" and "test"
    scores: digest of the calibration scores
    model, data: which model, and which file the units came from
    memberships: where each group has a threshold of its own, digest of which unit is in which group
    split, menu: how the parts were drawn, and what the look was for, where known
    versions: of the programs that made it
    world: what the calibration scores were compared with in the same look, and the wealth: `describe_world`
    """

    predictor: Predictor
    unit: str
    parts: Mapping[str, Record]
    scores: str
    model: Record
    data: Record
    split: SplitRecord | None = None
    menu: MenuRecord | None = None
    versions: Mapping[str, str] = field(default_factory=_versions)
    world: Mapping[str, float] | None = None
    memberships: str | None = None

    @property
    def promise(self) -> str:
        """The promise in words, with what it rests on."""
        threshold, menu, more = self.predictor.threshold, self.menu, ""
        level = threshold.level
        if menu is not None and menu.asked > 1:
            more = f" It is one of {menu.asked} asked for in one look, of which any fails with "
            more += f"probability below {menu.cost!r}."
        if menu is not None and menu.family is not None:
            more += f" {menu.family}"
        whose, epsilon = describe_promise(self.predictor.score, self.unit, level.epsilon)
        if isinstance(threshold, GroupThreshold):
            return _promise_by_group(threshold, whose, epsilon) + more
        return (
            f"The set of {whose} misses its truth with probability at most "
            f"{epsilon!r}; this holds with confidence at least 1 - {level.delta!r} over the draw "
            f"of the {threshold.n} calibration units, if they and the new ones are "
            "independent draws from one source, and if neither the model nor the score was chosen by "
            "looking at them. It is a promise about all units together, not about each kind of unit." + more
        )

    def __str__(self) -> str:
        threshold = self.predictor.threshold
        records = {"model": self.model, "data": self.data, **self.parts}
        known = [f"  {name}: {_say(record)}" for name, record in records.items()]
        return "\n".join(
            [self.promise, f"  {threshold}", *known, *(f"  {text}" for text in describe_world(self.world))]
        )


def _promise_by_group(threshold: GroupThreshold, whose: str, epsilon: float) -> str:
    """The promise of a threshold per group, which tells groups of units from groups of labels."""
    level, names = threshold.level, list(threshold.groups)
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    if threshold.labels is None:
        what = f"in each {threshold.column}, which must be known when the set is made ({shown})"
        more = "about each group and every mixture of groups, not about each kind of unit within one."
    else:
        what = f"in whichever group its true label is, which nobody needs to know ({shown})"
        more = "given the group of the true label, not given what the set or the prediction is."
    if threshold.merged:
        more += f" {OTHER!r} is {', '.join(threshold.merged)}, in the proportions of the calibration units."
    if always := threshold.always:
        more += f" The labels of {', '.join(always)} are in every set: there were too few units of them."
    return (
        f"The set of {whose} misses its truth with probability at most {epsilon!r} {what}; this "
        f"holds for all groups together with confidence at least 1 - {level.delta!r} over the draw of the "
        f"{threshold.n} calibration units, given their groups, if they and the new ones of the same group "
        "are independent draws from one source, and if neither the model nor the score nor the groups were "
        f"chosen by looking at them. It is a promise {more}"
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
    train: Record | None = None,
    tune: Record | None = None,
    test: Record | None = None,
    model: Record | None = None,
    data: Record | None = None,
    split: SplitRecord | None = None,
    menu: MenuRecord | None = None,
    world: Mapping[str, float] | None = None,
    groups: Groups | None = None,
) -> Certificate:
    """The certificate of a predictor; refused unless its threshold follows from these scores.

    It keeps no ledger and cannot know of other looks at these units; `certify` does.
    scores, ids, groups: `[n]` the calibration scores, or `ShardedScores`, ids and groups of their units
    """
    array = scores if isinstance(scores, ShardedScores) else check_numbers("scores", scores, "[N]")
    stated = predictor.threshold
    if stated.bound not in BOUNDS:
        raise InvalidInput(f"a certificate needs a bound of {sorted(BOUNDS)}, got {stated.bound!r}")
    refit = fit_threshold(array, stated.level, bound=BOUNDS[stated.bound], groups=groups)
    if not all(check.holds for check in _compare(stated, refit)):
        raise BadCertificate(f"the threshold does not follow from these scores, which give: {refit}")
    check_unit(unit)
    if ids is not None and len(np.unique(unit_names("ids", ids))) != len(array):
        raise InvalidInput(f"ids must be unique, one for each of {len(array)} scores")
    unknown = Record("not named")
    calibrate = Record("calibrate", len(array), None if ids is None else ids_digest(ids))
    records = train or unknown, tune or unknown, calibrate, test or unknown
    parts, digest = dict(zip(PARTS, records, strict=True)), scores_digest(array)
    members = None if groups is None else memberships_digest(groups, ids)
    known = model or unknown, data or unknown, split, menu
    return Certificate(predictor, unit, parts, digest, *known, world=world, memberships=members)


def check_words(name: str, value: Any, rule: str = "a line of text") -> None:
    """Refuse what is not a line of text."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidInput(f"{name} must be {rule}, got {value!r}")


check_unit = partial(check_words, "unit", rule="a word such as 'image'")


def verify(
    certificate: Certificate, scores: Any, ids: Any = None, groups: Any = None, *, ordered: bool = True
) -> list[Check]:
    """Whether the certificate follows from these calibration scores, point by point and to the last bit;
    `groups` are those of the units, where each has a threshold of its own. If the scores are `ordered` as
    the look had them, its report of the order of the units is computed again."""
    array = check_numbers("scores", scores, "[N]")
    threshold, n = certificate.predictor.threshold, len(array)
    checks = [Check("n", n == threshold.n, f"{n} scores, the certificate says {threshold.n}")]
    known = None
    try:
        if isinstance(threshold, GroupThreshold):
            if groups is None:
                raise InvalidInput("groups must be given, one for each score, got none")
            known = Groups(groups, threshold.labels, bool(threshold.merged), threshold.column)
            same = memberships_digest(known, ids) == certificate.memberships
            text = f"the units are {'in the groups' if same else 'not in the groups'} that are stated"
            checks.append(Check("memberships", same, text))
        refit = fit_threshold(array, threshold.level, bound=BOUNDS[threshold.bound], groups=known)
    except PACError as error:
        return [*checks, Check("T", False, str(error))]
    equal = scores_digest(array) == certificate.scores
    those = "those" if equal else "others than those"
    checks += [
        *_compare(threshold, refit)[1:],
        Check("scores", equal, f"the scores are {those} the certificate was made from"),
    ]
    for name, wealth in (certificate.world or {}).items():
        if name == AS_THEY_COME and equal and ordered:
            found = compare_scores(array)
            text = f"wealth {found:.6g} in the order of these units, stated {wealth:.6g}"
            checks.append(Check("world", math.isclose(found, wealth, rel_tol=1e-6), text))
        else:
            checks.append(Check("world", None, f"not compared again with the {name}"))
    stated = certificate.parts["calibrate"].digest
    if ids is None or stated is None:
        return [*checks, Check("ids", None, "the unit ids were not compared: none given")]
    same = ids_digest(ids) == stated
    return [*checks, Check("ids", same, f"the unit ids are {'those' if same else 'not those'} stated")]


def _compare(stated: Threshold, refit: Threshold) -> list[Check]:
    """Whether a threshold follows from what was found: n, k and T, of all units and of each group."""
    found, value = refit.value, stated.value
    word = "the same" if value == found else "larger, hence safe" if value > found else "smaller, hence void"
    checks = [
        Check("n", refit.n == stated.n, f"{refit.n} scores, the certificate says {stated.n}"),
        Check("k", refit.errors == stated.errors, f"{refit.errors} errors allowed, stated {stated.errors}"),
        Check("T", value >= found, f"T is {found!r}, stated {value!r}: {word}"),
    ]
    groups, ours = (getattr(one, "groups", {}) for one in (stated, refit))
    if groups or ours:
        same = (sorted(groups), getattr(stated, "merged", ())) == (sorted(ours), getattr(refit, "merged", ()))
        checks.append(Check("groups", same, f"the groups are {', '.join(ours)}, stated {', '.join(groups)}"))
    for name in sorted(groups.keys() & ours.keys()):
        own = _compare(groups[name], ours[name])
        text = f"{name!r}: {'; '.join(check.text for check in own)}"
        checks.append(Check("group", all(check.holds for check in own), text))
    return checks


def memberships_digest(groups: Groups, ids: Any = None) -> str:
    """A fingerprint of which unit is in which group, whatever their order."""
    names = unit_names("ids", ids) if ids is not None else [""] * len(groups.names)
    return digest_of(f"{name}\0{group}".encode() for name, group in zip(names, groups.names, strict=False))


def scores_digest(scores: Any) -> str:
    """A fingerprint of the scores as doubles; their order does not matter, and shards add up."""
    if isinstance(scores, ShardedScores):
        return add_digests(map(scores_digest, scores))
    data = (np.asarray(scores, dtype=np.float64) + 0.0).astype("<f8").tobytes()
    return digest_of(data[i : i + 8] for i in range(0, len(data), 8))


def _say(record: Record) -> str:
    n = "" if record.n is None else f", {record.n:,} units"
    return f"{record.name}{n}" + ("" if record.digest is None else f", digest {record.digest[:12]}")


FORMAT = "pac-sets certificate"
VERSION = 1
KINDS: dict[str, Any] = {kind.kind: kind for kind in (GivenScore, Likelihood, RankedScore, *TUBES, AnyOf)}
PARTS = ("train", "tune", "calibrate", "test")


def write_certificate(certificate: Certificate, path: str | os.PathLike[str]) -> None:
    """Write the certificate as JSON, whole or not at all."""
    write_json(path, as_document(certificate))


def as_document(certificate: Certificate) -> dict[str, Any]:
    """The certificate as a sealed document; refused if JSON cannot hold its score, or give it back."""
    if not isinstance(certificate, Certificate):
        raise InvalidInput(f"certificate must be a Certificate, got {type(certificate).__name__}")
    threshold, score = certificate.predictor.threshold, certificate.predictor.score
    stated = {name: getattr(threshold, name) for name in ("value", "n", "errors", "bound")}
    menu = asdict(certificate.menu) if certificate.menu else None
    if menu is not None and menu["family"] is None:
        del menu["family"]  # as in documents from before it was kept
    document = {
        "format": FORMAT,
        "version": VERSION,
        "promise": certificate.promise,
        "unit": certificate.unit,
        "level": asdict(threshold.level),
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
    if certificate.world:
        document["world"] = dict(certificate.world)
    if isinstance(threshold, GroupThreshold):
        document["groups"] = _groups_document(threshold, certificate.memberships)
    try:
        _score(json.loads(json.dumps(document, allow_nan=False))["score"])
    except BadCertificate as error:
        raise InvalidInput(f"a certificate must be readable again, but: {error}") from None
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"a certificate must hold text and finite numbers only, got others in its score ({score.kind}) "
            f"or its records: {error}"
        ) from None
    return document | {"seal": seal(document)}


def _groups_document(threshold: GroupThreshold, memberships: str | None) -> dict[str, Any]:
    """What a document says of groups; T and delta are null where the labels of a group are in every set."""
    each: dict[str, Any] = {}
    for name, one in threshold.groups.items():
        proved = {"value": one.value, "delta": one.level.delta} if one.value < np.inf else {}
        each[name] = {"n": one.n, "errors": one.errors, "value": None, "delta": None} | proved
    labels, merged = threshold.labels and list(threshold.labels), list(threshold.merged)
    about = {"column": threshold.column, "labels": labels, "merged": merged}
    return about | {"memberships": memberships, "thresholds": each}


def _read_groups(threshold: Threshold, document: dict[str, Any]) -> GroupThreshold:
    """The thresholds of groups from their document, refused unless they fit together."""
    level, bound, each, spent = threshold.level, threshold.bound, {}, []
    for name, one in document["thresholds"].items():
        n, errors, value = one["n"], one["errors"], one["value"]
        if value is None:
            each[name] = Threshold(np.inf, n, errors, level)
            continue
        each[name] = Threshold(value, n, errors, PACLevel(level.epsilon, one["delta"]), bound)
        spent.append(one["delta"])
        if BOUNDS[bound](n, each[name].level) != errors:
            raise BadCertificate(f"n = {n} units of {name!r} do not allow the stated {errors} errors")
    labels = document["labels"] and tuple(document["labels"])
    more = each, tuple(document["merged"]), labels, document["column"]
    made = GroupThreshold(threshold.value, threshold.n, threshold.errors, level, bound, *more)
    sums = [sum(getattr(one, name) for one in each.values()) for name in ("n", "errors")]
    largest = max(one.value for one in each.values() if one.value < np.inf)
    fit = (*sums, largest) == (threshold.n, threshold.errors, threshold.value)
    if not fit or math.fsum(spent) > level.delta * (1 + 1e-12) or set(labels or each) != set(each):
        raise BadCertificate("the groups do not add up to n, errors, value, delta and labels")
    if (labels is None and made.always) or _groups_document(made, document["memberships"]) != document:
        raise BadCertificate("the groups have fields that are not understood, or no threshold")
    return made


def seal(document: Mapping[str, Any]) -> str:
    """SHA-256 of all fields but the seal: a change by hand or by accident shows."""
    return json_digest({name: value for name, value in document.items() if name != "seal"})


def json_digest(document: Mapping[str, Any]) -> str:
    """A fingerprint of plain JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read_certificate(path: str | os.PathLike[str], content: bytes | None = None) -> Certificate:
    """The certificate in a file, refused with the reason unless every field is understood.

    content: of the file, where it was read already
    """
    document = read_json(path) if content is None else parse_json(content, path)
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
    fields = _types(Certificate, without=("predictor", "memberships", "world"))
    known = {
        name: (dict,) for name in ("groups", "world") if name in document
    }  # as they are absent in others
    groups = "groups" in document
    _check_fields("the certificate", document, _FIELDS | fields | known)
    if seal(document) != document["seal"]:
        raise BadCertificate("it was changed after it was written: its seal does not fit its content")
    check_unit(document["unit"])
    level = _build(PACLevel, "level", document["level"])
    threshold = _build(Threshold, "threshold", document["threshold"], level=level)
    if not math.isfinite(threshold.value):
        raise BadCertificate(f"threshold.value must be finite, got {threshold.value}")
    if threshold.bound not in BOUNDS:
        raise BadCertificate(f"threshold.bound must be one of {sorted(BOUNDS)}, got {threshold.bound!r}")
    if groups:
        threshold = _read_groups(threshold, document["groups"])
    elif BOUNDS[threshold.bound](threshold.n, level) != threshold.errors:
        raise BadCertificate(f"n = {threshold.n} units do not allow the stated {threshold.errors} errors")
    _check_fields("parts", document["parts"], dict.fromkeys(PARTS, (dict,)))
    parts = {name: _build(Record, f"parts.{name}", document["parts"][name]) for name in PARTS}
    if parts["calibrate"].n != threshold.n:
        raise BadCertificate(f"parts.calibrate.n is {parts['calibrate'].n}, threshold.n is {threshold.n}")
    score, domain = _score(document["score"]), _domain(document["forecast"])
    if isinstance(score, Likelihood) and domain is not None:
        _refuse_misfit(score, domain)
    labels = getattr(threshold, "labels", None)
    if labels is not None and domain != ("labels", len(labels)):
        raise BadCertificate(f"groups.labels must be one for each label, got {len(labels)} for {domain}")
    read = {name: document[name] for name in ("unit", "scores", "versions")} | {"parts": parts}
    for name, kind in {"model": Record, "data": Record, "split": SplitRecord, "menu": MenuRecord}.items():
        read[name] = None if document[name] is None else _build(kind, name, document[name])
    if (world := document.get("world")) is not None:
        _check_fields("world", world, dict.fromkeys(world, (float,)))
        read["world"] = world
    read["memberships"] = document["groups"]["memberships"] if groups else None
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

    The ledger's family may be absent, as in earlier certificates.
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
    if score.accumulate and steps is None:
        raise BadCertificate(f"accumulated variances are of trajectories, not of {domain[0]}")
    if score.temperature is not None and (shape := np.shape(score.temperature.tau)) not in ((), (steps,)):
        wanted = "one number" if steps is None else f"one number or {steps}"
        raise BadCertificate(f"tau must be {wanted} for {domain[0]}, got shape {shape}")


def _score(document: dict[str, Any]) -> Score:
    kind = document.get("kind")
    parts = {key: value for key, value in document.items() if key != "kind"}
    if kind not in KINDS and kind not in plugins.names("shapes"):
        raise BadCertificate(f"score.kind must be one of {sorted(KINDS)} or of a plugin, got {kind!r}")
    known = KINDS[kind] if kind in KINDS else plugins.load("shapes", str(kind))
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
    content = format_json(document)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as part:
        part.write_bytes(content)


def format_json(document: dict[str, Any]) -> bytes:
    """A document as we write it: indented, with an end of line, without NaN."""
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()
