"""Labelled images in the layouts people have: class folders, one folder, tar shards, parquet files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, plugins
from pac_core.datasets import read_classes
from pac_core.errors import UnreadableFile
from pac_vision.images.archives import open_parquets, open_tars
from pac_vision.images.decoding import Label, Open, Source, open_folder, visible

SOURCES: dict[str, Open] = {"": open_folder, "tar": open_tars, "parquet": open_parquets}
"""What opens files with an ending; "" is for images that are files of their own.

Other packages add to it by entry points of the group ``pac_sets.image_sources``.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class Images(Source):
    """Labelled images of a place; each is one unit.

    ids: of an image in a tar ``shard.tar/key``, in a parquet file ``file.parquet/0000012``, which is its row
    labels: `[N]` class indices
    classes: the names of the classes, label by label; None where the labels came as numbers
    names: the names to show to people, label by label; None where there are none
    """

    labels: NDArray[np.int64]
    classes: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None

    def by_id(self, classes: int) -> dict[str, int]:
        """The label of each id, for a model with so many classes.

        Named folders must be as many: the third of ten is another class than the third of a thousand.
        """
        if self.classes is not None and len(self.classes) != classes:
            hint = "give find_images the names of the model's classes in their order"
            raise InvalidInput(
                f"the model has {classes:,} classes but {self.folder} names {len(self.classes):,}: {hint}"
            )
        if (most := self.labels.max()) >= classes:
            worst = self.ids[self.labels.argmax()]
            raise InvalidInput(f"labels must lie in 0..{classes - 1}, got {most} for {worst}")
        return dict(zip(self.ids.tolist(), self.labels.tolist(), strict=True))


def find_images(
    source: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | str | os.PathLike[str] | None = None,
) -> Images:
    """Find the images of a folder, of tar shards or of parquet files, with their labels.

    source: one of
        a folder with one folder per class, named by its index (``0`` or ``0000``) or by anything else
        (``n01440764``)
        with `labels`, a folder with all images side by side, as ILSVRC's validation images come
        a plain .tar, or a folder of them, as webdataset writes them: ``key.jpg`` (or another ending) with
        ``key.cls``, the class index as text, or ``key.json`` with a ``label``; where there is neither, with
        `labels`, or with a folder per class inside
        a .parquet, or a folder of them, with a column of image bytes, plain or as Hugging Face's
        struct {bytes, path}, named image, img, image_bytes, jpg, jpeg, png, webp, bytes or content, and one
        of labels, named label, labels, cls, class, class_id or target; where a file has Hugging
        Face's names of the classes, its labels count these, and are found in `classes` by name
        a file, or a folder of files, with an ending for which a plugin is installed
        a pattern of such files in one folder: ``data/validation-*.parquet``
    labels: a text file with a line ``file label`` per image, or one label per line in the order of the sorted
        file names, if these lie in one folder or tar; labels are class indices from 0, or names out of
        `classes`, and refused where digits are the index of one class and the name of another
    classes: the names of the model's classes in the order of its outputs, or a file of them (see
        `read_classes`); without it, named folders are counted in the order of their names

    The numbers 1..1000 of ILSVRC's development kit are in an order of its own: they are not class indices.
    """
    known = None if classes is None else read_classes(classes)
    file = None if labels is None else Path(labels)
    if file is not None and not file.is_file():
        raise UnreadableFile(f"there is no file of labels {file}")
    found, label = _open(Path(source), besides=file)
    values, known = label(file, known)
    if len(values) != len(found.ids):
        raise InvalidInput(f"{source} must have a label per image, got {len(values)} for {len(found.ids)}")
    named = {} if known is None else {"classes": known.keys, "names": known.names}
    return Images(found.folder, found.ids, found.read, labels=np.array(values, np.int64), **named)


def find_unlabelled_images(source: str | os.PathLike[str]) -> Source:
    """Find images without their labels, in all places of `find_images` and in folders however deep."""
    return _open(Path(source))[0]


def _open(source: Path, besides: Path | None = None) -> tuple[Source, Label]:
    """Open a folder, a file or a pattern of files by what their ending says; `besides` is no image."""
    endings = [*filter(None, SOURCES), *plugins.names("image_sources")]
    if source.is_dir():
        root, there = source, [Path(entry.path) for entry in visible(source)]
        files = [path.name for path in there if besides is None or path.absolute() != besides.absolute()]
    else:
        if "**" in source.name and not source.is_file():
            raise InvalidInput(f"a pattern must name files of one folder, with * and not **, got {source}")
        root = source.parent
        matches = [source] if source.is_file() else root.glob(source.name) if source.name else []
        files = sorted(path.name for path in matches)
        if not files:
            raise UnreadableFile(f"there is no folder {source}")
    kinds = [next((e for e in endings if name.lower().endswith(f".{e}")), "") for name in files]
    kind = next(filter(None, kinds), "")
    if not kind and root != source:
        known = ", ".join(f".{ending}" for ending in endings)
        raise UnreadableFile(f"{source} must be a folder or files ending in one of {known}, and is neither")
    if kind and set(kinds) != {kind}:
        other = next(name for name, own in zip(files, kinds, strict=True) if own != kind)
        raise UnreadableFile(f"{source} must hold .{kind} files and nothing else, got {other}")
    opened: tuple[Source, Label] = (SOURCES.get(kind) or plugins.load("image_sources", kind))(root, files)
    return opened
