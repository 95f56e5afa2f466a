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
from scipy.stats import beta, binom, binomtest

from pac_core import GaussianForecast, LinearFeatures, LogitForecast, PACLevel, Trajectories
from pac_core.bounds import Entry, joint_failure_probability, max_errors
from pac_core.errors import TooManyFailures
from pac_core.scores import nll
from pac_core.sets import RankedScore, gaussian_sets
from pac_core.thresholds import fit_threshold
from pac_core.tubes import fit_shape
from pac_vision.tracking import share_score

pytestmark = pytest.mark.slow

LEVEL = PACLevel(0.1, 0.05)
N, REPEATS = 61, 20_000
# k* by scipy, not by the code under test, which could otherwise be off by one and agree with itself. Of 61
# units it is 2, and the binomial just below delta: one error more would breach 2.6 times as often.
ALLOWED = max(k for k in range(N) if binom.cdf(k, N, LEVEL.epsilon) < LEVEL.delta)
EXACT = float(binom.cdf(ALLOWED, N, LEVEL.epsilon))
DOUBT = 1e-4  # a true promise fails one of these tests once in ten thousand runs

Bound = Callable[[int, PACLevel], int]


def thresholds(scores: np.ndarray, bound: Bound = max_errors) -> np.ndarray:
    """`[R]` T of each row of scores `[R, n]`, infinite where it is refused: at the code's own k*, and in a
    hundred of the rows as `fit_threshold` finds it."""
    place = scores.shape[1] - 1 - bound(scores.shape[1], LEVEL)
    values = np.partition(scores, place, axis=1)[:, place]
    for row in np.linspace(0, len(scores) - 1, 100).astype(int):
        try:
            assert fit_threshold(scores[row], LEVEL, bound=bound).value == values[row]
        except TooManyFailures:
            assert values[row] == np.inf
    return values


def breaches(scores: np.ndarray, error: Callable[[float], float], bound: Bound = max_errors) -> int:
    """How many rows of `scores` `[R, n]` give a threshold whose true error, which falls as T rises, exceeds
    epsilon."""
    values = thresholds(scores, bound)
    low, high = float(values.min()), float(values.max())
    assert error(high) <= LEVEL.epsilon < error(low), "some calibrations breach and some do not"
    while high - low > 1e-12 * max(1.0, abs(high)):
        middle = (low + high) / 2
        low, high = (low, middle) if error(middle) <= LEVEL.epsilon else (middle, high)
    return int((values < high).sum())


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


RANKED = [
    RankedScore("likelihood", 1.0, 0.5),
    RankedScore("likelihood", 0.4, 0.2, 1.0),
    RankedScore("top", 2.0, 0.4, 1.0),
]


def draw_labels(n: int, rng: np.random.Generator) -> tuple[LogitForecast, np.ndarray]:
    """x uniform and f(1|x) = x true: the probability p of the true label has density 2p, and it ranks first
    where p > 1/2."""
    x = rng.random(n)
    labels = (rng.random(n) < x).astype(int)
    return LogitForecast(np.stack([np.zeros(n), np.log(x) - np.log1p(-x)], axis=1)), labels


def ranked_error(score: RankedScore, t: float) -> float:
    """The forecast says q with logit q = tau * logit p, so the error follows from two quantiles of p."""
    penalty = float(score.penalty(2)[1])

    def untempered(q: float) -> float:
        return min(max(q, 0.0), 1.0) if q <= 0 or q >= 1 else 1 / (1 + ((1 - q) / q) ** (1 / score.tau))

    if score.base == "likelihood":
        first, second = untempered(math.exp(-t)), untempered(math.exp(penalty - t))
        return max(first, 0.5) ** 2 - 0.25 + min(second, 0.5) ** 2
    assert score.base == "top"  # q where it ranks first; 1 - q and the penalty where it ranks second
    return 1 - max(untempered(t), 0.5) ** 2 + min(untempered(1 + penalty - t), 0.5) ** 2


@pytest.mark.parametrize("score", RANKED, ids=str)
def test_ranked_scores(score: RankedScore) -> None:
    scores = score.scores(*draw_labels(REPEATS * N, np.random.default_rng(0))).reshape(REPEATS, N)
    assert binomtest(breaches(scores, lambda t: ranked_error(score, t)), REPEATS, EXACT).pvalue > DOUBT


