"""Box plots of set sizes, as in the paper; matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import PACLevel, min_samples
from pac_core.figures import INK, canvas
from pac_vision.class_results import OURS, PAPER, ClassResults
from pac_vision.levels import chance, why_not

SIZE = "labels in the set"
MARKS = "labels in the set\n(line: median, diamond: mean)"
COLOURS = {"C": INK[3], "D": INK[4], PAPER: INK[0], OURS: INK[1], "mass": "#9a9a9a", "mass, C": "#5f6b73"}
Sizes = NDArray[np.int64]


def size_boxes(sizes: Mapping[str, Sizes], title: str, *, missing: Mapping[str, str] | None = None) -> Any:
    """A box for each kind of sets: median and quartiles, whiskers to the smallest and largest set.

    missing: kinds without sets, with the reason that is written in their place
    """
    figure, axes = canvas(6.6, 4.0)
    draw_boxes(axes, sizes, missing=missing)
    axes.set_ylabel(MARKS, fontsize=9.5)
    titled(axes, title)
    return figure


def draw_boxes(axes: Any, sizes: Mapping[str, Sizes], *, missing: Mapping[str, str] | None = None) -> None:
    """The boxes of `size_boxes` on axes that exist."""
    absent = dict(missing or {})
    names = [*absent, *sizes]
    for place, name in enumerate(names, start=1):
        if name in sizes:
            _box(axes, sizes[name], place, COLOURS.get(name.split("\n")[0], INK[2]))
    _sizes_axis(axes, list(sizes.values()))
    for place, name in enumerate(names, start=1):
        if name in absent:
            axes.text(
                place, 0.5, absent[name], transform=axes.get_xaxis_transform(), ha="center", va="center",
                fontsize=8, color="#555555",
            )  # fmt: skip
    axes.set_xticks(range(1, len(names) + 1), names)
    axes.set_xlim(0.4, len(names) + 0.6)
    axes.tick_params(axis="x", length=0)


def grouped_boxes(groups: Mapping[str, Mapping[str, Sizes]], title: str) -> Any:
    """Boxes side by side in groups, such as right and wrong predictions for each kind of sets."""
    figure, axes = canvas(6.6, 4.2)
    _grouped(figure, axes, groups)
    axes.set_ylabel(MARKS, fontsize=9.5)
    titled(axes, title)
    return figure


def level_boxes(groups: Mapping[str, Mapping[str, Sizes]], name: str, title: str) -> Any:
    """Sizes against epsilon or delta: at each level a box for each kind of sets; empty where out of reach."""
    figure, axes = canvas(7.2, 4.2)
    _grouped(figure, axes, groups)
    axes.set_xlabel(name)
    axes.set_ylabel(MARKS, fontsize=9.5)
    titled(axes, title)
    return figure


def grid_boxes(results: ClassResults, title: str) -> Any:
    """The ablation at each epsilon (down) and delta (across), all with the same axes."""
    from matplotlib.figure import Figure

    epsilons, deltas = results.levels.epsilons, results.levels.deltas
    high = 1.75 * len(epsilons) + 1.1
    figure = Figure(figsize=(2.9 * len(deltas) + 0.8, high), dpi=130)
    # Margins by hand: fifteen panels would keep the layout engine busy for seconds.
    margins = {"left": 0.085, "right": 0.985, "bottom": 0.45 / high, "top": 1 - 0.85 / high}
    shared: Any = {"sharex": True, "sharey": True, "squeeze": False}
    panels = figure.subplots(
        len(epsilons), len(deltas), gridspec_kw=margins | {"hspace": 0.3, "wspace": 0.06}, **shared
    )
    kinds = ["D", PAPER, OURS]
    if any(results.at("C", level) for level in results.levels.table):
        kinds.insert(0, "C")
    for line, epsilon in zip(panels, epsilons, strict=True):
        for axes, delta in zip(line, deltas, strict=True):
            level = PACLevel(epsilon, delta)
            found = {kind: one for kind in kinds if (one := results.at(kind, level)) is not None}
            sizes = {kind: one.size for kind, one in found.items()}
            if found:
                draw_boxes(axes, sizes, missing={k: "not\nfeasible" for k in kinds if k not in found})
            else:
                n = results.parts.calibrate.n
                words = f"not feasible with n = {n:,}\n{why_not(n, min_samples(level))}"
                axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, fontsize=8.5)
            mark = chance(results.parts.calibrate.n, level)
            axes.set_title(f"epsilon {epsilon:g}, delta {delta:g}{mark and f' ({mark})'}", fontsize=9)
            axes.tick_params(labelsize=8)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
    # The panels share an axis, which must have room for all of them and not for the last alone.
    every = [one.size for kind in kinds for level in results.levels.table if (one := results.at(kind, level))]
    _sizes_axis(panels[0][0], every)
    figure.suptitle(title, fontsize=10.5)
    figure.supylabel(MARKS.replace("\n", " "), fontsize=10, x=0.008)
    return figure


def _grouped(figure: Any, axes: Any, groups: Mapping[str, Mapping[str, Sizes]]) -> None:
    """Boxes in groups; the same name has the same colour in every group."""
    from matplotlib.patches import Patch

    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    width = 0.8 / len(names)
    for place, group in enumerate(groups.values(), start=1):
        for i, name in enumerate(names):
            if name in group and len(group[name]):
                at = place + (i - (len(names) - 1) / 2) * width
                _box(axes, group[name], at, _colour(name), width=0.85 * width)
    _sizes_axis(axes, [sizes for group in groups.values() for sizes in group.values() if len(sizes)])
    axes.set_xticks(range(1, len(groups) + 1), list(groups))
    axes.set_xlim(0.4, len(groups) + 0.6)
    axes.tick_params(axis="x", length=0)
    handles = [Patch(facecolor=_colour(name), edgecolor="black", alpha=0.6, label=name) for name in names]
    figure.legend(handles=handles, frameon=False, loc="outside lower center", ncols=len(names), fontsize=9)


def _colour(name: str) -> str:
    return {"correct": INK[2], "incorrect": INK[3]}.get(name) or COLOURS.get(name, INK[2])


def _box(axes: Any, sizes: Sizes, place: float, colour: str, *, width: float = 0.5) -> None:
    """A box at a place: quartiles, whiskers to the smallest and largest, the median and the mean."""
    made = axes.boxplot(
        [np.asarray(sizes)],
        positions=[place],
        whis=(0, 100),
        widths=width,
        patch_artist=True,
        manage_ticks=False,
        showmeans=True,
        meanprops={"marker": "D", "markersize": 4, "markerfacecolor": "white", "markeredgecolor": "black"},
    )
    made["boxes"][0].set(facecolor=colour, alpha=0.6)
    made["medians"][0].set(color="black", linewidth=1.6)


def _sizes_axis(axes: Any, sizes: Sequence[Sizes]) -> None:
    """A logarithmic axis of whole numbers, with a place for empty sets."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    least, most = (min(int(s.min()) for s in sizes), max(int(s.max()) for s in sizes)) if sizes else (1, 1)
    axes.set_yscale("symlog", linthresh=1, linscale=0.35)
    axes.set_ylim(-0.25 if least == 0 else 0.8, 1.5 * most)
    ticks = [m * 10**p for p in range(7) for m in (1, 2, 5) if m * 10**p <= 1.2 * most]
    axes.yaxis.set_major_locator(FixedLocator([0, *ticks] if least == 0 else ticks))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def titled(axes: Any, title: str) -> None:
    """The title of a figure, above its left corner."""
    axes.set_title(title, loc="left", fontsize=10, pad=14)
