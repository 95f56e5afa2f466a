"""The score of a sequence is the exact order statistic, ties and edges included."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pac_core import InvalidInput
from pac_vision.tracking import allowed_misses, share_score

SCORES = st.lists(
    st.sampled_from([-1.0, 0.0, 0.5, 0.5, 2.0, np.inf]) | st.floats(-5, 5), min_size=1, max_size=30
)


@pytest.mark.parametrize(
    ("scores", "gamma", "score"),
    [
        ([3, 1, 2], 0, 3),
        ([3, 1, 2], 0.33, 3),
        ([3, 1, 2], 1 / 3, 2),
        ([3, 1, 2], 2 / 3, 1),
        ([3, 1, 2], 0.999, 1),
        ([7], 0.999, 7),
        ([2, 2, 2, 1], 0.5, 2),
        ([2, 2, 1, 1], 0.5, 1),
        ([np.inf, 1, 1, 1], 0.2, np.inf),
        ([np.inf, 1, 1, 1], 0.25, 1),
    ],
)
def test_the_table(scores: list[float], gamma: float, score: float) -> None:
    assert share_score(scores, gamma) == score


@given(SCORES, st.floats(0, 1, exclude_max=True), st.floats(-6, 6))
def test_a_sequence_is_an_error_exactly_if_too_large_a_share_is_missed(
    scores: list[float], gamma: float, threshold: float
) -> None:
    score = share_score(scores, gamma)
    assert score in scores
    for value in (threshold, *scores):
        missed = sum(frame > value for frame in scores)
        assert (score > value) == (missed / len(scores) > gamma)


@given(SCORES)
def test_gamma_zero_is_the_maximum(scores: list[float]) -> None:
    assert share_score(scores, 0) == max(scores)


@given(st.integers(1, 5000), st.integers(0, 999))
def test_shares_written_as_decimals_are_not_rounded_down(frames: int, thousandths: int) -> None:
    assert allowed_misses(frames, thousandths / 1000) == frames * thousandths // 1000


@given(st.integers(1, 5000), st.data())
def test_shares_written_as_ratios_are_not_rounded_down(frames: int, data: st.DataObject) -> None:
    missed = data.draw(st.integers(0, frames - 1))
    assert allowed_misses(frames, missed / frames) == missed
    assert Fraction(missed, frames) < 1


@pytest.mark.parametrize("gamma", [-0.1, 1, 1.5, np.nan, np.inf, "half", None])
def test_gamma_must_be_a_share(gamma: object) -> None:
    with pytest.raises(InvalidInput, match=r"gamma must be a share of frames in \[0, 1\), got"):
        share_score([1.0], gamma)  # type: ignore[arg-type]


@pytest.mark.parametrize("scores", [[], [np.nan], [[1.0]], [-np.inf]])
def test_scores_that_are_none_are_refused(scores: object) -> None:
    with pytest.raises(InvalidInput, match="frame_scores must"):
        share_score(scores, 0.1)
