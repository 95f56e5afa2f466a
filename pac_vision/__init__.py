"""Vision: image classification and object tracking."""

from pac_vision.alarm_studies import Alarms, alarms_in, by_the_paper, by_true_alarms, certify_rule
from pac_vision.class_results import ClassResults, compare_sets
from pac_vision.classifiers import Classifier
from pac_vision.decoding import BrokenImage, read_image
from pac_vision.image_logits import ImageLogits
from pac_vision.images import Images, find_images, find_unlabelled
from pac_vision.levels import Levels, fit_levels
from pac_vision.models import load_model
from pac_vision.predictions import Predictions, read_predictions
from pac_vision.preprocessing import efficientnet_lite, imagenet
from pac_vision.scoring import ClassifyImages, ScoreTracks
from pac_vision.sequences import Sequence, find_sequences, read_boxes
from pac_vision.shares import allowed_misses, share_score
from pac_vision.sources import Source
from pac_vision.tracks import Tracks, read_tracks

__all__ = [
    "Alarms",
    "BrokenImage",
    "ClassResults",
    "Classifier",
    "ClassifyImages",
    "Encoder",
    "ImageLogits",
    "Images",
    "LabelModel",
    "Levels",
    "Predictions",
    "ScoreTracks",
    "Sequence",
    "Source",
    "Table",
    "TableDesign",
    "TableForecast",
    "Tracks",
    "ValueModel",
    "alarms_in",
    "allowed_misses",
    "by_the_paper",
    "by_true_alarms",
    "certify_rule",
    "certify_table",
    "compare_sets",
    "design_for",
    "efficientnet_lite",
    "find_images",
    "find_sequences",
    "find_unlabelled",
    "fit_encoder",
    "fit_labels",
    "fit_levels",
    "fit_values",
    "forecast_rest",
    "imagenet",
    "load_model",
    "read_boxes",
    "read_image",
    "read_predictions",
    "read_table",
    "read_tracks",
    "sets_of",
    "share_score",
]
