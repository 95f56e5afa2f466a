"""A robot on a line whose best safe plan is known: x' = x + a, with a tube of known width."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pac_core import GaussianForecast, HalfSpace, TubeChecker
from pac_core.sets import Boxes, ConfidenceSets

WIDTH = 0.1
"""Half of the tube's width; the wall at 1 is kept by plans whose mean stays below 0.9."""
WALL = TubeChecker([HalfSpace("wall", np.ones(1), 1.0)])


def forecast(starts: Tensor, plans: Tensor) -> GaussianForecast:
    mean = starts[:, None].to(plans) + plans.cumsum(dim=1)
    return GaussianForecast(mean, torch.full_like(mean, 0.01))


class Tubes:
    """Boxes of a known width around the mean; calibrated for `steps`, if told."""

    def __init__(self, steps: int | None = None) -> None:
        self.domain = None if steps is None else ("trajectories", steps, 1)
        self.seen: list[int] = []

    def tube(self, forecast: GaussianForecast) -> ConfidenceSets:
        self.seen.append(int(forecast.mean.shape[1]))
        center = forecast.mean.to(torch.float64)
        region = Boxes(center, center - WIDTH, center + WIDTH)
        sound = torch.isfinite(center).all(dim=2).all(dim=1)
        return ConfidenceSets(region, lambda truth: truth, 1.0, sound, tuple(center.shape))


def rightwards(initial_state: Any, plans: Tensor) -> Tensor:
    """The sum of the positions: the more to the right the better."""
    start = torch.as_tensor(np.asarray(initial_state), dtype=plans.dtype)
    return (start + plans.cumsum(dim=1)).sum(dim=(1, 2))
