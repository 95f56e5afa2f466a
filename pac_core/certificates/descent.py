"""Fixed-sequence testing (learn-then-test): settings from safe to bold, in an order written down beforehand.

A planner picks its favourite of many plans, so what it does is not drawn like the plans a tube was
calibrated on. What it does to a whole episode can be tested: each scale of the tubes runs fresh episodes of
the controller, from the widest tubes down, until one does not pass. The last that passed is certified. To
certify a bad scale, the first bad one of the list must pass, and it does so with a probability of at most
delta: so all the scales together cost one delta. The same holds for any settings and any loss in [0, 1].

A scale passes by its number of errors among n episodes, or by betting (`pac_core.betting`): then it is done
as soon as the losses, in the order of the ids, have shown it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import check_array, check_list, check_numbers, round_up
from pac_core.betting import AT_END, Bets, check_losses, refutes_at
from pac_core.bounds import Entry, Family, PACLevel, check_integer, check_level, min_samples, proves
from pac_core.certificates.certificate import (
    Check,
    check_unit,
    check_words,
    json_digest,
    parse_json,
    read_json,
    seal,
    write_json,
)
from pac_core.certificates.ledger import (
    Note,
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
BEGUN = "descent begun"
"""The kind of those that say, before a call, which of a scale's episodes it runs."""


def episodes_needed(level: PACLevel, allowed: int) -> int:
    """The fewest episodes per scale with which `allowed` errors still prove the level.

    >>> [episodes_needed(PACLevel(epsilon=0.05, delta=0.01), allowed) for allowed in range(7)]
    [90, 130, 165, 198, 229, 259, 288]
    """
    return min_samples(check_level(level), allowed)


