"""Prediction sets: of labels, of Gaussians, and the predictor that makes them."""

from pac_core.sets.gaussian import (
    Boxes,
    ConfidenceSets,
    Ellipsoids,
    deviation,
    gaussian_sets,
    threshold_value,
    widen,
)
from pac_core.sets.label_scores import (
    LABEL_SCORES,
    choose_label_score,
    label_score_fitter,
    resolve_score_name,
)
from pac_core.sets.labels import LabelSets, RankedScore, label_sets
from pac_core.sets.predictor import (
    GivenScore,
    Likelihood,
    Predictor,
    Score,
    calibrate,
    fit_tempered,
    make_sets,
    score_units,
)

__all__ = [
    "LABEL_SCORES",
    "Boxes",
    "ConfidenceSets",
    "Ellipsoids",
    "GivenScore",
    "LabelSets",
    "Likelihood",
    "Predictor",
    "RankedScore",
    "Score",
    "calibrate",
    "choose_label_score",
    "deviation",
    "fit_tempered",
    "gaussian_sets",
    "label_score_fitter",
    "label_sets",
    "make_sets",
    "resolve_score_name",
    "score_units",
    "threshold_value",
    "widen",
]
