"""Names of classes for people, from the files that come with datasets."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pac_core import UnreadableFile


@dataclass(frozen=True)
class ClassNames:
    """What the labels 0..K-1 are called.

    names: for people, such as "king penguin"
    folders: for folders of images, such as "n02056570"; the same as `names` where the file has no others
    """

    names: tuple[str, ...]
    folders: tuple[str, ...]

    def __getitem__(self, label: int) -> str:
        return self.names[label]

    def __len__(self) -> int:
        return len(self.names)

    def check(self, classes: int, source: str) -> None:
        """Refuse names that are not as many as the classes of `source`: label and name would not match."""
        if len(self) != classes:
            raise UnreadableFile(f"the class names must be {classes:,}, as {source} has, got {len(self):,}")


def read_class_names(path: str | os.PathLike[str]) -> ClassNames:
    """The names in a file of classes.

    path: JSON ``{"0": ["n01440764", "tench"], ...}`` (ImageNet's class index), ``{"0": "tench", ...}`` or
        ``["tench", ...]``; or text with a line per class, ``tench`` or ``n01440764 tench``
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
        found = json.loads(text) if file.suffix.lower() == ".json" else text.splitlines()
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"{file} cannot be read as class names: {error}") from None
    if isinstance(found, dict):
        keys = [str(label) for label in range(len(found))]
        if missing := [key for key in keys if key not in found]:
            raise UnreadableFile(f"{file} must name the classes 0 to {len(found) - 1}, got no {missing[0]}")
        found = [found[key] for key in keys]
    elif isinstance(found, list) and file.suffix.lower() != ".json":
        found = [_words(line) for line in found if line.strip()]
    if not isinstance(found, list) or not found or not all(_is_name(entry) for entry in found):
        raise UnreadableFile(f"{file} must hold a name, or a folder and a name, for each class")
    pairs = [(entry, entry) if isinstance(entry, str) else (entry[0], entry[-1]) for entry in found]
    return ClassNames(
        tuple(name.replace("_", " ") for _, name in pairs), tuple(folder for folder, _ in pairs)
    )


def numbered(classes: int) -> ClassNames:
    """Names where there are none: ``class 7``."""
    names = tuple(f"class {label}" for label in range(classes))
    return ClassNames(names, names)


def named_folders(folders: Sequence[str]) -> ClassNames:
    """Names where the folders of the images have some."""
    return ClassNames(tuple(name.replace("_", " ") for name in folders), tuple(folders))


def _words(line: str) -> str | list[str]:
    """A line of a text file: a name, or a WordNet id and a name."""
    first, _, rest = line.strip().partition(" ")
    known = first[:1] == "n" and first[1:].isdecimal() and len(first) == 9
    return [first, rest.split(",")[0].strip() or first] if known else line.strip()


def _is_name(entry: Any) -> bool:
    if isinstance(entry, str):
        return bool(entry)
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(p, str) and p for p in entry)
