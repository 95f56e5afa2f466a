"""Figures of classification results: sizes of sets as box plots, errors, architectures, classes."""

import numpy as np
from common import draw_box
from imagenet.inputs import mark_chance, say_infeasible
from imagenet.sets import OURS, PAPER
from scipy.stats import binom

from pac_core.bounds import min_samples
from pac_core.plots import INK, canvas

SIZES = "labels in the set\n(line: median, diamond: mean)"
COLOURS = {"C": INK[3], "D": INK[4], PAPER: INK[0], OURS: INK[1], "mass": "#9a9a9a", "mass, C": "#5f6b73"}
COLOURS |= {"correct": INK[2], "incorrect": INK[3]}
# From large to small, so that equal sizes do not hide each other.
MARKS = {
    "D": {"marker": "s", "markersize": 11, "linewidth": 3.6, "alpha": 0.6},
    PAPER: {"marker": "o", "markersize": 8, "linewidth": 2.2},
    OURS: {"marker": "D", "markersize": 4, "linewidth": 1},
}


def size_boxes(sizes, title, *, missing=None):
    """A box for each kind of sets; kinds without sets have the reason written in their place."""
    figure, axes = canvas(6.6, 4.0)
    draw_boxes(axes, sizes, missing or {})
    return _finish(figure, axes, title)


def draw_boxes(axes, sizes, missing):
    """The boxes of `size_boxes` on axes that exist."""
    names = [*missing, *sizes]
    for place, name in enumerate(names, start=1):
        if name in sizes:
            draw_box(axes, sizes[name], place, COLOURS[name.split("\n")[0]])
        else:
            middle = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "center"}
            axes.text(place, 0.5, missing[name], **middle, fontsize=8, color="#555555")
    _scale_sizes(axes, list(sizes.values()))
    _name_places(axes, names)


def grouped_boxes(groups, title, *, along=""):
    """Boxes side by side in groups; the same name has the same colour in every group.

    along: what the groups are values of, if they are
    """
    from matplotlib.patches import Patch

    figure, axes = canvas(7.2 if along else 6.6, 4.2)
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    width = 0.8 / len(names)
    for place, group in enumerate(groups.values(), start=1):
        for i, name in enumerate(names):
            if name in group and len(group[name]):
                at = place + (i - (len(names) - 1) / 2) * width
                draw_box(axes, group[name], at, COLOURS[name], width=0.85 * width)
    _scale_sizes(axes, [sizes for group in groups.values() for sizes in group.values() if len(sizes)])
    _name_places(axes, list(groups))
    handles = [Patch(facecolor=COLOURS[name], edgecolor="black", alpha=0.6, label=name) for name in names]
    figure.legend(handles=handles, frameon=False, loc="outside lower center", ncols=len(names), fontsize=9)
    axes.set_xlabel(along)
    return _finish(figure, axes, title)


def grid_boxes(results, title):
    """The ablation at each epsilon (down) and delta (across), all with the same axes."""
    from matplotlib.figure import Figure

    epsilons, deltas, n = results.levels.epsilons, results.levels.deltas, results.parts.calibrate.n
    high = 1.75 * len(epsilons) + 1.1
    figure = Figure(figsize=(2.9 * len(deltas) + 0.8, high), dpi=130)
    # Margins by hand: fifteen panels would keep the layout engine busy for seconds.
    margins = {"left": 0.085, "right": 0.985, "bottom": 0.45 / high, "top": 1 - 0.85 / high}
    margins |= {"hspace": 0.3, "wspace": 0.06}
    shared = {"sharex": True, "sharey": True, "squeeze": False}
    grid = figure.subplots(len(epsilons), len(deltas), gridspec_kw=margins, **shared)
    kinds = ["C", "D", PAPER, OURS]
    if not any(results.at("C", level) for level in results.levels.table):
        kinds.remove("C")
    every = []
    for axes, level in zip(grid.flat, results.levels.table, strict=True):
        sizes = {kind: one.size for kind in kinds if (one := results.at(kind, level)) is not None}
        every += sizes.values()
        if sizes:
            draw_boxes(axes, sizes, {kind: "not\nfeasible" for kind in kinds if kind not in sizes})
        else:
            words = f"not feasible with n = {n:,}\n{say_infeasible(n, min_samples(level))}"
            axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, fontsize=8.5)
        mark = mark_chance(n, level)
        head = f"epsilon {level.epsilon:g}, delta {level.delta:g}{mark and f' ({mark})'}"
        axes.set_title(head, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    # The panels share an axis, which must have room for all of them and not for the last alone.
    _scale_sizes(grid[0][0], every)
    figure.suptitle(title, fontsize=10.5)
    figure.supylabel(SIZES.replace("\n", " "), fontsize=10, x=0.008)
    return figure


def error_bars(errors, epsilon, title):
    """Measured error of each kind of sets with its exact interval, against the promise."""
    figure, axes = canvas(6.6, 4.0)
    for i, (name, (error, (low, high))) in enumerate(errors.items()):
        axes.bar(i, error, color=COLOURS[name.split("\n")[0]], alpha=0.6, width=0.55)
        axes.errorbar(i, error, [[error - low], [high - error]], color="black", capsize=4, linewidth=1.2)
        axes.text(i, high, f"{error:.4f}\n", ha="center", va="center", fontsize=9)
    axes.axhline(epsilon, color="black", linestyle=":", label=f"epsilon = {epsilon:g}")
    axes.set_xticks(range(len(errors)), list(errors))
    axes.set_ylim(0, 1.25 * max(epsilon, *(high for _, (_, high) in errors.values())))
    axes.tick_params(axis="x", length=0)
    axes.legend(frameon=False, loc="upper right")
    return _finish(
        figure, axes, title, "share of test images whose set misses\n(whisker: exact 98% interval)"
    )


def size_against_error(rows, intervals, title):
    """Mean set size against top-1 error, a point for each classifier and kind of sets.

    rows: of `architecture_rows`; intervals: the exact interval of each error
    """
    figure, axes = canvas(6.6, 4.4)
    order = np.argsort([row["top-1 error"] for row in rows])
    rows, ends = [rows[i] for i in order], np.array([intervals[i] for i in order]).T
    errors = np.array([row["top-1 error"] for row in rows])
    sizes = {kind: [row[f"mean size, {kind}"] for row in rows] for kind in MARKS}
    for kind, means in sizes.items():
        axes.plot(errors, means, color=COLOURS[kind], label=kind, fillstyle="none", **MARKS[kind])
    low, top = np.min(list(sizes.values())), np.max(list(sizes.values()))
    floor, ceiling = max(0, low - 0.5 * (top - low) - 0.05 * top), top + 1.1 * (top - low) + 0.25 * top
    axes.set_ylim(floor, ceiling)
    heights = floor + (ceiling - floor) * (0.03 + 0.035 * np.arange(len(errors)))
    grey = {"color": "#8a8a8a", "linestyle": "none", "capsize": 2, "elinewidth": 1, "marker": "|"}
    axes.errorbar(errors, heights, xerr=abs(ends - errors), label="exact 98% interval of the error", **grey)
    place, apart = -np.inf, 0.035 * np.diff(axes.get_xlim())[0]
    for row, error in zip(rows, errors, strict=True):
        place = max(error, place + apart)
        axes.annotate(
            row["classifier"],
            (error, max(row[f"mean size, {kind}"] for kind in MARKS)),
            xytext=(place, ceiling),
            **{"rotation": 90, "ha": "center", "va": "top", "fontsize": 8.5},
            arrowprops={"arrowstyle": "-", "color": "#bbbbbb", "shrinkB": 4},
        )
    axes.set_xlabel("top-1 error")
    figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=9)
    return _finish(figure, axes, title, "mean number of labels in the set")


