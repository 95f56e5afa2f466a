"""What a tracker looks at: a box with its surroundings, cut out and resized; and boxes relative to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float64]
LEAST = 4.0
"""The least width and height of a box to look at, in pixels."""


def region(box: Any, context: float) -> Floats:
    """Boxes `[..., 4]` grown to `context` times their width and height, with the same centres.

    >>> region([10.0, 20, 30, 60], 2.0).tolist()
    [0.0, 0.0, 40.0, 80.0]
    """
    centre, sides = _centre_and_sides(box)
    return np.concatenate([centre - context * sides / 2, centre + context * sides / 2], axis=-1)


def crop(image: Image.Image, box: Floats, size: int) -> NDArray[np.uint8]:
    """Cut the part of an image within a box, `[size, size, 3]`; black beyond the image's edges."""
    left, top = np.floor(box[:2]).astype(int).tolist()
    right, bottom = np.ceil(box[2:]).astype(int).tolist()
    inner = (box - (left, top, left, top)).tolist()
    cut = image.crop((left, top, right, bottom))
    return np.array(cut.resize((size, size), Image.Resampling.BILINEAR, box=tuple(inner)))


def relative(box: Any, previous: Any) -> Floats:
    """`[..., 4]` a box in the measure of another: (-1/2, -1/2, 1/2, 1/2) if it is the same.

    >>> relative([10.0, 20, 30, 60], [10.0, 20, 30, 60]).tolist()
    [-0.5, -0.5, 0.5, 0.5]
    """
    centre, sides = _centre_and_sides(previous)
    return (np.asarray(box, np.float64) - np.tile(centre, 2)) / np.tile(sides, 2)


def absolute(mean: Any, var: Any, previous: Any) -> tuple[Floats, Floats]:
    """Means and variances `[..., 4]` in pixels, of a box that was forecast relative to another."""
    centre, sides = _centre_and_sides(previous)
    both = np.tile(sides, 2)
    return np.asarray(mean, np.float64) * both + np.tile(centre, 2), np.asarray(var, np.float64) * both**2


def moved(boxes: Floats, drawn: np.random.Generator, *, shift: float, stretch: float) -> Floats:
    """Move boxes `[N, 4]` at random: many small steps and a few large ones.

    shift: mean step of the centre, in widths and heights of the box; at most a half
    stretch: mean change of width and height; at most two fifths
    """
    centre, sides = _centre_and_sides(boxes)
    steps = drawn.laplace(0, shift, centre.shape).clip(-0.5, 0.5)
    scales = 1 + drawn.laplace(0, stretch, sides.shape).clip(-0.4, 0.4)
    centre, sides = centre + steps * sides, sides * scales
    return np.concatenate([centre - sides / 2, centre + sides / 2], axis=-1)


def inside(box: Floats, size: tuple[int, int]) -> Floats:
    """Fit a forecast box `[4]` into the frame: its centre within it, and no larger than it.

    >>> inside(np.array([90.0, 50, 130, 40]), (100, 80)).tolist()
    [80.0, 43.0, 120.0, 47.0]
    """
    limits = np.array(size, np.float64)
    centre, sides = _centre_and_sides(box)
    centre, sides = centre.clip(0, limits), np.minimum(sides, limits)
    return np.concatenate([centre - sides / 2, centre + sides / 2])


def _centre_and_sides(box: Any) -> tuple[Floats, Floats]:
    corners = np.asarray(box, np.float64)
    low, high = corners[..., :2], corners[..., 2:]
    return (low + high) / 2, np.maximum(high - low, LEAST)
