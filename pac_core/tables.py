"""Named arrays from a file: npz, npy, csv or parquet; nothing is ever unpickled."""

from __future__ import annotations

import csv
import hashlib
import os
import re
import zipfile
from collections import UserDict
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.errors import UnreadableFile
from pac_core.files import whole_file

_PLURAL = {
    "score": "scores",
    "label": "labels",
    "id": "ids",
    "logit": "logits",
    "probability": "probabilities",
}
ABOUT = ("model", "model_digest")
"""Strings about the whole file: arrays without axes in npz, metadata in parquet."""
LARGEST = 1 << 28
"""Bytes to which any member of a zip may expand, however small it is in the file."""
_NUMBERED = re.compile(r"(logit|probability|mean|var|truth)_(\d+)")


def read_arrays(path: str | os.PathLike[str]) -> MutableMapping[str, NDArray[Any]]:
    """The named arrays of a file, whose suffix says its kind.

    The arrays of an npz are read on first access, so that unused ones take no memory.
    """
    file = Path(path)
    readers = {".npz": _read_npz, ".npy": _read_npy, ".csv": _read_csv, ".parquet": _read_parquet}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise UnreadableFile(f"{file} must end in {', '.join(readers)}")
    if not file.is_file():
        raise UnreadableFile(f"{file} does not exist or is not a file")
    with _reading(file):
        arrays = reader(file)
    if not arrays:
        raise UnreadableFile(f"{file} holds no arrays")
    return arrays


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn whatever goes wrong with a file into one sentence."""
    try:
        yield
    except UnreadableFile:
        raise
    except Exception as error:  # a damaged file raises a dozen kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "pickle" in reason:
            reason = "it holds Python objects, which are never unpickled"
        raise UnreadableFile(f"{file} cannot be read as {file.suffix[1:]}: {reason}") from None


class _Members(UserDict[str, Any]):
    """The arrays of an npz by name, each read on first access."""

    def __init__(self, file: Path, arrays: dict[str, Any]) -> None:
        super().__init__()
        self.file, self.data = file, arrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        array: NDArray[Any] | None = self.data[name]
        if array is None:
            with _reading(self.file), np.load(self.file, allow_pickle=False) as archive:
                member = name if name in archive.zip.namelist() else f"{name}.npy"
                _refuse_bomb(self.file, archive.zip.getinfo(member))
                array = archive[name]
            if not isinstance(array, np.ndarray):  # numpy returns the bytes of any other member
                raise UnreadableFile(f"{self.file} cannot be read as npz: {name} is no array")
            self.data[name] = array
        return array

    def __or__(self, others: Any) -> _Members:  # type: ignore[override]
        return _Members(self.file, self.data | dict(others))


def _refuse_bomb(file: Path, member: zipfile.ZipInfo) -> None:
    """Refuse a small member that would expand to fill the memory."""
    if member.file_size > max(LARGEST, 100 * member.compress_size):
        raise UnreadableFile(
            f"{file} must not expand to more than 100 times its size: {member.filename} would take "
            f"{member.file_size:,} bytes from {member.compress_size:,}; if that is intended, store it "
            "uncompressed"
        )


def write_arrays(path: Path, **arrays: Any) -> None:
    """Write an npz file, whole or not at all."""
    with whole_file(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UnreadableFile(f"{path} cannot be read: {error.strerror}") from None


def _read_npz(file: Path) -> MutableMapping[str, NDArray[Any]]:
    if not zipfile.is_zipfile(file):
        raise UnreadableFile(f"{file} is not an npz file, or is cut off")
    with np.load(file, allow_pickle=False) as archive:
        return _Members(file, dict.fromkeys(archive.files))


def _read_npy(file: Path) -> MutableMapping[str, NDArray[Any]]:
    array = np.load(file, allow_pickle=False)
    return {"logits" if array.ndim == 2 else "scores": array}


def _read_csv(file: Path) -> MutableMapping[str, NDArray[Any]]:
    with file.open(newline="", encoding="utf-8-sig") as lines:
        rows = csv.reader(lines)
        header = [name.strip() for name in next(rows, [])]
        if len(header) == 1 and re.search(r"[;\t|]", header[0]):
            raise UnreadableFile(f"{file} must have its columns separated by commas, got {header[0]!r}")
        body = []
        for row in rows:
            if not row:
                continue
            if len(row) != (n := len(header)):
                raise UnreadableFile(f"{file} line {rows.line_num} must have {n} fields, got {len(row)}")
            body.append([cell.strip() for cell in row])
    if not body:
        raise UnreadableFile(f"{file} holds no rows")
    return _gather(file, header, [np.array(column) for column in zip(*body, strict=True)])


def _read_parquet(file: Path) -> MutableMapping[str, NDArray[Any]]:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise UnreadableFile(f"{file} needs pyarrow: install pac-sets[parquet]") from None
    table = pq.read_table(file)
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            raise UnreadableFile(f"{file} column {name!r} must have no empty cells, got {column.null_count}")
        values = _rows_of(file, name, column) if column.type.num_fields else np.asarray(column.to_numpy())
        columns.append(values.astype(str) if values.dtype == object else values)
    arrays = _gather(file, table.column_names, columns)
    metadata = table.schema.metadata or {}
    kept = {key: np.array(metadata[key.encode()].decode()) for key in ABOUT if key.encode() in metadata}
    return kept | arrays


def _rows_of(file: Path, name: str, column: Any) -> NDArray[Any]:
    """`[N, K]` a column of lists of K numbers, in their own precision."""
    import pyarrow.compute as pc

    lists = column.combine_chunks()
    numbers = lists.flatten() if hasattr(lists.type, "value_type") else lists
    if numbers is lists or numbers.type.num_fields or numbers.null_count:
        raise UnreadableFile(f"{file} column {name!r} must hold numbers or lists of them, got {column.type}")
    lengths = np.unique(pc.list_value_length(lists).to_numpy(zero_copy_only=False))
    if len(lengths) != 1:
        raise UnreadableFile(f"{file} column {name!r} must hold lists of one length, got {lengths.tolist()}")
    return np.asarray(numbers.to_numpy(zero_copy_only=False)).reshape(len(lists), -1)


def _gather(file: Path, header: list[str], columns: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Columns score, label, id and logit_0, logit_1, ... as the arrays they stand for.

    Other columns stay as they are; one of them may hold the ids.
    """
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise UnreadableFile(f"{file} must name each column once, got {twice!r} twice")
    arrays: dict[str, NDArray[Any]] = {}
    numbered: dict[str, dict[int, NDArray[Any]]] = {}
    for name, column in zip(header, columns, strict=True):
        if match := _NUMBERED.fullmatch(name):
            parts = numbered.setdefault(match[1], {})
            if int(match[2]) in parts:
                raise UnreadableFile(f"{file} must name each column once, got {name!r} twice")
            parts[int(match[2])] = _parse(file, name, column)
            continue
        name = _PLURAL.get(name, name)
        if name in arrays:
            raise UnreadableFile(f"{file} must name each column once, got {name!r} twice")
        if name == "failed":
            column = _marks(file, column)
        arrays[name] = _parse(file, name, column) if name in ("scores", "labels") else column
    for name, parts in numbered.items():
        if sorted(parts) != list(range(len(parts))):
            raise UnreadableFile(f"{file} columns {name}_0, ... must have no gaps, got {sorted(parts)}")
        arrays[_PLURAL.get(name, name)] = np.stack([parts[i] for i in range(len(parts))], axis=1)
    return arrays


def _parse(file: Path, name: str, column: NDArray[Any]) -> NDArray[Any]:
    """A column as numbers; labels as whole numbers, however they are written."""
    try:
        values = column.astype(np.float64) if column.dtype.kind == "U" else column
    except ValueError:
        row = next(i for i, text in enumerate(column) if not _is_number(text))
        raise UnreadableFile(
            f"{file} column {name!r} must hold numbers, got {str(column[row])!r} in data row {row + 1}"
        ) from None
    if name == "labels" and values.dtype.kind == "f":
        if not (values == np.floor(values)).all():
            raise UnreadableFile(f"{file} column 'label' must hold whole numbers, got others")
        values = values.astype(np.int64)
    return values


def _marks(file: Path, column: NDArray[Any]) -> NDArray[Any]:
    """A column of true and false, or 1 and 0, as booleans."""
    if column.dtype.kind != "U":
        return column
    words = np.char.lower(column)
    if not np.isin(words, ("true", "false", "1", "0")).all():
        raise UnreadableFile(f"{file} column 'failed' must hold true or false, or 1 or 0, got others")
    return np.isin(words, ("true", "1"))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
