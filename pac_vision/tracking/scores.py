"""Scores of boxes and of whole videos: at most a share of the frames is missed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pac_core import GaussianForecast, InvalidInput, PACLevel
from pac_core.arrays import check_number, check_numbers
from pac_core.scores import nll
from pac_core.sets import Boxes, ConfidenceSets, gaussian_sets, threshold_value, widen
from pac_vision.tracking.sequences import Floats, Video, box_sides


def share_score(frame_scores: Any, gamma: float) -> float:
    """The (floor(gamma F) + 1)-th largest of the F frame scores.

    frame_scores: `[F]`, larger is worse; +inf is a frame that no set contains
    gamma: the share of frames that may be missed, in [0, 1); 0 allows none

    At most a share gamma of the frames lies above a threshold exactly if this score does not. A threshold
    calibrated on n sequences therefore promises: with probability at least 1 - epsilon, a new sequence
    drawn like them has at most a share gamma of its frames missed. Frames of one sequence are not
    independent, so a threshold calibrated on frames promises nothing.

    >>> share_score([0.1, 0.9, 0.4, 0.8, 0.2], gamma=0.4)
    0.4
    >>> share_score([0.1, 0.9, 0.4, 0.8, 0.2], gamma=0)
    0.9
    """
    scores = check_numbers("frame_scores", frame_scores, "[F]")
    return float(np.sort(scores)[len(scores) - 1 - allowed_misses(len(scores), gamma)])


def allowed_misses(frames: int, gamma: float) -> int:
    """floor(gamma F): the largest number of frames whose share of all `frames` is at most `gamma`.

    The share is compared as it would be computed, because the product may fall just short of a whole number:

    >>> 0.29 * 100, allowed_misses(100, 0.29)
    (28.999999999999996, 29)
    """
    gamma = check_share("gamma", gamma)
    count = math.floor(gamma * frames)
    count += (count + 1) / frames <= gamma
    return count - (count / frames > gamma)


def check_share(name: str, value: Any) -> float:
    """`value` as a float in [0, 1), or a refusal that names it."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < 1:
        raise InvalidInput(f"{name} must be a share of frames in [0, 1), got {value!r}")
    return number


SCORES = ("nll", "max")


