"""P(unsafe given accepted), from one pre-drawn decision of each episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from pac_core import InvalidInput, PACLevel, SecondLook
from pac_core.bounds import Entry
from pac_core.certificates import Descent, Opening, descend, open_ledger, open_split, read_family, read_notes
from pac_core.certificates.ledger import refuse_spent
from pac_core.errors import NothingAccepted, OverBudget
from pac_core.risks import accepted_risk, claim_accepted_risk, draw_steps

IDS = [f"episode-{i}" for i in range(400)]


def test_the_limit_is_the_exact_one() -> None:
    accepted, unsafe = np.arange(400) < 150, np.arange(400) % 50 == 0
    risk = accepted_risk(IDS, accepted, unsafe, confidence=0.99)
    assert (risk.accepted, risk.unsafe, risk.episodes) == (150, 3, 400)
    assert binom.cdf(3, 150, risk.limit) == pytest.approx(0.01)
    assert "P(unsafe given accepted) <= 0.06" in repr(risk)
    assert float(repr(risk).split("<= ")[1].split()[0]) >= risk.limit, "a limit is rounded up, never down"
    assert "3 of 150 accepted decisions were unsafe, one from each of 400 episodes" in repr(risk)


def test_a_limit_for_the_one_that_was_picked_states_its_confidence() -> None:
    accepted = np.ones(400, bool)
    risk = accepted_risk(IDS, accepted, ~accepted, confidence=0.99, choices=3)
    assert (risk.confidence, risk.choices) == (0.99, 3)
    assert risk.limit == pytest.approx(1 - (0.01 / 3) ** (1 / 400))
    assert "with confidence 0.99, for" in repr(risk)
    assert repr(risk).endswith("It holds for whichever of 3 was picked.")


def test_what_was_not_accepted_does_not_count() -> None:
    accepted = np.arange(400) < 90
    risks = [
        accepted_risk(IDS, accepted, unsafe, confidence=0.99) for unsafe in (~accepted, accepted & False)
    ]
    assert risks[0] == risks[1]
    assert risks[0].limit == pytest.approx(1 - 0.01 ** (1 / 90))


def test_all_unsafe_leaves_nothing_to_say() -> None:
    assert accepted_risk(IDS, [True] * 400, [True] * 400, confidence=0.9).limit == 1


def test_nothing_accepted_is_refused() -> None:
    with pytest.raises(NothingAccepted, match="none of the 400 decisions was accepted"):
        accepted_risk(IDS, [False] * 400, [False] * 400, confidence=0.99)


def test_pooled_decisions_are_refused() -> None:
    with pytest.raises(InvalidInput, match="200 repeats: decisions of one episode are dependent"):
        accepted_risk(IDS[:200] * 2, [True] * 400, [False] * 400, confidence=0.99)


@pytest.mark.parametrize(
    "changed",
    [
        {"accepted": [True] * 399},
        {"accepted": np.ones(400)},
        {"unsafe": np.full(400, np.nan)},
        {"unsafe": [None] * 400},
        {"unsafe": [False] * 401},
        {"ids": np.arange(400.0)},
        {"confidence": 1.0},
        {"confidence": 0},
        {"confidence": float("nan")},
        {"confidence": True},
        {"choices": 0},
        {"choices": 1.5},
    ],
)
def test_what_is_refused(changed: dict[str, Any]) -> None:
    given = {"ids": IDS, "accepted": [True] * 400, "unsafe": [False] * 400, "confidence": 0.99} | changed
    with pytest.raises(InvalidInput):
        accepted_risk(**given)


def test_steps_depend_on_the_seed_alone_and_are_even() -> None:
    seeds = np.arange(20_000)
    steps = draw_steps(seeds, 200)
    assert (steps[::-7] == draw_steps(seeds[::-7], 200)).all()
    assert (steps.min(), steps.max()) == (0, 199)
    assert chisquare(np.bincount(steps, minlength=200)).pvalue > 1e-4


def test_steps_tell_nothing_of_what_the_episode_draws_from_its_seed() -> None:
    """A step taken from the episode's own stream would be a function of its first draw."""
    seeds = np.arange(4000)
    first = np.array([np.random.default_rng(seed).random() for seed in seeds.tolist()])
    assert abs(np.corrcoef(draw_steps(seeds, 200), first)[0, 1]) < 4 / np.sqrt(4000)


@pytest.mark.parametrize("seeds", [[0.5], ["a"], [-1], []])
def test_seeds_that_are_refused(seeds: Any) -> None:
    with pytest.raises(InvalidInput):
        draw_steps(seeds, 10)
    with pytest.raises(InvalidInput, match="steps must"):
        draw_steps([1], 0)


