"""The cells of a table as its file writes them; nothing is unpickled or executed."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, UnreadableFile

MISSING = frozenset({"", "?", "NA", "N/A", "NaN", "nan", "null"})
"""How a missing cell is written."""

SEPARATORS = (",", ";", "\t", "|")


@dataclass(frozen=True, eq=False)
class Cells:
    """A table before anything is read as a number.

    text: by column, `[N]` as it stands in the file, "" where missing
    declared: the values that a column of categories may take, where the file says so (arff)
    numeric: the columns that the file declares as numbers (arff); None where it declares nothing
    """

    text: Mapping[str, NDArray[np.str_]]
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    numeric: frozenset[str] | None = None


def arff_cells(file: Path) -> Cells:
    """The cells of an arff file, which says itself what its columns are."""
    from scipy.io import arff  # text only; it evaluates nothing

    limit = csv.field_size_limit()
    try:
        data, meta = arff.loadarff(str(file))
        kinds = {name: meta[name] for name in meta.names()}
    except Exception as error:  # the reader raises a dozen kinds for a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableFile(f"{file} cannot be read as arff: {reason}") from None
    finally:
        csv.field_size_limit(limit)  # scipy lifts it, for every file read later
    if not len(data):
        raise UnreadableFile(f"{file} holds no rows")
    text, declared = {}, {}
    written = _arff_rows(file, len(kinds))
    for place, (name, (kind, values)) in enumerate(kinds.items()):
        if kind == "numeric":
            text[name] = _known([row[place] for row in written])
            _refuse_other_numbers(file, name, text[name], data[name].astype(np.float64))
        elif kind == "nominal":
            text[name] = _known(np.char.decode(data[name], "utf-8").tolist())
            declared[name] = tuple(str(value) for value in values or ())
        else:
            raise UnreadableFile(f"{file} column {name!r} must be numeric or nominal, got {kind}")
    return Cells(text, declared, frozenset(kinds) - frozenset(declared))


def _arff_rows(file: Path, width: int) -> list[list[str]]:
    """The rows below @data, cell by cell: scipy gives numbers only, and 007 is another name than 7."""
    lines = iter(file.read_text(encoding="utf-8", errors="replace").splitlines())
    for line in lines:
        if line.strip().lower().startswith("@data"):
            break
    body = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("%")]
    mark = "," if body and "," in body[0] else "\t"
    rows: list[list[str]] = []
    for quote in "'\"":
        try:
            reader = csv.reader(body, delimiter=mark, quotechar=quote, escapechar="\\", skipinitialspace=True)
            rows = list(reader)
        except csv.Error as error:
            raise UnreadableFile(f"{file} cannot be cut into cells: {error}") from None
        if all(len(row) == width for row in rows):
            return rows
    count, row = next((count, row) for count, row in enumerate(rows, 1) if len(row) != width)
    raise UnreadableFile(f"{file} row {count} must have {width} cells, got {len(row)}")


def _refuse_other_numbers(
    file: Path, name: str, text: NDArray[np.str_], numbers: NDArray[np.float64]
) -> None:
    """Two readers must agree on a column of numbers, cell by cell."""
    own = np.array([np.nan if cell == "" else number_in(cell) for cell in text.tolist()], dtype=np.float64)
    if not np.array_equal(own, numbers, equal_nan=True):
        raise UnreadableFile(f"{file} column {name!r} cannot be cut into cells; write the table as csv")


def text_cells(file: Path, separator: str | None, names: Sequence[str] | None) -> Cells:
    """The cells of a text file; which columns are numbers is not said there."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{file} cannot be read as text: {error}") from None
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise UnreadableFile(f"{file} holds no rows")
    try:
        return Cells(_columns(file, lines, separator or _separator(lines[0]), names))
    except csv.Error as error:  # a cell beyond the limit of the reader, most often
        raise UnreadableFile(
            f"{file} cannot be cut into cells: {error}; is a quote left open in the file?"
        ) from None


def _columns(
    file: Path, lines: Sequence[str], separator: str, names: Sequence[str] | None
) -> dict[str, NDArray[np.str_]]:
    if len(separator) != 1:
        raise InvalidInput(f"separator must be one character, got {separator!r}")
    rows = csv.reader(lines, delimiter=separator, skipinitialspace=separator == " ")
    header = [name.strip() for name in (names or next(rows))]
    if names is None and any(number_in(name) is not None for name in header):
        raise UnreadableFile(
            f"{file} must name its columns in the first line, got {lines[0][:60]!r}; or give names"
        )
    if len(set(header)) != len(header) or "" in header:
        raise UnreadableFile(f"{file} must give each column a name of its own, got {', '.join(header)[:200]}")
    body = []
    for count, row in enumerate(rows, 1):
        if separator == " " and len(row) == len(header) + 1 and not row[-1].strip():
            row.pop()  # a blank at the end of the line
        if len(row) != len(header):
            raise UnreadableFile(f"{file} row {count} must have {len(header)} cells, got {len(row)}")
        body.append(row)
    if not body:
        raise UnreadableFile(f"{file} holds no rows")
    return {name: _known(cells) for name, cells in zip(header, zip(*body, strict=True), strict=True)}


def _separator(line: str) -> str:
    """The character that cuts the line into most cells; blanks only where no other does."""
    counts = {mark: len(next(csv.reader([line], delimiter=mark))) for mark in SEPARATORS}
    best = max(counts, key=lambda mark: counts[mark])
    return best if counts[best] > 1 else " "


def _known(cells: Sequence[str]) -> NDArray[np.str_]:
    """`[N]` the cells without blanks around them, "" where missing."""
    bare = (cell.strip() for cell in cells)
    return np.array(["" if cell in MISSING else cell for cell in bare])


def number_in(cell: str) -> float | None:
    """The number that a cell writes, or None.

    >>> number_in("1e3"), number_in("0A")
    (1000.0, None)
    """
    try:
        return float(cell)
    except ValueError:
        return None
