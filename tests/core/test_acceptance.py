"""P(unsafe given accepted), from one pre-drawn decision of each episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from pac_core import InvalidInput, NothingAccepted, accepted_risk, draw_steps

IDS = [f"episode-{i}" for i in range(400)]


def test_the_limit_is_the_exact_one() -> None:
    accepted, unsafe = np.arange(400) < 150, np.arange(400) % 50 == 0
    risk = accepted_risk(IDS, accepted, unsafe, confidence=0.99)
    assert (risk.accepted, risk.unsafe, risk.episodes) == (150, 3, 400)
    assert binom.cdf(3, 150, risk.limit) == pytest.approx(0.01)
    assert "P(unsafe given accepted) <= 0.06" in repr(risk)
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
    with pytest.raises(InvalidInput, match="200 repeats: decisions of one episode depend on each other"):
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
