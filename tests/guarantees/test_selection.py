"""Certificates that survive selection, on robots whose true error is known; and the short cuts that do not.

An episode errs with a probability that depends on the scale alone. A certificate is false if the true error
at its scale exceeds epsilon; this may happen once in 1 / delta descents, however many scales are listed.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from pac_core import PACLevel
from pac_core.certificates import Descent, episodes_needed
from pac_core.certificates.descent import follow
from pac_core.risks import accepted_risk

pytestmark = pytest.mark.slow

LEVEL, N = PACLevel(0.2, 0.1), 11
JUST_ABOVE = 0.2 + 1e-9
PASSES = float(binom.cdf(0, N, 0.2))
"""0.086: how often a scale whose true error is epsilon shows no error in 11 episodes."""
DOUBT = 1e-3  # a true promise fails one of these tests once in a thousand seeds; the seeds are fixed
TRIES = 10_000


def false_certificates(errors: tuple[float, ...], seed: int) -> int:
    """How many of many descents certify a scale whose true error exceeds epsilon."""
    rng = np.random.default_rng(seed)
    scales = tuple(2.0**-i for i in range(len(errors)))
    truth = dict(zip(scales, errors, strict=True))
    plan = Descent(
        scales=scales,
        n=N,
        allowed=0,
        level=LEVEL,
        episodes=np.arange(len(errors) * N).reshape(-1, N),
        error="it falls",
        tested={"robot": "a coin"},
    )
    shown = (follow(plan, lambda scale, ids: int(rng.binomial(len(ids), truth[scale]))) for _ in range(TRIES))
    return sum(one.certified is not None and truth[one.certified] > LEVEL.epsilon for one in shown)


@pytest.mark.parametrize(
    ("errors", "exact"),
    [
        ((JUST_ABOVE,) * 6, PASSES),
        ((0.01, JUST_ABOVE, JUST_ABOVE, 0.5), 0.99**N * PASSES),
        ((JUST_ABOVE, 0.0, 0.0, 0.5), PASSES * 0.5**N),
    ],
    ids=["six bad scales cost one delta", "a good one first", "good ones behind a bad one"],
)
def test_descents_break_their_promise_as_rarely_as_they_say(errors: tuple[float, ...], exact: float) -> None:
    """The probability of a false certificate is known, and below delta."""
    assert exact < LEVEL.delta
    assert binomtest(false_certificates(errors, seed=3), TRIES, exact).pvalue > DOUBT


def test_picking_any_scale_that_passes_would_break_it() -> None:
    """Six bad scales, all tried, the smallest that shows no error taken."""
    shown = np.random.default_rng(0).random((10_000, 6, N)) < JUST_ABOVE
    false = (~shown.any(axis=2)).any(axis=1).mean()
    assert false == pytest.approx(1 - (1 - PASSES) ** 6, abs=0.02)
    assert false > 4 * LEVEL.delta


def test_adding_episodes_until_it_passes_would_break_it() -> None:
    """After a failure, as many more episodes as one more error needs, up to ten times."""
    looks = [(episodes_needed(LEVEL, allowed), allowed) for allowed in range(10)]
    assert all(binom.cdf(allowed, n, LEVEL.epsilon) < LEVEL.delta for n, allowed in looks), (
        "each by itself is fine"
    )
    counts = (np.random.default_rng(1).random((20_000, looks[-1][0])) < JUST_ABOVE).cumsum(axis=1)
    false = np.any([counts[:, n - 1] <= allowed for n, allowed in looks], axis=0).mean()
    assert false > 2 * LEVEL.delta


@pytest.mark.parametrize("pooled", [False, True])
def test_pooled_decisions_break_the_limit_and_one_of_each_episode_does_not(pooled: bool) -> None:
    """In one episode of ten every accepted decision is unsafe; half of the decisions are accepted."""
    rng, tries, episodes, steps, truth = np.random.default_rng(2), 1500, 60, 20, 0.1
    broken = 0
    for _ in range(tries):
        accepted = rng.random((episodes, steps)) < 0.5
        unsafe = np.repeat(rng.random((episodes, 1)) < truth, steps, axis=1)
        drawn = rng.integers(steps, size=episodes)
        if pooled:  # under names that hide which decisions belong together
            risk = accepted_risk(range(episodes * steps), accepted.ravel(), unsafe.ravel(), confidence=0.95)
        else:
            rows = np.arange(episodes)
            risk = accepted_risk(rows, accepted[rows, drawn], unsafe[rows, drawn], confidence=0.95)
        broken += risk.limit < truth
    if pooled:
        assert broken > 5 * 0.05 * tries
    else:
        assert binomtest(broken, tries, 0.05, alternative="greater").pvalue > DOUBT


@pytest.mark.parametrize("corrected", [False, True])
def test_a_limit_on_the_scale_that_a_descent_picked_needs_the_number_of_scales(corrected: bool) -> None:
    """Exactly: the probability that a scale is certified whose limit, from its own episodes, is too small.

    Every error is an accepted decision that was unsafe. At the worst, the narrower scale passes only with so
    few errors that its limit is false, and the wider one stands where it does not: both chances add up.
    """
    n, allowed, confidence = 300, 6, 0.95
    counts, yes = np.arange(n + 1), np.ones(n, bool)
    choices = 2 if corrected else 1
    limits = np.array(
        [
            accepted_risk(range(n), yes, np.arange(n) < k, confidence=confidence, choices=choices).limit
            for k in counts
        ]
    )
    rates = np.concatenate([np.linspace(0.001, 0.08, 80), limits[: allowed + 1] + 1e-9])
    mass = binom.pmf(counts, n, rates[:, None])  # [rates, counts]
    passed = counts <= allowed
    passes = mass[:, passed].sum(axis=1)
    false = (mass * (passed & (limits < rates[:, None]))).sum(
        axis=1
    )  # passes, with a limit that is too small
    wide, narrow = np.meshgrid(np.arange(len(rates)), np.arange(len(rates)), indexing="ij")
    wrong = false[wide] * (1 - passes[narrow]) + passes[wide] * false[narrow]
    if corrected:
        assert wrong.max() <= 1 - confidence
        assert wrong.max() > 0.8 * (1 - confidence), "and not much is given away"
    else:
        assert wrong.max() > 1.7 * (1 - confidence)


@pytest.mark.parametrize("fresh", [False, True])
def test_the_episodes_that_certified_a_scale_say_too_little_of_what_was_accepted(fresh: bool) -> None:
    """Ten scales with a true error of 0.03, all accepted: what is certified was chosen by its episodes."""
    rng, truth, n = np.random.default_rng(4), 0.03, 300
    plan = Descent(
        scales=tuple(range(10, 0, -1)),
        n=n,
        allowed=6,
        level=PACLevel(0.05, 0.01),
        episodes=np.arange(10 * n).reshape(10, n),
        error="it falls",
        tested={"robot": "a coin"},
    )
    shown = [follow(plan, lambda scale, ids: int(rng.binomial(n, truth))) for _ in range(6000)]
    last = [[trial.errors for trial in one.trials if trial.passed][-1] for one in shown if one.certified]
    counts = rng.binomial(n, truth, size=len(last)).tolist() if fresh else last
    risks = [accepted_risk(range(n), np.ones(n, bool), np.arange(n) < k, confidence=0.95) for k in counts]
    broken = sum(risk.limit < truth for risk in risks)
    if fresh:
        assert binomtest(broken, len(risks), 0.05, alternative="greater").pvalue > DOUBT
    else:
        assert binomtest(broken, len(risks), 0.05, alternative="greater").pvalue < 1e-6
        assert broken > 1.8 * 0.05 * len(risks)
