"""PAC prediction sets: the statistics, for numpy and torch."""

from pac_core.bounds import PACLevel
from pac_core.certificates import Certificate, certify, read_certificate, verify, write_certificate
from pac_core.errors import InvalidInput, NotEnoughData, PACError, SecondLook
from pac_core.evaluation import evaluate
from pac_core.fitting import fit_sets
from pac_core.forecasts import GaussianForecast, LogitForecast, Trajectories
from pac_core.safety import FeatureLimit, HalfSpace, KeepOutBall, KeepOutBox, Monitor, StayIn, TubeChecker
from pac_core.sets import Predictor
from pac_core.splits import split
from pac_core.thresholds import Groups
from pac_core.tubes import LinearFeatures, fit_tube

__all__ = [
    "Certificate",
    "FeatureLimit",
    "GaussianForecast",
    "Groups",
    "HalfSpace",
    "InvalidInput",
    "KeepOutBall",
    "KeepOutBox",
    "LinearFeatures",
    "LogitForecast",
    "Monitor",
    "NotEnoughData",
    "PACError",
    "PACLevel",
    "Predictor",
    "SecondLook",
    "StayIn",
    "Trajectories",
    "TubeChecker",
    "certify",
    "evaluate",
    "fit_sets",
    "fit_tube",
    "read_certificate",
    "split",
    "verify",
    "write_certificate",
]
