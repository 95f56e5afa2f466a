"""Images in parquet files, as Hugging Face stores ImageNet: read a row group at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pac_core import UnreadableFile
from pac_core.class_names import ClassNames
from pac_vision.decoding import BrokenImage, first_line
from pac_vision.labels import Label, Labelled, classes_of, label_of, read_labels
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
        order = None if own is None else classes_of(own, classes or stored or own, str(path))
        for row, value in enumerate(open_parquet(path).read(columns=[columns.label]).column(0).to_pylist()):
            label = label_of(value, own or classes, f"{path} row {row}")
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
        raise UnreadableFile(
            f"{path} must have a column of images ({', '.join(IMAGES)}), got {', '.join(schema.names)}"
        )
    kind = stored = schema.field(image).type
    if pa.types.is_struct(stored) and stored.get_field_index("bytes") >= 0:
        kind = stored.field("bytes").type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise UnreadableFile(
            f"{path} column {image!r} must hold the bytes of image files, or a struct with a field bytes, "
            f"got {stored}"
        )
    for group in range(metadata.num_row_groups):
        parts = (metadata.row_group(group).column(i) for i in range(metadata.num_columns))
        size = sum(p.total_uncompressed_size for p in parts if p.path_in_schema.split(".")[0] == image)
        if size > LARGEST_GROUP:
            raise UnreadableFile(
                f"{path} must have row groups of at most {LARGEST_GROUP >> 20:,} MB, which a worker keeps, "
                f"got {size >> 20:,} MB: write it again with fewer rows in a group"
            )
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
