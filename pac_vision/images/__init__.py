"""Images: where they lie, how they are read and prepared."""

from pac_vision.images.catalogue import Images, find_images, find_unlabelled
from pac_vision.images.preprocessing import Preprocessing, efficientnet_lite, imagenet
from pac_vision.images.sources import BrokenImage, Source, label_of, read_image

__all__ = [
    "BrokenImage",
    "Images",
    "Preprocessing",
    "Source",
    "efficientnet_lite",
    "find_images",
    "find_unlabelled",
    "imagenet",
    "label_of",
    "read_image",
]
