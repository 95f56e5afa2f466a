"""Figures of tubes for a report or a notebook; matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pac_core import InvalidInput
from pac_core.plots import INK, canvas
from pac_core.sets import ConfidenceSets
from pac_rl.systems import Floats

CLOSE_UP = 30
"""Last steps of an episode that are drawn larger."""


def plot_tubes(
    tubes: Mapping[str, ConfidenceSets],
    truth: Floats,
    columns: Mapping[int, str],
    rows: Sequence[int],
    title: str = "",
) -> Any:
    """Tubes around real trajectories: a panel for each unit (down) and number of the state (across).

    tubes: by name; truth: `[B, H, D]`; columns: which numbers, with their labels; rows: which units

    >>> from pac_core import GaussianForecast, PACLevel, fit_tube
    >>> walk = np.random.default_rng(0).normal(size=(300, 5, 2)).cumsum(axis=1)
    >>> still = GaussianForecast(0 * walk[:100], 0 * walk[:100] + 1)
    >>> tube = fit_tube(still, walk[:100], still, walk[100:200], PACLevel(0.1, 0.1)).tube(still)
    >>> figure = plot_tubes({"box": tube}, walk[200:], {0: "x, m", 1: "y, m"}, rows=[0, 7])
    >>> len(figure.axes)
    4
    """
    from matplotlib.figure import Figure

    if not tubes:
        raise InvalidInput("tubes must be one or more, got none")
    size = (3.6 * len(columns), 2.3 * len(rows) + 0.6)
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    panels = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey="col")
    time = np.arange(1, truth.shape[1] + 1)
    for line, unit in zip(panels, rows, strict=True):
        for axes, (column, label) in zip(line, columns.items(), strict=True):
            for (name, tube), ink in zip(tubes.items(), INK, strict=False):
                lower, upper = (corner[unit, :, column] for corner in tube.box())
                axes.fill_between(time, lower, upper, color=ink, alpha=0.25, label=name)
                axes.plot(time, np.stack([lower, upper], axis=1), color=ink, linewidth=0.8)
            axes.plot(time, truth[unit, :, column], color="black", linewidth=1.6, label="what happened")
            axes.set_ylabel(label, fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
    for axes in panels[-1]:
        axes.set_xlabel("step t")
    return _finish(figure, panels[0][0], title, fontsize=10)


def plot_step_sizes(steps: Mapping[str, Floats], title: str = "", *, axes: Any = None) -> Any:
    """A line for each name: the size of its tubes at each step, `[H]`, on a logarithmic axis.

    axes: to draw on, without labels and a figure of their own

    >>> figure = plot_step_sizes({"box": np.array([1.0, 1.5, 2.2]), "joint": np.array([4.0, 6.0, 9.0])})
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['box', 'joint']
    """
    figure, panel = (axes.figure, axes) if axes is not None else canvas(7.0, 4.2)
    for (name, sizes), ink in zip(steps.items(), INK * len(steps), strict=False):
        panel.plot(np.arange(1, len(sizes) + 1), sizes, color=ink, label=name, marker="o", markersize=3)
    panel.xaxis.get_major_locator().set_params(integer=True)
    log_axis(panel)
    if axes is None:
        panel.set_xlabel("step t")
        panel.set_ylabel("size at the step (half-diagonal of the box)", fontsize=9)
        panel.set_title(title, loc="left", fontsize=10.5)
        panel.legend(frameon=False)
    return figure


def plot_episodes(
    panels: Mapping[str, tuple[Floats, Floats | None]],
    bounds: Sequence[float],
    label: str,
    title: str = "",
    *,
    checked: int | None = None,
) -> Any:
    """A number of the state over an episode, a panel for each controller, with its limit.

    panels: by name, the number `[T]` and the ends `[2, T, H]` of the tubes of the plans that acted, or None;
        tubes are drawn one behind the other, so that they do not cover each other
    bounds: where the limits are
    checked: how many steps of a plan the guard checked, all by default; the others, which later plans
        replace, are left out

    >>> speed = np.linspace(0, 3, 8)
    >>> tubes = np.stack([speed[:, None] - [0.1, 0.2], speed[:, None] + [0.1, 0.2]])
    >>> figure = plot_episodes({"guarded": (speed, tubes)}, [3.2], "speed, m/s")
    >>> len(figure.axes[0].patches)  # four tubes, each filled and with its upper end
    8
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(panels), 3.9), dpi=130, layout="constrained")
    row = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (name, (values, tubes)) in zip(row, panels.items(), strict=True):
        _draw_episode(axes, values, tubes, bounds, checked)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if tubes is not None and len(values) > CLOSE_UP:
            close = axes.inset_axes((0.3, 0.62, 0.68, 0.36))
            _draw_episode(close, values, tubes, bounds, checked)
            near = 0.2 * max(float(np.nanmax(values) - np.nanmin(values)), 1e-9)
            ends = (len(values) - CLOSE_UP, len(values))
            close.set(xlim=ends, ylim=(bounds[0] - near, bounds[0] + near / 2))
            close.tick_params(labelsize=7)
            close.set_title(f"the last {CLOSE_UP} steps, near the limit", fontsize=8, loc="left")
    row[0].set_ylabel(label)
    return _finish(figure, row[-1], title, fontsize=8)


def _draw_episode(axes: Any, values: Any, tubes: Any, bounds: Sequence[float], checked: int | None) -> None:
    """One controller's panel: the tubes behind what happened, and the limits."""
    time = np.arange(1, len(values) + 1)
    if tubes is not None:
        horizon, floor = checked or tubes.shape[2], np.nanmin(values)
        for t in range(0, len(values), horizon):
            ends = tubes[:, t, :horizon]
            style: Any = {"edges": t + 0.5 + np.arange(horizon + 1), "color": INK[0]}
            named = "tube of a plan, its checked steps" if t == 0 else None
            lower = np.maximum(ends[0], floor)  # an open end is drawn to the floor
            axes.stairs(ends[1], baseline=lower, fill=True, alpha=0.15, label=named, **style)
            axes.stairs(ends[1], baseline=None, linewidth=0.8, **style)
    over = np.any([values > bound if bound > 0 else values < bound for bound in bounds], axis=0)
    axes.plot(time, values, color="black", linewidth=1, marker=".", markersize=3, label="what happened")
    axes.plot(time[over], values[over], ".", color=INK[1], label="over the limit")
    for i, bound in enumerate(bounds):
        axes.axhline(bound, color=INK[1], linestyle="--", linewidth=1, label=None if i else "limit")


def _finish(figure: Any, panel: Any, title: str, **style: Any) -> Any:
    """Puts the title above the figure, and below it what the lines of a panel mean."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, **style)
    figure.suptitle(title, fontsize=11)
    return figure


def log_axis(axes: Any) -> None:
    """A logarithmic scale with numbers that can be read off, even within one power of ten."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axes.set_yscale("log", nonpositive="clip")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
