"""Scorers of images: made once per worker, called once per shard.

What a unit gets depends on the unit alone, to the last bit, whatever shard and worker it falls to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_vision.image_logits import ImageLogits
from pac_vision.images import Images
from pac_vision.models import load_model


class Shard(Protocol):
    """What a scorer asks of a shard."""

    @property
    def ids(self) -> Sequence[str]:
        """The units to score."""


class ClassifyImages:
    """Logits of images: `ids`, `labels`, `failed` (broken) `[n]` and `logits` `[n, K]` for a shard of n.

    images: with their labels
    model_name: for `load_model`
    batch, broken: see `ImageLogits`; a broken image that is no error has logits NaN

    Logits are float32, as the model gave them: float16 moves a logit of 10 by as much as 0.004, and sets
    made from fresh float32 logits would not be those that were calibrated.
    """

    def __init__(
        self, images: Images, model_name: str, batch: int = 1, broken: str = "error", *, device: str = "cpu"
    ) -> None:
        self.model = load_model(model_name, device)
        self.labels = images.by_id(self.model.classes)
        self.logits = ImageLogits(images.source, self.model, batch, broken)

    def __call__(self, shard: Shard, given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        ids = known(shard.ids, self.labels)
        logits, failed = self.logits(ids)
        labels = np.array([self.labels[i] for i in ids], np.int64)
        return {"ids": np.array(ids), "logits": logits, "labels": labels, "failed": failed}


def known(ids: Sequence[str], units: Mapping[str, Any]) -> list[str]:
    """The ids of a shard, refused unless all are units of the scorer."""
    names = [str(name) for name in ids]
    if strange := [name for name in names if name not in units]:
        raise InvalidInput(f"ids must be among the {len(units):,} units of the scorer, got {strange[0]!r}")
    return names
