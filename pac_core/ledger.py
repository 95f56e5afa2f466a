"""What the calibrate split was asked for, written down before it is opened, and what that costs.

Each certificate may fail with probability delta; several from the same units may fail together
more often than any one. The ledger holds the whole menu beforehand and states the probability
that any of them fails. A menu thought of after the look needs new units.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from pac_core.bounds import max_errors
from pac_core.costs import Entry, joint_cost
from pac_core.documents import read_json, write_json
from pac_core.errors import BadCertificate, PACError, SecondLook
from pac_core.predictors import Score
from pac_core.splits import ids_digest, unit_names

FORMAT = "pac-sets ledger"


@dataclass(frozen=True)
class Opening:
    """One look: calibration units, and the menu they were opened for.

    calibrate: digest of the ids of the calibration units
    n: how many there are
    menu: every certificate asked for
    data: digest of what is said of them (forecasts and truths, or scores): with other data, the same
        units and menu are another look
    units: a 64-bit hash of each id, so that any later overlap is noticed
    plan: what else was laid down beforehand, such as the scales of a descent; None for a plain menu
    """

    calibrate: str
    n: int
    menu: tuple[Entry, ...]
    data: str
    units: str
    plan: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, ids: Any, menu: Iterable[Entry], data: str, plan: Mapping[str, Any] | None = None) -> Opening:
        """The look at the units with these ids."""
        names = unit_names("ids", ids).tolist()
        hashes = b"".join(sorted(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names))
        packed = base64.b64encode(hashes).decode()
        ordered = sorted(menu, key=lambda entry: (entry.score, entry.epsilon, entry.delta))
        return cls(ids_digest(ids), len(names), tuple(ordered), data, packed, plan)

    def shared_with(self, other: Opening) -> int:
        """How many units both looked at."""
        mine, theirs = (np.frombuffer(base64.b64decode(o.units), dtype=">u8") for o in (self, other))
        return len(np.intersect1d(mine, theirs))

    @property
    def cost(self) -> float:
        """The probability that any certificate of the menu fails is below this."""
        return joint_cost(self.n, self.menu)


@dataclass(frozen=True)
class Note:
    """Something that happened after a look, or instead of one: it is added and never changed.

    kind: such as "monitor reset"
    time: when, in UTC
    facts: what, as plain JSON
    """

    kind: str
    time: str
    facts: Mapping[str, Any]


def score_digest(score: Score) -> str:
    """A fingerprint of a fitted score."""
    text = json.dumps({"kind": score.kind} | score.to_json(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def open_split(path: str | os.PathLike[str], opening: Opening) -> Opening:
    """Write the menu into the ledger at `path`, before the calibrate split is read.

    The same menu on the same units again is the same look. Any other look that shares a unit with
    an earlier one raises `SecondLook`.
    """
    file = Path(path).resolve()  # a link to a ledger is that ledger
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file):
        openings, notes = _read(file) if file.exists() else ([], [])
        for earlier in openings:
            if opening == earlier:
                return earlier
            shared = opening.shared_with(earlier)
            if shared:
                raise SecondLook(
                    f"{shared:,} of these {opening.n:,} units were calibrated on before, for "
                    f"{_describe(earlier.menu)} (ledger {file}): a new certificate needs units never "
                    "calibrated on. Ask for every epsilon and delta in one look."
                )
        _write(file, [*openings, opening], notes)
    return opening


def add_note(path: str | os.PathLike[str], kind: str, facts: Mapping[str, Any]) -> Note:
    """Write a note into the ledger at `path`, behind all that stands there; returns it with its time."""
    note = Note(kind, datetime.now(UTC).isoformat(timespec="seconds"), dict(facts))
    file = Path(path).resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file):
        openings, notes = _read(file) if file.exists() else ([], [])
        _write(file, openings, [*notes, note])
    return note


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Only one process at a time, where the system can lock files."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with open(file.with_name(file.name + ".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_ledger(path: str | os.PathLike[str]) -> list[Opening]:
    """All openings of a ledger; a file that is not one is refused."""
    return _read(path)[0]


def read_notes(path: str | os.PathLike[str]) -> list[Note]:
    """All notes of a ledger, the oldest first; a file that is not one is refused."""
    return _read(path)[1]


def _read(path: str | os.PathLike[str]) -> tuple[list[Opening], list[Note]]:
    document = read_json(path)
    if document.get("format") != FORMAT or document.get("version") not in (1, 2):
        raise BadCertificate(f"{path} is not a ledger of version 1 or 2")
    try:
        notes = [Note(**note) for note in document["notes"]] if document["version"] == 2 else []
        return [_opening(entry) for entry in document["openings"]], [_checked(note) for note in notes]
    except (PACError, KeyError, TypeError, ValueError) as error:
        raise BadCertificate(f"{path} is a damaged ledger: {error!r}") from None


def _write(file: Path, openings: Sequence[Opening], notes: Sequence[Note]) -> None:
    """Version 1 where it says all, so that older programs read on; they refuse notes, and drop none."""
    plain = [{key: value for key, value in asdict(o).items() if value is not None} for o in openings]
    document: dict[str, Any] = {"format": FORMAT, "version": 1, "openings": plain}
    if notes:
        document |= {"version": 2, "notes": [asdict(note) for note in notes]}
    write_json(file, document)


def _checked(note: Note) -> Note:
    if not (isinstance(note.kind, str) and isinstance(note.time, str) and isinstance(note.facts, dict)):
        raise ValueError("a note must have a kind, a time and facts")
    return note


def _opening(document: dict[str, Any]) -> Opening:
    """One look, refused unless its parts fit together."""
    menu = tuple(Entry(**entry) for entry in document["menu"])
    opening = Opening(**{**document, "menu": menu})
    for entry in menu:
        max_errors(opening.n, entry.level)
    if not menu or len(base64.b64decode(opening.units, validate=True)) != 8 * opening.n:
        raise ValueError("a look must have a menu and a hash of each unit")
    if opening.plan is not None and not isinstance(opening.plan, dict):
        raise ValueError("a plan must be an object")
    return opening


def _describe(menu: Sequence[Entry]) -> str:
    levels = ", ".join(sorted({f"({entry.epsilon:g}, {entry.delta:g})" for entry in menu}))
    scores = len({entry.score for entry in menu})
    count = f"{len(menu)} certificate{'s' * (len(menu) > 1)} of {scores} score{'s' * (scores > 1)}"
    return f"{count} at (epsilon, delta) = {levels}"
