"""Images in tar shards, as webdataset writes them: found in one pass, read where they lie."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pac_core import UnreadableFile
from pac_core.class_names import ClassNames
from pac_vision.labels import folder_labels, index_or_text, label_of, read_labels
from pac_vision.sources import ENDINGS, Source

_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
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


@dataclass(frozen=True)
class _Sample:
    """The members of one key: its image, and what may hold its label."""

    image: tuple[str, Place]
    label: tuple[str, Place] | None


def tar_images(root: Path, shards: list[str]) -> tuple[Source, dict[str, _Sample]]:
    """The images of tar shards, by the ids ``shard.tar/key``, and the members of each."""
    samples = {name: sample for shard in shards for name, sample in _samples(root, shard)}
    places = {name: sample.image[1] for name, sample in samples.items()}
    return Source(str(root), np.array(sorted(samples)), TarReader(str(root), places)), samples


def tar_labels(
    source: Source, samples: dict[str, _Sample], labels: Path | None, classes: ClassNames | None
) -> tuple[list[int], ClassNames | None]:
    """The label of each id, and the classes: from `key.cls` or `key.json`, a label file, or folders."""
    root, ids = Path(source.folder), source.ids.tolist()
    if labels is not None:
        return _listed_labels(root, samples, ids, labels, classes), classes
    without = [name for name in ids if samples[name].label is None]
    folders = {name: samples[name].image[0].rpartition("/")[0].rpartition("/")[2] for name in ids}
    if len(without) == len(ids) and all(folders.values()):
        found, classes = folder_labels(root, sorted(set(folders.values())), classes)
        return [found[folders[name]] for name in ids], classes
    if without:
        raise UnreadableFile(f"{root / without[0]} has no label: a member .cls, or .json with a label")
    reads = TarReader(source.folder, {n: s.label[1] for n, s in samples.items() if s.label is not None})
    return [_label(root / name, samples[name], reads(name), classes) for name in ids], classes


def _label(path: Path, sample: _Sample, content: bytes, classes: ClassNames | None) -> int:
    assert sample.label is not None
    where = f"{path}.{sample.label[0].rpartition('.')[2]}"
    try:
        text = content.decode()
        value: Any = json.loads(text)["label"] if where.endswith(".json") else index_or_text(text)
    except (ValueError, KeyError, TypeError):
        raise UnreadableFile(f"{where} must hold a label, got {content[:40]!r}") from None
    return label_of(value, classes, where)


def _listed_labels(
    root: Path, samples: dict[str, _Sample], ids: list[str], labels: Path, classes: ClassNames | None
) -> list[int]:
    """The label of each id out of a label file, whose lines follow the names of files, not the keys."""
    files = {name: samples[name].image[0].rpartition("/")[2] for name in ids}
    id_of: dict[str, str] = {}
    for name, file in files.items():
        if file in id_of:
            raise UnreadableFile(
                f"{root / name} and {root / id_of[file]} must have different file names, got {file} twice: "
                f"{labels} cannot tell them apart"
            )
        id_of[file] = name
    ordered = sorted(id_of)  # as the files would lie in a folder: photo-1.png goes before photo.png
    one_place = len({name.rpartition("/")[0] for name in ids}) == 1
    found = dict(zip(ordered, read_labels(labels, ordered, classes, ordered=one_place), strict=True))
    return [found[files[name]] for name in ids]


def _samples(root: Path, shard: str) -> Iterator[tuple[str, _Sample]]:
    """(id, sample) of each key of a shard."""
    groups: dict[str, dict[str, tuple[str, Place]]] = {}
    for name, place in _members(root, shard):
        folder, slash, file = name.rpartition("/")
        stem, _, ending = file.partition(".")
        fields = groups.setdefault(f"{folder}{slash}{stem}", {})
        if ending.lower() in fields:
            raise UnreadableFile(f"{root / shard}/{name} stands there twice")
        fields[ending.lower()] = (name, place)
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
    for mark, kind in _PACKED.items():
        if start.startswith(mark):
            raise UnreadableFile(
                f"{path} is compressed ({kind}), so its images cannot be read where they lie: unpack it "
                "to a plain tar"
            )
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
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        if isinstance(error, UnreadableFile):
            raise
        raise UnreadableFile(f"{path} cannot be read as a tar, or is cut off: {error}") from None
    _refuse_more(path, end)


def _refuse_more(path: Path, end: int) -> None:
    """Refuse a tar that does not end with its end mark, a block of zeros: what follows would be lost."""
    with path.open("rb") as file:
        file.seek(end)
        if file.read(_BLOCK) != bytes(_BLOCK):
            raise UnreadableFile(f"{path} is damaged or cut off: there is no end mark after its last member")
        for block in _blocks(file):
            if block.strip(b"\0"):
                raise UnreadableFile(f"{path} must be one tar, got something after its end mark")


def _blocks(file: Any) -> Iterable[bytes]:
    return iter(lambda: file.read(1 << 20), b"")
