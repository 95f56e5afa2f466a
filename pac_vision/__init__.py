"""Vision: image classification and object tracking."""

from pac_vision.classifiers import Classifier
from pac_vision.images import Images, find_images, read_image
from pac_vision.models import load_model
from pac_vision.preprocessing import efficientnet_lite, imagenet
from pac_vision.shares import allowed_misses, share_score

__all__ = [
    "Classifier",
    "Images",
    "allowed_misses",
    "efficientnet_lite",
    "find_images",
    "imagenet",
    "load_model",
    "read_image",
    "share_score",
]
