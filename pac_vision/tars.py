"""Images in tar shards, as webdataset writes them: found in one pass, read where they lie."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pac_core import UnreadableFile
from pac_core.class_names import ClassNames
from pac_vision.labels import Label, Labelled, folder_labels, index_or_text, label_of, read_labels
from pac_vision.sources import ENDINGS, Source

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_BLOCK = 512


class Place(NamedTuple):
    """Where a member's content lies: the shard's name and size, and the member's first byte and size."""

    shard: str
    length: int
    offset: int
    size: int


@dataclass(frozen=True)
class TarReader:
    """Reads members of tar shards in a folder by seeking; it holds no open file."""

    folder: str
    places: dict[str, Place]

    def __call__(self, name: str) -> bytes:
        place = self.places.get(name)
        if place is None:
            raise UnreadableFile(f"{self.folder} holds no image {name}")
        path = Path(self.folder) / place.shard
        try:
            with path.open("rb") as file:
                changed = file.seek(0, 2) != place.length
                file.seek(place.offset)
                content = file.read(place.size)
        except OSError as error:
            raise UnreadableFile(f"{path} cannot be read: {error.strerror}") from None
        if changed or len(content) != place.size:
            raise UnreadableFile(f"{path} has changed since its members were found: start again")
        return content


class _Member(NamedTuple):
    name: str
    place: Place


class _Sample(NamedTuple):
    """The members of one key: its image, and what may hold its label."""

    image: _Member
    label: _Member | None


def open_tars(root: Path, shards: Sequence[str]) -> tuple[Source, Label]:
    """Open the images of tar shards, by the ids ``shard.tar/key``."""
    samples = dict(sorted(pair for shard in shards for pair in _samples(root, shard)))
    reader = TarReader(str(root), {name: sample.image.place for name, sample in samples.items()})
    return Source(str(root), np.array(list(samples)), reader), partial(_label_samples, root, samples)


def _label_samples(
    root: Path, samples: dict[str, _Sample], file: Path | None, classes: ClassNames | None
) -> Labelled:
    """By a label file, by `key.cls` or `key.json`, or by folders inside the tar."""
    if file is not None:
        return _read_labels(root, samples, file, classes), classes
    labels = {name: sample.label for name, sample in samples.items() if sample.label is not None}
    folder_of = [sample.image.name.rpartition("/")[0].rpartition("/")[2] for sample in samples.values()]
    if not labels and all(folder_of):
        return folder_labels(root, folder_of, classes)
    for name in samples:
        if name not in labels:
            raise UnreadableFile(f"{root / name} has no label: a member .cls, or .json with a label")
    read = TarReader(str(root), {name: member.place for name, member in labels.items()})
    found = []
    for name, member in labels.items():
        content, where = read(name), f"{root / name}.{member.name.rpartition('.')[2]}"
        try:
            text = content.decode()
            value: Any = json.loads(text)["label"] if where.endswith(".json") else index_or_text(text)
        except (ValueError, KeyError, TypeError):
            raise UnreadableFile(f"{where} must hold a label, got {content[:40]!r}") from None
        found.append(label_of(value, classes, where))
    return found, classes


def _read_labels(
    root: Path, samples: dict[str, _Sample], labels: Path, classes: ClassNames | None
) -> list[int]:
    """Read a label file, whose lines follow the names of files, not the keys."""
    files = {name: sample.image.name.rpartition("/")[2] for name, sample in samples.items()}
    id_of: dict[str, str] = {}
    for name, file in files.items():
        if file in id_of:
            raise UnreadableFile(
                f"{root / name} and {root / id_of[file]} must have different file names, got {file} twice: "
                f"{labels} cannot tell them apart"
            )
        id_of[file] = name
    ordered = sorted(id_of)  # as the files would lie in a folder: photo-1.png goes before photo.png
    one_place = len({name.rpartition("/")[0] for name in samples}) == 1
    found = dict(zip(ordered, read_labels(labels, ordered, classes, ordered=one_place), strict=True))
    return [found[file] for file in files.values()]


def _samples(root: Path, shard: str) -> Iterator[tuple[str, _Sample]]:
    """(id, sample) of each key of a shard."""
    groups: dict[str, dict[str, _Member]] = {}
    for name, place in _members(root, shard):
        folder, slash, file = name.rpartition("/")
        stem, _, ending = file.lower().partition(".")
        fields = groups.setdefault(f"{folder}{slash}{file[: len(stem)]}", {})
        if ending in fields:
            raise UnreadableFile(f"{root / shard}/{name} stands there twice")
        fields[ending] = _Member(name, place)
    if not groups:
        raise UnreadableFile(f"{root / shard} holds no images")
    for key, fields in groups.items():
        images = [ending for ending in fields if f".{ending}" in ENDINGS]
        if len(images) != 1:
            raise UnreadableFile(
                f"{root / shard}/{key} must have one image (a member ending in {', '.join(ENDINGS)}), got "
                f"{', '.join('.' + ending for ending in sorted(images or fields))}"
            )
        yield f"{shard}/{key}", _Sample(fields[images[0]], fields.get("cls", fields.get("json")))


def _members(root: Path, shard: str) -> Iterator[tuple[str, Place]]:
    """The visible files of a tar, in its order; refused unless the tar is whole."""
    path = root / shard
    try:
        length = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(6)
    except OSError as error:  # a folder of that name, a link to nowhere, no permission
        raise UnreadableFile(f"{path} cannot be read as a tar: {error.strerror}") from None
    for mark, kind in _COMPRESSED.items():
        if start.startswith(mark):
            raise UnreadableFile(f"{path} is compressed ({kind}): unpack it to a plain tar")
    end = 0
    try:
        with tarfile.open(path, "r:") as tar:
            while (member := tar.next()) is not None:
                end = tar.offset
                tar.members = []  # type: ignore[attr-defined] # it would keep them all
                name = member.name.removeprefix("./")
                if member.isdir() or any(part.startswith(".") for part in name.split("/")):
                    continue
                if not member.isreg() or member.issparse():
                    raise UnreadableFile(f"{path}/{name} must be a plain file, got a link or the like")
                yield name, Place(shard, length, member.offset_data, member.size)
    except UnreadableFile:
        raise
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise UnreadableFile(f"{path} cannot be read as a tar, or is cut off: {error}") from None
    with path.open("rb") as file:  # what follows a lost end mark, a block of zeros, would be lost, too
        file.seek(end)
        if file.read(_BLOCK) != bytes(_BLOCK):
            raise UnreadableFile(f"{path} is damaged or cut off: there is no end mark after its last member")
        if any(block.strip(b"\0") for block in iter(lambda: file.read(1 << 20), b"")):
            raise UnreadableFile(f"{path} must be one tar, got something after its end mark")
