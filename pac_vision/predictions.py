"""What a classifier says of labelled images: from a file of logits, or just computed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, LogitForecast, Record, UnreadableFile
from pac_core.arrays import labels_for
from pac_core.datasets import known_model, meaning
from pac_core.splits import digest_of, unit_names
from pac_core.tables import file_digest, read_arrays
from pac_vision.images import Images


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a classifier says of labelled images, each of which is one unit.

    name: of the classifier
    ids: `[N]` of the images, `ids_name` where they come from
    forecast: `[N, K]` logits
    labels: `[N]` true classes
    model, data: for the certificate
    """

    name: str
    ids: NDArray[np.str_]
    forecast: LogitForecast
    labels: NDArray[np.int64]
    model: Record
    data: Record
    ids_name: str = "ids"

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", unit_names("ids", self.ids))
        labels = labels_for("labels", self.labels, *self.forecast.logits.shape)
        if len(self.ids) != len(labels):
            raise InvalidInput(f"ids must be {len(labels)}, one for each label, got {len(self.ids)}")
        object.__setattr__(self, "labels", labels)

    @property
    def classes(self) -> int:
        return int(self.forecast.logits.shape[1])

    def take(self, rows: Any) -> tuple[LogitForecast, NDArray[np.int64]]:
        """Forecast and labels of some of the images."""
        return self.forecast.take(rows), self.labels[rows]

    def sorted(self) -> Predictions:
        """The same in the order of the ids, so that several classifiers have the same rows."""
        order = np.argsort(self.ids, kind="stable")
        forecast, labels = self.take(order)
        return replace(self, ids=self.ids[order], forecast=forecast, labels=labels)


def read_predictions(
    path: str | os.PathLike[str], *, name: str | None = None, model: Record | None = None
) -> Predictions:
    """The predictions in an npz or parquet file, never unpickled.

    path: arrays `logits` (or `probabilities`) `[N, K]`, `labels` `[N]`, and `ids` or `files` `[N]`
    name: of the classifier; by default that of the file
    """
    file = Path(path)
    arrays = read_arrays(file)
    key = next((key for key in ("ids", "files") if key in arrays), None)
    if key is None:
        raise UnreadableFile(f"{file} must name its images in an array ids or files, got none")
    _, forecast, labels = meaning(file, arrays)
    if not isinstance(forecast, LogitForecast) or labels is None:
        raise UnreadableFile(f"{file} must hold logits and labels, got {', '.join(sorted(arrays))}")
    called, data = name or file.stem, Record(file.name, len(arrays[key]), file_digest(file))
    model = model or Record(called, digest=known_model(arrays)[1])
    known = (arrays[key], forecast, labels)
    return Predictions(called, *known, model=model, data=data, ids_name=key)


def outcomes(forecast: LogitForecast, labels: NDArray[np.int64]) -> NDArray[np.str_]:
    """`[N]` "correct" or "incorrect", by the most likely label; "broken" where there is no forecast."""
    found = np.where(forecast.predictions() == labels, "correct", "incorrect")
    return found if forecast.failed is None else np.where(forecast.failed, "broken", found)


def readable(forecast: LogitForecast, labels: NDArray[np.int64]) -> tuple[LogitForecast, NDArray[np.int64]]:
    """Forecast and labels of the images that are not broken."""
    rows = np.flatnonzero(outcomes(forecast, labels) != "broken")
    return forecast.take(rows), labels[rows]


def places(model: Predictions, images: Images) -> list[str | None]:
    """The id in a folder of each of the classified images; None for those that are not there.

    Stored logits may know an image by its file name alone, so those are compared where the whole id is not
    found. An image whose folder says another label than the logits' is refused.
    """
    ids = images.ids.tolist()
    names = Counter(PurePosixPath(name).name for name in ids)
    short = {PurePosixPath(name).name: name for name in ids if names[PurePosixPath(name).name] == 1}
    where = short | {name: name for name in ids}
    found = [where.get(name) or where.get(PurePosixPath(name).name) for name in model.ids.tolist()]
    if images.classes is None or len(images.classes) == model.classes:
        truth = dict(zip(ids, images.labels.tolist(), strict=True))
        for place, label in zip(found, model.labels.tolist(), strict=True):
            if place is not None and truth[place] != label:
                raise InvalidInput(
                    f"{place} must have one label, got {truth[place]} from {images.folder} and {label} from "
                    f"{model.name}"
                )
    return found


def same_images(models: Sequence[Predictions]) -> tuple[Predictions, ...]:
    """The classifiers with their rows in one order, refused unless they saw the same images."""
    if not models:
        raise InvalidInput("models must be one or more, got none")
    if len({model.name for model in models}) != len(models):
        raise InvalidInput(f"models must have names of their own, got {[model.name for model in models]}")
    ordered = tuple(model.sorted() for model in models)
    first = ordered[0]
    for other in ordered[1:]:
        if not np.array_equal(first.ids, other.ids):
            raise InvalidInput(f"{first.name} and {other.name} must be of the same images, got other ids")
        if not np.array_equal(first.labels, other.labels):
            raise InvalidInput(f"{first.name} and {other.name} must have the same labels, got others")
    return ordered


def content_digest(models: Sequence[Predictions], rows: Any) -> str:
    """A digest of what all classifiers say of these images, and of the truth."""
    parts = [model.take(rows) for model in models]
    return digest_of(
        b"".join(
            part
            for forecast, labels in parts
            for part in (repr(forecast.tau).encode(), forecast.logits[i].tobytes(), labels[i].tobytes())
        )
        for i in range(len(rows))
    )
