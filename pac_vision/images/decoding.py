"""Images in files: where they lie, how bytes become pixels, and how labels are read."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from pac_core.datasets import ClassNames
from pac_core.errors import UnreadableFile

RULES = "upright by EXIF, the upper 8 of 16 bits, no transparency, no colour profile"
"""How files become pixels. It enters the digest of every model: other rules would show it other images."""
_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).splitlines()), type(error).__name__)


class BrokenImage(UnreadableFile):
    """An image that was read but cannot be decoded; a file that cannot be read at all is no `BrokenImage`."""


def read_image(path: str | os.PathLike[str]) -> Image.Image:
    """Read the image in a file, upright and as RGB; of an animation the first frame.

    Orientation by EXIF is applied. Of 16 bits per channel the upper 8 are taken, whatever the largest value.
    Transparency and colour profiles are ignored; grey, black and white, palettes, CMYK and YCbCr become RGB
    by Pillow's own rules. 32-bit integers, floats and Lab are refused by name: their white is not known.
    A damaged or truncated file is refused with its path: no unit is ever left out.
    """
    return decode(read_bytes(path), path)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a file, or refuse it with its path."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnreadableFile(f"{path} cannot be read as an image: {error.strerror}") from None


def decode(content: bytes, path: str | os.PathLike[str]) -> Image.Image:
    """Decode an image as RGB; `path` says in a refusal where the bytes came from."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            _turn_upright(image)
            eight = _to_8_bits(image)
            # Pillow warns of a palette whose transparency it would have to drop.
            whole = eight.convert("RGBA") if eight.mode in ("P", "PA", "RGBa", "La") else eight
            return whole.convert("RGB")
    except MemoryError:  # the machine's failure, not the image's
        raise
    except Exception as error:  # the decoders raise a dozen kinds for a damaged file
        reason = "it is no image that Pillow knows" if isinstance(error, UnidentifiedImageError) else error
        raise BrokenImage(f"{path} cannot be read as an image: {reason}") from None


def _turn_upright(image: Image.Image) -> None:
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # damaged EXIF data beside intact pixels say nothing
        pass


def _to_8_bits(image: Image.Image) -> Image.Image:
    """The image, or the upper 8 bits of one with 16, as Pillow itself takes them of 16-bit colours."""
    # 16-bit grey is "I" in PGM files, and in PNG files for Pillow before 11.3.
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
    if image.mode not in _MODES:
        known = "8 or 16 bits that are grey, RGB, CMYK or YCbCr"
        raise ValueError(f"its channels must have {known}, got mode {image.mode}: convert it beforehand")
    return image


Labelled: TypeAlias = tuple[list[int], ClassNames | None]
"""The class index of each image, in the order of the ids, and the classes if they have names."""
Label: TypeAlias = Callable[[Path | None, ClassNames | None], Labelled]
"""Labels the images of a source, given a label file and the model's classes where there are any."""


def read_label(value: Any, classes: ClassNames | None, where: str) -> int:
    """The class index that a number or text means; `where` begins the refusal of anything else.

    A number is always an index. Text is a name or an index, and refused if it is both, of two classes.

    >>> animals = ClassNames.of(["ant", "cat"])
    >>> read_label(7, None, "a.json"), read_label("cat", animals, "a.txt"), read_label("0", animals, "a.txt")
    (7, 1, 0)
    """
    text = str(value).strip()
    named = classes.index.get(text) if classes is not None and isinstance(value, str) else None
    index = None if isinstance(value, bool | float) or not _is_index(text) else int(text)
    if classes is not None and index is not None and index >= len(classes.keys):
        if named is None:
            raise UnreadableFile(f"{where} must have a label in 0..{len(classes.keys) - 1}, got {text}")
        index = None
    if None not in (index, named) and index != named:
        got = f"{text!r}, which is class {index} by its index and class {named} by its name"
        raise UnreadableFile(f"{where} must have a label that can be read in one way, got {got}")
    found = named if index is None else index
    if found is None:
        raise UnreadableFile(f"{where} must have a class index from 0, got {text!r}")
    return found


def index_or_text(text: str) -> int | str:
    """The number that digits are, or the text as it came: for places where digits are always an index."""
    return int(text) if _is_index(text.strip()) else text


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def match_classes(stored: ClassNames, classes: ClassNames, where: str) -> list[int]:
    """The class of each name that is stored beside labels, found by its key or by its name to show.

    >>> match_classes(ClassNames.of(["cat", "ant"]), ClassNames.of(["ant", "bee", "cat"]), "a.parquet")
    [2, 0]
    """
    found: dict[int, str] = {}
    for name in stored.keys:
        places = {names.index(name) for names in (classes.keys, classes.names) if name in names}
        if len(places) != 1:
            raise UnreadableFile(
                f"{where} names a class {name!r} that must be one of the classes given, which begin with "
                f"{', '.join(map(repr, classes.names[:3]))}, got {len(places)} of that name"
            )
        place = places.pop()
        if place in found:
            raise UnreadableFile(f"{where} names class {place} twice, {found[place]!r} and {name!r}")
        found[place] = name
    return list(found)


def label_by_folder(root: Path, folder_of: Sequence[str], classes: ClassNames | None) -> Labelled:
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
    found = {name: read_label(name, classes, str(root / name)) for name in folders}
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
        rule = "must have lines 'file label', because the images lie in several tars or folders"
        raise UnreadableFile(f"{file} {rule}, got {lines[0]!r}")
    found: dict[str, int] = {}
    for number, (row, own) in enumerate(zip(rows, ids, strict=True), start=1):
        where = f"{file} line {number}"
        if len(row) != width or width not in (1, 2):
            said = " ".join(row)
            raise UnreadableFile(f"{where} must be 'file label' or 'label', as all its lines, got {said!r}")
        name = row[0] if width == 2 else own
        if name in found:
            raise UnreadableFile(f"{where} labels {name} a second time")
        found[name] = read_label(row[-1], classes, where)
    if missing := [name for name in ids if name not in found]:
        raise UnreadableFile(f"{file} has no label for {missing[0]}")
    return [found[name] for name in ids]


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
        rule = "must hold a folder per class and nothing else, or come with a label file"
        raise UnreadableFile(f"{root} {rule}, got {loose}")
    others = [name for name in source.skipped if file is None or (root / name).absolute() != file.absolute()]
    others += ["/".join(name.split("/")[: depth + 1]) for name in ids if name.count("/") > depth]
    if others:
        raise UnreadableFile(f"{root / others[0]} is no image (a file ending in {', '.join(ENDINGS)})")
    if file is not None:
        return read_labels(file, ids, classes), classes
    folder_of = [name.partition("/")[0] for name in ids]
    if empty := folders.keys() - folder_of:  # it would be left out when named folders are counted
        raise UnreadableFile(f"{root / min(empty)} holds no images")
    return label_by_folder(root, folder_of, classes)
