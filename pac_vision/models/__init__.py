"""Image models, from a name or a file to logits."""

from pac_vision.models.classifier import Classifier, ImageLogits
from pac_vision.models.libraries import load_model

__all__ = [
    "Classifier",
    "ImageLogits",
    "load_model",
]
