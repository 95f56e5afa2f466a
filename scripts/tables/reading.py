"""The paper's tables, arff or text: cells as they are written, "" where one is missing.

Nothing is unpickled or executed. What a cell says does not depend on the other rows of its file.
"""

import csv
import hashlib
import json
import math
import re
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from pac_core import InvalidInput
from pac_core.datasets import file_digest
from pac_core.errors import UnreadableFile

MISSING = ["", "?", "NA", "N/A", "NaN", "nan", "null"]
ATTRIBUTE = re.compile(r"@attribute\s+('[^']*'|\"[^\"]*\"|\S+)\s+(.+)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Table:
    """A table whose rows are independent units; `declared` has the values that arff declares of a column."""

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

    def is_numeric(self, name):
        """Whether all its cells write numbers, and the file does not declare it as categories."""
        return name not in self.declared and all(cell == "" or is_number(cell) for cell in self.text(name))

    def numbers(self, name):
        """`[N]` a column as numbers, NaN where missing."""
        if not self.is_numeric(name):
            raise InvalidInput(f"column {name!r} must hold finite numbers, got others")
        return np.array([float(cell or "nan") for cell in self.text(name)])

    def known(self, target):
        """`[N]` the truths as written, none missing: no unit is left out in silence."""
        if gone := int((self.text(target) == "").sum()):
            raise InvalidInput(f"target {target!r} must be known in every row, got {gone:,} missing")
        return self.text(target)


def read_table(file):
    """The table in an arff file, or in a text file with semicolons whose first line names the columns."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        if file.suffix == ".arff":
            header, rows, declared = cut_arff(lines)
        else:
            (header, *rows), declared = csv.reader(lines, delimiter=";"), {}
    except (OSError, csv.Error, ValueError) as error:
        raise UnreadableFile(f"{file} cannot be read as a table: {error}") from None
    for count, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise UnreadableFile(f"{file} row {count} must have {len(header)} cells, got {len(row)}")
    cells = pd.DataFrame(rows, columns=header, dtype=str).map(str.strip).replace(MISSING, "")
    return Table(file.stem, hash_rows(cells), cells, declared, file_digest(file))


def cut_arff(lines):
    """Header, rows, and the declared values of nominal columns, of an arff file."""
    lines = [line.strip() for line in lines if not line.lstrip().startswith("%")]
    start = next((i for i, line in enumerate(lines) if line.lower().startswith("@data")), len(lines))
    found = [match for line in lines[:start] if (match := ATTRIBUTE.fullmatch(line))]
    kinds = {match[1].strip("'\""): match[2].strip() for match in found}
    declared = {
        name: tuple(value.strip() for value in kind[1:-1].split(","))
        for name, kind in kinds.items()
        if kind[0] == "{"
    }
    rows = list(csv.reader(lines[start + 1 :]))
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
        return math.isfinite(float(cell))
    except ValueError:
        return False
