"""Where images come from: their ids, how each is read, and the images that are files of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pac_core import UnreadableFile
from pac_core.class_names import ClassNames
from pac_vision.decoding import decode, read_bytes
from pac_vision.labels import Label, Labelled, folder_labels, read_labels

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")

Read: TypeAlias = Callable[[str], bytes]
"""From an id to the content of its file. It goes to the workers: small, and without open files."""


@dataclass(frozen=True)
class FileReader:
    """Reads files below a folder."""

    folder: str

    def __call__(self, name: str) -> bytes:
        return read_bytes(Path(self.folder) / name)


@dataclass(frozen=True, eq=False)
class Source:
    """Images of a place, by their ids.

    folder: where they are
    ids: `[N]` their paths below it, with forward slashes, sorted
    read: reads the content of one
    skipped: files that are no images and were left out
    """

    folder: str
    ids: NDArray[np.str_]
    read: Read
    skipped: tuple[str, ...] = ()

    def image(self, name: str) -> Image.Image:
        """Decode the image of this id, as RGB; one that cannot be decoded is a `BrokenImage`."""
        return decode(self.read(name), Path(self.folder) / name)


Open: TypeAlias = Callable[[Path, Sequence[str]], tuple[Source, Label]]
"""Opens files of a folder that hold images, and says how to label these."""


def visible(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, sorted by name, without hidden files."""
    with os.scandir(folder) as entries:
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)


def open_folder(root: Path, files: Sequence[str] = ()) -> tuple[Source, Label]:
    """Open the images of a folder, however deep; other files are skipped, but refused beside labels."""
    found = sorted(_walk(root, "", frozenset()))
    images = [name for name in found if name.lower().endswith(ENDINGS)]
    if not images:
        raise UnreadableFile(f"{root} holds no images")
    skipped = tuple(name for name in found if not name.lower().endswith(ENDINGS))
    source = Source(str(root), np.array(images), FileReader(str(root)), skipped)
    return source, partial(_label_files, source)


def _walk(root: Path, inside: str, above: frozenset[str]) -> Iterator[str]:
    """Paths of all visible files below `root`; a link back to a folder above is not followed."""
    here = os.path.realpath(root / inside)
    for entry in visible(root / inside) if here not in above else ():
        if entry.is_dir():
            yield from _walk(root, f"{inside}{entry.name}/", above | {here})
        else:
            yield f"{inside}{entry.name}"


def _label_files(source: Source, file: Path | None, classes: ClassNames | None) -> Labelled:
    """By a label file where images lie side by side; by their folders where there is a folder per class."""
    root, ids = Path(source.folder), source.ids.tolist()
    depth = 0 if file else 1
    folders = {entry.name: entry.is_dir() for entry in visible(root)}
    if file is None and not all(folders.values()):
        loose = next(name for name, is_folder in folders.items() if not is_folder)
        raise UnreadableFile(
            f"{root} must hold a folder per class and nothing else, got {loose}; images side by side "
            "need a label file"
        )
    others = [name for name in source.skipped if file is None or (root / name).absolute() != file.absolute()]
    others += ["/".join(name.split("/")[: depth + 1]) for name in ids if name.count("/") > depth]
    if others:
        raise UnreadableFile(f"{root / others[0]} is no image (a file ending in {', '.join(ENDINGS)})")
    if file is not None:
        return read_labels(file, ids, classes), classes
    folder_of = [name.partition("/")[0] for name in ids]
    if empty := folders.keys() - folder_of:  # it would be left out when named folders are counted
        raise UnreadableFile(f"{root / min(empty)} holds no images")
    return folder_labels(root, folder_of, classes)
