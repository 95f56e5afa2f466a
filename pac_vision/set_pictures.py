"""The picture tables of the paper: images by the size of their set, and images beside their written sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from pac_core import InvalidInput
from pac_vision.written_sets import write_set

WRONG = "#d0021b"
PIXELS = 224
Range = tuple[int, int | None]
"""Smallest and largest size of a set; None is without end."""


@dataclass(frozen=True, eq=False)
class Pictured:
    """An image with its set.

    image: reads it
    label, prediction: the true class and the predicted one
    members: the labels of its set, ascending
    """

    image: Callable[[], Image.Image]
    label: int
    prediction: int
    members: Sequence[int]

    @property
    def wrong(self) -> bool:
        """Whether the classifier labels it wrongly."""
        return self.label != self.prediction

    def within(self, sizes: Range) -> bool:
        return sizes[0] <= len(self.members) and (sizes[1] is None or len(self.members) <= sizes[1])


def size_columns(classes: int) -> tuple[Range, ...]:
    """Sizes 1, 5 to 10, 50 to 100 and from 200, as in the paper; fewer classes have smaller sets."""
    if classes >= 250:
        return ((1, 1), (5, 10), (50, 100), (200, None))
    if classes >= 25:
        return ((1, 1), (2, 4), (5, 9), (10, None))
    return ((1, 1), (2, 2), (3, None)) if classes > 2 else ((1, 1), (2, None))


def written_columns(classes: int) -> tuple[Range, ...]:
    """Sizes [1, 5), [5, 10) and [10, 20), as in the paper; fewer classes have smaller sets."""
    return ((1, 4), (5, 9), (10, 19)) if classes >= 25 else size_columns(classes)


def rows_by_class(
    cases: Sequence[Pictured], columns: Sequence[Range], rows: int
) -> list[tuple[int | None, list[Pictured | None]]]:
    """For each row of the table its class and one image a column; a class of None has images of several.

    One class per row where the images allow it (at most one column empty), those that fill most columns
    first; the rows left over take what images there are.
    """
    by_class: dict[int, list[list[Pictured]]] = {}
    for case in cases:
        cells = by_class.setdefault(case.label, [[] for _ in columns])
        for cell, sizes in zip(cells, columns, strict=True):
            if case.within(sizes):
                cell.append(case)
    filled = {label: sum(map(bool, cells)) for label, cells in by_class.items()}
    least = max(2, len(columns) - 1)
    ranked = sorted((label for label in filled if filled[label] >= least), key=lambda k: (-filled[k], k))
    chosen: list[tuple[int | None, list[Pictured | None]]] = [
        (label, [cell[0] if cell else None for cell in by_class[label]]) for label in ranked[:rows]
    ]
    used = {id(case) for _, cells in chosen for case in cells}
    left = [[case for case in cases if case.within(sizes) and id(case) not in used] for sizes in columns]
    spread = [_spread(column, rows - len(chosen)) for column in left]
    for i in range(rows - len(chosen)):
        mixed = [column[i] if i < len(column) else None for column in spread]
        if any(mixed):
            chosen.append((None, mixed))
    return chosen


def picture_table(
    cases: Sequence[Pictured], names: Sequence[str], title: str, *, columns: Sequence[Range], rows: int = 5
) -> Any:
    """Images by the size of their set, one class per row; a red frame where the classifier is wrong."""
    from matplotlib.figure import Figure

    table = rows_by_class(cases, columns, rows)
    if not table:
        raise InvalidInput("cases must hold an image for one of the columns, got none")
    side, gap, left, top = 1.55, 0.34, 0.42, 1.0
    wide, high = left + max(3, len(columns)) * (side + 0.12) + 0.08, top + len(table) * (side + gap)
    figure = Figure(figsize=(wide, high), dpi=150)
    for j, sizes in enumerate(columns):
        x = (left + j * (side + 0.12) + side / 2) / wide
        figure.text(x, 1 - (top - 0.1) / high, _range(sizes), ha="center", va="bottom", fontsize=11)
    for i, (label, cells) in enumerate(table):
        bottom = high - top - i * (side + gap) - side
        if label is not None:
            y = (bottom + side / 2) / high
            figure.text(0.14 / wide, y, names[label], rotation=90, ha="left", va="center", fontsize=10)
        for j, case in enumerate(cells):
            x = left + j * (side + 0.12)
            axes = figure.add_axes((x / wide, bottom / high, side / wide, side / high))
            if case is None:
                axes.axis("off")
                axes.text(0.5, 0.5, "none", ha="center", va="center", color="#888888", fontsize=9)
                continue
            _draw(axes, case)
            size = f"{len(case.members):,} label{'s' * (len(case.members) != 1)}"
            caption = size if label is not None else f"{_short(names[case.label])} ({len(case.members):,})"
            axes.set_xlabel(caption, fontsize=7.5, labelpad=2.5)
    figure.text(0.1 / wide, 1 - 0.1 / high, title, ha="left", va="top", fontsize=9.5)
    return figure


def written_table(
    cases: Sequence[Pictured], names: Sequence[str], title: str, *, columns: Sequence[Range], rows: int = 5
) -> Any:
    """Images beside their sets: the true label in red, the prediction with a hat, as in the paper."""
    from matplotlib.figure import Figure

    spread = [_spread(sorted(_in(cases, sizes), key=lambda c: len(c.members)), rows) for sizes in columns]
    count = max(map(len, spread))
    if not count:
        raise InvalidInput("cases must hold an image for one of the columns, got none")
    side, text, pad, top = 1.45, 1.75, 0.1, 1.0
    column = side + text + 2 * pad
    wide, high = len(columns) * column + 0.1, top + count * (side + 0.16) + 0.06
    figure = Figure(figsize=(wide, high), dpi=170)
    for j, (sizes, chosen) in enumerate(zip(columns, spread, strict=True)):
        x = 0.1 + j * column
        words, middle = _range(sizes, half_open=True), (x + (column - pad) / 2) / wide
        figure.text(middle, 1 - (top - 0.1) / high, words, ha="center", va="bottom", fontsize=11)
        if j:
            from matplotlib.lines import Line2D

            across = (x - 0.75 * pad) / wide
            ends = (0.05 / high, 1 - (top - 0.05) / high)
            figure.add_artist(Line2D((across, across), ends, color="#bbbbbb", linewidth=0.8))
        for i, case in enumerate(chosen):
            bottom = high - top - i * (side + 0.16) - side
            _draw(figure.add_axes((x / wide, bottom / high, side / wide, side / high)), case)
            where = ((x + side + 0.05) / wide, bottom / high, (text - 0.05) / wide, side / high)
            write_set(figure.add_axes(where), (text - 0.05, side), case, names, WRONG)
    figure.text(0.1 / wide, 1 - 0.1 / high, title, ha="left", va="top", fontsize=9.5)
    return figure


def _draw(axes: Any, case: Pictured) -> None:
    """The centre of an image, framed in red where the classifier is wrong."""
    whole = case.image()
    square = min(whole.size)
    x, y = ((length - square) // 2 for length in whole.size)
    shown = whole.resize((PIXELS, PIXELS), Image.Resampling.BICUBIC, box=(x, y, x + square, y + square))
    axes.imshow(np.asarray(shown))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=case.wrong, color=WRONG, linewidth=3)


def _in(cases: Sequence[Pictured], sizes: Range) -> list[Pictured]:
    return [case for case in cases if case.within(sizes)]


def _spread(cases: Sequence[Pictured], count: int) -> list[Pictured]:
    """So many of them, evenly from the first to the last."""
    if len(cases) <= count:
        return list(cases)
    return [cases[round(i)] for i in np.linspace(0, len(cases) - 1, count)]


def _range(sizes: Range, *, half_open: bool = False) -> str:
    low, high = sizes
    if high is None:
        return rf"$|C(x)| \geq {low}$"
    if low == high:
        return rf"$|C(x)| = {low}$"
    return rf"${low} \leq |C(x)| " + (rf"< {high + 1}$" if half_open else rf"\leq {high}$")


def _short(name: str, longest: int = 22) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"
