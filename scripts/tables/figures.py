"""Figures of the experiments on tables."""

import numpy as np
from common import draw_box, panels

from pac_core.plots import INK, canvas


def draw_sizes(rows, design, truth, wrong):
    """Sizes of D and C+D on the test rows: shares of each number of labels, or widths of intervals.

    truth, wrong: `[N]` of the test rows; `wrong` says whether the prediction was, of labels
    """
    figure, ((left, right),) = panels(1, 2, (9.0, 4.0))
    (_draw_labels if design.task == "labels" else _draw_intervals)(left, right, rows, design, truth, wrong)
    level, row = design.level, rows[-1].found.all
    figure.suptitle(
        f"{design.title}: sets of {row.n} test rows, n = {design.calibrate}, epsilon {level.epsilon:g}, "
        f"delta {level.delta:g}, measured error {row.error:.3f}",
        fontsize=10.5,
    )
    return figure


def _draw_labels(left, right, rows, design, truth, wrong):
    by_kind = {f"{row.name}, mean {row.found.all.mean:.2f}": row.size for row in rows}
    found, last = (("right", ~wrong), ("wrong", wrong)), rows[-1].size
    groups = {f"prediction {name}, {mine.sum()} rows": last[mine] for name, mine in found if mine.any()}
    for axes, sizes, title in (
        (left, by_kind, "with (C+D) and without (D) a temperature"),
        (right, groups, "C+D, by whether the prediction was right"),
    ):
        most = int(max(size.max() for size in sizes.values()))
        for place, (name, size) in enumerate(sizes.items()):
            share, at = (
                np.bincount(size, minlength=most + 1) / len(size),
                np.arange(most + 1) + 0.4 * place - 0.2,
            )
            axes.bar(at, share, width=0.38, color=INK[place], alpha=0.7, label=name)
        if most <= 12:
            axes.set_xticks(range(most + 1))
        axes.margins(y=0.2)  # room for the legend
        axes.legend(frameon=False, fontsize=8.5, loc="upper right")
        axes.set_title(title, loc="left", fontsize=9.5)
        axes.set_xlabel("labels in the set", fontsize=10)
    left.set_ylabel("share of test rows", fontsize=10)


def _draw_intervals(left, right, rows, design, truth, wrong):
    for place, row in enumerate(rows):
        draw_box(left, row.size, place, INK[place])
    left.set_xticks(range(len(rows)), [f"{row.name}\nmean {row.found.all.mean:.2f}" for row in rows])
    left.set_ylim(bottom=0)
    left.set_ylabel(design.size_in, fontsize=9.5)
    left.set_title("box: quartiles; whiskers: all test rows", loc="left", fontsize=9.5)
    order, sets = np.argsort(truth, kind="stable"), rows[-1].sets
    lower, upper = (np.asarray(end)[order, 0] for end in sets.box())
    inks = np.where(np.asarray(sets.contains(truth[:, None]))[order], INK[0], INK[1])
    right.vlines(range(len(order)), lower, upper, colors=inks, linewidth=1.2, alpha=0.75)
    right.plot(truth[order], "k.", markersize=3, label="truth")
    right.plot([], [], color=INK[0], label="interval")
    right.plot([], [], color=INK[1], label="interval that missed")
    right.set_xlabel("test rows, by their truth")
    right.set_ylabel(f"truth and interval, {design.unit}", fontsize=9.5)
    right.legend(frameon=False, fontsize=8.5)
    right.set_title("C+D", loc="left", fontsize=9.5)


def draw_errors(found, repeats):
    """The measured error of each table with its exact interval, against the promise; other draws as dots."""
    figure, axes = canvas(8.0, 4.6)
    names, certified = [], {"color": INK[0], "marker": "o", "capsize": 4, "linestyle": "none"}
    dots = {"color": INK[2], "marker": ".", "markersize": 7, "linestyle": "none"}
    for at, (title, (row, design)) in enumerate(found.items()):
        level, (low, high) = design.level, row.interval
        names.append(f"{title}\nn = {design.calibrate}\nepsilon {level.epsilon:g}, delta {level.delta:g}")
        axes.hlines(level.epsilon, at - 0.4, at + 0.4, color="black", linestyle=":")
        axes.errorbar(at - 0.12, row.error, [[row.error - low], [high - row.error]], **certified)
        if title in repeats:
            spread = np.random.default_rng(0).uniform(-0.07, 0.07, len(repeats[title]))
            axes.plot(at + 0.2 + spread, repeats[title], alpha=0.6, **dots)
    axes.plot([], [], "k:", label="promised error, epsilon")
    axes.errorbar([], [], [], label="certified split, exact 98% interval", **certified)
    if repeats:
        axes.plot([], [], label="other splits: a comparison, no certificates", **dots)
    axes.set_xticks(range(len(found)), names, fontsize=8.5)
    axes.set_xlim(-0.6, len(found) - 0.4)
    axes.set_ylim(bottom=-0.003)
    axes.set_ylabel("share of test rows whose set missed the truth (C+D)", fontsize=9)
    axes.set_title("Measured error on small tables, against the promise", loc="left", fontsize=11)
    figure.legend(frameon=False, fontsize=8.5, loc="outside lower center", ncols=3)
    return figure
