"""Videos: sequences, scores of boxes, the tracker and its training."""

from pac_vision.tracking.scores import (
    CANDIDATES,
    BoxScore,
    allowed_misses,
    choose_box_score,
    share,
    share_score,
    smallest,
)
from pac_vision.tracking.sequences import Sequence, Tracks, Video, find_sequences, read_boxes, read_tracks
from pac_vision.tracking.tracker import Backbone, Tracker, TrackerSettings, load_backbone
from pac_vision.tracking.training import find_pairs, stay, track, train_tracker

__all__ = [
    "CANDIDATES",
    "Backbone",
    "BoxScore",
    "Sequence",
    "Tracker",
    "TrackerSettings",
    "Tracks",
    "Video",
    "allowed_misses",
    "choose_box_score",
    "find_pairs",
    "find_sequences",
    "load_backbone",
    "read_boxes",
    "read_tracks",
    "share",
    "share_score",
    "smallest",
    "stay",
    "track",
    "train_tracker",
]
