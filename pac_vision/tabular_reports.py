"""What the scripts on tables share: options that name a table, and tables of results as text and CSV."""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pac_core import InvalidInput, UnreadableFile
from pac_vision.tabular import Table, read_table


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """--file and what it takes to read one."""
    add = parser.add_argument
    add("--file", type=Path, help="a table of your own: arff, or text with any separator")
    add("--target", help="its column to forecast")
    add("--separator", help="of a text file (found from its first line)")
    add("--names", help="columns, with commas, of a text file whose first line does not name them")
    add("--id", help="the column that names the rows; each name may stand once")
    add("--leave-out", action="append", default=[], help="a column the model may not read; may be repeated")
    add("--ledger", type=Path, help="where looks are recorded (pac-ledger beside each table)")


def table_of(args: argparse.Namespace) -> Table:
    """The table that the options name."""
    if args.target is None:
        raise InvalidInput("--file needs --target, the column to forecast, got none")
    return read_table(args.file, separator=args.separator, names=_names(args), id_column=args.id)


def new_table_of(args: argparse.Namespace) -> Table:
    """The rows of --new, read like --file; where names are given, the target's column may be missing."""
    how, names = {"separator": args.separator, "id_column": args.id}, _names(args)
    try:
        return read_table(args.new, names=names, **how)
    except UnreadableFile:
        if names is None or args.target not in names:
            raise
        return read_table(args.new, names=[name for name in names if name != args.target], **how)


def _names(args: argparse.Namespace) -> list[str] | None:
    return args.names.split(",") if args.names else None


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes the rows with all digits."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_rows(path: Path, rows: Sequence[dict[str, Any]], *, title: str) -> None:
    """Prints the rows under a title, and writes them with all digits to a CSV file."""
    write_csv(path, rows)
    heads = list(rows[0])
    lines = [heads, *([_cell(row[head]) for head in heads] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    print(f"\n{title}")
    for line in lines:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print(f"  (also in {path})", flush=True)


def save_figure(path: Path, figure: Any) -> None:
    figure.savefig(path)
    print(f"figure {path}", flush=True)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return "-" if value is None else str(value)
