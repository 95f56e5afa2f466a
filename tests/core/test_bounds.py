"""k* against exact arithmetic, by hand-checkable values, at ties and at the far ends of doubles."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betaincc

from pac_core import NotEnoughData, PACLevel
from pac_core.bounds import max_errors, min_samples, vc_max_errors, vc_min_samples

probabilities = st.floats(min_value=1e-3, max_value=0.999)


def exact_tail(n: int, k: int, epsilon: float) -> Fraction:
    """P[Binomial(n, epsilon) <= k] from binomial coefficients, with no rounding."""
    p = Fraction(epsilon)
    return sum((math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1)), Fraction(0))


def exact_max_errors(n: int, level: PACLevel) -> int:
    """The largest k, by trying all of them; -1 where there is none."""
    allowed = [k for k in range(n + 1) if exact_tail(n, k, level.epsilon) < Fraction(level.delta)]
    return max(allowed, default=-1)


@pytest.mark.parametrize(
    ("n", "epsilon", "delta", "expected"),
    [
        (20_000, 0.01, 1e-5, 142),
        (5_000, 0.01, 1e-5, 22),
        (22, 0.1, 0.1, 0),
        (3, 0.5, 0.5, 0),
        (300, 0.05, 0.01, 6),
    ],
)
def test_known_answers(n: int, epsilon: float, delta: float, expected: int) -> None:
    assert max_errors(n, PACLevel(epsilon, delta)) == expected


def test_min_samples_known_answers() -> None:
    assert min_samples(PACLevel(0.01, 1e-5)) == 1146
    assert min_samples(PACLevel(0.1, 0.1)) == 22
    table = [min_samples(PACLevel(0.05, 0.01), k) for k in range(6)]
    assert table == [90, 130, 165, 198, 229, 259]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 23, 50])
def test_agrees_with_rational_arithmetic(n: int) -> None:
    for epsilon in (1e-3, 0.05, 0.1, 0.25, 0.5, 0.9):
        for delta in (1e-12, 1e-5, 0.05, 0.5, 0.99):
            level = PACLevel(epsilon, delta)
            expected = exact_max_errors(n, level)
            if expected < 0:
                with pytest.raises(NotEnoughData):
                    max_errors(n, level)
            else:
                assert max_errors(n, level) == expected


@pytest.mark.parametrize("epsilon", [0.5, 0.25, 0.1, 0.03])
@pytest.mark.parametrize("n", [4, 30, 53])
def test_a_tie_with_delta_is_not_below_it(n: int, epsilon: float) -> None:
    """delta set to a tail, and to its two neighbours among the doubles: where rounding would decide."""
    for k in range(0, n // 2, 3):
        tail = float(exact_tail(n, k, epsilon))
        for delta in (math.nextafter(tail, 0), tail, math.nextafter(tail, 1)):
            if not 0 < delta < 1:
                continue
            level = PACLevel(epsilon, delta)
            expected = exact_max_errors(n, level)
            got = max_errors(n, level) if expected >= 0 else -1
            assert got == expected, (k, delta)


@pytest.mark.parametrize("delta", [1e-5, 1e-100, 1e-300])
@pytest.mark.parametrize(("n", "epsilon"), [(10**6, 0.01), (10**9, 0.01), (10**9, 1e-4)])
def test_far_ends_agree_with_fifty_digits(n: int, epsilon: float, delta: float) -> None:
    k = max_errors(n, PACLevel(epsilon, delta))
    with mpmath.workdps(50):
        assert _tail_by_series(n, k, epsilon) < delta <= _tail_by_series(n, k + 1, epsilon)


def _tail_by_series(n: int, k: int, epsilon: float) -> mpmath.mpf:
    """The tail from its largest term downwards, until terms no longer count."""
    p = mpmath.mpf(epsilon)
    log_choose = mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)
    term = mpmath.exp(log_choose + k * mpmath.log(p) + (n - k) * mpmath.log(1 - p))
    total = mpmath.mpf(0)
    odds = (1 - p) / p
    for i in range(k, -1, -1):
        total += term
        if term < total * mpmath.mpf("1e-20"):
            break
        term = term * i / (n - i + 1) * odds
    return total


def test_ties_beyond_exact_reach_count_as_no() -> None:
    """delta set to the tail itself: the next smaller k is certain, this one is left undecided."""
    n, k, epsilon = 5000, 40, 0.01
    tail = float(betaincc(k + 1, n - k, epsilon))
    assert max_errors(n, PACLevel(epsilon, tail)) == k - 1
    assert max_errors(n, PACLevel(epsilon, tail * (1 + 1e-6))) == k


def test_refusal_says_how_many_would_do() -> None:
    with pytest.raises(
        NotEnoughData, match=r"20 calibration units .* at least 22 are needed \(2 more\)"
    ) as caught:
        max_errors(20, PACLevel(0.1, 0.1))
    assert (caught.value.n, caught.value.needed) == (20, 22)


@given(n=st.integers(1, 10**6), epsilon=probabilities, delta=probabilities, grow=st.floats(1, 1.5))
def test_monotone_in_everything(n: int, epsilon: float, delta: float, grow: float) -> None:
    def errors(n: int, epsilon: float, delta: float) -> int:
        try:
            return max_errors(n, PACLevel(min(epsilon, 0.9999), min(delta, 0.9999)))
        except NotEnoughData:
            return -1

    base = errors(n, epsilon, delta)
    assert errors(math.ceil(n * grow), epsilon, delta) >= base
    assert errors(n, epsilon * grow, delta) >= base
    assert errors(n, epsilon, delta * grow) >= base


@given(errors=st.integers(0, 300), epsilon=st.floats(1e-4, 0.5), delta=st.floats(1e-12, 0.5))
def test_min_samples_is_the_turning_point(errors: int, epsilon: float, delta: float) -> None:
    level = PACLevel(epsilon, delta)
    n = min_samples(level, errors)
    assert max_errors(n, level) >= errors
    try:
        assert max_errors(n - 1, level) < errors
    except NotEnoughData:
        pass
    except ValueError:
        assert n == 1  # no sample is smaller


def test_vc_bound_by_its_formula() -> None:
    """epsilon n - sqrt(n (ln 2n + 1 - ln delta/4)) = 1000 - 700.0 at n = 20,000 (equation 5)."""
    assert vc_max_errors(20_000, PACLevel(0.05, 1e-5)) == 300
    with pytest.raises(NotEnoughData, match="at least 271,024 are needed"):
        vc_max_errors(20_000, PACLevel(0.01, 1e-5))
    assert vc_max_errors(vc_min_samples(PACLevel(0.01, 1e-5)), PACLevel(0.01, 1e-5)) == 0
