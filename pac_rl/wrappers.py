"""A Gymnasium environment that checks actions before it takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_rl.environments import Environment, read_physics, required
from pac_rl.fallbacks import NoSafePlan
from pac_rl.filters import ActionFilter, Filtered

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
        self._before: NDArray[np.float64] | None = None

    def __call__(self, env: Any, observation: Any) -> NDArray[np.float64]:
        """`[D]` to be called once after each reset and each step."""
        gym = env.unwrapped
        physics = read_physics(gym)[None]
        fresh = self._before is None or physics[0, 0] <= self._before[0, 0]  # the clock went back: a reset
        before = physics if fresh or self._before is None else self._before
        self._before = physics
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
        certify: Callable[[NDArray[np.float64], Any], Filtered],
        *,
        state: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        required("gymnasium")
        super().__init__(env)
        kind = np.dtype(getattr(env.action_space, "dtype", None) or np.float64)
        if kind.kind != "f":  # a checked action would be rounded to one that was not
            raise InvalidInput(f"env must take actions of floats, got an action space of dtype {kind}")
        # What is done is what was checked: rounding comes before the check.
        self.certify = replace(certify, dtype=kind) if isinstance(certify, ActionFilter) else certify
        self.state, self._kind = state, kind
        self.decisions = self.replaced = self.fallbacks = self.unsafe = 0
        self._now: NDArray[np.float64] | None = None

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

    def certify_action(self, state: Any, action: Any) -> tuple[NDArray[np.float64], bool]:
        """The action that would be taken in this state, and whether it was found safe."""
        decision = self.certify(np.asarray(state, dtype=np.float64), self._rounded(action))
        return decision.action, decision.safe

    def _rounded(self, action: Any) -> NDArray[np.float64]:
        """The action as the environment would take it."""
        with np.errstate(over="ignore"):
            return np.asarray(np.asarray(action).astype(self._kind), dtype=np.float64)

    def _to_take(self, action: Any) -> NDArray[Any]:
        """The checked action in the environment's dtype, refused if that makes it another."""
        taken = np.asarray(action).astype(self._kind)
        if not np.array_equal(taken.astype(np.float64), action) or not self.env.action_space.contains(taken):
            raise InvalidInput(
                f"certify must return actions of {self.env.action_space}, which are not rounded or cut off "
                f"after the check, got {action!r}"
            )
        return taken

    def _seen(self, observation: Any) -> NDArray[np.float64]:
        state = observation if self.state is None else self.state(self.env, observation)
        seen = np.asarray(state, dtype=np.float64)
        if seen.ndim != 1:
            raise InvalidInput(f"state must be [D], got {seen.shape}")
        return seen
