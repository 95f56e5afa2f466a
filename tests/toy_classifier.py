"""A classifier for the tests: two labels by brightness, with doubt near the middle."""

from __future__ import annotations

import torch


class Bright(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        light = images.mean(dim=(1, 2, 3))
        return torch.stack([-light, light], dim=1)


def bright() -> torch.nn.Module:
    return Bright().eval()


def bright_too() -> torch.nn.Module:
    """The same function with a weight, so that it is another model."""
    model = Bright().eval()
    model.register_buffer("unused", torch.zeros(1))
    return model
