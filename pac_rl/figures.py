"""Figures of trajectory tubes; matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import ConfidenceSets, InvalidInput
from pac_core.figures import INK, canvas

SIZE = "size of the tube (half-diagonal of its box, mean over steps)"
STEP_SIZE = "size at the step (half-diagonal of the box)"
CLOSE_UP = 30
"""Last steps of an episode that are drawn larger."""

Sizes = NDArray[np.float64]


def size_boxes(sizes: Mapping[str, Sizes], title: str) -> Any:
    """A box per name: median and quartiles, whiskers to the smallest and largest tube."""
    figure, axes = canvas(7.0, 4.2)
    draw_boxes(axes, sizes)
    axes.set_ylabel(SIZE, fontsize=9)
    axes.set_title(title, loc="left", fontsize=10.5)
    return figure


def draw_boxes(axes: Any, sizes: Mapping[str, Sizes]) -> None:
    """The boxes of `size_boxes` on axes that exist."""
    made = axes.boxplot(list(sizes.values()), whis=(0, 100), widths=0.5, patch_artist=True)
    for patch, ink in zip(made["boxes"], INK * len(sizes), strict=False):
        patch.set(facecolor=ink, alpha=0.55)
    for line in made["medians"]:
        line.set(color="black", linewidth=1.4)
    axes.set_xticks(range(1, len(sizes) + 1), list(sizes))
    axes.tick_params(axis="x", length=0)
    _log(axes)


def step_lines(steps: Mapping[str, Sizes], title: str, *, label: str = STEP_SIZE) -> Any:
    """A line per name over the steps 1..H."""
    figure, axes = canvas(7.0, 4.2)
    draw_steps(axes, steps)
    axes.set_xlabel("step t")
    axes.set_ylabel(label, fontsize=9)
    axes.set_title(title, loc="left", fontsize=10.5)
    axes.legend(frameon=False)
    return figure


def draw_steps(axes: Any, steps: Mapping[str, Sizes]) -> None:
    """The lines of `step_lines` on axes that exist."""
    for (name, sizes), ink in zip(steps.items(), INK * len(steps), strict=False):
        axes.plot(np.arange(1, len(sizes) + 1), sizes, color=ink, label=name, marker="o", markersize=3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    _log(axes)


def level_lines(
    sizes: Mapping[str, Mapping[float, Sizes]], name: str, title: str, *, log_x: bool = False
) -> Any:
    """Median size against epsilon or delta, with the range of nine in ten tubes."""
    figure, axes = canvas(7.0, 4.2)
    for (label, at), ink in zip(sizes.items(), INK * len(sizes), strict=False):
        values = list(at)
        axes.plot(values, [np.median(at[value]) for value in values], color=ink, marker="o", label=label)
        ends = [np.quantile(at[value], (0.05, 0.95)) for value in values]
        axes.fill_between(values, *zip(*ends, strict=True), color=ink, alpha=0.12)
    if log_x:
        axes.set_xscale("log")
    _log(axes)
    axes.set_xlabel(name)
    axes.set_ylabel(SIZE + "\n(line: median, band: nine in ten tubes)", fontsize=8)
    axes.set_title(title, loc="left", fontsize=10.5)
    axes.legend(frameon=False)
    return figure


def grid(rows: Sequence[float], columns: Sequence[float], panel: Any, title: str, y_label: str) -> Any:
    """A panel for each epsilon (down) and delta (across), all with the same axes."""
    from matplotlib.figure import Figure

    height = 2.0 * len(rows) + 0.9
    figure = Figure(figsize=(3.0 * len(columns) + 0.8, height), dpi=120)
    # Margins by hand: fifteen panels would keep the layout engine busy for seconds.
    margins = {"left": 0.1, "right": 0.99, "bottom": 0.5 / height, "top": 1 - 0.7 / height, "hspace": 0.3}
    shared: Any = {"sharex": True, "sharey": True, "squeeze": False}
    axes = figure.subplots(len(rows), len(columns), gridspec_kw=margins | {"wspace": 0.06}, **shared)
    for i, epsilon in enumerate(rows):
        for j, delta in enumerate(columns):
            panel(axes[i][j], epsilon, delta)
            axes[i][j].set_title(f"epsilon {epsilon:g}, delta {delta:g}", fontsize=9)
            axes[i][j].spines[["top", "right"]].set_visible(False)
            axes[i][j].grid(alpha=0.25)
    figure.suptitle(title, fontsize=11)
    figure.supylabel(y_label, fontsize=9.5, x=0.01)
    return figure


def error_bars(errors: Mapping[str, tuple[float, tuple[float, float]]], epsilon: float, title: str) -> Any:
    """Measured error of each name with its exact interval, against the promise."""
    figure, axes = canvas(7.0, 4.2)
    for i, ((error, (low, high)), ink) in enumerate(zip(errors.values(), INK * len(errors), strict=False)):
        axes.bar(i, max(error, 1e-9), color=ink, alpha=0.6, width=0.55)
        axes.errorbar(i, error, [[error - low], [high - error]], color="black", capsize=4)
        clear = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.annotate(f"{error:.4f}", (i, high), ha="center", va="bottom", fontsize=9, bbox=clear)
    axes.axhline(epsilon, color="black", linestyle=":", label=f"promised error, epsilon = {epsilon:g}")
    axes.set_xticks(range(len(errors)), list(errors))
    _log(axes)
    axes.set_ylim(top=3)
    axes.set_ylabel("share of test rollouts outside their tube\n(whisker: exact 98% interval)", fontsize=9)
    axes.set_title(title, loc="left", fontsize=10.5)
    axes.legend(frameon=False)
    return figure


def _log(axes: Any) -> None:
    """A logarithmic scale with numbers that can be read off, even within one power of ten."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axes.set_yscale("log", nonpositive="clip")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def tubes_over_time(
    tubes: Mapping[str, ConfidenceSets],
    truth: NDArray[np.float64],
    columns: Mapping[int, str],
    rows: Sequence[int],
    title: str,
) -> Any:
    """Tubes around real trajectories: a panel for each unit (down) and number of the state (across).

    tubes: by name; truth: `[B, H, D]`; columns: which numbers, with their labels; rows: which units
    """
    from matplotlib.figure import Figure

    if not tubes:
        raise InvalidInput("tubes must be one or more, got none")
    figure = Figure(figsize=(3.6 * len(columns), 2.3 * len(rows) + 0.6), dpi=130, layout="constrained")
    panels = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey="col")
    time = np.arange(1, truth.shape[1] + 1)
    for line, unit in zip(panels, rows, strict=True):
        for axes, (column, label) in zip(line, columns.items(), strict=True):
            for (name, tube), ink in zip(tubes.items(), INK, strict=False):
                lower, upper = (corner[unit, :, column] for corner in tube.box())
                axes.fill_between(time, lower, upper, color=ink, alpha=0.25, label=name)
                axes.plot(time, lower, color=ink, linewidth=0.8)
                axes.plot(time, upper, color=ink, linewidth=0.8)
            axes.plot(time, truth[unit, :, column], color="black", linewidth=1.6, label="what happened")
            axes.set_ylabel(label, fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
    for axes in panels[-1]:
        axes.set_xlabel("step t")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(title, fontsize=11)
    return figure


def returns_and_violations(
    guards: Mapping[str, tuple[float, float, tuple[float, float]]],
    title: str,
    *,
    allowed: float | None = None,
) -> Any:
    """Mean return against the share of episodes with a violation, a point for each guard.

    guards: by name, the mean return, the share, and the ends of the share's exact interval
    allowed: a share to draw a line at
    """
    figure, axes = canvas(8.4, 4.2)
    for i, (name, (earned, share, (low, high))) in enumerate(guards.items()):
        # Rings within rings: guards of the same return and share stay visible, and the names stand apart.
        axes.errorbar(
            earned,
            share,
            [[share - low], [high - share]],
            color=INK[i % len(INK)],
            marker="o",
            markersize=5 + 4 * (len(guards) - 1 - i),
            markerfacecolor="none",
            markeredgewidth=2,
            capsize=4,
            label=f"{name}: {earned:.0f}, {share:.1%}",
        )
    if allowed is not None:
        axes.axhline(allowed, color="black", linestyle=":", label=f"{allowed:.0%} of the episodes")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9, labelspacing=1.2)
    axes.set_ylim(-0.06, 1.06)
    axes.margins(x=0.15)
    axes.set_xlabel("mean return of an episode")
    axes.set_ylabel("episodes with a violation\n(whisker: exact 95% interval)", fontsize=9)
    axes.set_title(title, loc="left", fontsize=10.5)
    return figure


