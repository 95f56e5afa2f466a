"""What was forecast for the frames of a video, beside the truth, from stored and from fresh tracks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import GaussianForecast, InvalidInput

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Video:
    """A video with a Gaussian for each box that counts: a row per target and frame in which it is present.

    name: of the sequence
    frames: `[R]` the frame of each row, from 0
    targets: `[R]` its target, from 0
    mean, var: `[R, 4]` the forecast box (xmin, ymin, xmax, ymax), and its variances
    truth: `[R, 4]` the true box
    """

    name: str
    frames: NDArray[np.int64]
    targets: NDArray[np.int64]
    mean: Floats
    var: Floats
    truth: Floats

    def __post_init__(self) -> None:
        if not len(self.frames):
            raise InvalidInput(f"the sequence {self.name} must have a frame to predict a target in, got none")
        for name in ("mean", "var", "truth"):
            array = getattr(self, name)
            if array.shape != (len(self.frames), 4) or not np.isfinite(array).all():
                raise InvalidInput(
                    f"{name} of the sequence {self.name} must be finite numbers [{len(self.frames)}, 4]"
                )

    @property
    def forecast(self) -> GaussianForecast:
        """Of each row."""
        return GaussianForecast(self.mean, self.var)

    def per_frame(self, rows: Any) -> Floats:
        """`[F]` the largest of the rows' values `[R]` in each frame that has one, in the order of frames.

        A frame of several targets is missed if any of them is.

        >>> nothing = np.zeros((3, 4))
        >>> video = Video("Jogging", np.array([5, 6, 6]), np.array([0, 0, 1]), nothing, nothing + 1, nothing)
        >>> video.per_frame([0.5, 2.0, 3.0]).tolist()
        [0.5, 3.0]
        """
        places, of_row = np.unique(self.frames, return_inverse=True)
        worst = np.full(len(places), -np.inf)
        np.maximum.at(worst, of_row, np.asarray(rows, np.float64))
        return worst


def box_sides(boxes: Floats) -> Floats:
    """`[..., 4]` width, height, width, height of boxes (xmin, ymin, xmax, ymax), at least a pixel.

    >>> box_sides(np.array([10.0, 10.0, 30.0, 10.0])).tolist()
    [20.0, 1.0, 20.0, 1.0]
    """
    sides = np.maximum(boxes[..., 2:] - boxes[..., :2], 1.0)
    return np.concatenate([sides, sides], axis=-1)
