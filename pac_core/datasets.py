"""Files of arrays and tables, with the classes of a model: npz, npy, csv and parquet, never unpickled."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import zipfile
from collections import Counter, UserDict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Array, check_labels, check_numbers
from pac_core.errors import InvalidInput, UnreadableFile
from pac_core.files import whole_file
from pac_core.forecasts import GaussianForecast, LogitForecast, Trajectories, count_units, with_lengths
from pac_core.splits import unique_names

_WNID = re.compile(r"(n\d{8})\s+(\S.*)")


@dataclass(frozen=True)
class ClassNames:
    """The K classes of a model, in the order of its outputs: keys that folders and labels may use, such as
    ``n01440764``, and names to show, such as ``tench``; each K different texts."""

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
        often, pairs = Counter(shown), zip(keys, shown, strict=True)
        return cls(keys, tuple(f"{name} ({key})" if often[name] > 1 else name for key, name in pairs))

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


_PLURAL = {name: f"{name}s" for name in ("score", "label", "id", "logit")} | {"probability": "probabilities"}
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
                member = archive.zip.getinfo(name if name in archive.zip.namelist() else f"{name}.npy")
                if member.file_size > max(LARGEST, 100 * member.compress_size):  # it would fill the memory
                    raise UnreadableFile(
                        f"{self.file} must not expand to more than 100 times its size: {member.filename} "
                        f"would take {member.file_size:,} bytes from {member.compress_size:,}; if that is "
                        "intended, store it uncompressed"
                    )
                array = archive[name]
            if not isinstance(array, np.ndarray):  # numpy returns the bytes of any other member
                raise UnreadableFile(f"{self.file} cannot be read as npz: {name} is no array")
            self.data[name] = array
        return array

    def __or__(self, others: Any) -> _Members:  # type: ignore[override]
        return _Members(self.file, self.data | dict(others))


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
        for row in filter(None, rows):
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
    """Columns score, label, id and logit_0, logit_1, ... as the arrays they stand for."""
    arrays: dict[str, NDArray[Any]] = {}
    numbered: dict[str, dict[int, NDArray[Any]]] = {}
    for name, column in zip(header, columns, strict=True):
        match, plural = _NUMBERED.fullmatch(name), _PLURAL.get(name, name)
        parts = numbered.setdefault(match[1], {}) if match else {}
        if (int(match[2]) in parts) if match else (plural in arrays):
            raise UnreadableFile(f"{file} must name each column once, got {name!r} twice")
        if match:
            parts[int(match[2])] = _parse(file, name, column)
        elif plural == "failed":
            arrays[plural] = _marks(file, column)
        else:
            arrays[plural] = _parse(file, plural, column) if plural in ("scores", "labels") else column
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


KEYS = """\
A file holds named arrays:
  scores [N]                                  calibration scores, larger is worse; or
  logits or probabilities [N, K], labels [N]  a classifier's forecasts, the truth in 0..K-1; or
  mean, var, truth [N, D]                     a regressor's Gaussians (var may be [N, D, D]); or
  mean, var, truth [N, H, D]                  trajectories; var is the variance of each step alone,
                                              lengths [N] the number of steps if units end early;
  mean, var, truth [N, K, H, D]               the same of K candidates of each unit, with --any-of;
  ids [N]                                     names of the units, such as file names;
  failed [N]                                  units without a forecast (a broken image, a diverged
                                              model), whose logits are NaN: they count as errors.