def guarded_over_time(
    panels: Mapping[str, tuple[Sizes, Sizes | None]],
    bounds: Sequence[float],
    label: str,
    title: str,
    *,
    checked: int | None = None,
) -> Any:
    """A number of the state over an episode, a panel for each controller, with the limit.

    panels: by name, the number `[T]` and the ends `[2, T, H]` of the tubes of the plans that acted, or None;
        tubes are drawn one behind the other, so that they do not cover each other
    bounds: where the limits are
    checked: how many steps of a plan the guard checked, all by default; the others, which later plans
        replace, are left out
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(panels), 3.9), dpi=130, layout="constrained")
    for axes, (name, (values, tubes)) in zip(
        figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels.items(), strict=True
    ):
        _episode(axes, values, tubes, bounds, checked)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if tubes is not None and len(values) > CLOSE_UP:
            close = axes.inset_axes((0.3, 0.62, 0.68, 0.36))
            _episode(close, values, tubes, bounds, checked)
            near = 0.2 * max(float(np.nanmax(values) - np.nanmin(values)), 1e-9)
            ends = (len(values) - CLOSE_UP, len(values))
            close.set(xlim=ends, ylim=(bounds[0] - near, bounds[0] + near / 2))
            close.tick_params(labelsize=7)
            close.set_title(f"the last {CLOSE_UP} steps, near the limit", fontsize=8, loc="left")
    figure.axes[0].set_ylabel(label)
    handles, labels = figure.axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=11)
    return figure


def _episode(
    axes: Any, values: Sizes, tubes: Sizes | None, bounds: Sequence[float], checked: int | None
) -> None:
    """One controller's panel: the tubes behind what happened, and the limits."""
    time = np.arange(1, len(values) + 1)
    if tubes is not None:
        horizon, floor = checked or tubes.shape[2], np.nanmin(values)
        for t in range(0, len(values), horizon):
            ends = tubes[:, t, :horizon]
            style: Any = {"edges": t + 0.5 + np.arange(horizon + 1), "color": INK[0]}
            told = "tube of a plan, its checked steps" if t == 0 else None
            # An open end is drawn to the floor.
            lower = np.maximum(ends[0], floor)
            axes.stairs(ends[1], baseline=lower, fill=True, alpha=0.15, label=told, **style)
            axes.stairs(ends[1], baseline=None, linewidth=0.8, **style)
    over = np.any([values > bound if bound > 0 else values < bound for bound in bounds], axis=0)
    axes.plot(time, values, color="black", linewidth=1, marker=".", markersize=3, label="what happened")
    axes.plot(time[over], values[over], ".", color=INK[1], label="over the limit")
    for i, bound in enumerate(bounds):
        axes.axhline(bound, color=INK[1], linestyle="--", linewidth=1, label=None if i else "limit")
