"""The promise itself: calibrate many thousand times on problems whose true error has a closed form.

A calibration breaches its promise when the true error of its sets exceeds epsilon. For continuous
scores this happens with probability exactly P[Binomial(n, epsilon) <= k*], so the number of
breaches is compared with it on both sides: k* + 1 and k* - 1 must fail the same test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import chdtr, chdtrc, erfc, ndtr
from scipy.stats import binom, binomtest

from pac_core import GaussianForecast, LinearFeatures, LogitForecast, PACLevel, Trajectories
from pac_core.bounds import Entry, joint_failure_probability, max_errors
from pac_core.errors import TooManyFailures
from pac_core.scores import nll
from pac_core.sets import gaussian_sets
from pac_core.thresholds import fit_threshold
from pac_core.tubes import fit_shape

pytestmark = pytest.mark.slow

N = 500
LEVEL = PACLevel(0.05, 0.05)
REPEATS = 20_000
# k* by scipy, not by the code under test, which could otherwise be off by one and agree with itself.
ALLOWED = max(k for k in range(N) if binom.cdf(k, N, LEVEL.epsilon) < LEVEL.delta)
EXACT = float(binom.cdf(ALLOWED, N, LEVEL.epsilon))
DOUBT = 1e-4  # a true promise fails one of these tests once in ten thousand runs

Bound = Callable[[int, PACLevel], int]


def breaches(scores: np.ndarray, error: Callable[[float], float], bound: Bound = max_errors) -> int:
    """How many rows of `scores` `[R, n]` give a threshold whose true error exceeds epsilon."""
    values = [fit_threshold(row, LEVEL, bound=bound).value for row in scores]
    return sum(error(value) > LEVEL.epsilon for value in values)


def uniform() -> np.ndarray:
    return np.random.default_rng(0).random((REPEATS, N))


def test_continuous_scores_breach_exactly_as_often_as_promised() -> None:
    count = breaches(uniform(), lambda t: 1 - t)
    assert binomtest(count, REPEATS, EXACT).pvalue > DOUBT
    assert LEVEL.delta > EXACT


@pytest.mark.parametrize("slip", [1, -1])
def test_one_error_more_or_fewer_would_be_noticed(slip: int) -> None:
    count = breaches(uniform(), lambda t: 1 - t, lambda n, level: max_errors(n, level) + slip)
    assert binomtest(count, REPEATS, EXACT).pvalue < 1e-9


def test_label_sets() -> None:
    """x uniform, f(1|x) = x is the true probability: P(f(y|x) < c) = c^2."""
    rng = np.random.default_rng(1)
    x = rng.random(REPEATS * N)
    labels = (rng.random(len(x)) < x).astype(int)
    forecast = LogitForecast.from_probabilities(np.stack([1 - x, x], axis=1))
    scores = nll(forecast, labels).reshape(REPEATS, N)
    count = breaches(scores, lambda t: math.exp(-t) ** 2)
    assert binomtest(count, REPEATS, EXACT).pvalue > DOUBT


def test_intervals_of_a_wrong_forecaster() -> None:
    """Two kinds of input, both forecast over-confidently; the truth lies outside by the error function."""
    rng = np.random.default_rng(2)
    sigma = np.array([1.0, 3.0])
    kind = rng.integers(0, 2, size=REPEATS * N)
    truth = 1.7 * sigma[kind] * rng.normal(size=len(kind))
    forecast = GaussianForecast(np.zeros((len(kind), 1)), sigma[kind][:, None] ** 2)
    scores = nll(forecast, truth[:, None]).reshape(REPEATS, N)
    both = GaussianForecast(np.zeros((2, 1)), sigma[:, None] ** 2)

    def error(t: float) -> float:
        upper = np.nan_to_num(gaussian_sets(both, t).box()[1][:, 0])  # an empty interval misses all
        return float(erfc(upper / (1.7 * sigma) / math.sqrt(2)).mean())

    assert binomtest(breaches(scores, error), REPEATS, EXACT).pvalue > DOUBT


@pytest.mark.parametrize("full", [False, True])
def test_ellipsoids(full: bool) -> None:
    """Errors 1.5 times as large as forecast: Mahalanobis^2 / 1.5^2 is chi-squared."""
    rng = np.random.default_rng(3)
    root = np.array([[1.0, 0, 0], [0.5, 0.7, 0], [0.2, -0.3, 0.4]]) if full else np.diag([1.0, 0.7, 0.4])
    cov = root @ root.T if full else np.diag(root) ** 2

    def draw(n: int) -> np.ndarray:
        truth = 1.5 * rng.normal(size=(n, 3)) @ root.T
        return nll(GaussianForecast(np.zeros((n, 3)), np.broadcast_to(cov, (n, *cov.shape))), truth)

    repeats = REPEATS // 4 if full else REPEATS  # a linear solve for each unit takes its time
    scores = np.concatenate([draw(N * 500) for _ in range(repeats // 500)]).reshape(repeats, N)
    one = GaussianForecast(np.zeros((1, 3)), cov[None])

    def error(t: float) -> float:
        return float(chdtrc(3, gaussian_sets(one, t).region.radius2.item() / 1.5**2))

    assert binomtest(breaches(scores, error), repeats, EXACT).pvalue > DOUBT


STEPS, DIMS = 3, 2
SIGMA = np.array([0.5, 2.0])


def walk(n: int, rng: np.random.Generator) -> tuple[GaussianForecast, np.ndarray]:
    """Independent steps with errors 1.3 times the forecast's deviation."""
    noise = 1.3 * SIGMA * rng.normal(size=(n, STEPS, DIMS))
    return GaussianForecast(np.zeros((n, STEPS, DIMS)), np.broadcast_to(SIGMA**2, noise.shape)), noise


