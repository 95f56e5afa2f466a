"""Forecasts of a linear world, where every propagation has an exact answer, and of the half-cheetah."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pac_core import InvalidInput
from pac_rl import (
    Ensemble,
    forecast_closed_loop,
    forecast_plans,
    load_policy,
    make_environment,
    propose_plans,
    simulate,
)
from pac_rl.dynamics.forecasts import PROPAGATIONS, particles
from pac_rl.policies import Function, Network, NoisyPolicy, actions
from pac_rl.rollouts import Rollouts
from pac_rl.systems import Environment

MATRIX = torch.tensor([[0.9, 0.2], [-0.3, 0.8]])
PUSH = torch.tensor([[0.5], [0.1]])
NOISE = torch.tensor([0.04, 0.01])
OFFSETS = torch.tensor([-0.1, 0.1])


class Linear:
    """Two members that agree but for a constant: x' = M x + P u + offset, plus noise of variance NOISE."""

    dims, action_dims, members = 2, 1, 2
    units = torch.ones(2)

    def step(self, states: torch.Tensor, done: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean = states @ MATRIX.T + done @ PUSH.T + OFFSETS.reshape(2, 1, 1)
        return mean, NOISE.expand_as(mean)


LINEAR: Any = Linear()
FEEDBACK = torch.tensor([[-0.4, 0.3]])
STD = 0.2


def act(t: int, states: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    return states @ FEEDBACK.T + STD * noise


def exact(horizon: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Mean and covariance of the closed loop, with the members' disagreement counted in each step's noise."""
    loop = MATRIX + PUSH @ FEEDBACK
    mean, cov = torch.tensor([1.0, -2.0]), torch.zeros(2, 2)
    step = torch.diag(NOISE + OFFSETS.var(correction=0))
    means, covs = [], []
    for _ in range(horizon):
        mean = loop @ mean
        cov = loop @ cov @ loop.T + STD**2 * PUSH @ PUSH.T + step
        means.append(mean)
        covs.append(cov)
    return means, covs


START = torch.tensor([[1.0, -2.0]]).repeat(3, 1)


def test_one_step_variances_are_noise_and_disagreement() -> None:
    mean, var = PROPAGATIONS["one-step"](LINEAR, START, act, 5)
    torch.testing.assert_close(mean[0], torch.stack(exact(5)[0]))
    torch.testing.assert_close(var[0], (NOISE + OFFSETS.var(correction=0)).repeat(5, 1))


def test_particles_come_near_the_exact_answer() -> None:
    """Members keep their offset over the horizon, so their disagreement adds up coherently."""
    mean, var = particles(LINEAR, START, act, 5, count=4000)
    means, _ = exact(5)
    torch.testing.assert_close(mean[0], torch.stack(means), atol=0.01, rtol=0)
    loop, cov, drift = MATRIX + PUSH @ FEEDBACK, torch.zeros(2, 2), torch.zeros(2)
    for t in range(5):
        cov = loop @ cov @ loop.T + STD**2 * PUSH @ PUSH.T + torch.diag(NOISE)
        drift = loop @ drift + OFFSETS[1]
        # Two members at +drift and -drift around their mean; sampling 8000 particles is good to 2%.
        np.testing.assert_allclose(var[0, t].numpy(), (cov.diagonal() + drift**2).numpy(), rtol=0.06)


def test_the_shipped_number_of_particles_matches_the_noise_of_a_step() -> None:
    _, var = PROPAGATIONS["particles"](LINEAR, START, lambda t, s, n: 0 * n, 1)
    torch.testing.assert_close(var[0, 0], NOISE + OFFSETS.var(correction=0))


@pytest.mark.parametrize("propagation", PROPAGATIONS)
def test_the_policy_is_followed_along_the_mean(
    cheetah: Environment, policy: Network, ensemble: Ensemble, episodes: Rollouts, propagation: str
) -> None:
    """The plan that the policy makes along the mean gives the forecast of the closed loop."""
    starts = episodes.start[:5]
    loop = forecast_closed_loop(ensemble, cheetah, policy, starts, horizon=4, propagation="one-step")
    before = np.concatenate([starts[:, None], loop.mean[:, :-1]], axis=1).reshape(-1, 18)
    still = torch.zeros(20, 6)
    plans = actions(cheetah, policy, torch.tensor(before, dtype=torch.float32), still).reshape(5, 4, 6)
    given = forecast_plans(ensemble, starts, plans.numpy(), propagation="one-step")
    np.testing.assert_allclose(given.mean, loop.mean, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(given.var, loop.var, rtol=1e-2, atol=1e-6)
    other = forecast_closed_loop(ensemble, cheetah, policy, starts, horizon=4, propagation=propagation)
    assert other.mean.shape == (5, 4, 18)
    assert (other.var > 0).all()
    np.testing.assert_allclose(other.mean[:, 0], loop.mean[:, 0], atol=0.5)


def as_function(policy: Network) -> Function:
    """The same policy, as a callable on numpy that torch cannot see into."""

    def act(observed: np.ndarray) -> np.ndarray:
        assert observed.ndim == 2
        return policy(torch.from_numpy(observed), torch.zeros(len(observed), 6).double()).numpy()

    return Function(act, 17, 6, std=0.1)


@pytest.mark.parametrize("propagation", PROPAGATIONS)
def test_any_callable_is_followed_too(
    cheetah: Environment, policy: Network, ensemble: Ensemble, episodes: Rollouts, propagation: str
) -> None:
    options: Any = {"horizon": 3, "propagation": propagation}
    for other in (as_function(policy), NoisyPolicy(as_function(policy), 0.0)):
        wanted = forecast_closed_loop(ensemble, cheetah, policy, episodes.start[:5], **options)
        found = forecast_closed_loop(ensemble, cheetah, other, episodes.start[:5], **options)
        np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(found.var, wanted.var, rtol=1e-2, atol=1e-5)


def test_every_propagation_takes_given_plans(ensemble: Ensemble, episodes: Rollouts) -> None:
    plans = episodes.actions[:3, :4]
    first = [
        forecast_plans(ensemble, episodes.start[:3], plans, propagation=kind).mean[:, 0]
        for kind in PROPAGATIONS
    ]
    np.testing.assert_allclose(first[1:], first[:1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("propagation", ["one-step", "particles"])
def test_a_forecast_does_not_depend_on_its_company(
    cheetah: Environment, policy: Network, ensemble: Ensemble, episodes: Rollouts, propagation: str
) -> None:
    options: Any = {"horizon": 3, "propagation": propagation, "batch": 16}
    whole = forecast_closed_loop(ensemble, cheetah, policy, episodes.start, **options)
    few = forecast_closed_loop(ensemble, cheetah, policy, episodes.start[:3], **options)
    np.testing.assert_array_equal(few.mean, whole.mean[:3])
    np.testing.assert_array_equal(few.var, whole.var[:3])


def test_tensors_come_back_as_tensors(ensemble: Ensemble, episodes: Rollouts) -> None:
    starts, plans = torch.tensor(episodes.start[:3]), torch.zeros(3, 4, 6)
    forecast = forecast_plans(ensemble, starts, plans)
    assert isinstance(forecast.mean, torch.Tensor)
    here = forecast_plans(ensemble, starts.numpy(), plans.numpy())
    np.testing.assert_array_equal(forecast.var.numpy(), here.var)


def test_plans_are_perturbed_by_their_seed_alone(
    cheetah: Environment, policy: Network, ensemble: Ensemble, episodes: Rollouts
) -> None:
    starts, seeds = episodes.start[:20], np.arange(20)
    plans = propose_plans(ensemble, cheetah, policy, starts, seeds, horizon=4, batch=32)
    assert abs(plans).max() == 1.0  # cut off at the range
    few = propose_plans(ensemble, cheetah, policy, starts[:2], seeds[:2], horizon=4, batch=32)
    np.testing.assert_array_equal(few, plans[:2])
    other = propose_plans(ensemble, cheetah, policy, starts, seeds + 100, horizon=4, batch=32)
    assert (other != plans).any(axis=(1, 2)).all()


def bad(name: str, ensemble: Ensemble, cheetah: Environment, policy: Network) -> None:
    start = np.zeros((2, 18))
    hopper = make_environment("Hopper-v5")
    flat = Function(lambda observed: np.zeros((len(observed), 3)), 11, 3)
    calls: dict[str, Any] = {
        "horizon": lambda: forecast_closed_loop(ensemble, cheetah, policy, start, horizon=0),
        "propagation": lambda: forecast_closed_loop(
            ensemble, cheetah, policy, start, horizon=2, propagation="x"
        ),
        "starts": lambda: forecast_closed_loop(ensemble, cheetah, policy, start[:, :17], horizon=2),
        "nan": lambda: forecast_closed_loop(ensemble, cheetah, policy, start * np.nan, horizon=2),
        "ensemble": lambda: forecast_closed_loop(ensemble, hopper, flat, np.zeros((2, 12)), horizon=2),
        "policy": lambda: forecast_closed_loop(ensemble, cheetah, flat, start, horizon=2),
        "plans": lambda: forecast_plans(ensemble, start, np.zeros((2, 3, 5))),
        "nan plans": lambda: forecast_plans(ensemble, start, np.full((2, 3, 6), np.nan)),
        "batch": lambda: forecast_closed_loop(ensemble, cheetah, policy, start, horizon=2, batch=0),
        "plans batch": lambda: forecast_plans(ensemble, start, np.zeros((2, 3, 6)), batch=0),
        "propose seeds": lambda: propose_plans(ensemble, cheetah, policy, start, [1, 2, 3], horizon=2),
        "propose same": lambda: propose_plans(ensemble, cheetah, policy, start, [1, 1], horizon=2),
        "propose starts": lambda: propose_plans(ensemble, cheetah, policy, start[:, :3], [1, 2], horizon=2),
        "propose nan": lambda: propose_plans(ensemble, cheetah, policy, start * np.nan, [1, 2], horizon=2),
        "propose horizon": lambda: propose_plans(ensemble, cheetah, policy, start, [1, 2], horizon=0),
        "propose batch": lambda: propose_plans(ensemble, cheetah, policy, start, [1, 2], horizon=2, batch=0),
        "propose policy": lambda: propose_plans(ensemble, cheetah, flat, start, [1, 2], horizon=2),
    }
    calls[name]()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("horizon", "horizon must be a whole number from 1 .*got 0"),
        ("propagation", "propagation must be one of one-step, particles, got 'x'"),
        ("starts", r"starts must have shape \[B, 18\], got \(2, 17\)"),
        ("nan", "starts must be finite"),
        ("ensemble", "must be of 12 state and 3 action numbers for Hopper-v5, got 18 and 6"),
        ("policy", "must have 17 inputs and 6 outputs, got 11 and 3"),
        ("plans", r"plans must have shape \[2, H, 6\], got \(2, 3, 5\)"),
        ("nan plans", "plans must be finite"),
        ("batch", r"batch must be a whole number from 1 to 2\*\*53, got 0"),
        ("plans batch", "batch must be a whole number from 1 .*got 0"),
        ("propose seeds", "seeds must be one for each start, got 3 for 2 starts"),
        ("propose same", "seeds must differ"),
        ("propose starts", r"starts must have shape \[B, 18\], got \(2, 3\)"),
        ("propose nan", "starts must be finite"),
        ("propose horizon", "horizon must be a whole number from 1 .*got 0"),
        ("propose batch", "batch must be a whole number from 1 .*got 0"),
        ("propose policy", "must have 17 inputs and 6 outputs, got 11 and 3"),
    ],
)
def test_bad_input_is_named(
    ensemble: Ensemble, cheetah: Environment, policy: Network, name: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        bad(name, ensemble, cheetah, policy)


def test_a_forecast_tells_the_likely_from_the_unlikely(cheetah: Environment, ensemble: Ensemble) -> None:
    """Even a tiny ensemble is closer to what happened than standing still would be."""
    policy = load_policy()
    rollouts = simulate(cheetah, policy, range(30), horizon=3, burn_in=(0, 80), batch=32)
    forecast = forecast_closed_loop(ensemble, cheetah, policy, rollouts.start, horizon=3)
    error = np.sqrt(((forecast.mean - rollouts.states) ** 2).mean(axis=(0, 1)))
    still = np.sqrt(((rollouts.start[:, None] - rollouts.states) ** 2).mean(axis=(0, 1)))
    assert (error < still).mean() > 0.8


class Explosive(Linear):
    """Explodes from the second step on where the first number of the state is large."""

    def step(self, states: torch.Tensor, done: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, var = super().step(states, done)
        return torch.where(mean[..., :1] > 5, torch.nan, mean), var


@pytest.mark.parametrize("propagation", PROPAGATIONS)
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_a_start_on_which_the_ensemble_explodes_is_marked_and_touches_no_other(
    propagation: str, kind: Any
) -> None:
    """One unit must not refuse the certificate of all others."""
    starts, plans = np.zeros((3, 2), np.float32), np.zeros((3, 4, 1), np.float32)
    starts[1] = 100
    explosive: Any = Explosive()
    found = forecast_plans(explosive, kind(starts), kind(plans), propagation=propagation)
    assert found.failed.tolist() == [False, True, False]
    usual = forecast_plans(LINEAR, kind(starts), kind(plans), propagation=propagation)
    assert usual.failed is None
    for name in ("mean", "var"):
        assert np.array_equal(*(np.asarray(getattr(one, name))[[0, 2]] for one in (found, usual)))


def test_a_plan_is_proposed_where_the_ensemble_explodes() -> None:
    robot: Any = SimpleNamespace(
        id="line", names=("x", "v"), low=np.array([-1.0]), high=np.array([1.0]), view=lambda states: states
    )
    explosive: Any = Explosive()
    follow = Function(lambda rows: rows @ FEEDBACK.numpy().T, 2, 1)
    starts = np.array([[0.0, 0.0], [100.0, 0.0]])
    plans = propose_plans(explosive, robot, follow, starts, np.arange(2), horizon=3)
    assert np.isfinite(plans).all()
    assert forecast_plans(explosive, starts, plans).failed.tolist() == [False, True]
