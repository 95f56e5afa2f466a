"""Tables that a user has, arff or csv: columns of numbers and of categories, with cells missing."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, UnreadableFile
from pac_core.tables import file_digest

MISSING = frozenset({"", "?", "NA", "N/A", "NaN", "nan", "null"})
"""How a missing cell is written."""

SEPARATORS = (",", ";", "\t", "|")
MOST_CATEGORIES = 50  # of a column that goes into a model; more are names, not categories


@dataclass(frozen=True, eq=False)
class Table:
    """A table whose rows are independent units.

    name: of the file, without its ending
    ids: `[N]` a name for each row
    columns: by name, `[N]` float64 with NaN where missing, or text with "" where missing
    declared: the values that a column of text may take, where the file says so (arff)
    digest: of the file
    """

    name: str
    ids: NDArray[np.str_]
    columns: Mapping[str, NDArray[Any]]
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    digest: str | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, name: str) -> NDArray[Any]:
        """A column by its name."""
        if name not in self.columns:
            raise InvalidInput(f"column must be one of {', '.join(self.columns)}, got {name!r}")
        return self.columns[name]

    def is_numeric(self, name: str) -> bool:
        return self.column(name).dtype.kind == "f"

    def values(self, target: str) -> NDArray[np.float64]:
        """`[N]` the column as numbers, refused if it holds text or a cell is missing."""
        if not self.is_numeric(target):
            text = str(self.column(target)[0])
            raise InvalidInput(f"target {target!r} must hold numbers to be regressed on, got {text!r}")
        self._refuse_missing(target)
        return self.column(target)

    def labels(self, target: str) -> NDArray[np.str_]:
        """`[N]` the column as text, refused if a cell is missing; 1.0 becomes "1"."""
        self._refuse_missing(target)
        return self.text(target)

    def text(self, name: str) -> NDArray[np.str_]:
        """`[N]` the column as text, "" where missing; 1.0 becomes "1"."""
        column = self.column(name)
        return np.array([_written(cell) for cell in column]) if self.is_numeric(name) else column

    def inputs(self, target: str, *, leave_out: Iterable[str] = ()) -> tuple[str, ...]:
        """The columns a model may read: all but the target and those left out.

        A column of more than 50 different texts is refused: those are names of rows, or numbers written
        in a way this does not read.
        """
        dropped = set(leave_out)
        for name in (target, *dropped):
            self.column(name)
        kept = tuple(name for name in self.columns if name not in dropped | {target})
        if not kept:
            raise InvalidInput(f"the table must have a column beside the target {target!r}, got none")
        for name in kept:
            kinds = 0 if self.is_numeric(name) else len(np.unique(self.columns[name]))
            if kinds > MOST_CATEGORIES:
                raise InvalidInput(
                    f"column {name!r} must hold numbers or at most {MOST_CATEGORIES} categories, got "
                    f"{kinds:,} different texts such as {str(self.columns[name][0])!r}: leave it out, or "
                    "name it as the id"
                )
        return kept

    def _refuse_missing(self, target: str) -> None:
        column = self.column(target)
        gone = np.isnan(column) if column.dtype.kind == "f" else column == ""
        if gone.any():
            raise InvalidInput(
                f"target {target!r} must be known in every row, got {int(gone.sum()):,} missing, the first "
                f"in row {int(gone.argmax()) + 1}: a unit without a truth cannot be scored, and is never "
                "left out in silence"
            )


def read_table(
    path: str | os.PathLike[str],
    *,
    separator: str | None = None,
    names: Sequence[str] | None = None,
    id_column: str | None = None,
) -> Table:
    """The table in an arff or text file; nothing is unpickled or executed.

    separator: of a text file; by default the one of comma, semicolon, tab and bar that makes most of the
        first line, else blanks
    names: of the columns, where the first line of a text file does not hold them
    id_column: names the rows; without one, a row is known as that row of this very file

    A column of a text file is numeric if every cell that is not missing is a number. Missing cells are empty,
    "?", "NA", "N/A", "NaN" or "null".
    """
    file = Path(path)
    if not file.is_file():
        raise UnreadableFile(f"{file} does not exist or is not a file")
    if file.suffix.lower() == ".arff":
        if separator is not None or names is not None:
            raise InvalidInput(
                f"separator and names are for text files, but {file} is arff and says both itself"
            )
        columns, declared = _read_arff(file)
    else:
        try:
            columns, declared = _read_text(file, separator, names), {}
        except csv.Error as error:  # a cell beyond the limit of the reader, most often
            raise UnreadableFile(
                f"{file} cannot be cut into cells: {error}; is a quote left open in the file?"
            ) from None
    n = len(next(iter(columns.values())))
    digest = file_digest(file)
    ids = np.array([f"{digest[:16]}:{row}" for row in range(1, n + 1)])
    if id_column is not None:
        ids = _ids(file, columns, id_column)
        columns = {name: column for name, column in columns.items() if name != id_column}
    return Table(file.stem, ids, columns, declared, digest)


def _ids(file: Path, columns: Mapping[str, NDArray[Any]], name: str) -> NDArray[np.str_]:
    if name not in columns:
        raise InvalidInput(f"id column must be one of {', '.join(columns)}, got {name!r}")
    ids = np.array([_written(cell) for cell in columns[name].tolist()])
    repeats = len(ids) - len(np.unique(ids))
    if repeats or (ids == "").any():
        what = f"{repeats:,} repeats" if repeats else "a missing one"
        raise InvalidInput(
            f"id column {name!r} of {file} must name each row once, got {what}: rows of one patient or one "
            "device depend on each other, so keep one row of each, drawn without looking at it"
        )
    return ids


def _read_arff(file: Path) -> tuple[dict[str, NDArray[Any]], dict[str, tuple[str, ...]]]:
    from scipy.io import arff  # text only; it evaluates nothing

    try:
        data, meta = arff.loadarff(str(file))
        kinds = {name: meta[name] for name in meta.names()}
    except Exception as error:  # the reader raises a dozen kinds for a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableFile(f"{file} cannot be read as arff: {reason}") from None
    if not len(data):
        raise UnreadableFile(f"{file} holds no rows")
    columns, declared = {}, {}
    for name, (kind, values) in kinds.items():
        if kind == "numeric":
            columns[name] = _finite(file, name, data[name].astype(np.float64))
        elif kind == "nominal":
            text = np.char.decode(data[name], "utf-8")
            columns[name] = np.where(np.isin(text, list(MISSING)), "", text)
            declared[name] = tuple(str(value) for value in values or ())
        else:
            raise UnreadableFile(f"{file} column {name!r} must be numeric or nominal, got {kind}")
    return columns, declared


def _read_text(file: Path, separator: str | None, names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{file} cannot be read as text: {error}") from None
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise UnreadableFile(f"{file} holds no rows")
    separator = separator or _separator(lines[0])
    if len(separator) != 1:
        raise InvalidInput(f"separator must be one character, got {separator!r}")
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=separator == " ")
    header = [name.strip() for name in (names or next(rows))]
    if names is None and any(_number(name) is not None for name in header):
        raise UnreadableFile(
            f"{file} must name its columns in the first line, got {lines[0][:60]!r}; or give names"
        )
    if len(set(header)) != len(header) or "" in header:
        raise UnreadableFile(f"{file} must give each column a name of its own, got {', '.join(header)[:200]}")
    body = []
    for count, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row]
        if separator == " " and len(cells) == len(header) + 1 and not cells[-1]:
            cells.pop()  # a blank at the end of the line
        if len(cells) != len(header):
            raise UnreadableFile(f"{file} row {count} must have {len(header)} cells, got {len(cells)}")
        body.append(["" if cell in MISSING else cell for cell in cells])
    if not body:
        raise UnreadableFile(f"{file} holds no rows")
    return {
        name: _column(file, name, cells) for name, cells in zip(header, zip(*body, strict=True), strict=True)
    }


def _separator(line: str) -> str:
    """The character that cuts the line into most cells; blanks only where no other does."""
    counts = {mark: len(next(csv.reader([line], delimiter=mark))) for mark in SEPARATORS}
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] > 1 else " "


def _column(file: Path, name: str, cells: Sequence[str]) -> NDArray[Any]:
    numbers = [math.nan if cell == "" else _number(cell) for cell in cells]
    if any(number is None for number in numbers):
        return np.array(cells)
    return _finite(file, name, np.array(numbers, dtype=np.float64))


def _finite(file: Path, name: str, column: NDArray[np.float64]) -> NDArray[np.float64]:
    if np.isinf(column).any():
        raise UnreadableFile(f"{file} column {name!r} must hold finite numbers, got an infinite one")
    return column


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _written(cell: Any) -> str:
    """A cell as text; a whole number without its point."""
    if isinstance(cell, float | np.floating):
        if math.isnan(cell):
            return ""
        return str(int(cell)) if float(cell).is_integer() else repr(float(cell))
    return str(cell)
