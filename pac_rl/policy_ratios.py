"""How much likelier a rollout is under a new policy than under the old one that made it.

For `pac_core.reweigh`. A bound of the ratio is proved for one kind of pair: two Gaussian policies with the
same mean action in every state and fixed deviations, the new ones not larger. Everything random that a policy
adds to a rollout is the deviation std * noise of its actions; squashing, clipping and the simulator come
afterwards and are the same for both. So a rollout is one and the same function of reset, burn-in and
deviations under both policies, and the density ratio of the deviations is a valid weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pac_core import InvalidInput, gaussian_bound, gaussian_weights
from pac_rl.environments import Environment
from pac_rl.policies import Function, Network, Noisy, Policy, actions, fitting
from pac_rl.trajectories import Rollouts, burn_in_range, checked_seeds


@dataclass(frozen=True, eq=False)
class PolicyRatios:
    """Weights for `pac_core.fit_reweighted`, with the bound that was proved.

    seeds: `[N]` of the rollouts, their ids
    weights: `[N]` density of each rollout under the new policy over that under the old one
    bound: b, which no rollout's weight exceeds
    """

    seeds: NDArray[np.int64]
    weights: NDArray[np.float64]
    bound: float


def policy_ratios(
    environment: Environment,
    old: Policy,
    new: Policy,
    rollouts: Rollouts,
    *,
    burn_in: tuple[int, int] = (0, 200),
) -> PolicyRatios:
    """Weights of the rollouts that `simulate` made of the old policy, and their bound; or a refusal.

    burn_in: as it was given to `simulate`; the policy acts in the burn-in too, so it counts. Rollouts whose
        actions are not those that seeds, old policy and burn-in make are refused

    About one rollout in `bound` will be accepted, and the bound grows with every step and every action:
    deviations 1% smaller, 6 actions and 20 steps make 3.3; with 200 steps of burn-in, half a million.

    >>> from pac_rl import make_environment, simulate
    >>> robot, still = make_environment(), lambda seen: np.zeros((len(seen), 6))
    >>> old, new = (Function(still, 17, 6, std=std) for std in (0.5, 0.4))
    >>> rollouts = simulate(robot, old, [0, 1], horizon=2, burn_in=(0, 1))
    >>> round(policy_ratios(robot, old, new, rollouts, burn_in=(0, 1)).bound, 4)  # (0.5 / 0.4) ** (6 * 3)
    55.5112
    """
    names, horizon = checked_seeds(rollouts.seeds), rollouts.actions.shape[1]
    least, most = burn_in_range(burn_in)
    (mean, before), (other, after) = _taken_apart(old), _taken_apart(new)
    if old.squash != new.squash or not _same(mean, other):
        raise InvalidInput(
            "both policies must have the same mean action in every state, got two that may differ: the "
            "ratio then has no bound that is known here; calibrate on fresh rollouts of the new policy"
        )
    bound = gaussian_bound(before, after, steps=most + horizon)
    fitting(environment, old)
    weights, drawn = np.empty(len(names)), np.empty(rollouts.actions.shape)
    for i, seed in enumerate(names.tolist()):
        noise = _noise(seed, (least, most), horizon, len(before))
        weights[i], drawn[i] = gaussian_weights(noise[None], before, after)[0], noise[-horizon:]
    _refuse_others(environment, old, rollouts, drawn, (least, most))
    return PolicyRatios(names, weights, bound)


def _refuse_others(
    environment: Environment,
    old: Policy,
    rollouts: Rollouts,
    noise: NDArray[np.float64],
    burn_in: tuple[int, int],
) -> None:
    """Refuse rollouts that did other actions than the old policy with this noise `[N, H, A]`."""
    seen = np.concatenate([rollouts.start[:, None], rollouts.states[:, :-1]], axis=1)
    acted = np.arange(noise.shape[1]) < rollouts.lengths[:, None]
    acted &= np.isfinite(seen).all(axis=2)  # a simulation that diverged goes no further
    again = actions(environment, old, torch.from_numpy(seen[acted]), torch.from_numpy(noise[acted]))
    other = ~np.isclose(again.numpy(), rollouts.actions[acted], rtol=1e-5, atol=1e-5).all(axis=1)
    if other.any():
        raise InvalidInput(
            f"rollouts must be those that simulate makes of the old policy with burn_in={burn_in}, got other "
            f"actions at {int(other.sum()):,} of {len(other):,} steps"
        )


def _noise(seed: int, burn_in: tuple[int, int], horizon: int, outputs: int) -> NDArray[np.float64]:
    """`[T, A]` what `simulate` draws for a rollout, burn-in first."""
    draw = np.random.default_rng(seed)
    before = int(draw.integers(burn_in[0], burn_in[1] + 1))
    return draw.standard_normal((before + horizon, outputs))


def _taken_apart(policy: Policy) -> tuple[tuple[Any, ...], NDArray[np.float64]]:
    """What the mean action depends on, and `[A]` the deviations around it."""
    if isinstance(policy, Network):
        if isinstance(policy.std, tuple):
            raise InvalidInput(
                "a policy must have fixed deviations, got a network whose deviation depends on the "
                "observation: the ratio has no useful bound; calibrate on fresh rollouts of the new policy"
            )
        parts = (*policy.weights, *policy.biases, policy.shift, policy.scale)
        return (policy.activation, len(policy.weights), *parts), policy.std.double().numpy()
    if isinstance(policy, Function):
        return (policy.function,), np.full(policy.outputs, policy.std)
    if isinstance(policy, Noisy) and not policy.squash:
        mean, deviations = _taken_apart(policy.policy)
        return mean, deviations + policy.extra
    raise InvalidInput(
        f"a policy must be Gaussian before it is squashed or clipped, got {type(policy).__name__}: a "
        "planner, a deterministic policy or one that is not known here has no density to compare"
    )


def _same(mean: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two means are computed from the very same numbers by the same function."""

    def equal(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.shape == b.shape and bool(torch.equal(a.double(), b.double()))
        return a is b or (isinstance(a, str | int) and a == b)

    return len(mean) == len(other) and all(equal(a, b) for a, b in zip(mean, other, strict=True))
