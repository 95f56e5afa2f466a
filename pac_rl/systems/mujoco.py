"""Robots: a MuJoCo environment of Gymnasium with the state a model sees of it, and limits by its names."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock, local
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from pac_core import FeatureLimit, HalfSpace, InvalidInput, StayIn
from pac_core.arrays import check_number, norm
from pac_core.safety import Limit
from pac_rl.systems.functions import Advanced, Floats, Lazy, Rngs, check_bools, require_module

if TYPE_CHECKING:
    from gymnasium.envs.mujoco import MujocoEnv

Physics: TypeAlias = Floats
"""`[B, S]` what MuJoCo needs to go on: time, qpos, qvel and activations of each simulation."""
Observe: TypeAlias = "Callable[[MujocoEnv, Physics, Physics], Floats]"
"""From the environment and the physics before and after a step to states `[B, D]`."""
Ends: TypeAlias = "Callable[[MujocoEnv, Physics], NDArray[np.bool_]]"
"""From the environment and physics to `[B]` whether the episode ends there."""

_ONE_AT_A_TIME = Lock()  # threads share Gymnasium's environment, which keeps one state


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

    The half-cheetah, hopper and walker have the state of PETS; of any other robot it is qpos and qvel, by the
    names of the joints. For a state of your own give `observe` and `names`, and `view` if policies see
    something else. An episode ends by Gymnasium's own rule, unless `ends` has another.

    >>> make_environment()
    Environment(HalfCheetah-v5: 18 state numbers, 6 action numbers)
    >>> make_environment().names[:3]
    ('forward velocity', 'rootz', 'rooty')
    >>> make_environment("Ant-v5").names[:4]
    ('root x', 'root y', 'root z', 'root qw')
    """
    robot = KNOWN.get(id, PLAIN)
    if observe is not None and names is None:
        raise InvalidInput("names must be given with observe, one for each number of the state, got None")
    gym = _make(id, options)
    if observe is None:  # a view is of the robot's own state
        names, view = names or robot.names(gym), view or robot.view(gym)
    view = view or (lambda states: states)
    return Environment(id, gym, tuple(names or ()), observe or robot.observe, ends or robot.ends, view)


def _make(id: str, options: dict[str, Any]) -> MujocoEnv:
    gymnasium, mujoco = require_module("gymnasium"), require_module("mujoco")
    loud = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(_without_total_mass)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of an older version of the same robot
            gym = gymnasium.make(id, **options).unwrapped
    except Exception as error:  # a name that is unknown, an option that it does not take
        raise InvalidInput(f"id and options must be what Gymnasium can make: {error}") from None
    finally:
        mujoco.set_mju_user_warning(loud)
    if not isinstance(gym, require_module("gymnasium.envs.mujoco").MujocoEnv):
        got = f"{type(gym).__name__}: that is for GymSystem"
        raise InvalidInput(f"id must name a MuJoCo environment of Gymnasium, got {got}")
    return gym  # type: ignore[no-any-return]


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


def plain_state(gym: MujocoEnv, before: Physics, after: Physics) -> Floats:
    """`[B, D]` qpos, then qvel."""
    return after[:, 1 : 1 + gym.model.nq + gym.model.nv]


def plain_names(gym: MujocoEnv) -> tuple[str, ...]:
    """The names of `plain_state`: each joint, with the part of it where it has several."""
    names: tuple[list[str], list[str]] = [], []
    for i in range(gym.model.njnt):
        joint = gym.model.joint(i).name or f"joint {i}"
        for found, parts in zip(names, _PARTS.get(int(gym.model.jnt_type[i]), ("", "")), strict=True):
            found += [f"{joint} {part}" for part in parts.split()] or [joint]
    return (*names[0], *(f"{name} velocity" for name in names[1]))


_PARTS = {0: ("x y z qw qx qy qz", "x y z rx ry rz"), 1: ("qw qx qy qz", "rx ry rz")}
"""Of a free joint and of a ball: place and quaternion; velocity, and the turn about its own axes."""


def plain_view(gym: Any) -> Callable[[Any], Any] | None:
    """What Gymnasium would show a policy, where that is the state without its first numbers."""
    shown, _ = gym.reset(seed=0)
    state = np.concatenate([gym.data.qpos, gym.data.qvel])
    hidden = len(state) - len(shown)
    same = hidden >= 0 and np.array_equal(state[hidden:], shown)
    return (lambda states: states[..., hidden:]) if same else None


