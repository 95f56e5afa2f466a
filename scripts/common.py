"""What the experiments share: a folder for tables and figures, box plots, and refusals in one sentence."""

import math
import sys
import textwrap
from pathlib import Path

import click
import numpy as np
import pandas as pd

from pac_core import PACError

WIDTH = 118  # of a terminal
PATH = click.Path(path_type=Path)
smoke_option = click.option("--smoke-test", is_flag=True, help="Generated data, in a few seconds.")
seed_option = click.option("--seed", default=0, show_default=True, help="Of splits, training and draws.")


def out_option(default):
    return click.option(
        "--out", type=PATH, default=Path(default), show_default=True, help="Folder for everything."
    )


def ledger_option(beside):
    text = f"Where looks are recorded.  [default: pac-ledger beside {beside}]"
    return click.option("--ledger", type=PATH, metavar="FILE", help=text)


def start(command):
    """Runs a command line; what it refuses is one sentence and exit code 1."""
    try:
        command(standalone_mode=False)
    except (PACError, click.ClickException) as error:
        sys.exit(f"Error: {error if isinstance(error, PACError) else error.format_message()}")
    except (KeyboardInterrupt, click.Abort):
        sys.exit("stopped; what is computed is kept, and the same command goes on from there")


class ResultFolder:
    """A folder for tables and figures; each is said on the terminal."""

    def __init__(self, folder):
        self.folder = folder
        self.written: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def table(self, name, rows, title="", *, hidden=(), first=None, note=""):
        """Writes the rows to `name`.csv with all digits, and prints them if they have a title.

        hidden: columns that are not printed
        first: print so many rows
        note: a sentence below
        """
        frame = pd.DataFrame(rows, dtype=object)
        frame.to_csv(self.folder / f"{name}.csv", index=False)
        self.written.append(f"{name}.csv")
        if not title:
            return
        shown = frame.drop(columns=list(hidden)).head(first or len(frame)).map(_cell)
        texts = [shown.to_string(index=False), shown.T.to_string(header=False)]
        widths = [len(text.partition("\n")[0]) for text in texts]
        text = texts[widths[0] > WIDTH and widths[1] < widths[0]]  # turned round where that is narrower
        print(f"\n{title}\n{textwrap.indent(text, '  ')}")
        if first is not None and len(frame) > first:
            print(f"  ... {len(frame) - first:,} more in {name}.csv")
        if note:
            print(f"  {note}", flush=True)

    def figure(self, name, figure):
        """Writes the figure to `name`.png."""
        figure.savefig(self.folder / f"{name}.png")
        self.written.append(f"{name}.png")


def _cell(value):
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return "-" if value is None else str(value)


def interval_text(ends, digits=4):
    return f"{ends[0]:.{digits}f}..{ends[1]:.{digits}f}"


def draw_box(axes, sizes, place, colour, *, width=0.5):
    """A box at a place: quartiles, whiskers to the smallest and largest, the median and the mean."""
    made = axes.boxplot(
        [np.asarray(sizes)],
        positions=[place],
        whis=(0, 100),
        widths=width,
        patch_artist=True,
        manage_ticks=False,
        showmeans=True,
        meanprops={"marker": "D", "markersize": 4, "markerfacecolor": "white", "markeredgecolor": "black"},
    )
    made["boxes"][0].set(facecolor=colour, alpha=0.6)
    made["medians"][0].set(color="black", linewidth=1.6)


def panels(rows, columns, size, **options):
    """A figure with a grid of axes in the house style."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return figure, grid
