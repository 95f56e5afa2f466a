"""Tubes around trajectories, their sizes step by step, and episodes with the tubes of their plans."""

import numpy as np
from common import INK, canvas, log_axis, panels

CLOSE_UP = 30
"""Last steps of an episode that are drawn larger."""


def plot_tubes(tubes, truth, columns, rows, title):
    """A panel for each unit (down) and number of the state (across).

    tubes: by name; truth: `[B, H, D]`; columns: which numbers, with their labels; rows: which units
    """
    size = (3.6 * len(columns), 2.3 * len(rows) + 0.6)
    figure, grid = panels(len(rows), len(columns), size, sharex=True, sharey="col")
    time = np.arange(1, truth.shape[1] + 1)
    for line, unit in zip(grid, rows, strict=True):
        for axes, (column, label) in zip(line, columns.items(), strict=True):
            for (name, tube), ink in zip(tubes.items(), INK, strict=False):
                lower, upper = (corner[unit, :, column] for corner in tube.box())
                axes.fill_between(time, lower, upper, color=ink, alpha=0.25, label=name)
                axes.plot(time, np.stack([lower, upper], axis=1), color=ink, linewidth=0.8)
            axes.plot(time, truth[unit, :, column], color="black", linewidth=1.6, label="what happened")
            axes.set_ylabel(label, fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("step t")
    return _finish(figure, grid[0][0], title, fontsize=10)


def plot_step_sizes(steps, title="", *, axes=None):
    """A line for each name: the size of its tubes at each step, `[H]`, on axes or in a figure of its own."""
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


def plot_episodes(episodes, bounds, label, title, *, checked):
    """A number of the state over an episode, a panel for each controller, with its limit.

    episodes: by name, the number `[T]` and the ends `[2, T, H]` of the tubes of plans that acted, or None;
        tubes are drawn one behind the other, so that they do not cover each other
    bounds: where the limits are
    checked: how many steps of a plan the guard checked; the others, which later plans replace, are left out
    """
    figure, [row] = panels(1, len(episodes), (4.6 * len(episodes), 3.9), sharey=True)
    for axes, (name, (values, tubes)) in zip(row, episodes.items(), strict=True):
        _draw_episode(axes, values, tubes, bounds, checked)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel("step")
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


def _draw_episode(axes, values, tubes, bounds, checked):
    """One controller's panel: the tubes behind what happened, and the limits."""
    time = np.arange(1, len(values) + 1)
    for t in range(0, len(values), checked) if tubes is not None else ():
        ends = tubes[:, t, :checked]
        style = {"edges": t + 0.5 + np.arange(checked + 1), "color": INK[0]}
        named = "tube of a plan, its checked steps" if t == 0 else None
        lower = np.maximum(ends[0], np.nanmin(values))  # an open end is drawn to the floor
        axes.stairs(ends[1], baseline=lower, fill=True, alpha=0.15, label=named, **style)
        axes.stairs(ends[1], baseline=None, linewidth=0.8, **style)
    over = np.any([values > bound if bound > 0 else values < bound for bound in bounds], axis=0)
    axes.plot(time, values, color="black", linewidth=1, marker=".", markersize=3, label="what happened")
    axes.plot(time[over], values[over], ".", color=INK[1], label="over the limit")
    for i, bound in enumerate(bounds):
        axes.axhline(bound, color=INK[1], linestyle="--", linewidth=1, label=None if i else "limit")


def _finish(figure, panel, title, **style):
    """Puts the title above the figure, and below it what the lines of a panel mean."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, **style)
    figure.suptitle(title, fontsize=11)
    return figure
