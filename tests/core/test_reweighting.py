"""Units of an old policy, thinned out until they are drawn like those of the new one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binomtest, kstest, norm

from pac_core import InvalidInput, PACLevel, SecondLook
from pac_core.bounds import min_samples
from pac_core.certificates import fit_reweighted, gaussian_bound, gaussian_weights, read_ledger, reweigh
from pac_core.errors import TooFewAccepted
from pac_core.thresholds import fit_threshold

LEVEL = PACLevel(0.1, 0.1)
OLD, NEW, SHIFT, STEPS, N = 1.0, 0.8, 0.3, 3, 300
"""A walk of three steps: the old policy draws N(0, 1), the new one N(0.3, 0.8^2); the score is their sum."""


def walks(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """`[N]` scores of the old policy's walks, and their weights."""
    noise = rng.standard_normal((N, STEPS, 1))
    return OLD * noise.sum(axis=(1, 2)), gaussian_weights(noise, [OLD], [NEW], np.full(noise.shape, SHIFT))


def true_error(threshold: float) -> float:
    """P(sum > threshold) under the new policy."""
    return float(ndtr(-(threshold - STEPS * SHIFT) / (NEW * np.sqrt(STEPS))))


def test_weights_are_density_ratios() -> None:
    noise = np.random.default_rng(0).standard_normal((50, 4, 2))
    old, new, shift = np.array([1.0, 0.5]), np.array([0.7, 0.5]), np.array([0.2, 0.0])
    actions = old * noise
    by_hand = norm.pdf(actions, shift, new) / norm.pdf(actions, 0, old)
    ours = gaussian_weights(noise, old, new, np.broadcast_to(shift, noise.shape))
    assert ours == pytest.approx(by_hand.prod(axis=(1, 2)))


def test_the_bound_is_the_largest_ratio_there_is() -> None:
    actions = np.linspace(-6, 6, 200_001)
    for shift in (0.0, 0.3):
        largest = (norm.pdf(actions, shift, NEW) / norm.pdf(actions, 0, OLD)).max()
        assert gaussian_bound([OLD], [NEW], steps=1, shift=shift) == pytest.approx(largest)
        assert gaussian_bound([OLD], [NEW], steps=1, shift=shift) > largest
    assert gaussian_bound([1.0, 1.0], [0.5, 0.25], steps=2) == pytest.approx((2 * 4) ** 2)


def test_what_is_accepted_is_drawn_like_the_new_policy() -> None:
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((20_000, STEPS, 1))
    weights = gaussian_weights(noise, [OLD], [NEW], np.full(noise.shape, SHIFT))
    bound = gaussian_bound([OLD], [NEW], steps=STEPS, shift=SHIFT)
    rows = reweigh(range(20_000), weights, bound, seed=0)
    assert binomtest(len(rows), 20_000, 1 / bound).pvalue > 1e-4
    sums = noise.sum(axis=(1, 2))[rows]
    assert kstest(sums, norm(STEPS * SHIFT, NEW * np.sqrt(STEPS)).cdf).pvalue > 1e-4


def test_acceptance_belongs_to_the_unit_and_the_seed() -> None:
    weights = np.linspace(0, 2, 1000)
    rows = reweigh(range(1000), weights, 2.0, seed=5)
    back = reweigh(range(999, -1, -1), weights[::-1], 2.0, seed=5)
    assert sorted(999 - back) == rows.tolist()
    assert reweigh(range(1000), weights, 2.0, seed=6).tolist() != rows.tolist()
    assert 0 not in rows
    assert 999 in rows, "a weight of b always stays, one of 0 never"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"weights": [1.0, 2.1]}, "a weight of 2.1 .unit 'b'.: it is not a bound"),
        ({"weights": [1.0, -0.1]}, "at least 0"),
        ({"weights": [1.0, np.nan]}, "NaN"),
        ({"weights": [1.0, np.inf]}, "finite"),
        ({"weights": [1.0]}, "one for each weight"),
        ({"ids": ["a", "a"]}, "unique"),
        ({"bound": 0.5}, "at least 1"),
        ({"bound": np.inf}, "finite"),
        ({"bound": float("nan")}, "finite"),
        ({"seed": -1}, "seed must"),
    ],
)
def test_what_is_refused(changed: dict[str, Any], words: str) -> None:
    given = {"ids": ["a", "b"], "weights": [1.0, 1.0], "bound": 2.0, "seed": 0} | changed
    with pytest.raises(InvalidInput, match=words):
        reweigh(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"old": [0.5], "new": [0.6]}, "must not be wider"),
        ({"old": [0.5, 0.5], "new": [0.4, 0.6]}, "must not be wider"),
        ({"old": [0.5], "new": [0.5], "shift": 0.1}, "no bound in the tails"),
        ({"old": [0.5], "new": [0.4], "shift": -0.1}, "shift must"),
        ({"old": [0.5], "new": [0.0]}, "deterministic policy has no density"),
        ({"old": [0.0], "new": [0.0]}, "deterministic policy has no density"),
        ({"old": [0.5] * 6, "new": [0.25] * 6, "steps": 220}, "keeps no unit at all"),
        ({"old": [0.5, 0.5], "new": [0.4]}, "a deviation for each action"),
        ({"old": [np.nan], "new": [0.4]}, "NaN"),
    ],
)
def test_pairs_without_a_bound_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        gaussian_bound(**({"steps": 1} | given))


