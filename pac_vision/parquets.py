"""Images in parquet files, as Hugging Face stores ImageNet: read a row group at a time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pac_core import UnreadableFile
from pac_core.class_names import ClassNames
from pac_vision.decoding import BrokenImage
from pac_vision.labels import classes_of, label_of, read_labels
from pac_vision.sources import Source

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
        self._open: tuple[str, Any, Any] | None = None
        self._group: tuple[str, int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "columns": self.columns, "_open": None, "_group": None}

    def __call__(self, name: str) -> bytes:
        file, _, row = name.rpartition("/")
        path = Path(self.folder) / file
        if file not in self.columns or not row.isdecimal():
            raise UnreadableFile(f"{self.folder} holds no image {name}")
        try:
            value = self._cell(path, file, int(row))
        except (OSError, ValueError, IndexError) as error:  # what pyarrow raises for a damaged file
            raise UnreadableFile(f"{path} row {row} cannot be read: {error}") from None
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None:
            raise BrokenImage(f"{Path(self.folder) / name} cannot be read as an image: it has no bytes")
        return bytes(content)

    def _cell(self, path: Path, file: str, row: int) -> Any:
        if self._open is None or self._open[0] != file:
            opened = parquet_file(path)
            sizes = [opened.metadata.row_group(g).num_rows for g in range(opened.num_row_groups)]
            self._open, self._group = (file, opened, np.cumsum([0, *sizes])), None
        _, opened, firsts = self._open
        group = int(np.searchsorted(firsts, row, side="right")) - 1
        if self._group is None or self._group[1] != group:
            self._group = None  # before the next is read, so that there is never more than one
            column = opened.read_row_group(group, columns=[self.columns[file]], use_threads=False).column(0)
            self._group = (file, group, column)
        return self._group[2][row - int(firsts[group])].as_py()


@dataclass(frozen=True)
class _Columns:
    """What a parquet file holds: rows, the columns of images and of labels, and the classes it names."""

    rows: int
    image: str
    label: str | None
    classes: ClassNames | None


def parquet_images(root: Path, files: list[str]) -> tuple[Source, dict[str, _Columns]]:
    """The images of parquet files, by the ids ``file.parquet/0000012``, and the columns of each file."""
    found = {file: _columns(root / file) for file in files}
    ids = [f"{file}/{row:07d}" for file in files for row in range(found[file].rows)]
    if not ids:
        raise UnreadableFile(f"{root} holds no images: {', '.join(files)} have no rows")
    reader = ParquetReader(str(root), {file: columns.image for file, columns in found.items()})
    return Source(str(root), np.array(sorted(ids)), reader), found


def parquet_labels(
    source: Source, found: dict[str, _Columns], labels: Path | None, classes: ClassNames | None
) -> tuple[list[int], ClassNames | None]:
    """The label of each id, from the column of labels or from a label file, and the classes."""
    if labels is not None:
        return read_labels(labels, source.ids.tolist(), classes), classes
    first, stored = next(iter(found.items()))
    label_at: dict[str, int] = {}
    for file, columns in found.items():
        path = Path(source.folder) / file
        if columns.label is None:
            raise UnreadableFile(f"{path} must have a column of labels ({', '.join(LABELS)}), got none")
        if _names(columns) != _names(stored) and (
            classes is None or None in (columns.classes, stored.classes)
        ):
            raise UnreadableFile(f"{path} must name the classes that {first} names, got others or none")
        own, order = columns.classes or classes, None
        if columns.classes is not None:
            target = classes or stored.classes or columns.classes
            order = classes_of(columns.classes, target, str(path))
        for row, value in enumerate(parquet_file(path).read(columns=[columns.label]).column(0).to_pylist()):
            label = label_of(value, own, f"{path} row {row}")
            label_at[f"{file}/{row:07d}"] = label if order is None else order[label]
    return [label_at[name] for name in source.ids.tolist()], classes or stored.classes


def _names(columns: _Columns) -> set[str]:
    return set(columns.classes.keys if columns.classes else ())


def parquet_file(path: Path) -> Any:
    """A parquet file, opened."""
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise UnreadableFile(f"{path} needs pyarrow: install pac-sets[parquet]") from None
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), "")
        raise UnreadableFile(f"{path} cannot be read as parquet: {reason}") from None


def _columns(path: Path) -> _Columns:
    import pyarrow as pa

    opened = parquet_file(path)
    schema, metadata = opened.schema_arrow, opened.metadata
    image, label = _one(path, IMAGES, schema.names), _one(path, LABELS, schema.names)
    if image is None:
        raise UnreadableFile(
            f"{path} must have a column of images ({', '.join(IMAGES)}), got {', '.join(schema.names)}"
        )
    kind = schema.field(image).type
    if pa.types.is_struct(kind) and "bytes" in [kind.field(i).name for i in range(kind.num_fields)]:
        kind = kind.field("bytes").type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise UnreadableFile(
            f"{path} column {image!r} must hold the bytes of image files, or a struct with a field bytes, "
            f"got {schema.field(image).type}"
        )
    for group in range(metadata.num_row_groups):
        parts = (metadata.row_group(group).column(i) for i in range(metadata.num_columns))
        size = sum(p.total_uncompressed_size for p in parts if p.path_in_schema.split(".")[0] == image)
        if size > LARGEST_GROUP:
            raise UnreadableFile(
                f"{path} must have row groups of at most {LARGEST_GROUP >> 20:,} MB, which a worker keeps, "
                f"got {size >> 20:,} MB: write it again with fewer rows in a group"
            )
    return _Columns(metadata.num_rows, image, label, _stored_classes(schema.metadata, label))


def _stored_classes(metadata: Any, label: str | None) -> ClassNames | None:
    """The names of the classes that Hugging Face's datasets write beside the columns; None without them."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return ClassNames.of([str(name) for name in features[label]["names"]])
    except (KeyError, TypeError, ValueError):  # other writers, other features
        return None


def _one(path: Path, wanted: tuple[str, ...], names: list[str]) -> str | None:
    """The column that has the first of these names, or the only one that has any of them."""
    there = [name for name in wanted if name in names]
    if len(there) > 1 and there[0] != wanted[0]:
        raise UnreadableFile(f"{path} must have one of the columns {', '.join(there)}, got {len(there)}")
    return there[0] if there else None
