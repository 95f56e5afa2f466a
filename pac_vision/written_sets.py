"""A set written out between braces, as in the paper: the truth coloured, the prediction with a hat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

POINTS = 72.0  # in an inch
FONTS = (7.5, 7.0, 6.5, 6.0, 5.5, 5.0, 4.5)
BRACE = 7.0  # points that a brace and its distance take
LINE = 1.45  # height of a line in units of the font's


class HasSet(Protocol):
    """What is written: see `set_pictures.Pictured`."""

    @property
    def label(self) -> int: ...
    @property
    def prediction(self) -> int: ...
    @property
    def members(self) -> Sequence[int]: ...


def write_set(
    axes: Any, inches: tuple[float, float], case: HasSet, names: Sequence[str], colour: str
) -> None:
    """Writes the set of a case on axes of this size; a truth that the set misses stands below it."""
    from matplotlib.patches import PathPatch

    wide, high = (side * POINTS for side in inches)
    axes.set(xlim=(0, wide), ylim=(0, high))
    axes.axis("off")
    missed = case.label not in case.members
    room = (wide - 2 * BRACE, high - (12 if missed else 0) - 4)
    words = [names[label] + "," * (label != case.members[-1]) for label in case.members]
    font, lines = fit_words(words, *room)
    tall = len(lines) * LINE * font
    top = (high + tall + (12 if missed else 0)) / 2
    widths = [_width(line, font) for line in lines]
    left = BRACE
    for i, (line, width) in enumerate(zip(lines, widths, strict=True)):
        x, base = left + (max(widths) - width) / 2, top - (i + 0.78) * LINE * font
        for word, place in _placed(line, words, lines, i):
            label = case.members[place]
            ink = colour if label == case.label else "black"
            axes.text(x, base, word, fontsize=font, color=ink, ha="left", va="baseline")
            if label == case.prediction:
                bare = _width([word.rstrip(",")], font)
                _hat(axes, x, bare, base + 0.87 * font, font, ink)
            x += _width([word], font) + _space(font)
    right = left + max(widths) + BRACE
    for x, turn in ((0.5, 1), (right - 0.5, -1)):
        axes.add_patch(
            PathPatch(brace(x, turn, top - tall - 1, top + 1), fill=False, linewidth=0.8, clip_on=False)
        )
    if missed:
        words_below = f"missed: {names[case.label]}"
        size = min(font + 0.5, 7.0)
        while _width([words_below], size) > wide and size > FONTS[-1]:
            size -= 0.5
        axes.text(0, top - tall - 11, words_below, fontsize=size, color=colour, style="italic")


def fit_words(words: Sequence[str], wide: float, high: float) -> tuple[float, list[list[str]]]:
    """The largest font, and lines of words that fit into `wide` x `high` points with it.

    One word a line where they fit so, else as many as a line holds. With the smallest font they are written
    whether they fit or not.
    """
    for font in FONTS:
        for lines in ([[word] for word in words], list(_packed(words, wide, font))):
            if len(lines) * LINE * font <= high and all(_width(line, font) <= wide for line in lines):
                return font, lines
    return FONTS[-1], list(_packed(words, wide, FONTS[-1]))


def brace(x: float, turn: int, low: float, high: float) -> Any:
    """The path of a curly brace at `x` from `low` to `high`: 1 opens to the right, -1 to the left."""
    from matplotlib.path import Path

    middle, bend, reach = (low + high) / 2, min(3.0, (high - low) / 4), 3.6 * turn
    stem, end = x + reach / 2, x + reach
    corners = [
        (Path.MOVETO, (end, high)),
        (Path.CURVE3, (stem, high)),
        (Path.CURVE3, (stem, high - bend)),
        (Path.LINETO, (stem, middle + bend)),
        (Path.CURVE3, (stem, middle)),
        (Path.CURVE3, (x, middle)),
        (Path.CURVE3, (stem, middle)),
        (Path.CURVE3, (stem, middle - bend)),
        (Path.LINETO, (stem, low + bend)),
        (Path.CURVE3, (stem, low)),
        (Path.CURVE3, (end, low)),
    ]
    return Path([place for _, place in corners], [code for code, _ in corners])


def _hat(axes: Any, x: float, width: float, y: float, font: float, ink: str) -> None:
    """A flat hat over the whole word; that of mathematical text does not grow so wide."""
    across = (x, x + width / 2, x + width)
    axes.plot(
        across, (y, y + 0.2 * font, y), color=ink, linewidth=0.8, clip_on=False, solid_joinstyle="miter"
    )


def _packed(words: Sequence[str], wide: float, font: float) -> Iterator[list[str]]:
    line: list[str] = []
    for word in words:
        if line and _width([*line, word], font) > wide:
            yield line
            line = []
        line.append(word)
    yield line


def _placed(
    line: Sequence[str], words: Sequence[str], lines: Sequence[Sequence[str]], number: int
) -> Iterator[tuple[str, int]]:
    """The words of a line with their places among all words."""
    before = sum(map(len, lines[:number]))
    for offset, word in enumerate(line):
        yield word, before + offset


def _width(line: Sequence[str], font: float) -> float:
    """Of a line of words, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    plain = FontProperties(size=font)
    whole = sum(text_to_path.get_text_width_height_descent(word, plain, False)[0] for word in line)
    return float(whole) + (len(line) - 1) * _space(font)


def _space(font: float) -> float:
    return 0.45 * font
