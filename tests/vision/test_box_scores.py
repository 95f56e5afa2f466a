"""Sets hold exactly the boxes that score at most T."""

from __future__ import annotations

import numpy as np
import pytest

from pac_core import GaussianForecast, InvalidInput
from pac_vision import BoxScore
from pac_vision.tracking import Video


def video(name: str, rng: np.random.Generator, *, wrong: float, sure: float, rows: int = 60) -> Video:
    """Boxes 40 wide and 20 high, wrong by `wrong` pixels, with forecast deviations of `sure`."""
    truth = np.array([50.0, 50, 90, 70]) + rng.uniform(0, 30, (rows, 1))
    mean = truth + rng.normal(0, wrong, (rows, 4))
    return Video(
        name, np.arange(rows), np.zeros(rows, int), mean, np.full((rows, 4), float(sure) ** 2), truth
    )


@pytest.mark.parametrize("score", [BoxScore(), BoxScore(power=0.5)])
def test_a_set_holds_what_scores_at_most_its_threshold(score: BoxScore) -> None:
    rng = np.random.default_rng(0)
    one = video("Deer", rng, wrong=6, sure=4)
    scores = score.scores(one.forecast, one.truth)
    threshold = float(np.median(scores))
    held = np.asarray(score.sets(one.forecast, threshold).contains(one.truth))
    np.testing.assert_array_equal(held, scores <= threshold)
    assert 0 < held.sum() < len(held)


def test_a_box_reaches_as_far_as_its_largest_error() -> None:
    forecast = GaussianForecast(np.array([[10.0, 20, 50, 40]]), np.array([[4.0, 0.01, 9, 16]]))
    score = BoxScore(floor=1.0)
    truth = np.array(
        [[13.0, 20.5, 48, 41]]
    )  # 1.5, 0.5 (its variance is at least 1), 0.67 and 0.25 deviations
    assert score.scores(forecast, truth).tolist() == [1.5]
    lower, upper = score.sets(forecast, 2.0).box()
    np.testing.assert_allclose(lower[0], [6, 18, 44, 32], rtol=1e-8)
    np.testing.assert_allclose(upper[0], [14, 22, 56, 48], rtol=1e-8)
    np.testing.assert_allclose(score.sets(forecast, 2.0).size(), [2 * np.sqrt(4 + 1 + 9 + 16)], rtol=1e-8)


def test_a_power_of_zero_measures_in_sides_of_the_box() -> None:
    forecast = GaussianForecast(np.array([[10.0, 20, 50, 40]]), np.array([[4.0, 1, 900, 16]]))
    truth = np.array([[14.0, 20, 50, 46]])  # a tenth of 40, and three tenths of 20
    assert BoxScore(power=0).scores(forecast, truth) == pytest.approx([0.3])
    half = BoxScore(power=0.5).scores(forecast, truth)
    assert half == pytest.approx([max(4 / np.sqrt(2 * 40), 6 / np.sqrt(4 * 20))])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"floor": 0}, "floor must be a variance above 0, got 0"),
        ({"power": 1.5}, r"power must lie in \[0, 1\], got 1.5"),
        ({"floor": np.nan}, "floor must be one number, got nan"),
    ],
)
def test_scores_are_refused_by_name(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        BoxScore(**options)  # type: ignore[arg-type]


def test_a_video_without_a_target_is_refused() -> None:
    none = np.empty((0, 4))
    with pytest.raises(InvalidInput, match="Deer must have a frame to predict a target in, got none"):
        Video("Deer", np.empty(0, int), np.empty(0, int), none, none, none)
    with pytest.raises(InvalidInput, match=r"var of the sequence Deer must be finite numbers \[1, 4\]"):
        Video(
            "Deer",
            np.zeros(1, int),
            np.zeros(1, int),
            np.ones((1, 4)),
            np.full((1, 4), np.inf),
            np.ones((1, 4)),
        )
