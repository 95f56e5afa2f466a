"""From an image to the numbers a network was trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pac_core import InvalidInput
from pac_core.bounds import check_integer

Preprocess: TypeAlias = Callable[[Image.Image], NDArray[np.float32]]
"""RGB image -> float32 `[3, H, W]`, or `[H, W, 3]` where the model takes that."""
Channels: TypeAlias = tuple[float, float, float]

RESAMPLING = {name.lower(): Image.Resampling[name] for name in ("NEAREST", "BILINEAR", "BICUBIC", "LANCZOS")}
CHOICES = {
    "range": ("1", "255"),
    "colours": ("RGB", "BGR"),
    "layout": ("NCHW", "NHWC"),
    "resampling": tuple(RESAMPLING),
}
LARGEST = 8192
"""Width and height of an input, in pixels."""
WHOLE = "whole"
"""As a crop: all of the image, squeezed into the square."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How an RGB image becomes the numbers that a network takes; nothing of it has a default.

    size: width and height of the input in pixels
    crop: share of the image's short side that is kept as a centre square, and resized; ``whole`` keeps all of
        the image, squeezed into the square
    mean, deviation: of each channel, in the order of `colours`
    range: 1 or 255, the value of a full channel before the mean is subtracted
    colours: ``RGB`` or ``BGR``
    layout: ``NCHW`` (`[3, H, W]` an image) or ``NHWC`` (`[H, W, 3]`)
    resampling: nearest, bilinear, bicubic or lanczos

    >>> imagenet(8)(Image.new("RGB", (40, 30), "white")).shape
    (3, 8, 8)
    >>> str(imagenet(8))[:35]
    'size=8 crop=7/8 mean=0.485,0.456,0.'
    """

    size: int
    crop: Fraction | str
    mean: Channels
    deviation: Channels
    range: int
    colours: str
    layout: str
    resampling: str

    def __post_init__(self) -> None:
        for name, read in _READ.items():
            object.__setattr__(self, name, read(getattr(self, name)))

    def __str__(self) -> str:
        """Every setting, as `read_settings` reads it back."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        texts = {k: ",".join(map(repr, v)) if isinstance(v, tuple) else v for k, v in values.items()}
        return " ".join(f"{name}={text}" for name, text in texts.items())

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        resampling, side = RESAMPLING[self.resampling], (self.size, self.size)
        if isinstance(self.crop, str):
            scaled = image.resize(side, resampling)
        else:
            square = int(min(image.size) * self.crop)
            if square < 1:
                raise InvalidInput(f"an image must have a centre of at least one pixel, got {image.size}")
            left, top = ((length - square + 1) // 2 for length in image.size)
            scaled = image.resize(side, resampling, box=(left, top, left + square, top + square))
        pixels: NDArray[np.float32] = np.asarray(scaled, np.float32)
        mean, deviation = (np.array(values, np.float32) for values in (self.mean, self.deviation))
        if self.colours == "BGR":
            pixels = pixels[..., ::-1]
        if self.range == 1:
            pixels = pixels / np.float32(255)
        pixels = (pixels - mean) / deviation
        return np.ascontiguousarray(pixels.transpose(2, 0, 1) if self.layout == "NCHW" else pixels)


def _like_imagenet(size: int, **others: Any) -> Preprocessing:
    settings: dict[str, Any] = {
        "crop": Fraction(7, 8),
        "mean": (0.485, 0.456, 0.406),
        "deviation": (0.229, 0.224, 0.225),
        "range": 1,
        "colours": "RGB",
        "layout": "NCHW",
        "resampling": "bilinear",
    }
    return Preprocessing(size=size, **settings | others)


def imagenet(size: int = 224, *, share: float | Fraction = Fraction(7, 8)) -> Preprocessing:
    """The preprocessing of most ImageNet models: mean and deviation of the channels to 0 and 1.

    size: of the input; the square has the `share` of the short side
    """
    return _like_imagenet(size, crop=share)


def efficientnet_lite(size: int) -> Preprocessing:
    """The preprocessing of EfficientNet-Lite: (x - 127) / 128 on the centre square.

    size: of the input; the square has the share size / (size + 32) of the short side
    """
    share = Fraction(size, size + 32)
    return _like_imagenet(size, crop=share, mean=127, deviation=128, range=255, resampling="bicubic")


_CLIP: dict[str, Any] = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "deviation": (0.26862954, 0.26130258, 0.27577711),
}
_CAFFE: dict[str, Any] = {"mean": (103.939, 116.779, 123.68), "deviation": 1, "range": 255, "colours": "BGR"}
PRESETS: Mapping[str, Callable[[int], Preprocessing]] = {
    "imagenet": imagenet,
    "efficientnet-lite": efficientnet_lite,
    # TensorFlow's Inception and most of Google's vision transformers: -1 to 1
    "inception": partial(_like_imagenet, mean=0.5, deviation=0.5, resampling="bicubic"),
    "clip": partial(_like_imagenet, crop=1, resampling="bicubic", **_CLIP),
    "caffe": partial(_like_imagenet, **_CAFFE),  # and Keras's ResNet50 and VGG: only the mean subtracted
}
"""Everything but size and layout, which are the model's own."""
SETTINGS = tuple(one.name for one in fields(Preprocessing))
_NAMED = " with "


