"""Anybody's robot: a system that happens, a model that predicts, a planner that proposes, as plain functions.

A system may keep more than it shows: `begin`, `see` and `advance` work on rows `[B, S]` of all that it needs
to go on, of which `see` makes the states `[B, D]`. Each row has a generator of its own, so that everything
random in a unit comes from its id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from torch import Tensor

from pac_core import GaussianForecast, InvalidInput, PACError
from pac_core.arrays import check_list, check_numbers, check_returned, convert_like
from pac_core.bounds import check_integer
from pac_rl.forecasts import pool_mixture
from pac_rl.rollouts import Simulator, check_bools
from pac_rl.systems import Environment, Floats, make_environment, require_module

Rngs: TypeAlias = Sequence[Generator]
Advanced: TypeAlias = tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]
"""Rows after a step, and which of them ended and which failed."""


class AnySystem(Protocol):
    """What happens; `System`, `MujocoSystem` and `GymSystem` are such."""

    names: tuple[str, ...]
    low: Floats
    high: Floats

    def begin(self, rngs: Rngs) -> Floats:
        """`[B, S]` rows at a reset, one for each generator."""

    def see(self, rows: Floats) -> Floats:
        """`[B, D]` their states."""

    def advance(self, rows: Floats, actions: Floats, rngs: Rngs) -> Advanced:
        """The rows one step later."""


@dataclass(frozen=True, eq=False)
class System:
    """A robot as two functions.

    reset: from a generator to a state `[D]`
    step: from a state `[D]`, an action `[A]` and a generator to the next state `[D]`; if `vectorised`, from
        states `[B, D]`, actions `[B, A]` and B generators to states `[B, D]`
    low, high: `[A]` the range of actions
    names: D names of the state's numbers
    ended: from a state to whether the episode ends there; from states `[B, D]` to `[B]` if `vectorised`

    A step that raises, or returns NaN or infinity, is a failed unit: it breaks every limit. One that returns
    another shape is refused.
    """

    reset: Callable[[Generator], Any]
    step: Callable[[Any, Any, Any], Any]
    low: Any
    high: Any
    names: Sequence[str]
    ended: Callable[[Any], Any] | None = None
    vectorised: bool = False

    def __post_init__(self) -> None:
        low, high = (check_numbers(name, getattr(self, name), "[A]", finite=True) for name in ("low", "high"))
        if low.shape != high.shape or not (low < high).all():
            raise InvalidInput(f"low must be below high, number by number, got {self.low} and {self.high}")
        names = tuple(check_list("names", self.names))
        if not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
            raise InvalidInput(f"names must be different texts, one for each number of a state, got {names}")
        fixed = {"low": low.astype(np.float64), "high": high.astype(np.float64), "names": names}
        for name, value in fixed.items():
            object.__setattr__(self, name, value)

    def begin(self, rngs: Rngs) -> Floats:
        states = [np.asarray(self.reset(rng), dtype=np.float64) for rng in rngs]
        for state in states:
            if state.shape != (len(self.names),) or not np.isfinite(state).all():
                wanted = f"{len(self.names)} finite numbers, one for each of {', '.join(self.names)}"
                raise InvalidInput(f"reset must return {wanted}, got {state}")
        return np.stack(states)

    def see(self, rows: Floats) -> Floats:
        return rows

    def advance(self, rows: Floats, actions: Floats, rngs: Rngs) -> Advanced:
        if self.vectorised:
            states = check_returned("step", self.step(rows, actions, rngs), rows.shape, rows)
        else:
            each = zip(rows, actions, rngs, strict=True)
            states = np.stack([self._step(*one) for one in each]) if len(rows) else rows
        failed = ~np.isfinite(states).all(axis=1)
        return states, self._ended(np.where(failed[:, None], 0.0, states)) & ~failed, failed

    def _step(self, state: Floats, action: Floats, rng: Generator) -> Floats:
        try:
            reached = self.step(state.copy(), action.copy(), rng)
        except PACError:
            raise
        except Exception:  # whatever a stranger's simulator does when it breaks
            return np.full(state.shape, np.nan)
        return np.asarray(check_returned("step", reached, state.shape, state))

    def _ended(self, states: Floats) -> NDArray[np.bool_]:
        if self.ended is None:
            return np.zeros(len(states), bool)
        if self.vectorised:
            return check_bools("ended", self.ended(states), (len(states),), f"{len(states)} states")
        return np.array([bool(self.ended(state)) for state in states], dtype=bool)


class MujocoSystem:
    """A MuJoCo environment of Gymnasium, by its id: batched, bit for bit as `simulate` steps it.

    The state is qpos and qvel, named after the model's joints; a known robot's, or one of your own, with
    `make_environment(id, observe=..., names=..., ends=...)` as `environment`.
    """

    def __init__(self, id: str = "", environment: Environment | None = None, **options: Any) -> None:
        self.environment = environment or make_environment(id, **(options or plain_state(id)))
        self.names, self.low, self.high = (getattr(self.environment, n) for n in ("names", "low", "high"))
        self._simulator = Simulator(self.environment)

    def begin(self, rngs: Rngs) -> Floats:
        physics = np.stack([self.environment.reset(int(rng.integers(2**31))) for rng in rngs])
        return np.hstack([physics, self._observe(physics, physics)])

    def see(self, rows: Floats) -> Floats:
        return rows[:, -len(self.names) :]

    def advance(self, rows: Floats, actions: Floats, rngs: Rngs) -> Advanced:
        physics = rows[:, : -len(self.names)].copy()
        states, ended, failed = self._simulator.step(physics, np.arange(len(rows)), actions)
        return np.hstack([physics, states]), ended & ~failed, failed

    def _observe(self, before: Floats, after: Floats) -> Floats:
        return np.asarray(self.environment.observe(self.environment.gym, before, after), dtype=np.float64)


def plain_state(id: str) -> dict[str, Any]:
    """Of `make_environment` for any MuJoCo id: qpos and qvel, and Gymnasium's own rule for an early end."""
    from pac_rl.systems import KNOWN

    if id in KNOWN:
        return {}
    gym = require_module("gymnasium").make(id).unwrapped
    if not isinstance(gym, require_module("gymnasium.envs.mujoco").MujocoEnv):
        raise InvalidInput(
            f"id must name a MuJoCo environment of Gymnasium, got {type(gym).__name__}: GymSystem"
        )
    size = 1 + gym.model.nq + gym.model.nv
    names = [*_numbered(gym, "qpos"), *(f"{name} velocity" for name in _numbered(gym, "qvel"))]

    def observe(gym: Any, before: Floats, after: Floats) -> Floats:
        return after[:, 1:size]

    return {"observe": observe, "names": tuple(names), "ends": _healthy}


