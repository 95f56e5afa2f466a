"""Limits that a robot must keep, and by how much a tube keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_core.arrays import Array, numbers


class TubeLike(Protocol):
    """The few methods of a tube of B plans x H steps that limits read; any object with them can be checked."""

    def support(self, direction: Any) -> Array:
        """`[B, H]` the largest value of `direction . x` over the tube; NaN where it is empty."""

    def box(self) -> tuple[Array, Array]:
        """`[B, H, D]` lower and upper corners of the bounding boxes; NaN where empty."""


class Limit(Protocol):
    """Something a state must keep.

    `margin` is at least 0 where every state of the tube keeps it; NaN where nothing can be said.
    """

    @property
    def name(self) -> str: ...

    def margin(self, tube: TubeLike) -> Array:
        """`[B, H]` how far the tube stays inside: exact, or a proven lower bound."""

    def violated(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        """`[..., H]` whether true states `[..., H, D]` break it."""


@dataclass(frozen=True, eq=False)
class HalfSpace:
    """normal . x <= bound. The margin is exact.

    normal: `[D]`
    """

    name: str
    normal: NDArray[np.float64]
    bound: float

    def __post_init__(self) -> None:
        normal = numbers("normal", self.normal, "[D]", finite=True)
        if not normal.any() or not np.isfinite(self.bound):
            raise InvalidInput("normal must not be all 0 and bound be finite")
        object.__setattr__(self, "normal", normal.astype(np.float64))

    def margin(self, tube: TubeLike) -> Array:
        return self.bound - tube.support(self.normal)

    def violated(self, states: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.asarray(~(states @ self.normal <= self.bound))
