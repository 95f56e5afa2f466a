"""P(unsafe | accepted): how often what the checker accepts goes wrong.

A small P(unsafe and accepted) does not bound it: a checker that accepts one plan in a thousand may be wrong
about every one. Its own bound comes from one decision per episode, at a step drawn beforehand.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import booleans, plain
from pac_core.bounds import share, whole
from pac_core.costs import Family
from pac_core.errors import InvalidInput, NothingAccepted, SecondLook
from pac_core.evaluation import error_interval
from pac_core.ledger import (
    CLAIM,
    Opening,
    add_note,
    json_digest,
    open_split,
    read_family,
    read_ledger,
    read_notes,
)
from pac_core.splits import ids_digest, unique_names, unit_names
from pac_core.texts import at_least, at_most

_STREAM = 0x57E9  # keeps the draw of the step apart from all else that an episode draws from its seed


@dataclass(frozen=True, repr=False)
class AcceptedRisk:
    """An upper limit of P(unsafe | accepted), with the evidence for it.

    limit: one-sided, exact (Clopper-Pearson)
    confidence: of the limit, over the draw of the episodes
    accepted, unsafe: accepted decisions, and how many of those went wrong
    episodes: all of them
    choices: the number of controllers among which these episodes picked this one; the limit allows for it
    family: everything in the ledger when the limit was stated; None without a ledger

    The promise is about a decision at a randomly drawn step of a fresh episode of the same controller, if it
    is accepted. It is not about the worst step, nor about a whole episode.
    """

    limit: float
    confidence: float
    accepted: int
    unsafe: int
    episodes: int
    choices: int = 1
    family: Family | None = None

    def __repr__(self) -> str:
        picked = f" It holds for whichever of {self.choices:,} was picked." if self.choices > 1 else ""
        return (
            f"P(unsafe given accepted) <= {at_least(self.limit, 4)} with confidence "
            f"{at_most(self.confidence)}, for a decision at a drawn step of a fresh episode drawn like these:"
            f" {self.unsafe:,} of {self.accepted:,} accepted decisions were unsafe, one from each of "
            f"{self.episodes:,} episodes." + picked + (f" {self.family}" if self.family else "")
        )


def claim_accepted_risk(episodes: Any, *, confidence: float, ledger: str | os.PathLike[str]) -> Opening:
    """Record in the ledger, before the episodes are run, that P(unsafe | accepted) will be stated.

    episodes: `[S, n]` ids, a row for each controller that may be picked by looking at them, such as the
        scales of a descent on the same episodes, which is recorded after its claim; `[n]` if there is one
    confidence: of the limit; the ledger charges 1 - confidence, however many rows are stated

    `accepted_risk` then states it, with the same confidence, `choices=S` and this ledger. A claim on units
    that were looked at before raises `SecondLook`, and so does a look at units of a claim that was stated.
    """
    rows = np.atleast_2d(plain("episodes", episodes, "[S, n]" if np.ndim(episodes) == 2 else "[n]"))
    unique_names("episodes", rows.ravel())
    plan = {
        "kind": CLAIM,
        "delta": _delta(share("confidence", confidence)),
        "confidence": float(confidence),
        "episodes": [ids_digest(row) for row in rows],
    }
    return open_split(ledger, Opening.of(rows.ravel(), (), json_digest(plan), plan))


def accepted_risk(
    ids: Any,
    accepted: Any,
    unsafe: Any,
    *,
    confidence: float,
    choices: int = 1,
    ledger: str | os.PathLike[str] | None = None,
) -> AcceptedRisk:
    """The upper limit of P(unsafe | accepted), from one decision per episode at a pre-drawn step.

    ids: `[N]` of the episodes, each once, because decisions of one episode are dependent
    accepted: `[N]` booleans, whether the decision at the drawn step was accepted; False for an episode that
        ended before its step
    unsafe: `[N]` booleans, whether it went wrong; read only where it was accepted
    confidence: of the limit, such as 0.99
    choices: the number of controllers among which this one was picked by looking at these episodes, such as
        the S scales of a descent; the limit is then computed at 1 - (1 - confidence) / S, so that it holds
        for whichever is picked
    ledger: a folder that has held the claim since before the episodes were run (`claim_accepted_risk`); the
        counts go into it. Without one, nothing keeps track of other statements

    Given the number of accepted decisions, the number of unsafe ones is binomial. Steps are drawn by
    `draw_steps`, never chosen after the episode. If nothing was accepted: `NothingAccepted`. The episodes
    that certified a scale were selected for having few errors and show too little: use others, or give as
    `choices` all scales of the plan, including those not reached.

    >>> accepted_risk(range(100), [True] * 90 + [False] * 10, [False] * 100, confidence=0.99)
    P(unsafe given accepted) <= 0.04989 with confidence 0.99, for a decision at a drawn step of a fresh \