ROWS = np.arange(260).reshape(2, 130)
DESCENT = Descent(
    scales=(2.0, 1.0),
    n=130,
    allowed=1,
    level=PACLevel(0.05, 0.01),
    episodes=ROWS,
    error="leaves its tube",
    tested={"horizon": 6},
)
ALL, NONE = np.ones(130, dtype=bool), np.zeros(130, dtype=bool)


def test_a_claim_is_charged_before_its_episodes_and_stated_after_them(tmp_path: Path) -> None:
    """On the episodes of a descent, which comes after it: a claim reads nothing until it is stated."""
    ledger = tmp_path / "ledger"
    open_ledger(ledger, budget=0.012)
    claim_accepted_risk(ROWS, confidence=0.998, ledger=ledger)
    assert read_family(ledger).cost == 0.002
    descend(DESCENT, lambda scale, ids: NONE, ledger=ledger)
    risk = accepted_risk(ROWS[1], ALL, NONE, confidence=0.998, choices=2, ledger=ledger)
    assert risk.limit == pytest.approx(1 - 0.001 ** (1 / 130))
    assert "2 attempts or looks, charged 0.012 in all to a budget" in repr(risk)
    assert risk == accepted_risk(ROWS[1], ALL, NONE, confidence=0.998, choices=2, ledger=ledger)
    [note] = (note for note in read_notes(ledger) if note.kind == "accepted risk")
    assert (note.facts["accepted"], note.facts["unsafe"]) == (130, 0)
    with pytest.raises(SecondLook, match="the ledger counted 0 unsafe of 130 accepted, got 130 of 130"):
        accepted_risk(ROWS[1], ALL, ALL, confidence=0.998, choices=2, ledger=ledger)
    with pytest.raises(OverBudget):
        claim_accepted_risk(1000 + ROWS, confidence=0.99, ledger=ledger)


@pytest.mark.parametrize(
    ("ids", "confidence", "choices"), [(ROWS[0], 0.99, 2), (ROWS[0], 0.998, 1), (ROWS[0] + 1, 0.998, 2)]
)
def test_what_was_not_claimed_is_not_stated(
    tmp_path: Path, ids: Any, confidence: float, choices: int
) -> None:
    ledger = tmp_path / "ledger"
    claim_accepted_risk(ROWS, confidence=0.998, ledger=ledger)
    with pytest.raises(InvalidInput, match="must have held this claim since before its episodes were run"):
        accepted_risk(ids, ALL, NONE, confidence=confidence, choices=choices, ledger=ledger)
    assert not read_notes(ledger)


def test_units_of_a_look_cannot_be_claimed_nor_those_of_a_stated_claim_be_looked_at(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    open_split(ledger, Opening.of(range(500, 600), [Entry("s", 0.05, 0.01)], "data"))
    with pytest.raises(SecondLook, match="100 of these 130 units"):
        claim_accepted_risk(np.arange(480, 610), confidence=0.99, ledger=ledger)
    claim_accepted_risk(ROWS[0], confidence=0.99, ledger=ledger)
    with pytest.raises(NothingAccepted):
        accepted_risk(ROWS[0], NONE, NONE, confidence=0.99, ledger=ledger)
    with pytest.raises(SecondLook, match="were calibrated on before, for a limit of the accepted risk"):
        descend(DESCENT, lambda scale, ids: NONE, ledger=ledger)


def test_a_look_that_stands_beside_a_stated_claim_may_be_repeated(tmp_path: Path) -> None:
    ledger, level = tmp_path / "ledger", PACLevel(0.05, 0.01)
    claim_accepted_risk(ROWS[0], confidence=0.99, ledger=ledger)
    open_split(ledger, Opening.of(ROWS[0], [Entry("s", level.epsilon, level.delta)], "data"))
    accepted_risk(ROWS[0], ALL, NONE, confidence=0.99, ledger=ledger)
    assert refuse_spent(ledger, ROWS[0], [level])
    with pytest.raises(SecondLook):
        refuse_spent(ledger, ROWS[0][1:], [level])


@pytest.mark.parametrize("episodes", [[1, 1], [[1, 2], [2, 3]], [1.5, 2.5], [], 3, [[[1]]]])
def test_claims_that_are_refused(tmp_path: Path, episodes: Any) -> None:
    with pytest.raises(InvalidInput, match="episodes must"):
        claim_accepted_risk(episodes, confidence=0.99, ledger=tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()
