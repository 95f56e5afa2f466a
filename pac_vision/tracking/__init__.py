"""Videos: sequences, scores of boxes, the tracker and its training."""

from pac_vision.tracking.sequences import (
    CANDIDATES,
    BoxScore,
    Sequence,
    Tracks,
    Video,
    allowed_misses,
    check_share,
    choose_box_score,
    choose_smallest,
    find_sequences,
    read_boxes,
    read_tracks,
    share_score,
)
from pac_vision.tracking.tracker import Backbone, Tracker, TrackerSettings, load_backbone
from pac_vision.tracking.training import find_pairs, predict_no_motion, track, train_tracker

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
    "check_share",
    "choose_box_score",
    "choose_smallest",
    "find_pairs",
    "find_sequences",
    "load_backbone",
    "predict_no_motion",
    "read_boxes",
    "read_tracks",
    "share_score",
    "track",
    "train_tracker",
]
