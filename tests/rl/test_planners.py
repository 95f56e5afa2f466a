"""Planners: a policy's actions, scaled, along what is predicted; MPPI, which refines a plan by its costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from halfcheetah.guard import SlowedPolicy

from pac_core import InvalidInput
from pac_rl import MPPI, AroundPolicy, Controller, Dynamics, Ensemble, forecast_closed_loop, forecast_plans
from pac_rl.planning import FACTORS
from pac_rl.policies import Network
from pac_rl.systems import Environment

STARTS = np.random.default_rng(0).normal(size=(3, 18)) * 0.1
RNGS: Any = [None] * 3


@pytest.fixture(scope="module")
def around(controller: Controller) -> AroundPolicy:
    return replace(controller.planner, factors=(0.0, 0.5, 1.0), horizon=4)  # type: ignore[type-var]


def test_factors_go_from_nothing_to_the_policy() -> None:
    assert len(FACTORS) == 21
    assert (FACTORS[0], FACTORS[1], FACTORS[-1]) == (0.0, 0.05, 1.0)


@pytest.mark.parametrize("propagation", ["one-step", "particles"])
def test_the_forecast_is_that_of_the_plans(
    around: AroundPolicy, ensemble: Ensemble, propagation: str
) -> None:
    """One pass gives both where it can; a second pass over the plans alone must agree."""
    made = replace(around, model=Dynamics.of(ensemble, propagation=propagation))
    plans, found = made.propose_with_forecast(STARTS, RNGS)
    assert plans.shape == (3, 3, 4, 6)
    again = forecast_plans(
        ensemble, STARTS.repeat(3, axis=0), plans.reshape(9, 4, 6), propagation=propagation
    )
    np.testing.assert_allclose(found.mean, again.mean, atol=1e-4)
    np.testing.assert_allclose(found.var, again.var, rtol=1e-3)


def test_factor_one_is_the_policy_and_factor_zero_nothing(
    around: AroundPolicy, ensemble: Ensemble, cheetah: Environment, policy: Network
) -> None:
    plans, found = around.propose_with_forecast(STARTS, RNGS)
    alone = forecast_closed_loop(ensemble, cheetah, policy, STARTS, horizon=4, propagation="one-step")
    np.testing.assert_allclose(found.mean.reshape(3, 3, 4, 18)[:, 2], alone.mean, atol=1e-4)
    assert not plans[:, 0].any()
    # At the first step all see the same state, so the actions are exact multiples.
    np.testing.assert_allclose(plans[:, 1, 0], plans[:, 2, 0] / 2, rtol=1e-5)


def test_members_go_their_own_ways(around: AroundPolicy, ensemble: Ensemble) -> None:
    plans, found = around.propose_with_forecast(STARTS, RNGS)
    flat = plans.reshape(9, 4, 6)
    ways = around.model.members(STARTS.repeat(3, axis=0), flat)  # type: ignore[misc]
    assert ways.shape == (3, 9, 4, 18)
    # After one step the ensemble's mean is the mean of its members; later they have parted.
    np.testing.assert_allclose(ways[:, :, 0].mean(axis=0), found.mean[:, 0], atol=1e-5)
    seen, done = (torch.from_numpy(x).float() for x in (ways[:, :, 0], np.stack([flat[:, 1]] * 3)))
    np.testing.assert_allclose(ways[:, :, 1], ensemble.step(seen, done)[0].detach(), atol=1e-5)


def test_bad_factors_and_starts_are_refused(around: AroundPolicy) -> None:
    with pytest.raises(InvalidInput, match="factors must not be empty"):
        replace(around, factors=())
    with pytest.raises(InvalidInput, match="factors must not contain NaN"):
        replace(around, factors=(0.0, np.nan))
    with pytest.raises(InvalidInput, match="starts must not contain NaN"):
        around.propose(np.nan * STARTS, RNGS)


def test_a_governed_policy_slows_down_at_its_bound(cheetah: Environment, policy: Network) -> None:
    slow = SlowedPolicy(policy, cheetah.view, 18, 0, bound=3.0, width=1.0, jitter=0.0)
    states = torch.zeros((4, 18), dtype=torch.float64)
    states[:, 0] = torch.tensor([0.0, 2.0, 2.75, 3.5])
    still = torch.zeros((4, 6), dtype=torch.float64)
    full = policy(cheetah.view(states), still).clamp(-1, 1)
    factor = torch.tensor([1.0, 1.0, 0.25, 0.0], dtype=torch.float64)[:, None]
    torch.testing.assert_close(slow(states, still), factor * full)
    assert slow.inputs == 18


def line(starts: Any, plans: Any) -> Any:
    """x' = x + a."""
    mean = starts[:, None] + plans.cumsum(1)
    return mean, 0 * mean + 1.0


