"""How much likelier a rollout is under a new policy than under the old one that made it.

For `pac_core.reweigh`. A bound of the ratio is proved for one kind of pair: two Gaussian policies with the
same mean action in every state and fixed deviations, the new ones not larger. Everything random that a policy
adds to a rollout is the deviation std * noise of its actions; squashing, clipping and the simulator come
afterwards and are the same for both. So a rollout is one and the same function of reset, burn-in and
deviations under both policies, and the density ratio of the deviations is a valid weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pac_core import InvalidInput, gaussian_bound, gaussian_weights
from pac_core.bounds import whole
from pac_rl.policies import Function, Network, Noisy, Policy
from pac_rl.trajectories import burn_in_range, checked_seeds


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
    old: Policy,
    new: Policy,
    seeds: Sequence[int] | NDArray[np.int64],
    *,
    horizon: int,
    burn_in: tuple[int, int] = (0, 200),
) -> PolicyRatios:
    """Weights of the rollouts that `simulate` made of the old policy, and their bound; or a refusal.

    horizon, burn_in: as they were given to `simulate`; the policy acts in the burn-in too, so it counts

    About one rollout in `bound` will be accepted, and the bound grows with every step and every action:
    deviations 1% smaller, 6 actions and 20 steps make 3.3; with 200 steps of burn-in, half a million.

    >>> old, new = (Function(np.tanh, inputs=1, outputs=1, std=std) for std in (0.5, 0.4))
    >>> round(policy_ratios(old, new, [0, 1], horizon=5, burn_in=(0, 2)).bound, 4)  # (0.5 / 0.4) ** 7
    4.7684
    """
    names = checked_seeds(seeds)
    whole("horizon", horizon, least=1)
    least, most = burn_in_range(burn_in)
    (mean, before), (other, after) = _taken_apart(old), _taken_apart(new)
    if old.squash != new.squash or not _same(mean, other):
        raise InvalidInput(
            "both policies must have the same mean action in every state, got two that may differ: the "
            "ratio then has no bound that is known here; calibrate on fresh rollouts of the new policy"
        )
    bound = gaussian_bound(before, after, steps=most + horizon)
    weights = [
        gaussian_weights(_noise(seed, (least, most), horizon, len(before))[None], before, after)[0]
        for seed in names.tolist()
    ]
    return PolicyRatios(names, np.array(weights), bound)


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
