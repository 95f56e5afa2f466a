"""Figures of the experiments: sizes as boxes, against levels and in grids; errors with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pac_core.plots import INK, canvas
from pac_rl.plots import log_axis

SIZE = "size of the tube (half-diagonal of its box, mean over steps)"


def new_panel(title: str, label: str, width: float = 7.0) -> tuple[Figure, Any]:
    """A figure of one panel."""
    figure, axes = canvas(width, 4.2)
    axes.set_title(title, loc="left", fontsize=10.5)
    axes.set_ylabel(label, fontsize=9)
    return figure, axes


def size_boxes(sizes: Mapping[str, np.ndarray], title: str = "", *, axes: Any = None) -> Figure:
    """A box per name: median and quartiles, whiskers to the smallest and largest tube."""
    figure, panel = new_panel(title, SIZE) if axes is None else (axes.figure, axes)
    made = panel.boxplot(list(sizes.values()), whis=(0, 100), widths=0.5, patch_artist=True)
    for patch, ink in zip(made["boxes"], INK * len(sizes), strict=False):
        patch.set(facecolor=ink, alpha=0.55)
    for line in made["medians"]:
        line.set(color="black", linewidth=1.4)
    panel.set_xticks(range(1, len(sizes) + 1), list(sizes))
    panel.tick_params(axis="x", length=0)
    log_axis(panel)
    return figure


def level_lines(sizes: Mapping[str, Mapping[float, np.ndarray]], name: str, title: str) -> Figure:
    """Median size against epsilon or delta, with the range of nine in ten tubes."""
    figure, axes = new_panel(title, SIZE + "\n(line: median, band: nine in ten tubes)")
    for (label, at), ink in zip(sizes.items(), INK * len(sizes), strict=False):
        values = list(at)
        axes.plot(values, [np.median(at[value]) for value in values], color=ink, marker="o", label=label)
        ends = [np.quantile(at[value], (0.05, 0.95)) for value in values]
        axes.fill_between(values, *zip(*ends, strict=True), color=ink, alpha=0.12)
    log_axis(axes)
    axes.set_xlabel(name)
    axes.legend(frameon=False)
    return figure


def level_grid(
    levels: Mapping[tuple[float, float], Any], draw: Callable[..., Any], title: str, label: str
) -> Figure:
    """A panel for each epsilon (down) and delta (across), all with the same axes; `draw(axes, content)`."""
    rows, columns = (list(dict.fromkeys(values)) for values in zip(*levels, strict=True))
    height = 2.0 * len(rows) + 0.9
    figure = Figure(figsize=(3.0 * len(columns) + 0.8, height), dpi=120)
    # Margins by hand: fifteen panels would keep the layout engine busy for seconds.
    margins = {"left": 0.1, "right": 0.99, "bottom": 0.5 / height, "top": 1 - 0.7 / height, "hspace": 0.3}
    shared: Any = {"sharex": True, "sharey": True, "squeeze": False}
    panels = figure.subplots(len(rows), len(columns), gridspec_kw=margins | {"wspace": 0.06}, **shared)
    for axes, ((epsilon, delta), content) in zip(panels.flat, levels.items(), strict=True):
        if content:
            draw(content, axes=axes)
        else:
            axes.text(0.5, 0.5, "too few rollouts", ha="center", transform=axes.transAxes, fontsize=9)
        axes.set_title(f"epsilon {epsilon:g}, delta {delta:g}", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.suptitle(title, fontsize=11)
    figure.supylabel(label, fontsize=9.5, x=0.01)
    return figure


def error_bars(errors: Mapping[str, tuple[float, tuple[float, float]]], epsilon: float, title: str) -> Figure:
    """Measured error of each name with its exact interval, against the promise."""
    figure, axes = new_panel(
        title, "share of test rollouts outside their tube\n(whisker: exact 98% interval)"
    )
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for i, ((error, (low, high)), ink) in enumerate(zip(errors.values(), INK * len(errors), strict=False)):
        axes.bar(i, max(error, 1e-9), color=ink, alpha=0.6, width=0.55)
        axes.errorbar(i, error, [[error - low], [high - error]], color="black", capsize=4)
        axes.annotate(f"{error:.4f}", (i, high), ha="center", va="bottom", fontsize=9, bbox=clear)
    axes.axhline(epsilon, color="black", linestyle=":", label=f"promised error, epsilon = {epsilon:g}")
    axes.set_xticks(range(len(errors)), list(errors))
    log_axis(axes)
    axes.set_ylim(top=3)
    axes.legend(frameon=False)
    return figure


def returns_and_violations(
    guards: Mapping[str, tuple[float, float, tuple[float, float]]], title: str, *, allowed: float
) -> Figure:
    """Mean return against the share of episodes with a violation, a point for each guard.

    guards: by name, the mean return, the share, and the ends of the share's exact interval
    allowed: a share to draw a line at
    """
    figure, axes = new_panel(title, "episodes with a violation\n(whisker: exact 95% interval)", 8.4)
    for i, (name, (earned, share, (low, high))) in enumerate(guards.items()):
        # Rings within rings: guards of the same return and share stay visible, and the names stand apart.
        ring: Any = {"marker": "o", "markersize": 5 + 4 * (len(guards) - 1 - i), "markerfacecolor": "none"}
        ring |= {"markeredgewidth": 2, "capsize": 4, "color": INK[i % len(INK)]}
        ends = [[share - low], [high - share]]
        axes.errorbar(earned, share, ends, label=f"{name}: {earned:.0f}, {share:.1%}", **ring)
    axes.axhline(allowed, color="black", linestyle=":", label=f"{allowed:.0%} of the episodes")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9, labelspacing=1.2)
    axes.set_ylim(-0.06, 1.06)
    axes.margins(x=0.15)
    axes.set_xlabel("mean return of an episode")
    return figure
