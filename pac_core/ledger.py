"""What the calibrate split was asked for, written down before it is opened, and what that costs.

Each certificate may fail with probability delta; several from the same units may fail together
more often than any one. The ledger holds the whole menu beforehand and states the probability
that any of them fails. A menu thought of after the look needs new units.

Who tries again on new units pays again. A ledger that was given a budget before its first look
(`open_ledger`) charges every look, descent and claim to it, and refuses what it does not cover: so, with
probability at least 1 - budget, no statement ever issued from it is false, whatever was attempted and why
(given the past, each is false with at most the probability it was charged; the charges never exceed the
budget). Without a budget only the number and the sum can be stated, and under retries that is no confidence.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from pac_core.bounds import PACLevel, max_errors, share
from pac_core.costs import Entry, Family, joint_cost
from pac_core.documents import read_json, write_json
from pac_core.errors import BadCertificate, InvalidInput, PACError, SecondLook
from pac_core.files import real_path
from pac_core.predictors import Score
from pac_core.splits import ids_digest, unit_names

FORMAT = "pac-sets ledger"
CLAIM = "accepted risk"
"""The kind of the plans, and of the notes, of P(unsafe given accepted): see `claim_accepted_risk`."""
RESET = "monitor reset"
"""The kind of the notes of monitors that were begun anew, each with an alpha of its own."""


@dataclass(frozen=True)
class Opening:
    """One look: calibration units, and the menu they were opened for.

    calibrate: digest of the ids of the calibration units
    n: how many there are
    menu: every certificate asked for; empty if it is a claim, whose plan holds its delta
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
        """The probability that any statement of this look fails is below this."""
        return float(self.plan["delta"]) if self.plan and self.claim else joint_cost(self.n, self.menu)

    @property
    def claim(self) -> bool:
        """Whether it is a claim: it reads nothing until it is stated, see `claim_accepted_risk`."""
        return self.plan is not None and self.plan.get("kind") == CLAIM


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


def score_digest(score: Score, of: str = "") -> str:
    """A fingerprint of a fitted score; `of` says of which forecasts, where the same units have several."""
    plain = json_digest({"kind": score.kind} | score.to_json())
    return hashlib.sha256(f"{plain} of {of}".encode()).hexdigest() if of else plain


