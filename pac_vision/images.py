"""Labelled images in the layouts people have: class folders, one folder, tar shards, parquet files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pac_core import InvalidInput, UnreadableFile
from pac_core.class_names import ClassNames, read_classes
from pac_vision.labels import folder_labels, read_labels
from pac_vision.parquets import parquet_images, parquet_labels
from pac_vision.sources import FileReader, Read, Source, images_below, images_in, visible
from pac_vision.tars import tar_images, tar_labels


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images of a place; each is one unit.

    folder: where they are
    ids: `[N]` their paths below the folder, with forward slashes, sorted; of an image in a tar
        ``shard.tar/key``, in a parquet file ``file.parquet/0000012``, which is its row
    labels: `[N]` class indices
    classes: the names of the classes, label by label; None where the labels came as numbers
    names: the names to show to people, label by label; None where there are none
    read: the content of an image's file; None for plain files below the folder
    """

    folder: str
    ids: NDArray[np.str_]
    labels: NDArray[np.int64]
    classes: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    read: Read | None = None

    @property
    def source(self) -> Source:
        """The images without their labels."""
        return Source(self.folder, self.ids, self.read or FileReader(self.folder))

    def image(self, name: str) -> Image.Image:
        """The image of this id, as RGB; one that cannot be decoded is a `BrokenImage`."""
        return self.source.image(name)

    def by_id(self, classes: int) -> dict[str, int]:
        """The label of each id, for a model with this many classes.

        Where folders were counted in the order of their names, there must be as many as the model has
        classes: the third of ten folders is another class than the third of a thousand.
        """
        if self.classes is not None and len(self.classes) != classes:
            raise InvalidInput(
                f"the model has {classes:,} classes but {self.folder} names {len(self.classes):,}: give "
                "find_images the names of the model's classes in their order"
            )
        if self.labels.max() >= classes:
            worst = int(self.labels.argmax())
            raise InvalidInput(
                f"labels must lie in 0..{classes - 1}, got {self.labels[worst]} for {self.ids[worst]}"
            )
        return dict(zip(self.ids.tolist(), self.labels.tolist(), strict=True))


def find_images(
    source: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | str | os.PathLike[str] | None = None,
) -> Images:
    """The images of a folder, of tar shards or of parquet files, with their labels.

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
    root, packed = _layout(Path(source), besides=file)
    if not packed:
        found, values, known = _plain(root, file, known)
    elif packed[0].lower().endswith(".tar"):
        found, samples = tar_images(root, packed)
        values, known = tar_labels(found, samples, file, known)
    else:
        found, columns = parquet_images(root, packed)
        values, known = parquet_labels(found, columns, file, known)
    keys, names = (None, None) if known is None else (known.keys, known.names)
    return Images(found.folder, found.ids, np.array(values, np.int64), keys, names, found.read)


def find_unlabelled(source: str | os.PathLike[str]) -> Source:
    """The images of a folder, however deep, of tar shards or of parquet files, without their labels."""
    root, packed = _layout(Path(source))
    if not packed:
        return images_below(root)
    if packed[0].lower().endswith(".tar"):
        return tar_images(root, packed)[0]
    return parquet_images(root, packed)[0]


def _layout(source: Path, besides: Path | None = None) -> tuple[Path, list[str]]:
    """The folder of the images, and the tars or parquet files that hold them, if any do."""
    if source.is_dir():
        entries = [
            e for e in visible(source) if besides is None or Path(e.path).absolute() != besides.absolute()
        ]
        files = [entry.name for entry in entries]
        return source, _packed(source, files) if any(map(_kind, files)) else []
    if "**" in source.name and not source.is_file():
        raise InvalidInput(f"a pattern must name files of one folder, with * and not **, got {source}")
    found = [source] if source.is_file() else source.parent.glob(source.name) if source.name else []
    files = sorted(path.name for path in found)
    if not files:
        raise UnreadableFile(f"there is no folder {source}")
    if not _kind(files[0]):
        raise UnreadableFile(f"{source} must be a folder, a plain .tar or a .parquet, and is none")
    return source.parent, _packed(source, files)


def _packed(source: Path, files: list[str]) -> list[str]:
    """Files that hold images, refused unless all are of one kind."""
    kind = next(filter(None, map(_kind, files)))
    if others := [name for name in files if _kind(name) != kind]:
        raise UnreadableFile(f"{source} must hold {kind} files and nothing else, got {others[0]}")
    return files


def _kind(name: str) -> str:
    """``.tar``, ``.parquet`` or nothing."""
    return next((kind for kind in (".tar", ".parquet") if name.lower().endswith(kind)), "")


def _plain(
    root: Path, labels: Path | None, classes: ClassNames | None
) -> tuple[Source, list[int], ClassNames | None]:
    """Images that are files of their own, their labels, and the classes."""
    if labels is not None:
        ids = images_in(root, besides=labels)
        return _files(root, ids), read_labels(labels, ids, classes), classes
    entries = visible(root)
    folders = [entry.name for entry in entries if entry.is_dir()]
    if not entries:
        raise UnreadableFile(f"{root} holds no images and no folders of classes")
    if len(folders) < len(entries):
        loose = next(entry.name for entry in entries if not entry.is_dir())
        raise UnreadableFile(
            f"{root} must hold a folder per class and nothing else, got {loose}; images side by side "
            "need a label file"
        )
    label_of, classes = folder_labels(root, folders, classes)
    found = sorted(
        (f"{name}/{image}", label_of[name]) for name in folders for image in images_in(root / name)
    )
    return _files(root, [name for name, _ in found]), [label for _, label in found], classes


def _files(root: Path, ids: list[str]) -> Source:
    return Source(str(root), np.array(ids), FileReader(str(root)))
