"""Candidates are the policy's actions, scaled, along what the ensemble predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from halfcheetah.guard import SlowedPolicy

from pac_core import InvalidInput
from pac_rl import Ensemble, candidates_around, forecast_closed_loop, forecast_plans
from pac_rl.planning import FACTORS
from pac_rl.policies import Network
from pac_rl.systems import Environment

HORIZON = 4
STARTS = np.random.default_rng(0).normal(size=(3, 18)) * 0.1


def test_factors_go_from_nothing_to_the_policy() -> None:
    assert len(FACTORS) == 21
    assert (FACTORS[0], FACTORS[1], FACTORS[-1]) == (0.0, 0.05, 1.0)


def test_the_forecast_is_that_of_the_plans(ensemble: Ensemble, cheetah: Environment, policy: Network) -> None:
    """One pass gives both; a second pass over the plans alone must agree, whoever computes it."""
    found = candidates_around(policy, ensemble, cheetah, STARTS, horizon=HORIZON, factors=(0.0, 0.5, 1.0))
    assert found.plans.shape == (3, 3, HORIZON, 6)
    assert found.mean.shape == found.var.shape == (3, 3, HORIZON, 18)
    starts = np.repeat(STARTS, 3, axis=0)
    again = forecast_plans(ensemble, starts, found.plans.flatten(0, 1).numpy(), propagation="one-step")
    np.testing.assert_allclose(found.forecast.mean.numpy(), again.mean, atol=1e-4)
    np.testing.assert_allclose(found.forecast.var.numpy(), again.var, rtol=1e-3)


def test_factor_one_is_the_policy_and_factor_zero_nothing(
    ensemble: Ensemble, cheetah: Environment, policy: Network
) -> None:
    found = candidates_around(policy, ensemble, cheetah, STARTS, horizon=HORIZON, factors=(0.0, 0.5, 1.0))
    alone = forecast_closed_loop(ensemble, cheetah, policy, STARTS, horizon=HORIZON, propagation="one-step")
    np.testing.assert_allclose(found.mean[:, 2].numpy(), alone.mean, atol=1e-4)
    assert not found.plans[:, 0].any()
    # At the first step all see the same state, so the actions are exact multiples.
    np.testing.assert_allclose(found.plans[:, 1, 0], found.plans[:, 2, 0] / 2, rtol=1e-5)


def test_members_go_their_own_ways(ensemble: Ensemble, cheetah: Environment, policy: Network) -> None:
    options: Any = {"horizon": HORIZON, "factors": (0.3, 1.0)}
    assert candidates_around(policy, ensemble, cheetah, STARTS, **options).members is None
    found = candidates_around(policy, ensemble, cheetah, STARTS, members=True, **options)
    assert found.members is not None
    assert found.members.shape == (3, 3, 2, HORIZON, 18)
    # After one step the ensemble's mean is the mean of its members; later they have parted.
    np.testing.assert_allclose(found.members[:, :, :, 0].mean(dim=0), found.mean[:, :, 0], atol=1e-5)
    second = ensemble.step(found.members[:, 0, :, 0], found.plans[0, :, 1].expand(3, -1, -1))[0].detach()
    np.testing.assert_allclose(found.members[:, 0, :, 1], second, atol=1e-5)


def test_pick_takes_the_candidate_or_what_stands_in(
    ensemble: Ensemble, cheetah: Environment, policy: Network
) -> None:
    found = candidates_around(
        policy, ensemble, cheetah, STARTS, horizon=HORIZON, factors=(0.2, 1.0), members=True
    )
    other = candidates_around(
        policy, ensemble, cheetah, STARTS, horizon=HORIZON, factors=(0.0,), members=True
    )
    taken = found.pick(torch.tensor([1, -1, 0]), other)
    assert taken.members is not None
    assert found.members is not None
    assert other.members is not None
    for name in ("plans", "mean", "var"):
        mine, theirs, got = (getattr(one, name) for one in (found, other, taken))
        assert torch.equal(got[:, 0], torch.stack([mine[0, 1], theirs[1, 0], mine[2, 0]]))
    assert torch.equal(taken.members[2, 1, 0], other.members[2, 1, 0])
    assert torch.equal(taken.members[1, 0, 0], found.members[1, 0, 1])


def test_bad_factors_and_starts_are_refused(
    ensemble: Ensemble, cheetah: Environment, policy: Network
) -> None:
    with pytest.raises(InvalidInput, match="factors must be one or more finite numbers"):
        candidates_around(policy, ensemble, cheetah, STARTS, horizon=1, factors=())
    with pytest.raises(InvalidInput, match=r"starts must have shape \[B, 18\]"):
        candidates_around(policy, ensemble, cheetah, STARTS[:, :5], horizon=1)
    with pytest.raises(InvalidInput, match="starts must be finite"):
        candidates_around(policy, ensemble, cheetah, np.nan * STARTS, horizon=1)


def test_a_governed_policy_slows_down_at_its_bound(cheetah: Environment, policy: Network) -> None:
    slow = SlowedPolicy(policy, cheetah.view, 18, 0, bound=3.0, width=1.0, jitter=0.0)
    states = torch.zeros((4, 18), dtype=torch.float64)
    states[:, 0] = torch.tensor([0.0, 2.0, 2.75, 3.5])
    still = torch.zeros((4, 6), dtype=torch.float64)
    full = policy(cheetah.view(states), still).clamp(-1, 1)
    factor = torch.tensor([1.0, 1.0, 0.25, 0.0], dtype=torch.float64)[:, None]
    torch.testing.assert_close(slow(states, still), factor * full)
    assert slow.inputs == 18
