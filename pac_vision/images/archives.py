"""Images in tar shards and parquet files: found in one pass, read where they lie."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pac_core.datasets import ClassNames
from pac_core.errors import UnreadableFile
from pac_vision.images.decoding import (
    ENDINGS,
    BrokenImage,
    Label,
    Labelled,
    Source,
    first_line,
    index_or_text,
    label_by_folder,
    match_classes,
    read_label,
    read_labels,
)

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_BLOCK = 512


class Member(NamedTuple):
    """A file in a tar, and where its content lies: shard and its length, the member's first byte and size."""

    name: str
    shard: str
    length: int
    offset: int
    size: int


@dataclass(frozen=True)
class TarReader:
    """Reads members of tar shards in a folder by seeking; it holds no open file."""

    folder: str
    members: dict[str, Member]

    def __call__(self, name: str) -> bytes:
        place = self.members.get(name)
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


class _Sample(NamedTuple):
    """The members of one key: its image, and what may hold its label."""

    image: Member
    label: Member | None


def open_tars(root: Path, shards: Sequence[str]) -> tuple[Source, Label]:
    """Open the images of tar shards, by the ids ``shard.tar/key``."""
    samples = dict(sorted(pair for shard in shards for pair in _samples(root, shard)))
    reader = TarReader(str(root), {name: sample.image for name, sample in samples.items()})
    return Source(str(root), np.array(list(samples)), reader), partial(_label_samples, root, samples)


def _label_samples(
    root: Path, samples: dict[str, _Sample], file: Path | None, classes: ClassNames | None
) -> Labelled:
    """By a label file, by `key.cls` or `key.json`, or by folders inside the tar."""
    if file is not None:  # its lines follow the names of files, not the keys
        files = {name: sample.image.name.rpartition("/")[2] for name, sample in samples.items()}
        id_of: dict[str, str] = {}
        for name, own in files.items():
            if (other := id_of.setdefault(own, name)) != name:
                rule = f"must have different file names, for {file} to tell them apart"
                raise UnreadableFile(f"{root / name} and {root / other} {rule}, got {own} twice")
        ordered = sorted(id_of)  # as the files would lie in a folder: photo-1.png goes before photo.png
        one_place = len({name.rpartition("/")[0] for name in samples}) == 1
        by_file = dict(zip(ordered, read_labels(file, ordered, classes, ordered=one_place), strict=True))
        return [by_file[own] for own in files.values()], classes
    labels = {name: sample.label for name, sample in samples.items() if sample.label is not None}
    folder_of = [sample.image.name.rpartition("/")[0].rpartition("/")[2] for sample in samples.values()]
    if not labels and all(folder_of):
        return label_by_folder(root, folder_of, classes)
    for name in samples:
        if name not in labels:
            raise UnreadableFile(f"{root / name} has no label: a member .cls, or .json with a label")
    read = TarReader(str(root), labels)
    found = []
    for name, member in labels.items():
        content, where = read(name), f"{root / name}.{member.name.rpartition('.')[2]}"
        try:
            text = content.decode()
            value: Any = json.loads(text)["label"] if where.endswith(".json") else index_or_text(text)
        except (ValueError, KeyError, TypeError):
            raise UnreadableFile(f"{where} must hold a label, got {content[:40]!r}") from None
        found.append(read_label(value, classes, where))
    return found, classes


def _samples(root: Path, shard: str) -> Iterator[tuple[str, _Sample]]:
    """(id, sample) of each key of a shard."""
    groups: dict[str, dict[str, Member]] = {}
    for member in _members(root, shard):
        folder, slash, file = member.name.rpartition("/")
        stem, _, ending = file.lower().partition(".")
        fields = groups.setdefault(f"{folder}{slash}{file[: len(stem)]}", {})
        if fields.setdefault(ending, member) is not member:
            raise UnreadableFile(f"{root / shard}/{member.name} stands there twice")
    if not groups:
        raise UnreadableFile(f"{root / shard} holds no images")
    for key, fields in groups.items():
        images = [ending for ending in fields if f".{ending}" in ENDINGS]
        if len(images) != 1:
            rule = f"must have one image (a member ending in {', '.join(ENDINGS)})"
            got = ", ".join(f".{ending}" for ending in sorted(images or fields))
            raise UnreadableFile(f"{root / shard}/{key} {rule}, got {got}")
        yield f"{shard}/{key}", _Sample(fields[images[0]], fields.get("cls", fields.get("json")))


def _members(root: Path, shard: str) -> Iterator[Member]:
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
                yield Member(name, shard, length, member.offset_data, member.size)
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


IMAGES = ("image", "img", "image_bytes", "jpg", "jpeg", "png", "webp", "bytes", "content")
LABELS = ("label", "labels", "cls", "class", "class_id", "target")
LARGEST_GROUP = 1 << 30
"""Bytes of a row group: a worker keeps one."""


