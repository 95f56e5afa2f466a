"""Limits on states, the checker of tubes, the run-time monitors."""

from pac_core.safety.checker import CheckResult, TubeChecker
from pac_core.safety.limits import (
    FeatureLimit,
    HalfSpace,
    KeepOutBall,
    KeepOutBox,
    Limit,
    StayIn,
    TubeLike,
    number_axes,
)
from pac_core.safety.monitor import Monitor, ScoreMonitor

__all__ = [
    "CheckResult",
    "FeatureLimit",
    "HalfSpace",
    "KeepOutBall",
    "KeepOutBox",
    "Limit",
    "Monitor",
    "ScoreMonitor",
    "StayIn",
    "TubeChecker",
    "TubeLike",
    "number_axes",
]
