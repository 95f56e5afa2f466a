"""A filter for one action at a time, and Gymnasium's wrapper around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pac_core import InvalidInput
from pac_core.arrays import check_returned, convert_like
from pac_core.bounds import check_integer
from pac_rl.dynamics import Ensemble
from pac_rl.forecasts import check_match, forecast_plans, one_step, start_tensor
from pac_rl.planning.guard import UNKNOWN, Forecast, Guard, NoSafePlan, check_fallback
from pac_rl.policies import Policy, actions
from pac_rl.systems import Environment, Floats, read_physics, require_module

ContinueWith: TypeAlias = Callable[[Floats, Floats], Floats]
"""From a state `[D]` and first actions `[N, A]` to whole plans `[N, H, A]`."""


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
class ActionFilter:
    """Hands on actions whose plan is safe, and the fallback's in place of others.

    low, high: `[A]` the range of actions; what lies outside is cut off before it is checked
    forecast: as for `guard_plans`
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

    @classmethod
    def of(
        cls,
        ensemble: Ensemble,
        environment: Environment,
        backup: Policy,
        guard: Guard,
        *,
        continue_with: ContinueWith | None = None,
        propagation: str = "particles",
    ) -> ActionFilter:
        """For a known robot: an action is followed by the backup policy along the predicted mean.

        guard: of a predictor of trajectories; where it has no fallback, the backup policy is it
        propagation: as for the calibration plans of the guard's predictor
        """
        check_match(ensemble, environment, backup)
        domain = getattr(guard.predictor, "domain", None)
        if domain is None or domain[0] != "trajectories":
            raise InvalidInput(f"predictor must be of trajectories, got one of {domain}")

        def act(state: Floats) -> Floats:
            row = torch.as_tensor(state)[None]
            return actions(environment, backup, row, torch.zeros(1, len(environment.low)).to(row))[0].numpy()

        return cls(
            environment.low,
            environment.high,
            partial(forecast_plans, ensemble, propagation=propagation, batch=2),
            replace(guard, fallback=guard.fallback or act),
            continue_with or continue_with_policy(ensemble, environment, backup, horizon=domain[1]),
        )

    def __call__(self, state: Any, action: Any) -> Filtered:
        """What to do in `state` `[D]` where `action` `[A]` was proposed."""
        here, wanted = np.asarray(state, dtype=np.float64), np.asarray(action, dtype=np.float64)
        if wanted.shape != self.low.shape:
            raise InvalidInput(f"action must have shape {self.low.shape}, got {wanted.shape}")
        if here.ndim != 1:
            raise InvalidInput(f"state must have shape [D], got {here.shape}")
        known = bool(np.isfinite(wanted).all())
        proposed = self._rounded(np.clip(wanted if known else np.zeros_like(wanted), self.low, self.high))
        # Stopping needs no second candidate: it is not an action.
        stops = self.guard.fallback == "stop"
        stand_in = proposed if stops else self._rounded(self.guard.act(here, self.low, self.high, ""))
        safe, worst, reason = [False, False], [-np.inf, -np.inf], UNKNOWN
        if np.isfinite(here).all():
            plans = self._plans(here, np.stack([proposed, stand_in]))
            checked = self.guard.check(self.forecast(torch.from_numpy(here).expand(2, -1), plans), plans)
            safe, worst = checked.safe.tolist(), checked.worst.tolist()
            reason = checked.reason(0) if known else "the action is not a number"
        if known and safe[0]:
            return Filtered(proposed, True, not np.array_equal(proposed, wanted), reason, worst[0])
        if stops:
            raise NoSafePlan(reason)
        # The very action that was checked: a backup policy asked again may answer otherwise.
        return Filtered(stand_in, safe[1], True, reason, worst[1], fallback=True)

    def certify_action(self, state: Any, action: Any) -> tuple[Floats, bool]:
        """The action to carry out, and whether it was found safe: the way of safe-control-gym."""
        decision = self(state, action)
        return decision.action, decision.safe

    def _rounded(self, action: Floats) -> Floats:
        """As it will be carried out; the range ends at numbers of the dtype, so it is not left."""
        return np.asarray(action.astype(self.dtype), dtype=np.float64)

    def _plans(self, state: Floats, first: Floats) -> Tensor:
        """`[N, H, A]` whole plans that begin with exactly these actions."""
        given = self.continue_with(state, first)
        steps = max(1, np.shape(given)[1]) if np.ndim(given) == 3 else 1
        shape = (len(first), steps, len(self.low))
        plans = check_returned("plans of continue_with", given, shape, state).copy()
        if not (abs(plans[:, 0] - first) <= 1e-6 * (1 + abs(first))).all():
            raise InvalidInput(f"continue_with must begin with the actions {first}, got {plans[:, 0]}")
        plans[:, 0] = first  # to the last digit: what is checked is what acts
        return torch.from_numpy(plans)