def _numbered(gym: Any, kind: str) -> list[str]:
    """A name for each number of qpos or qvel: that of its joint, numbered where a joint has several."""
    starts = gym.model.jnt_qposadr if kind == "qpos" else gym.model.jnt_dofadr
    ends = [*starts[1:], gym.model.nq if kind == "qpos" else gym.model.nv]
    names: list[str] = []
    for joint, (first, last) in enumerate(zip(starts, ends, strict=True)):
        name = gym.model.joint(joint).name or f"joint {joint}"
        names += [name] if last - first == 1 else [f"{name} {i}" for i in range(last - first)]
    return names


def _healthy(gym: Any, physics: Floats) -> NDArray[np.bool_]:
    """Whether Gymnasium would end the episode: where it has such a rule, `is_healthy`, asked row by row."""
    if not getattr(gym, "_terminate_when_unhealthy", False):
        return np.zeros(len(physics), dtype=bool)
    nq, nv = gym.model.nq, gym.model.nv
    found = np.zeros(len(physics), dtype=bool)
    for row, one in enumerate(physics):
        gym.set_state(one[1 : 1 + nq], one[1 + nq : 1 + nq + nv])
        found[row] = not gym.is_healthy
    return found


@dataclass(frozen=True, eq=False)
class GymSystem:
    """Any other Gymnasium environment, by its id.

    state: from the (unwrapped) environment to its state `[D]`, all that it needs to go on
    set_state: from the environment and such a state: puts it back there
    names: D names
    """

    id: str
    state: Callable[[Any], Any]
    set_state: Callable[[Any, Floats], Any]
    names: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def gym(self) -> Any:
        return require_module("gymnasium").make(self.id, **self.options).unwrapped

    @cached_property
    def low(self) -> Floats:
        return np.asarray(self.gym.action_space.low, dtype=np.float64)

    @cached_property
    def high(self) -> Floats:
        return np.asarray(self.gym.action_space.high, dtype=np.float64)

    def begin(self, rngs: Rngs) -> Floats:
        return np.stack([self._begin(int(rng.integers(2**31))) for rng in rngs])

    def _begin(self, seed: int) -> Floats:
        self.gym.reset(seed=seed)
        return self._read()

    def _read(self) -> Floats:
        return np.array(check_returned("state", self.state(self.gym), (len(self.names),), np.zeros(1)))

    def see(self, rows: Floats) -> Floats:
        return rows

    def advance(self, rows: Floats, actions: Floats, rngs: Rngs) -> Advanced:
        reached, ended = rows.copy(), np.zeros(len(rows), bool)
        for i, (row, action, rng) in enumerate(zip(rows, actions, rngs, strict=True)):
            self.set_state(self.gym, row.copy())
            if not np.array_equal(self._read(), row):
                raise InvalidInput("set_state must put the environment back into the state that state reads")
            self.gym.np_random = rng
            try:
                ended[i] = bool(self.gym.step(action.astype(self.gym.action_space.dtype))[2])
                reached[i] = self._read()
            except PACError:
                raise
            except Exception:  # see `System`
                reached[i] = np.nan
        failed = np.asarray(~np.isfinite(reached).all(axis=1))
        return reached, ended & ~failed, failed


