"""Image models, from a name or a file to logits."""

from pac_vision.models.classifier import Classifier, ImageLogits, one_thread
from pac_vision.models.libraries import load_model

__all__ = ["Classifier", "ImageLogits", "load_model", "one_thread"]
