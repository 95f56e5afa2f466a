"""Where results go: tables on the terminal and as csv, figures as PNG."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WIDTH = 118  # of a terminal


class ResultFolder:
    """A folder for tables and figures; each is said on the terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def table(
        self,
        name: str,
        rows: Sequence[Mapping[str, Any]],
        title: str = "",
        *,
        columns: Sequence[str] = (),
        first: int | None = None,
        note: str = "",
    ) -> None:
        """Writes the rows to `name`.csv with all digits, and prints them if they have a title.

        columns: those that are printed; by default all
        first: print so many rows
        note: a sentence below
        """
        heads = list(rows[0])
        with (self.folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, heads)
            writer.writeheader()
            writer.writerows(rows)
        self.written.append(f"{name}.csv")
        if not title:
            return
        shown = [head for head in heads if not columns or head in columns]
        cells = [shown, *([_cell(row[head]) for head in shown] for row in rows[:first])]
        if sum(max(len(line[i]) for line in cells) + 2 for i in range(len(shown))) > WIDTH:
            cells = [list(line) for line in zip(*cells, strict=True)]  # a column for each row, then
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        print(f"\n{title}")
        for line in cells:
            first_cell, *others = (
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            print(("  " + "  ".join([first_cell, *others])).rstrip())
        if first is not None and len(rows) > first:
            print(f"  ... {len(rows) - first:,} more in {name}.csv")
        if note:
            print(f"  {note}", flush=True)

    def figure(self, name: str, figure: Any) -> None:
        """Writes the figure to `name`.png."""
        figure.savefig(self.folder / f"{name}.png")
        self.written.append(f"{name}.png")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return str(value)
