"""pac_rl against gymnasium's vector environments, raw MuJoCo stepping and mbrl-lib's ModelEnv."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import gymnasium
import mujoco
import numpy as np
import torch
from mbrl.models import ModelEnv
from mujoco.rollout import Rollout

from benchmarks.figures import Figure, faster, take_turns
from pac_core import GaussianForecast
from pac_core.arrays import count_threads
from pac_rl import Ensemble, Settings, forecast_plans, load_policy, make_environment, simulate
from pac_rl.dynamics.ensemble import new_network
from pac_rl.dynamics.forecasts import particles
from pac_rl.rollouts import Rollouts

_PART = 16  # the peers, which are slow, take this part of the steps
UNITS, STEPS = 1024, 120  # the mean length of a study's rollouts, burn-in included
TRAJECTORIES, HORIZON = 512, 20


def rollouts() -> Iterator[Figure]:
    """True closed-loop rollouts: steps per second of simulator and policy together."""
    environment, policy = make_environment(), load_policy()

    def ours() -> Rollouts:
        return simulate(environment, policy, range(UNITS), horizon=STEPS, burn_in=(0, 0))

    done = ours()
    model = environment.gym.model
    controls = np.repeat(done.actions, environment.gym.frame_skip, axis=1)
    data = [mujoco.MjData(model) for _ in range(count_threads())]
    reached = np.empty((UNITS, controls.shape[1], done.physics.shape[1]))

    def raw() -> None:
        pool.rollout(
            [model] * UNITS,
            data,
            done.physics,
            controls,
            nstep=controls.shape[1],
            state=reached,
            skip_checks=True,
        )

    with Rollout(nthread=len(data)) as pool:
        best = take_turns({"ours": ours, "raw": raw}, rounds=4)
    first = reached[:, environment.gym.frame_skip - 1, 2:]  # without the clock and x
    assert np.array_equal(first, done.states[:, 0, 1:]), "raw stepping must do the same work"
    steps = UNITS * STEPS
    vector = {
        f"{mode} x {count}": _vector(mode, count, steps // _PART // count)
        for mode, count in (("sync", 16), ("async", 2), ("async", 8))
    }
    peers = {name: _PART * best for name, best in take_turns(vector, rounds=2).items()}
    fastest = min(peers, key=lambda name: peers[name])
    note = f"fastest of {', '.join(vector)} is {fastest}; {steps / best['ours']:,.0f} steps/s here"
    yield faster("rollouts: gymnasium's vector environments", best["ours"], peers[fastest], ">= 3", note)
    note = "mujoco.rollout, unchecked, from the same states with the same controls, known beforehand"
    yield faster("rollouts: raw MuJoCo stepping", best["ours"], best["raw"], ">= 0.85", note)


def _vector(mode: str, count: int, steps: int) -> Callable[[], None]:
    """Steps of gymnasium's vector environment under the same policy."""
    policy = load_policy()
    vector = gymnasium.make_vec("HalfCheetah-v5", num_envs=count, vectorization_mode=mode)
    observed, _ = vector.reset(seed=0)
    noise = np.random.default_rng(0).standard_normal((steps, count, 6))

    def run() -> None:
        nonlocal observed
        for t in range(steps):
            done = policy(torch.from_numpy(observed), torch.from_numpy(noise[t])).clamp(-1, 1)
            observed, *_ = vector.step(done.numpy().astype(np.float32))

    return run


