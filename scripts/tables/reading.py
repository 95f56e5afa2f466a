"""Tables that a user has, arff or csv: columns of numbers and of categories, with cells missing.

Nothing is unpickled or executed. What a cell says does not depend on the other rows of its file.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from common import PATH, ledger_option

from pac_core import InvalidInput, UnreadableFile
from pac_core.tables import file_digest

MISSING = frozenset({"", "?", "NA", "N/A", "NaN", "nan", "null"})
MOST_CATEGORIES = 50  # of a column that goes into a model; more are names, not categories
ATTRIBUTE = re.compile(r"@attribute\s+('[^']*'|\"[^\"]*\"|\S+)\s+(.+)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Table:
    """A table whose rows are independent units.

    ids: `[N]` a name for each row
    columns: by name, `[N]` float64 with NaN where missing, or text with "" where missing
    declared: the values that a column of text may take, where the file says so (arff)
    digest: of the file
    written: by name, `[N]` the cells as the file writes them, "" where missing; none if made by hand
    """

    name: str
    ids: Any
    columns: Mapping[str, Any]
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    digest: str | None = None
    written: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, name: str) -> Any:
        if name not in self.columns:
            raise InvalidInput(f"column must be one of {', '.join(self.columns)}, got {name!r}")
        return self.columns[name]

    def is_numeric(self, name: str) -> bool:
        return bool(self.column(name).dtype.kind == "f")

    def values(self, target: str) -> Any:
        """`[N]` the column as numbers, refused if it holds text or a cell is missing."""
        if not self.is_numeric(target):
            text = str(self.column(target)[0])
            raise InvalidInput(f"target {target!r} must hold numbers to be regressed on, got {text!r}")
        return self._known(target)

    def labels(self, target: str) -> Any:
        """`[N]` the column as text, refused if a cell is missing; 1.0 becomes "1"."""
        known = self._known(target)
        if not self.is_numeric(target):
            return known
        return np.array([str(int(x)) if x.is_integer() else repr(x) for x in known.tolist()])

    def _known(self, target: str) -> Any:
        column = self.column(target)
        gone = np.isnan(column) if self.is_numeric(target) else column == ""
        if gone.any():
            raise InvalidInput(
                f"target {target!r} must be known in every row, got {int(gone.sum()):,} missing, the first "
                f"in row {int(gone.argmax()) + 1}: a unit without a truth cannot be scored, and is never "
                "left out in silence"
            )
        return column

    def text(self, name: str) -> Any:
        """`[N]` the column as the file writes it: "01" stays "01". Refused for numbers never written."""
        if name not in self.written and self.is_numeric(name):
            raise InvalidInput(f"column {name!r} must hold text, as it did in training, got numbers")
        return self.written.get(name, self.column(name))

    def numbers(self, name: str) -> Any:
        """`[N]` the column as numbers, NaN where missing, refused if it holds text."""
        found = self.column(name) if self.is_numeric(name) else read_numbers(self.column(name))
        if found is None or np.isinf(found).any():
            raise InvalidInput(f"column {name!r} must hold numbers, as it did in training, got text")
        return found

    def inputs(self, target: str, *, leave_out: Iterable[str] = ()) -> tuple[str, ...]:
        """The columns a model may read: all but the target and those left out.

        A column of more than 50 different texts is refused: those are names of rows, or numbers written
        in a way this does not read.
        """
        dropped = {target, *leave_out}
        for name in dropped:
            self.column(name)
        kept = tuple(name for name in self.columns if name not in dropped)
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


def table_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--target and what it takes to read a table of one's own, for `read_own`."""
    for name, text in (
        ("leave-out", "A column the model may not read; may be repeated."),
        ("id", "The column that names the rows; each name may stand once."),
        ("names", "Columns, with commas, of a text file whose first line does not name them."),
        ("separator", "Of a text file.  [default: found from its first line]"),
    ):
        function = click.option(f"--{name}", multiple=name == "leave-out", help=text)(function)
    function = click.option("--target", required=True, help="The column to forecast.")(function)
    return click.argument("file", type=PATH)(ledger_option("the table")(function))


def read_own(given: Mapping[str, Any], file: Path, names: Sequence[str] | None = None) -> Table:
    """The table that the options describe."""
    names = names or (given["names"].split(",") if given["names"] else None)
    return read_table(file, separator=given["separator"], names=names, id_column=given["id"])


def read_table(
    file: Path,
    *,
    separator: str | None = None,
    names: Sequence[str] | None = None,
    id_column: str | None = None,
) -> Table:
    """The table in an arff or text file.

    separator: of a text file; by default the one of comma, semicolon, tab and bar that makes most of the
        first line, else blanks
    names: of the columns, where the first line of a text file does not hold them
    id_column: names the rows; without one, a row is known by its cells, and equal rows are counted

    A column of a text file is numeric if every cell that is not missing is a number. Missing cells are empty,
    "?", "NA", "N/A", "NaN" or "null".
    """
    if not file.is_file():
        raise UnreadableFile(f"{file} does not exist or is not a file")
    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{file} cannot be read as text: {error}") from None
    declared: Mapping[str, tuple[str, ...]] = {}
    try:
        if file.suffix.lower() == ".arff":
            if separator is not None or names is not None:
                raise InvalidInput(f"separator and names are for text files, but {file} is arff")
            text, declared = read_arff(file, lines)
        else:
            text = read_text(file, lines, separator, names)
    except csv.Error as error:  # a cell beyond the limit of the reader, most often
        raise UnreadableFile(
            f"{file} cannot be cut into cells: {error}; is a quote left open in the file?"
        ) from None
    ids = hash_rows(text) if id_column is None else read_ids(file, text, id_column)
    text = {name: column for name, column in text.items() if name != id_column}
    numbers = {name: None if name in declared else read_numbers(column) for name, column in text.items()}
    for name, found in numbers.items():
        if found is not None and np.isinf(found).any():
            raise UnreadableFile(f"{file} column {name!r} must hold finite numbers, got an infinite one")
    columns = {name: text[name] if found is None else found for name, found in numbers.items()}
    return Table(file.stem, ids, columns, declared, file_digest(file), text)


