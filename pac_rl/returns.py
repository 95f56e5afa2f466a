"""Returns: of plans by mbrl-lib's model, from one initial state or many; of a policy in the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pac_core import InvalidInput
from pac_core.bounds import whole
from pac_rl.environments import Environment, read_physics
from pac_rl.policies import Policy, actions, fitting


@dataclass(frozen=True, eq=False)
class ModelReturns:
    """mbrl-lib's objective: the return of a plan, averaged over particles of the model.

    model_env: mbrl-lib's `ModelEnv`
    """

    model_env: Any
    particles: int

    def __call__(self, initial_state: Any, plans: Tensor) -> Tensor:
        """`[B]` mean returns of plans `[B, H, A]` from one state `[D]`, by mbrl-lib itself."""
        values: Tensor = self.model_env.evaluate_action_sequences(
            plans, initial_state=np.asarray(initial_state), num_particles=self.particles
        )
        return values

    def evaluate_many(self, initial_states: Any, plans: Tensor) -> Tensor:
        """`[S, B]` mean returns of plans `[S, B, H, A]` from states `[S, D]`, in one pass.

        All S * B * particles rows go through the model together, as long as they fit in memory.
        """
        states = np.asarray(initial_states)
        if plans.ndim != 4 or states.ndim != 2 or len(states) != len(plans):
            raise InvalidInput(
                "initial_states must have shape [S, D] and plans [S, B, H, A], got "
                f"{states.shape} and {tuple(plans.shape)}"
            )
        rows = plans.shape[1] * self.particles
        follow = plans.flatten(0, 1).repeat_interleave(self.particles, dim=0)
        with torch.no_grad():
            state = self.model_env.reset(np.repeat(states, rows, axis=0), return_as_np=False)
            total = torch.zeros(len(follow), 1, device=follow.device)
            ended = torch.zeros(len(follow), 1, dtype=torch.bool, device=follow.device)
            for t in range(plans.shape[2]):
                _, rewards, ends, state = self.model_env.step(follow[:, t], state, sample=True)
                for name, part in (("reward_fn", rewards), ("termination_fn", ends)):
                    if part.shape != total.shape:
                        raise InvalidInput(
                            f"{name} must return shape {tuple(total.shape)}, got {tuple(part.shape)}"
                        )
                total += torch.where(ended, torch.zeros_like(rewards), rewards)
                ended |= ends
        return total.reshape(*plans.shape[:2], self.particles).mean(dim=2)


def model_returns(model_env: Any, *, particles: int = 20) -> ModelReturns:
    """The objective of mbrl-lib's planners, which can also take many initial states at once."""
    whole("particles", particles, least=1)
    return ModelReturns(model_env, particles)


def policy_returns(
    environment: Environment, policy: Policy, *, episodes: int = 3, steps: int = 1000
) -> NDArray[np.float64]:
    """`[episodes]` what the policy earns by Gymnasium's own reward, with its noise, from resets of their own.

    By it one sees whether a file was read as it was meant: on other observations than it was trained on, a
    good policy earns nothing.
    """
    fitting(environment, policy)
    gym, rng, found = environment.gym, np.random.default_rng(0), np.zeros(episodes)
    for i in range(episodes):
        before = physics = environment.reset(int(rng.integers(2**31)))[None]
        for _ in range(steps):
            states = torch.from_numpy(environment.observe(gym, before, physics))
            noise = torch.from_numpy(rng.standard_normal((1, policy.outputs)))
            done = actions(environment, policy, states, noise)[0].numpy()
            _, reward, ended, _, _ = gym.step(done)
            before, physics = physics, read_physics(gym)[None]
            found[i] += float(reward)
            if ended or not np.isfinite(physics).all():
                break
    return found


def returns_in_words(environment: Environment, policy: Policy, **options: Any) -> str:
    """`policy_returns` for a person."""
    found = policy_returns(environment, policy, **options)
    return (
        f"mean return {found.mean():,.0f} ({found.min():,.0f} to {found.max():,.0f}) in {len(found)} "
        f"episodes of {environment.id}; if it should earn more, it sees other things than in training"
    )