def complete_preprocessing(name: str, stated: Mapping[str, Any], **known: Any) -> Preprocessing:
    """Complete a stated preprocessing by what the model itself says; refused unless that is all of it.

    name: of the model
    stated: settings by their names, as text or as values, and ``preset``, one of `PRESETS`, for the rest
    known: what the model itself says of its input
    """
    if unknown := set(stated) - {*SETTINGS, "preset"}:
        raise InvalidInput(f"preprocessing must be stated by {', '.join(SETTINGS)}, got {min(unknown)!r}")
    given = {key: _READ[key](value) for key, value in stated.items() if key != "preset"}
    for key, value in known.items():
        if given.setdefault(key, value) != value:
            raise InvalidInput(f"--{key} must be {value}, as {name} takes its images, got {given[key]}")
    preset = stated.get("preset")
    if preset is not None:
        if preset not in PRESETS:
            raise InvalidInput(f"--preset must be one of {', '.join(PRESETS)}, got {preset!r}")
        if "size" in given:
            given = vars(PRESETS[preset](given["size"])) | {"layout": None} | given
    missing = [key for key in SETTINGS if given.get(key) is None]
    if preset is not None and "size" in missing:
        missing = ["size", *(["layout"] if "layout" in missing else [])]
    if missing:
        rule = f"it must be stated by --preset ({', '.join(PRESETS)}) or one by one"
        got = ", ".join(f"--{key}" for key in missing)
        raise InvalidInput(f"{name} does not say how images go in: {rule}, got no {got}")
    return Preprocessing(**given)


def add_settings(name: str, preprocess: Preprocessing) -> str:
    """The name of a model with its stated preprocessing, for a certificate."""
    return f"{name}{_NAMED}{preprocess}"


def read_settings(name: str) -> dict[str, str]:
    """The preprocessing that a model's name in a certificate states; empty if it states none."""
    _, found, rest = name.rpartition(f"{_NAMED}size=")
    pairs = [pair.partition("=") for pair in f"size={rest}".split()] if found else []
    return {key: text for key, _, text in pairs}


def _crop(value: Any) -> Fraction | str:
    if value == WHOLE:
        return WHOLE
    try:
        share = Fraction(value).limit_denominator(100_000)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        share = Fraction(0)
    if not 0 < share <= 1:
        known = f"a share of the short side above 0, such as 0.875 or 224/256, or {WHOLE}"
        raise InvalidInput(f"--crop must be {known}, got {value!r}")
    return share


def _channels(option: str, value: Any) -> Channels:
    """One number for all channels, or three."""
    parts = value.split(",") if isinstance(value, str) else np.atleast_1d(value).tolist()
    try:
        numbers = [float(part) for part in parts]
    except (ValueError, TypeError):
        numbers = []
    if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
        raise InvalidInput(f"--{option} must be one number, or one for each channel as 1,2,3, got {value!r}")
    if option == "deviation" and min(numbers) <= 0:
        raise InvalidInput(f"--deviation must be above 0, got {value!r}")
    return tuple(3 * numbers if len(numbers) == 1 else numbers)  # type: ignore[return-value]


def _size(value: Any) -> int:
    number = check_integer("--size", int(value) if str(value).isdecimal() else value, least=1)
    if number > LARGEST:
        raise InvalidInput(f"--size must be at most {LARGEST:,} pixels, got {number:,}")
    return number


def _chosen(option: str, value: Any) -> Any:
    if str(value) not in CHOICES[option]:
        raise InvalidInput(f"--{option} must be one of {', '.join(CHOICES[option])}, got {value!r}")
    return int(value) if option == "range" else str(value)


_READ: dict[str, Callable[[Any], Any]] = {
    "size": _size,
    "crop": _crop,
    **{option: partial(_channels, option) for option in ("mean", "deviation")},
    **{option: partial(_chosen, option) for option in CHOICES},
}
