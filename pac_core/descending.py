"""Running a descent, and its result as a document that anybody can check."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import plain
from pac_core.bounds import PACLevel, whole
from pac_core.certificates import Check
from pac_core.costs import Family
from pac_core.descents import NOTE, Descended, Descent, Trial, follow
from pac_core.documents import read_json, seal, write_json
from pac_core.errors import BadCertificate, InvalidInput, PACError, SecondLook
from pac_core.ledger import Opening, add_note, open_split, read_family, read_ledger, read_notes

FORMAT = "pac-sets descent"
VERSIONS = (1, 2)
"""Without and with `family`."""
RunEpisodes: TypeAlias = Callable[[float, NDArray[Any]], Any]
"""From a scale and the ids of its episodes `[n]` to whether each was an error, `[n]` booleans."""


def descend(plan: Descent, run: RunEpisodes, *, ledger: str | os.PathLike[str]) -> Descended:
    """What the plan's scales show, from the widest down to the first that fails.

    run: called with a scale and the ids of its episodes; returns `[n]` booleans in their order. A diverged or
        lost episode is an error. What comes out must depend on the ids alone, or be kept by `run`: a scale
        that was interrupted is run again.
    ledger: a folder; the plan goes into it before the first episode, and each scale's count as soon as it is
        known. The same plan again goes on where it stopped: what was counted is not run again. Any other
        plan that shares an episode with an earlier one raises `SecondLook`, and one whose delta the ledger's
        budget does not cover `OverBudget`. What is shown states all that the ledger holds.

    >>> import tempfile
    >>> plan = Descent(scales=(2.0, 1.0, 0.5), n=90, allowed=0, level=PACLevel(0.05, 0.01),
    ...                episodes=np.arange(270).reshape(3, 90), error="too fast", tested={"horizon": 6})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shown = descend(plan, lambda scale, ids: ids % 90 < (scale < 1), ledger=f"{folder}/ledger")
    >>> shown.certified, [trial.errors for trial in shown.trials]
    (1.0, [0, 0, 1])
    """
    if not isinstance(plan, Descent):
        raise InvalidInput(f"plan must be a Descent, got {type(plan).__name__}")
    try:
        look = open_split(ledger, plan.look)
    except SecondLook as error:
        raise SecondLook(
            f"{error} A descent is never extended: another attempt is another plan on fresh episodes."
        ) from None

    def count(scale: float, ids: NDArray[Any]) -> int:
        known = counted(ledger, look)
        if scale not in known:
            errors = _count(run(scale, ids.copy()), plan.n)
            add_note(ledger, NOTE, {"plan": look.data, "scale": scale, "errors": errors})
            known = counted(ledger, look)  # where two ran at once, the first count stands
        return known[scale]

    shown = follow(plan, count)
    return replace(shown, family=read_family(ledger))


def counted(ledger: str | os.PathLike[str], look: Opening) -> dict[float, int]:
    """The errors of each scale of this look that the ledger knows; the first count of a scale stands."""
    found: dict[float, int] = {}
    for note in read_notes(ledger):
        if note.kind == NOTE and note.facts.get("plan") == look.data:
            found.setdefault(float(note.facts["scale"]), whole("errors", note.facts["errors"], least=0))
    return found


def verify_descent(descended: Descended, ledger: str | os.PathLike[str]) -> list[Check]:
    """Whether the ledger holds this plan, written down as it is, these counts, and no unpaid attempt.

    That the certified scale follows from the counts is checked whenever a `Descended` is made. It says that
    the arithmetic is right and nothing was tried twice, not that the world obeys. Who tries again, on fresh
    episodes, until a descent passes, pays delta for each attempt, whatever it is called: a new name, other
    words and a retrained model do not make a controller a new one. Within a budget that is paid for; without
    one, several descents in a ledger do not stand.
    """
    look = descended.plan.look
    known = counted(ledger, look)
    shown = {trial.scale: trial.errors for trial in descended.trials}
    openings = read_ledger(ledger)
    same, planned = known == shown, look in openings
    family = read_family(ledger)
    alone = sum(one.plan is not None and one.plan.get("kind") == NOTE for one in openings) <= 1
    text = "as the ledger counted them" if same else f"the ledger counted {known}, this says {shown}"
    return [
        Check("plan", planned, "written down beforehand" if planned else "not in this ledger"),
        Check("errors", same, text),
        Check("attempts", alone or family.budget is not None, str(family)),
    ]


def write_descent(descended: Descended, path: str | os.PathLike[str]) -> None:
    """Write plan, counts and promise as JSON, whole or not at all."""
    if not isinstance(descended, Descended):
        raise InvalidInput(f"descended must be a Descended, got {type(descended).__name__}")
    write_json(path, to_json(descended))


def read_descent(path: str | os.PathLike[str]) -> Descended:
    """The result in a file, computed again from its counts and refused with the reason unless it follows."""
    try:
        return from_json(read_json(path))
    except BadCertificate as error:
        raise BadCertificate(f"{path}: {error}") from None


def to_json(descended: Descended) -> dict[str, Any]:
    """The result as a sealed document of plain JSON."""
    plan = descended.plan
    told = {} if descended.family is None else {"family": asdict(descended.family)}
    document = {
        "format": FORMAT,
        "version": 1 + len(told),
        "promise": descended.sentence,
        "certified": descended.certified,
        "scales": list(plan.scales),
        "n": plan.n,
        "allowed": plan.allowed,
        "level": asdict(plan.level),
        "episodes": plan.episodes.tolist(),
        "error": plan.error,
        "tested": plan.tested,
        "trials": [asdict(trial) for trial in descended.trials],
    } | told
    return document | {"seal": seal(document)}


def from_json(document: Mapping[str, Any]) -> Descended:
    """The result in a document, refused unless sealed, understood, and what its counts say."""
    if document.get("format") != FORMAT or document.get("version") not in VERSIONS:
        raise BadCertificate(f"this is not a {FORMAT} of version {' or '.join(map(str, VERSIONS))}")
    if seal(document) != document.get("seal"):
        raise BadCertificate("it was changed after it was written: its seal does not fit its content")
    try:
        parts = {name: document[name] for name in ("scales", "n", "allowed", "error", "tested")}
        plan = Descent(
            level=PACLevel(**document["level"]), episodes=np.asarray(document["episodes"]), **parts
        )
        family = Family(**document["family"]) if "family" in document else None
        descended = Descended(plan, tuple(Trial(**trial) for trial in document["trials"]), family)
    except (PACError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadCertificate(f"it is damaged: {error}") from None
    if to_json(descended) != document:
        raise BadCertificate("its words or its scale are not those of its numbers")
    return descended


def _count(errors: Any, n: int) -> int:
    shown = plain("errors", errors, "[n]")
    if shown.dtype != np.bool_ or len(shown) != n:
        raise InvalidInput(
            f"errors must be {n:,} booleans, one for each episode, got {len(shown):,} of {shown.dtype}: "
            "a diverged or lost episode is an error (True), and none is left out"
        )
    return int(shown.sum())
