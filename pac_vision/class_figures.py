"""Figures of classification results beside sizes: errors, reliability, architectures, classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pac_core.figures import INK, canvas
from pac_vision.class_results import OURS, PAPER
from pac_vision.size_figures import COLOURS, SIZE, titled

# From large to small, so that equal sizes do not hide each other.
MARKS: dict[str, dict[str, Any]] = {
    "D": {"marker": "s", "markersize": 11, "linewidth": 3.6, "alpha": 0.6},
    PAPER: {"marker": "o", "markersize": 8, "linewidth": 2.2},
    OURS: {"marker": "D", "markersize": 4, "linewidth": 1},
}


def error_bars(errors: Mapping[str, tuple[float, tuple[float, float]]], epsilon: float, title: str) -> Any:
    """Measured error of each kind of sets with its exact interval, against the promise."""
    figure, axes = canvas(6.6, 4.0)
    for i, (name, (error, (low, high))) in enumerate(errors.items()):
        axes.bar(i, error, color=COLOURS.get(name.split("\n")[0], INK[2]), alpha=0.6, width=0.55)
        axes.errorbar(i, error, [[error - low], [high - error]], color="black", capsize=4, linewidth=1.2)
        axes.annotate(
            f"{error:.4f}", (i, high), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9
        )
    axes.axhline(epsilon, color="black", linestyle=":", label=f"epsilon = {epsilon:g}")
    axes.set_xticks(range(len(errors)), list(errors))
    axes.set_ylim(0, 1.25 * max(epsilon, *(high for _, (_, high) in errors.values())))
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("share of test images whose set misses\n(whisker: exact 98% interval)", fontsize=9)
    titled(axes, title)
    axes.legend(frameon=False, loc="upper right")
    return figure


def reliability_diagram(rows: Sequence[Mapping[str, Any]], errors: Mapping[str, float], title: str) -> Any:
    """Accuracy against confidence, a panel for each forecast, over the number of images in each bin.

    rows: of `reliability_rows`
    errors: the calibration error (ECE) of each forecast
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.7 * len(errors) + 0.4, 4.7), dpi=150, layout="constrained")
    panels = figure.subplots(
        2, len(errors), sharex=True, sharey="row", squeeze=False, gridspec_kw={"height_ratios": (3.2, 1)}
    )
    for column, (name, error) in enumerate(errors.items()):
        mine = [row for row in rows if row["forecast"] == name]
        upper, lower = panels[0][column], panels[1][column]
        width, some = mine[0]["to"] - mine[0]["from"], [row for row in mine if row["images"]]
        middle = np.array([row["from"] + width / 2 for row in some])
        accuracy = np.array([row["accuracy"] for row in some])
        ends = np.array([[row["accuracy, low"], row["accuracy, high"]] for row in some]).T
        upper.plot([0, 1], [0, 1], color="black", linestyle=":", linewidth=1.2)
        upper.bar(middle, accuracy, width=0.92 * width, color=INK[0], alpha=0.55, label="accuracy")
        upper.errorbar(
            middle, accuracy, abs(ends - accuracy), color=INK[0], linestyle="none", linewidth=1, capsize=2
        )
        said = [row["confidence"] for row in some]
        upper.plot(
            middle, said, color=INK[1], marker="_", markersize=11, linestyle="none", label="confidence"
        )
        upper.set_title(f"{name}: ECE {error:.3f}", loc="left", fontsize=10)
        upper.set_ylim(0, 1.03)
        lower.bar(middle, [row["images"] for row in some], width=0.92 * width, color="#8a8a8a")
        lower.set_xlabel("confidence of the prediction")
        lower.set_xlim(0, 1)
        for axes in (upper, lower):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
    panels[0][0].set_ylabel("share predicted correctly\n(whisker: exact 98% interval)", fontsize=9)
    panels[1][0].set_ylabel("test images", fontsize=9)
    handles, words = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, words, frameon=False, loc="outside lower center", ncols=2, fontsize=9)
    figure.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return figure


