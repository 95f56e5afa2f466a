"""The picture tables of the paper: images by the size of their set, and images with their written sets."""

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import numpy as np
from imagenet.sets import find_places, outcomes
from PIL import Image, ImageOps

ROWS = 5
# Sizes of sets in the columns, from and to, as in the paper; then for few classes.
BY_SIZE = {"1 label": (1, 1), "5 to 10": (5, 10), "50 to 100": (50, 100), "200 or more": (200, math.inf)}
WRITTEN = {"1 to 4 labels": (1, 4), "5 to 9": (5, 9), "10 to 19": (10, 19)}
FEW = {"1 label": (1, 1), "2 labels": (2, 2), "3 or more": (3, math.inf)}


@dataclass(frozen=True, eq=False)
class Case:
    """A test image, read by `image`, with its true and predicted class and the labels of its set."""

    image: Callable[[], Image.Image]
    label: int
    prediction: int
    members: Sequence[int]

    def within(self, sizes):
        return sizes[0] <= len(self.members) <= sizes[1]


def find_cases(results, images):
    """The test images that the folder holds, with our sets; a broken one cannot be drawn."""
    model = results.models[0]
    where, whole = find_places(model, images), outcomes(model.forecast, model.labels) != "broken"
    at_hand = {row: place for row in results.parts.test.rows if whole[row] and (place := where[row])}
    if not at_hand:
        return []
    forecast, labels = model.take(np.array(list(at_hand)))
    members = results.at().predictor.sets(forecast).labels()
    known = zip(at_hand.values(), labels, forecast.predictions(), members, strict=True)
    return [Case(partial(images.image, p), int(label), int(guess), held) for p, label, guess, held in known]


def picture_table(cases, names, title, columns):
    """Images by the size of their set: rows of the classes that fill all columns but one, or else mixed."""
    by_class = {case.label: [None] * len(columns) for case in cases}
    for case in cases:
        for j, sizes in enumerate(columns.values()):
            if case.within(sizes):
                by_class[case.label][j] = case
    filled = Counter({label: sum(map(bool, cells)) for label, cells in by_class.items()})
    rich = [label for label, count in filled.most_common(ROWS) if count >= max(2, len(columns) - 1)]
    rows = [by_class[label] for label in rich] or spread_evenly(cases, columns)

    def caption(case):
        return f"{names[case.label][:22]} ({len(case.members):,})"

    return _grid(rows, caption, title, columns, [names[label] for label in rich])


def written_table(cases, names, title, columns):
    """Images with their sets, the prediction with a hat, and their true labels."""

    def caption(case):
        words = ("^" * (label == case.prediction) + names[label] for label in case.members)
        return f"{textwrap.fill('{' + ', '.join(words) + '}', 28)}\ntruth: {names[case.label]}"

    return _grid(spread_evenly(cases, columns), caption, title, columns)


def spread_evenly(cases, columns):
    """Rows of images, for each column evenly from the smallest of its sets to the largest."""
    ordered = sorted(cases, key=lambda case: len(case.members))
    fitting = [[case for case in ordered if case.within(sizes)] for sizes in columns.values()]
    places = [np.linspace(0, len(some) - 1, min(ROWS, len(some))).round().astype(int) for some in fitting]
    return list(zip_longest(*([some[i] for i in at] for some, at in zip(fitting, places, strict=True))))


def _grid(rows, caption, title, columns, row_names=()):
    """A figure with rows of images and their captions, framed in red where the classifier is wrong."""
    from matplotlib.figure import Figure

    texts = [[case and caption(case) for case in row] for row in rows]
    lines = max(text.count("\n") + 1 for row in texts for text in row if text)
    side, gap, left, top = 1.55, 0.2 + 0.14 * lines, 0.42, 0.45 + 0.17 * (title.count("\n") + 1)
    wide, high = left + max(3, len(columns)) * (side + 0.12) + 0.08, top + len(rows) * (side + gap)
    figure = Figure(figsize=(wide, high), dpi=150)
    for j, head in enumerate(columns):
        x = (left + j * (side + 0.12) + side / 2) / wide
        figure.text(x, 1 - (top - 0.1) / high, head, ha="center", va="bottom", fontsize=11)
    for i, row in enumerate(rows):
        bottom = high - top - i * (side + gap) - side
        if i < len(row_names):
            y = (bottom + side / 2) / high
            figure.text(0.14 / wide, y, row_names[i], rotation=90, ha="left", va="center", fontsize=10)
        for j, case in enumerate(row):
            x = left + j * (side + 0.12)
            axes = figure.add_axes((x / wide, bottom / high, side / wide, side / high))
            if case is None:
                axes.axis("off")
                axes.text(0.5, 0.5, "none", ha="center", va="center", color="#888888", fontsize=9)
                continue
            axes.imshow(np.asarray(ImageOps.fit(case.image(), (224, 224), Image.Resampling.BICUBIC)))
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=case.label != case.prediction, color="#d0021b", linewidth=3)
            axes.set_xlabel(texts[i][j], fontsize=7.5, labelpad=2.5)
    figure.text(0.1 / wide, 1 - 0.1 / high, title, ha="left", va="top", fontsize=9.5)
    return figure
