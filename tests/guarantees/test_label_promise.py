"""The promise of ranked label scores: calibrate many thousand times where the true error is known.

x is uniform and the label is 1 with probability x, which is also the forecast. The probability p of the
true label then has density 2p; it ranks first where p > 1/2. At temperature tau the forecast says q with
logit q = tau * logit p, so the error at any T follows from two quantiles of p.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from pac_core import LogitForecast, PACLevel, RankedScore, choose_label_score, fit_threshold, max_errors
from pac_core.predictors import Score

pytestmark = pytest.mark.slow

N, REPEATS = 500, 4_000
LEVEL = PACLevel(0.05, 0.05)
ALLOWED = max(k for k in range(N) if binom.cdf(k, N, LEVEL.epsilon) < LEVEL.delta)
EXACT = float(binom.cdf(ALLOWED, N, LEVEL.epsilon))
DOUBT = 1e-4


def draw(n: int, rng: np.random.Generator) -> tuple[LogitForecast, np.ndarray]:
    x = rng.random(n)
    labels = (rng.random(n) < x).astype(int)
    return LogitForecast(np.stack([np.zeros(n), np.log(x) - np.log1p(-x)], axis=1)), labels


def first_and_second(score: RankedScore, t: float) -> tuple[float, float]:
    """The least p (up to 1) at which the true label is in the set, ranking first and ranking second."""
    penalty = score.weight * (math.log(2) if score.power == 0 else (2**score.power - 1) / score.power)

    def untempered(q: float) -> float:
        if q <= 0 or q >= 1:
            return min(max(q, 0.0), 1.0)
        return 1 / (1 + ((1 - q) / q) ** (1 / score.tau))

    if score.base == "likelihood":
        return untempered(math.exp(-t)), untempered(math.exp(penalty - t))
    assert score.base == "margin"
    # Ranking first the margin is 0; ranking second it is log((1 - q) / q).
    return (0.0 if t >= 0 else 1.0), untempered(1 / (1 + math.exp(t - penalty)))


def true_error(score: RankedScore, t: float) -> float:
    """P(p below the limit), with density 2p: first above 1/2, second below."""
    first, second = first_and_second(score, t)
    return max(first, 0.5) ** 2 - 0.25 + min(second, 0.5) ** 2


def breaches(score: Score, error: Callable[[float], float], slip: int = 0) -> int:
    rng = np.random.default_rng(0)
    scores = np.concatenate([score.scores(*draw(N * 500, rng)) for _ in range(REPEATS // 500)])

    def bound(n: int, level: PACLevel) -> int:
        return max_errors(n, level) + slip

    rows = scores.reshape(REPEATS, N)
    return sum(error(fit_threshold(row, LEVEL, bound=bound).value) > LEVEL.epsilon for row in rows)


SCORES = [
    RankedScore("likelihood", 1.0, 0.5),
    RankedScore("likelihood", 0.4, 0.2, 1.0),
    RankedScore("margin", 2.0, 1.0),
]


@pytest.mark.parametrize("score", SCORES, ids=str)
def test_a_ranked_score_breaches_exactly_as_often_as_promised(score: RankedScore) -> None:
    count = breaches(score, lambda t: true_error(score, t))
    assert binomtest(count, REPEATS, EXACT).pvalue > DOUBT


def test_one_error_more_would_be_noticed() -> None:
    count = breaches(SCORES[0], lambda t: true_error(SCORES[0], t), slip=1)
    assert binomtest(count, REPEATS, EXACT).pvalue < 1e-6


def test_the_closed_form_is_the_error_of_the_sets() -> None:
    forecast, labels = draw(200_000, np.random.default_rng(3))
    for score in SCORES:
        for t in (0.4, 0.9, 1.6):
            missed = ~score.sets(forecast, t).contains(labels)
            assert missed.mean() == pytest.approx(true_error(score, t), abs=0.005)


def test_the_choice_on_tune_units_leaves_the_promise_whole() -> None:
    """Chosen anew for every calibration, from tune units of its own; the error is measured by quadrature."""
    rng = np.random.default_rng(5)
    repeats, broken = 60, 0
    grid = np.linspace(0, 1, 4_001)[1:-1]
    fine = LogitForecast(np.stack([np.zeros(len(grid)), np.log(grid) - np.log1p(-grid)], axis=1))
    for _ in range(repeats):
        score = choose_label_score(*draw(150, rng), LEVEL, calibrate=N)
        threshold = fit_threshold(score.scores(*draw(N, rng)), LEVEL)
        member = score.sets(fine, threshold).member
        error = float(np.mean(grid * ~member[:, 1] + (1 - grid) * ~member[:, 0]))
        broken += error > LEVEL.epsilon
    assert binomtest(broken, repeats, LEVEL.delta, alternative="greater").pvalue > DOUBT
    assert broken > 0, "a calibration at this level breaches now and then, or nothing was measured"