def from_two(mean: Any, plans: Any) -> Any:
    """Squared distances from 2, along the plan."""
    return ((mean - 2) ** 2).sum((-1, -2))


def draw(*seeds: int) -> Any:
    return [np.random.default_rng(seed) for seed in seeds]


REFINING = MPPI(Dynamics(line), from_two, np.array([-1.0]), np.array([1.0]), temperature=0.1, horizon=3)


def test_mppi_refines_what_it_began_with() -> None:
    """From 0 to 2 in steps of at most 1: best is 1, 1, 0 at cost 1; the plan it begins with holds at 12."""
    plans = REFINING.propose(np.zeros((2, 1)), draw(0, 1))
    assert plans.shape == (2, 64, 3, 1)
    assert (np.abs(plans) <= 1).all()
    assert not plans[:, -1].any(), "the plan it began with"
    cost = from_two(plans.cumsum(axis=2), plans)
    assert (cost[:, -1] == 12).all()
    assert (cost[:, -2] < 2).all(), "the mean of the last round"
    assert (cost >= 1 - 1e-12).all()
    small = replace(REFINING, deviation=0.2)
    means = [replace(small, rounds=n).propose(np.zeros((1, 1)), draw(0))[:, -2] for n in (1, 3, 9)]
    one, three, nine = (float(from_two(mean.cumsum(axis=1), mean)[0]) for mean in means)
    assert 12 > one > three > nine > 1, "further rounds go further"


def test_the_mean_of_mppi_is_weighed_by_costs() -> None:
    """One round by hand: exp(-cost / temperature) of the drawn plans, which are the first candidates."""
    plans = replace(REFINING, rounds=1, temperature=2.0).propose(np.full((1, 1), 0.5), draw(3))[0]
    drawn = plans[:-2]
    weight = np.exp(-from_two(0.5 + drawn.cumsum(axis=1), drawn) / 2)
    np.testing.assert_allclose(plans[-2], np.average(drawn, axis=0, weights=weight), atol=1e-12)
    assert len(np.unique(drawn[:, 0])) > 40, "most are not cut off at the range"


def test_plans_of_mppi_come_from_the_generator_of_their_start_alone() -> None:
    starts = np.array([[0.0], [1.0], [-3.0]])
    whole = REFINING.propose(starts, draw(4, 5, 6))
    np.testing.assert_array_equal(REFINING.propose(starts[1:2], draw(5)), whole[1:2])
    assert not np.array_equal(REFINING.propose(starts[1:2], draw(4)), whole[1:2])


def test_mppi_goes_on_where_costs_are_no_numbers() -> None:
    """A plan without a cost has no weight; where none has one, all weigh the same."""

    def half(mean: Any, plans: Any) -> Any:
        return np.where(plans[..., 0, 0] > 0, from_two(mean, plans), np.nan)

    some = replace(REFINING, price=half).propose(np.zeros((1, 1)), draw(0))
    assert from_two(some.cumsum(axis=2), some)[0, -2] < 2
    none = replace(REFINING, price=lambda mean, plans: np.full(plans.shape[:2], np.nan), rounds=1)
    plans = none.propose(np.zeros((1, 1)), draw(0))[0]
    np.testing.assert_allclose(plans[-2], plans[:-2].mean(axis=0), atol=1e-12)
    with pytest.raises(InvalidInput, match=r"candidates must be a whole number from 3 .*got 2"):
        replace(REFINING, candidates=2).propose(np.zeros((1, 1)), draw(0))
    with pytest.raises(InvalidInput, match=r"cost must be numbers of shape \(1, 62\), got \(\)"):
        replace(REFINING, price=lambda mean, plans: 1.0).propose(np.zeros((1, 1)), draw(0))
