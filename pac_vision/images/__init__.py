"""Images: where they lie, how they are read and prepared."""

from pac_vision.images.decoding import BrokenImage, Source, read_image, read_label
from pac_vision.images.preprocessing import Preprocessing, efficientnet_lite, imagenet
from pac_vision.images.sources import Images, find_images, find_unlabelled_images

__all__ = [
    "BrokenImage",
    "Images",
    "Preprocessing",
    "Source",
    "efficientnet_lite",
    "find_images",
    "find_unlabelled_images",
    "imagenet",
    "read_image",
    "read_label",
]
