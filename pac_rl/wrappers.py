"""A Gymnasium environment that checks actions before it takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_rl.environments import FULL, Environment
from pac_rl.fallbacks import NoSafePlan
from pac_rl.filters import Filtered


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
        physics = np.empty((1, mujoco.mj_stateSize(gym.model, FULL)))
        mujoco.mj_getState(gym.model, gym.data, physics[0], FULL)
        fresh = self._before is None or physics[0, 0] <= self._before[0, 0]  # the clock went back: a reset
        before = physics if fresh or self._before is None else self._before
        self._before = physics
        return np.asarray(self.environment.observe(gym, before, physics)[0], dtype=np.float64)


class GuardedEnv(gymnasium.Wrapper):
    """Checks each action, replaces the unsafe ones, and tells in `info["guard"]` what it did.

    certify: from a state and an action to a `Filtered`, as an `ActionFilter`
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
        super().__init__(env)
        kind = np.dtype(getattr(env.action_space, "dtype", None) or np.float64)
        if kind.kind != "f":  # a checked action would be rounded to one that was not
            raise InvalidInput(f"env must take actions of floats, got an action space of dtype {kind}")
        self.certify, self.state = certify, state
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
            decision = self.certify(self._now, action)
        except NoSafePlan:
            self.fallbacks += 1
            raise
        self.replaced += decision.replaced
        self.fallbacks += decision.fallback
        self.unsafe += not decision.safe
        taken = decision.action.astype(getattr(self.env.action_space, "dtype", np.float64))
        observation, *between, info = self.env.step(taken)
        self._now = self._seen(observation)
        return observation, *between, {**info, "guard": decision.to_info()}

    def certify_action(self, state: Any, action: Any) -> tuple[NDArray[np.float64], bool]:
        """The action that would be taken in this state, and whether it was found safe."""
        decision = self.certify(np.asarray(state, dtype=np.float64), action)
        return decision.action, decision.safe

    def _seen(self, observation: Any) -> NDArray[np.float64]:
        seen = observation if self.state is None else self.state(self.env, observation)
        return np.asarray(seen, dtype=np.float64)