class ParquetReader:
    """Reads images out of parquet files in a folder, and keeps the row group it read last.

    folder: of the files
    columns: the column of images of each file, by its name

    Neighbours lie in one row group, and shards are ranges of neighbours: a group is read about once.
    """

    def __init__(self, folder: str, columns: dict[str, str]) -> None:
        self.folder, self.columns = folder, columns
        self._file, self._group, self._firsts = "", -1, np.zeros(1, np.int64)  # rows of the groups
        self._opened: Any = None
        self._column: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetReader, (self.folder, self.columns)

    def __call__(self, name: str) -> bytes:
        file, _, row = name.rpartition("/")
        if file not in self.columns or not row.isdecimal():
            raise UnreadableFile(f"{self.folder} holds no image {name}")
        try:
            value = self._cell(file, int(row))
        except (OSError, ValueError, IndexError) as error:  # what pyarrow raises for a damaged file
            raise UnreadableFile(f"{Path(self.folder) / file} row {row} cannot be read: {error}") from None
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None:
            raise BrokenImage(f"{Path(self.folder) / name} cannot be read as an image: it has no bytes")
        return bytes(content)

    def _cell(self, file: str, row: int) -> Any:
        if self._file != file:
            self._group, self._column = -1, None
            opened = open_parquet(Path(self.folder) / file)
            sizes = [opened.metadata.row_group(g).num_rows for g in range(opened.num_row_groups)]
            self._file, self._opened, self._firsts = file, opened, np.cumsum([0, *sizes])
        group = int(np.searchsorted(self._firsts, row, side="right")) - 1
        if self._group != group:
            self._group, self._column = -1, None  # first, so that there is never more than one
            table = self._opened.read_row_group(group, columns=[self.columns[file]], use_threads=False)
            self._group, self._column = group, table.column(0)
        return self._column[row - int(self._firsts[group])].as_py()


class _Columns(NamedTuple):
    """What a parquet file holds: rows, the columns of images and of labels, and the classes it names."""

    rows: int
    image: str
    label: str | None
    classes: ClassNames | None


def open_parquets(root: Path, files: Sequence[str]) -> tuple[Source, Label]:
    """Open the images of parquet files, by the ids ``file.parquet/0000012``."""
    found = {file: _columns(root / file) for file in files}
    ids = sorted(f"{file}/{row:07d}" for file, columns in found.items() for row in range(columns.rows))
    if not ids:
        raise UnreadableFile(f"{root} holds no images: {', '.join(files)} have no rows")
    reader = ParquetReader(str(root), {file: columns.image for file, columns in found.items()})
    return Source(str(root), np.array(ids), reader), partial(_label_rows, root, ids, found)


def _label_rows(
    root: Path, ids: list[str], found: dict[str, _Columns], labels: Path | None, classes: ClassNames | None
) -> Labelled:
    """By a label file, or by the column of labels."""
    if labels is not None:
        return read_labels(labels, ids, classes), classes
    first, stored = next((file, columns.classes) for file, columns in found.items())
    label_at: dict[str, int] = {}
    for file, columns in found.items():
        path, own = root / file, columns.classes
        if columns.label is None:
            raise UnreadableFile(f"{path} must have a column of labels ({', '.join(LABELS)}), got none")
        same = set(own.keys if own else ()) == set(stored.keys if stored else ())
        if not same and (classes is None or own is None or stored is None):
            raise UnreadableFile(f"{path} must name the classes that {first} names, got others or none")
        order = None if own is None else match_classes(own, classes or stored or own, str(path))
        for row, value in enumerate(open_parquet(path).read(columns=[columns.label]).column(0).to_pylist()):
            label = read_label(value, own or classes, f"{path} row {row}")
            label_at[f"{file}/{row:07d}"] = label if order is None else order[label]
    return [label_at[name] for name in ids], classes or stored


def open_parquet(path: Path) -> Any:
    """Open a parquet file, or refuse it with its path."""
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise UnreadableFile(f"{path} needs pyarrow: install pac-sets[parquet]") from None
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (OSError, ValueError) as error:
        raise UnreadableFile(f"{path} cannot be read as parquet: {first_line(error)}") from None


def _columns(path: Path) -> _Columns:
    opened = open_parquet(path)
    import pyarrow as pa

    schema, metadata = opened.schema_arrow, opened.metadata
    image, label = _one_of(IMAGES, schema.names, path), _one_of(LABELS, schema.names, path)
    if image is None:
        got = ", ".join(schema.names)
        raise UnreadableFile(f"{path} must have a column of images ({', '.join(IMAGES)}), got {got}")
    kind = stored = schema.field(image).type
    if pa.types.is_struct(stored) and stored.get_field_index("bytes") >= 0:
        kind = stored.field("bytes").type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        rule = "must hold the bytes of image files, or a struct with a field bytes"
        raise UnreadableFile(f"{path} column {image!r} {rule}, got {stored}")
    for group in range(metadata.num_row_groups):
        parts = (metadata.row_group(group).column(i) for i in range(metadata.num_columns))
        size = sum(p.total_uncompressed_size for p in parts if p.path_in_schema.split(".")[0] == image)
        if size > LARGEST_GROUP:
            rule = f"must have row groups of at most {LARGEST_GROUP >> 20:,} MB, which a worker keeps"
            raise UnreadableFile(f"{path} {rule}, got {size >> 20:,} MB")
    try:  # the names that Hugging Face's datasets write beside the columns
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        classes = ClassNames.of([str(name) for name in features[label]["names"]])
    except (KeyError, TypeError, ValueError):  # other writers, other features
        classes = None
    return _Columns(metadata.num_rows, image, label, classes)


def _one_of(wanted: tuple[str, ...], names: list[str], path: Path) -> str | None:
    """The column that has the first of these names, or the only one that has any of them."""
    there = [name for name in wanted if name in names]
    if len(there) > 1 and there[0] != wanted[0]:
        raise UnreadableFile(f"{path} must have one of the columns {', '.join(there)}, got {len(there)}")
    return there[0] if there else None
