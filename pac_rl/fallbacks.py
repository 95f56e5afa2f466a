"""What acts when no plan is safe: hold still, a backup policy, or stop with an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, PACError
from pac_core.arrays import returned

Fallback: TypeAlias = Literal["hold", "stop"] | Callable[[NDArray[np.float64]], Any]
"""`hold` is the action 0, `stop` raises `NoSafePlan`; a backup policy goes from a state to an action.

There is no default: the action 0 is rest for some robots, and for others a fall or full speed ahead.

From a state that is not finite no plan is safe, so the fallback acts: a backup policy is asked for an action
there too, and refused if it has none.

Nothing is promised of what the fallback does: it acts because nothing better was found.
"""
UNKNOWN = "the state is not a number"
"""The reason where there is no state to plan from."""


class NoSafePlan(PACError):
    """No plan was found safe, and the fallback that was chosen is to stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"no plan was safe, and the fallback is to stop; of the last one: {self.reason}"


def checked_fallback(fallback: Any) -> Fallback:
    """`fallback`, refused if it is none."""
    if fallback not in ("hold", "stop") and not callable(fallback):
        raise InvalidInput(f"fallback must be 'hold', 'stop' or a function of the state, got {fallback!r}")
    chosen: Fallback = fallback
    return chosen


def fallback_action(
    fallback: Fallback, state: Any, low: NDArray[np.float64], high: NDArray[np.float64], reason: str
) -> NDArray[np.float64]:
    """`[A]` the fallback's action in this state, within its range.

    >>> fallback_action("hold", np.zeros(3), np.array([-1.0, 0.5]), np.ones(2), "too fast").tolist()
    [0.0, 0.5]
    """
    if fallback == "stop":
        raise NoSafePlan(reason)
    if isinstance(fallback, str):
        return np.clip(np.zeros_like(low), low, high)
    action = returned("the fallback's action", fallback(np.asarray(state)), low.shape, low)
    if not np.isfinite(action).all():
        raise InvalidInput(f"the fallback must return {len(low)} finite numbers, got {action}")
    return np.asarray(np.clip(action, low, high))