def test_the_closed_form_is_the_error_of_the_sets() -> None:
    forecast, labels = draw_labels(200_000, np.random.default_rng(3))
    for score in RANKED:
        for t in (0.4, 0.9, 1.6):
            missed = ~score.sets(forecast, t).contains(labels)
            assert missed.mean() == pytest.approx(ranked_error(score, t), abs=0.005)


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

    truth = 1.5 * rng.normal(size=(REPEATS * N, 3)) @ root.T
    forecast = GaussianForecast(np.zeros_like(truth), np.broadcast_to(cov, (len(truth), *cov.shape)))
    scores = nll(forecast, truth).reshape(REPEATS, N)
    one = GaussianForecast(np.zeros((1, 3)), cov[None])

    def error(t: float) -> float:
        return float(chdtrc(3, gaussian_sets(one, t).region.radius2.item() / 1.5**2))

    assert binomtest(breaches(scores, error), REPEATS, EXACT).pvalue > DOUBT


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
    scores = score.scores(*walk(REPEATS * N, rng)).reshape(REPEATS, N)

    def error(t: float) -> float:
        return true_error(shape, score.sets(one, t))

    assert binomtest(breaches(scores, error), REPEATS, EXACT).pvalue > DOUBT


def test_the_paper_tube() -> None:
    """`joint`: with two dimensions a step, Mahalanobis^2 is a sum of exponentials with a closed form."""
    rng = np.random.default_rng(5)
    score = fit_shape(*walk(2000, rng), LEVEL, shape="joint")
    one, _ = walk(1, rng)
    scores = score.scores(*walk(REPEATS * N, rng)).reshape(REPEATS, N)
    # At step t Mahalanobis^2 is w_t chi-squared_2, exponential with mean 2 w_t.
    weights = (1.3 * SIGMA[0]) ** 2 / score.sets(one, 0.0).region.forecast.var[0, :, 0]
    assert len(set(weights)) == STEPS

    def error(t: float) -> float:
        radius2 = max(0.0, float(score.sets(one, t).region.radius2[0, 0]))
        terms = [
            math.exp(-radius2 / (2 * w)) * math.prod(w / (w - v) for v in weights if v != w) for w in weights
        ]
        return math.fsum(terms)

    assert binomtest(breaches(scores, error), REPEATS, EXACT).pvalue > DOUBT


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
    scores = score.scores(*draw(REPEATS * N)).reshape(REPEATS, N)

    def error(t: float) -> float:
        region = score.sets(one, t).region
        if shape == "max":
            steps = chdtr(
                DIMS, region.radius2[0] * region.forecast.variances[0, :, 0] / (1.3 * SIGMA[0]) ** 2
            )
        else:
            steps = inside_box(region, 1.3 * SIGMA).prod(axis=1)
        return float(1 - shares @ np.cumprod(steps))

    assert binomtest(breaches(scores, error), REPEATS, EXACT).pvalue > DOUBT


@pytest.mark.parametrize("values", [9, 50, 200])
def test_heavy_ties_breach_at_most_as_often(values: int) -> None:
    """Of nine values the largest is a little likelier than epsilon: without it the promise is broken."""
    found = thresholds(np.random.default_rng(6).integers(0, values, size=(REPEATS, N)))
    count = int((1 - (found + 1) / values > LEVEL.epsilon).sum())
    assert count > 0
    assert binomtest(count, REPEATS, LEVEL.delta, alternative="greater").pvalue > DOUBT


def test_mixtures_with_atoms_and_failures_breach_at_most_as_often() -> None:
    """1% of units fail, 30% tie at 0.5, the rest are uniform."""
    rng = np.random.default_rng(7)
    kind, scores = rng.random((REPEATS, N)), rng.random((REPEATS, N))
    scores[kind < 0.3] = 0.5
    scores[kind > 0.99] = np.inf
    found = thresholds(scores)
    count = int((0.01 + 0.69 * (1 - found) + 0.3 * (found < 0.5) > LEVEL.epsilon).sum())
    assert count > 0
    assert binomtest(count, REPEATS, LEVEL.delta, alternative="greater").pvalue > DOUBT


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


FRAMES, VIDEOS = 20, 1_200


@pytest.mark.parametrize(("gamma", "missed"), [(0.0, 0), (0.1, 2), (0.25, 5)])
def test_videos(gamma: float, missed: int) -> None:
    """Frames score uniformly; a video fails where more than so many of its twenty lie above the threshold."""
    frames = np.random.default_rng(1).random((VIDEOS * N, FRAMES))
    scores = np.array([share_score(video, gamma) for video in frames]).reshape(VIDEOS, N)
    count = breaches(scores, lambda t: float(beta.sf(t, FRAMES - missed, missed + 1)))
    assert binomtest(count, VIDEOS, EXACT).pvalue > DOUBT
