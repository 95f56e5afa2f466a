"""Figures of tracking boxes; matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.figures import INK, canvas
from pac_vision.track_units import UnitErrors

Floats = NDArray[np.float64]
SIZE = "half-diagonal of the set's box (4 dimensions), pixels"


def size_boxes(sizes: Mapping[str, Floats], title: str) -> Any:
    """A box per name: median and quartiles, whiskers to the smallest and largest set that is not empty."""
    figure, axes = canvas(7.0, 4.4)
    made = axes.boxplot(
        [size[size > 0] for size in sizes.values()], whis=(0, 100), widths=0.5, patch_artist=True
    )
    for patch, ink in zip(made["boxes"], INK * len(sizes), strict=False):
        patch.set(facecolor=ink, alpha=0.55)
    for line in made["medians"]:
        line.set(color="black", linewidth=1.4)
    axes.set_xticks(range(1, len(sizes) + 1), list(sizes))
    axes.tick_params(axis="x", length=0)
    _finish(axes, title)
    return figure


def level_lines(sizes: Mapping[float, Floats], name: str, title: str, *, log_x: bool = False) -> Any:
    """Median size against epsilon or delta, with the range of nine in ten sets."""
    figure, axes = canvas(6.4, 4.2)
    values = sorted(sizes)
    ends = [np.quantile(sizes[value], (0.05, 0.95)) for value in values]
    axes.fill_between(values, *zip(*ends, strict=True), color=INK[0], alpha=0.15, label="nine in ten sets")
    axes.plot(values, [np.median(sizes[v]) for v in values], color=INK[0], marker="o", label="median")
    if log_x:
        axes.set_xscale("log")
    else:
        axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.set_xlabel(name)
    _finish(axes, title)
    axes.legend(frameon=False)
    return figure


def unit_histograms(found: Mapping[str, UnitErrors], title: str) -> Any:
    """How many of the videos left over miss more than their share, draw by draw, for both units."""
    figure, axes = canvas(7.2, 4.4)
    level, gamma = found["sequence"].level, found["sequence"].gamma
    left = found["sequence"].left
    most = max(float(one.videos.max()) for one in found.values())
    edges = (np.arange(round(most * left) + 2) - 0.5) / left  # a bar for each number of videos
    for (unit, one), ink in zip(found.items(), (INK[1], INK[0]), strict=False):
        label = f"calibrated on {unit}s: mean {one.videos.mean():.2f}"
        axes.hist(one.videos, edges, color=ink, alpha=0.6, label=label)
    axes.axvline(level.epsilon, color="black", linestyle="--")
    axes.text(level.epsilon, axes.get_ylim()[1] * 0.97, f" promised {level.epsilon:g}", va="top", fontsize=9)
    axes.set_xlabel(f"share of the videos left over that miss more than {gamma:.0%} of their frames")
    axes.set_ylabel("random splits")
    axes.set_title(title, loc="left", fontsize=10.5)
    axes.legend(frameon=False, loc="upper right")
    return figure


def _finish(axes: Any, title: str) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter("{x:,g}" if high < 10 * low else "")  # one decade has one label of its own
    axes.set_ylabel(SIZE, fontsize=8.5)
    axes.set_title(title, loc="left", fontsize=10)
