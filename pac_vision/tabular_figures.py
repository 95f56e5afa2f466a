"""Figures of the experiments on tables and alarms; matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pac_core.evaluation import Row
from pac_core.figures import INK, canvas
from pac_vision.alarm_studies import KINDS, OURS, PAPERS, RuleResult
from pac_vision.tabular_designs import TableDesign
from pac_vision.tabular_forecasts import TableForecast
from pac_vision.tabular_studies import Ablated, Repeats

_MANY = 12  # label sizes that fit side by side


def label_sizes(rows: Sequence[Ablated], wrong: Any, design: TableDesign) -> Any:
    """Share of the test rows with a set of each size: D against C+D, and right against wrong predictions.

    wrong: `[N]` booleans of the test rows
    """
    figure, (left, right) = _panels()
    _bars(left, {f"{row.name}, mean {row.found.all.mean:.2f}": np.asarray(row.sets.size()) for row in rows})
    sizes = np.asarray(rows[-1].sets.size())
    groups = {"prediction right": sizes[~wrong], "prediction wrong": sizes[wrong]}
    named = {f"{name}, {len(found)} rows": found for name, found in groups.items() if len(found)}
    _bars(right, named)
    left.set_title("with (C+D) and without (D) a temperature", loc="left", fontsize=9.5)
    right.set_title("C+D, by whether the prediction was right", loc="left", fontsize=9.5)
    figure.supxlabel("labels in the set", fontsize=10)
    figure.supylabel("share of test rows", fontsize=10)
    figure.suptitle(_title(design, rows[-1].found.all), fontsize=10.5)
    return figure


def interval_sizes(rows: Sequence[Ablated], made: TableForecast, test: Any, design: TableDesign) -> Any:
    """Widths of the intervals of D and C+D, and those of C+D around the truths, misses in red."""
    figure, (left, right) = _panels()
    widths = [np.asarray(row.sets.size()) for row in rows]
    boxes = left.boxplot(widths, whis=(0, 100), widths=0.5, patch_artist=True)
    for patch, ink in zip(boxes["boxes"], INK, strict=False):
        patch.set(facecolor=ink, alpha=0.55)
    for line in boxes["medians"]:
        line.set(color="black", linewidth=1.4)
    left.set_xticks(range(1, len(rows) + 1), [f"{row.name}\nmean {row.found.all.mean:.2f}" for row in rows])
    left.set_ylim(bottom=0)
    left.set_ylabel(design.size_in, fontsize=9.5)
    left.set_title("box: quartiles; whiskers: all test rows", loc="left", fontsize=9.5)
    sets, truth = rows[-1].sets.sets, made.truth[test][:, 0]
    lower, upper = (np.asarray(end)[:, 0] for end in sets.box())
    order = np.argsort(truth, kind="stable")
    inside = np.asarray(sets.contains(truth[:, None]))[order]
    at, inks = np.arange(len(order)), [INK[0] if one else INK[1] for one in inside]
    right.vlines(at, lower[order], upper[order], colors=inks, linewidth=1.2, alpha=0.75)
    right.plot(at, truth[order], "k.", markersize=3, label="truth")
    right.plot([], [], color=INK[0], label="interval")
    right.plot([], [], color=INK[1], label="interval that missed")
    right.set_xlabel("test rows, by their truth")
    right.set_ylabel(f"truth and interval, {design.unit}", fontsize=9.5)
    right.legend(frameon=False, fontsize=8.5)
    right.set_title("C+D", loc="left", fontsize=9.5)
    figure.suptitle(_title(design, rows[-1].found.all), fontsize=10.5)
    return figure


def errors_of_all(found: Mapping[str, tuple[Row, TableDesign]], repeats: Mapping[str, Repeats]) -> Any:
    """The measured error of each table with its exact interval, against the promise; other draws as dots.

    found: by title; repeats: of those that were repeated
    """
    figure, axes = canvas(8.0, 4.6)
    for at, (title, (row, design)) in enumerate(found.items()):
        low, high = row.interval
        axes.hlines(design.level.epsilon, at - 0.4, at + 0.4, color="black", linestyle=":")
        axes.errorbar(
            at - 0.12, row.error, [[row.error - low], [high - row.error]], color=INK[0], marker="o", capsize=4
        )
        if title in repeats:
            other = np.array(repeats[title].errors) / repeats[title].n
            spread = np.random.default_rng(0).uniform(-0.07, 0.07, len(other))
            axes.plot(at + 0.2 + spread, other, ".", color=INK[2], alpha=0.6, markersize=7)
    axes.plot([], [], "k:", label="promised error, epsilon")
    axes.errorbar(
        [], [], [], color=INK[0], marker="o", capsize=4, label="certified split, exact 98% interval"
    )
    if repeats:
        label = "other splits: a comparison, no certificates"
        axes.plot([], [], ".", color=INK[2], markersize=7, label=label)
    names = [
        f"{title}\nn = {design.calibrate}\nepsilon {design.level.epsilon:g}, delta {design.level.delta:g}"
        for title, (_, design) in found.items()
    ]
    axes.set_xticks(range(len(found)), names, fontsize=8.5)
    axes.set_xlim(-0.6, len(found) - 0.4)
    axes.set_ylim(bottom=-0.003)
    axes.set_ylabel("share of test rows whose set missed the truth (C+D)", fontsize=9)
    axes.set_title("Measured error on small tables, against the promise", loc="left", fontsize=11)
    figure.legend(frameon=False, fontsize=8.5, loc="outside lower center", ncols=3)
    return figure


def _bars(axes: Any, sizes: Mapping[str, Any]) -> None:
    most = int(max(found.max() for found in sizes.values()))
    edges = np.arange(most + 1)
    for place, ((name, found), ink) in enumerate(zip(sizes.items(), INK, strict=False)):
        share = np.bincount(found, minlength=most + 1) / len(found)
        axes.bar(edges + 0.4 * place - 0.2, share, width=0.38, color=ink, alpha=0.7, label=name)
    if most <= _MANY:
        axes.set_xticks(edges)
    axes.margins(y=0.2)  # room for the legend
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")


def _panels() -> tuple[Any, Any]:
    figure, axes = canvas(9.0, 4.0)
    axes.remove()
    panels = figure.subplots(1, 2)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    return figure, panels


def _title(design: TableDesign, row: Row) -> str:
    level = design.level
    return (
        f"{design.title}: sets of {row.n} test rows, n = {design.calibrate}, epsilon {level.epsilon:g}, "
        f"delta {level.delta:g}, measured error {row.error:.3f}"
    )


def shares_suppressed(results: Sequence[RuleResult], title: str, n: int) -> Any:
    """Shares of true and of false alarms suppressed against epsilon, for both rules, with what they promise.

    n: test alarms
    """
    figure, (left, right) = _panels()
    for (way, ink), shift in zip(((PAPERS, INK[1]), (OURS, INK[0])), (0.97, 1.03), strict=True):
        had = [(one, one.found) for one in results if one.way == way and one.found is not None]
        if not had:
            continue
        at = [shift * one.level.epsilon for one, _ in had]
        for axes, shares, ends in (
            (left, [f.share_of_true for _, f in had], [f.true_interval for _, f in had]),
            (right, [f.share_of_false for _, f in had], [f.false_interval for _, f in had]),
        ):
            below = [share - low for share, (low, _) in zip(shares, ends, strict=True)]
            above = [high - share for share, (_, high) in zip(shares, ends, strict=True)]
            axes.errorbar(
                at, shares, [below, above], color=ink, marker="o", markersize=4, capsize=3, label=way
            )
        promised = [(one.level.epsilon, one.promised) for one, _ in had if one.promised is not None]
        style = "--" if way == PAPERS else "-"
        text = "implied: epsilon / P(true alarm)" if way == PAPERS else "promised: epsilon"
        left.plot(
            *zip(*promised, strict=True), color=ink, linestyle=style, linewidth=1, alpha=0.8, label=text
        )
    for axes, name in (
        (left, "true alarms suppressed (the harm)"),
        (right, "false alarms suppressed (the use)"),
    ):
        axes.set_title(name, loc="left", fontsize=9.5)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlim(left=0)
    figure.supxlabel(f"epsilon (of all alarms for '{PAPERS}', of true alarms for '{OURS}')", fontsize=9.5)
    left.set_ylabel("share of test alarms (whisker: exact 98%)", fontsize=9.5)
    if left.get_legend_handles_labels()[0]:  # none, if every level was refused
        left.legend(frameon=False, fontsize=8.5)
    delta = results[0].level.delta
    figure.suptitle(f"{title}: suppressed shares of {n} test alarms, delta {delta:g}", fontsize=10.5)
    return figure


def set_kinds(rows: Sequence[Mapping[str, Any]], title: str, n: int) -> Any:
    """Share of the test alarms with each set, a bar per level, with its error and mean size.

    rows: of `sets_row`; n: test alarms
    """
    figure, axes = canvas(8.4, 4.4)
    names = []
    for at, row in enumerate(rows):
        below = 0.0
        for kind, ink in zip(KINDS, ("#222222", INK[1], INK[2], INK[0]), strict=True):
            axes.bar(at, row[kind] or 0, 0.6, below, color=ink, alpha=0.75, label=None if at else kind)
            below += row[kind] or 0
        found = (
            "refused" if row["error"] is None else f"error {row['error']:.3f}\nsize {row['mean size']:.2f}"
        )
        names.append(f"{row['epsilon']:g}, {row['delta']:g}\n{found}")
    axes.set_xticks(range(len(rows)), names, fontsize=8.5)
    axes.set_xlabel("epsilon (promised), delta; measured error; mean size of a set", fontsize=9.5)
    axes.set_ylabel("share of test alarms")
    axes.set_title(
        f"{title}: sets of {n} test alarms (comparison, no certificates)", loc="left", fontsize=10.5
    )
    figure.legend(frameon=False, fontsize=9, loc="outside right upper", title="set")
    return figure
