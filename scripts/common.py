"""What the experiments share: options, a folder for tables and figures, and drawings of sizes and errors."""

import math
import sys
import textwrap
from functools import reduce
from pathlib import Path

import click
import numpy as np
import pandas as pd

from pac_core import PACError

INK = ("#1b5e9e", "#c8553d", "#4f8a5b", "#7a5c99", "#8a6d3b")
WIDTH = 118  # of a terminal
PATH = click.Path(path_type=Path)


def option(name, default, text, **how):
    return click.option(f"--{name}", default=default, show_default=True, help=text, **how)


def out_option(default):
    return option("out", Path(default), "Folder for everything; a second run goes on.", type=PATH)


def ledger_option(beside):
    text = f"Where looks are recorded.  [default: pac-ledger beside {beside}]"
    return click.option("--ledger", type=PATH, metavar="FILE", help=text)


def options(*several):
    """Several options as one decorator, in their order."""
    return lambda command: reduce(lambda made, one: one(made), reversed(several), command)


smoke_option = click.option("--smoke-test", is_flag=True, help="Tiny or generated data, in a few seconds.")
seed_option = option("seed", 0, "Of splits, training and draws.")


def start(command):
    """Runs a command line; what it refuses is one sentence and exit code 1."""
    try:
        command(standalone_mode=False)
    except (PACError, click.ClickException) as error:
        sys.exit(f"Error: {error if isinstance(error, PACError) else error.format_message()}")
    except (KeyboardInterrupt, click.Abort):
        sys.exit("stopped; what is computed is kept, and the same command goes on from there")


class ResultFolder:
    """A folder for tables and figures."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def table(self, name, rows, title="", *, hidden=(), note=""):
        """Writes the rows to `name`.csv with all digits, and prints them if they have a title.

        hidden: columns that are not printed
        note: a sentence below
        """
        frame = pd.DataFrame(rows, dtype=object)
        frame.to_csv(self.folder / f"{name}.csv", index=False)
        if not title:
            return
        shown = frame.drop(columns=list(hidden)).map(_cell)
        texts = [shown.to_string(index=False), shown.T.to_string(header=False)]
        widths = [len(text.partition("\n")[0]) for text in texts]
        text = texts[widths[0] > WIDTH and widths[1] < widths[0]]  # turned round where that is narrower
        print(f"\n{title}\n{textwrap.indent(text, '  ')}", flush=True)
        if note:
            print(f"  {note}")

    def figure(self, name, figure):
        """Writes the figure to `name`.png."""
        figure.savefig(self.folder / f"{name}.png")


def _cell(value):
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return "-" if value is None else str(value)


def interval_text(ends, digits=4):
    return f"{ends[0]:.{digits}f}..{ends[1]:.{digits}f}"


def say_refuted(found, yes="yes", no="no"):
    return yes if found.refuted else no


def say_level(level):
    return f"epsilon {level.epsilon:g}, delta {level.delta:g}"


def canvas(width=6.0, height=4.0):
    """A figure and its axes in the house style."""
    figure, [[axes]] = panels(1, 1, (width, height))
    return figure, axes


def log_axis(axes):
    """A logarithmic scale with numbers that can be read off, even within one power of ten."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axes.set_yscale("log", nonpositive="clip")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def new_panel(title, label="", size=(7.0, 4.2), **style):
    """A figure of one panel."""
    figure, axes = canvas(*size)
    axes.set_title(title, loc="left", **{"fontsize": 10.5} | style)
    axes.set_ylabel(label, fontsize=9)
    return figure, axes


def style_panel(axes):
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def panels(rows, columns, size, **options):
    """A figure with a grid of axes in the house style."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    for axes in grid.flat:
        style_panel(axes)
    return figure, grid


def level_grid(levels, draw, title, label):
    """A panel for each epsilon (down) and delta (across), all with the same axes; `draw(axes, level)`."""
    from matplotlib.figure import Figure

    rows, columns = (len({getattr(level, name) for level in levels}) for name in ("epsilon", "delta"))
    high = 1.9 * rows + 1.0
    figure = Figure(figsize=(2.9 * columns + 0.8, high), dpi=130)
    # Margins by hand: fifteen panels would keep the layout engine busy for seconds.
    margins = {"left": 0.09, "right": 0.985, "bottom": 0.5 / high, "top": 1 - 0.8 / high}
    shared = {"sharex": True, "sharey": True, "squeeze": False}
    grid = figure.subplots(rows, columns, gridspec_kw=margins | {"hspace": 0.3, "wspace": 0.06}, **shared)
    for axes, level in zip(grid.flat, levels, strict=True):
        axes.set_title(say_level(level), fontsize=9)
        axes.tick_params(labelsize=8)
        style_panel(axes)
        draw(axes, level)
    figure.suptitle(title, fontsize=10.5)
    figure.supylabel(label, fontsize=9.5, x=0.008)
    return figure


def draw_box(axes, sizes, place, colour, *, width=0.5):
    """A box at a place: quartiles, whiskers to the smallest and largest, the median and the mean."""
    mean = {"marker": "D", "markersize": 4, "markerfacecolor": "white", "markeredgecolor": "black"}
    how = {"positions": [place], "whis": (0, 100), "widths": width, "showmeans": True, "meanprops": mean}
    made = axes.boxplot([np.asarray(sizes)], patch_artist=True, manage_ticks=False, **how)
    made["boxes"][0].set(facecolor=colour, alpha=0.6)
    made["medians"][0].set(color="black", linewidth=1.6)


def draw_boxes(axes, sizes, inks=INK):
    """A box for each name."""
    for place, (size, ink) in enumerate(zip(sizes.values(), inks, strict=False), start=1):
        draw_box(axes, size, place, ink)
    name_places(axes, list(sizes))


def name_places(axes, names):
    """Names at the places 1, 2, and so on."""
    axes.set_xticks(range(1, len(names) + 1), names)
    axes.set_xlim(0.4, len(names) + 0.6)
    axes.tick_params(axis="x", length=0)


def draw_errors(axes, errors, epsilon, inks=INK):
    """Bars of measured errors with their exact intervals, against the promise."""
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for place, (group, ink) in enumerate(zip(errors.values(), inks, strict=False), start=1):
        error, (low, high) = group.error, group.interval
        axes.bar(place, max(error, 1e-9), color=ink, alpha=0.6, width=0.55)
        axes.errorbar(place, error, [[error - low], [high - error]], color="black", capsize=4)
        axes.annotate(f"{error:.4f}", (place, high), ha="center", va="bottom", fontsize=9, bbox=clear)
    axes.axhline(epsilon, color="black", linestyle=":", label=f"promised error, epsilon = {epsilon:g}")
    axes.legend(frameon=False, loc="upper right")
    name_places(axes, list(errors))


def draw_bands(axes, sizes, along):
    """Median size of each name against epsilon or delta, with the range of nine in ten of the sizes `[n]`."""
    for (name, at), ink in zip(sizes.items(), INK, strict=False):
        low, middle, high = np.quantile(list(at.values()), (0.05, 0.5, 0.95), axis=1)
        axes.plot(list(at), middle, color=ink, marker="o", label=name)
        axes.fill_between(list(at), low, high, color=ink, alpha=0.13)
    axes.set_xscale("log" if along == "delta" else "linear")
    axes.legend(frameon=False)
