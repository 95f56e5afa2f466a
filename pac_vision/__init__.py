"""Vision: image classification and object tracking."""

from pac_vision.backbones import Backbone, load_backbone
from pac_vision.box_scores import BoxScore, choose_box_score
from pac_vision.classifiers import Classifier
from pac_vision.frame_pairs import PAPER_PAIRS, split_by_pair, split_by_video
from pac_vision.images import Images, find_images, read_image
from pac_vision.models import load_model
from pac_vision.overlays import Overlay, overlay_grid, write_gif
from pac_vision.preprocessing import efficientnet_lite, imagenet
from pac_vision.scoring import ClassifyImages
from pac_vision.sequences import Sequence, find_sequences, read_boxes
from pac_vision.shares import allowed_misses, share_score
from pac_vision.track_scoring import ScoreTracks, TrackSequences
from pac_vision.track_units import compare_units
from pac_vision.tracker_training import train_tracker
from pac_vision.trackers import Tracker, TrackerSettings
from pac_vision.tracking import track
from pac_vision.tracks import Tracks, read_tracks
from pac_vision.videos import Video

__all__ = [
    "PAPER_PAIRS",
    "Backbone",
    "BoxScore",
    "Classifier",
    "ClassifyImages",
    "Images",
    "Overlay",
    "ScoreTracks",
    "Sequence",
    "TrackSequences",
    "Tracker",
    "TrackerSettings",
    "Tracks",
    "Video",
    "allowed_misses",
    "choose_box_score",
    "compare_units",
    "efficientnet_lite",
    "find_images",
    "find_sequences",
    "imagenet",
    "load_backbone",
    "load_model",
    "overlay_grid",
    "read_boxes",
    "read_image",
    "read_tracks",
    "share_score",
    "split_by_pair",
    "split_by_video",
    "track",
    "train_tracker",
    "write_gif",
]
