"""Vision: image classification and object tracking."""

from pac_vision.classifiers import Classifier
from pac_vision.images import Images, find_images, read_image
from pac_vision.models import load_model
from pac_vision.preprocessing import efficientnet_lite, imagenet
from pac_vision.scoring import ClassifyImages, ScoreTracks
from pac_vision.sequences import Sequence, find_sequences, read_boxes
from pac_vision.shares import allowed_misses, share_score
from pac_vision.tracks import Tracks, read_tracks

__all__ = [
    "Classifier",
    "ClassifyImages",
    "Images",
    "ScoreTracks",
    "Sequence",
    "Tracks",
    "allowed_misses",
    "efficientnet_lite",
    "find_images",
    "find_sequences",
    "imagenet",
    "load_model",
    "read_boxes",
    "read_image",
    "read_tracks",
    "share_score",
]
