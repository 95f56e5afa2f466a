"""Forecasts of new images, for `pac sets --images`: the same model and the same code as in a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from pac_core import LogitForecast
from pac_vision.image_logits import ImageLogits
from pac_vision.images import find_unlabelled
from pac_vision.models import family_of, load_model
from pac_vision.preprocessing import stated_in

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

    @property
    def failures(self) -> list[str]:
        """Why images have no forecast, a sentence for each so far."""
        return self.logits.reasons

    def __iter__(self) -> Iterator[tuple[NDArray[Any], LogitForecast]]:
        ids = self.logits.source.ids
        step = max(IMAGES, self.logits.batch)
        for first in range(0, self.n, step):
            some = ids[first : first + step]
            logits, failed = self.logits(some.tolist())
            yield some, LogitForecast(logits, failed=failed)


def image_forecasts(
    source: str | os.PathLike[str],
    *,
    model: str,
    batch: int | None = None,
    device: str = "cpu",
    broken: str = "error",
    preprocessing: Mapping[str, Any] | None = None,
    certified: str = "",
) -> ImageForecasts:
    """Forecast images without labels.

    source: see `find_unlabelled`
    model, preprocessing: for `load_model`
    batch, broken: see `ImageLogits`; a file that cannot be read is broken, too
    certified: the model's name in the certificate, which says the preprocessing where none is stated
    """
    if model.startswith("python:") and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where `python` itself would look for the module
    found, family = find_unlabelled(source), family_of(model)
    stated = preprocessing or (stated_in(certified) if family and family.silent else {})
    classifier = load_model(model, device, preprocessing=stated)
    count = len(found.skipped)
    notes = (f"left out, because no images: {count:,} in all, first {found.skipped[0]}",) if count else ()
    logits = ImageLogits(found, classifier, batch, broken, unreadable=True)
    return ImageForecasts(classifier.digest, classifier.classes, len(found.ids), notes, logits)