def gymnasium_ends(gym: Any, physics: Physics) -> NDArray[np.bool_]:
    """Gymnasium's own rule, asked row by row: in a step of its own, during which no time passes."""
    nq, nv = gym.model.nq, gym.model.nv
    still, ended = np.zeros(gym.action_space.shape), never(gym, physics)
    with _ONE_AT_A_TIME:
        gym.do_simulation = lambda control, frames: None
        try:
            for row in np.flatnonzero(np.isfinite(physics).all(axis=1)):
                gym.set_state(*np.split(physics[row, 1 : 1 + nq + nv], [nq]))
                then = gym.data.time
                ended[row] = gym.step(still)[2]
                if gym.data.time != then:
                    raise InvalidInput("ends must be given for an environment with a simulation of its own")
        finally:
            del gym.do_simulation
    return ended


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
    """A state, its names, the rule for an early end, and what a policy sees of the state, for one robot."""

    observe: Observe
    names: Callable[[MujocoEnv], tuple[str, ...]]
    ends: Ends
    view: Callable[[MujocoEnv], Callable[[Any], Any] | None]


PLAIN = Robot(plain_state, plain_names, gymnasium_ends, plain_view)
KNOWN = {
    "HalfCheetah-v5": Robot(pets_state, pets_names, never, lambda gym: without_velocity),
    "Hopper-v5": Robot(pets_state, pets_names, hopper_falls, lambda gym: clipped),
    "Walker2d-v5": Robot(pets_state, pets_names, walker_falls, lambda gym: clipped),
}


SPEED = 3.2096
"""m/s: the limit of Safety-Gymnasium's velocity task of the half-cheetah."""
VELOCITIES: dict[str, tuple[float, tuple[str, ...]]] = {
    "HalfCheetah": (SPEED, ("rootx velocity",)),
    "Hopper": (0.7402, ("rootx velocity",)),
    "Walker2d": (2.3415, ("rootx velocity",)),
    "Swimmer": (0.2282, ("slider1 velocity",)),
    "Ant": (2.6222, ("root x velocity", "root y velocity")),
    "Humanoid": (1.4149, ("x velocity", "y velocity")),
}
"""m/s, and which numbers of the state it limits; of two, the speed in the plane: `tasks/safe_velocity` of
github.com/PKU-Alignment/safety-gymnasium, version 1 of each task."""


def velocity_limit(system: Environment | MujocoSystem, bound: float | None = None) -> Limit:
    """The limit "speed" of Safety-Gymnasium's velocity task for this robot; `bound` for another than its own.

    The task takes the mean over a step: along x, or in the plane for Ant and Humanoid. So does a state with
    `forward velocity` (or `x velocity` and `y velocity`), as that of PETS. A state of qpos and qvel has the
    velocity at the end of the step, and that is limited then. The humanoid's is that of its centre of mass,
    which qpos and qvel do not hold: give `observe` and `names`.

    >>> velocity_limit(make_environment()).bound
    3.2096
    >>> velocity_limit(make_environment("Ant-v5")).axes
    (15, 16)
    """
    robot = system.id.partition("-")[0]
    if robot not in VELOCITIES:
        raise InvalidInput(f"a velocity limit is known of {', '.join(VELOCITIES)}, got {system.id}")
    known, at_end = VELOCITIES[robot]
    over_step = ("forward velocity",) if len(at_end) == 1 else ("x velocity", "y velocity")
    names = over_step if over_step[0] in system.names else at_end
    axes = tuple(_number(system, name) for name in names)
    bound = known if bound is None else check_number("bound", bound)
    if len(axes) == 1:
        return HalfSpace("speed", np.eye(len(system.names))[axes[0]], bound)
    return FeatureLimit("speed", norm, upper=bound, axes=axes, bounds=_norm_bounds)


def _norm_bounds(lower: Any, upper: Any) -> tuple[Any, Any]:
    """The least and the largest norm in boxes with these corners."""
    xp = array_namespace(lower)
    nearest = xp.maximum(xp.maximum(lower, -upper), xp.zeros_like(lower))
    return norm(nearest), norm(xp.maximum(xp.abs(lower), xp.abs(upper)))


