"""The classes of a model: their keys in folders and label files, and their names for people."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pac_core.errors import InvalidInput, UnreadableFile

_WNID = re.compile(r"(n\d{8})\s+(\S.*)")


@dataclass(frozen=True)
class ClassNames:
    """The K classes of a model, in the order of its outputs.

    keys: K different keys that folders and labels may use, such as ``n01440764``
    names: K different names to show, such as ``tench``; the keys, if there are no others
    """

    keys: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, keys: Sequence[str], names: Sequence[str] | None = None) -> ClassNames:
        """Make the names unique: ImageNet has two kinds of ``crane``.

        >>> ClassNames.of(["n02012849", "n03126707"], ["crane", "crane"]).names
        ('crane (n02012849)', 'crane (n03126707)')
        """
        keys = tuple(keys)
        if repeats := len(keys) - len(set(keys)):
            raise InvalidInput(f"classes must be unique, got {repeats} repeats")
        shown = tuple(keys if names is None else names)
        often = Counter(shown)
        apart = (
            f"{name} ({key})" if often[name] > 1 else name for key, name in zip(keys, shown, strict=True)
        )
        return cls(keys, tuple(apart))

    @cached_property
    def index(self) -> dict[str, int]:
        """The class of every key and name; a key takes precedence."""
        listed = (*self.names, *self.keys)
        return {name: place % len(self.keys) for place, name in enumerate(listed)}


def read_classes(classes: str | os.PathLike[str] | Sequence[str]) -> ClassNames:
    """The classes named by a file, or a sequence of names in the order of the model's outputs.

    classes: a JSON file like ImageNet's class index, ``{"0": ["n01440764", "tench"], ...}``, or a list; or a
        text file with a name, or a wnid and a name, on each line
    """
    if not isinstance(classes, str | os.PathLike):
        return ClassNames.of([str(name) for name in classes])
    file = Path(classes)
    try:
        text = file.read_text(encoding="utf-8-sig")
        entries = _from_json(json.loads(text)) if file.suffix.lower() == ".json" else _from_lines(text)
        return ClassNames.of(*zip(*entries, strict=True))
    except (OSError, ValueError, TypeError) as error:  # what we refuse is a ValueError too
        raise UnreadableFile(f"{file} cannot be read as names of classes: {error}") from None


def _from_json(document: Any) -> list[tuple[str, str]]:
    if isinstance(document, dict):
        wanted = [str(place) for place in range(len(document))]
        if missing := [place for place in wanted if place not in document]:
            raise ValueError(f"its keys must be 0 to {len(document) - 1}, got no {missing[0]!r}")
        document = [document[place] for place in wanted]
    if not isinstance(document, list):
        raise ValueError(f"it must hold an object or a list, got {type(document).__name__}")
    entries = [entry if isinstance(entry, list) else [entry] for entry in document]
    for place, entry in enumerate(entries):
        if len(entry) not in (1, 2) or not all(isinstance(text, str) and text.strip() for text in entry):
            raise ValueError(f"class {place} must be a name, or a key and a name, got {entry!r}")
    return _entries([tuple(text.strip() for text in entry) for entry in entries])


def _from_lines(text: str) -> list[tuple[str, str]]:
    lines = [line.strip() for line in text.rstrip().splitlines()]
    if "" in lines:
        raise ValueError(f"each line must name a class, got an empty line {lines.index('') + 1}")
    pairs = [match.groups() for line in lines if (match := _WNID.fullmatch(line))]
    return _entries(pairs if lines and len(pairs) == len(lines) else [(line,) for line in lines])


def _entries(entries: list[tuple[str, ...]]) -> list[tuple[str, str]]:
    """(key, name) of each class; a name without a key that occurs twice is numbered."""
    often = Counter(entry[0] for entry in entries if len(entry) == 1)
    return [
        (entry[0], entry[-1]) if often[entry[0]] < 2 else (f"{entry[0]} ({place})",) * 2
        for place, entry in enumerate(entries)
    ]
