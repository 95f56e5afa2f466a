"""A tracker as a user brings one: it follows the colour in its first box."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


class ByColour:
    """The box around all pixels of nearly that colour, with a deviation of two pixels."""

    trained_on = ("Video000", "Video001", "Video002")

    def __init__(self, digest: str = "by colour") -> None:
        self.digest = digest

    def __call__(self, images: Iterator[Image.Image], box: Any) -> tuple[Any, Any]:
        found: list[Any] = []
        for image in images:
            pixels = np.asarray(image, float)
            if not found:
                x, y, right, bottom = box.round().astype(int)
                colour = pixels[y:bottom, x:right].mean(axis=(0, 1))
            rows, columns = np.nonzero(abs(pixels - colour).max(axis=2) < 30)
            if len(rows):
                box = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], float)
            found.append(box)
        return np.array(found), np.full((len(found), 4), 4.0)


def make(file: str = "") -> ByColour:
    return ByColour(Path(file).read_text() if file else "by colour")


def without_digest() -> Any:
    return lambda images, box: None
