"""Classifiers for the tests: two labels by brightness, with doubt near the middle; an ONNX file."""

from __future__ import annotations

import torch

from pac_vision import Classifier, imagenet


class Bright(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        light = images.mean(dim=(1, 2, 3))
        return torch.stack([-light, light], dim=1)


def bright() -> Classifier:
    return Classifier.of("bright", Bright(), imagenet())


def bright_too() -> Classifier:
    """The same function with a weight, so that it is another model."""
    model = Bright()
    model.register_buffer("unused", torch.zeros(1))
    return Classifier.of("bright", model, imagenet())


def bare() -> torch.nn.Module:
    """A module, which does not say how images go in."""
    return Bright()


def _number(value: int) -> bytes:
    """A number as a protocol buffer has it: seven bits a byte, the lowest first."""
    more, rest = value & 127, value >> 7
    return bytes([more | 128]) + _number(rest) if rest else bytes([more])


def _field(number: int, *values: bytes | str | int) -> bytes:
    """A field of a protocol buffer, once per value."""
    out = b""
    for value in values:
        if isinstance(value, int):
            out += _number(number << 3) + _number(value)
            continue
        data = value.encode() if isinstance(value, str) else value
        out += _number(number << 3 | 2) + _number(len(data)) + data
    return out


def onnx_means(
    *,
    side: int | str,
    batch: int | str = "B",
    channels: int | str = 3,
    layout: str = "NCHW",
    softmax: bool = False,
    outputs: tuple[str, ...] = ("y",),
) -> bytes:
    """An ONNX file that returns the mean of each channel; dimensions that are text may vary."""

    def port(name: str, *sides: int | str) -> bytes:
        shape = b"".join(_field(1, _field(2 if isinstance(side, str) else 1, side)) for side in sides)
        return _field(1, name) + _field(2, _field(1, _field(1, 1) + _field(2, shape)))

    def node(kind: str, source: str, target: str, *attributes: bytes) -> bytes:
        return _field(1, _field(1, source) + _field(2, target) + _field(4, kind) + _field(5, *attributes))

    order = _field(1, "perm") + _field(8, 0, 3, 1, 2) + _field(20, 7)
    graph = node("Transpose", "x", "t", order) if layout == "NHWC" else node("Identity", "x", "t")
    graph += node("GlobalAveragePool", "t", "m") + node("Flatten", "m", "f")
    graph += node("Softmax" if softmax else "Identity", "f", "y") + _field(2, "means")
    shape = (batch, side, side, channels) if layout == "NHWC" else (batch, channels, side, side)
    graph += _field(11, port("x", *shape))
    for name in outputs:
        graph += _field(12, port(name, batch, channels, *((1, 1) if name == "m" else ())))
    return _field(1, 8) + _field(7, graph) + _field(8, _field(1, "") + _field(2, 13))