def check_system(system: AnySystem) -> None:
    """Refuse, with what it raised, a system that cannot be reset and stepped once."""
    rng = default_rng(0)
    rows = system.begin([rng])
    state, middle = system.see(rows), (system.low + system.high) / 2
    if state.shape != (1, len(system.names)):
        raise InvalidInput(
            f"a state must have {len(system.names)} numbers, a name each, got {state.shape[1:]}"
        )
    step = getattr(system, "step", None)
    if step is not None and not getattr(system, "vectorised", False):
        try:
            step(rows[0].copy(), middle.copy(), rng)
        except Exception as error:
            raise InvalidInput(
                f"step must take a state, an action and a generator, but raised {error!r}"
            ) from None
    if system.advance(rows, middle[None], [rng])[2].any():
        raise InvalidInput("step must return finite numbers from a reset and the middle action, got others")


Net: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]
"""From states `[M, B, D]` and actions `[M, B, A]` to the next states' means and variances `[M, B, D]`."""


@dataclass(frozen=True, eq=False)
class Dynamics:
    """What is predicted: from starts `[N, D]` and plans `[N, H, A]` to means and variances `[N, H, D]`.

    forecast: such a function; numpy or torch
    members: `(starts, plans) -> [M, N, H, D]`, where each member alone expects the plans to lead; for the
        heuristic that trusts the worst of them
    """

    forecast: Callable[[Any, Any], tuple[Any, Any]]
    members: Callable[[Any, Any], Any] | None = None

    @classmethod
    def of(
        cls, net: Net, *, members: int, particles: int = 4, batch: int = 256, device: str = "cpu"
    ) -> Dynamics:
        """From a one-step model of M members: particles follow each of them through the plan.

        net: see `Net`; a torch module, or a function of torch tensors
        particles: of each member; they share a table of noise, so that a forecast is a function of its start
        batch: plans that go through it together, padded, so that bits do not depend on how many are asked
        """
        check_integer("members", members, least=1)
        check_integer("particles", particles, least=1)
        way = Particles(net, members, particles, check_integer("batch", batch, least=1), device)
        return cls(way, way.members_alone)

    def __call__(self, starts: Any, plans: Any) -> GaussianForecast:
        mean, var = self.forecast(starts, plans)
        shape = (*plans.shape[:2], starts.shape[1])
        parts = [_as_numpy(name, part, shape) for name, part in (("mean", mean), ("var", var))]
        return GaussianForecast(*parts).mark_failures()


def _as_numpy(name: str, values: Any, shape: tuple[int, ...]) -> Floats:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.shape != shape:
        raise InvalidInput(f"the model's {name} must have shape {shape}, got {array.shape}")
    return array.astype(np.float64)


