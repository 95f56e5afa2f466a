"""Why a lost unit voids the promise: failures are no random sample.

Scores are uniform on [0, 1], so the true error of a threshold T is 1 - T. A unit takes longer, and fails
more often, the harder it is: with probability `score ** 4`. A job that drops what fails calibrates on
easier units than those to come; one that computes them again, or counts them as failed, does not.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from pac_core import PACLevel, TooManyFailures, fit_threshold

LEVEL, N, TRIALS = PACLevel(0.1, 0.05), 300, 4000


def true_errors(how: str) -> np.ndarray:
    """The true error of each of many calibrations."""
    rng, found = np.random.default_rng(0), []
    for _ in range(TRIALS):
        scores = rng.uniform(size=N)
        failed = rng.uniform(size=N) < scores**4
        if how == "dropped":
            scores = scores[~failed]
        elif how == "failed for good":
            scores = np.where(failed & (rng.uniform(size=N) < 0.05), np.inf, scores)
        try:
            found.append(1 - fit_threshold(scores, LEVEL).value)
        except TooManyFailures:
            found.append(0.0)  # refused: nothing was promised
    return np.array(found)


def most_breaches() -> int:
    """More breaches than this among so many calibrations refute delta, at one in ten thousand."""
    return int(binom.ppf(1 - 1e-4, TRIALS, LEVEL.delta))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["computed again", "failed for good"])
def test_units_that_are_computed_again_or_counted_keep_the_promise(how: str) -> None:
    assert (true_errors(how) > LEVEL.epsilon).sum() <= most_breaches()


@pytest.mark.slow
def test_units_that_are_dropped_break_it() -> None:
    breaches = (true_errors("dropped") > LEVEL.epsilon).sum()
    assert breaches > 10 * LEVEL.delta * TRIALS, "half of all certificates would be false"
