"""Scores or forecasts from a file: npz, npy, csv or parquet, never unpickled."""

from __future__ import annotations

import csv
import hashlib
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Array, labels_for, numbers, plain
from pac_core.errors import InvalidInput, UnreadableFile
from pac_core.forecasts import GaussianForecast, LogitForecast

KEYS = """\
A file holds arrays by name:
  scores [N]                                  calibration scores, larger is worse; or
  logits or probabilities [N, K], labels [N]  a classifier's forecasts and the truth; or
  mean, var, truth [N, D] or [N, H, D]        Gaussian forecasts and the truth;
  ids [N]                                     the units (default: the rows of this file).
npz and npy as numpy writes them (one array in an npy: scores); in csv and parquet the columns
are score, label, id, logit_0, logit_1, ... (or probability_, mean_, var_, truth_)."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Units with either scores, or forecasts and (where known) truths.

    ids: `[N]` strings
    scores: `[N]` or None
    forecast, truth: or None
    """

    ids: NDArray[np.str_]
    scores: Any = None
    forecast: LogitForecast | GaussianForecast | None = None
    truth: Array = None

    def take(self, rows: Any) -> Dataset:
        """Some of the units."""
        return Dataset(
            self.ids[rows],
            None if self.scores is None else self.scores[rows],
            None if self.forecast is None else self.forecast.take(rows),
            None if self.truth is None else self.truth[rows],
        )


def read_dataset(path: str | os.PathLike[str], *, ids: str = "ids") -> Dataset:
    """The units in a file; `ids` names the array that holds their ids."""
    arrays = read_arrays(path)
    n = len(next(iter(arrays.values()))) if next(iter(arrays.values())).ndim else 0
    if ids in arrays:
        names = plain(ids, arrays[ids], "[N]").astype(str)
    elif ids == "ids":
        names = _row_ids(path, n)
    else:
        raise UnreadableFile(f"{path} has no array {ids!r}, but {', '.join(sorted(arrays))}")
    data = _dataset(path, arrays, names)
    for name, part in (("scores", data.scores), ("truth", data.truth)):
        if part is not None and len(part) != len(names):
            raise InvalidInput(
                f"{name} and {ids} must have the same length, got {len(part)} and {len(names)}"
            )
    return data


def _row_ids(path: str | os.PathLike[str], n: int) -> NDArray[np.str_]:
    """Rows of this very file: without ids, the same row of another file is another unit."""
    digest = file_digest(path)[:16]
    return np.array([f"{digest}:{row}" for row in range(n)])


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UnreadableFile(f"{path} cannot be read: {error.strerror}") from None


def read_arrays(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """The named arrays of a file; the ending of its name says its kind."""
    file = Path(path)
    readers = {".npz": _read_npz, ".npy": _read_npy, ".csv": _read_csv, ".parquet": _read_parquet}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise UnreadableFile(f"{file} must end in {', '.join(readers)}")
    if not file.is_file():
        raise UnreadableFile(f"{file} does not exist or is not a file")
    try:
        arrays = reader(file)
    except UnreadableFile:
        raise
    except Exception as error:  # the readers raise a dozen kinds for a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "allow_pickle" in reason or "pickle" in reason:
            reason = "it holds Python objects, which are never unpickled"
        raise UnreadableFile(f"{file} cannot be read as {file.suffix[1:]}: {reason}") from None
    if not arrays:
        raise UnreadableFile(f"{file} holds no arrays")
    return arrays


def _dataset(path: Any, arrays: dict[str, NDArray[Any]], names: NDArray[np.str_]) -> Dataset:
    if "scores" in arrays:
        return Dataset(names, scores=numbers("scores", arrays["scores"], "[N]"))
    forecast: LogitForecast | GaussianForecast
    if "logits" in arrays or "probabilities" in arrays:
        if "logits" in arrays:
            forecast = LogitForecast(arrays["logits"])
        else:
            forecast = LogitForecast.from_probabilities(arrays["probabilities"])
        n, classes = forecast.logits.shape
        truth = None if "labels" not in arrays else labels_for("labels", arrays["labels"], n, classes)
    elif {"mean", "var"} <= set(arrays):
        forecast = GaussianForecast(arrays["mean"], arrays["var"])
        n = len(forecast.mean)
        truth = forecast.check(arrays.get("truth"))
    else:
        raise UnreadableFile(f"{path} has the arrays {', '.join(sorted(arrays))}; {KEYS}")
    if n != len(names):
        raise InvalidInput(f"forecasts and ids must have the same length, got {n} and {len(names)}")
    return Dataset(names, forecast=forecast, truth=truth)


def _read_npz(file: Path) -> dict[str, NDArray[Any]]:
    if not zipfile.is_zipfile(file):
        raise UnreadableFile(f"{file} is not an npz file, or is cut off")
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _read_npy(file: Path) -> dict[str, NDArray[Any]]:
    return {"scores": np.load(file, allow_pickle=False)}


def _read_csv(file: Path) -> dict[str, NDArray[Any]]:
    with file.open(newline="", encoding="utf-8") as lines:
        rows = csv.reader(lines)
        header = [name.strip() for name in next(rows, [])]
        body = []
        for row in rows:
            if len(row) != len(header):
                raise UnreadableFile(
                    f"{file} line {rows.line_num} must have {len(header)} fields, got {len(row)}"
                )
            body.append(row)
    if not body:
        raise UnreadableFile(f"{file} holds no rows")
    columns = {name: np.array(column) for name, column in zip(header, zip(*body, strict=True), strict=True)}
    return _gather(
        {name: column if name == "id" else _parse(file, name, column) for name, column in columns.items()}
    )


def _parse(file: Path, name: str, column: NDArray[np.str_]) -> NDArray[Any]:
    kind = np.int64 if name == "label" else np.float64
    try:
        return column.astype(kind)
    except ValueError as error:
        raise UnreadableFile(f"{file} column {name!r} must hold numbers: {error}") from None


def _read_parquet(file: Path) -> dict[str, NDArray[Any]]:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise UnreadableFile(f"{file} needs pyarrow: install pac-sets[parquet]") from None
    table = pq.read_table(file)
    columns: dict[str, NDArray[Any]] = {}
    for name in table.column_names:
        column = table.column(name)
        values = (
            column.to_pylist() if column.type.num_fields or "list" in str(column.type) else column.to_numpy()
        )
        columns[name] = np.asarray(values).astype(str) if name in ("id", "ids") else np.asarray(values)
    return _gather(columns)


def _gather(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Columns score, label, id and name_0, name_1, ... as the arrays they stand for."""
    plural = {
        "score": "scores",
        "label": "labels",
        "id": "ids",
        "logit": "logits",
        "probability": "probabilities",
    }
    arrays: dict[str, NDArray[Any]] = {}
    numbered: dict[str, dict[int, NDArray[Any]]] = {}
    for name, column in columns.items():
        match = re.fullmatch(r"(\w+?)_(\d+)", name)
        if match:
            numbered.setdefault(match[1], {})[int(match[2])] = column
        else:
            arrays[plural.get(name, name)] = column
    for name, parts in numbered.items():
        if sorted(parts) != list(range(len(parts))):
            raise InvalidInput(f"columns {name}_0, {name}_1, ... must have no gaps, got {sorted(parts)}")
        arrays[plural.get(name, name)] = np.stack([parts[i] for i in range(len(parts))], axis=1)
    return arrays