def json_digest(document: Mapping[str, Any]) -> str:
    """A fingerprint of plain JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class _Book:
    """All that a ledger holds."""

    openings: tuple[Opening, ...] = ()
    notes: tuple[Note, ...] = ()
    budget: float | None = None

    @property
    def family(self) -> Family:
        costs = [opening.cost for opening in self.openings]
        costs += [alpha for note in self.notes if (alpha := _alpha(note))]
        return Family(len(costs), math.fsum(costs), self.budget)

    def looked_at(self, opening: Opening) -> bool:
        """Whether its units were read; those of a claim are when it is stated."""
        return not opening.claim or any(
            note.kind == CLAIM and note.facts.get("plan") == opening.data for note in self.notes
        )


def open_ledger(path: str | os.PathLike[str], *, budget: float) -> Family:
    """Begin a ledger with a budget at `path`, or go on with the one that has it; returns what it holds.

    budget: with probability at least 1 - budget no statement ever issued from this ledger is false. Whatever
        is written into it is charged with its own failure probability before its first unit is read, and
        raises `OverBudget` where that is not covered. It cannot be changed, nor given to a ledger that
        has begun without one

    `Family.share` is a delta for the next attempt that leaves something for any number of later ones.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     open_ledger(f"{folder}/ledger.json", budget=0.01).share
    0.005
    """
    begun = Family(0, 0.0, share("budget", budget))
    file = real_path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file):
        if not file.exists():
            _write(file, _Book(budget=begun.budget))
            return begun
        book = _read(file)
    if book.budget != begun.budget:
        had = "none" if book.budget is None else f"{book.budget:g}"
        raise InvalidInput(
            f"budget must be laid down before anything else and stay as it is, got {budget!r} for the ledger "
            f"{file}, which has {had}: begin a new one, for statements to come"
        )
    return book.family


def read_family(path: str | os.PathLike[str]) -> Family:
    """How much was asked of a ledger, whatever it was called, and what it may cost."""
    return _read(path).family


def open_split(path: str | os.PathLike[str], opening: Opening) -> Opening:
    """Write the menu into the ledger at `path`, before the calibrate split is read.

    The same menu on the same units again is the same look. Any other look that shares a unit with
    an earlier one raises `SecondLook`. What the ledger's budget does not cover raises `OverBudget`.
    """
    file = real_path(path)  # a link to a ledger is that ledger
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file):
        book = _read(file) if file.exists() else _Book()
        if opening in book.openings:
            return opening
        for earlier in filter(book.looked_at, book.openings):
            _refuse_shared(opening, earlier, file)
        book.family.and_one_of(opening.cost)  # refused, if the budget does not cover it
        _write(file, replace(book, openings=(*book.openings, opening)))
    return opening


def refuse_spent(
    path: str | os.PathLike[str],
    ids: Any,
    levels: Iterable[PACLevel],
    plan: Mapping[str, Any] | None = None,
) -> bool:
    """Refuse before long work what `open_split` would refuse after it: units that were looked at before, and
    levels that the budget does not cover even for one score.

    levels, plan: of the look to come; one at exactly these units for the same may be repeated, and this
        returns whether it would be
    """
    file, wanted = real_path(path), set(levels)
    book, mine = _read(file) if file.exists() else _Book(), Opening.of(ids, (), "")
    for earlier in book.openings:
        asked = {entry.level for entry in earlier.menu}
        if (earlier.calibrate, earlier.plan, asked) == (mine.calibrate, plan, wanted):
            return True
    for earlier in filter(book.looked_at, book.openings):
        _refuse_shared(mine, earlier, file)
    if book.budget is not None:
        least = joint_cost(mine.n, [Entry("any", level.epsilon, level.delta) for level in wanted])
        book.family.and_one_of(least)
    return False


def _refuse_shared(opening: Opening, earlier: Opening, file: Path) -> None:
    shared = opening.shared_with(earlier)
    if shared:
        raise SecondLook(
            f"{shared:,} of these {opening.n:,} units were calibrated on before, for {_describe(earlier)} "
            f"(ledger {file}): a new certificate needs units never calibrated on. Ask for every epsilon and "
            "delta in one look."
        )


def add_note(path: str | os.PathLike[str], kind: str, facts: Mapping[str, Any]) -> Note:
    """Write a note into the ledger at `path`, behind all that stands there; returns it with its time.

    A monitor that begins anew is charged to the budget, where there is one.
    """
    note = Note(kind, datetime.now(UTC).isoformat(timespec="seconds"), dict(facts))
    file = real_path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file):
        book = _read(file) if file.exists() else _Book()
        if alpha := _alpha(note):
            book.family.and_one_of(alpha)
        _write(file, replace(book, notes=(*book.notes, note)))
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
    return list(_read(path).openings)


def read_notes(path: str | os.PathLike[str]) -> list[Note]:
    """All notes of a ledger, the oldest first; a file that is not one is refused."""
    return list(_read(path).notes)


def _read(path: str | os.PathLike[str]) -> _Book:
    document = read_json(path)
    if document.get("format") != FORMAT or document.get("version") not in (1, 2, 3):
        raise BadCertificate(f"{path} is not a ledger of version 1, 2 or 3")
    try:
        notes = [_checked(Note(**note)) for note in document["notes"]] if document["version"] > 1 else []
        openings = [_opening(entry) for entry in document["openings"]]
        book = _Book(tuple(openings), tuple(notes), document["budget"] if document["version"] > 2 else None)
        if book.budget is not None:
            _ = book.family  # refused, if it costs more than that
        return book
    except (PACError, KeyError, TypeError, ValueError) as error:
        raise BadCertificate(f"{path} is a damaged ledger: {error!r}") from None


def _write(file: Path, book: _Book) -> None:
    """Version 1 where it says all, so that older programs read on; what they do not know they refuse."""
    plain = [{key: value for key, value in asdict(o).items() if value is not None} for o in book.openings]
    document: dict[str, Any] = {"format": FORMAT, "version": 1, "openings": plain}
    budgeted = book.budget is not None or any(opening.claim for opening in book.openings)
    if book.notes or budgeted:
        document |= {"version": 2, "notes": [asdict(note) for note in book.notes]}
    if budgeted:
        document |= {"version": 3, "budget": book.budget}
    write_json(file, document)


def _checked(note: Note) -> Note:
    if not (isinstance(note.kind, str) and isinstance(note.time, str) and isinstance(note.facts, dict)):
        raise ValueError("a note must have a kind, a time and facts")
    _alpha(note)
    return note


def _alpha(note: Note) -> float | None:
    """What a monitor that begins anew may fail with; None of any other note."""
    if note.kind != RESET or "alpha" not in note.facts:
        return None
    return share("alpha", note.facts["alpha"])


def _opening(document: dict[str, Any]) -> Opening:
    """One look, refused unless its parts fit together."""
    menu = tuple(Entry(**entry) for entry in document["menu"])
    opening = Opening(**{**document, "menu": menu})
    for entry in menu:
        max_errors(opening.n, entry.level)
    if opening.plan is not None and not isinstance(opening.plan, dict):
        raise ValueError("a plan must be an object")
    if bool(menu) is opening.claim or len(base64.b64decode(opening.units, validate=True)) != 8 * opening.n:
        raise ValueError("a look must have a menu and a hash of each unit")
    if opening.plan and opening.claim:
        share("delta", opening.plan["delta"])
    return opening


def _describe(opening: Opening) -> str:
    if opening.claim:
        return f"a limit of the {CLAIM}"
    menu = opening.menu
    levels = ", ".join(sorted({f"({entry.epsilon:g}, {entry.delta:g})" for entry in menu}))
    scores = len({entry.score for entry in menu})
    count = f"{len(menu)} certificate{'s' * (len(menu) > 1)} of {scores} score{'s' * (scores > 1)}"
    return f"{count} at (epsilon, delta) = {levels}"
