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
    """The true error of each draw, for both units, each against its own promise; broken ones are red."""
    figure, axes = canvas(9.6, 4.4)
    axes.remove()
    panels = figure.subplots(1, len(found), sharey=True)
    for panel, (unit, one) in zip(panels, found.items(), strict=True):
        panel.spines[["top", "right"]].set_visible(False)
        name, limit = "video" if unit == "sequence" else unit, one.level.epsilon
        # No bar holds kept and broken promises; a hair above, because just epsilon is kept.
        edges = limit * (np.arange(max(one.true.max() / limit, 1.5) * 8 + 2) / 8 + 1e-9)
        edges[0] = 0
        kept = one.true <= limit
        panel.hist(one.true[kept], edges, color=INK[0], alpha=0.75)
        panel.hist(one.true[~kept], edges, color=INK[1], alpha=0.85)
        panel.axvline(limit, color="black", linestyle="--")
        beside = {"transform": panel.get_xaxis_transform(), "va": "top", "fontsize": 9}
        panel.text(limit, 0.98, f"  promised: at most {limit:g}", **beside)
        broken = one.breaches / len(one.true)
        panel.set_title(
            f"calibrated on {name}s: broken in {broken:.1%} of the draws\n"
            f"(promised: in at most {one.level.delta:.0%})",
            loc="left",
            fontsize=10,
        )
        many = f"videos that miss over {one.gamma:.0%} of their frames"
        panel.set_xlabel(f"true share of {many if name == 'video' else 'frames missed'}", fontsize=9.5)
    panels[0].set_ylabel("draws")
    figure.suptitle(f"{title}; red: the promise is broken", x=0.01, ha="left", fontsize=10.5)
    return figure


def _finish(axes: Any, title: str) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter("{x:,g}" if high < 10 * low else "")  # one decade has one label of its own
    axes.set_ylabel(SIZE, fontsize=8.5)
    axes.set_title(title, loc="left", fontsize=10)