def class_coverage(rows, epsilon, title):
    """How the classes are covered: each with its exact interval where they are few, else how many how well.

    rows: of `coverage_rows`
    """
    figure, axes = canvas(7.0, 4.2)
    if len(rows) <= 40:
        values, low, high = (np.array([row[key] for row in rows]) for key in ("coverage", "low", "high"))
        places, ends = np.arange(len(rows)), [values - low, high - values]
        axes.errorbar(places, values, ends, color=INK[0], marker="o", linestyle="none", capsize=3)
        axes.set_xticks(places, [row["class"] for row in rows], rotation=45, ha="right", fontsize=8)
        axes.axhline(1 - epsilon, color="black", linestyle=":", label=f"1 - epsilon = {1 - epsilon:g}")
        words = "share of the class's test images covered\n(whisker: exact 98% interval)"
    else:
        images = np.array([row["images"] for row in rows])
        missed = images - np.array([row["covered"] for row in rows])
        places, words = np.arange(missed.max() + 1), "classes"
        equal = [float(np.sum(binom.pmf(k, images, missed.sum() / images.sum()))) for k in places]
        for counts, shift, colour, label in (
            (np.bincount(missed), -0.2, INK[0], "classes found"),
            (equal, 0.2, "#b5b5b5", "if every class had the same error"),
        ):
            bars = axes.bar(places + shift, counts, width=0.38, color=colour, alpha=0.65, label=label)
            axes.bar_label(bars, [f"{count:.3g}" for count in counts], padding=2, fontsize=8)
        axes.set_yscale("log")
        axes.set_ylim(0.5, 3 * max(np.bincount(missed).max(), *equal))
        axes.set_xticks(places)
        few, many = images.min(), images.max()
        axes.set_xlabel(f"images of a class that its sets miss (of {few} to {many} in the test part)")
    axes.legend(frameon=False)
    return _finish(figure, axes, title, words)


def _name_places(axes, names):
    axes.set_xticks(range(1, len(names) + 1), names)
    axes.set_xlim(0.4, len(names) + 0.6)
    axes.tick_params(axis="x", length=0)


def _scale_sizes(axes, sizes):
    """A logarithmic axis of whole numbers, with a place for empty sets."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    least, most = (min(int(s.min()) for s in sizes), max(int(s.max()) for s in sizes)) if sizes else (1, 1)
    axes.set_yscale("symlog", linthresh=1, linscale=0.35)
    axes.set_ylim(-0.25 if least == 0 else 0.8, 1.5 * most)
    ticks = [m * 10**p for p in range(7) for m in (1, 2, 5) if m * 10**p <= 1.2 * most]
    axes.yaxis.set_major_locator(FixedLocator([0, *ticks] if least == 0 else ticks))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _finish(figure, axes, title, words=SIZES):
    axes.set_ylabel(words, fontsize=9)
    axes.set_title(title, loc="left", fontsize=10, pad=14)
    return figure
