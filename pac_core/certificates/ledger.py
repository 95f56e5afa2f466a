"""What the calibrate split was asked for, written down before it is opened, and what that costs.

Each certificate may fail with probability delta; several from the same units may fail together more often.
The ledger holds the whole menu beforehand and states the probability that any of them fails. A ledger with a
budget (`open_ledger`) charges every look, descent and claim to it and refuses what it does not cover: with
probability at least 1 - budget, no statement ever issued from it is false. Without one, under retries, the
sum of the deltas is no confidence level.

A ledger is a folder of entries, `000001.json` and so on, on disk or in an object store. An entry is created
whole, by one process only, and never changed: it is sealed and holds the seal of the one before it. The
sorted hashes of a look's unit ids are in a file named by its SHA-256. Earlier versions kept a ledger in one
file: `pac-ledger.json` is what came before the entries of the folder `pac-ledger` beside it, the first of
which holds the file's SHA-256.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core.bounds import (
    Entry,
    Family,
    PACLevel,
    add_deltas,
    check_probability,
    joint_failure_probability,
    max_errors,
)
from pac_core.certificates.certificate import format_json, json_digest, parse_json, seal
from pac_core.errors import BadCertificate, InvalidInput, PACError, SecondLook
from pac_core.files import FileStore, real_path
from pac_core.sets.predictor import Score
from pac_core.splits import ids_digest, unit_names

FORMAT = "pac-sets ledger"
VERSION = 4
"""Of an entry; versions 1 to 3 are single files."""
CLAIM = "accepted risk"
"""The kind of the plans, and of the notes, of P(unsafe given accepted): see `claim_accepted_risk`."""
RESET = "monitor reset"
"""The kind of the notes of monitors that were begun anew, each with an alpha of its own."""
LedgerPath: TypeAlias = str | os.PathLike[str]
"""A path, or a URL of an object store."""
_ENTRY = re.compile(r"\d{6,}\.json")
_BLOCK = 1 << 20  # units that are looked through at a time


@dataclass(frozen=True)
class Opening:
    """One look: calibration units, and the menu they were opened for.

    calibrate, n: digest of the ids of the calibration units, and how many there are
    menu: every certificate asked for; empty if the plan holds its delta, as that of a claim does
    data: digest of what is said of the units: with other data, the same units and menu are another look
    plan: what else was laid down beforehand, such as the scales of a descent
    compared: with what the scores are compared, for the report only; it does not make another look
    hashes, units: `[n]` a 64-bit hash of each id, sorted (None where they are in the ledger's folder), and
        their SHA-256
    """

    calibrate: str
    n: int
    menu: tuple[Entry, ...]
    data: str
    units: str
    plan: Mapping[str, Any] | None = None
    compared: Sequence[str] | None = field(default=None, compare=False)
    hashes: NDArray[np.uint64] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, ids: Any, menu: Iterable[Entry], data: str, plan: Mapping[str, Any] | None = None) -> Opening:
        """The look at the units with these ids."""
        names = unit_names("ids", ids).tolist()
        digests = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
        hashes, units = _hashes(digests)
        ordered = sorted(menu, key=lambda entry: (entry.score, entry.epsilon, entry.delta))
        return cls(ids_digest(ids), len(names), tuple(ordered), data, units, plan, None, hashes)

    @property
    def cost(self) -> float:
        """The probability that any statement of this look fails is below this."""
        if self.plan and not self.menu:
            return float(self.plan["delta"])
        if self.plan and "groups" in self.plan:  # each level shares its delta among groups of fewer units
            return min(1.0, math.fsum(entry.delta for entry in self.menu))
        return joint_failure_probability(self.n, self.menu)

    @property
    def claim(self) -> bool:
        """Whether it is a claim: it reads nothing until it is stated, see `claim_accepted_risk`."""
        return self.plan is not None and self.plan.get("kind") == CLAIM


@dataclass(frozen=True)
class Note:
    """Something that happened after a look, or instead of one: its time in UTC, and facts as plain JSON."""

    kind: str
    time: str
    facts: Mapping[str, Any]


def score_digest(score: Score, of: str = "") -> str:
    """A fingerprint of a fitted score; `of` says of which forecasts, where the same units have several."""
    plain = json_digest({"kind": score.kind} | score.to_json())
    return hashlib.sha256(f"{plain} of {of}".encode()).hexdigest() if of else plain


def ledger_name(path: LedgerPath) -> str:
    """The one name of a ledger: the URL or real path of its folder; a link to a ledger is that ledger."""
    if "://" in (text := os.fspath(path).removeprefix("file://")):
        return text.rstrip("/").removesuffix(".json")
    name = str(real_path(text)).removesuffix(".json")
    if os.path.islink(f"{name}.json") and not os.path.lexists(name):
        name = str(real_path(f"{name}.json")).removesuffix(".json")
    return str(real_path(name))


def ledger_exists(path: LedgerPath) -> bool:
    """Whether anything was written into this ledger."""
    return _read(path).begun


@dataclass(frozen=True)
class _Book:
    """What a ledger, or a part of it, holds."""

    openings: tuple[Opening, ...] = ()
    notes: tuple[Note, ...] = ()
    budget: float | None = None

    def __add__(self, more: _Book) -> _Book:
        budget = self.budget if more.budget is None else more.budget
        return _Book(self.openings + more.openings, self.notes + more.notes, budget)

    @property
    def family(self) -> Family:
        costs = [opening.cost for opening in self.openings]
        costs += [alpha for note in self.notes if (alpha := _alpha(note))]
        return Family(len(costs), add_deltas(costs), self.budget)

    @property
    def looks(self) -> Iterator[Opening]:
        """Those whose units were read; the units of a claim are when it is stated."""
        stated = [note.facts.get("plan") for note in self.notes if note.kind == CLAIM]
        return (one for one in self.openings if not one.claim or one.data in stated)


@dataclass(frozen=True)
class _Ledger:
    """A ledger as it stood when it was read: number and seal are those of its last entry, 0 and "" if none;
    0 and its SHA-256 of a single file."""

    store: FileStore
    book: _Book
    number: int
    seal: str

    @property
    def begun(self) -> bool:
        return bool(self.seal)


def open_ledger(path: LedgerPath, *, budget: float) -> Family:
    """Begin a ledger with a budget at `path`, or go on with the one that has it; returns what it holds.

    budget: with probability at least 1 - budget no statement ever issued from this ledger is false. What it
        does not cover raises `OverBudget`. It cannot be changed, nor given to a ledger that has begun
        without one. `Family.share` is a delta that leaves something for any number of later attempts

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     open_ledger(f"{folder}/pac-ledger", budget=0.01).share
    0.005
    """
    check_probability("budget", budget)

    def begin(ledger: _Ledger) -> _Book | None:
        if not ledger.begun:
            return _Book(budget=float(budget))
        if (known := ledger.book.budget) != budget:
            raise InvalidInput(
                f"budget must be laid down before anything else and stay as it is, got {budget!r} for the "
                f"ledger {ledger.store}, which has {'none' if known is None else f'{known:g}'}: begin a new "
                "one, for statements to come"
            )
        return None

    _write(path, begin)
    return read_family(path)


def open_split(path: LedgerPath, opening: Opening) -> Opening:
    """Write the menu into the ledger at `path`, before the calibrate split is read.

    The same menu on the same units again is the same look. Any other look that shares a unit with
    an earlier one raises `SecondLook`. What the ledger's budget does not cover raises `OverBudget`.
    """

    def look(ledger: _Ledger) -> _Book | None:
        if opening in ledger.book.openings:
            return None
        _refuse_shared(opening, ledger)
        ledger.book.family.and_one_of(opening.cost)  # refused, if the budget does not cover it
        return _Book((opening,))

    _write(path, look)
    return opening


def refuse_spent(
    path: LedgerPath, ids: Any, levels: Iterable[PACLevel], plan: Mapping[str, Any] | None = None
) -> bool:
    """Refuse before long work what `open_split` would refuse after it: units that were looked at before, and
    levels that the budget does not cover even for one score. Returns whether it is the same look again; with
    a plan of groups that are not known yet, {"groups": None}, whether it may be."""
    ledger, wanted, mine = _read(path), set(levels), Opening.of(ids, (), "")
    for earlier in ledger.book.openings:
        asked = {entry.level for entry in earlier.menu}
        same = earlier.plan == plan or (plan == {"groups": None} and "groups" in (earlier.plan or {}))
        if same and (earlier.calibrate, asked) == (mine.calibrate, wanted):
            return True
    _refuse_shared(mine, ledger)
    if ledger.book.budget is not None:
        menu = [Entry("any", level.epsilon, level.delta) for level in wanted]
        ledger.book.family.and_one_of(joint_failure_probability(mine.n, menu))
    return False


def add_note(
    path: LedgerPath,
    kind: str,
    facts: Mapping[str, Any],
    unless: Callable[[Sequence[Note]], Any] = lambda notes: False,
) -> bool:
    """Add a note to the ledger at `path`; a monitor that begins anew is charged to a budget.

    unless: from the notes that are there by then, whoever wrote them, to whether it is not added

    Returns whether it was added.
    """
    note = Note(kind, datetime.now(UTC).isoformat(timespec="seconds"), dict(facts))

    def add(ledger: _Ledger) -> _Book | None:
        if unless(ledger.book.notes):
            return None
        if alpha := _alpha(note):
            ledger.book.family.and_one_of(alpha)
        return _Book(notes=(note,))

    return _write(path, add)


def read_ledger(path: LedgerPath) -> list[Opening]:
    """All openings of a ledger; what is not one is refused."""
    return list(_book(path).openings)


def read_notes(path: LedgerPath) -> list[Note]:
    """All notes of a ledger, the oldest first; what is not one is refused."""
    return list(_book(path).notes)


def read_family(path: LedgerPath) -> Family:
    """How much was asked of a ledger, whatever it was called, and what it may cost."""
    return _book(path).family


def _book(path: LedgerPath) -> _Book:
    ledger = _read(path)
    if not ledger.begun:
        raise BadCertificate(f"{path} cannot be read: there is no such ledger")
    return ledger.book


def _refuse_shared(opening: Opening, ledger: _Ledger) -> None:
    assert opening.hashes is not None, "a look to come has them"
    for earlier in ledger.book.looks:
        mine, both = opening.hashes, np.zeros(opening.n, dtype=bool)
        for block in _blocks(earlier, ledger.store):
            first, last = np.searchsorted(mine, block[0]), np.searchsorted(mine, block[-1], side="right")
            some = mine[first:last]
            both[first:last] |= block[np.searchsorted(block, some)] == some
        if shared := int(both.sum()):
            raise SecondLook(
                f"{shared:,} of these {opening.n:,} units were calibrated on before, for "
                f"{_describe(earlier)} (ledger {ledger.store}): a new certificate needs units never "
                "calibrated on. Ask for every epsilon and delta in one look."
            )


def _blocks(opening: Opening, store: FileStore) -> Iterator[NDArray[np.uint64]]:
    """The hashes of a look, block by block; refused at the end unless they are those of its entry."""
    if opening.hashes is not None:
        yield opening.hashes
        return
    name, digest = f"{opening.units}.units", hashlib.sha256()
    try:
        with store.open(name) as file:
            while content := file.read(8 * _BLOCK):
                digest.update(content)
                if len(content) % 8:  # somebody cut it
                    break
                yield np.frombuffer(content, dtype="<u8")
    except FileNotFoundError:
        raise BadCertificate(f"{store} lacks {name}, the units of a look: put it back") from None
    if digest.hexdigest() != opening.units:
        raise BadCertificate(f"{store}/{name} was changed after it was written: put the true one back")


def _write(path: LedgerPath, decide: Callable[[_Ledger], _Book | None]) -> bool:
    """Add an entry with what `decide` makes of the ledger; asked again where another process was faster."""
    ledger = _read(path)
    while (more := decide(ledger)) is not None:
        try:
            _add_entry(ledger, more)
            return True
        except FileExistsError:
            lost, ledger = ledger.number, _read(path)
            if ledger.number == lost:  # then it was no entry that was in the way
                raise
    return False


def _add_entry(ledger: _Ledger, more: _Book) -> None:
    """The next entry; `FileExistsError` if there is one by now. Its units are written before it."""
    for one in more.openings:
        ledger.store.put(f"{one.units}.units", one.hashes.astype("<u8").tobytes())  # type: ignore[union-attr]
    plain = [asdict(replace(one, hashes=None)) for one in more.openings]
    document = {
        "format": FORMAT,
        "version": VERSION,
        "number": ledger.number + 1,
        "before": ledger.seal,
        "budget": more.budget,
        "openings": [{key: value for key, value in one.items() if value is not None} for one in plain],
        "notes": [asdict(note) for note in more.notes],
    }
    name, content = f"{ledger.number + 1:06d}.json", format_json(document | {"seal": seal(document)})
    ledger.store.create(name, content)


def _read(path: LedgerPath) -> _Ledger:
    """All entries, in their order, after the single file of an earlier version."""
    store = FileStore(ledger_name(path))
    book, before = _read_single(store)
    last = max((int(name[:-5]) for name in store.names() if _ENTRY.fullmatch(name)), default=0)
    for number in count(1):
        name = f"{number:06d}.json"
        try:
            with store.open(name) as file:
                document = parse_json(file.read(), f"{store}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            if number <= last:
                raise BadCertificate(f"{store} lacks its entry {name}: put it back") from None
            break
        if document.get("format") != FORMAT or document.get("version") != VERSION:
            raise BadCertificate(f"{store}/{name} is not an entry of a ledger of version {VERSION}")
        if seal(document) != document.get("seal"):
            raise BadCertificate(f"{store}/{name} was changed after it was written: put the true one back")
        if (document.get("number"), document.get("before")) != (number, before):
            raise BadCertificate(f"{store}/{name} does not follow the entry before it: one was replaced")
        book, before = book + _parse(document, f"{store}/{name}"), document["seal"]
    try:
        _ = book.family if book.budget is not None else None  # refused, if it costs more than that
    except PACError as error:
        raise BadCertificate(f"{store} is a damaged ledger: {error}") from None
    return _Ledger(store, book, number - 1, before)


def _read_single(store: FileStore) -> tuple[_Book, str]:
    """What the single file of an earlier version holds, and its SHA-256; nothing, where there is none."""
    if os.path.isfile(str(store)):
        raise InvalidInput(f"a ledger must be a folder, or the .json of an earlier version, got {store}")
    file = Path(f"{store}.json")
    if not file.is_file():
        return _Book(), ""
    content = file.read_bytes()
    document = parse_json(content, file)
    if document.get("format") != FORMAT or document.get("version") not in (1, 2, 3):
        raise BadCertificate(f"{file} is not a ledger of version 1, 2 or 3")
    return _parse(document, str(file)), hashlib.sha256(content).hexdigest()


def _parse(document: Mapping[str, Any], where: str) -> _Book:
    """What an entry holds, or the single file of an earlier version."""
    version = document["version"]
    try:
        notes = [Note(**note) for note in document["notes"]] if version > 1 else []
        for note in notes:
            if not (isinstance(note.kind + note.time, str) and isinstance(note.facts, dict)):
                raise ValueError("a note must have a kind, a time and facts")
            _alpha(note)
        openings = [_opening(one, version) for one in document["openings"]]
        return _Book(tuple(openings), tuple(notes), document["budget"] if version > 2 else None)
    except (PACError, KeyError, TypeError, ValueError) as error:
        raise BadCertificate(f"{where} is a damaged ledger: {error!r}") from None


def _opening(document: dict[str, Any], version: int) -> Opening:
    """One look, refused unless its parts fit together."""
    menu, units, hashes = tuple(Entry(**entry) for entry in document["menu"]), document["units"], None
    if version < VERSION:
        hashes, units = _hashes(base64.b64decode(units, validate=True))
    opening = Opening(**{**document, "menu": menu, "units": units}, hashes=hashes)
    for entry in menu:
        max_errors(opening.n, entry.level)
    if opening.plan is not None and not isinstance(opening.plan, dict):
        raise ValueError("a plan must be an object")
    if (opening.claim if menu else opening.plan is None) or not re.fullmatch("[0-9a-f]{64}", units):
        raise ValueError("a look must have a menu, or a plan, and a digest of its units")
    if hashes is not None and len(hashes) != opening.n:
        raise ValueError("a look must have a hash of each unit")
    if opening.plan is not None and not menu:
        check_probability("delta", opening.plan["delta"])
    return opening


def _hashes(digests: bytes) -> tuple[NDArray[np.uint64], str]:
    """From the digests of ids, of 8 bytes each, to sorted numbers and their SHA-256."""
    numbers = np.sort(np.frombuffer(digests, dtype=">u8").astype("<u8"))
    return numbers, hashlib.sha256(numbers.tobytes()).hexdigest()


def _alpha(note: Note) -> float | None:
    """What a monitor that begins anew may fail with; None of any other note."""
    if note.kind != RESET or "alpha" not in note.facts:
        return None
    return check_probability("alpha", note.facts["alpha"])


def _describe(opening: Opening) -> str:
    if opening.claim:
        return f"a limit of the {CLAIM}"
    if not opening.menu and opening.plan:
        return f"a {opening.plan.get('kind', 'plan')} at delta = {opening.plan['delta']:g}"
    levels = ", ".join(sorted({f"({entry.epsilon:g}, {entry.delta:g})" for entry in opening.menu}))
    count, scores = len(opening.menu), len({entry.score for entry in opening.menu})
    many = f"{count} certificate{'s' * (count > 1)} of {scores} score{'s' * (scores > 1)}"
    return f"{many} at (epsilon, delta) = {levels}"
