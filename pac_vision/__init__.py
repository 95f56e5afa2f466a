"""Vision: image classification and object tracking."""

from pac_vision.shares import allowed_misses, share_score

__all__ = [
    "allowed_misses",
    "share_score",
]