Scale: TypeAlias = float | str
"""A number, such as a factor of all tubes, or the name of a setting."""
Outcome: TypeAlias = int | tuple[float, ...]
"""What a scale showed: the number of errors of a plan that allows some, otherwise each loss in order."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Descent:
    """What is laid down before the first episode.

    scales: from the safest to the boldest, as numbers that descend (factors of the tubes, thresholds) or as
        names; they may be chosen on other episodes, never on these
    n: episodes of each scale; the largest number where it may stop early
    level: what is to be proved; n and allowed must be able to
    episodes: `[S, n]` the id (the seed) of each episode, none twice; or `[n]`, the same ones for all scales
    error: in words, what counts as an error of an episode, such as "a limit is violated", or its loss
    tested: the controller, in plain JSON: all that would make it another one
    allowed: errors among n with which a scale passes; None: it passes by betting
    bets: of a scale that passes by betting, see `Bets.at`, the default
    early: whether betting stops as soon as the episodes show it, in the order of their ids; if not, all n are
        looked at once, with the Hoeffding-Bentkus bound beside the bets
    loss: whether an outcome is a loss in [0, 1], whose expectation is bounded by epsilon, instead of an error
    unit: what an episode is called, such as "image"
    """

    scales: tuple[Scale, ...]
    n: int
    level: PACLevel
    episodes: NDArray[Any]
    error: str
    tested: Mapping[str, Any]
    allowed: int | None = None
    bets: Bets | None = None
    early: bool = True
    loss: bool = False
    unit: str = "episode"

    def __post_init__(self) -> None:
        level, n = check_level(self.level), check_integer("n", self.n, least=1)
        checked: dict[str, Any] = {"scales": _check_scales(self.scales), "n": n}
        checked["episodes"] = self._check_episodes(len(checked["scales"]))
        if self.allowed is not None:
            allowed = checked["allowed"] = check_integer("allowed", self.allowed, least=0)
            if self.loss or self.bets is not None or not self.early:
                raise InvalidInput("allowed counts errors: give None with loss, bets or early=False")
            if not proves(n, allowed, level):
                raise NotEnoughData(n, episodes_needed(level, allowed), level, allowed)
        else:
            bets = checked["bets"] = self.bets or Bets.at(level.epsilon)
            if bets.alpha != level.epsilon:
                raise InvalidInput(f"bets must be against epsilon={level.epsilon:g}, got {bets.alpha:g}")
            if not self.early and not self.loss:
                raise InvalidInput("early=False is for losses; a fixed number of errors is `allowed`")
            once = PACLevel(level.epsilon, AT_END * level.delta)
            fewest = bets.fewest_more((), level.delta) if self.early else min_samples(once)
            if n < fewest:
                raise NotEnoughData(n, fewest, level)
        check_words("error", self.error)
        check_unit(self.unit)
        if not isinstance(self.tested, Mapping) or not self.tested:
            raise InvalidInput(
                f"tested must be a mapping that says what the controller is, got {self.tested!r}"
            )
        try:
            checked["tested"] = json.loads(json.dumps(dict(self.tested), allow_nan=False))  # a copy
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"tested must be plain JSON without NaN: {error}") from None
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def _check_episodes(self, scales: int) -> NDArray[Any]:
        shared = np.ndim(self.episodes) == 1
        episodes = check_array("episodes", self.episodes, "[n]" if shared else "[S, n]").copy()
        if episodes.shape != ((self.n,) if shared else (scales, self.n)):
            raise InvalidInput(
                f"episodes must have shape [{scales}, {self.n}], a row of ids for each scale, or "
                f"[{self.n}], the same for all, got {episodes.shape}"
            )
        names = unit_names("episodes", episodes.ravel())
        if repeats := len(names) - len(np.unique(names)):
            raise InvalidInput(
                f"episodes must differ: every scale runs episodes of its own, got {repeats:,} repeats"
            )
        episodes.flags.writeable = False
        return episodes

    @property
    def rows(self) -> NDArray[Any]:
        """`[S, n]` the ids of the episodes of each scale."""
        return np.broadcast_to(self.episodes, (len(self.scales), self.n))

    @property
    def controller(self) -> str:
        """A fingerprint of what is tested."""
        return json_digest(self.tested)

    @cached_property
    def look(self) -> Opening:
        """What goes into the ledger."""
        rows = np.atleast_2d(self.episodes)
        plan = {
            "kind": NOTE,
            "scales": list(self.scales),
            "n": self.n,
            "allowed": self.allowed,
            "error": self.error,
            "tested": self.controller,
            "episodes": [ids_digest(row) for row in rows],
        }
        menu = [Entry(self.controller, self.level.epsilon, self.level.delta)]
        if self.bets is not None:  # the order of the ids counts, and all of delta is spent
            ordered = [json_digest({"ids": unit_names("episodes", row).tolist()}) for row in rows]
            plan |= {"order": ordered, "early": self.early, "loss": self.loss, "unit": self.unit}
            plan |= {"bets": self.bets.to_json(), "delta": self.level.delta}
            menu = []
        return Opening.of(self.episodes.ravel(), menu, json_digest(plan), plan)

    def judge(self, outcome: Outcome) -> bool | None:
        """Whether a scale with this outcome passes; None if that is still open."""
        if isinstance(outcome, int):
            return outcome <= (self.allowed or 0)
        if self.early and self.stop(outcome) is not None:
            return True
        if not self.early and len(outcome) == self.n:
            return refutes_at(outcome, self.level, self.bets)
        return None if self.more(outcome) else False

    def stop(self, losses: Sequence[float]) -> int | None:
        """After how many of these losses a scale passes early; None if it does not."""
        bets = self.bets or Bets.at(self.level.epsilon)
        return bets.first_proof(losses, self.level.delta) if len(losses) else None

    def more(self, outcome: Outcome | None, block: int = 1) -> int:
        """How many episodes a scale with this outcome needs next: none if it is decided, otherwise the fewest
        that can decide it, and at least `block` if there are so many left."""
        if isinstance(outcome, int):
            return 0
        losses = outcome or ()
        left = self.n - len(losses)
        if self.bets is None or not self.early:
            return left
        fewest = self.bets.fewest_more(losses, self.level.delta)
        return min(max(fewest, block), left) if 0 < fewest <= left else 0


def _check_scales(scales: Any) -> tuple[Scale, ...]:
    given = check_list("scales", scales)
    if given and all(isinstance(scale, str) for scale in given):
        for scale in given:
            check_words("scales", scale, "names in one line each")
        if len(set(given)) != len(given):
            raise InvalidInput(f"scales must differ, got {given}")
        return tuple(given)
    numbers = check_numbers("scales", given, "[S]", finite=True).astype(np.float64)
    if numbers.min() <= 0 or (np.diff(numbers) >= 0).any():
        raise InvalidInput(f"scales must descend and be above 0, got {numbers.tolist()}")
    return tuple(numbers.tolist())


def _say(scale: Scale) -> str:
    return f"setting {scale}" if isinstance(scale, str) else f"scale {scale:g}"


@dataclass(frozen=True)
class Trial:
    """One scale that was run: how many episodes counted, with how many errors or how much loss in all, and
    whether it passed; None if that is still open."""

    scale: Scale
    n: int
    errors: float
    passed: bool | None


@dataclass(frozen=True, eq=False, repr=False)
class Descended:
    """What a descent showed.

    errors: the outcome of each scale that was run, in order; refused unless they end where the plan ends,
        or, where betting may stop early, are still open
    family: all that its ledger held when it was shown; None where no ledger was kept
    lost: how many of the episodes were begun and have no outcome: errors, or losses of 1

    The promise is about a fresh episode, drawn like the tested ones, of exactly the tested controller at
    the certified scale, not about episodes chosen afterwards or a single decision.
    """

    plan: Descent
    errors: tuple[Outcome, ...]
    family: Family | None = None
    lost: int = 0

    def __post_init__(self) -> None:
        plan, trials = self.plan, self.trials
        fitting = all(self._fits(outcome) for outcome in self.errors)
        ended = bool(trials) and (trials[-1].passed is not True or len(self.errors) == len(plan.scales))
        closed = bool(trials) and (trials[-1].passed is not None or plan.early)
        if not (fitting and ended and closed and all(trial.passed for trial in trials[:-1])):
            rule = "betting" if plan.allowed is None else f"{plan.allowed:,} of {plan.n:,} errors allowed"
            raise InvalidInput(
                f"errors must be those of the plan's scales, down to the first that fails, got {self.errors} "
                f"for scales {list(plan.scales)} with {rule}"
            )

    def _fits(self, outcome: Outcome) -> bool:
        """Whether it is an outcome of this plan, with nothing behind the episode that decided it."""
        if self.plan.allowed is not None:
            return check_integer("errors", outcome, least=0) <= self.plan.n
        losses = check_losses("errors", outcome) if outcome != () else np.empty(0)
        bounded = len(losses) <= self.plan.n and (self.plan.loss or bool(np.isin(losses, (0, 1)).all()))
        return bounded and (not self.plan.early or self.plan.stop(outcome) in (None, len(losses)))  # type: ignore[arg-type]

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The scales that were run, in order."""
        plan = self.plan
        return tuple(
            Trial(scale, plan.n, outcome, plan.judge(outcome))
            if isinstance(outcome, int)
            else Trial(scale, len(outcome), _total(outcome), plan.judge(outcome))
            for scale, outcome in zip(plan.scales, self.errors, strict=False)
        )

    @property
    def open(self) -> bool:
        """Whether more episodes may still show more."""
        return self.trials[-1].passed is None

    @property
    def certified(self) -> Scale | None:
        """The last scale that passed; None if none did."""
        passed = [trial.scale for trial in self.trials if trial.passed]
        return passed[-1] if passed else None

    @property
    def sentence(self) -> str:
        """The sentence for the logbook."""
        plan, level = self.plan, self.plan.level
        evidence = self._evidence + f" Controller {plan.controller[:12]}."
        evidence += f" {self.lost:,} were begun and lost, which is an error." if self.lost else ""
        evidence += f" {self.family}" if self.family else ""
        if self.certified is None:
            why = (
                f"not enough {plan.unit}s yet. More may come, in the order laid down."
                if self.open
                else "the first scale failed."
            )
            again = "" if self.open else f" These {plan.unit}s are spent; another attempt needs fresh ones."
            return f"Nothing is certified: {why} {evidence}{again}"
        bounded = f"E[loss of a fresh {plan.unit}" if plan.loss else f"P(error in a fresh {plan.unit}"
        exactly = "this controller" if plan.unit == "episode" else "what was tested"
        ends = "])"[not plan.loss]
        number = isinstance(self.certified, float)
        at = f" at {_say(self.certified)}" if number or len(plan.scales) > 1 else ""
        this = f" at this {'scale' if number else 'setting'}" if at else ""
        return (
            f"Certified{at}: {bounded} of exactly {exactly}{this}{ends} <= {round_up(level.epsilon)} "
            f"with confidence 1 - {round_up(level.delta)}, for {plan.unit}s drawn like the tested ones, "
            f"and nothing more. {evidence}"
        )

    @property
    def _evidence(self) -> str:
        plan, words = self.plan, {True: "", False: " (failed)", None: " (open)"}
        if plan.allowed is not None:
            seen = ", ".join(f"{one.errors:,} at {_say(one.scale)}{words[one.passed]}" for one in self.trials)
            start = f"Errors among {plan.n:,} fresh episodes of each scale, {plan.allowed:,} allowed: {seen}."
            return f"{start} An error: {plan.error}."
        several = len(plan.scales) > 1 or isinstance(plan.scales[0], float)
        seen = ", ".join(
            f"{one.errors:.6g} in {one.n:,}" + f" at {_say(one.scale)}" * several + words[one.passed]
            for one in self.trials
        )
        rule = "in the order of the ids, until betting showed it" if plan.early else "all looked at once"
        count = f"at most {plan.n:,}" if plan.early else f"{plan.n:,}"
        return f"{'Loss' if plan.loss else 'Errors'} ({rule}; {count}): {seen}. Counted: {plan.error}."

    def __str__(self) -> str:
        return self.sentence

    __repr__ = __str__


