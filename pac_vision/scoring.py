"""Scorers of images: made once per worker, called once per shard.

What a unit gets depends on the unit alone, to the last bit, whatever shard and worker it falls to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_core.arrays import labels_for
from pac_core.bounds import whole
from pac_vision.images import read_image
from pac_vision.models import load_model


class Shard(Protocol):
    """What a scorer asks of a shard."""

    @property
    def ids(self) -> Sequence[str]:
        """The units to score."""


class ClassifyImages:
    """Logits of images: `ids` `[n]`, `logits` `[n, K]`, `labels` `[n]` for a shard of n.

    folder: of the images
    ids_to_labels: the label of each image, by its path below the folder; see `Images.by_id`
    model_name: for `load_model`
    batch: images computed together

    Sums are rounded otherwise in batches of other sizes, and even in other rows of one batch. So an
    image has its own row, its place among the sorted ids modulo `batch`, and empty rows are padded.
    On a CPU a batch of one takes a tenth longer than the best; a GPU wants more.

    Logits are float32, as the model gave them: float16 moves a logit of 10 by as much as 0.004, and sets
    made from fresh float32 logits would not be those that were calibrated.
    """

    def __init__(
        self,
        folder: str,
        ids_to_labels: Mapping[str, int],
        model_name: str,
        batch: int = 1,
        *,
        device: str = "cpu",
    ) -> None:
        self.folder = Path(folder)
        self.batch = whole("batch", batch, least=1)
        self.model = load_model(model_name, device)
        ids = sorted(ids_to_labels)
        labels = labels_for("labels", [ids_to_labels[i] for i in ids], len(ids), self.model.classes)
        self.labels = dict(zip(ids, labels.tolist(), strict=True))
        self.rows = {name: place % self.batch for place, name in enumerate(ids)}

    def __call__(self, shard: Shard, given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        ids = known(shard.ids, self.labels)
        logits = np.empty((len(ids), self.model.classes), np.float32)
        for group in by_row([self.rows[name] for name in ids], self.batch):
            images = {row: self.read(ids[place]) for row, place in group.items()}
            shape = next(iter(images.values())).shape
            stack = np.zeros((self.batch, *shape), np.float32)
            for row, image in images.items():
                stack[row] = image
            found = self.model.logits(stack)
            for row, place in group.items():
                logits[place] = found[row]
        if np.isnan(logits).any():
            lost = ids[int(np.isnan(logits).any(axis=1).argmax())]
            raise InvalidInput(f"{self.model.name} must give logits that are numbers, got NaN for {lost}")
        return {
            "ids": np.array(ids),
            "logits": logits,
            "labels": np.array([self.labels[i] for i in ids], np.int64),
        }

    def read(self, name: str) -> NDArray[np.float32]:
        """`[3, H, W]` one image, preprocessed."""
        return self.model.preprocess(read_image(self.folder / name))


def known(ids: Sequence[str], units: Mapping[str, Any]) -> list[str]:
    """The ids of a shard, refused unless all are units of the scorer."""
    names = [str(name) for name in ids]
    if strange := [name for name in names if name not in units]:
        raise InvalidInput(f"ids must be among the {len(units):,} units of the scorer, got {strange[0]!r}")
    return names


def by_row(rows: Sequence[int], batch: int) -> Iterator[dict[int, int]]:
    """Groups {row: place in `rows`} that hold each place once, and each row at most once.

    >>> list(by_row([2, 0, 1, 2], batch=3))
    [{0: 1, 1: 2, 2: 0}, {2: 3}]
    """
    places = [[place for place, own in enumerate(rows) if own == row] for row in range(batch)]
    for turn in range(max(map(len, places))):
        yield {row: queue[turn] for row, queue in enumerate(places) if turn < len(queue)}
