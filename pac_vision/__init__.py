"""Vision: image classification and object tracking."""

from pac_vision.alarm_studies import Alarms, alarms_in, by_the_paper, by_true_alarms, certify_rule
from pac_vision.classifiers import Classifier
from pac_vision.images import Images, find_images, read_image
from pac_vision.models import load_model
from pac_vision.preprocessing import efficientnet_lite, imagenet
from pac_vision.scoring import ClassifyImages, ScoreTracks
from pac_vision.sequences import Sequence, find_sequences, read_boxes
from pac_vision.shares import allowed_misses, share_score
from pac_vision.tabular import Table, read_table
from pac_vision.tabular_designs import TableDesign, design_for
from pac_vision.tabular_features import Encoder, fit_encoder
from pac_vision.tabular_forecasts import TableForecast, forecast_rest
from pac_vision.tabular_models import LabelModel, ValueModel, fit_labels, fit_values
from pac_vision.tabular_studies import certify_table, sets_of
from pac_vision.tracks import Tracks, read_tracks

__all__ = [
    "Alarms",
    "Classifier",
    "ClassifyImages",
    "Encoder",
    "Images",
    "LabelModel",
    "ScoreTracks",
    "Sequence",
    "Table",
    "TableDesign",
    "TableForecast",
    "Tracks",
    "ValueModel",
    "alarms_in",
    "allowed_misses",
    "by_the_paper",
    "by_true_alarms",
    "certify_rule",
    "certify_table",
    "design_for",
    "efficientnet_lite",
    "find_images",
    "find_sequences",
    "fit_encoder",
    "fit_labels",
    "fit_values",
    "forecast_rest",
    "imagenet",
    "load_model",
    "read_boxes",
    "read_image",
    "read_table",
    "read_tracks",
    "sets_of",
    "share_score",
]
