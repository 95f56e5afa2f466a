"""Tables that a user has, arff or csv: columns of numbers and of categories, with cells missing."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, UnreadableFile
from pac_core.tables import file_digest
from pac_vision.tabular_files import Cells, arff_cells, number_in, text_cells

MOST_CATEGORIES = 50  # of a column that goes into a model; more are names, not categories


@dataclass(frozen=True, eq=False)
class Table:
    """A table whose rows are independent units.

    name: of the file, without its ending
    ids: `[N]` a name for each row
    columns: by name, `[N]` float64 with NaN where missing, or text with "" where missing
    declared: the values that a column of text may take, where the file says so (arff)
    digest: of the file
    written: by name, `[N]` the cells as the file writes them, "" where missing; none if made by hand
    """

    name: str
    ids: NDArray[np.str_]
    columns: Mapping[str, NDArray[Any]]
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    digest: str | None = None
    written: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)

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
        column = self.column(target)
        return np.array([_written(cell) for cell in column]) if self.is_numeric(target) else column

    def text(self, name: str) -> NDArray[np.str_]:
        """`[N]` the column as the file writes it, "" where missing: "01" stays "01".

        What a cell says must not depend on the other rows of its file, which decide whether a column is
        one of numbers. Refused for numbers that were never written.
        """
        column = self.column(name)
        if name not in self.written and self.is_numeric(name):
            raise InvalidInput(f"column {name!r} must hold text, as it did in training, got numbers")
        return self.written.get(name, column)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """`[N]` the column as numbers, NaN where missing, refused if it holds text."""
        found = self.column(name) if self.is_numeric(name) else _numbers(self.column(name))
        if found is None or np.isinf(found).any():
            raise InvalidInput(f"column {name!r} must hold numbers, as it did in training, got text")
        return found

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
    id_column: names the rows; without one, a row is known by its cells, and equal rows are counted

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
        cells = arff_cells(file)
    else:
        cells = text_cells(file, separator, names)
    ids = _names_by_cells(cells) if id_column is None else _ids(file, cells, id_column)
    text = {name: column for name, column in cells.text.items() if name != id_column}
    columns = {name: _column(file, cells, name) for name in text}
    return Table(file.stem, ids, columns, cells.declared, file_digest(file), text)


def _names_by_cells(cells: Cells) -> NDArray[np.str_]:
    """`[N]` a hash of each row, with a count for equal ones: a row keeps its name whatever the others are."""
    counts: Counter[str] = Counter()
    names = []
    for row in zip(*(column.tolist() for column in cells.text.values()), strict=True):
        name = hashlib.sha256(json.dumps(row).encode()).hexdigest()[:16]
        counts[name] += 1
        names.append(f"{name}:{counts[name]}")
    return np.array(names)


def _ids(file: Path, cells: Cells, name: str) -> NDArray[np.str_]:
    if name not in cells.text:
        raise InvalidInput(f"id column must be one of {', '.join(cells.text)}, got {name!r}")
    ids = cells.text[name]  # as written: 00012 and 12 are two names, whatever the other rows are called
    repeats = len(ids) - len(np.unique(ids))
    if repeats or (ids == "").any():
        what = f"{repeats:,} repeats" if repeats else "a missing one"
        raise InvalidInput(
            f"id column {name!r} of {file} must name each row once, got {what}: rows of one patient or one "
            "device depend on each other, so keep one row of each, drawn without looking at it"
        )
    return ids


def _column(file: Path, cells: Cells, name: str) -> NDArray[Any]:
    text = cells.text[name]
    if cells.numeric is not None and name not in cells.numeric:
        return text
    numbers = _numbers(text)
    if numbers is None:
        return text
    if np.isinf(numbers).any():
        raise UnreadableFile(f"{file} column {name!r} must hold finite numbers, got an infinite one")
    return numbers


def _numbers(text: NDArray[np.str_]) -> NDArray[np.float64] | None:
    """`[N]` the numbers that all cells write, NaN where missing; None if one writes none."""
    found = [math.nan if cell == "" else number_in(cell) for cell in text.tolist()]
    return None if None in found else np.array(found, dtype=np.float64)


def _written(cell: Any) -> str:
    """A cell as text; a whole number without its point."""
    if isinstance(cell, float | np.floating):
        return str(int(cell)) if float(cell).is_integer() else repr(float(cell))
    return str(cell)
