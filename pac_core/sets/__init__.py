"""Prediction sets: of labels, of Gaussians, and the predictor that makes them."""

from pac_core.sets.kinds import (
    Boxes,
    ConfidenceSets,
    Ellipsoids,
    LabelSets,
    deviation,
    gaussian_sets,
    label_sets,
    threshold_value,
    widen,
)
from pac_core.sets.label_scores import (
    LABEL_SCORES,
    RankedScore,
    choose_label_score,
    resolve_score_name,
)
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
    "label_sets",
    "make_sets",
    "resolve_score_name",
    "score_units",
    "threshold_value",
    "widen",
]
