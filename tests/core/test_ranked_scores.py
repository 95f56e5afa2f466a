"""Ranked scores by hand, and their sets: the labels whose score is at most the widened T, to the last bit."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from pac_core import InvalidInput, LogitForecast
from pac_core.scores import nll
from pac_core.sets import RankedScore
from pac_core.sets.kinds import widen_for_labels
from pac_core.sets.label_scores import BASES

THREE = LogitForecast.from_probabilities(np.array([[0.2, 0.7, 0.1]]))


def of_all(score: RankedScore, forecast: LogitForecast) -> np.ndarray:
    """`[N, K]` the score of every label, one by one."""
    n, classes = forecast.logits.shape
    return np.stack([score.scores(forecast, np.full(n, label)) for label in range(classes)], axis=1)


@pytest.mark.parametrize(
    ("base", "by_rank"),
    [
        ("likelihood", [-math.log(0.7), -math.log(0.2), -math.log(0.1)]),
        ("mass", [0.7, 0.9, 1.0]),
        ("top", [0.7, 0.7, 0.7]),
    ],
)
@pytest.mark.parametrize(
    ("weight", "power", "penalties"),
    [(0.0, 0.0, [0, 0, 0]), (2.0, 0.0, [0, 2 * math.log(2), 2 * math.log(3)]), (0.5, 1.0, [0, 0.5, 1.0])],
)
def test_by_hand(
    base: str, by_rank: list[float], weight: float, power: float, penalties: list[float]
) -> None:
    """Label 1 has rank 1, label 0 rank 2, label 2 rank 3."""
    first, second, third = (value + penalty for value, penalty in zip(by_rank, penalties, strict=True))
    found = of_all(RankedScore(base, 1.0, weight, power), THREE)
    assert found.ravel().tolist() == pytest.approx([second, first, third])


def test_the_temperature_multiplies_the_logits() -> None:
    """Squared and normalised again, (0.2, 0.7, 0.1) is (4, 49, 1) / 54."""
    found = of_all(RankedScore("likelihood", 2.0), THREE)
    assert np.exp(-found).ravel().tolist() == pytest.approx([4 / 54, 49 / 54, 1 / 54])
    halved = LogitForecast(THREE.logits, tau=0.5)
    assert of_all(RankedScore("likelihood", 4.0), halved) == pytest.approx(found)


def test_a_share_of_the_probability_is_flatter() -> None:
    """Roots of (0.2, 0.7, 0.1), normalised, are the forecast at half the temperature."""
    roots = np.sqrt([0.2, 0.7, 0.1])
    mixed = 0.8 * np.array([0.2, 0.7, 0.1]) + 0.2 * roots / roots.sum()
    found = of_all(RankedScore("likelihood", 1.0, share=0.2, flat=0.5), THREE)
    assert np.exp(-found).ravel() == pytest.approx(mixed)
    sharper = of_all(RankedScore("likelihood", 2.0, share=0.2, flat=0.25), LogitForecast(THREE.logits / 2))
    expected = 0.8 * np.array([0.2, 0.7, 0.1]) + 0.2 * roots**0.5 / (roots**0.5).sum()
    assert np.exp(-sharper).ravel() == pytest.approx(expected), "flat is a multiple of tau"
    mass = of_all(RankedScore("mass", 1.0, share=0.2, flat=0.5), THREE)
    assert mass.ravel() == pytest.approx([mixed[0] + mixed[1], mixed[1], 1.0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    ("weight", "power", "share"), [(0.0, 0.0, 0.0), (0.7, 0.0, 0.1), (0.0, 0.0, 0.3), (0.03, 1.0, 0.0)]
)
def test_a_label_is_in_its_set_exactly_when_its_score_is_at_most_t(
    dtype: type, base: str, weight: float, power: float, share: float
) -> None:
    """Thresholds, once widened, are scores that occur and their neighbours; many logits are equal."""
    rng = np.random.default_rng(0)
    logits = np.round(3 * rng.normal(size=(120, 17)), 1).astype(dtype)
    logits[:9, 4] = -np.inf
    logits[3] = 1.5
    forecast, score = LogitForecast(logits), RankedScore(base, 1.3, weight, power, share, 0.4)
    every = of_all(score, forecast)
    finite = rng.choice(every[np.isfinite(every)], 12).tolist()
    limits = {2 * t - widen_for_labels(t, moves=score.moves) for t in finite}  # widened, it is a score
    limits |= {np.nextafter(t, side) for t in limits for side in (-np.inf, np.inf)}
    for limit in (*limits, *finite, -1.0, np.inf):
        wide = widen_for_labels(float(limit), moves=score.moves)
        assert (score.sets(forecast, float(limit)).member == (every <= wide)).all()


def test_equal_logits_share_the_worst_rank() -> None:
    score, tied = RankedScore("likelihood", 1.0, 1.0, 1.0), LogitForecast(np.array([[2.0, 5.0, 2.0, 2.0]]))
    found = of_all(score, tied) - score.scores(tied, [1]).item()
    assert found == pytest.approx(np.array([[6.0, 0.0, 6.0, 6.0]]))
    assert score.sets(tied, 5.9).labels() == [[1]]


@pytest.mark.parametrize("base", BASES)
def test_a_label_of_probability_zero_is_in_no_set(base: str) -> None:
    score = RankedScore(base, 1.0)
    impossible = LogitForecast(np.array([[0.0, -np.inf, 1.0]]))
    assert score.scores(impossible, [1]).item() == np.inf
    assert score.sets(impossible, 1e300).labels() == [[0, 2]]


def test_without_a_penalty_it_is_the_papers() -> None:
    rng = np.random.default_rng(1)
    forecast, labels = LogitForecast(rng.normal(size=(200, 9))), rng.integers(0, 9, size=200)
    plain = RankedScore("likelihood", 1.7).scores(forecast, labels)
    assert plain == pytest.approx(nll(forecast.tempered(1.7), labels), rel=1e-12)


def test_rows_do_not_depend_on_their_neighbours() -> None:
    """Large inputs go block by block, in threads: each row is what it is alone."""
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(900, 700)).astype(np.float16), rng.integers(0, 700, size=900)
    score = RankedScore("likelihood", 0.8, 0.4, share=0.1, flat=0.5)
    whole, sets = score.scores(LogitForecast(logits), labels), score.sets(LogitForecast(logits), 8.0)
    for row in (0, 373, 374, 375, 899):
        alone = LogitForecast(logits[row : row + 1])
        assert score.scores(alone, labels[row : row + 1]).item() == whole[row]
        assert (score.sets(alone, 8.0).member[0] == sets.member[row]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_forecast_are_refused(bad: float) -> None:
    broken = LogitForecast(np.array([[0.0, 1.0], [bad, 1.0]]))
    for base in BASES:
        with pytest.raises(InvalidInput, match="in row 1"):
            RankedScore(base, 1.0).scores(broken, [0, 0])
        with pytest.raises(InvalidInput, match="in row 1"):
            RankedScore(base, 1.0).sets(broken, 1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"base": "aps"}, "base must be one of likelihood, mass, top, got 'aps'"),
        ({"tau": 0.0}, "tau must be a finite number above 0, got 0.0"),
        ({"weight": -0.1}, "weight must be a finite number at least 0, got -0.1"),
        ({"power": math.nan}, "power must be a finite number from 0 to 2, got nan"),
        ({"share": 0.6}, "share must be a finite number from 0 to 0.5, got 0.6"),
        ({"flat": 1.5}, "flat must be a finite number above 0 and at most 1, got 1.5"),
        ({"n": -1}, "n must be a whole number of tune units, got -1"),
    ],
)
def test_numbers_that_would_break_the_order_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{re.escape(words)}$"):
        RankedScore(**({"base": "likelihood", "tau": 1.0} | change))


def test_a_forecast_of_something_else_is_refused() -> None:
    with pytest.raises(InvalidInput, match="forecast must be a LogitForecast, got ndarray"):
        RankedScore("likelihood", 1.0).scores(np.zeros((2, 2)), [0, 0])
