"""Backbones: from crops to feature maps, by a network that was trained on something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pac_core import InvalidInput
from pac_vision.classifiers import one_thread, weights_digest
from pac_vision.decoding import first_line
from pac_vision.models import SIZES, call_factory, efficientnet_module
from pac_vision.preprocessing import Preprocessing, efficientnet_lite, imagenet

STRIDE = 16
"""Pixels of a crop per place of an EfficientNet's feature map: deeper, and it no longer tells where."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """A network that turns crops into feature maps.

    name: what it was loaded by
    module: float32 `[B, 3, size, size]` -> `[B, C, h, w]`, in evaluation mode
    size: of the crops, in pixels
    shape: (C, h, w)
    digest: a fingerprint of its weights
    normalise: pixels 0 to 255 `[B, 3, size, size]` -> what the module was trained on
    """

    name: str
    module: nn.Module
    size: int
    shape: tuple[int, int, int]
    digest: str
    normalise: Callable[[Tensor], Tensor]
    device: str = "cpu"

    @classmethod
    def of(
        cls,
        name: str,
        module: nn.Module,
        size: int,
        normalise: Callable[[Tensor], Tensor] | None = None,
        *,
        device: str = "cpu",
    ) -> Backbone:
        """Any torch module `[B, 3, size, size]` -> `[B, C, h, w]` or `[B, C]`.

        normalise: by default the channels get the mean 0 and deviation 1 of ImageNet

        >>> pooled = Backbone.of("pool", nn.AvgPool2d(8), 32)
        >>> pooled.shape, pooled(np.zeros((2, 32, 32, 3), np.uint8)).shape
        ((3, 4, 4), torch.Size([2, 3, 4, 4]))
        """
        module = module.to(device).eval()
        module.requires_grad_(False)
        normalise = normalise or partial(_normalise, imagenet())
        found = cls(name, module, size, (1, 1, 1), weights_digest(module), normalise, device)
        try:
            _, features, height, width = found(np.zeros((1, size, size, 3), np.uint8)).shape
        except Exception as error:  # whatever a network raises at a shape that is not its own
            shape = f"[B, 3, {size}, {size}]"
            why = f"the backbone {name} must take crops {shape}, but it failed: {first_line(error)}"
            raise InvalidInput(why) from None
        return replace(found, shape=(features, height, width))

    def __call__(self, crops: NDArray[np.uint8]) -> Tensor:
        """`[B, C, h, w]` the features of crops `[B, size, size, 3]`."""
        with torch.inference_mode(), one_thread():
            pixels = torch.from_numpy(np.ascontiguousarray(crops)).to(self.device)
            found: Tensor = self.module(self.normalise(pixels.permute(0, 3, 1, 2).float()))
            if found.ndim == 2:
                found = found[:, :, None, None]
            if found.ndim != 4 or not bool(torch.isfinite(found).all()):
                raise InvalidInput(f"the backbone {self.name} must give finite features [B, C, h, w]")
            return found

    def to(self, device: str) -> Backbone:
        """Move it to another device."""
        return replace(self, module=self.module.to(device), device=device)


def load_backbone(name: str, size: int, device: str = "cpu") -> Backbone:
    """Load a backbone for crops of `size` pixels.

    name: ``efficientnet-lite0``, ``-lite1`` or ``-lite2`` with ImageNet weights, up to the last feature map
        with a place for every 16 pixels; ``pixels``: the crop itself, 16 x 16, which needs no weights; or
        ``python:MODULE:FACTORY``: your function, called without
        arguments, that returns a torch module `[B, 3, size, size]` -> `[B, C, h, w]` or a `Backbone`
    """
    if name in SIZES or name == "pixels":
        pixels = name == "pixels"
        module = nn.AdaptiveAvgPool2d(16) if pixels else _Features(efficientnet_module(name), size)
        return Backbone.of(name, module, size, partial(_normalise, efficientnet_lite(size)), device=device)
    if not name.startswith("python:"):
        forms = [*SIZES, "pixels", "python:MODULE:FACTORY"]
        raise InvalidInput(f"a backbone must be named as one of {', '.join(forms)}, got {name!r}")
    made = call_factory(name, name.removeprefix("python:"), device)
    if isinstance(made, Backbone):
        return made
    if not isinstance(made, nn.Module):
        raise InvalidInput(f"{name} must return a torch module or a Backbone, got {type(made).__name__}")
    return Backbone.of(name, made, size, device=device)


class _Features(nn.Module):
    """The first blocks of an EfficientNet."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(network._conv_stem, network._bn0, network._swish)  # type: ignore[arg-type]
        self.blocks = nn.ModuleList()
        with torch.inference_mode():
            x = self.stem.eval()(torch.zeros(1, 3, size, size))
            for block in network._blocks:  # type: ignore[union-attr]
                x = block.eval()(x)
                if x.shape[-1] * STRIDE < size:
                    break
                self.blocks.append(block)

    def forward(self, crops: Tensor) -> Tensor:
        x: Tensor = self.stem(crops)
        for block in self.blocks:
            x = block(x)
        return x


def _normalise(like: Preprocessing, pixels: Tensor) -> Tensor:
    mean, deviation = (
        torch.tensor(v, device=pixels.device)[:, None, None] for v in (like.mean, like.deviation)
    )
    return (pixels / (255 / like.range) - mean) / deviation
