"""Vision: image classification and object tracking."""

from pac_vision.backbones import Backbone, load_backbone
from pac_vision.box_scores import BoxScore, choose_box_score
from pac_vision.classifiers import Classifier
from pac_vision.decoding import BrokenImage, read_image
from pac_vision.image_logits import ImageLogits
from pac_vision.images import Images, find_images, find_unlabelled
from pac_vision.models import load_model
from pac_vision.plots import (
    Overlay,
    Picture,
    overlay_grid,
    picture_grid,
    reliability_bins,
    reliability_diagram,
    write_gif,
)
from pac_vision.preprocessing import Preprocessing, efficientnet_lite, imagenet
from pac_vision.scoring import ClassifyImages
from pac_vision.sequences import Sequence, find_sequences, read_boxes
from pac_vision.shares import allowed_misses, share_score
from pac_vision.sources import Source
from pac_vision.track_scoring import ScoreTracks, TrackSequences
from pac_vision.tracker_training import train_tracker
from pac_vision.trackers import Tracker, TrackerSettings
from pac_vision.tracking import track
from pac_vision.tracks import Tracks, read_tracks
from pac_vision.videos import Video

__all__ = [
    "Backbone",
    "BoxScore",
    "BrokenImage",
    "Classifier",
    "ClassifyImages",
    "ImageLogits",
    "Images",
    "Overlay",
    "Picture",
    "Preprocessing",
    "ScoreTracks",
    "Sequence",
    "Source",
    "TrackSequences",
    "Tracker",
    "TrackerSettings",
    "Tracks",
    "Video",
    "allowed_misses",
    "choose_box_score",
    "efficientnet_lite",
    "find_images",
    "find_sequences",
    "find_unlabelled",
    "imagenet",
    "load_backbone",
    "load_model",
    "overlay_grid",
    "picture_grid",
    "read_boxes",
    "read_image",
    "read_tracks",
    "reliability_bins",
    "reliability_diagram",
    "share_score",
    "track",
    "train_tracker",
    "write_gif",
]
