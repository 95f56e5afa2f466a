"""Which plans keep the limits, judged by their tubes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from array_api_compat import array_namespace

from pac_core.arrays import Array, check_list, check_returned, convert_like, round_down
from pac_core.errors import InvalidInput
from pac_core.safety.limits import Limit, TubeLike, corners, empty_at


@dataclass(frozen=True, eq=False)
class CheckResult:
    """The checker's findings on B plans x H steps and C limits.

    margin: `[B, H, C]` how far each step stays inside each limit; NaN if nothing is known
    safe: `[B]` whether every margin is at least 0; NaN is unsafe
    """

    margin: Array
    safe: Array
    names: tuple[str, ...]
    limits: tuple[Limit, ...] = ()

    @cached_property
    def worst(self) -> Array:
        """`[B]` the smallest margin of each plan; -inf if one is NaN."""
        xp = array_namespace(self.margin)
        return xp.min(self._known, axis=(1, 2))

    @cached_property
    def first(self) -> tuple[Array, Array]:
        """`[B]` the first step, from 0, that may violate a limit, and `[B]` which limit; -1 if none."""
        xp = array_namespace(self.margin)
        wrong = xp.astype(xp.any(~(self.margin >= 0), axis=-1), xp.int64)
        step = xp.argmax(wrong, axis=1)
        rows = xp.arange(step.shape[0], device=self.margin.device)
        limit = xp.argmin(self._known[rows, step], axis=-1)
        none = xp.full_like(step, -1)
        return xp.where(self.safe, none, step), xp.where(self.safe, none, limit)

    def reason(self, i: int) -> str:
        """Why plan `i` is unsafe, or by how much it is safe; steps are counted from 1.

        >>> margin = np.array([[[0.5, 1.0], [-0.25, 0.75]]])
        >>> CheckResult(margin, np.array([False]), ("speed", "pitch")).reason(0)
        'speed: may be violated by 0.25 at step 2 of 2'
        """
        margin = convert_like(np.zeros(1), self.margin[i])
        if np.isnan(margin).all():
            return "the tube is empty"
        step, limit = (int(part[i]) for part in self.first)
        safe = step < 0
        if safe:
            step, limit = map(int, np.unravel_index(margin.argmin(), margin.shape))
        by, name = float(margin[step, limit]), self.names[limit]
        where = f"at step {step + 1} of {len(margin)}"
        if safe:
            return f"safe: the smallest margin is {round_down(by, 3)}, to {name} {where}"
        if np.isnan(by):
            return f"{name}: nothing is known {where}"
        if by == -np.inf:
            return f"{name}: the tube is unbounded {where}"
        words = getattr(self.limits[limit], "words", None) if self.limits else None
        return f"{name}: {words(by) if words else f'may be violated by {-by:.2g}'} {where}"

    def reasons(self) -> list[str]:
        """The reasons of all plans."""
        return [self.reason(i) for i in range(len(self.safe))]

    @cached_property
    def _known(self) -> Array:
        """The margins, with -inf for NaN."""
        xp = array_namespace(self.margin)
        return xp.where(xp.isnan(self.margin), convert_like(self.margin, -np.inf), self.margin)


class TubeChecker:
    """Checks tubes against limits, on the tubes' own device, in doubles.

    A tube that is empty or NaN at a step, in any number of the state, is unsafe, whatever the limits read.
    The answer is only as good as the tube: one that was calibrated on randomly drawn plans promises nothing
    about a plan that a planner picked because it passed the check.
    """

    def __init__(self, limits: Sequence[Limit]) -> None:
        self.limits = tuple(check_list("limits", limits))
        if strange := [limit for limit in self.limits if not hasattr(limit, "margin")]:
            raise InvalidInput(f"limits must be limits, with a name and a margin, got {strange[0]!r}")
        self.names = tuple(limit.name for limit in self.limits)
        if not self.limits or len(set(self.names)) < len(self.names):
            raise InvalidInput(f"limits must be one or more with different names, got {self.names}")

    def __call__(self, tube: TubeLike) -> CheckResult:
        lower, upper = corners(tube)
        shape = tuple(lower.shape[:2])
        margins = [
            check_returned(f"the margin of {limit.name!r}", limit.margin(tube), shape, lower)
            for limit in self.limits
        ]
        xp = array_namespace(lower)
        empty = empty_at(lower, upper)
        margin = xp.where(empty[..., None], convert_like(lower, np.nan), xp.stack(margins, axis=-1))
        return CheckResult(margin, xp.all(margin >= 0, axis=(1, 2)), self.names, self.limits)
