"""The promise by video holds; the one by frame does not, because frames of a video are alike."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from pac_core import InvalidInput, NotEnoughData, PACLevel
from pac_vision import compare_units
from pac_vision.track_figures import unit_histograms

LEVEL = PACLevel(0.2, 0.05)


def alike(seed: int, videos: int = 60) -> list[np.ndarray]:
    """Frames of a video share its difficulty."""
    rng = np.random.default_rng(seed)
    return [rng.normal(rng.exponential(), 0.1, rng.integers(20, 60)) for _ in range(videos)]


def test_only_the_promise_by_video_is_kept() -> None:
    draws = 150
    found = compare_units(alike(0), LEVEL, 0.1, calibrate=40, draws=draws)
    # At most delta of the draws fail; so many more than that would be chance once in a million.
    assert found["sequence"].breaches <= binom.isf(1e-6, draws, 0.05)
    assert found["frame"].breaches > 0.3 * draws
    assert found["sequence"].videos.mean() < 0.2
    assert found["frame"].left == 20
    assert found["frame"].promise == "P(miss a frame) <= 0.1"
    assert found["sequence"].promise == "P(miss more than 10% of a video's frames) <= 0.2"


def test_the_figure_says_what_was_broken_and_holds_each_unit_to_its_own_promise() -> None:
    found = compare_units(alike(0), LEVEL, 0.1, calibrate=40, draws=50)
    panels = unit_histograms(found, "fifty draws").axes
    for panel, (name, promised) in zip(panels, (("frame", 0.1), ("sequence", 0.2)), strict=True):
        one = found[name]
        assert f"broken in {one.breaches / 50:.1%} of the draws" in panel.get_title(loc="left")
        assert [line.get_xdata()[0] for line in panel.lines] == [promised]
        bars = [bar for bars in panel.containers for bar in bars]
        assert sum(bar.get_height() for bar in bars) == 50
        assert sum(bar.get_height() for bar in bars if bar.get_x() >= promised) == one.breaches


def test_frames_that_are_independent_keep_both() -> None:
    rng = np.random.default_rng(1)
    found = compare_units([rng.normal(size=40) for _ in range(60)], LEVEL, 0.1, calibrate=40, draws=100)
    assert found["frame"].breaches <= binom.isf(1e-6, 100, 0.05)
    assert abs(found["frame"].frames.mean() - 0.09) < 0.01


def test_errors_are_shares_of_what_is_left_over() -> None:
    """Three videos that are missed whole or not at all: counted by hand."""
    frames = [np.full(10, 1.0)] * 30 + [np.full(30, 5.0)]
    found = compare_units(frames, PACLevel(0.5, 0.5), 0.1, calibrate=30, draws=40)
    lone = found["sequence"].videos == 1
    assert set(found["sequence"].videos) <= {0.0, 1.0}  # one video is left over
    np.testing.assert_array_equal(found["sequence"].frames[lone], 1)
    assert (found["frame"].videos == found["sequence"].videos).all()


def test_too_few_videos_are_refused() -> None:
    with pytest.raises(NotEnoughData, match=r"10 calibration units cannot prove epsilon=0\.2 at delta=0\.05"):
        compare_units(alike(0), LEVEL, 0.1, calibrate=10)
    with pytest.raises(InvalidInput, match="calibrate must be 1 to 59 videos, got 60"):
        compare_units(alike(0), LEVEL, 0.1, calibrate=60)
    with pytest.raises(InvalidInput, match="gamma must be a share"):
        compare_units(alike(0), LEVEL, 1.0, calibrate=40)
