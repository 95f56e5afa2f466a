"""Vision: image classification and object tracking."""

from pac_vision.images import Preprocessing, efficientnet_lite, find_images, imagenet, read_image
from pac_vision.models import Classifier, ImageLogits, load_model
from pac_vision.tracking import BoxScore, find_sequences, read_tracks, track

__all__ = [
    "BoxScore",
    "Classifier",
    "ImageLogits",
    "Preprocessing",
    "efficientnet_lite",
    "find_images",
    "find_sequences",
    "imagenet",
    "load_model",
    "read_image",
    "read_tracks",
    "track",
]
