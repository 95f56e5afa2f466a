"""What is drawn independently: videos against frames, on the same scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, PACLevel, fit_threshold
from pac_vision.shares import share, share_score

Floats = NDArray[np.float64]
UNITS = ("frame", "sequence")


@dataclass(frozen=True, eq=False)
class UnitErrors:
    """The errors of thresholds calibrated on one kind of unit, one per draw of calibration videos `[draws]`.

    unit: what was taken for independent: ``frame``, as in the paper, or ``sequence``
    level: asked of that unit
    gamma: the share of frames that a video may miss
    frames: the share of frames missed, of the videos left over
    videos: the share of the videos left over that miss more than gamma of their frames
    left: how many videos were left over each time
    true: the error that the promise is about, if all videos at hand are the whole world and the calibration
        videos are drawn from it with replacement: the share of frames missed, or of videos that miss
        more than gamma of them
    """

    unit: str
    level: PACLevel
    gamma: float
    frames: Floats
    videos: Floats
    left: int
    true: Floats

    @property
    def breaches(self) -> int:
        """In how many of the draws the promise fails; promised are at most delta of them."""
        return int((self.true > self.level.epsilon).sum())

    @property
    def promise(self) -> str:
        """In words."""
        what = f"more than {self.gamma:.0%} of a video's frames" if self.unit == "sequence" else "a frame"
        return f"P(miss {what}) <= {self.level.epsilon:g}"


def compare_units(
    frame_scores: Sequence[Floats],
    level: PACLevel,
    gamma: float,
    *,
    calibrate: int,
    draws: int = 1000,
    seed: int = 0,
    frame_level: PACLevel | None = None,
) -> dict[str, UnitErrors]:
    """Errors of thresholds from `calibrate` random videos, by what was taken for the unit.

    frame_scores: of each video `[F]`
    level: of a video; a frame's is `frame_level`, by default that with epsilon = gamma

    >>> rng = np.random.default_rng(0)
    >>> videos = [rng.normal(rng.normal(), 0.1, 50) for _ in range(60)]     # videos differ, frames hardly
    >>> found = compare_units(videos, PACLevel(0.2, 0.05), 0.1, calibrate=40, draws=100)
    >>> found["frame"].breaches > 40, found["sequence"].breaches <= 8
    (True, True)
    """
    gamma = share("gamma", gamma)
    if not 0 < calibrate < len(frame_scores):
        raise InvalidInput(f"calibrate must be 1 to {len(frame_scores) - 1} videos, got {calibrate}")
    levels = {"frame": frame_level or PACLevel(gamma, level.delta), "sequence": level}
    scores = np.array([share_score(frames, gamma) for frames in frame_scores])
    drawn = np.random.default_rng(seed)
    everything = np.arange(len(frame_scores))
    frames: dict[str, list[float]] = {unit: [] for unit in UNITS}
    videos: dict[str, list[float]] = {unit: [] for unit in UNITS}
    true: dict[str, list[float]] = {unit: [] for unit in UNITS}

    def errors(threshold: float, rows: NDArray[np.int64]) -> tuple[float, float]:
        missed = [int((frame_scores[row] > threshold).sum()) for row in rows]
        return sum(missed) / sum(len(frame_scores[row]) for row in rows), float(
            (scores[rows] > threshold).mean()
        )

    for _ in range(draws):
        order = drawn.permutation(everything)
        world = drawn.integers(len(everything), size=calibrate)
        for unit in UNITS:
            for rows in (order[:calibrate], world):
                chosen = (
                    scores[rows] if unit == "sequence" else np.concatenate([frame_scores[r] for r in rows])
                )
                threshold = fit_threshold(chosen, levels[unit]).value
                if rows is world:
                    true[unit].append(errors(threshold, everything)[UNITS.index(unit)])
                else:
                    of_frames, of_videos = errors(threshold, order[calibrate:])
                    frames[unit].append(of_frames)
                    videos[unit].append(of_videos)
    return {
        unit: UnitErrors(
            unit,
            levels[unit],
            gamma,
            np.array(frames[unit]),
            np.array(videos[unit]),
            len(everything) - calibrate,
            np.array(true[unit]),
        )
        for unit in UNITS
    }
