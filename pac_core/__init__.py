"""PAC confidence sets: the statistics, for numpy and torch."""

from pac_core.acceptance import AcceptedRisk, accepted_risk, claim_accepted_risk, draw_steps
from pac_core.alarms import (
    AlarmRule,
    RiskGiven,
    Suppression,
    fit_alarm_rule,
    risk_given,
    suppress_by_sets,
    suppression,
)
from pac_core.baselines import ABLATIONS, mass_gaussian_sets, mass_label_sets
from pac_core.bounds import PACLevel, max_errors, min_samples, vc_max_errors, vc_min_samples
from pac_core.certificates import Certificate, Check, Record, SplitRecord, issue, verify
from pac_core.certification import Asked, Certified, certify, certify_menu, certify_scores
from pac_core.checker import Checked, TubeChecker
from pac_core.class_names import ClassNames, read_classes
from pac_core.costs import Entry, Family, joint_cost
from pac_core.descending import descend, read_descent, verify_descent, write_descent
from pac_core.descents import Descended, Descent, Trial, episodes_needed
from pac_core.documents import read_certificate, write_certificate
from pac_core.errors import (
    BadCertificate,
    InvalidInput,
    NoTemperature,
    NotEnoughData,
    NothingAccepted,
    OverBudget,
    OverlappingSplits,
    PACError,
    SecondLook,
    TooFewAccepted,
    TooManyFailures,
    UnreadableFile,
)
from pac_core.evaluation import (
    Evaluation,
    Row,
    calibration_error,
    error_interval,
    evaluate,
)
from pac_core.feature_limits import FeatureLimit
from pac_core.features import LinearFeatures
from pac_core.forecasts import GaussianForecast, LogitForecast
from pac_core.label_scores import choose_label_score
from pac_core.ledger import (
    Note,
    Opening,
    add_note,
    open_ledger,
    open_split,
    read_family,
    read_ledger,
    read_notes,
)
from pac_core.limits import HalfSpace, Limit, StayIn, TubeLike
from pac_core.monitors import Monitor, detection_times
from pac_core.obstacles import KeepOutBall, KeepOutBox
from pac_core.predictors import Likelihood, Predictor, accumulated, calibrate, tempered
from pac_core.ranked_scores import RankedScore
from pac_core.regions import Boxes, Ellipsoids
from pac_core.reweighting import Reweighted, fit_reweighted, gaussian_bound, gaussian_weights, reweigh
from pac_core.score_fits import fit_sets
from pac_core.scores import nll
from pac_core.selection import digit_counts
from pac_core.sets import ConfidenceSets, LabelSets, gaussian_sets, label_sets
from pac_core.splits import Part, Splits, ids_digest, refuse_overlap, split
from pac_core.temperatures import Moments, Temperature, fit_temperature, merge_moments, moments
from pac_core.thresholds import ShardedScores, Threshold, fit_threshold, fit_threshold_from_shards
from pac_core.truths import Trajectories
from pac_core.tubes import SHAPES, fit_shape, fit_tube

Tube = ConfidenceSets

__all__ = [
    "ABLATIONS",
    "SHAPES",
    "AcceptedRisk",
    "AlarmRule",
    "Asked",
    "BadCertificate",
    "Boxes",
    "Certificate",
    "Certified",
    "Check",
    "Checked",
    "ClassNames",
    "ConfidenceSets",
    "Descended",
    "Descent",
    "Ellipsoids",
    "Entry",
    "Evaluation",
    "Family",
    "FeatureLimit",
    "GaussianForecast",
    "HalfSpace",
    "InvalidInput",
    "KeepOutBall",
    "KeepOutBox",
    "LabelSets",
    "Likelihood",
    "Limit",
    "LinearFeatures",
    "LogitForecast",
    "Moments",
    "Monitor",
    "NoTemperature",
    "NotEnoughData",
    "Note",
    "NothingAccepted",
    "Opening",
    "OverBudget",
    "OverlappingSplits",
    "PACError",
    "PACLevel",
    "Part",
    "Predictor",
    "RankedScore",
    "Record",
    "Reweighted",
    "RiskGiven",
    "Row",
    "SecondLook",
    "ShardedScores",
    "SplitRecord",
    "Splits",
    "StayIn",
    "Suppression",
    "Temperature",
    "Threshold",
    "TooFewAccepted",
    "TooManyFailures",
    "Trajectories",
    "Trial",
    "Tube",
    "TubeChecker",
    "TubeLike",
    "UnreadableFile",
    "accepted_risk",
    "accumulated",
    "add_note",
    "calibrate",
    "calibration_error",
    "certify",
    "certify_menu",
    "certify_scores",
    "choose_label_score",
    "claim_accepted_risk",
    "descend",
    "detection_times",
    "digit_counts",
    "draw_steps",
    "episodes_needed",
    "error_interval",
    "evaluate",
    "fit_alarm_rule",
    "fit_reweighted",
    "fit_sets",
    "fit_shape",
    "fit_temperature",
    "fit_threshold",
    "fit_threshold_from_shards",
    "fit_tube",
    "gaussian_bound",
    "gaussian_sets",
    "gaussian_weights",
    "ids_digest",
    "issue",
    "joint_cost",
    "label_sets",
    "mass_gaussian_sets",
    "mass_label_sets",
    "max_errors",
    "merge_moments",
    "min_samples",
    "moments",
    "nll",
    "open_ledger",
    "open_split",
    "read_certificate",
    "read_classes",
    "read_descent",
    "read_family",
    "read_ledger",
    "read_notes",
    "refuse_overlap",
    "reweigh",
    "risk_given",
    "split",
    "suppress_by_sets",
    "suppression",
    "tempered",
    "vc_max_errors",
    "vc_min_samples",
    "verify",
    "verify_descent",
    "write_certificate",
    "write_descent",
]
