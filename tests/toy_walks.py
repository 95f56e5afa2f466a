"""A task whose answers are known: random walks and a forecast that is too sure of itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from pac_core.certificates import Record
from pac_core.runs import Stage, Task

UNITS, HORIZON, DIMS = 900, 4, 2


def world(ids: Any) -> dict[str, Any]:
    """Random walks, a forecast that is too sure of itself, and some that end early."""
    draws = [np.random.default_rng(unit) for unit in np.asarray(ids).tolist()]
    truth = np.stack([draw.normal(size=(HORIZON, DIMS)).cumsum(axis=0) for draw in draws])
    mean = np.stack([0.1 * draw.normal(size=(HORIZON, DIMS)) for draw in draws])
    lengths = np.array([draw.integers(1, HORIZON + 1) if draw.uniform() < 0.1 else HORIZON for draw in draws])
    var = np.full_like(mean, 0.5)
    return {"ids": np.asarray(ids), "truth": truth, "mean": mean, "var": var, "lengths": lengths}


class Walks:
    """What `world` says, and a second ensemble that says it with more doubt."""

    def __init__(self, *, device: str) -> None:
        pass

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        found = world(shard.ids)
        return found | {"mean_2": found["mean"], "var_2": 4 * found["var"]}


class ExplodingWalks(Walks):
    """The model explodes on every fiftieth unit, in its last step; the smaller one on none."""

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        found = super().__call__(shard, given)
        mean = found["mean"].copy()
        mean[found["ids"] % 50 == 0, -1] = np.nan
        return found | {"mean": mean}


def walking(make: Any = Walks, **changes: Any) -> Task:
    options: dict[str, Any] = {"size": 64, "tune": 300, "calibrate": 300, "seed": 3} | changes
    names = [f"walk/{i}" for i in range(UNITS)]
    model = Record("a walk", digest="0" * 64)
    return Task.of("walks", range(UNITS), [Stage(make)], names=names, unit="walk", model=model, **options)
