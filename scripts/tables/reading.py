"""Tables that a user has, arff or csv: columns of numbers and of categories, with cells missing.

Nothing is unpickled or executed. What a cell says does not depend on the other rows of its file.
"""

import csv
import hashlib
import json
import re
from dataclasses import dataclass, field

import click
import numpy as np
import pandas as pd
from common import PATH, ledger_option

from pac_core import InvalidInput
from pac_core.datasets import file_digest
from pac_core.errors import UnreadableFile

MISSING = ["", "?", "NA", "N/A", "NaN", "nan", "null"]
MOST_CATEGORIES = 50  # of a column that goes into a model; more are names, not categories
ATTRIBUTE = re.compile(r"@attribute\s+('[^']*'|\"[^\"]*\"|\S+)\s+(.+)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Table:
    """A table whose rows are independent units: cells as written, "" where missing; what arff declares."""

    name: str
    ids: np.ndarray
    cells: pd.DataFrame
    declared: dict[str, tuple[str, ...]] = field(default_factory=dict)
    digest: str | None = None

    def __len__(self):
        return len(self.ids)

    def text(self, name):
        """`[N]` a column as it is written: "01" stays "01"."""
        if name not in self.cells:
            raise InvalidInput(f"column must be one of {', '.join(self.cells)}, got {name!r}")
        return self.cells[name].to_numpy(str)

    def numbers(self, name):
        """`[N]` a column as numbers, NaN where missing, refused if it holds text."""
        cells = self.text(name)
        try:
            found = np.array([np.nan if cell == "" else float(cell) for cell in cells])
        except ValueError:
            raise InvalidInput(f"column {name!r} must hold numbers, got text") from None
        if np.isinf(found).any():
            raise InvalidInput(f"column {name!r} must hold finite numbers, got an infinite one")
        return found

    def is_numeric(self, name):
        """Whether all its cells write numbers, and the file does not declare it as categories."""
        return name not in self.declared and all(cell == "" or is_number(cell) for cell in self.text(name))

    def known(self, target):
        """`[N]` a column as it is written, refused if a cell is missing."""
        gone = self.text(target) == ""
        if gone.any():
            raise InvalidInput(
                f"target {target!r} must be known in every row, got {int(gone.sum()):,} missing, the first "
                f"in row {int(gone.argmax()) + 1}: a unit without a truth cannot be scored, and is never "
                "left out in silence"
            )
        return self.text(target)

    def inputs(self, target, *, leave_out=()):
        """The columns a model may read; one of more than 50 texts, which are names, is refused."""
        for name in (target, *leave_out):
            self.text(name)
        kept = [name for name in self.cells if name not in (target, *leave_out)]
        if not kept:
            raise InvalidInput(f"the table must have a column beside the target {target!r}, got none")
        for name in kept:
            kinds = np.unique(self.text(name))
            if self.is_numeric(name):
                self.numbers(name)
            elif len(kinds) > MOST_CATEGORIES:
                raise InvalidInput(
                    f"column {name!r} must hold numbers or at most {MOST_CATEGORIES} categories, got "
                    f"{len(kinds):,} different texts such as {str(kinds[0])!r}: leave it out"
                )
        return kept


def table_options(function):
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


def read_own(given, file, without=None):
    """The table that the options describe; of the columns they name, one may be missing."""
    names = given["names"] and [name for name in given["names"].split(",") if name != without]
    return read_table(file, separator=given["separator"], names=names, id_column=given["id"])


def read_table(file, *, separator=None, names=None, id_column=None):
    """The table in an arff or text file.

    separator: of a text file; by default the one of comma, semicolon, tab and bar that makes most of the
        first line, else blanks
    names: of the columns, where the first line of a text file does not hold them
    id_column: names the rows; without one, a row is known by its cells, and equal rows are counted
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        is_arff = file.suffix.lower() == ".arff"
        if is_arff and (separator or names):
            raise InvalidInput(f"separator and names are for text files, but {file} is arff")
        header, rows, declared = cut_arff(lines) if is_arff else cut_text(lines, separator, names)
    except (OSError, csv.Error, TypeError, ValueError) as error:
        raise UnreadableFile(f"{file} cannot be read as a table: {error}") from None
    for count, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise UnreadableFile(f"{file} row {count} must have {len(header)} cells, got {len(row)}")
    if not rows or len({*header, ""}) <= len(header):
        raise UnreadableFile(f"{file} must have rows, and a name of its own for each column, got {header}")
    cells = pd.DataFrame(rows, columns=header, dtype=str).map(str.strip).replace(MISSING, "")
    if id_column is None:
        ids = hash_rows(cells)
    elif id_column in cells:
        ids = cells.pop(id_column).to_numpy(str)  # as written: 00012 and 12 are two names
    else:
        raise InvalidInput(f"id column must be one of {', '.join(cells)}, got {id_column!r}")
    repeats = len(ids) - len(np.unique(ids))
    if repeats or "" in ids:
        raise InvalidInput(
            f"id column {id_column!r} of {file} must name each row once, got "
            f"{f'{repeats:,} repeats' if repeats else 'a missing one'}: rows of one patient or one device "
            "depend on each other, so keep one row of each, drawn without looking at it"
        )
    return Table(file.stem, ids, cells, declared, file_digest(file))


def cut_text(lines, separator, names):
    """Header, rows, and no declared values, of a text file."""
    if separator is None:
        best = max(",;\t|", key=lambda mark: len(next(csv.reader(lines[:1] or [""], delimiter=mark))))
        separator = best if best in "".join(lines[:1]) else " "
    lines = [line.strip() for line in lines] if separator == " " else lines
    rows = list(csv.reader(lines, delimiter=separator, skipinitialspace=separator == " "))
    header = names or [name.strip() for name in rows.pop(0)] if rows else []
    if names is None and any(map(is_number, header)):
        raise ValueError(f"the first line must name its columns, got {header}; or give names")
    return header, rows, {}


def cut_arff(lines):
    """Header, rows, and the declared values of nominal columns, of an arff file."""
    lines = [line.strip() for line in lines if not line.lstrip().startswith("%")]
    start = next((i for i, line in enumerate(lines) if line.lower().startswith("@data")), len(lines))
    found = [match for line in lines[:start] if (match := ATTRIBUTE.fullmatch(line))]
    kinds, body = {match[1].strip("'\""): match[2].strip() for match in found}, lines[start + 1 :]
    for quote in "'\"":
        how = {"quotechar": quote, "escapechar": "\\", "skipinitialspace": True}
        rows = list(csv.reader(body, delimiter="," if "," in "".join(body[:1]) else "\t", **how))
        named = {n: next(csv.reader([kind[1:-1]], **how)) for n, kind in kinds.items() if kind[0] == "{"}
        if all(len(row) == len(kinds) for row in rows):
            break
    declared = {name: tuple(map(str.strip, values)) for name, values in named.items()}
    for row in rows:
        for (name, kind), cell in zip(kinds.items(), map(str.strip, row), strict=False):
            number = kind.lower() in ("real", "numeric", "integer") and is_number(cell)
            if cell not in MISSING and not number and cell not in declared.get(name, ()):
                raise ValueError(f"column {name!r} must hold numbers or declared values, got {cell!r}")
    return list(kinds), rows, declared


def hash_rows(cells):
    """`[N]` a hash of each row, with a count for equal ones: a row keeps its name whatever the others are."""
    rows = cells.itertuples(index=False, name=None)
    names = pd.Series([hashlib.sha256(json.dumps(row).encode()).hexdigest()[:16] for row in rows])
    return (names + ":" + (names.groupby(names).cumcount() + 1).astype(str)).to_numpy(str)


def is_number(cell):
    try:
        return bool(float(cell)) or True
    except ValueError:
        return False
