"""Vision: image classification and object tracking."""

from pac_vision.class_results import ClassResults, compare_sets
from pac_vision.classifiers import Classifier
from pac_vision.images import Images, find_images, read_image
from pac_vision.levels import Levels, fit_levels
from pac_vision.models import load_model
from pac_vision.predictions import Predictions, read_predictions
from pac_vision.preprocessing import efficientnet_lite, imagenet
from pac_vision.scoring import ClassifyImages, ScoreTracks
from pac_vision.sequences import Sequence, find_sequences, read_boxes
from pac_vision.shares import allowed_misses, share_score
from pac_vision.tracks import Tracks, read_tracks

__all__ = [
    "ClassResults",
    "Classifier",
    "ClassifyImages",
    "Images",
    "Levels",
    "Predictions",
    "ScoreTracks",
    "Sequence",
    "Tracks",
    "allowed_misses",
    "compare_sets",
    "efficientnet_lite",
    "find_images",
    "find_sequences",
    "fit_levels",
    "imagenet",
    "load_model",
    "read_boxes",
    "read_image",
    "read_predictions",
    "read_tracks",
    "share_score",
]