@dataclass(frozen=True)
class BoxScore:
    """The score of a true box: larger is worse, and a set holds the boxes that score at most T.

    kind: ``nll``, the paper's, whose sets are ellipsoids; ``max``, the largest error of the four sides in
        deviations, whose sets are boxes
    floor: the least variance, in pixels squared; members that agree by chance are not certain
    power: p, from 0 to 1: a deviation is sigma^p times side^(1 - p), the side that of the forecast
        box; 1 trusts the forecast's spread, 0 ignores it
    tau: the paper's temperature; it divides the variance, and matters to ``nll`` only

    >>> forecast = GaussianForecast(np.array([[0.0, 0, 10, 10]]), np.full((1, 4), 4.0))
    >>> truth = np.array([[1.0, -3, 10, 12]])
    >>> BoxScore().scores(forecast, truth).tolist(), BoxScore(power=0).scores(forecast, truth).tolist()
    ([1.5], [0.3])
    >>> lower, upper = BoxScore().sets(forecast, 1.5).box()
    >>> lower.round(6).tolist(), upper.round(6).tolist()
    ([[-3.0, -3.0, 7.0, 7.0]], [[3.0, 3.0, 13.0, 13.0]])
    """

    kind: str = "max"
    floor: float = 1.0
    power: float = 1.0
    tau: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in SCORES:
            raise InvalidInput(f"score must be one of {', '.join(SCORES)}, got {self.kind!r}")
        for name in ("floor", "power", "tau"):
            object.__setattr__(self, name, check_number(name, getattr(self, name)))
        if not 0 <= self.power <= 1:
            raise InvalidInput(f"power must lie in [0, 1], got {self.power!r}")
        for name, rule in (("floor", "a variance above 0"), ("tau", "a finite number above 0")):
            if not 0 < getattr(self, name) < np.inf:
                raise InvalidInput(f"{name} must be {rule}, got {getattr(self, name)!r}")

    def __str__(self) -> str:
        words = [self.kind, f"variance at least {self.floor:g}"]
        words += [f"power {self.power:g}"] if self.power != 1 else []
        return ", ".join(words + ([f"tau {self.tau:.4g}"] if self.tau != 1 else []))

    def prepared(self, forecast: GaussianForecast) -> GaussianForecast:
        """The forecast with the variances that the score uses."""
        var = np.maximum(forecast.var, self.floor)
        if self.power != 1:
            var = var**self.power * box_sides(forecast.mean) ** (2 - 2 * self.power)
        return replace(forecast, var=var / self.tau)

    def scores(self, forecast: GaussianForecast, truth: Any) -> Floats:
        """`[R]` the score of each true box `[R, 4]`."""
        ready = self.prepared(forecast)
        if self.kind == "nll":
            return np.asarray(nll(ready, truth))
        return _largest(ready, ready.check(truth))

    def sets(self, forecast: GaussianForecast, threshold: Any) -> ConfidenceSets:
        """Of each row, the boxes that score at most T."""
        ready = self.prepared(forecast)
        if self.kind == "nll":
            return gaussian_sets(ready, threshold)
        ready, sound = ready.for_sets()
        limit = widen(threshold_value(threshold))
        reach = limit * np.sqrt(ready.var)
        region = Boxes(ready.mean, ready.mean - reach, ready.mean + reach)
        return ConfidenceSets(region, partial(_largest, ready), limit, sound, tuple(ready.mean.shape))

    def sizes(self, forecast: GaussianForecast, threshold: Any) -> Floats:
        """`[R]` the half-diagonal of each set's bounding box, in pixels: the paper's size."""
        return np.asarray(self.sets(forecast, threshold).size())

    def frame_scores(self, video: Video) -> Floats:
        """`[F]` the score of each frame: that of its worst target."""
        return video.per_frame(self.scores(video.forecast, video.truth))

    def video_score(self, video: Video, gamma: float) -> float:
        """The score of a sequence: at most a share gamma of its frames scores more."""
        return share_score(self.frame_scores(video), gamma)

    def spread(self, video: Video) -> float:
        """The mean half-diagonal, in pixels, of a video's ``max`` boxes at T = 1; they grow with T."""
        return float(np.sqrt(self.prepared(video.forecast).var.sum(axis=1)).mean())

    def fitted(self, videos: Sequence[Video]) -> BoxScore:
        """Fit the temperature under which the true boxes are most likely (C of the paper)."""
        squares = [((v.truth - v.mean) ** 2 / self.prepared(v.forecast).var).mean(axis=1) for v in videos]
        return replace(self, tau=self.tau / float(np.maximum(np.concatenate(squares).mean(), 1e-12)))


def choose_box_score(videos: Sequence[Video], level: PACLevel, gamma: float) -> BoxScore:
    """Choose the ``max`` score whose boxes are smallest on these tune videos at their own threshold."""
    if not videos:
        raise InvalidInput("videos must be one or more to choose a score on, got none")
    scores = [[score.video_score(video, gamma) for video in videos] for score in CANDIDATES]
    spreads = [[score.spread(video) for video in videos] for score in CANDIDATES]
    return CANDIDATES[choose_smallest(np.array(scores), np.array(spreads), level)]


def choose_smallest(scores: Floats, spreads: Floats, level: PACLevel) -> int:
    """Which of C candidates has the smallest boxes, from scores and spreads `[C, n]` of n tune videos.

    The size is the mean over videos of the mean half-diagonal in pixels, averaged over the thresholds at
    epsilon n errors, one fewer and one more: with few videos one threshold is mostly chance.
    """
    n = scores.shape[1]
    middle = int(level.epsilon * n)
    errors = sorted({min(max(middle + step, 0), n - 1) for step in (-1, 0, 1)})
    thresholds = np.sort(scores, axis=1)[:, ::-1][:, errors].mean(axis=1)
    return int((thresholds * spreads.mean(axis=1)).argmin())


def _largest(forecast: GaussianForecast, truth: Any) -> Floats:
    """`[R]` the largest error of the four sides, in deviations."""
    scores: Floats = (abs(truth - forecast.mean) / np.sqrt(forecast.var)).max(axis=1)
    return scores


CANDIDATES = tuple(BoxScore("max", floor, power / 4) for power in range(5) for floor in (1.0, 25.0))
"""What `choose_box_score` chooses from."""