If logits, labels or ids have other names, give --logits, --labels or --ids.
An npy file holds scores [N], or logits [N, K] with --labels labels.npy. In csv and parquet files the
columns are score, label, id, logit_0, logit_1, ... (or probability_, mean_, var_, truth_)."""


ROUNDED = "float16:"
"""Prefix of the digest of a model whose logits were rounded to float16."""
ROWS = "rows of the file"
"""The name of the ids of a file that has none."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Units `[N]` with either scores, or forecasts and (where known) truths.

    named: whether the file names its units; if not, they are rows of this very file
    model: name and digest of the model that made the forecasts, if the file states them
    """

    ids: NDArray[np.str_]
    named: bool
    scores: Any = None
    forecast: LogitForecast | GaussianForecast | None = None
    truth: Array = None
    model: tuple[str, str] | None = None

    def take(self, rows: Any) -> Dataset:
        """The units of these rows."""
        scores, truth = (None if part is None else part[rows] for part in (self.scores, self.truth))
        forecast = None if self.forecast is None else self.forecast.take(rows)
        return replace(self, ids=self.ids[rows], scores=scores, forecast=forecast, truth=truth)


def read_dataset(
    path: str | os.PathLike[str],
    *,
    ids: str | None = None,
    labels: str | os.PathLike[str] | None = None,
    logits: str | None = None,
) -> Dataset:
    """The units in a file, whose forecasts are checked, so that a bad row is named by its row in the file.

    ids, logits: the arrays that hold them, by default "ids" (if there is one) and "logits"
    labels: likewise; or a file of them, ``labels.npy``, or ``labels.npz:y`` if it holds several arrays
    """
    arrays = read_arrays(path)
    if labels is not None:
        arrays["labels"] = _labels(path, arrays, labels)
    if logits is not None:
        chosen = named_array(path, arrays, "--logits", logits)
        for key in {"scores", "probabilities"} & set(arrays):
            del arrays[key]
        arrays["logits"] = chosen
    if ids is not None and ids not in arrays:
        raise UnreadableFile(f"{path} has no array {ids!r}, but {', '.join(sorted(arrays))}")
    scores, forecast, truth = parse_arrays(path, arrays)
    n = len(scores) if forecast is None else count_units(forecast)
    named, key = ids is not None or "ids" in arrays, ids or "ids"
    if named:
        names = unique_names(key, arrays[key])
    else:  # the same row of another file is another unit
        digest = file_digest(path)[:16]
        names = np.array([f"{digest}:{row}" for row in range(n)])
    if len(names) != n:
        raise InvalidInput(f"{key} must have one entry per unit, got {len(names)} for {n}")
    about = [str(arrays[key]) for key in ABOUT if key in arrays and not arrays[key].ndim]
    model = (about[0], about[1]) if len(about) == len(ABOUT) else None
    return Dataset(names, named, scores, forecast, truth, model)


def parse_arrays(path: Any, arrays: Mapping[str, NDArray[Any]], *, own: bool = False) -> tuple[Any, Any, Any]:
    """Scores, forecast and truth, whichever the file has; in our `own` a diverged unit becomes failed."""
    if "scores" in arrays:
        return check_numbers("scores", arrays["scores"], "[N]"), None, None
    if "logits" in arrays or "probabilities" in arrays:
        if "logits" in arrays:
            logits = LogitForecast(arrays["logits"], failed=arrays.get("failed"))
        else:
            logits = LogitForecast.from_probabilities(arrays["probabilities"])
        logits.check()
        labels = arrays.get("labels")
        return None, logits, None if labels is None else check_labels("labels", labels, *logits.logits.shape)
    if {"mean", "var"} <= set(arrays):
        # A list of numbers is a regressor of one dimension.
        parts = {name: arrays[name] for name in ("mean", "var", "truth") if name in arrays}
        parts = {name: part[:, None] if part.ndim == 1 else part for name, part in parts.items()}
        gaussian = GaussianForecast(parts["mean"], parts["var"], failed=arrays.get("failed"))
        gaussian = gaussian.mark_failures() if own else gaussian
        truth: Any = parts.get("truth")
        if truth is not None and "lengths" in arrays:
            truth = Trajectories(truth, arrays["lengths"])
        if truth is None:
            return None, gaussian, gaussian.check(failures=True)
        return None, gaussian, with_lengths(truth, gaussian.check(truth, failures=True))
    raise UnreadableFile(f"{path} has the arrays {', '.join(sorted(arrays))}. {KEYS}")


def named_array(path: Any, arrays: Mapping[str, NDArray[Any]], option: str, name: str) -> NDArray[Any]:
    """The array of this name, or the columns name_0, name_1, ... of a csv or parquet file, as numbers."""
    columns = [f"{name}_{i}" for i in range(len(arrays)) if f"{name}_{i}" in arrays]
    if name in arrays:
        array = arrays[name]
    elif columns and columns[-1] == f"{name}_{len(columns) - 1}":
        array = np.stack([arrays[column] for column in columns], axis=1)
    else:
        known, file = ", ".join(sorted(arrays)), " (nor is there such a file)" if option == "--labels" else ""
        raise UnreadableFile(f"{option} must name an array of {path}, which has {known}, got {name!r}{file}")
    if array.dtype.kind != "U":
        return array
    try:
        values = array.astype(np.float64)
    except ValueError:
        raise UnreadableFile(f"{option} must name an array of numbers, got {name!r} of {path}") from None
    return values.astype(np.int64) if option == "--labels" and (values == np.floor(values)).all() else values


def label_files(labels: str | os.PathLike[str]) -> list[Path]:
    """The files that `labels` of `read_dataset` may mean: FILE, and FILE of FILE:ARRAY."""
    text = os.fspath(labels)
    return [Path(text), *([Path(text.rpartition(":")[0])] if ":" in text else [])]


def _labels(path: Any, arrays: Mapping[str, NDArray[Any]], labels: str | os.PathLike[str]) -> NDArray[Any]:
    """Labels from an array of the data, or from a file of their own."""
    text, files = os.fspath(labels), [file for file in label_files(labels) if file.is_file()]
    inside = isinstance(labels, str) and text in arrays
    if inside and files:
        raise InvalidInput(f"--labels {text!r} is an array of {path} and a file: write ./{text} for the file")
    if inside or not files:
        return named_array(path, arrays, "--labels", text)
    stored = read_arrays(files[0])
    if files[0] != Path(text):
        return named_array(files[0], stored, "--labels", text.rpartition(":")[2])
    if len(stored) > 1 and "labels" not in stored:
        raise InvalidInput(f"--labels must say which array of {text} holds them, as in {text}:{min(stored)}")
    return stored["labels"] if "labels" in stored else next(iter(stored.values()))