def test_too_few_that_remain_are_refused_with_the_numbers() -> None:
    level = PACLevel(0.01, 1e-5)
    with pytest.raises(TooFewAccepted) as refused:
        fit_reweighted(range(2000), np.arange(2000.0), np.ones(2000), 4.0, level, seed=0)
    error = refused.value
    assert 420 <= error.n <= 580
    assert (error.units, error.bound, error.needed) == (2000, 4.0, min_samples(level))
    assert error.units_needed == 4 * 1146
    assert f"{error.n} of 2,000 units were accepted at the weight bound 4" in str(error)
    assert "takes about 4,584 units" in str(error)
    assert str(copy.copy(error)) == str(error)
    with pytest.raises(TooFewAccepted, match="0 of 5 units"):
        fit_reweighted(range(5), np.arange(5.0), np.zeros(5), 4.0, level, seed=0)


def test_the_threshold_is_that_of_the_accepted_units() -> None:
    scores = np.random.default_rng(2).normal(size=500)
    weights = np.where(scores > 0, 1.5, 0.5)
    made = fit_reweighted(range(500), scores, weights, 1.5, LEVEL, seed=3)
    assert made.threshold == fit_threshold(scores[made.rows], LEVEL)
    assert made.threshold.n == len(made.rows) < made.units == 500
    assert "500 units of the old policy, at the weight bound 1.5" in repr(made)
    with pytest.raises(InvalidInput, match="scores must have one entry per unit"):
        fit_reweighted(range(500), scores[:499], weights, 1.5, LEVEL, seed=3)


def test_a_ledger_charges_each_policy_and_seed(tmp_path: Path) -> None:
    ledger, scores, weights = tmp_path / "ledger", np.arange(500.0), np.ones(500)
    given: dict[str, Any] = {"seed": 0, "ledger": ledger}
    with pytest.raises(TooFewAccepted):  # seen without a look at a score
        fit_reweighted(range(500), scores, weights, 400.0, LEVEL, **given)
    assert not ledger.exists()
    made = fit_reweighted(range(500), scores, weights, 2.0, LEVEL, **given)
    again = fit_reweighted(range(500), scores, weights, 2.0, LEVEL, **given)  # after a crash, say
    assert again.threshold == made.threshold
    [look] = read_ledger(ledger)
    assert (look.n, look.cost) == (500, LEVEL.delta)
    others: list[Any] = [
        (range(500), scores, weights, 2.0, LEVEL, 1),
        (range(500), scores, weights * 0.9, 2.0, LEVEL, 0),
        (range(500), scores, weights, 2.5, LEVEL, 0),
        (range(500), scores, weights, 2.0, PACLevel(0.2, 0.1), 0),
        (range(500), scores + 1, weights, 2.0, LEVEL, 0),
        (range(499, 999), scores, weights, 2.0, LEVEL, 0),
    ]
    for *other, seed in others:
        with pytest.raises(SecondLook):
            fit_reweighted(*other, seed=seed, ledger=ledger)
    fit_reweighted(range(500, 1000), scores, weights, 2.0, LEVEL, **given)
    assert len(read_ledger(ledger)) == 2


@pytest.mark.slow
def test_the_promise_holds_for_the_new_policy_and_the_old_certificate_does_not() -> None:
    rng, repeats = np.random.default_rng(4), 1200
    bound = gaussian_bound([OLD], [NEW], steps=STEPS, shift=SHIFT)
    ours = old = 0
    for seed in range(repeats):
        scores, weights = walks(rng)
        made = fit_reweighted(range(N), scores, weights, bound, LEVEL, seed=seed)
        ours += true_error(made.threshold.value) > 0.1
        old += true_error(fit_threshold(scores, LEVEL).value) > 0.1
    assert binomtest(ours, repeats, LEVEL.delta, alternative="greater").pvalue > 1e-3
    assert ours > repeats * LEVEL.delta / 3, "not valid by throwing the units away"
    assert old > 0.5 * repeats


@pytest.mark.slow
def test_the_largest_weight_seen_is_no_bound() -> None:
    """What the old policy does once in 2,000 units, and always badly, the new one does in 15% of them."""
    rng, repeats, rare = np.random.default_rng(5), 300, (0.0005, 0.15)
    common, proven = (1 - rare[1]) / (1 - rare[0]), rare[1] / rare[0]
    breaches = refused = 0
    for seed in range(repeats):
        bad = rng.random(N) < rare[0]
        scores = rng.random(N) + bad
        weights = np.where(bad, proven, common)
        seen = max(1.0, float(weights.max()))
        try:
            t = fit_reweighted(range(N), scores, weights, seen, LEVEL, seed=seed).threshold.value
            breaches += rare[1] + (1 - rare[1]) * max(0.0, 1 - t) > 0.1
        except TooFewAccepted:
            pass
        with pytest.raises(TooFewAccepted):
            fit_reweighted(range(N), scores, weights, proven, LEVEL, seed=seed)
        refused += 1
    assert breaches > 0.7 * repeats
    assert refused == repeats


def test_too_few_accepted_is_said_before_the_ledger_is_written(tmp_path: Path) -> None:
    """Even where none is accepted, at a level that a single unit could prove."""
    ledger = tmp_path / "ledger"
    for level, weights in ((PACLevel(0.5, 0.6), [0.0] * 10), (PACLevel(0.1, 0.1), [1.0] * 10)):
        with pytest.raises(TooFewAccepted):
            fit_reweighted(range(10), range(10), weights, 2.0, level, seed=0, ledger=ledger)
    assert not ledger.exists()
