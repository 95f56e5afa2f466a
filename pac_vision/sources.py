"""Where images come from: their ids, and how the content of each is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pac_core import UnreadableFile
from pac_vision.decoding import decode, read_bytes

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
    read: the content of one
    skipped: files that are no images and were left out
    """

    folder: str
    ids: NDArray[np.str_]
    read: Read
    skipped: tuple[str, ...] = ()

    def image(self, name: str) -> Image.Image:
        """The image of this id, as RGB."""
        return decode(self.read(name), Path(self.folder) / name)


def is_image(name: str) -> bool:
    """Whether a file's ending is that of an image."""
    return name.lower().endswith(ENDINGS)


def visible(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, sorted by name, without hidden files."""
    with os.scandir(folder) as entries:
        return sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)


def images_in(folder: Path, besides: Path | None = None) -> list[str]:
    """The sorted names of the images in a folder, which must hold nothing else."""
    entries = visible(folder)
    if besides is not None:
        entries = [entry for entry in entries if Path(entry.path).absolute() != besides.absolute()]
    for entry in entries:
        if not is_image(entry.name) or entry.is_dir():
            raise UnreadableFile(f"{entry.path} is no image (a file ending in {', '.join(ENDINGS)})")
    if not entries:
        raise UnreadableFile(f"{folder} holds no images")
    return [entry.name for entry in entries]


def images_below(root: Path) -> Source:
    """The images of a folder and of those in it; other files are left out, and listed as such."""
    found = sorted(_below(root, "", frozenset()))
    images = [name for name in found if is_image(name)]
    if not images:
        raise UnreadableFile(f"{root} holds no images")
    others = tuple(name for name in found if not is_image(name))
    return Source(str(root), np.array(images), FileReader(str(root)), others)


def _below(root: Path, inside: str, above: frozenset[str]) -> Iterator[str]:
    """Paths of all visible files below `root`; a link back to a folder above is not followed."""
    here = os.path.realpath(root / inside)
    if here in above:
        return
    for entry in visible(root / inside):
        if entry.is_dir():
            yield from _below(root, f"{inside}{entry.name}/", above | {here})
        else:
            yield f"{inside}{entry.name}"