def size_against_error(
    points: Mapping[str, tuple[float, tuple[float, float], Mapping[str, float]]], title: str
) -> Any:
    """Mean set size against top-1 error, a point for each classifier and kind of sets.

    points: by classifier, its error, the exact interval of that, and the mean size of each kind of sets
    """
    figure, axes = canvas(6.6, 4.4)
    ordered = dict(sorted(points.items(), key=lambda item: item[1][0]))
    errors = np.array([error for error, _, _ in ordered.values()])
    for kind in next(iter(points.values()))[2]:
        sizes = [own[kind] for _, _, own in ordered.values()]
        axes.plot(errors, sizes, color=COLOURS[kind], label=kind, fillstyle="none", **MARKS[kind])
    top, low = (pick(size for *_, own in points.values() for size in own.values()) for pick in (max, min))
    axes.set_ylim(max(0, low - 0.5 * (top - low) - 0.05 * top), top + 1.1 * (top - low) + 0.25 * top)
    floor, ceiling = axes.get_ylim()
    ends = np.array([interval for _, interval, _ in ordered.values()]).T
    heights = floor + (ceiling - floor) * (0.03 + 0.035 * np.arange(len(errors)))
    axes.errorbar(
        errors, heights, xerr=abs(ends - errors), color="#8a8a8a", linestyle="none", capsize=2, elinewidth=1,
        marker="|", label="exact 98% interval of the error",
    )  # fmt: skip
    left, right = axes.get_xlim()
    places = _apart(errors, 0.035 * (right - left))
    for (name, (error, _, own)), place in zip(ordered.items(), places, strict=True):
        axes.annotate(
            name, (error, max(own.values())), xytext=(place, ceiling), rotation=90, ha="center", va="top",
            fontsize=8.5, arrowprops={"arrowstyle": "-", "color": "#bbbbbb", "shrinkB": 4},
        )  # fmt: skip
    axes.set_xlabel("top-1 error")
    axes.set_ylabel(f"mean number of {SIZE}")
    figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=9)
    titled(axes, title)
    return figure


def _apart(values: Any, least: float) -> list[float]:
    """Ascending values, moved as little to the right as leaves `least` between two."""
    places: list[float] = []
    for value in values.tolist():
        places.append(max(value, places[-1] + least) if places else value)
    return places


def class_coverage(rows: Sequence[Mapping[str, Any]], epsilon: float, title: str) -> Any:
    """How the classes are covered: each with its exact interval where they are few, else how many how well.

    rows: of `coverage_rows`
    """
    figure, axes = canvas(7.0, 4.2)
    if len(rows) <= 40:
        ends = np.array([[row["coverage"] - row["low"], row["high"] - row["coverage"]] for row in rows]).T
        places = np.arange(len(rows))
        values = [row["coverage"] for row in rows]
        axes.errorbar(places, values, ends, color=INK[0], marker="o", linestyle="none", capsize=3)
        axes.set_xticks(places, [row["class"] for row in rows], rotation=45, ha="right", fontsize=8)
        axes.axhline(1 - epsilon, color="black", linestyle=":", label=f"1 - epsilon = {1 - epsilon:g}")
        axes.set_ylabel("share of the class's test images covered\n(whisker: exact 98% interval)", fontsize=9)
    else:
        _missed_per_class(axes, rows)
    axes.legend(frameon=False)
    titled(axes, title)
    return figure


def _missed_per_class(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Classes by the number of images missed, beside what equal errors in all classes would give."""
    from scipy.stats import binom

    images = np.array([row["images"] for row in rows])
    missed = images - np.array([row["covered"] for row in rows])
    most = int(missed.max())
    counts = np.bincount(missed, minlength=most + 1)
    share = missed.sum() / images.sum()
    equal = [float(np.sum(binom.pmf(k, images, share))) for k in range(most + 1)]
    places = np.arange(most + 1)
    axes.bar(places - 0.2, counts, width=0.38, color=INK[0], alpha=0.65, label="classes found")
    axes.bar(places + 0.2, equal, width=0.38, color="#b5b5b5", label="if every class had the same error")
    for place, count, expected in zip(places, counts, equal, strict=True):
        for x, text in ((place - 0.2, f"{count}"), (place + 0.2, f"{expected:.3g}")):
            axes.annotate(
                text, (x, max(count if x < place else expected, 0.5)), xytext=(0, 2),
                textcoords="offset points",
                ha="center", fontsize=8,
            )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(0.5, 3 * max(counts.max(), max(equal)))
    axes.set_xticks(places)
    few, many = int(images.min()), int(images.max())
    axes.set_xlabel(f"images of a class that its sets miss (of {few} to {many} in the test part)")
    axes.set_ylabel("classes")
