"""Weights of rollouts under a new policy: exact, bounded, or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from pac_core import InvalidInput
from pac_rl import policy_ratios, simulate
from pac_rl.policies import Function, Network, NoisyPolicy
from pac_rl.systems import Environment


def still(rows: Any) -> Any:
    return np.zeros((len(rows), 6))


def noisy(std: float) -> Function:
    return Function(still, inputs=17, outputs=6, std=std)


def test_weights_are_those_of_what_was_done(cheetah: Environment) -> None:
    """With a mean of zero and little noise nothing is clipped, and the actions are the deviations."""
    seeds, old, new = np.array([3, 70, 11]), noisy(0.1), noisy(0.095)
    rollouts = simulate(cheetah, old, seeds, horizon=5, burn_in=(0, 0), batch=64)
    done = rollouts.actions
    by_hand = (norm.pdf(done, 0, 0.095) / norm.pdf(done, 0, 0.1)).prod(axis=(1, 2))
    straight = policy_ratios(cheetah, old, new, rollouts, burn_in=(0, 0))
    assert straight.weights == pytest.approx(by_hand)
    later = simulate(cheetah, old, seeds, horizon=3, burn_in=(2, 2), batch=64)
    burnt = policy_ratios(cheetah, old, new, later, burn_in=(2, 2))
    assert burnt.weights == pytest.approx(by_hand), "the burn-in counts like any other step"
    assert burnt.bound == pytest.approx((0.1 / 0.095) ** 30)
    assert burnt.seeds.tolist() == seeds.tolist()


def test_weights_of_what_was_not_done_are_refused(cheetah: Environment, policy: Network) -> None:
    """A burn-in or a policy that was told wrongly makes weights of noise that nobody drew."""
    old, new = policy.with_noise(0.2), policy.with_noise(0.19)
    rollouts = simulate(cheetah, old, np.arange(6), horizon=4, burn_in=(0, 9), batch=64)
    first = replace(rollouts, states=rollouts.states[:, :2], actions=rollouts.actions[:, :2])
    first = replace(first, lengths=np.full(6, 2))
    assert len(policy_ratios(cheetah, old, new, first, burn_in=(0, 9)).weights) == 6  # shorter units
    lost = replace(rollouts, states=rollouts.states.copy())
    lost.states[2, 1:] = np.inf
    assert np.isfinite(policy_ratios(cheetah, old, new, lost, burn_in=(0, 9)).weights).all()
    for told, burn_in in ((old, (0, 8)), (old, (0, 0)), (policy.with_noise(0.21), (0, 9))):
        with pytest.raises(
            InvalidInput, match=r"with burn_in=\(0, \d\), got other actions at \d+ of 24 steps"
        ):
            policy_ratios(cheetah, told, new, rollouts, burn_in=burn_in)
    changed = replace(rollouts, seeds=rollouts.seeds[::-1].copy())
    with pytest.raises(InvalidInput, match="got other actions"):
        policy_ratios(cheetah, old, new, changed, burn_in=(0, 9))


def test_weights_average_to_one_and_keep_their_bound(cheetah: Environment) -> None:
    rollouts = simulate(cheetah, noisy(0.1), np.arange(3000), horizon=2, burn_in=(0, 3))
    made = policy_ratios(cheetah, noisy(0.1), noisy(0.095), rollouts, burn_in=(0, 3))
    assert abs(made.weights.mean() - 1) < 4 * made.weights.std() / np.sqrt(3000)
    assert made.weights.max() <= made.bound == pytest.approx((0.1 / 0.095) ** 30)


def test_pairs_that_have_a_bound(cheetah: Environment, policy: Network) -> None:
    def bound(old: Any, new: Any) -> float:
        rollouts = simulate(cheetah, old, [0], horizon=1, burn_in=(0, 0), batch=4)
        return policy_ratios(cheetah, old, new, rollouts, burn_in=(0, 0)).bound

    assert bound(policy.with_noise(0.2), policy.with_noise(0.1)) == pytest.approx(2**6)
    assert bound(noisy(0.2), noisy(0.2)) == pytest.approx(1)
    assert bound(NoisyPolicy(noisy(0.1), 0.1), noisy(0.1)) == pytest.approx(2**6), "noise adds to noise"


def test_pairs_that_have_none(cheetah: Environment, policy: Network) -> None:
    two = policy.with_noise(0.2)
    one = simulate(cheetah, two, [0], horizon=20, burn_in=(0, 0), batch=4)
    last = (*two.biases[:-1], two.biases[-1] + 0.01)
    head = (torch.zeros(6, two.weights[-1].shape[1]), torch.zeros(6))
    for old, new, words in (
        (two, policy.with_noise(0.3), "must not be wider"),
        (two, policy.with_noise(0.0), "deterministic policy has no density"),
        (two, replace(policy.with_noise(0.1), biases=last), "the same mean action in every state"),
        (two, replace(policy.with_noise(0.1), activation="elu"), "the same mean action in every state"),
        (two, replace(policy.with_noise(0.1), clip=1.0), "the same mean action in every state"),
        (two, replace(policy.with_noise(0.1), squash=not two.squash), "the same mean action in every state"),
        (two, noisy(0.1), "the same mean action in every state"),
        (noisy(0.2), replace(noisy(0.1), function=lambda rows: still(rows)), "the same mean action"),
        (two, replace(two, std=head), "with fixed deviations .* got Network"),
        (NoisyPolicy(replace(noisy(0.1), squash=True), 0.1), noisy(0.1), "got Noisy"),
        (two, object(), "got object: no bound"),
    ):
        with pytest.raises(InvalidInput, match=words):
            policy_ratios(cheetah, old, new, one, burn_in=(0, 0))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="keeps no unit at all"):
        policy_ratios(cheetah, two, policy.with_noise(0.1), one, burn_in=(0, 200))
