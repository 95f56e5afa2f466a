"""Images in folders: which there are, the label of each, and their pixels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from pac_core import InvalidInput, UnreadableFile

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images below a folder; each is one unit.

    folder: where they are
    ids: `[N]` their paths below the folder, with forward slashes, sorted
    labels: `[N]` class indices
    classes: the names of the classes, label by label; None where the labels came as numbers
    """

    folder: str
    ids: NDArray[np.str_]
    labels: NDArray[np.int64]
    classes: tuple[str, ...] | None = None

    def image(self, name: str) -> Image.Image:
        """The image of this id, as RGB."""
        return read_image(Path(self.folder) / name)

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
    folder: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
) -> Images:
    """The images of a folder, with their labels.

    folder: one folder per class, named by its index (``0`` or ``0000``) or by anything else (``n01440764``);
        or, with `labels`, all images side by side, as ILSVRC's validation images come
    labels: a text file with a line ``file label`` per image, or one label per line in the order of the sorted
        file names; labels are class indices from 0, or names out of `classes`
    classes: the names of the model's classes in the order of its outputs; without it, named folders
        are counted in the order of their names

    The numbers 1..1000 of ILSVRC's development kit are in an order of its own: they are not class indices.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UnreadableFile(f"there is no folder {root}")
    names = None if classes is None else tuple(classes)
    if names is not None and len(set(names)) != len(names):
        raise InvalidInput(f"classes must be unique, got {len(names) - len(set(names))} repeats")
    if labels is not None:
        ids = _images(root, besides=Path(labels))
        found = list(zip(ids, _read_labels(Path(labels), ids, names), strict=True))
    else:
        found, names = _class_folders(root, names)
    found.sort()
    return Images(
        str(root), np.array([i for i, _ in found]), np.array([k for _, k in found], np.int64), names
    )


def read_image(path: str | os.PathLike[str]) -> Image.Image:
    """The image in a file, as RGB; of an animation the first frame.

    A file that is damaged or cut off is refused with its path: a unit is never left out.
    """
    try:
        with Image.open(path) as image:
            image.load()
            if image.mode.startswith(("I", "F")):
                raise ValueError(f"its channels must have 8 bits, got mode {image.mode}")
            # Pillow warns of a palette whose transparency it would have to drop.
            whole = image.convert("RGBA") if image.mode == "P" else image
            return whole.convert("RGB")
    except Exception as error:  # the decoders raise a dozen kinds for a damaged file
        reason = "it is no image that Pillow knows" if isinstance(error, UnidentifiedImageError) else error
        raise UnreadableFile(f"{path} cannot be read as an image: {reason}") from None


def _class_folders(
    root: Path, names: tuple[str, ...] | None
) -> tuple[list[tuple[str, int]], tuple[str, ...] | None]:
    """(id, label) of the images in a folder per class, and the names of the classes."""
    entries = _visible(root)
    folders = [entry.name for entry in entries if entry.is_dir()]
    if not entries:
        raise UnreadableFile(f"{root} holds no images and no folders of classes")
    if len(folders) < len(entries):
        loose = next(entry.name for entry in entries if not entry.is_dir())
        raise UnreadableFile(
            f"{root} must hold a folder per class and nothing else, got {loose}; images side by side "
            "need a label file"
        )
    indices = sum(name.isdecimal() for name in folders)
    if names is None and 0 < indices < len(folders):
        other = next(name for name in folders if not name.isdecimal())
        raise UnreadableFile(
            f"the folders of {root} must all be class indices or all be names, got {indices:,} indices "
            f"and {other}"
        )
    if names is None and indices:
        label_of = {name: int(name) for name in folders}
        if len(set(label_of.values())) < len(folders):
            raise UnreadableFile(f"{root} must have one folder per class index, got one written in two ways")
    else:
        names = names or tuple(sorted(folders))
        label_of = {name: label for label, name in enumerate(names)}
        if unknown := [name for name in folders if name not in label_of]:
            raise UnreadableFile(f"{root / unknown[0]} is not among the {len(names):,} names of classes")
    found = [
        (f"{name}/{image}", label_of[name])
        for name in folders
        for image in _images(root / name)
    ]  # fmt: skip
    return found, names


def _images(folder: Path, besides: Path | None = None) -> list[str]:
    """The sorted names of the images in a folder, which must hold nothing else."""
    entries = _visible(folder)
    if besides is not None:
        entries = [entry for entry in entries if Path(entry.path).absolute() != besides.absolute()]
    for entry in entries:
        if not entry.name.lower().endswith(ENDINGS) or entry.is_dir():
            raise UnreadableFile(f"{entry.path} is no image (a file ending in {', '.join(ENDINGS)})")
    if not entries:
        raise UnreadableFile(f"{folder} holds no images")
    return [entry.name for entry in entries]


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)


def _read_labels(file: Path, ids: list[str], classes: tuple[str, ...] | None) -> list[int]:
    """The label of each id, from a label file."""
    try:
        lines = file.read_text(encoding="utf-8").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{file} cannot be read as a label file: {error}") from None
    if len(lines) != len(ids):
        raise UnreadableFile(f"{file} must have a line per image, got {len(lines):,} for {len(ids):,} images")
    rows = [line.split() for line in lines]
    index = None if classes is None else {name: label for label, name in enumerate(classes)}
    width = len(rows[0])
    label_of: dict[str, int] = {}
    for number, (row, own) in enumerate(zip(rows, ids, strict=True), start=1):
        if len(row) != width or width not in (1, 2):
            raise UnreadableFile(
                f"{file} line {number} must be 'file label' or 'label', as all its lines, got "
                f"{' '.join(row)!r}"
            )
        name = row[0] if width == 2 else own
        if name in label_of:
            raise UnreadableFile(f"{file} line {number} labels {name} a second time")
        label_of[name] = _label(file, number, row[-1], index)
    if missing := [name for name in ids if name not in label_of]:
        raise UnreadableFile(f"{file} has no label for {missing[0]}")
    return [label_of[name] for name in ids]


def _label(file: Path, number: int, text: str, classes: dict[str, int] | None) -> int:
    if classes is not None and text in classes:
        return classes[text]
    if not text.isdecimal():
        raise UnreadableFile(f"{file} line {number} must have a class index from 0, got {text!r}")
    if classes is not None and int(text) >= len(classes):
        raise UnreadableFile(f"{file} line {number} must have a label in 0..{len(classes) - 1}, got {text}")
    return int(text)
