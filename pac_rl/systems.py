"""Robots: a MuJoCo environment of Gymnasium with the state a model sees of it, and limits by its names."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core import HalfSpace, InvalidInput, StayIn
from pac_core.arrays import check_number
from pac_core.safety import Limit

if TYPE_CHECKING:
    from gymnasium.envs.mujoco import MujocoEnv

Floats: TypeAlias = NDArray[np.float64]
Physics: TypeAlias = Floats
"""`[B, S]` what MuJoCo needs to go on: time, qpos, qvel and activations of each simulation."""
Observe: TypeAlias = "Callable[[MujocoEnv, Physics, Physics], Floats]"
"""From the environment and the physics before and after a step to states `[B, D]`."""
Ends: TypeAlias = "Callable[[MujocoEnv, Physics], NDArray[np.bool_]]"
"""From the environment and physics to `[B]` whether the episode ends there."""

_ONE_AT_A_TIME = Lock()  # threads share Gymnasium's environment, which keeps one state


def require_module(module: str) -> Any:
    """The module of this name, refused in one sentence where it is not installed.

    Tubes and guards work without a simulator, so whatever needs one asks for it only then.
    """
    try:
        return import_module(module)
    except ImportError as error:
        more = " and then mbrl-lib itself, pip install --no-deps mbrl==0.2.0" if module[:4] == "mbrl" else ""
        raise InvalidInput(f"{module} is needed here: install pac-sets[rl]{more} ({error})") from None


@dataclass(frozen=True, eq=False)
class Environment:
    """A simulator with a state of D numbers and actions of A numbers.

    id: Gymnasium's name
    gym: the environment itself, for resets and its model
    names: D names of the state's numbers
    observe, ends: see `Observe` and `Ends`
    view: from states `[B, D]` to what Gymnasium would show a policy, numpy or torch
    """

    id: str
    gym: MujocoEnv
    names: tuple[str, ...]
    observe: Observe
    ends: Ends
    view: Callable[[Any], Any]

    @cached_property
    def low(self) -> Floats:
        """`[A]` the smallest action."""
        return np.asarray(self.gym.action_space.low, dtype=np.float64)  # type: ignore[attr-defined]

    @cached_property
    def high(self) -> Floats:
        """`[A]` the largest action."""
        return np.asarray(self.gym.action_space.high, dtype=np.float64)  # type: ignore[attr-defined]

    @property
    def dt(self) -> float:
        """Seconds of one step."""
        return float(self.gym.dt)

    def reset(self, seed: int) -> Floats:
        """`[S]` the physics Gymnasium's own reset gives for this seed."""
        with _ONE_AT_A_TIME:
            self.gym.reset(seed=seed)
            return read_physics(self.gym)

    def __repr__(self) -> str:
        return f"Environment({self.id}: {len(self.names)} state numbers, {len(self.low)} action numbers)"


def read_physics(gym: MujocoEnv) -> Floats:
    """`[S]` the physics of Gymnasium's simulation as it stands."""
    mujoco = require_module("mujoco")
    full = mujoco.mjtState.mjSTATE_FULLPHYSICS
    physics = np.empty(mujoco.mj_stateSize(gym.model, full))
    mujoco.mj_getState(gym.model, gym.data, physics, full)
    return physics