def _total(losses: Sequence[float]) -> float:
    return float(sum(losses)) if any(loss % 1 for loss in losses) else int(sum(losses))


def follow(plan: Descent, count: Callable[[Scale, NDArray[Any]], Outcome]) -> Descended:
    """What the plan's scales show, from the outcome that `count(scale, ids)` finds; it keeps no ledger."""
    outcomes: list[Outcome] = []
    for scale, ids in zip(plan.scales, plan.rows, strict=True):
        outcomes.append(count(scale, ids))
        if not plan.judge(outcomes[-1]):
            break
    return Descended(plan, tuple(outcomes))


FORMAT = "pac-sets descent"
VERSIONS = (1, 2, 3)
"""Without and with `family`; with bets."""
RunEpisodes: TypeAlias = Callable[[Any, NDArray[Any]], Any]
"""From a scale and the ids of some of its episodes `[m]` to whether each was an error, or its loss, `[m]`."""


def descend(
    plan: Descent,
    run: RunEpisodes,
    *,
    ledger: str | os.PathLike[str],
    block: int = 32,
    available: int | None = None,
    repeatable: bool | None = None,
) -> Descended:
    """What the plan's scales show, from the safest down to the first that does not pass.

    run: called with a scale and the ids of its episodes; returns `[m]` booleans in their order, or losses. A
        diverged or lost episode is an error, a loss of 1. Where betting may stop early it is called with the
        next ids, as many as can decide it at the earliest
    ledger: a folder; the plan goes into it before the first episode, which episodes a call is for before it
        is made, and what it showed as soon as that is known. The same plan again goes on where it stopped.
        Another plan that shares an episode with an earlier one raises `SecondLook`, and one that the ledger's
        budget does not cover `OverBudget`
    block: the fewest episodes of a call, where so many are left
    available: how many episodes of a scale there are so far, where they come in one by one
    repeatable: whether an outcome is a function of scale and id alone, as that of a simulation with its seeds
        is; by default if `run.repeatable` says so, as that of `episodes_through` does. A call that was cut
        off is then made again. Otherwise its episodes have begun and are lost: all of them are errors

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
    again = getattr(run, "repeatable", False) if repeatable is None else repeatable

    def count(scale: Scale, ids: NDArray[Any]) -> Outcome:
        known = counted(ledger, plan).get(scale)
        while more := plan.more(known, block):
            first = 0 if known is None else len(known)  # type: ignore[arg-type]
            more = more if available is None else min(more, available - first)
            if more <= 0:
                break
            facts: dict[str, Any] = {"plan": look.data, "scale": scale}
            begun, lost = facts | {"first": first, "n": more}, partial(_lost, facts, first)
            if again or add_note(ledger, BEGUN, begun, unless=lost):
                found, more = _run(run, scale, ids[first : first + more], plan.loss, again), 0
            else:
                more = lost(read_notes(ledger))
                found = np.ones(more)
            if plan.allowed is not None:
                facts["errors"] = int(found.sum())
            else:
                facts |= {"first": first} | _sparse(found.tolist())
            facts |= {"repeatable": True} if again else {"lost": more} if more else {}
            add_note(ledger, NOTE, facts)
            known = counted(ledger, plan)[scale]  # where two ran at once, what was first stands
        return () if known is None else known

    shown = follow(plan, count)
    mine = (one.facts for one in read_notes(ledger) if one.kind == NOTE and one.facts["plan"] == look.data)
    lost = {(facts["scale"], facts.get("first")): facts["lost"] for facts in mine if "lost" in facts}
    return replace(shown, family=read_family(ledger), lost=sum(lost.values()))


def _lost(where: Mapping[str, Any], first: int, notes: Sequence[Note]) -> int:
    """How many episodes of a scale from `first` on were begun, by whatever process, and have no outcome."""
    begun = (note.facts for note in notes if note.kind == BEGUN and note.facts.items() >= where.items())
    return max((facts["first"] + facts["n"] for facts in begun), default=first) - first


def _run(run: RunEpisodes, scale: Scale, ids: NDArray[Any], loss: bool, again: bool) -> NDArray[Any]:
    try:
        return _check_outcomes(run(scale, ids.copy()), len(ids), loss)
    except BaseException as error:
        if not again:
            error.add_note(f"{len(ids):,} episodes have begun: unless repeatable=True, they are errors now.")
        raise


def counted(ledger: str | os.PathLike[str], plan: Descent) -> dict[Scale, Outcome]:
    """The outcome of each scale of this plan that the ledger knows; what was counted first stands."""
    found: dict[Scale, Outcome] = {}
    for note in read_notes(ledger):
        facts = note.facts
        if note.kind != NOTE or facts.get("plan") != plan.look.data:
            continue
        scale = facts["scale"]
        if plan.allowed is not None:
            found.setdefault(scale, check_integer("errors", facts["errors"], least=0))
        elif facts["first"] == len(before := found.get(scale, ())):  # type: ignore[arg-type]
            found[scale] = (*before, *_dense(facts))  # type: ignore[misc]
    if not plan.early or plan.allowed is not None:
        return found
    return {scale: losses[: plan.stop(losses)] for scale, losses in found.items()}  # type: ignore[index,arg-type]


def _sparse(losses: Sequence[float]) -> dict[str, Any]:
    """Losses for a document: how many, and each that is not 0 behind its place, as in "75:1.0 80:0.25"."""
    some = (f"{place}:{float(loss)!r}" for place, loss in enumerate(losses) if loss)
    return {"n": len(losses), "losses": " ".join(some)}


def _dense(facts: Mapping[str, Any]) -> tuple[float, ...]:
    losses = [0.0] * check_integer("n", facts["n"], least=0)
    for pair in facts["losses"].split():
        place, _, loss = pair.partition(":")
        losses[int(place)] = float(loss)
    return tuple(losses)


def verify_descent(descended: Descended, ledger: str | os.PathLike[str]) -> list[Check]:
    """Whether the ledger holds this plan, written down as it is, these counts, and no unpaid attempt.

    Who tries again, on fresh episodes, until a descent passes, pays delta for each attempt, whatever it is
    called. Within a budget that is paid for; without one, several descents in a ledger do not stand.
    """
    plan = descended.plan
    look, known = plan.look, counted(ledger, plan)
    shown = dict(zip(plan.scales, descended.errors, strict=False))
    if descended.open:  # what came after it was written changes nothing of what it says
        known = {scale: known.get(scale, ())[: len(shown[scale])] for scale in shown}  # type: ignore[index,arg-type]
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
    told: dict[str, Any] = {} if descended.family is None else {"family": asdict(descended.family)}
    version, trials = 1 + len(told), [asdict(trial) for trial in descended.trials]
    if plan.bets is not None:
        told |= {"bets": plan.bets.to_json(), "early": plan.early, "loss": plan.loss, "unit": plan.unit}
        version, pairs = 3, zip(plan.scales, descended.errors, strict=False)
        trials = [{"scale": scale} | _sparse(losses) for scale, losses in pairs]  # type: ignore[arg-type]
    document = {
        "format": FORMAT,
        "version": version,
        "promise": descended.sentence,
        "certified": descended.certified,
        "scales": list(plan.scales),
        "n": plan.n,
        "allowed": plan.allowed,
        "level": asdict(plan.level),
        "episodes": _shorten(plan.episodes),
        "error": plan.error,
        "tested": plan.tested,
        "trials": trials,
    } | told
    document |= {"lost": descended.lost} if descended.lost else {}
    return document | {"seal": seal(document)}


def from_json(document: Mapping[str, Any]) -> Descended:
    """The result in a document, refused unless sealed, understood, and what its counts say."""
    if document.get("format") != FORMAT or document.get("version") not in VERSIONS:
        raise BadCertificate(f"this is not a {FORMAT} of version {' or '.join(map(str, VERSIONS))}")
    if seal(document) != document.get("seal"):
        raise BadCertificate("it was changed after it was written: its seal does not fit its content")
    try:
        parts = {name: document[name] for name in ("scales", "n", "allowed", "error", "tested")}
        parts |= {name: document[name] for name in ("early", "loss", "unit") if name in document}
        bets = Bets(**document["bets"]) if "bets" in document else None
        level, episodes = PACLevel(**document["level"]), _lengthen(document["episodes"], document["n"])
        plan = Descent(level=level, episodes=episodes, bets=bets, **parts)
        family = Family(**document["family"]) if "family" in document else None
        trials = document["trials"]
        shown = tuple(trial["errors"] if bets is None else _dense(trial) for trial in trials)
        descended = Descended(plan, shown, family, check_integer("lost", document.get("lost", 0), least=0))
    except (PACError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadCertificate(f"it is damaged: {error}") from None
    if to_json(descended) != document:
        raise BadCertificate("its words or its scale are not those of its numbers")
    return descended


def _shorten(episodes: NDArray[Any]) -> Any:
    """The ids for a document; of those that are numbered, as a log's are, what stands before the number."""
    name = str(episodes.flat[0]).rpartition("/")[0]
    numbered = name and np.array_equal(episodes, _lengthen(name, episodes.shape[-1]))
    return name if numbered else episodes.tolist()


def _lengthen(episodes: Any, n: int) -> NDArray[Any]:
    if isinstance(episodes, str):
        return np.array([f"{episodes}/{place}" for place in range(n)])
    return np.asarray(episodes)


def _check_outcomes(found: Any, n: int, loss: bool) -> NDArray[Any]:
    shown = check_array("errors", found, "[n]")
    if len(shown) != n or not (loss or shown.dtype == np.bool_):
        kind = "losses in [0, 1]" if loss else "booleans"
        raise InvalidInput(
            f"errors must be {n:,} {kind}, one for each episode, got {len(shown):,} of {shown.dtype}: "
            "a diverged or lost episode is an error (True, a loss of 1), and none is left out"
        )
    return check_losses("losses", shown)
