"""A table whose rows are known to be alike."""

from __future__ import annotations

import numpy as np

from pac_vision import Table


def world(n: int, seed: int = 0) -> Table:
    """y = 3 x + noise that grows with x; kind = whether x is above a half, with one in ten turned round."""
    rng = np.random.default_rng(seed)
    x, junk = rng.random(n), rng.normal(size=n)
    turned = rng.random(n) < 0.1
    y = 3 * x + (0.1 + x) * rng.normal(size=n)
    kind = np.where((x > 0.5) ^ turned, "high", "low")
    return Table("world", np.array([f"w{i}" for i in range(n)]), {"x": x, "junk": junk, "y": y, "kind": kind})
