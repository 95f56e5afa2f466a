"""A threshold for each group: how often any group breaks its promise, against the closed form.

For continuous scores any of the groups breaks with probability exactly 1 - prod(1 - P[Bin(n_g, eps) <= k_g]),
given who is in which group: one error more, or less, must fail the same test.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from pac_core import Groups, LogitForecast, PACLevel
from pac_core.bounds import Bound, max_errors
from pac_core.sets import Likelihood, Predictor
from pac_core.thresholds import OTHER, GroupThreshold, fit_threshold

LEVEL = PACLevel(0.1, 0.3)
SIZES = {"a": 61, "b": 40, "c": 90}
NAMES = np.repeat(list(SIZES), list(SIZES.values()))
REPEATS, DOUBT = 2000, 1e-4


@cache
def allowed(n: int, delta: float, epsilon: float = LEVEL.epsilon) -> int:
    """k* by scipy, not by the code under test."""
    return int(np.flatnonzero(binom.cdf(np.arange(n), n, epsilon) < delta)[-1])


@cache
def at_most(more: int) -> Bound:
    """The bound of the code under test with so many errors more."""
    return cache(lambda n, level: max_errors(n, level) + more)


@cache
def breaks(n: int, delta: float) -> float:
    """How often a group of n units breaks its promise."""
    return float(binom.cdf(allowed(n, delta), n, LEVEL.epsilon))


EXACT = 1 - math.prod(1 - breaks(n, LEVEL.delta / 3) for n in SIZES.values())


def any_breaks(more: int) -> int:
    """In how many calibrations on uniform scores, whose error at T is 1 - T, a group errs above epsilon."""
    rng, groups, broken = np.random.default_rng(0), Groups(NAMES), 0
    scale = np.where(NAMES == "b", 7.0, 1.0)  # of its own in each group, as one T would get wrong
    for _ in range(REPEATS):
        scores = scale * rng.random(len(NAMES))
        made = fit_threshold(scores, LEVEL, groups=groups, bound=at_most(more))
        assert isinstance(made, GroupThreshold)
        errors = [1 - one.value / (7.0 if name == "b" else 1.0) for name, one in made.groups.items()]
        broken += max(errors) > LEVEL.epsilon
    return broken


def test_any_group_breaks_as_often_as_the_closed_form_says() -> None:
    assert 0.1 < EXACT < LEVEL.delta
    assert binomtest(any_breaks(0), REPEATS, EXACT).pvalue > DOUBT


@pytest.mark.parametrize("more", [1, -1])
def test_one_error_more_or_less_would_be_seen(more: int) -> None:
    assert binomtest(any_breaks(more), REPEATS, EXACT).pvalue < DOUBT


def test_one_threshold_for_all_hides_a_group_that_errs_far_above_epsilon() -> None:
    rng = np.random.default_rng(0)
    scores = np.where(NAMES == "b", 2.0, 1.0) * rng.random(len(NAMES))
    one = fit_threshold(scores, LEVEL).value
    assert 1 - one / 2 > 2 * LEVEL.epsilon  # the true error in b


@pytest.fixture(scope="module")
def population() -> tuple[LogitForecast, np.ndarray, np.ndarray]:
    """A finite population, whose errors can be counted: logits, labels, and the score of each truth."""
    rng = np.random.default_rng(1)
    logits = 2 * rng.normal(size=(3000, 4))
    labels = (logits + np.array([1.5, 0, 0, -1]) + rng.gumbel(size=logits.shape)).argmax(axis=1)
    forecast = LogitForecast(logits)
    return forecast, labels, Likelihood().scores(forecast, labels)


@pytest.mark.parametrize(("more", "kept"), [(0, True), (2, False)])
def test_groups_of_labels_keep_their_promise_given_the_true_label(
    population: tuple[LogitForecast, np.ndarray, np.ndarray], more: int, kept: bool
) -> None:
    forecast, labels, scores = population
    groups = Groups(labels=["x", "y", "y", "z"])
    rng, repeats, broken, bounds = np.random.default_rng(2), 400, 0, []
    for _ in range(repeats):
        drawn = rng.integers(0, len(labels), size=400)  # independent draws from the population
        known = Groups.of(groups, labels[drawn], forecast.domain)
        assert known is not None
        made = fit_threshold(scores[drawn], LEVEL, groups=known, bound=at_most(more))
        assert isinstance(made, GroupThreshold)
        of = groups.labels[labels]
        errors = [(scores[of == name] > one.value).mean() for name, one in made.groups.items()]
        broken += max(errors) > LEVEL.epsilon
        each = [(one.n, one.level.delta) for one in made.groups.values() if one.value < np.inf]
        bounds.append(1 - math.prod(1 - breaks(*one) for one in each))
    refuted = binomtest(broken, repeats, float(np.mean(bounds)), alternative="greater").pvalue < 1e-3
    assert refuted is not kept


def test_a_set_holds_exactly_the_labels_whose_score_is_at_most_the_t_of_their_group(
    population: tuple[LogitForecast, np.ndarray, np.ndarray],
) -> None:
    forecast, labels, scores = population
    groups = Groups.of(Groups(labels=["x", "y", "y", "z"]), labels[:500], forecast.domain)
    made = fit_threshold(scores[:500], LEVEL, groups=groups)
    assert isinstance(made, GroupThreshold)
    member = Predictor(Likelihood(), made, forecast.domain).sets(forecast).member
    for label, name in enumerate(["x", "y", "y", "z"]):
        score = Likelihood().scores(forecast, np.full(len(labels), label))
        near = abs(score - made.groups[name].value) < 1e-4  # sets are wider than T by 2e-5
        assert np.array_equal(member[~near, label], (score <= made.groups[name].value)[~near])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=2, max_size=6),
    st.lists(st.floats(0, 1), min_size=6, max_size=6),
    st.sampled_from([0.05, 0.1, 0.2]),
)
def test_merged_groups_break_no_oftener_in_the_proportions_of_their_units(
    sizes: list[int], shares: list[float], epsilon: float
) -> None:
    """Errors of units of several distributions are Poisson-binomial: where their mean share is epsilon or
    more, at most k of them err with probability delta at most. By exact convolution."""
    names = np.repeat([f"g{i}" for i in range(len(sizes))], sizes)
    try:
        merged, own, _ = Groups(names, merge_small=True).plan(PACLevel(epsilon, 0.1))
    except ValueError:
        return
    inside = merged == OTHER
    if not inside.any():
        return
    k = allowed(int(inside.sum()), own.delta, epsilon)
    p = np.repeat(shares[: len(sizes)], sizes)[inside]
    p = 1 - (1 - p) * min(
        1.0, (1 - epsilon) / max(1 - p.mean(), 1e-12)
    )  # raised to a mean of epsilon at least
    assert p.mean() >= epsilon - 1e-12
    exact = np.ones(1)
    for one in p:
        exact = np.convolve(exact, [1 - one, one])
    assert exact[: k + 1].sum() <= own.delta + 1e-12