def hold_action(horizon: int) -> ContinueWith:
    """The action, held for `horizon` steps."""
    check_integer("horizon", horizon, least=1)
    return lambda state, first: np.repeat(first[:, None], horizon, axis=1)


def continue_with_policy(
    ensemble: Ensemble, environment: Environment, policy: Policy, *, horizon: int
) -> ContinueWith:
    """The action, and then what the policy would do along the predicted mean: `horizon` steps in all."""
    check_match(ensemble, environment, policy)
    check_integer("horizon", horizon, least=1)

    def plans(state: Floats, first: Floats) -> Floats:
        steps: list[Tensor] = []

        def act(t: int, states: Tensor, noise: Tensor) -> Tensor:
            steps.append(actions(environment, policy, states, noise) if t else convert_like(states, first))
            return steps[-1]

        with torch.no_grad():
            one_step(ensemble, start_tensor(ensemble, state[None]).expand(len(first), -1), act, horizon)
        return torch.stack(steps, dim=1).cpu().numpy().astype(np.float64)

    return plans


if TYPE_CHECKING:
    from gymnasium import Wrapper
else:
    try:
        from gymnasium import Wrapper
    except ImportError:  # refused where one is made
        Wrapper = object


class MujocoState:
    """The state that the model of a known robot sees, read from Gymnasium's simulation of it.

    Some of its numbers are over the last step (PETS's forward velocity), so the physics before it are
    kept; at a reset they are 0.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._before: Floats | None = None

    def __call__(self, env: Any, observation: Any) -> Floats:
        """`[D]` to be called once after each reset and each step."""
        gym, before = env.unwrapped, self._before
        self._before = physics = read_physics(gym)[None]
        if before is None or physics[0, 0] <= before[0, 0]:  # the clock went back: a reset
            before = physics
        return np.asarray(self.environment.observe(gym, before, physics)[0], dtype=np.float64)


class GuardedEnv(Wrapper):
    """Checks each action, replaces the unsafe ones, and tells in `info["guard"]` what it did.

    certify: from a state and an action to a `Filtered`, as an `ActionFilter`; actions are rounded to the
        environment's dtype before it sees them, and what it returns must be an action of the environment
    state: from the environment and an observation to the state that `certify` reads; for a robot that
        pac_rl knows `MujocoState(environment)`; None where the observation is the state

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
        certify: Callable[[Floats, Any], Filtered],
        *,
        state: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        require_module("gymnasium")
        super().__init__(env)
        kind = np.dtype(getattr(env.action_space, "dtype", None) or np.float64)
        if kind.kind != "f":  # a checked action would be rounded to one that was not
            raise InvalidInput(f"env must take actions of floats, got an action space of dtype {kind}")
        # What is done is what was checked: rounding comes before the check.
        self.certify = replace(certify, dtype=kind) if isinstance(certify, ActionFilter) else certify
        self.state, self._kind = state, kind
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
            decision = self.certify(self._now, self._rounded(action))
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
        decision = self.certify(np.asarray(state, dtype=np.float64), self._rounded(action))
        return decision.action, decision.safe

    def _rounded(self, action: Any) -> Floats:
        """The action as the environment would take it."""
        with np.errstate(over="ignore"):
            return np.asarray(np.asarray(action).astype(self._kind), dtype=np.float64)

    def _to_take(self, action: Any) -> NDArray[Any]:
        """The checked action in the environment's dtype, refused if that makes it another."""
        taken = np.asarray(action).astype(self._kind)
        if not np.array_equal(taken.astype(np.float64), action) or not self.env.action_space.contains(taken):
            rule = f"actions of {self.env.action_space}, which are not rounded or cut off after the check"
            raise InvalidInput(f"certify must return {rule}, got {action!r}")
        return taken

    def _seen(self, observation: Any) -> Floats:
        state = observation if self.state is None else self.state(self.env, observation)
        seen = np.asarray(state, dtype=np.float64)
        if seen.ndim != 1:
            raise InvalidInput(f"state must be [D], got {seen.shape}")
        return seen
