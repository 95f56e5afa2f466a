"""The promise about whole videos, where the true share of failing videos is known in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, binom, binomtest

from pac_core import PACLevel
from pac_core.thresholds import fit_threshold
from pac_vision.tracking import share_score

LEVEL = PACLevel(0.2, 0.1)
VIDEOS, FRAMES, REPEATS = 60, 20, 4000
ALLOWED = {0.0: 0, 0.1: 2, 0.25: 5}
"""Share of frames that may be missed, and how many of twenty that is."""


def failing(threshold: float, missed: int) -> float:
    """P(more than `missed` of the frames, which score uniformly, lie above the threshold)."""
    return float(beta.sf(threshold, FRAMES - missed, missed + 1))


@pytest.mark.parametrize("gamma", ALLOWED)
def test_videos_fail_exactly_as_often_as_promised(gamma: float) -> None:
    frames = np.random.default_rng(1).random((REPEATS, VIDEOS, FRAMES))
    broken = 0
    for drawn in frames:
        threshold = fit_threshold(np.array([share_score(video, gamma) for video in drawn]), LEVEL)
        broken += failing(threshold.value, ALLOWED[gamma]) > LEVEL.epsilon
    exact = binom.cdf(7, VIDEOS, LEVEL.epsilon)  # k* is 7: 0.067, and 0.127 for 8
    assert binomtest(broken, REPEATS, exact).pvalue > 1e-4