@dataclass(frozen=True, eq=False)
class Particles:
    """Mean and variance of particles that each follow one member; see `Dynamics.of`."""

    net: Net
    members: int
    particles: int
    batch: int
    device: str

    def __call__(self, starts: Any, plans: Any) -> tuple[Tensor, Tensor]:
        mean, var = self._batched(starts, plans, self._spread, 1)
        return mean, var

    def members_alone(self, starts: Any, plans: Any) -> Tensor:
        """`[M, N, H, D]`."""
        ways: Tensor = self._batched(starts, plans, self._alone, 1)
        return ways

    def _batched(self, starts: Any, plans: Any, way: Callable[[Tensor, Tensor], Any], axis: int) -> Any:
        """What `way` makes of batches of one size, along the axis of plans."""
        origin, given = (torch.as_tensor(np.asarray(x), dtype=torch.float32) for x in (starts, plans))
        parts: list[Any] = []
        with torch.no_grad():
            for first in range(0, len(origin), self.batch):
                rows = slice(first, first + self.batch)
                parts.append(way(*(_pad(x[rows], self.batch).to(self.device) for x in (origin, given))))
        return torch.cat(parts, dim=axis).narrow(axis, 0, len(origin))

    def _step(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        mean, var = self.net(states, actions)
        for name, part in (("mean", mean), ("var", var)):
            if tuple(part.shape) != tuple(states.shape):
                wanted = f"[M, B, D] = {tuple(states.shape)}"
                raise InvalidInput(f"net must return a {name} of shape {wanted}, got {tuple(part.shape)}")
        return torch.as_tensor(mean).to(states), torch.as_tensor(var).to(states)

    def _spread(self, starts: Tensor, plans: Tensor) -> Tensor:
        """`[2, B, H, D]` mean and variance."""
        m, p, (batch, dims) = self.members, self.particles, starts.shape
        noise = convert_like(starts, _table(m, plans.shape[1], p, dims))
        cloud, steps = starts.expand(m, p, batch, dims), []
        for t in range(plans.shape[1]):
            done = plans[:, t].expand(m, p, batch, -1)
            mean, var = self._step(*(x.reshape(m, p * batch, -1) for x in (cloud, done)))
            mean, var = (x.reshape(m, p, batch, dims) for x in (mean, var))
            cloud = torch.addcmul(mean, var.clamp(min=0).sqrt(), noise[t][:, :, None])
            steps.append(torch.stack(pool_mixture(mean.flatten(0, 1), var.flatten(0, 1))))
        return torch.stack(steps, dim=2)

    def _alone(self, starts: Tensor, plans: Tensor) -> Tensor:
        states, steps = starts.expand(self.members, -1, -1), []
        for t in range(plans.shape[1]):
            states, _ = self._step(states, plans[:, t].expand(self.members, -1, -1))
            steps.append(states)
        return torch.stack(steps, dim=2)


def _table(members: int, horizon: int, particles: int, dims: int) -> Floats:
    """`[H, M, P, D]` standard normal, with mean 0 and variance 1 over the particles of a step."""
    drawn = default_rng(0).standard_normal((horizon, members * particles, dims))
    drawn -= drawn.mean(axis=1, keepdims=True)
    drawn /= np.maximum(drawn.std(axis=1, keepdims=True), 1e-12)
    return drawn.reshape(horizon, members, particles, dims)


def _pad(rows: Tensor, batch: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0,) * (2 * rows.ndim - 1) + (batch - len(rows),))


Cost: TypeAlias = Callable[[Any, Any], Any]
"""From predicted means `[..., H, D]` and plans `[..., H, A]` to costs `[...]`: smaller is better."""


@dataclass(frozen=True, eq=False)
class Shooting:
    """Random shooting: K plans drawn from a start, the cheapest safe one carried out.

    sample_plans: from a state `[D]`, a generator, K and H to plans `[K, H, A]`
    cost: see `Cost`
    """

    sample_plans: Callable[[Floats, Generator, int, int], Any]
    price: Cost
    candidates: int
    horizon: int = 0

    def at(self, horizon: int) -> Shooting:
        """The same for plans of H steps."""
        return Shooting(self.sample_plans, self.price, self.candidates, horizon)

    def propose(self, starts: Floats, rngs: Rngs) -> Floats:
        made = []
        for start, rng in zip(starts, rngs, strict=True):
            plans = np.asarray(self.sample_plans(start.copy(), rng, self.candidates, self.horizon))
            if plans.shape[:2] != (self.candidates, self.horizon) or plans.ndim != 3:
                wanted = f"[{self.candidates}, {self.horizon}, A]"
                raise InvalidInput(f"sample_plans must return plans of shape {wanted}, got {plans.shape}")
            made.append(plans)
        return np.stack(made).astype(np.float64)

    def cost(self, forecast: GaussianForecast, plans: Floats) -> Floats:
        return np.asarray(check_returned("cost", self.price(forecast.mean, plans), plans.shape[:2], plans))