episode drawn like these: 0 of 90 accepted decisions were unsafe, one from each of 100 episodes.
    """
    names = unit_names("ids", ids)
    repeats = len(names) - len(np.unique(names))
    if repeats:
        raise InvalidInput(
            f"ids must be unique, got {repeats:,} repeats: decisions of one episode are dependent, so "
            "pooling them would make the limit too small; give one pre-drawn decision of each episode"
        )
    took, wrong = booleans("accepted", accepted, len(names)), booleans("unsafe", unsafe, len(names))
    share("confidence", confidence)
    whole("choices", choices, least=1)
    count, bad = int(took.sum()), int((took & wrong).sum())
    if ledger is not None:
        _state(ledger, ids_digest(ids), confidence, choices, {"accepted": count, "unsafe": bad})
    if not count:
        raise NothingAccepted(
            f"none of the {len(names):,} decisions was accepted, so nothing is known about accepted ones: "
            "use narrower tubes, wider limits or more episodes"
        )
    high = error_interval(bad, count, (1 - confidence) / choices)[1]
    family = None if ledger is None else read_family(ledger)
    return AcceptedRisk(high, float(confidence), count, bad, len(names), choices, family)


def _state(
    ledger: str | os.PathLike[str], ids: str, confidence: float, choices: int, counts: dict[str, int]
) -> None:
    """Write the counts of a claim; refuse a claim that is not there, or other counts than the first."""
    claims = [(one.data, one.plan) for one in read_ledger(ledger) if one.plan and one.claim]
    claimed = {
        (plan["confidence"], len(plan["episodes"])): data for data, plan in claims if ids in plan["episodes"]
    }
    if (confidence, choices) not in claimed:
        known = " and ".join(f"confidence {c:g} with choices={s}" for c, s in claimed) or "none"
        raise InvalidInput(
            "the ledger must have held this claim since before its episodes were run (claim_accepted_risk), "
            f"with confidence {confidence:g} and choices={choices}; {ledger} holds for them {known}"
        )
    facts = {"plan": claimed[confidence, choices], "episodes": ids, **counts}

    def first() -> Any:
        stated = (note.facts for note in read_notes(ledger) if note.kind == CLAIM)
        place = facts["plan"], ids
        return next((one for one in stated if (one.get("plan"), one.get("episodes")) == place), None)

    if first() is None:
        add_note(ledger, CLAIM, facts)
    if (earlier := first()) != facts:  # also where two state at once
        raise SecondLook(
            f"of these episodes the ledger counted {earlier['unsafe']:,} unsafe of "
            f"{earlier['accepted']:,} accepted, got {counts['unsafe']:,} of {counts['accepted']:,}: the "
            "first count stands"
        )


def _delta(confidence: float) -> float:
    """1 - confidence in decimal: 0.002 and not 0.0020000000000000018."""
    return float(1 - Decimal(repr(float(confidence))))


def draw_steps(seeds: Any, steps: int) -> NDArray[np.int64]:
    """`[N]` the step of each episode whose decision counts, uniform from 0 to `steps` - 1.

    It depends on the episode's seed alone, through a stream of its own, so it is independent of what happens
    in the episode.

    >>> draw_steps([0, 1, 2, 3], 200).tolist()
    [63, 32, 44, 13]
    """
    names = plain("seeds", seeds, "[N]")
    if names.dtype.kind not in "iu" or names.min() < 0:
        raise InvalidInput("seeds must be whole numbers of at least 0, one for each episode")
    steps = whole("steps", steps, least=1)
    streams = (np.random.SeedSequence(seed, spawn_key=(_STREAM,)) for seed in names.tolist())
    # 64 random bits of each, the same with every version of numpy
    drawn = [int(one.generate_state(1, np.uint64)[0]) * steps >> 64 for one in streams]
    return np.array(drawn, dtype=np.int64)