def make_environment(
    id: str = "HalfCheetah-v5",
    *,
    observe: Observe | None = None,
    names: tuple[str, ...] | None = None,
    ends: Ends | None = None,
    view: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Environment:
    """The environment of this id; `options` go to Gymnasium.

    Known ids bring their state; for another MuJoCo id give `observe`, `names` and `ends` (and `view`,
    if policies see something else than the state). With a state of your own, a known id keeps its end only.

    >>> cheetah = make_environment()
    >>> cheetah
    Environment(HalfCheetah-v5: 18 state numbers, 6 action numbers)
    >>> cheetah.names[:3]
    ('forward velocity', 'rootz', 'rooty')
    """
    robot = KNOWN.get(id, Robot())
    if observe is None:
        observe, view = robot.observe, view or robot.view  # a view is of the robot's own state
    ends = ends or robot.ends
    if observe is None or ends is None:
        known = ", ".join(KNOWN)
        raise InvalidInput(f"id must be one of {known}; for another, as {id!r}, give observe, names and ends")
    if observe is not pets_state and names is None:
        raise InvalidInput("names must be given with observe, one for each number of the state, got None")
    gymnasium, mujoco = require_module("gymnasium"), require_module("mujoco")
    loud = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(_without_total_mass)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of an older version of the same robot
            gym = gymnasium.make(id, **options).unwrapped
    except gymnasium.error.Error as error:
        raise InvalidInput(f"id must be an environment that Gymnasium can make: {error}") from None
    finally:
        mujoco.set_mju_user_warning(loud)
    if not isinstance(gym, require_module("gymnasium.envs.mujoco").MujocoEnv):
        raise InvalidInput(f"id must name a MuJoCo environment of Gymnasium, got {type(gym).__name__}")
    names = names or pets_names(gym)
    return Environment(id, gym, tuple(names), observe, ends, view or (lambda states: states))


def _without_total_mass(text: str) -> None:
    """MuJoCo's warnings, but for the one that Gymnasium's half-cheetah always draws."""
    if "settotalmass" not in text:
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def pets_state(gym: MujocoEnv, before: Physics, after: Physics) -> Floats:
    """`[B, D]` forward velocity over the step, then qpos without x, then qvel: the state of PETS."""
    velocity = (after[:, 1:2] - before[:, 1:2]) / gym.dt
    return np.concatenate([velocity, after[:, 2 : 1 + gym.model.nq + gym.model.nv]], axis=1)


def pets_names(gym: MujocoEnv) -> tuple[str, ...]:
    """The names of `pets_state`: each joint, then its velocity."""
    joints = [gym.model.joint(i).name for i in range(gym.model.njnt)]
    return ("forward velocity", *joints[1:], *(f"{joint} velocity" for joint in joints))


def never(gym: MujocoEnv, physics: Physics) -> NDArray[np.bool_]:
    return np.zeros(len(physics), dtype=bool)


def hopper_falls(gym: Any, physics: Physics) -> NDArray[np.bool_]:
    """Gymnasium's rule for the hopper: height, angle and all other numbers inside their ranges."""
    if not gym._terminate_when_unhealthy:
        return never(gym, physics)
    low, high = gym._healthy_state_range
    others = physics[:, 3 : 1 + gym.model.nq + gym.model.nv]
    return np.asarray(walker_falls(gym, physics) | ~((low < others) & (others < high)).all(axis=1))


def walker_falls(gym: Any, physics: Physics) -> NDArray[np.bool_]:
    """Gymnasium's rule for the walker: height and angle inside their ranges."""
    unhealthy = never(gym, physics)
    if not gym._terminate_when_unhealthy:
        return unhealthy
    for column, (low, high) in ((2, gym._healthy_z_range), (3, gym._healthy_angle_range)):
        unhealthy |= ~((low < physics[:, column]) & (physics[:, column] < high))
    return unhealthy


def without_velocity(states: Any) -> Any:
    """Gymnasium's half-cheetah: all but the forward velocity."""
    return states[..., 1:]


def clipped(states: Any) -> Any:
    """Gymnasium's hopper and walker: joint velocities clipped to 10."""
    positions = states.shape[-1] // 2
    view = without_velocity(states) + 0
    view[..., positions - 1 :] = view[..., positions - 1 :].clip(-10, 10)
    return view


class Robot(NamedTuple):
    """What belongs to one environment alone; the fields are those of `Environment`."""

    observe: Observe | None = None
    ends: Ends | None = None
    view: Callable[[Any], Any] | None = None


KNOWN = {
    "HalfCheetah-v5": Robot(pets_state, never, without_velocity),
    "Hopper-v5": Robot(pets_state, hopper_falls, clipped),
    "Walker2d-v5": Robot(pets_state, walker_falls, clipped),
}


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
    bound = check_number("bound", bound)
    return StayIn("pitch", np.array([-bound]), np.array([bound]), axes=(_number(environment, "rooty"),))


def at_every_step(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """`limits`, refused if one holds at some steps of a plan only: a planner that plans again skips them."""
    for limit in limits:
        if getattr(limit, "steps", None) is not None:
            got = f"{limit.name!r} with steps={limit.steps!r}"  # type: ignore[attr-defined]
            raise InvalidInput(f"limits must hold at every step where plans are made anew at each, got {got}")
    return limits


def _number(environment: Environment, name: str) -> int:
    if name not in environment.names:
        raise InvalidInput(f"{environment.id} must have {name!r} in its state, got {environment.names}")
    return environment.names.index(name)
