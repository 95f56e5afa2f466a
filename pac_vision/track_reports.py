"""Where the tracking experiments put what they found: tables on the terminal and as CSV, figures as PNG."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_WIDTH = 118  # of a terminal


class TrackReport:
    """A folder for tables, figures and videos."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def table(self, name: str, rows: Sequence[dict[str, Any]], title: str) -> None:
        """Prints the rows and writes them to `name`.csv, with all digits."""
        heads = list(rows[0])
        with (self.folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, heads, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        cells = [heads, *([_cell(row[head]) for head in heads] for row in rows)]
        if sum(max(len(line[i]) for line in cells) + 2 for i in range(len(heads))) > _WIDTH and len(rows) < 4:
            cells = [list(line) for line in zip(*cells, strict=True)]  # a column for each row, then
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        print(f"\n{title}")
        for line in cells:
            print("  " + "  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)).rstrip())
        print(f"  (also in {self.folder / name}.csv)", flush=True)

    def figure(self, name: str, figure: Any) -> None:
        """Writes the figure to `name`.png."""
        path = self.folder / f"{name}.png"
        figure.savefig(path)
        print(f"figure {path}", flush=True)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
