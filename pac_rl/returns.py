"""Returns of plans by mbrl-lib's model, from one initial state or from many at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pac_core import InvalidInput
from pac_core.bounds import whole


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