def no_flip(environment: Environment | MujocoSystem, bound: float = math.pi / 2) -> StayIn:
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


def _number(environment: Environment | MujocoSystem, name: str) -> int:
    if name not in environment.names:
        raise InvalidInput(f"{environment.id} must have {name!r} in its state, got {environment.names}")
    return environment.names.index(name)


class Simulator:
    """MuJoCo's batched stepping in the calling thread; several threads may share one."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._model = environment.gym.model
        self._frames = environment.gym.frame_skip
        self._own = local()  # data and buffers belong to a thread

    def step(
        self, physics: Physics, rows: NDArray[np.intp], controls: Floats
    ) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
        """Moves the given rows of `physics` one step on, in place; their states, and which ended or diverged.

        Solver warm starts are not carried over, so that the physics are all there is to know of the past.
        """
        count = len(rows)
        if not count:
            return np.empty((0, len(self.environment.names))), np.empty(0, bool), np.empty(0, bool)
        if not hasattr(self._own, "pool"):
            self._own.pool = require_module("mujoco.rollout").Rollout(nthread=0)  # the caller does the work
            self._own.data = [require_module("mujoco").MjData(self._model)]
        before = physics[rows]
        held = np.repeat(controls[:, None], self._frames, axis=1)
        frames = np.empty((count, self._frames, physics.shape[1]))
        # The arrays are as MuJoCo wants them; its own checks would take a tenth of the time.
        options = {"skip_checks": True, "nstep": self._frames, "state": frames}
        self._own.pool.rollout([self._model] * count, self._own.data, before, held, **options)
        after = frames[:, -1]
        # A simulation that breaks is reset by MuJoCo, and its clock with it.
        diverged = ~(abs(after[:, 0] - before[:, 0] - self.environment.dt) < self._model.opt.timestep / 2)
        diverged |= ~np.isfinite(after.sum(axis=1))  # of numbers that are all finite
        physics[rows] = after
        states = observed(self.environment, before, after, diverged)
        ends = self.environment.ends(self.environment.gym, after)
        return states, check_bools("ends", ends, (count,), f"{count} robots"), diverged


def observed(
    environment: Environment, before: Physics, after: Physics, diverged: NDArray[np.bool_]
) -> Floats:
    """`[B, D]` the states after a step; of a simulation that diverged they may be anything."""
    states = np.asarray(environment.observe(environment.gym, before, after), dtype=np.float64)
    wanted = (len(after), len(environment.names))
    if states.shape != wanted:
        raise InvalidInput(f"observe must return states of shape {wanted}, a name each, got {states.shape}")
    if np.isnan(states[~diverged]).any():
        raise InvalidInput("observe must return numbers, got NaN from a simulation that did not diverge")
    return states


@dataclass(frozen=True, eq=False, init=False)
class MujocoSystem(Lazy):
    """A MuJoCo environment of Gymnasium, by its id: batched, bit for bit as `simulate` steps it.

    options: Gymnasium's own, and those of `make_environment`, which says what the state is

    It holds no more than this, so that it goes to workers; the environment is made where it is first used.
    Rows carry the physics whole, whatever the state shows of it.
    """

    id: str
    options: dict[str, Any]

    def __init__(self, id: str = "HalfCheetah-v5", **options: Any) -> None:
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "options", dict(sorted(options.items())))

    @cached_property
    def environment(self) -> Environment:
        return make_environment(self.id, **self.options)

    @cached_property
    def simulator(self) -> Simulator:
        return Simulator(self.environment)

    @property
    def names(self) -> tuple[str, ...]:
        return self.environment.names

    @property
    def low(self) -> Floats:
        return self.environment.low

    @property
    def high(self) -> Floats:
        return self.environment.high

    def begin(self, rngs: Rngs) -> Floats:
        physics = np.stack([self.environment.reset(int(rng.integers(2**31))) for rng in rngs])
        return np.hstack(
            [physics, observed(self.environment, physics, physics, np.zeros(len(physics), bool))]
        )

    def see(self, rows: Floats) -> Floats:
        return rows[:, -len(self.names) :]

    def advance(self, rows: Floats, actions: Floats, rngs: Rngs) -> Advanced:
        physics = rows[:, : -len(self.names)].copy()
        states, ended, failed = self.simulator.step(physics, np.arange(len(rows)), actions)
        return np.hstack([physics, states]), ended & ~failed, failed
