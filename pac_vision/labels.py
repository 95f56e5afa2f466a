"""The label of each image: from the name of its folder, from a text beside it, or from a label file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pac_core import UnreadableFile
from pac_core.class_names import ClassNames

Labelled: TypeAlias = tuple[list[int], ClassNames | None]
"""The class index of each image, in the order of the ids, and the classes if they have names."""
Label: TypeAlias = Callable[[Path | None, ClassNames | None], Labelled]
"""Labels the images of a source, given a label file and the model's classes where there are any."""


def label_of(value: Any, classes: ClassNames | None, where: str) -> int:
    """The class index that a number or text means; `where` begins the refusal of anything else.

    A number is always an index. Text is a name or an index, and refused if it is both, of two classes.

    >>> animals = ClassNames.of(["ant", "cat"])
    >>> label_of(7, None, "a.json"), label_of("cat", animals, "a.txt"), label_of("0", animals, "a.txt")
    (7, 1, 0)
    """
    text = str(value).strip()
    named = classes.index.get(text) if classes is not None and isinstance(value, str) else None
    index = None if isinstance(value, bool | float) or not _is_index(text) else int(text)
    if classes is not None and index is not None and index >= len(classes.keys):
        if named is None:
            raise UnreadableFile(f"{where} must have a label in 0..{len(classes.keys) - 1}, got {text}")
        index = None
    readings = {index, named} - {None}
    if len(readings) > 1:
        raise UnreadableFile(
            f"{where} must have a label that can be read in one way, got {text!r}, which is class {index} by "
            f"its index and class {named} by its name"
        )
    for reading in readings:
        if reading is not None:
            return reading
    raise UnreadableFile(f"{where} must have a class index from 0, got {text!r}")


def index_or_text(text: str) -> int | str:
    """The number that digits are, or the text as it came: for places where digits are always an index."""
    return int(text) if _is_index(text.strip()) else text


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def classes_of(stored: ClassNames, classes: ClassNames, where: str) -> list[int]:
    """The class of each name that is stored beside labels, found by its key or by its name to show.

    >>> classes_of(ClassNames.of(["cat", "ant"]), ClassNames.of(["ant", "bee", "cat"]), "a.parquet")
    [2, 0]
    """
    found: dict[int, str] = {}
    for name in stored.keys:
        places = {names.index(name) for names in (classes.keys, classes.names) if name in names}
        if len(places) != 1:
            raise UnreadableFile(
                f"{where} names a class {name!r} that must be one of the classes given, which begin with "
                f"{', '.join(map(repr, classes.names[:3]))}, got {len(places)} of that name: give its names "
                "in the order of the model's outputs, or no classes if its own order is that"
            )
        place = places.pop()
        if place in found:
            raise UnreadableFile(f"{where} names class {place} twice, {found[place]!r} and {name!r}")
        found[place] = name
    return list(found)


def folder_labels(root: Path, folder_of: Sequence[str], classes: ClassNames | None) -> Labelled:
    """The class of each image, from the name of its folder; without `classes`, names are counted in order.

    Digits that are the index of one class and the name of another are refused, as in a label file.
    """
    folders = sorted(set(folder_of))
    indices = sum(name.isdecimal() for name in folders)
    by_index = indices > 0 and not (classes is not None and any(name in classes.index for name in folders))
    if by_index and indices < len(folders):
        other = next(name for name in folders if not name.isdecimal())
        rule = "must all be class indices or all be names"
        raise UnreadableFile(f"the folders of {root} {rule}, got {indices:,} indices and {other}")
    if not by_index:
        classes = classes or ClassNames.of(folders)
        if unknown := [name for name in folders if name not in classes.index]:
            count = len(classes.keys)
            raise UnreadableFile(f"{root / unknown[0]} is not among the {count:,} names of classes")
    found = {name: label_of(name, classes, str(root / name)) for name in folders}
    if by_index and len(set(found.values())) < len(folders):
        raise UnreadableFile(f"{root} must have one folder per class index, got one written in two ways")
    return [found[name] for name in folder_of], classes


def read_labels(
    file: Path, ids: Sequence[str], classes: ClassNames | None, *, ordered: bool = True
) -> list[int]:
    """Read the label of each id from a file with a line per id, which names it unless ids are `ordered`."""
    try:
        lines = file.read_text(encoding="utf-8").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{file} cannot be read as a label file: {error}") from None
    if len(lines) != len(ids):
        raise UnreadableFile(f"{file} must have a line per image, got {len(lines):,} for {len(ids):,} images")
    rows = [line.split() for line in lines]
    width = len(rows[0])
    if width == 1 and not ordered:
        raise UnreadableFile(
            f"{file} must name the file of each label, because the images lie in several tars or folders, "
            f"got {lines[0]!r}: give lines 'file label'"
        )
    found: dict[str, int] = {}
    for number, (row, own) in enumerate(zip(rows, ids, strict=True), start=1):
        where = f"{file} line {number}"
        if len(row) != width or width not in (1, 2):
            said = " ".join(row)
            raise UnreadableFile(f"{where} must be 'file label' or 'label', as all its lines, got {said!r}")
        name = row[0] if width == 2 else own
        if name in found:
            raise UnreadableFile(f"{where} labels {name} a second time")
        found[name] = label_of(row[-1], classes, where)
    if missing := [name for name in ids if name not in found]:
        raise UnreadableFile(f"{file} has no label for {missing[0]}")
    return [found[name] for name in ids]
