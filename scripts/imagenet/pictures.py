"""The picture tables of the paper: images by the size of their set, and images beside their written sets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from imagenet.sets import find_places, outcomes
from PIL import Image

from pac_core import InvalidInput
from pac_vision.plots import MISSED, Picture, picture_grid

LARGEST = 7.5  # font, in points
BRACE = 7.0  # points that a brace and its distance take
LINE = 1.3  # height of a line in units of the font's
Range = tuple[int, int | None]
"""Smallest and largest size of a set; None is without end."""


@dataclass(frozen=True, eq=False)
class Case:
    """A test image, read by `image`, with its true and predicted class and the labels of its set."""

    image: Callable[[], Image.Image]
    label: int
    prediction: int
    members: Sequence[int]

    def within(self, sizes):
        return sizes[0] <= len(self.members) and (sizes[1] is None or len(self.members) <= sizes[1])

    def picture(self, caption=""):
        """Framed in red where the classifier is wrong."""
        return Picture(self.image, caption, self.label != self.prediction)


def find_cases(results, found, images):
    """The test images that the folder holds, with their sets; a broken one cannot be drawn."""
    model = next(model for model in results.models if model.name == found.model)
    where, whole = find_places(model, images), outcomes(model.forecast, model.labels) != "broken"
    at_hand = {row: place for row in results.parts.test.rows if whole[row] and (place := where[row])}
    if not at_hand:
        return []
    forecast, labels = model.take(np.array(list(at_hand)))
    members = found.predictor.sets(forecast).labels()
    known = zip(at_hand.values(), labels, forecast.predictions(), members, strict=True)
    return [Case(partial(images.image, p), int(label), int(guess), held) for p, label, guess, held in known]


def size_columns(classes):
    """Sizes 1, 5 to 10, 50 to 100 and from 200, as in the paper; fewer classes have smaller sets."""
    few = ((1, 1), (2, 2), (3, None)) if classes > 2 else ((1, 1), (2, None))
    some = ((1, 1), (2, 4), (5, 9), (10, None)) if classes >= 25 else few
    return ((1, 1), (5, 10), (50, 100), (200, None)) if classes >= 250 else some


def written_columns(classes):
    """Sizes [1, 5), [5, 10) and [10, 20), as in the paper; fewer classes have smaller sets."""
    return ((1, 4), (5, 9), (10, 19)) if classes >= 25 else size_columns(classes)


def rows_by_class(cases, columns, rows):
    """Rows of one class (at most one column empty), the fullest first; then rows of what is left, of None."""
    by_class = {}
    for case in cases:
        cells = by_class.setdefault(case.label, [None] * len(columns))
        for j, sizes in enumerate(columns):
            if cells[j] is None and case.within(sizes):
                cells[j] = case
    filled = {label: sum(cell is not None for cell in cells) for label, cells in by_class.items()}
    rich = [label for label in filled if filled[label] >= max(2, len(columns) - 1)]
    ranked = sorted(rich, key=lambda label: (-filled[label], label))[:rows]
    chosen = [(label, by_class[label]) for label in ranked]
    used = {id(case) for _, cells in chosen for case in cells}
    left = [case for case in cases if id(case) not in used]
    spread = [spread_evenly([c for c in left if c.within(s)], rows - len(chosen)) for s in columns]
    for i in range(rows - len(chosen)):
        mixed = [column[i] if i < len(column) else None for column in spread]
        if any(mixed):
            chosen.append((None, mixed))
    return chosen


def picture_table(cases, names, title, columns, rows=5):
    """Images by the size of their set, one class per row; a red frame where the classifier is wrong."""

    def captioned(label, case):
        if case is None:
            return None
        size, name = len(case.members), names[case.label]
        short = name if len(name) <= 22 else name[:21] + "…"
        return case.picture(f"{short} ({size:,})" if label is None else f"{size:,} label{'s' * (size != 1)}")

    table = rows_by_class(cases, columns, rows)
    pictures = [[captioned(label, case) for case in cells] for label, cells in table]
    classes = ["" if label is None else names[label] for label, _ in table]
    return picture_grid(pictures, title=title, heads=[_head(s) for s in columns], row_names=classes)


def written_table(cases, names, title, columns, rows=5):
    """Images beside their sets: the true label in red, the prediction with a hat, as in the paper."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    ordered = sorted(cases, key=lambda case: len(case.members))
    spread = [spread_evenly([case for case in ordered if case.within(s)], rows) for s in columns]
    count = max(map(len, spread))
    if not count:
        raise InvalidInput("cases must hold an image for one of the columns, got none")
    side, text, pad, top = 1.45, 1.75, 0.1, 1.0
    column = side + text + 2 * pad
    wide, high = len(columns) * column + 0.1, top + count * (side + 0.16) + 0.06
    figure = Figure(figsize=(wide, high), dpi=170)
    for j, (sizes, chosen) in enumerate(zip(columns, spread, strict=True)):
        x = 0.1 + j * column
        head, middle = _head(sizes, half_open=True), (x + (column - pad) / 2) / wide
        figure.text(middle, 1 - (top - 0.1) / high, head, ha="center", va="bottom", fontsize=11)
        if j:
            across, ends = (x - 0.75 * pad) / wide, (0.05 / high, 1 - (top - 0.05) / high)
            figure.add_artist(Line2D((across, across), ends, color="#bbbbbb", linewidth=0.8))
        for i, case in enumerate(chosen):
            bottom = high - top - i * (side + 0.16) - side
            case.picture().draw(figure.add_axes((x / wide, bottom / high, side / wide, side / high)))
            where = ((x + side + 0.05) / wide, bottom / high, (text - 0.05) / wide, side / high)
            write_set(figure.add_axes(where), (text - 0.05, side), case, names)
    figure.text(0.1 / wide, 1 - 0.1 / high, title, ha="left", va="top", fontsize=9.5)
    return figure