def read_text(
    file: Path, lines: list[str], separator: str | None, names: Sequence[str] | None
) -> dict[str, Any]:
    """The cells of a text file by column."""
    if not lines:
        raise UnreadableFile(f"{file} holds no rows")
    if separator is None:
        counts = {mark: len(next(csv.reader([lines[0]], delimiter=mark))) for mark in ",;\t|"}
        best = max(counts, key=lambda mark: counts[mark])
        separator = best if counts[best] > 1 else " "
    if len(separator) != 1:
        raise InvalidInput(f"separator must be one character, got {separator!r}")
    if separator == " ":
        lines = [line.strip() for line in lines]
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=separator == " ")
    header = [name.strip() for name in (names or next(rows))]
    if names is None and any(number_in(name) is not None for name in header):
        raise UnreadableFile(
            f"{file} must name its columns in the first line, got {lines[0][:60]!r}; or give names"
        )
    if len(set(header)) != len(header) or "" in header:
        raise UnreadableFile(f"{file} must give each column a name of its own, got {', '.join(header)[:200]}")
    return cut_columns(file, header, list(rows))


def read_arff(file: Path, lines: list[str]) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """The cells of an arff file, which says itself what its columns are, and the declared categories."""
    lines = [line.strip() for line in lines if not line.lstrip().startswith("%")]
    start = next((i for i, line in enumerate(lines) if line.lower().startswith("@data")), len(lines))
    found = [match for line in lines[:start] if (match := ATTRIBUTE.fullmatch(line))]
    kinds = {match[1].strip("'\""): match[2].strip() for match in found}
    body = lines[start + 1 :]
    if not kinds or not body:
        raise UnreadableFile(f"{file} holds no rows, or no @attribute that is read")
    rows: list[list[str]] = []
    for quote in "'\"":
        how: dict[str, Any] = {"quotechar": quote, "escapechar": "\\", "skipinitialspace": True}
        rows = list(csv.reader(body, delimiter="," if "," in body[0] else "\t", **how))
        named = {
            name: next(csv.reader([kind[1:-1]], **how)) for name, kind in kinds.items() if kind[0] == "{"
        }
        if all(len(row) == len(kinds) for row in rows):
            break
    text, declared = (
        cut_columns(file, list(kinds), rows),
        {n: tuple(map(str.strip, c)) for n, c in named.items()},
    )
    for name, kind in kinds.items():
        known = text[name] if name not in declared else set(text[name].tolist()) - {"", *declared[name]}
        if name not in declared and (
            kind.lower() not in ("real", "numeric", "integer") or read_numbers(known) is None
        ):
            raise UnreadableFile(
                f"{file} column {name!r} must be numeric or nominal, and its cells too, got {kind}"
            )
        if name in declared and known:
            raise UnreadableFile(f"{file} column {name!r} must hold declared values, got {min(known)!r}")
    return text, declared


def cut_columns(file: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    """By column, `[N]` the cells without blanks around them, "" where missing."""
    for count, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise UnreadableFile(f"{file} row {count} must have {len(header)} cells, got {len(row)}")
    if not rows:
        raise UnreadableFile(f"{file} holds no rows")
    bare = [[("" if cell.strip() in MISSING else cell.strip()) for cell in row] for row in rows]
    return {name: np.array(cells) for name, cells in zip(header, zip(*bare, strict=True), strict=True)}


def hash_rows(text: Mapping[str, Any]) -> Any:
    """`[N]` a hash of each row, with a count for equal ones: a row keeps its name whatever the others are."""
    counts: Counter[str] = Counter()
    names = []
    for row in zip(*(column.tolist() for column in text.values()), strict=True):
        name = hashlib.sha256(json.dumps(row).encode()).hexdigest()[:16]
        counts[name] += 1
        names.append(f"{name}:{counts[name]}")
    return np.array(names)


def read_ids(file: Path, text: Mapping[str, Any], name: str) -> Any:
    """`[N]` as written: 00012 and 12 are two names, whatever the other rows are called."""
    if name not in text:
        raise InvalidInput(f"id column must be one of {', '.join(text)}, got {name!r}")
    ids = text[name]
    repeats = len(ids) - len(np.unique(ids))
    if repeats or (ids == "").any():
        what = f"{repeats:,} repeats" if repeats else "a missing one"
        raise InvalidInput(
            f"id column {name!r} of {file} must name each row once, got {what}: rows of one patient or one "
            "device depend on each other, so keep one row of each, drawn without looking at it"
        )
    return ids


def read_numbers(text: Any) -> Any:
    """`[N]` the numbers that all cells write, NaN where missing; None if one writes none."""
    found = [math.nan if cell == "" else number_in(cell) for cell in text.tolist()]
    return None if None in found else np.array(found, dtype=np.float64)


def number_in(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
