"""A filter of actions, batched, and Gymnasium's wrappers around it, for one environment and for many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_core.arrays import check_returned, convert_like
from pac_core.bounds import check_integer
from pac_rl.planning.guard import UNKNOWN, Forecast, Guard, NoSafePlan, check_fallback
from pac_rl.policies import actions_by
from pac_rl.systems.functions import AnySystem, Floats, require_module
from pac_rl.systems.mujoco import Environment, read_physics

if TYPE_CHECKING:
    from gymnasium import Wrapper
    from gymnasium.vector import VectorWrapper

    from pac_rl.dynamics.model import Dynamics
    from pac_rl.planning.fitting import FittedGuard
else:
    try:
        from gymnasium import Wrapper
        from gymnasium.vector import VectorWrapper
    except ImportError:  # refused where one is made
        Wrapper = VectorWrapper = object

ContinueWith: TypeAlias = Callable[[Floats, Floats], Floats]
"""From states `[N, D]` and first actions `[N, A]` to whole plans `[N, H, A]`."""


@dataclass(frozen=True, eq=False)
class Filtered:
    """What was decided about an action.

    action: `[A]` what to carry out
    safe: whether the check says that `action` is safe
    replaced: whether it is another than was proposed, which may only have been cut off at its range
    reason: of the proposed action's check, in words
    margin: the least margin of what is carried out; -inf where nothing is known
    fallback: whether the fallback acts
    """

    action: Floats
    safe: bool
    replaced: bool
    reason: str
    margin: float
    fallback: bool = False


@dataclass(frozen=True, eq=False)
class FilteredActions:
    """What was decided about the actions of N robots: the fields of `Filtered`, as arrays.

    action: `[N, A]`
    safe, replaced, fallback: `[N]` bool
    margin: `[N]`
    reason: `[N]` texts
    """

    action: Floats
    safe: NDArray[np.bool_]
    replaced: NDArray[np.bool_]
    reason: NDArray[np.object_]
    margin: Floats
    fallback: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ActionFilter:
    """Hands on actions whose plan is safe, and the fallback's in place of others.

    low, high: `[A]` the range of actions; what lies outside is cut off before it is checked
    forecast: from starts `[N, D]` and plans `[N, H, A]` to a forecast, as a `Dynamics`; numpy
    guard: its fallback's action is checked in the same way, and carried out in any case
    continue_with: what would follow the action, as `continue_with_policy` or `hold_action`
    dtype: of the actions that are carried out: they are rounded to it before they are checked

    What is promised of a tube holds for plans drawn like the calibration plans. An agent that chooses
    its actions with this filter in the loop draws others: certify the loop.
    """

    low: Floats
    high: Floats
    forecast: Forecast
    guard: Guard
    continue_with: ContinueWith
    dtype: Any = np.float64

    def __post_init__(self) -> None:
        check_fallback(self.guard.fallback)
        kind = np.dtype(self.dtype)
        if kind.kind != "f":
            raise InvalidInput(f"dtype must be one of floats, got {kind}")
        # The ends of the range that the dtype has, so that nothing is rounded out of it.
        low, high = (np.asarray(end, dtype=np.float64) for end in (self.low, self.high))
        ends = [end.astype(kind) for end in (low, high)]
        inner = [np.nextafter(end, kind.type(way)) for end, way in zip(ends, (np.inf, -np.inf), strict=True)]
        low = np.where(ends[0] < low, inner[0], ends[0]).astype(np.float64)
        high = np.where(ends[1] > high, inner[1], ends[1]).astype(np.float64)
        if low.ndim != 1 or low.shape != high.shape or not len(low) or not (low <= high).all():
            raise InvalidInput(f"low and high must be [A], low at most high, got {self.low} and {self.high}")
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def __call__(self, state: Any, action: Any) -> Filtered:
        """What to do in `state` `[D]` where `action` `[A]` was proposed."""
        here, wanted = np.asarray(state, dtype=np.float64), np.asarray(action, dtype=np.float64)
        if wanted.shape != self.low.shape:
            raise InvalidInput(f"action must have shape {self.low.shape}, got {wanted.shape}")
        if here.ndim != 1:
            raise InvalidInput(f"state must have shape [D], got {here.shape}")
        made = self.decide(here[None], wanted[None])
        row = {one.name: getattr(made, one.name)[0] for one in fields(made)}
        plain = {name: row[name].item() for name in ("safe", "replaced", "margin", "fallback")}
        return Filtered(**row | plain)

    def decide(self, states: Any, actions: Any) -> FilteredActions:
        """What to do in states `[N, D]` where actions `[N, A]` were proposed, which are checked together.

        The fallback is asked, and its actions are checked, where the proposed ones are not safe.
        """
        here, wanted = np.asarray(states, dtype=np.float64), np.asarray(actions, dtype=np.float64)
        if here.ndim != 2 or wanted.shape != (len(here), len(self.low)):
            rule = f"states and actions must have shapes [N, D] and [N, {len(self.low)}]"
            raise InvalidInput(f"{rule}, got {here.shape} and {wanted.shape}")
        n = len(here)
        seen, known = (np.asarray(np.isfinite(part).all(axis=1)) for part in (here, wanted))
        done = self._rounded(np.clip(np.where(known[:, None], wanted, 0.0), self.low, self.high))
        safe, margin, reasons = np.zeros(n, bool), np.full(n, -np.inf), np.full(n, UNKNOWN, object)
        reasons[seen & ~known] = "the action is not a number"
        if len(rows := np.flatnonzero(seen & known)):
            safe[rows], margin[rows], reasons[rows] = self._check(here[rows], done[rows])
        fallback = ~safe
        for i in np.flatnonzero(fallback):
            done[i] = self._rounded(self.guard.act(here[i], self.low, self.high, reasons[i]))
        margin[fallback] = -np.inf
        # The very actions that will act: a backup policy that is asked again may answer otherwise.
        if len(rows := np.flatnonzero(fallback & seen)):
            safe[rows], margin[rows], _ = self._check(here[rows], done[rows])
        replaced = fallback | (done != wanted).any(axis=1)
        return FilteredActions(done, safe, replaced, reasons, margin, fallback)

    def certify_action(self, state: Any, action: Any) -> tuple[Floats, bool]:
        """The action to carry out, and whether it was found safe: the way of safe-control-gym."""
        decision = self(state, action)
        return decision.action, decision.safe

    def _rounded(self, action: Floats) -> Floats:
        """As it will be carried out; the range ends at numbers of the dtype, so it is not left."""
        return np.asarray(action.astype(self.dtype), dtype=np.float64)

    def _check(self, states: Floats, first: Floats) -> tuple[NDArray[np.bool_], Floats, list[str]]:
        """Whether plans that begin with exactly these actions are safe, their least margins, and why."""
        given = self.continue_with(states, first)
        steps = max(1, np.shape(given)[1]) if np.ndim(given) == 3 else 1
        shape = (len(first), steps, len(self.low))
        plans = check_returned("plans of continue_with", given, shape, states).copy()
        if not (abs(plans[:, 0] - first) <= 1e-6 * (1 + abs(first))).all():
            raise InvalidInput(f"continue_with must begin with the actions {first}, got {plans[:, 0]}")
        plans[:, 0] = first  # to the last digit: what is checked is what acts
        checked = self.guard.check(self.forecast(states, plans), plans)
        safe, worst = (convert_like(first, part) for part in (checked.safe, checked.worst))
        return safe > 0, worst, checked.reasons()


def hold_action(horizon: int) -> ContinueWith:
    """The action, held for `horizon` steps."""
    check_integer("horizon", horizon, least=1)
    return lambda states, first: np.repeat(first[:, None], horizon, axis=1)


def continue_with_policy(system: AnySystem, model: Dynamics, policy: Any, *, horizon: int) -> ContinueWith:
    """The action, and then what a policy would do along the predicted mean: `horizon` steps in all.

    policy: of any kind, see `actions_by`; its actions are cut off at the system's range
    """
    act = actions_by(system, policy)
    check_integer("horizon", horizon, least=1)

    def plans(states: Floats, first: Floats) -> Floats:
        def follow(t: int, seen: Any) -> Any:
            return np.clip(act(seen), system.low, system.high) if t else first

        return np.asarray(model.follow(states, follow, horizon)[0], dtype=np.float64)

    return plans


class MujocoState:
    """The state that the model of a known robot sees, read from Gymnasium's simulation of it.

    Some of its numbers are over the last step (PETS's forward velocity), so the physics before it are
    kept; at a reset they are 0.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._before: Floats | None = None

    def __call__(self, env: Any, observation: Any) -> Floats:
        """`[D]`, or `[N, D]` of a vector environment; to be called once after each reset and each step."""
        gyms = members_of(env)
        now = np.stack([read_physics(one.unwrapped) for one in gyms])
        before = now if self._before is None else self._before
        before, self._before = np.where(now[:, :1] <= before[:, :1], now, before), now  # the clock: a reset
        states = self.environment.observe(gyms[0].unwrapped, before, now)
        return np.asarray(states if hasattr(env, "num_envs") else states[0], dtype=np.float64)


def members_of(env: Any) -> list[Any]:
    """The environments whose simulation can be read: of a vector environment all, else the one."""
    if not hasattr(env, "num_envs"):
        return [env]
    if (found := getattr(env.unwrapped, "envs", None)) is None:
        rule = "a state that is read from the simulation needs a SyncVectorEnv"
        raise InvalidInput(f"{rule}, got {type(env.unwrapped).__name__}: give it a state of its observations")
    return list(found)


def make_filter(guard: Any, space: Any, continue_with: ContinueWith | None) -> ActionFilter:
    """Of a fitted guard, for actions of this space; or the filter that was given."""
    if not hasattr(guard, "model"):
        if not isinstance(guard, ActionFilter):
            raise InvalidInput(f"guard must be a FittedGuard or an ActionFilter, got {type(guard).__name__}")
        if continue_with is not None:
            raise InvalidInput("continue_with must be the filter's own, got another")
        return guard
    if len(getattr(space, "shape", None) or ()) != 1 or not hasattr(space, "low"):
        raise InvalidInput(f"actions must be a list of numbers, got {space}")
    follow = continue_with
    if follow is None:
        if guard.guard.horizon is None:
            raise InvalidInput("continue_with must be given for a guard without a horizon, got None")
        follow = hold_action(guard.guard.horizon)
    return ActionFilter(space.low, space.high, guard.model, guard.guard, follow)


def state_reader(guard: Any, state: Callable[[Any, Any], Any] | None) -> Callable[[Any, Any], Any]:
    """From an environment and an observation to the state: as given, or as the guarded system reads it."""
    system = getattr(getattr(guard, "base", None), "system", None)
    if state is not None:
        return state
    if (environment := getattr(system, "environment", None)) is not None:
        return MujocoState(environment)
    if (read := getattr(system, "state", None)) is None:
        return lambda env, observation: observation

    def read_all(env: Any, observation: Any) -> Any:
        bare = isinstance(getattr(system, "id", None), str)
        states = [read(one.unwrapped if bare else one) for one in members_of(env)]
        return states if hasattr(env, "num_envs") else states[0]

    return read_all


def float_kind(space: Any) -> np.dtype[Any]:
    """The dtype of actions, refused unless it is one of floats."""
    kind = np.dtype(getattr(space, "dtype", None) or np.float64)
    if kind.kind != "f":  # a checked action would be rounded to one that was not
        raise InvalidInput(f"env must take actions of floats, got an action space of dtype {kind}")
    return kind


def rounded(action: Any, kind: np.dtype[Any]) -> Floats:
    """The action as the environment would take it."""
    with np.errstate(over="ignore"):
        return np.asarray(np.asarray(action).astype(kind), dtype=np.float64)


class GuardedEnv(Wrapper):
    """Checks each action, replaces the unsafe ones, and tells in `info["guard"]` what it did.

    guard: a `FittedGuard`; an `ActionFilter`; or a function from a state and an action to a `Filtered`.
        Actions are rounded to the environment's dtype before it sees them, and what it returns must be an
        action of the environment
    state: from the environment and an observation to the state that is forecast from. By default the state of
        the guard's own system, read from the simulation, and where that cannot be, the observation
    continue_with: what would follow the action and is checked with it; by default it is held for the horizon

    `info["guard"]` has the "action" that was taken, whether it is "safe", its "margin", whether the
    "fallback" acted, and the "reason" about the action that was proposed. "replaced" says that another
    was taken, be it the fallback's or the same cut off at its range. Environments whose step returns
    six values, with a cost (Safety-Gymnasium's), are passed through as they are.

    decisions, replaced, fallbacks, unsafe: how many actions were checked, were replaced, were the
    fallback's, and were taken though nothing says that they are safe
    """

    def __init__(
        self,
        env: Any,
        guard: FittedGuard | ActionFilter | Callable[[Floats, Any], Filtered],
        *,
        state: Callable[[Any, Any], Any] | None = None,
        continue_with: ContinueWith | None = None,
    ) -> None:
        require_module("gymnasium")
        super().__init__(env)
        self._kind = float_kind(env.action_space)
        self.certify: Callable[[Floats, Any], Filtered]
        if hasattr(guard, "model") or isinstance(guard, ActionFilter) or not callable(guard):
            # What is done is what was checked: rounding comes before the check.
            self.certify = replace(make_filter(guard, env.action_space, continue_with), dtype=self._kind)
        else:
            self.certify = guard
        self.state = state_reader(guard, state)
        self.decisions = self.replaced = self.fallbacks = self.unsafe = 0
        self._now: Floats | None = None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        self._now = self._seen(observation)
        return observation, info

    def step(self, action: Any) -> Any:
        """What the environment returns, with `info["guard"]`; five values, or six with a cost."""
        if self._now is None:
            raise InvalidInput("reset must be called before the first step, got a step")
        self.decisions += 1
        try:
            decision = self.certify(self._now, rounded(action, self._kind))
        except NoSafePlan:
            self.fallbacks += 1
            raise
        taken = self._to_take(decision.action)
        self.replaced += decision.replaced
        self.fallbacks += decision.fallback
        self.unsafe += not decision.safe
        observation, *between, info = self.env.step(taken)
        self._now = self._seen(observation)
        return observation, *between, {**info, "guard": dict(vars(decision))}

    def certify_action(self, state: Any, action: Any) -> tuple[Floats, bool]:
        """The action that would be taken in this state, and whether it was found safe."""
        decision = self.certify(np.asarray(state, dtype=np.float64), rounded(action, self._kind))
        return decision.action, decision.safe

    def _to_take(self, action: Any) -> NDArray[Any]:
        """The checked action in the environment's dtype, refused if that makes it another."""
        taken = np.asarray(action).astype(self._kind)
        if not np.array_equal(taken.astype(np.float64), action) or not self.env.action_space.contains(taken):
            rule = f"actions of {self.env.action_space}, which are not rounded or cut off after the check"
            raise InvalidInput(f"guard must return {rule}, got {action!r}")
        return taken

    def _seen(self, observation: Any) -> Floats:
        seen = np.array(self.state(self.env, observation), dtype=np.float64)  # a copy: it may be theirs
        if seen.ndim != 1:
            raise InvalidInput(f"state must be [D], got {seen.shape}")
        return seen


class GuardedVectorEnv(VectorWrapper):
    """`GuardedEnv` for Gymnasium's vector environments: the N actions of a step are checked together.

    guard: a `FittedGuard` or an `ActionFilter`, whose fallback acts: to stop would stop all N
    state: from the vector environment and its observations to states `[N, D]`; else as for `GuardedEnv`
    continue_with: as for `GuardedEnv`

    `infos["guard"]` has what `GuardedEnv` tells, as arrays of N, and `infos["_guard"]` says for which it
    holds: where an environment is reset at this step, no action is taken, and none is checked.
    """

    def __init__(
        self,
        envs: Any,
        guard: FittedGuard | ActionFilter,
        *,
        state: Callable[[Any, Any], Any] | None = None,
        continue_with: ContinueWith | None = None,
    ) -> None:
        vector = require_module("gymnasium.vector")
        if not isinstance(envs, vector.VectorEnv):
            raise InvalidInput(f"envs must be a vector environment of Gymnasium, got {type(envs).__name__}")
        super().__init__(envs)
        space = envs.single_action_space
        self._kind = float_kind(space)
        self.filter = replace(make_filter(guard, space, continue_with), dtype=self._kind)
        if self.filter.guard.fallback == "stop":
            raise InvalidInput("the fallback of a vector environment must act, got 'stop': it would stop all")
        if not ((self.filter.low >= space.low) & (self.filter.high <= space.high)).all():
            got = f"got {self.filter.low} to {self.filter.high}"  # it would be cut off after the check
            raise InvalidInput(f"the filter's range must lie within that of {space}, {got}")
        self.state = state_reader(guard, state)
        self.decisions = self.replaced = self.fallbacks = self.unsafe = 0
        # Where it is unknown how environments are reset, all actions are checked.
        self._resets_next = envs.metadata.get("autoreset_mode") == vector.AutoresetMode.NEXT_STEP
        self._now: Floats | None = None
        self._over = np.zeros(envs.num_envs, bool)  # episodes that the next step resets

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        only = (options or {}).get("reset_mask")
        observations, infos = self.env.reset(seed=seed, options=options)
        seen = self._seen(observations)
        fresh = np.ones(self.num_envs, bool) if only is None or self._now is None else np.asarray(only)
        self._now = seen if self._now is None else np.where(fresh[:, None], seen, self._now)
        self._over = self._over & ~fresh
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self._now is None:
            raise InvalidInput("reset must be called before the first step, got a step")
        wanted = rounded(actions, self._kind)
        shape = (self.num_envs, len(self.filter.low))
        if wanted.shape != shape:
            raise InvalidInput(f"actions must have shape {shape}, got {wanted.shape}")
        acting = ~self._over
        decided = self.filter.decide(self._now[acting], wanted[acting])
        self.decisions += int(acting.sum())
        self.replaced += int(decided.replaced.sum())
        self.fallbacks += int(decided.fallback.sum())
        self.unsafe += int((~decided.safe).sum())
        told = {name: _spread(part, acting) for name, part in vars(decided).items()}
        taken = np.clip(told["action"], self.filter.low, self.filter.high).astype(self._kind)
        observations, rewards, ends, cuts, infos = self.env.step(taken)
        self._now = self._seen(observations)
        self._over = (np.asarray(ends) | cuts) & self._resets_next
        return observations, rewards, ends, cuts, {**infos, "guard": told, "_guard": acting}

    def certify_action(self, state: Any, action: Any) -> tuple[Floats, bool]:
        """The action that would be taken in this state of one robot, and whether it was found safe."""
        return self.filter.certify_action(state, rounded(action, self._kind))

    def _seen(self, observations: Any) -> Floats:
        seen = np.array(self.state(self.env, observations), dtype=np.float64)
        if seen.ndim != 2 or len(seen) != self.num_envs:
            raise InvalidInput(f"states must be [{self.num_envs}, D], got {seen.shape}")
        return seen


def _spread(values: NDArray[Any], rows: NDArray[np.bool_]) -> NDArray[Any]:
    """`[N, ...]` the values at these rows; elsewhere 0, or None."""
    whole = np.full((len(rows), *values.shape[1:]), None if values.dtype == object else 0, values.dtype)
    whole[rows] = values
    return whole
