"""Risks beside P(miss): P(unsafe | accepted) of a guard, and expected losses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Floats, check_array, check_booleans, check_labels, round_down, round_up
from pac_core.betting import check_losses
from pac_core.bounds import Family, PACLevel, check_integer, check_probability
from pac_core.certificates.certificate import json_digest
from pac_core.certificates.descent import Descended, Descent, Scale, descend
from pac_core.certificates.ledger import (
    CLAIM,
    Opening,
    add_note,
    open_split,
    read_family,
    read_ledger,
    read_notes,
)
from pac_core.errors import InvalidInput, NothingAccepted, SecondLook
from pac_core.evaluation import error_interval
from pac_core.splits import ids_digest, unique_names, unit_names

_STREAM = 0x57E9  # keeps the draw of the step apart from all else that an episode draws from its seed


@dataclass(frozen=True, repr=False)
class AcceptedRisk:
    """An upper limit of P(unsafe | accepted), with the evidence for it.

    limit, confidence: one-sided, exact (Clopper-Pearson), over the draw of the episodes
    accepted, unsafe: accepted decisions, and how many of those went wrong
    choices: the number of controllers among which these episodes picked this one; the limit allows for it
    family: everything in the ledger when the limit was stated; None without a ledger

    The promise is about an accepted decision at a randomly drawn step of a fresh episode of the same
    controller, not about the worst step or a whole episode.
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
            f"P(unsafe given accepted) <= {round_up(self.limit, 4)} with confidence "
            f"{round_down(self.confidence)}, for a decision at a drawn step of a fresh episode drawn like "
            f"these: {self.unsafe:,} of {self.accepted:,} accepted decisions were unsafe, one from each of "
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
    rows = np.atleast_2d(check_array("episodes", episodes, "[S, n]" if np.ndim(episodes) == 2 else "[n]"))
    unique_names("episodes", rows.ravel())
    plan = {
        "kind": CLAIM,
        "delta": _delta(check_probability("confidence", confidence)),
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
    accepted, unsafe: `[N]` booleans, whether the decision at the drawn step (`draw_steps`) was accepted (not
        after an episode's end), and whether an accepted one went wrong
    choices: the number of controllers among which this one was picked by looking at these episodes, such as
        all S scales of a descent; the limit at 1 - (1 - confidence) / S holds for whichever is picked
    ledger: a folder that has held the claim since before the episodes were run (`claim_accepted_risk`)

    The episodes that certified a scale were selected for having few errors: use others, or give `choices`. If
    nothing was accepted: `NothingAccepted`.

    >>> accepted_risk(range(100), [True] * 90 + [False] * 10, [False] * 100, confidence=0.99)
    P(unsafe given accepted) <= 0.04989 with confidence 0.99, for a decision at a drawn step of a fresh \
episode drawn like these: 0 of 90 accepted decisions were unsafe, one from each of 100 episodes.
    """
    names = unit_names("ids", ids)
    if repeats := len(names) - len(np.unique(names)):
        raise InvalidInput(
            f"ids must be unique, got {repeats:,} repeats: decisions of one episode are dependent, so "
            "pooling them would make the limit too small; give one pre-drawn decision of each episode"
        )
    took = check_booleans("accepted", accepted, len(names))
    wrong = check_booleans("unsafe", unsafe, len(names))
    check_probability("confidence", confidence)
    check_integer("choices", choices, least=1)
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
    """`[N]` the step of each episode whose decision counts, uniform from 0 to `steps` - 1, by its seed alone.

    >>> draw_steps([0, 1, 2, 3], 200).tolist()
    [63, 32, 44, 13]
    """
    names = check_array("seeds", seeds, "[N]")
    if names.dtype.kind not in "iu" or names.min() < 0:
        raise InvalidInput("seeds must be whole numbers of at least 0, one for each episode")
    steps = check_integer("steps", steps, least=1)
    streams = (np.random.SeedSequence(seed, spawn_key=(_STREAM,)) for seed in names.tolist())
    # 64 random bits of each, the same with every version of numpy
    drawn = [int(one.generate_state(1, np.uint64)[0]) * steps >> 64 for one in streams]
    return np.array(drawn, dtype=np.int64)


def missed_share(inside: Any, counted: Any = None) -> Floats:
    """`[N]` a loss: the share of a unit's parts that lie outside, of those that count.

    inside: `[N, P]` booleans: frames of a video in their boxes, steps that keep the limits, labels in the set
    counted: `[N, P]` booleans, which parts there are, such as the true labels of a multi-label problem, whose
        loss is then the share of false negatives; all by default. A unit without any loses nothing

    >>> missed_share([[True, False, False]], counted=[[True, True, False]]).tolist()
    [0.5]
    """
    held = check_array("inside", inside, "[N, P]")
    parts = np.ones_like(held) if counted is None else check_array("counted", counted, "[N, P]")
    if held.dtype != np.bool_ or parts.dtype != np.bool_ or held.shape != parts.shape:
        rule = "inside and counted must be booleans of one shape [N, P]"
        raise InvalidInput(f"{rule}, got {held.dtype} {held.shape} and {parts.dtype} {parts.shape}")
    return np.asarray((parts & ~held).sum(axis=1) / np.maximum(parts.sum(axis=1), 1), dtype=np.float64)


def weighted_miss(inside: Any, labels: Any, weights: Any) -> Floats:
    """`[N]` a loss: the weight in [0, 1] of a unit's label if its set misses it, otherwise 0.

    inside: `[N]` booleans; labels: `[N]` whole numbers; weights: `[K]` of the labels
    """
    costs = check_losses("weights", weights)
    held = check_booleans("inside", inside)
    return np.where(held, 0.0, costs[check_labels("labels", labels, len(held), len(costs))])


def certify_losses(
    losses: Mapping[Scale, Any],
    level: PACLevel,
    *,
    ids: Any,
    loss: str,
    tested: Mapping[str, Any],
    ledger: str | os.PathLike[str],
    unit: str = "unit",
) -> Descended:
    """The boldest setting whose expected loss is shown to be at most epsilon (learn-then-test).

    losses: of each setting, from the safest to the boldest, `[N]` the loss in [0, 1] of each unit; the
        settings are numbers that descend, such as thresholds, or names, fixed without looking at these units
    ids: `[N]` of the units, which are the same for all settings; N was fixed before their losses were seen
    loss, tested, unit, ledger: see `Descent` (`error`) and `descend`

    Each setting is tested once, by the Hoeffding-Bentkus bound and by betting together, from the first down
    to the first that fails: one delta for all of them. A failed unit loses 1. Too few units for any proof are
    refused before they are spent.

    >>> import tempfile
    >>> losses = {3.0: [0.0] * 400, 2.0: [0.02] * 400, 1.0: [0.2] * 400}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     certify_losses(losses, PACLevel(0.1, 0.01), ids=range(400), loss="share of frames missed",
    ...                    tested={"tracker": "mine"}, ledger=f"{folder}/ledger").certified
    2.0
    """
    names = unique_names("ids", ids)
    found = {setting: check_losses(f"losses of {setting}", some) for setting, some in losses.items()}
    for setting, some in found.items():
        if len(some) != len(names):
            raise InvalidInput(f"losses of {setting} must be {len(names):,}, one per id, got {len(some):,}")
    plan = Descent(
        scales=tuple(found),
        n=len(names),
        level=level,
        episodes=names,
        error=loss,
        tested=tested,
        early=False,
        loss=True,
        unit=unit,
    )
    shown = descend(plan, lambda setting, _: found[setting], ledger=ledger, repeatable=True)
    for (setting, some), first in zip(found.items(), shown.errors, strict=False):
        if tuple(some.tolist()) != first:
            raise SecondLook(
                f"losses of {setting} must be those that {ledger} counted, got others: the first stand"
            )
    return shown
