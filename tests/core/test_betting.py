"""Tests that may be looked at after every unit: closed forms, and what an error in them would show."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from exact_bets import proof_probability
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from pac_core import InvalidInput, PACLevel
from pac_core.betting import (
    Bets,
    confidence_sequence,
    hoeffding_bentkus,
    needed_log_wealth,
    refutes_at,
)
from pac_core.bounds import min_samples

DOUBT = 1e-3  # with which a simulation of a sound test fails


def quantile(proved: np.ndarray, share: float) -> int:
    return int(np.argmax(proved >= share)) + 1


@pytest.mark.parametrize(("error", "median", "most"), [(0.0, 105, 105), (0.01, 157, 322), (0.02, 359, 810)])
def test_how_many_episodes_it_takes(error: float, median: int, most: int) -> None:
    """At (0.05, 0.01), the median and nine in ten; fixed plans pass with 63%, 92%, 97% at an error of 1%."""
    proved = proof_probability(Bets.at(0.05), 0.01, error, 1000)
    assert (quantile(proved, 0.5), quantile(proved, 0.9)) == (median, most)
    plans = {130: 1, 229: 4, 300: 6}
    assert [round(binom.cdf(allowed, n, 0.01), 2) for n, allowed in plans.items()] == [0.63, 0.92, 0.97]


@pytest.mark.parametrize(("alpha", "delta"), [(0.05, 0.01), (0.1, 0.05), (0.02, 1e-3), (0.5, 0.1)])
def test_a_bad_rate_is_certified_with_probability_at_most_delta(alpha: float, delta: float) -> None:
    """Exactly, by recursion; the bound is nearly spent, so one error less counted would break it."""
    proved = proof_probability(Bets.at(alpha), delta, alpha, 1500)[-1]
    assert proved <= delta
    weaker = proof_probability(Bets.at(alpha), min(1.7 * delta, 0.99), alpha, 1500)[-1]
    assert weaker > delta


def test_the_recursion_is_the_sum_over_all_sequences() -> None:
    bets, delta, error, most = Bets.at(0.3), 0.3, 0.1, 12
    proved = np.zeros(most)
    for errors in product((0, 1), repeat=most):
        if found := bets.first_proof(errors, delta):
            proved[found - 1 :] += error ** sum(errors) * (1 - error) ** (most - sum(errors))
    np.testing.assert_allclose(proof_probability(bets, delta, error, most), proved, atol=1e-12)


def test_errors_that_depend_on_the_past_change_nothing() -> None:
    """The rate follows the errors so far, but is never below alpha: H0 holds, and is rejected as seldom."""
    rng, bets, alpha, delta, worlds = np.random.default_rng(1), Bets.at(0.1), 0.1, 0.05, 2000
    errors, rate = np.zeros((worlds, 400)), np.full(worlds, alpha)
    for i in range(400):
        errors[:, i] = rng.random(worlds) < rate
        rate = np.where(errors[:, max(0, i - 10) : i + 1].any(axis=1), alpha, 0.3)  # luck is followed by more
    found = sum(bets.first_proof(row, delta) is not None for row in errors)
    assert binomtest(found, worlds, delta, alternative="greater").pvalue > DOUBT


def test_counting_in_the_order_of_completion_would_be_caught() -> None:
    """Errors that finish late: by id order seldom a false proof, by order of completion nearly always."""
    rng, bets, delta = np.random.default_rng(2), Bets.at(0.05), 0.01
    errors = rng.random((500, 600)) < 0.05
    late = np.sort(errors, axis=1)  # the successes finish first
    sound, cheat = (sum(bets.first_proof(row, delta) is not None for row in rows) for rows in (errors, late))
    assert binomtest(sound, 500, delta, alternative="greater").pvalue > DOUBT
    assert cheat > 490


@pytest.mark.parametrize(("a", "b"), [(1, 19), (5, 95), (0.1, 1.9)])
def test_losses_of_risk_alpha_are_refuted_with_probability_at_most_delta(a: float, b: float) -> None:
    rng, delta, alpha = np.random.default_rng(3), 0.05, 0.05
    losses = rng.beta(a, b, size=(2000, 400))
    sequential = sum(Bets.at(alpha).first_proof(row, delta) is not None for row in losses)
    planned = sum(refutes_at(row, PACLevel(alpha, delta)) for row in losses)
    for found in (sequential, planned):
        assert binomtest(found, 2000, delta, alternative="greater").pvalue > DOUBT


@pytest.mark.parametrize("n", [20, 100, 500])
def test_the_p_value_of_errors_is_one(n: int) -> None:
    """P[p <= delta] <= delta at the boundary of the null, summed over all counts."""
    for alpha in (0.05, 0.3):
        p = np.array([hoeffding_bentkus(k / n, n, alpha) for k in range(n + 1)])
        for delta in (0.1, 0.01, 1e-4):
            assert binom.pmf(np.arange(n + 1), n, alpha)[p <= delta].sum() <= delta


def test_the_p_value_of_part_losses_by_hand() -> None:
    """20 units lose 2.5 in all, of 6 expected: e times P[Bin(20, 0.3) <= 3], the next whole number, and not
    <= 2; the other bound, exp(-20 KL(0.125, 0.3)), is smaller or larger as the case may be."""
    kl = 0.125 * math.log(0.125 / 0.3) + 0.875 * math.log(0.875 / 0.7)
    whole = math.e * sum(math.comb(20, k) * 0.3**k * 0.7 ** (20 - k) for k in range(4))
    assert hoeffding_bentkus(0.125, 20, 0.3) == pytest.approx(min(math.exp(-20 * kl), whole), rel=1e-12)
    n, alpha, mean = 2000, 0.02, 20.5 / 2000  # where the second is the smaller one
    kl = mean * math.log(mean / alpha) + (1 - mean) * math.log((1 - mean) / (1 - alpha))
    whole = math.e * sum(math.comb(n, k) * alpha**k * (1 - alpha) ** (n - k) for k in range(22))
    assert whole < math.exp(-n * kl)
    assert hoeffding_bentkus(mean, n, alpha) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize(
    ("n", "alpha", "shares"), [(40, 0.3, (0.5, 0.4, 0.1)), (300, 0.05, (0.92, 0.06, 0.02))]
)
def test_the_p_value_of_losses_of_three_values_is_one(
    n: int, alpha: float, shares: tuple[float, ...]
) -> None:
    """Of 0, 1/2 and 1 with these probabilities the mean is alpha: P[p <= delta] <= delta, by convolution."""
    assert shares[1] / 2 + shares[2] == pytest.approx(alpha)
    exact = np.ones(1)
    for _ in range(n):
        exact = np.convolve(exact, shares)  # of twice the sum
    p = np.array([hoeffding_bentkus(twice / (2 * n), n, alpha) for twice in range(2 * n + 1)])
    for delta in (0.3, 0.1, 0.01, 1e-4):
        assert exact[p <= delta].sum() <= delta


def test_the_two_parts_at_the_end_share_delta() -> None:
    """At (0.1, 0.01): 0.9^47 = 0.00707 is above 0.7 delta, 0.9^48 below; wealth must reach 1 / (0.3 delta),
    333.3, where it alone decides."""
    level = PACLevel(0.1, 0.01)
    assert 0.9**48 < 0.007 < 0.9**47 < 0.01
    assert [refutes_at(np.zeros(n), level) for n in (47, 48)] == [False, True]

    def wealth(n: int, loss: float) -> float:  # by hand, of the bets on 0.005, 0.02 and 0.04
        stakes = ((0.4, 0.095 / 0.09), (0.4, 0.08 / 0.09), (0.2, 0.06 / 0.09))
        return sum(weight * (1 + stake * (0.1 - loss)) ** n for weight, stake in stakes)

    assert 100 < wealth(90, 0.04) < wealth(103, 0.04) < 333.3 < wealth(104, 0.04)
    for n, shown in ((90, False), (103, False), (104, True)):
        assert hoeffding_bentkus(0.04, n, 0.1) > 0.05, "which shows nothing here"
        assert refutes_at(np.full(n, 0.04), level) is shown


@pytest.mark.parametrize("level", [PACLevel(0.1, 0.01), PACLevel(0.05, 0.01), PACLevel(0.3, 0.2)])
def test_the_fewest_that_can_show_anything_at_the_end(level: PACLevel) -> None:
    fewest = min_samples(PACLevel(level.epsilon, 0.7 * level.delta))
    assert [refutes_at(np.zeros(n), level) for n in (fewest - 1, fewest)] == [False, True]


def smallest_risk(losses: np.ndarray, refuted: object) -> float:
    """The smallest risk that these losses refute, by bisection."""
    low, high = float(losses.mean()), 0.9
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(middle) else (middle, high)  # type: ignore[operator]
    return high


@pytest.mark.parametrize(("delta", "most"), [(0.05, 1.12), (0.01, 1.08), (0.001, 1.06)])
def test_how_far_from_hoeffding_bentkus_the_docs_say_it_is(delta: float, most: float) -> None:
    """On errors, which vary most; farthest where there are none: log(0.7 delta) / log(delta)."""
    ratios = []
    for n, errors in product((100, 300, 1000), (0, 1, 5, 50)):
        losses = (np.arange(n) < errors).astype(float)
        mean = errors / n
        plain = smallest_risk(losses, lambda alpha, n=n, m=mean: hoeffding_bentkus(m, n, alpha) <= delta)
        both = smallest_risk(losses, lambda alpha, x=losses: refutes_at(x, PACLevel(alpha, delta)))
        ratios.append(both / plain)
    assert most - 0.01 < max(ratios) <= most
    assert max(ratios) == pytest.approx(math.log(0.7 * delta) / math.log(delta), abs=0.002)
    said = " ".join((Path(__file__).parents[2] / "docs" / "guarantees.md").read_text().split())
    assert f"{most} times its limit at delta = {delta}" in said


def test_the_combination_is_near_the_better_of_its_parts() -> None:
    """Within 8% of Hoeffding-Bentkus on errors; at most 0.85 of it where losses vary little."""
    n, delta, rng = 500, 0.01, np.random.default_rng(4)
    for losses, most in ((np.arange(n) < 25, 1.08), (rng.beta(5, 95, size=n), 0.85)):
        losses = losses.astype(float)
        mean = float(losses.mean())
        plain = smallest_risk(losses, lambda alpha, mean=mean: hoeffding_bentkus(mean, n, alpha) <= delta)
        both = smallest_risk(losses, lambda alpha, x=losses: refutes_at(x, PACLevel(alpha, delta)))
        assert both / plain <= most


@pytest.mark.parametrize("level", [PACLevel(0.05, 0.01), PACLevel(0.01, 1e-3), PACLevel(0.2, 0.05)])
def test_without_losses_it_takes_at_most_a_third_more_units_than_a_fixed_plan(level: PACLevel) -> None:
    needed = Bets.at(level.epsilon).first_proof(np.zeros(5000), level.delta)
    assert needed is not None
    assert min_samples(level) <= needed <= 1.35 * min_samples(level)


def test_a_confidence_sequence_holds_at_all_looks_together() -> None:
    rng, delta, rate, worlds = np.random.default_rng(5), 0.1, 0.07, 400
    missed = 0
    for row in rng.random((worlds, 500)) < rate:
        low, high = confidence_sequence(row, delta).T
        missed += bool((low > rate).any() or (high < rate).any())
    assert binomtest(missed, worlds, delta, alternative="greater").pvalue > DOUBT


@given(st.lists(st.integers(0, 1), min_size=1, max_size=60), st.floats(0.01, 0.9))
def test_wealth_of_errors_is_the_product_it_is_said_to_be(errors: list[int], alpha: float) -> None:
    bets, k, n = Bets.at(alpha), sum(errors), len(errors)
    product = math.fsum(
        w * (q / alpha) ** k * ((1 - q) / (1 - alpha)) ** (n - k)
        for q, w in zip(bets.rates, bets.weights, strict=True)
    )
    assert bets.log_wealth(errors)[-1] == pytest.approx(math.log(product), abs=1e-9)


def test_a_bet_on_no_errors_is_ruined_by_one() -> None:
    bets = Bets(0.05, (0.0,), (1.0,))
    assert bets.first_proof([0] * 90, 0.01) == 90 == min_samples(PACLevel(0.05, 0.01))
    assert np.isneginf(bets.log_wealth([0, 1, 0])).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Bets(0.05, (0.05,), (1.0,)), r"rates must lie in \[0, alpha\)"),
        (lambda: Bets(0.05, (0.01, 0.02), (0.5, 0.6)), "weights must be 2 numbers above 0 that sum to 1"),
        (lambda: Bets.at(1.5), "alpha must lie strictly between 0 and 1"),
        (lambda: Bets.at(0.1).log_wealth([0.5, 1.5]), r"losses must lie in \[0, 1\], got 1.5"),
        (lambda: Bets.at(0.1).log_wealth([0.5, float("nan")]), "losses must"),
        (lambda: needed_log_wealth(0.0), "delta must lie strictly between 0 and 1"),
        (lambda: confidence_sequence([0, 0.5], 0.1), "errors must be 0 or 1"),
    ],
)
def test_what_is_no_bet_is_refused(call: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        call()  # type: ignore[operator]
