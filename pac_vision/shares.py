"""The score of a sequence: how far its sets must reach so that at most a share of its frames is missed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pac_core import InvalidInput
from pac_core.arrays import numbers


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
    scores = numbers("frame_scores", frame_scores, "[F]")
    return float(np.sort(scores)[len(scores) - 1 - allowed_misses(len(scores), gamma)])


def allowed_misses(frames: int, gamma: float) -> int:
    """floor(gamma F): the largest number of frames whose share of all `frames` is at most `gamma`.

    The share is compared as it would be computed, because the product may fall just short of a whole number:

    >>> 0.29 * 100, allowed_misses(100, 0.29)
    (28.999999999999996, 29)
    """
    gamma = share("gamma", gamma)
    count = math.floor(gamma * frames)
    count += (count + 1) / frames <= gamma
    return count - (count / frames > gamma)


def share(name: str, value: Any) -> float:
    """`value` as a float in [0, 1), or a refusal that names it."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < 1:
        raise InvalidInput(f"{name} must be a share of frames in [0, 1), got {value!r}")
    return number
