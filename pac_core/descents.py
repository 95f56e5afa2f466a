"""A descending list of tube scales, tested in an order that was written down before the first episode.

A planner picks its favourite of many plans, so what it does is not drawn like the plans a tube was
calibrated on. What it does to a whole episode can be tested: each scale runs its own fresh episodes of the
controller, from the widest tubes down, until one has more errors than allowed. The last that passed is
certified. To certify a bad scale, the first bad one of the list must pass, and it does so with a probability
below delta: so all the scales together cost one delta.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import numbers, plain
from pac_core.bounds import PACLevel, a_level, min_samples, proves, whole
from pac_core.costs import Entry, Family
from pac_core.errors import InvalidInput, NotEnoughData
from pac_core.ledger import Opening, json_digest
from pac_core.splits import ids_digest, unit_names
from pac_core.texts import at_least

NOTE = "descent"
"""The kind of the ledger's notes that hold what a scale showed."""


def episodes_needed(level: PACLevel, allowed: int) -> int:
    """The fewest episodes per scale with which `allowed` errors still prove the level.

    >>> [episodes_needed(PACLevel(epsilon=0.05, delta=0.01), allowed) for allowed in range(7)]
    [90, 130, 165, 198, 229, 259, 288]
    """
    return min_samples(a_level(level), allowed)


@dataclass(frozen=True, eq=False, kw_only=True)
class Descent:
    """What is laid down before the first episode.

    scales: of the tubes, from the widest down
    n: episodes of each scale
    allowed: errors among them with which a scale still passes
    level: what is to be proved; n and allowed must be able to
    episodes: `[S, n]` the id (the seed) of each episode; none stands twice
    error: in words, what counts as an error of an episode, such as "a limit is violated"
    tested: the controller, in plain JSON: all that would make it another one

    The scales may be chosen on other episodes, never on these.
    """

    scales: tuple[float, ...]
    n: int
    allowed: int
    level: PACLevel
    episodes: NDArray[Any]
    error: str
    tested: Mapping[str, Any]

    def __post_init__(self) -> None:
        scales = numbers("scales", self.scales, "[S]", finite=True).astype(np.float64)
        if scales.min() <= 0 or (np.diff(scales) >= 0).any():
            raise InvalidInput(f"scales must descend and be above 0, got {scales.tolist()}")
        n, allowed = whole("n", self.n, least=1), whole("allowed", self.allowed, least=0)
        if not proves(n, allowed, a_level(self.level)):
            raise NotEnoughData(n, episodes_needed(self.level, allowed), self.level, allowed)
        episodes = plain("episodes", self.episodes, "[S, n]")
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
        for name, value in (("scales", tuple(scales.tolist())), ("n", n), ("allowed", allowed)):
            object.__setattr__(self, name, value)
        fixed = episodes.copy()
        fixed.flags.writeable = False
        object.__setattr__(self, "episodes", fixed)
        object.__setattr__(self, "tested", _plain_json(self.tested))

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

    plan: as it was laid down
    trials: the scales that were run, in order; refused unless they follow from their counts
    family: all that its ledger held when it was shown, whatever it was called; None where no ledger was kept

    The promise is about a fresh episode, drawn like the tested ones, of exactly the tested controller at
    the certified scale. It says nothing of another controller, scale or start, of episodes chosen
    afterwards, or of a single decision in an episode.
    """

    plan: Descent
    trials: tuple[Trial, ...]
    family: Family | None = None

    def __post_init__(self) -> None:
        plan, trials = self.plan, self.trials
        follows = 0 < len(trials) <= len(plan.scales)
        for trial, scale in zip(trials, plan.scales, strict=False):
            counted = whole("errors", trial.errors, least=0) <= plan.n
            right = trial.passed is (trial.errors <= plan.allowed)
            follows &= counted and right and (trial.scale, trial.n) == (scale, plan.n)
        stopped = bool(trials) and (not trials[-1].passed or len(trials) == len(plan.scales))
        if not (follows and stopped and all(trial.passed for trial in trials[:-1])):
            raise InvalidInput(
                f"trials must be those of the plan, down to the first that fails, got {[*trials]} for scales "
                f"{list(plan.scales)} with {plan.allowed:,} of {plan.n:,} errors allowed"
            )

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
            f"at this scale) <= {at_least(level.epsilon)} with confidence 1 - {at_least(level.delta)}, for "
            f"episodes drawn like the tested ones, and nothing more. {evidence}"
        )

    def __str__(self) -> str:
        return self.sentence

    __repr__ = __str__


def follow(plan: Descent, count: Callable[[float, NDArray[Any]], int]) -> Descended:
    """What the plan's scales show, from the errors that `count(scale, ids)` finds, down to the first failure.

    It keeps no ledger, and cannot know of other descents on these episodes; `descend` does.
    """
    trials: list[Trial] = []
    for scale, ids in zip(plan.scales, plan.episodes, strict=True):
        errors = count(scale, ids)
        trials.append(Trial(scale, plan.n, errors, errors <= plan.allowed))
        if not trials[-1].passed:
            break
    return Descended(plan, tuple(trials))


def check_words(name: str, value: Any) -> str:
    """`value`, refused unless it is a line of text."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidInput(f"{name} must be a line of text, got {value!r}")
    return value


def _plain_json(tested: Any) -> dict[str, Any]:
    """A copy that nobody changes later, refused unless JSON can hold it."""
    if not isinstance(tested, Mapping) or not tested:
        raise InvalidInput(f"tested must be a mapping that says what the controller is, got {tested!r}")
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(tested), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"tested must be plain JSON without NaN: {error}") from None
    return copy
