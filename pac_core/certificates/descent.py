"""A descending list of tube scales, tested in an order that was written down before the first episode.

A planner picks its favourite of many plans, so what it does is not drawn like the plans a tube was
calibrated on. What it does to a whole episode can be tested: each scale runs its own fresh episodes of the
controller, from the widest tubes down, until one has more errors than allowed. The last that passed is
certified. To certify a bad scale, the first bad one of the list must pass, and it does so with a probability
below delta: so all the scales together cost one delta.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import check_array, check_numbers, round_up
from pac_core.bounds import Entry, Family, PACLevel, check_integer, check_level, min_samples, proves
from pac_core.certificates.certificate import (
    Check,
    check_words,
    json_digest,
    parse_json,
    read_json,
    seal,
    write_json,
)
from pac_core.certificates.ledger import (
    Opening,
    add_note,
    open_split,
    read_family,
    read_ledger,
    read_notes,
)
from pac_core.errors import BadCertificate, InvalidInput, NotEnoughData, PACError, SecondLook
from pac_core.splits import ids_digest, unit_names

NOTE = "descent"
"""The kind of the ledger's notes that hold what a scale showed."""


def episodes_needed(level: PACLevel, allowed: int) -> int:
    """The fewest episodes per scale with which `allowed` errors still prove the level.

    >>> [episodes_needed(PACLevel(epsilon=0.05, delta=0.01), allowed) for allowed in range(7)]
    [90, 130, 165, 198, 229, 259, 288]
    """
    return min_samples(check_level(level), allowed)


@dataclass(frozen=True, eq=False, kw_only=True)
class Descent:
    """What is laid down before the first episode.

    scales: of the tubes, from the widest down; they may be chosen on other episodes, never on these
    n, allowed: episodes of each scale, and errors among them with which it still passes
    level: what is to be proved; n and allowed must be able to
    episodes: `[S, n]` the id (the seed) of each episode; none stands twice
    error: in words, what counts as an error of an episode, such as "a limit is violated"
    tested: the controller, in plain JSON: all that would make it another one
    """

    scales: tuple[float, ...]
    n: int
    allowed: int
    level: PACLevel
    episodes: NDArray[Any]
    error: str
    tested: Mapping[str, Any]

    def __post_init__(self) -> None:
        scales = check_numbers("scales", self.scales, "[S]", finite=True).astype(np.float64)
        if scales.min() <= 0 or (np.diff(scales) >= 0).any():
            raise InvalidInput(f"scales must descend and be above 0, got {scales.tolist()}")
        n, allowed = check_integer("n", self.n, least=1), check_integer("allowed", self.allowed, least=0)
        if not proves(n, allowed, check_level(self.level)):
            raise NotEnoughData(n, episodes_needed(self.level, allowed), self.level, allowed)
        episodes = check_array("episodes", self.episodes, "[S, n]")
        if episodes.shape != (len(scales), n):
            raise InvalidInput(
                f"episodes must have shape [{len(scales)}, {n}], a row of ids for each scale, "
                f"got {episodes.shape}"
            )
        names = unit_names("episodes", episodes.ravel())
        if len(np.unique(names)) != len(names):
            raise InvalidInput(
                "episodes must differ: every scale runs episodes of its own, got "
                f"{len(names) - len(np.unique(names)):,} repeats"
            )
        check_words("error", self.error)
        if not isinstance(self.tested, Mapping) or not self.tested:
            raise InvalidInput(
                f"tested must be a mapping that says what the controller is, got {self.tested!r}"
            )
        try:
            tested = json.loads(json.dumps(dict(self.tested), allow_nan=False))  # which nobody changes later
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"tested must be plain JSON without NaN: {error}") from None
        fixed = episodes.copy()
        fixed.flags.writeable = False
        checked = {"scales": tuple(scales.tolist()), "n": n, "allowed": allowed}
        for name, value in (checked | {"episodes": fixed, "tested": tested}).items():
            object.__setattr__(self, name, value)

    @property
    def controller(self) -> str:
        """A fingerprint of what is tested."""
        return json_digest(self.tested)

    @property
    def look(self) -> Opening:
        """What goes into the ledger."""
        plan = {
            "kind": NOTE,
            "scales": list(self.scales),
            "n": self.n,
            "allowed": self.allowed,
            "error": self.error,
            "tested": self.controller,
            "episodes": [ids_digest(row) for row in self.episodes],
        }
        menu = [Entry(self.controller, self.level.epsilon, self.level.delta)]
        return Opening.of(self.episodes.ravel(), menu, json_digest(plan), plan)


@dataclass(frozen=True)
class Trial:
    """One scale that was run."""

    scale: float
    n: int
    errors: int
    passed: bool