def true_error(shape: str, tube: Any) -> float:
    """The probability that a new trajectory leaves the tube, from the tube's own geometry."""
    region = tube.region
    if shape == "max":
        scaled = region.radius2[0] * region.forecast.variances[0, :, 0] / (1.3 * SIGMA[0]) ** 2
        return float(1 - np.prod(chdtr(DIMS, scaled)))
    return float(1 - np.prod(inside_box(region, 1.3 * (SIGMA if shape == "box" else SIGMA[:1]))))


def inside_box(region: Any, deviation: np.ndarray) -> np.ndarray:
    """`[H, D]` the probability that a normal error lies between the sides of the first unit's box."""
    lower, upper = (corner[0] / deviation for corner in region.corners())
    return ndtr(upper) - ndtr(lower)


@pytest.mark.parametrize("shape", ["max", "box", "features"])
def test_tubes(shape: str) -> None:
    """Shape and scales are fitted once on a tune split; only the calibration is repeated."""
    rng = np.random.default_rng(4)
    options = {"features": LinearFeatures(("first",), np.array([[1.0, 0.0]]))} if shape == "features" else {}
    score = fit_shape(*walk(2000, rng), LEVEL, shape=shape, **options)
    one, _ = walk(1, rng)
    scores = np.concatenate([score.scores(*walk(N * 500, rng)) for _ in range(REPEATS // 500)])

    def error(t: float) -> float:
        return true_error(shape, score.sets(one, t))

    assert binomtest(breaches(scores.reshape(REPEATS, N), error), REPEATS, EXACT).pvalue > DOUBT


def test_the_paper_tube() -> None:
    """`joint`: with two dimensions a step, Mahalanobis^2 is a sum of exponentials with a closed form."""
    rng = np.random.default_rng(5)
    score = fit_shape(*walk(2000, rng), LEVEL, shape="joint")
    one, _ = walk(1, rng)
    scores = np.concatenate([score.scores(*walk(N * 500, rng)) for _ in range(REPEATS // 500)])
    # At step t Mahalanobis^2 is w_t chi-squared_2, exponential with mean 2 w_t.
    weights = (1.3 * SIGMA[0]) ** 2 / score.sets(one, 0.0).region.forecast.var[0, :, 0]
    assert len(set(weights)) == STEPS

    def error(t: float) -> float:
        radius2 = max(0.0, float(score.sets(one, t).region.radius2[0, 0]))
        terms = [
            math.exp(-radius2 / (2 * w)) * math.prod(w / (w - v) for v in weights if v != w) for w in weights
        ]
        return math.fsum(terms)

    assert binomtest(breaches(scores.reshape(REPEATS, N), error), REPEATS, EXACT).pvalue > DOUBT


@pytest.mark.parametrize("shape", ["max", "box"])
def test_tubes_of_units_that_end_early(shape: str) -> None:
    """A trajectory lives one, two or all three steps; it can leave its tube only while it lives."""
    rng = np.random.default_rng(10)
    shares = np.array([0.2, 0.3, 0.5])

    def draw(n: int) -> tuple[GaussianForecast, Trajectories]:
        forecast, states = walk(n, rng)
        lengths = rng.choice([1, 2, 3], p=shares, size=n)
        states[np.arange(STEPS) >= lengths[:, None]] = 1e9  # whatever stands after the end
        return forecast, Trajectories(states, lengths)

    score = fit_shape(*draw(2000), LEVEL, shape=shape)
    one, _ = walk(1, rng)
    scores = np.concatenate([score.scores(*draw(N * 500)) for _ in range(REPEATS // 500)])

    def error(t: float) -> float:
        region = score.sets(one, t).region
        if shape == "max":
            steps = chdtr(
                DIMS, region.radius2[0] * region.forecast.variances[0, :, 0] / (1.3 * SIGMA[0]) ** 2
            )
        else:
            steps = inside_box(region, 1.3 * SIGMA).prod(axis=1)
        return float(1 - shares @ np.cumprod(steps))

    assert binomtest(breaches(scores.reshape(REPEATS, N), error), REPEATS, EXACT).pvalue > DOUBT


@pytest.mark.parametrize("values", [3, 10, 200])
def test_heavy_ties_breach_at_most_as_often(values: int) -> None:
    scores = np.random.default_rng(6).integers(0, values, size=(REPEATS, N))
    count = breaches(scores, lambda t: 1 - (t + 1) / values)
    assert binomtest(count, REPEATS, LEVEL.delta, alternative="greater").pvalue > DOUBT


def test_mixtures_with_atoms_and_failures_breach_at_most_as_often() -> None:
    """1% of units fail, 30% tie at 0.5, the rest are uniform."""
    rng = np.random.default_rng(7)
    kind, scores = rng.random((REPEATS, N)), rng.random((REPEATS, N))
    scores[kind < 0.3] = 0.5
    scores[kind > 0.99] = np.inf
    count = breaches(scores, lambda t: 0.01 + 0.69 * (1 - t) + 0.3 * (t < 0.5))
    assert binomtest(count, REPEATS, LEVEL.delta, alternative="greater").pvalue > DOUBT


def test_dropping_failed_units_would_break_it() -> None:
    """2.5% of units fail: counted as errors the promise holds, left out of the sample it does not."""
    rng = np.random.default_rng(8)
    scores = rng.random((1000, N))

    def error(t: float) -> float:
        return 0.025 + 0.975 * (1 - t)

    def counted(row: np.ndarray) -> bool:
        try:
            return error(fit_threshold(row, LEVEL).value) > LEVEL.epsilon
        except TooManyFailures:
            return False  # a refusal promises nothing

    failed = np.where(rng.random(scores.shape) < 0.025, np.inf, scores)
    kept = sum(counted(row) for row in failed)
    assert binomtest(kept, 1000, LEVEL.delta, alternative="greater").pvalue > DOUBT
    assert breaches(scores, error) > 800


def test_the_ledger_charges_what_a_menu_costs() -> None:
    """Five epsilons from one look: the share of looks in which any of them breaches."""
    epsilons = (0.05, 0.06, 0.08, 0.1, 0.15)
    cost = joint_failure_probability(N, [Entry("s", epsilon, 0.05) for epsilon in epsilons])
    allowed = [max_errors(N, PACLevel(epsilon, 0.05)) for epsilon in epsilons]
    scores = np.sort(np.random.default_rng(9).random((REPEATS, N)), axis=1)
    any_breach = np.zeros(REPEATS, dtype=bool)
    for epsilon, k in zip(epsilons, allowed, strict=True):
        any_breach |= 1 - scores[:, N - 1 - k] > epsilon
    assert binomtest(int(any_breach.sum()), REPEATS, cost).pvalue > DOUBT
    assert 0.05 < cost < 0.25
