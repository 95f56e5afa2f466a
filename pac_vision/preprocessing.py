"""From an image to the numbers a network was trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pac_core import InvalidInput

Preprocess: TypeAlias = Callable[[Image.Image], NDArray[np.float32]]
"""RGB image -> float32 `[3, H, W]`."""


def efficientnet_lite(size: int) -> Preprocess:
    """The preprocessing of EfficientNet-Lite: (x - 127) / 128 on the centre square.

    size: of the input; the square has the share size / (size + 32) of the short side
    """

    def preprocess(image: Image.Image) -> NDArray[np.float32]:
        square = int(min(image.size) * size / (size + 32))
        return (pixels(centre_square(image, square, size)) - np.float32(127)) / np.float32(128)

    return preprocess


def imagenet(size: int = 224, *, share: float = 224 / 256) -> Preprocess:
    """The preprocessing of most ImageNet models: mean and deviation of the channels to 0 and 1.

    size: of the input; the square has the `share` of the short side

    >>> imagenet(8)(Image.new("RGB", (40, 30), "white")).shape
    (3, 8, 8)
    """
    mean = np.array([0.485, 0.456, 0.406], np.float32)[:, None, None]
    deviation = np.array([0.229, 0.224, 0.225], np.float32)[:, None, None]

    def preprocess(image: Image.Image) -> NDArray[np.float32]:
        square = max(1, round(min(image.size) * share))
        scaled = pixels(centre_square(image, square, size, Image.Resampling.BILINEAR)) / np.float32(255)
        return (scaled - mean) / deviation

    return preprocess


def centre_square(
    image: Image.Image, square: int, size: int, resampling: Image.Resampling = Image.Resampling.BICUBIC
) -> Image.Image:
    """The centre of an image, `square` pixels wide and high, resized to `size`."""
    if square < 1:
        raise InvalidInput(f"an image must have a centre of at least one pixel, got one of size {image.size}")
    left, top = ((side - square + 1) // 2 for side in image.size)
    return image.resize((size, size), resampling, box=(left, top, left + square, top + square))


def pixels(image: Image.Image) -> NDArray[np.float32]:
    """`[3, H, W]` the channels of an RGB image, 0 to 255."""
    return np.asarray(image, np.float32).transpose(2, 0, 1)
