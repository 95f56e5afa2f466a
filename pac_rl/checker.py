"""Which of many plans keep the limits, asked of their tubes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from array_api_compat import array_namespace

from pac_core import InvalidInput
from pac_core.arrays import Array
from pac_rl.limits import Limit, TubeLike


@dataclass(frozen=True, eq=False)
class Checked:
    """What the checker says of B plans x H steps and C limits.

    margin: `[B, H, C]` how far each step stays inside each limit; NaN if nothing can be said
    safe: `[B]` whether every margin is at least 0; a NaN is unsafe
    names: C names of the limits
    """

    margin: Array
    safe: Array
    names: tuple[str, ...]


class TubeChecker:
    """Checks tubes against limits, on whatever device the tubes are."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        if not limits:
            raise InvalidInput("limits must be one or more, got none")
        self.limits = tuple(limits)

    def __call__(self, tube: TubeLike) -> Checked:
        margins = [limit.margin(tube) for limit in self.limits]
        xp = array_namespace(*margins)
        margin = xp.stack(margins, axis=-1)
        return Checked(margin, xp.all(margin >= 0, axis=(1, 2)), tuple(limit.name for limit in self.limits))