@dataclass(frozen=True, eq=False, repr=False)
class Descended:
    """What a descent showed.

    errors: of each scale that was run, in order; refused unless they end where the plan ends
    family: all that its ledger held when it was shown; None where no ledger was kept

    The promise is about a fresh episode, drawn like the tested ones, of exactly the tested controller at
    the certified scale, not about episodes chosen afterwards or a single decision.
    """

    plan: Descent
    errors: tuple[int, ...]
    family: Family | None = None

    def __post_init__(self) -> None:
        plan, trials = self.plan, self.trials
        counted = all(check_integer("errors", errors, least=0) <= plan.n for errors in self.errors)
        ended = bool(trials) and (not trials[-1].passed or len(self.errors) == len(plan.scales))
        if not (counted and ended and all(trial.passed for trial in trials[:-1])):
            raise InvalidInput(
                f"errors must be those of the plan's scales, down to the first that fails, got {self.errors} "
                f"for scales {list(plan.scales)} with {plan.allowed:,} of {plan.n:,} errors allowed"
            )

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The scales that were run, in order."""
        plan = self.plan
        pairs = zip(plan.scales, self.errors, strict=False)
        return tuple(Trial(scale, plan.n, errors, errors <= plan.allowed) for scale, errors in pairs)

    @property
    def certified(self) -> float | None:
        """The last scale that passed; None if the first one failed."""
        passed = [trial.scale for trial in self.trials if trial.passed]
        return passed[-1] if passed else None

    @property
    def sentence(self) -> str:
        """The sentence for the logbook."""
        plan, level = self.plan, self.plan.level
        seen = ", ".join(
            f"{trial.errors:,} at scale {trial.scale:g}" + " (failed)" * (not trial.passed)
            for trial in self.trials
        )
        evidence = (
            f"Errors among {plan.n:,} fresh episodes of each scale, {plan.allowed:,} allowed: {seen}. "
            f"An error: {plan.error}. Controller {plan.controller[:12]}."
            + (f" {self.family}" if self.family else "")
        )
        if self.certified is None:
            return (
                f"Nothing is certified: the first scale failed. {evidence} These episodes are spent; another "
                "attempt needs fresh ones."
            )
        return (
            f"Certified at scale {self.certified:g}: P(error in a fresh episode of exactly this controller "
            f"at this scale) <= {round_up(level.epsilon)} with confidence 1 - {round_up(level.delta)}, for "
            f"episodes drawn like the tested ones, and nothing more. {evidence}"
        )

    def __str__(self) -> str:
        return self.sentence

    __repr__ = __str__


def follow(plan: Descent, count: Callable[[float, NDArray[Any]], int]) -> Descended:
    """What the plan's scales show, from the errors that `count(scale, ids)` finds; it keeps no ledger."""
    errors: list[int] = []
    for scale, ids in zip(plan.scales, plan.episodes, strict=True):
        errors.append(count(scale, ids))
        if errors[-1] > plan.allowed:
            break
    return Descended(plan, tuple(errors))


FORMAT = "pac-sets descent"
VERSIONS = (1, 2)
"""Without and with `family`."""
RunEpisodes: TypeAlias = Callable[[float, NDArray[Any]], Any]
"""From a scale and the ids of its episodes `[n]` to whether each was an error, `[n]` booleans."""


def descend(plan: Descent, run: RunEpisodes, *, ledger: str | os.PathLike[str]) -> Descended:
    """What the plan's scales show, from the widest down to the first that fails.

    run: called with a scale and the ids of its episodes; returns `[n]` booleans in their order. A diverged or
        lost episode is an error. What comes out must depend on the ids alone: a scale that was interrupted
        is run again
    ledger: a folder; the plan goes into it before the first episode, and each scale's count as soon as it is
        known. The same plan again goes on where it stopped. Another plan that shares an episode with an
        earlier one raises `SecondLook`, and one that the ledger's budget does not cover `OverBudget`

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
            errors = check_integer("errors", note.facts["errors"], least=0)
            found.setdefault(float(note.facts["scale"]), errors)
    return found


def verify_descent(descended: Descended, ledger: str | os.PathLike[str]) -> list[Check]:
    """Whether the ledger holds this plan, written down as it is, these counts, and no unpaid attempt.

    Who tries again, on fresh episodes, until a descent passes, pays delta for each attempt, whatever it is
    called. Within a budget that is paid for; without one, several descents in a ledger do not stand.
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


def read_descent(path: str | os.PathLike[str], content: bytes | None = None) -> Descended:
    """The result in a file, computed again from its counts and refused with the reason unless it follows.

    content: of the file, where it was read already
    """
    try:
        return from_json(read_json(path) if content is None else parse_json(content, path))
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
        descended = Descended(plan, tuple(trial["errors"] for trial in document["trials"]), family)
    except (PACError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadCertificate(f"it is damaged: {error}") from None
    if to_json(descended) != document:
        raise BadCertificate("its words or its scale are not those of its numbers")
    return descended


def _count(errors: Any, n: int) -> int:
    shown = check_array("errors", errors, "[n]")
    if shown.dtype != np.bool_ or len(shown) != n:
        raise InvalidInput(
            f"errors must be {n:,} booleans, one for each episode, got {len(shown):,} of {shown.dtype}: "
            "a diverged or lost episode is an error (True), and none is left out"
        )
    return int(shown.sum())
