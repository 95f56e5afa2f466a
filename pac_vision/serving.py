"""Forecasts of new images, for `pac sets --images`: the same model and the same code as in a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from pac_core import LogitForecast
from pac_vision.image_logits import ImageLogits
from pac_vision.images import find_unlabelled
from pac_vision.models import load_model

IMAGES = 32
"""Images whose sets are written together."""


@dataclass(frozen=True, eq=False)
class ImageForecasts:
    """A model and its logits of new images, some at a time.

    digest, classes: of the model
    n: images
    notes: what was left out, in a sentence
    """

    digest: str
    classes: int
    n: int
    notes: tuple[str, ...]
    logits: ImageLogits

    def __iter__(self) -> Iterator[tuple[NDArray[Any], LogitForecast]]:
        ids = self.logits.source.ids
        step = max(IMAGES, self.logits.batch)
        for first in range(0, self.n, step):
            some = ids[first : first + step]
            logits, failed = self.logits(some.tolist())
            yield some, LogitForecast(logits, failed=failed)


def image_forecasts(
    source: str | os.PathLike[str], *, model: str, batch: int = 1, device: str = "cpu", broken: str = "error"
) -> ImageForecasts:
    """The forecasts of the images of a folder, of tar shards or of parquet files; no labels are needed.

    source: see `find_unlabelled`
    model: for `load_model`
    batch, broken: see `ImageLogits`
    """
    if model.startswith("python:") and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where `python` itself would look for the module
    found = find_unlabelled(source)
    classifier = load_model(model, device)
    count = len(found.skipped)
    notes = (f"left out, because no images: {count:,} in all, first {found.skipped[0]}",) if count else ()
    asked = ImageLogits(found, classifier, batch, broken)
    return ImageForecasts(classifier.digest, classifier.classes, len(found.ids), notes, asked)
