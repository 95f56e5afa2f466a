"""Limits on states, the checker of tubes, the run-time monitor."""

from pac_core.safety.checker import CheckResult, TubeChecker
from pac_core.safety.limits import FeatureLimit, HalfSpace, KeepOutBall, KeepOutBox, Limit, StayIn, TubeLike
from pac_core.safety.monitor import Monitor, detection_times

__all__ = [
    "CheckResult",
    "FeatureLimit",
    "HalfSpace",
    "KeepOutBall",
    "KeepOutBox",
    "Limit",
    "Monitor",
    "StayIn",
    "TubeChecker",
    "TubeLike",
    "detection_times",
]
