"""Common limits of robots, by the names of their states."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pac_core import HalfSpace, InvalidInput, Limit, StayIn
from pac_core.arrays import number

if TYPE_CHECKING:
    from pac_rl.environments import Environment

__all__ = ["SPEED", "Limit", "at_every_step", "no_flip", "speed_limit"]

SPEED = 3.2096
"""m/s: the limit of Safety-Gymnasium's velocity task of the half-cheetah."""


def speed_limit(environment: Environment, bound: float = SPEED) -> HalfSpace:
    """The limit "speed": forward velocity at most `bound`.

    >>> from pac_rl import make_environment
    >>> speed_limit(make_environment()).bound
    3.2096
    """
    return HalfSpace("speed", np.eye(len(environment.names))[_number(environment, "forward velocity")], bound)


def no_flip(environment: Environment, bound: float = math.pi / 2) -> StayIn:
    """The limit "pitch": the torso's pitch at most `bound` to either side, by default a right angle.

    SMBPO's own rule for its task of this name is contact of the head with the floor, which is no
    function of a limit on one number; a cheetah on its back has a pitch beyond a right angle.
    """
    bound = number("bound", bound)
    return StayIn("pitch", np.array([-bound]), np.array([bound]), axes=(_number(environment, "rooty"),))


def at_every_step(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """`limits`, refused if one holds at some steps of a plan only: a planner that plans again skips them."""
    for limit in limits:
        if getattr(limit, "steps", None) is not None:
            raise InvalidInput(
                f"limits must hold at every step where plans are made anew at each, got {limit.name!r} with "
                f"steps={limit.steps!r}"  # type: ignore[attr-defined]
            )
    return limits


def _number(environment: Environment, name: str) -> int:
    if name not in environment.names:
        raise InvalidInput(f"{environment.id} must have {name!r} in its state, got {environment.names}")
    return environment.names.index(name)