def model() -> Iterator[Figure]:
    """Model rollouts of given plans: as many trajectories through as many members."""
    ensemble = _ensemble(Ensemble)
    settings, (starts, plans) = ensemble.settings, _plans(TRAJECTORIES, HORIZON)
    usual = 20  # particles of a trajectory in mbrl-lib's configuration of PETS
    best = take_turns(
        {
            "ours": lambda: forecast_plans(ensemble, starts, plans, propagation="one-step"),
            "ours, particles": lambda: forecast_plans(ensemble, starts, plans, propagation="particles"),
            "mbrl-lib": _model_env(ensemble, starts, plans, usual),
            "mbrl-lib, once": _model_env(ensemble, starts, plans, settings.members),
        },
        rounds=5,
    )
    note = f"mean and variance of {TRAJECTORIES} plans over {HORIZON} steps by {settings.members} members; "
    note += f"ModelEnv follows {usual} particles for it"
    yield faster("model rollouts: ModelEnv", best["ours"], best["mbrl-lib"], ">= 3", note)
    note = "as many evaluations of members; both spend most of the time in the same matrix products"
    once, often = best["mbrl-lib, once"], best["mbrl-lib"]
    yield faster("model rollouts, 1 particle a member: ModelEnv", best["ours"], once, "", note)
    yield faster("model rollouts, 4 particles a member: ModelEnv", best["ours, particles"], often, "", note)


def _ensemble(kind: type[Ensemble]) -> Ensemble:
    """Of the usual size; speed does not depend on the weights."""
    settings, ones = Settings(), torch.ones(24)
    network = new_network(settings, 18, 6).eval()
    return kind(network, 0 * ones, ones, 0.01 * ones[:18], "HalfCheetah-v5", settings)


def _plans(count: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 18)), rng.uniform(-1, 1, size=(count, horizon, 6))


class _Together(Ensemble):
    """As it was: all members in one product, however many rows there are."""

    def _one_by_one(self, inputs: torch.Tensor, activate: Callable[..., torch.Tensor]) -> torch.Tensor:
        return self._together(inputs, activate)


def forecasts() -> Iterator[Figure]:
    """Forecasts of one iteration of CEM: the members one after the other, against one product for all."""
    (starts, plans), ours, earlier = _plans(400, 30), _ensemble(Ensemble), _ensemble(_Together)
    given = torch.from_numpy(plans).float()

    def act(t: int, states: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return given[:, t].expand(*states.shape[:-1], -1).contiguous()  # each particle its own

    def before() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            return particles(earlier, torch.from_numpy(starts).float(), act, plans.shape[1])

    def now() -> GaussianForecast:
        return forecast_plans(ours, starts, plans, batch=len(plans))

    for part, other in zip((now().mean, now().var), before(), strict=True):
        np.testing.assert_allclose(part, other, rtol=1e-5, atol=1e-5)
    note = f"400 plans over 30 steps, {ours.members} members of 4 particles: 1,600 rows a member"
    threads = torch.get_num_threads()
    for count, goal, words in ((threads, ">= 1.2", ""), (1, "", ", one thread")):
        torch.set_num_threads(count)
        best = take_turns({"now": now, "before": before}, rounds=5, in_a_row=2)
        name = f"forecasts for CEM{words}: one product for all members"
        yield faster(name, best["now"], best["before"], goal, note)
    torch.set_num_threads(threads)


def _model_env(
    ensemble: Ensemble, starts: np.ndarray, plans: np.ndarray, particles: int
) -> Callable[[], None]:
    """mbrl-lib's ModelEnv with every trajectory followed by `particles` particles, each bound to a member."""
    mbrl = ensemble.for_mbrl()
    mbrl.set_propagation_method("fixed_model")
    spaces = SimpleNamespace(observation_space=None, action_space=None)
    env = ModelEnv(
        spaces,
        mbrl,
        lambda done, states: torch.zeros(len(states), 1, dtype=torch.bool),
        lambda done, states: states[:, :1],
    )
    tiled = np.repeat(starts, particles, axis=0).astype(np.float32)
    controls = torch.from_numpy(np.repeat(plans, particles, axis=0).astype(np.float32))

    def run() -> None:
        state = env.reset(tiled, return_as_np=False)
        for t in range(plans.shape[1]):
            *_, state = env.step(controls[:, t], state, sample=True)

    return run


ALL = {"rollouts": rollouts, "model": model, "forecasts": forecasts}
