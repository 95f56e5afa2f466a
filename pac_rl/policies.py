"""Policies: from observations and noise to actions.

A policy is anything with `inputs`, `outputs` and a call `policy(observations, noise)`; noise is
standard normal, and zero noise gives the mean action, which is what a forecast follows. It sees Gymnasium's
observation, unless it says `sees = "state"`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pac_core import InvalidInput
from pac_rl.systems import Environment

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "elu": torch.nn.functional.elu}


class Policy(Protocol):
    """What a rollout asks of a policy."""

    @property
    def inputs(self) -> int:
        """I, the numbers of an observation."""

    @property
    def outputs(self) -> int:
        """A, the numbers of an action."""

    @property
    def squash(self) -> bool:
        """Whether actions lie in [-1, 1] and are stretched to the range, instead of cut off at it."""

    def __call__(self, observations: Tensor, noise: Tensor) -> Tensor:
        """`[..., outputs]` actions for `[..., inputs]` observations and `[..., outputs]` normal noise.

        Particles bring several leading axes; rows must not touch each other.
        """


@dataclass(frozen=True, eq=False)
class Network:
    """A policy of dense layers: Gaussian around the last one, squashed (SAC) or not (PPO).

    weights, biases: of each layer, `[out, in]` and `[out]`; the last gives the mean
    std: `[A]` of the noise, or another last layer `(weight, bias)` for its logarithm
    shift, scale: `[I]` observations are normalised to (o - shift) / scale
    activation: between layers
    squash: tanh after the noise (SAC)
    clip: normalised observations are cut off at this number (VecNormalize)
    sees: "observation", the environment's own, or "state"
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    std: Tensor | tuple[Tensor, Tensor]
    shift: Tensor
    scale: Tensor
    activation: str = "relu"
    squash: bool = True
    clip: float = float("inf")
    sees: str = "observation"

    def __post_init__(self) -> None:
        _check_sees(self.sees)
        if self.activation not in ACTIVATIONS:
            raise InvalidInput(f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        heads = (self.std,) if isinstance(self.std, tuple) else ()
        every = (*zip(self.weights, self.biases, strict=True), *heads)
        if any(weight.ndim != 2 or bias.ndim != 1 or not weight.numel() for weight, bias in every):
            raise InvalidInput("a layer must have weights [out, in] and biases [out], at least 1 number each")
        if any(part.ndim != 1 or part.is_complex() for part in (self.shift, self.scale)):
            raise InvalidInput("shift and scale must have one real number per input")
        sizes = [self.inputs, *(len(bias) for bias in self.biases)]
        layers = [*zip(self.weights, self.biases, sizes[:-1], strict=True), *((*h, sizes[-2]) for h in heads)]
        for weight, bias, before in layers:
            if tuple(weight.shape) != (len(bias), before):
                raise InvalidInput(
                    f"a layer after {before} numbers with {len(bias)} biases must have weights "
                    f"[{len(bias)}, {before}], got {list(weight.shape)}"
                )
        spread = self.std if isinstance(self.std, tuple) else (self.std,)
        for numbers in (*self.weights, *self.biases, *spread, self.shift, self.scale):
            if numbers.is_complex() or not torch.isfinite(numbers).all():
                raise InvalidInput("a policy's numbers must be real and finite, got NaN, infinity or others")
        sized = spread[-1].shape == (self.outputs,) and len(self.scale) == self.inputs
        if not sized or not (self.scale > 0).all():
            raise InvalidInput("std must have one number per action and scale be above 0 for each input")
        if not isinstance(self.std, tuple) and not (self.std >= 0).all():
            raise InvalidInput(f"std must be at least 0 for each action, got {float(self.std.min()):g}")
        if not self.clip > 0:
            raise InvalidInput(f"clip must be above 0, got {self.clip}")

    @property
    def inputs(self) -> int:
        return len(self.shift)

    @property
    def outputs(self) -> int:
        return len(self.biases[-1])

    def __call__(self, observations: Tensor, noise: Tensor) -> Tensor:
        hidden = (observations - self.shift.to(observations)) / self.scale.to(observations)
        if self.clip < float("inf"):
            hidden = hidden.clamp(-self.clip, self.clip)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = ACTIVATIONS[self.activation](_dense(hidden, weight, bias))
        mean = _dense(hidden, self.weights[-1], self.biases[-1])
        if isinstance(self.std, tuple):
            std = torch.exp(_dense(hidden, *self.std).clamp(-20, 2))  # the range of SAC's authors
        else:
            std = self.std.to(mean)
        action = mean + std * noise
        return torch.tanh(action) if self.squash else action

    def with_noise(self, std: float) -> Network:
        """The same policy with this much noise on every action."""
        return replace(self, std=torch.full((self.outputs,), float(std), dtype=torch.float64))


@dataclass(frozen=True, eq=False)
class Function:
    """Any callable as a policy: from observations `[B, inputs]` (numpy) to mean actions `[B, outputs]`.

    Noise of `std` is added. Torch does not see into it, so it is refused where a derivative is needed.
    sees: "observation", the environment's own, or "state"
    """

    function: Callable[[NDArray[np.float64]], Any]
    inputs: int
    outputs: int
    std: float = 0.0
    squash: bool = False
    sees: str = "observation"

    def __post_init__(self) -> None:
        _check_sees(self.sees)

    def __call__(self, observations: Tensor, noise: Tensor) -> Tensor:
        rows = observations.detach().cpu().numpy().astype(np.float64).reshape(-1, self.inputs)
        mean, wanted = np.asarray(self.function(rows)), (len(rows), self.outputs)
        if mean.shape != wanted:
            raise InvalidInput(f"the policy must return actions of shape {wanted}, got {mean.shape}")
        return torch.as_tensor(mean).to(noise).reshape(noise.shape) + self.std * noise


@dataclass(frozen=True, eq=False)
class _Wrapped:
    """Another policy, changed."""

    policy: Policy

    @property
    def inputs(self) -> int:
        return self.policy.inputs

    @property
    def outputs(self) -> int:
        return self.policy.outputs

    @property
    def squash(self) -> bool:
        return self.policy.squash


@dataclass(frozen=True, eq=False)
class NoisyPolicy(_Wrapped):
    """Another policy with more noise on its actions, to see what lies off its path."""

    extra: float

    @property
    def sees(self) -> str:
        return policy_input(self.policy)

    def __call__(self, observations: Tensor, noise: Tensor) -> Tensor:
        wanted = self.policy(observations, noise) + self.extra * noise
        return wanted.clamp(-1, 1) if self.squash else wanted


@dataclass(frozen=True, eq=False)
class SlowedPolicy(_Wrapped):
    """Another policy, scaled down as a number of the state nears a bound: a guard's way, without a model.

    What a model must know for a guard to trust it lies where the guard keeps the robot, and the policy
    alone is seldom there.

    view: from states to what the policy sees, `Environment.view`
    dims: D
    column: which number of the state
    bound: where nothing is left of the action
    width: how far below it the scaling begins
    jitter: deviation of the factor
    noise: share of the policy's own noise that is left on its actions
    """

    view: Callable[[Any], Any]
    dims: int
    column: int
    bound: float
    width: float
    jitter: float
    noise: float = 0.5
    sees: str = "state"

    @property
    def inputs(self) -> int:
        return self.dims

    def __call__(self, observations: Tensor, noise: Tensor) -> Tensor:
        near = (self.bound - observations[..., self.column, None]) / self.width
        factor = (near + self.jitter * noise[..., :1]).clamp(0, 1)
        seen = observations if policy_input(self.policy) == "state" else self.view(observations)
        return factor * self.policy(seen, noise * self.noise).clamp(-1, 1)


def actions(environment: Environment, policy: Policy, states: Tensor, noise: Tensor) -> Tensor:
    """`[..., A]` what the policy does in `states` `[..., D]`, in the environment's action range."""
    seen = states if policy_input(policy) == "state" else environment.view(states)
    low, high = (torch.from_numpy(end).to(states) for end in (environment.low, environment.high))
    wanted = policy(seen, noise)
    if wanted.shape != (shape := (*states.shape[:-1], len(low))):
        raise InvalidInput(f"the policy must return actions of shape {shape}, got {tuple(wanted.shape)}")
    if policy.squash:
        return (low + high) / 2 + (high - low) / 2 * wanted
    return torch.clamp(wanted, low, high)


def check_policy(environment: Environment, policy: Policy) -> Policy:
    """`policy`, after refusing one of other dimensions than the environment's."""
    full, sees = len(environment.names), policy_input(policy)
    own = environment.view(np.zeros((1, full))).shape[1]
    seen = full if sees == "state" else own
    if (policy.inputs, policy.outputs) != (seen, len(environment.low)):
        more = ""
        if sees != "state" and policy.inputs == own + 1:
            more = "; one with a time feature cannot be followed, because the time is no part of the state"
        if sees != "state" and policy.inputs == full:
            more += "; one that sees the state must say so"
        raise InvalidInput(
            f"a policy for {environment.id} that sees the {sees} must have {seen} inputs and "
            f"{len(environment.low)} outputs, got {policy.inputs} and {policy.outputs}{more}"
        )
    return policy


def policy_input(policy: Policy) -> str:
    """What a policy sees: "observation", the environment's own, unless it says "state". Sizes say nothing."""
    return _check_sees(getattr(policy, "sees", "observation"))


def _check_sees(sees: Any) -> str:
    if sees not in ("observation", "state"):
        raise InvalidInput(f"sees must be 'observation' or 'state', got {sees!r}")
    return str(sees)


def has_derivative(environment: Environment, policy: Policy) -> bool:
    """Whether torch can follow an action back to the state; it drops what it cannot, without a word."""
    with torch.enable_grad():
        states = torch.zeros((1, len(environment.names)), requires_grad=True)
        return actions(environment, policy, states, torch.zeros((1, policy.outputs))).requires_grad


def _dense(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.linear(values, weight.to(values), bias.to(values))