def write_set(axes, inches, case, names):
    """Writes the set of a case on axes of this size, a label a line; a truth that it misses stands below."""
    from matplotlib.patches import PathPatch
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    wide, high = (side * 72 for side in inches)  # in points
    axes.set(xlim=(0, wide), ylim=(0, high))
    axes.axis("off")
    words = {label: names[label] + "," * (label != case.members[-1]) for label in case.members}
    missed = {} if case.label in words else {case.label: f"missed: {names[case.label]}"}
    lines = len(words) + 1.5 * len(missed)
    widest = max(measure(word, LARGEST) for word in (*words.values(), *missed.values()))
    font = LARGEST * min(1, (wide - 2 * BRACE) / widest, high / (LINE * LARGEST * lines))
    step = LINE * font
    top, longest = (high + lines * step) / 2, max(measure(word, font) for word in words.values())
    for i, (label, word) in enumerate((words | missed).items()):
        base = top - (i + 0.78 + 0.5 * (label in missed)) * step
        ink = MISSED if label == case.label else "black"
        axes.text(BRACE, base, word, fontsize=font, color=ink, ha="left", va="baseline")
        if label == case.prediction:  # the hat of mathematical text does not grow so wide
            across = BRACE + np.array([0, 0.5, 1]) * measure(word.rstrip(","), font)
            axes.plot(across, base + font * np.array([0.8, 1, 0.8]), color=ink, linewidth=0.8)
    for x, glyph in ((0.0, "{"), (BRACE + longest + 2, "}")):
        shape, tall = TextPath((0, 0), glyph, size=12), len(words) * step
        box = shape.get_extents()
        fit = Affine2D().translate(-box.x0, -box.y0).scale(4 / box.width, tall / box.height)
        axes.add_patch(PathPatch(fit.translate(x, top - tall).transform_path(shape), fc="black", lw=0))


def measure(word, font):
    """Its width in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return float(text_to_path.get_text_width_height_descent(word, FontProperties(size=font), False)[0])


def spread_evenly(cases, count):
    """So many of them, evenly from the first to the last."""
    return [cases[round(i)] for i in np.linspace(0, len(cases) - 1, min(count, len(cases)))]


def _head(sizes, *, half_open=False):
    low, high = sizes
    if high is None:
        return rf"$|C(x)| \geq {low}$"
    if low == high:
        return rf"$|C(x)| = {low}$"
    return rf"${low} \leq |C(x)| " + (rf"< {high + 1}$" if half_open else rf"\leq {high}$")
