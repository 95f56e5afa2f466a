"""Vision: image classification and object tracking."""

from pac_vision.images import Images, find_images, read_image
from pac_vision.shares import allowed_misses, share_score

__all__ = [
    "Images",
    "allowed_misses",
    "find_images",
    "read_image",
    "share_score",
]
