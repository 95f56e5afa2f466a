"""Vision: image classification and object tracking."""

from pac_vision.alarm_studies import Alarms, alarms_in, by_the_paper, by_true_alarms, certify_rule
from pac_vision.backbones import Backbone, load_backbone
from pac_vision.box_scores import BoxScore, choose_box_score
from pac_vision.class_results import ClassResults, compare_sets
from pac_vision.classifiers import Classifier
from pac_vision.decoding import BrokenImage, read_image
from pac_vision.frame_pairs import PAPER_PAIRS, split_by_pair, split_by_video
from pac_vision.image_logits import ImageLogits
from pac_vision.images import Images, find_images, find_unlabelled
from pac_vision.levels import Levels, fit_levels
from pac_vision.models import load_model
from pac_vision.overlays import Overlay, overlay_grid, write_gif
from pac_vision.predictions import Predictions, read_predictions
from pac_vision.preprocessing import Preprocessing, efficientnet_lite, imagenet
from pac_vision.scoring import ClassifyImages
from pac_vision.sequences import Sequence, find_sequences, read_boxes
from pac_vision.shares import allowed_misses, share_score
from pac_vision.sources import Source
from pac_vision.tabular import Table, read_table
from pac_vision.tabular_designs import TableDesign, design_for
from pac_vision.tabular_features import Encoder, fit_encoder
from pac_vision.tabular_forecasts import TableForecast, forecast_rest
from pac_vision.tabular_models import LabelModel, ValueModel, fit_labels, fit_values
from pac_vision.tabular_studies import certify_table, sets_of
from pac_vision.track_scoring import ScoreTracks, TrackSequences
from pac_vision.track_units import compare_units
from pac_vision.tracker_training import train_tracker
from pac_vision.trackers import Tracker, TrackerSettings
from pac_vision.tracking import track
from pac_vision.tracks import Tracks, read_tracks
from pac_vision.videos import Video

__all__ = [
    "PAPER_PAIRS",
    "Alarms",
    "Backbone",
    "BoxScore",
    "BrokenImage",
    "ClassResults",
    "Classifier",
    "ClassifyImages",
    "Encoder",
    "ImageLogits",
    "Images",
    "LabelModel",
    "Levels",
    "Overlay",
    "Predictions",
    "Preprocessing",
    "ScoreTracks",
    "Sequence",
    "Source",
    "Table",
    "TableDesign",
    "TableForecast",
    "TrackSequences",
    "Tracker",
    "TrackerSettings",
    "Tracks",
    "ValueModel",
    "Video",
    "alarms_in",
    "allowed_misses",
    "by_the_paper",
    "by_true_alarms",
    "certify_rule",
    "certify_table",
    "choose_box_score",
    "compare_sets",
    "compare_units",
    "design_for",
    "efficientnet_lite",
    "find_images",
    "find_sequences",
    "find_unlabelled",
    "fit_encoder",
    "fit_labels",
    "fit_levels",
    "fit_values",
    "forecast_rest",
    "imagenet",
    "load_backbone",
    "load_model",
    "overlay_grid",
    "read_boxes",
    "read_image",
    "read_predictions",
    "read_table",
    "read_tracks",
    "sets_of",
    "share_score",
    "split_by_pair",
    "split_by_video",
    "track",
    "train_tracker",
    "write_gif",
]
