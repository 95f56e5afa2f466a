"""Prediction sets: of labels, of Gaussians, and the predictor that makes them."""

from pac_core.sets.gaussian import (
    Boxes,
    ConfidenceSets,
    Ellipsoids,
    deviation,
    gaussian_sets,
    limit_of,
    widened,
)
from pac_core.sets.label_scores import LABEL_SCORES, choose_label_score, label_score_fit, score_named
from pac_core.sets.labels import LabelSets, RankedScore, label_sets
from pac_core.sets.predictor import (
    GivenScore,
    Likelihood,
    Predictor,
    Score,
    accumulated,
    calibrate,
    tempered,
    unit_scores,
    unit_sets,
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
    "accumulated",
    "calibrate",
    "choose_label_score",
    "deviation",
    "gaussian_sets",
    "label_score_fit",
    "label_sets",
    "limit_of",
    "score_named",
    "tempered",
    "unit_scores",
    "unit_sets",
    "widened",
]
