"""Anybody's robot: from functions to a guard and a certificate, what is refused, and bits that stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy_robot as own

from pac_core import InvalidInput, KeepOutBall, PACLevel, StayIn
from pac_core.certificates import read_descent, verify_descent
from pac_core.runs import cut
from pac_rl import Dynamics, GymSystem, MujocoSystem, Shooting, fit_guard, make_environment
from pac_rl.guarding import RobotController, RunRobotEpisodes
from pac_rl.planning import MeanTubes

WALL = StayIn("wall", np.array([-5.0]), np.array([1.0]), axes=("position",))
FEW: dict[str, Any] = {
    **{"fallback": own.brake, "horizon": 5, "tune": 40, "calibrate": 40, "preliminary": 32, "steps": 12},
    "level": PACLevel(0.3, 0.05),
}


def guard(folder: Path, **changed: Any) -> Any:
    parts = {"system": own.cart(), "model": own.MODEL, "limits": [WALL], "planner": own.PLANNER}
    given = {name: changed.pop(name, part) for name, part in parts.items()}
    return fit_guard(*given.values(), folder=folder, **(FEW | changed))


def controller(**changed: Any) -> RobotController:
    limits = (StayIn("wall", np.array([-5.0]), np.array([1.0]), axes=(0,)),)
    usual = (own.cart(), own.MODEL, own.PLANNER.at(5), limits, own.brake, 5)
    made = RobotController(*usual)
    for name, value in changed.items():
        object.__setattr__(made, name, value)
    return made


def test_from_functions_to_a_certificate(tmp_path: Path) -> None:
    free = RunRobotEpisodes(controller(), 25)(cut(range(16), 16)[0], {})
    assert free["errors"].mean() > 0.9, "without a guard the limit breaks, or the example shows nothing"
    made = guard(tmp_path)
    assert "whichever of the 8 candidates of a new start is picked" in str(made)
    shown = made.certify(PACLevel(0.2, 0.1), steps=25, explore=16, max_episodes=60)
    assert shown.certified is not None, str(shown)
    assert all(check.holds for check in verify_descent(shown, tmp_path / "pac-ledger"))
    assert read_descent(tmp_path / "controller-25.json").certified == shown.certified
    acting = made.controller(shown.certified)
    assert own.LOW <= acting.act([0.0, 0.0]) <= own.HIGH
    again = guard(tmp_path).certify(PACLevel(0.2, 0.1), steps=25, explore=16, max_episodes=60)
    assert again.errors == shown.errors, "the same again runs nothing and says the same"


def test_where_nothing_is_safe_the_fallback_acts() -> None:
    made = controller(tubes=MeanTubes())
    fast = np.array([[0.99, 3.0], [-1.0, 0.0], [np.nan, 0.0]])
    decided = made.decide(fast, [np.random.default_rng(i) for i in range(3)])
    assert decided.chosen.tolist()[0] == -1
    assert decided.actions[0] == own.brake(fast[0])
    assert decided.chosen[1] >= 0
    assert decided.chosen[2] == -1
    assert decided.reasons[2] == "the state is not a number"


def test_an_episode_depends_on_its_id_alone() -> None:
    run = RunRobotEpisodes(controller(tubes=MeanTubes()), 10)
    whole = run(cut(range(16), 16)[0], {})
    for part in cut(range(16), 5):
        some = run(part, {})
        assert np.array_equal(some["final"], whole["final"][part.array])


def test_a_step_that_breaks_is_an_outcome_and_not_the_end_of_a_run() -> None:
    def breaks(state: Any, action: Any, rng: Any) -> Any:
        if state[0] > 0.3:
            raise RuntimeError("the simulator crashed")
        return own.step(state, action, rng)

    made = RunRobotEpisodes(controller(system=own.cart(step=breaks)), 25)(cut(range(8), 8)[0], {})
    assert made["errors"].all()


def nan(state: Any, action: Any, rng: Any) -> Any:
    return state * np.nan


def raises(state: Any, action: Any, rng: Any) -> Any:
    raise KeyError("speed")


def longer(state: Any, action: Any, rng: Any) -> Any:
    return np.zeros(3)


def wild(state: Any, rng: Any, candidates: int, horizon: int) -> Any:
    return np.full((candidates, horizon, 1), 1.5)


def short(state: Any, rng: Any, candidates: int, horizon: int) -> Any:
    return np.zeros((candidates, horizon - 1, 1))


def flat(mean: Any, plans: Any) -> Any:
    return mean[0, 0, 0]


def other(states: Any, plans: Any) -> Any:
    return tuple(np.zeros((*plans.shape[:2], 3)) + 1 for _ in range(2))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"system": own.cart(step=nan)}, "step must return finite numbers"),
        ({"system": own.cart(step=raises)}, r"step must take .* but raised KeyError\('speed'\)"),
        ({"system": own.cart(step=longer)}, "step must"),
        ({"system": own.cart(reset=lambda rng: np.zeros(3))}, "reset must return 2 finite numbers"),
        ({"model": Dynamics(other)}, r"the model's mean must have shape \(8, 5, 2\), got \(8, 5, 3\)"),
        ({"planner": Shooting(wild, own.cost, 8)}, r"plans must stay within low .* got 1\.5"),
        ({"planner": Shooting(short, own.cost, 8)}, r"sample_plans must return plans of shape \[8, 5, A\]"),
        ({"planner": Shooting(own.sample_plans, flat, 8)}, r"cost must"),
        ({"limits": [KeepOutBall("rock", [0, 0], 1.0, axes=("x", "position"))]}, "reads 'x', which"),
        ({"fallback": None}, "fallback must be"),
        ({"fallback": lambda state: [np.nan]}, "the fallback must return 1 finite numbers"),
        ({"fallback": lambda state: [0.0, 0.0]}, "the fallback's action must"),
        ({"horizon": 0}, "horizon must be"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        guard(tmp_path, **changed)
    assert not [*tmp_path.rglob("*.arrow")]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"low": [1.0], "high": [1.0]}, "low must be below high"),
        ({"names": ("x", "x")}, "names must be different"),
        ({"low": [np.nan]}, "low"),
    ],
)
def test_systems_that_are_none(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        own.cart(**changed)


def test_particles_of_a_linear_model_have_its_mean_and_variance() -> None:
    """x' = x + a + N(0, s): after t steps the mean is x + t a, the variance t s of all ways together."""

    def net(states: Any, actions: Any) -> Any:
        return states + actions, 0 * states + 0.25

    model = Dynamics.of(net, members=3, particles=64, batch=7)
    starts, plans = np.array([[1.0], [2.0]]), np.full((2, 4, 1), 0.5)
    made = model(starts, plans)
    steps = np.arange(1, 5)
    assert made.mean[..., 0] == pytest.approx(starts + 0.5 * steps, abs=0.1)
    assert made.var[0, :, 0] == pytest.approx(0.25 * steps, rel=0.25)
    alone = model(starts[1:], plans[1:])
    assert np.array_equal(alone.mean, made.mean[1:]), "bits do not depend on how many are asked"


def test_a_net_of_another_shape_is_refused() -> None:
    model = Dynamics.of(lambda states, actions: (states[..., :1], states), members=2)
    with pytest.raises(InvalidInput, match=r"net must return a mean of shape \[M, B, D\]"):
        model(np.zeros((1, 2)), np.zeros((1, 3, 1)))


def test_a_mujoco_robot_steps_as_it_is_simulated() -> None:
    """Bit for bit the states of `simulate`, for the half-cheetah; and any other id needs no registration."""
    cheetah = MujocoSystem("HalfCheetah-v5")
    rows = cheetah.begin([np.random.default_rng(0)])
    actions = np.random.default_rng(1).uniform(-1, 1, size=(3, 6))
    reached = []
    for action in actions:
        rows, ended, failed = cheetah.advance(rows, action[None], [np.random.default_rng(0)])
        reached.append(cheetah.see(rows)[0])
        assert not (ended | failed).any()
    environment = make_environment()
    drawn = int(np.random.default_rng(0).integers(2**31))
    gym = environment.gym
    gym.reset(seed=drawn)
    for action, state in zip(actions, reached, strict=True):
        gym.step(action)
        assert state[1:] == pytest.approx(np.concatenate([gym.data.qpos[1:], gym.data.qvel]), abs=1e-9)
    ant = MujocoSystem("Ant-v5")
    assert len(ant.names) == 15 + 14
    assert ant.see(ant.begin([np.random.default_rng(0)])).shape == (1, 29)


def test_another_gymnasium_environment_is_put_back() -> None:
    def read(env: Any) -> Any:
        return env.state

    def put(env: Any, state: Any) -> None:
        env.state = state

    pendulum = GymSystem("Pendulum-v1", read, put, ("angle", "speed"))
    rows = pendulum.begin([np.random.default_rng(0), np.random.default_rng(1)])
    one, ended, failed = pendulum.advance(rows, np.array([[1.0], [-1.0]]), [np.random.default_rng(0)] * 2)
    again, _, _ = pendulum.advance(rows[::-1], np.array([[-1.0], [1.0]]), [np.random.default_rng(0)] * 2)
    assert np.array_equal(one, again[::-1])
    assert not (ended | failed).any()
    lost = GymSystem("Pendulum-v1", read, lambda env, state: None, ("angle", "speed"))
    lost.begin([np.random.default_rng(5)])
    with pytest.raises(InvalidInput, match="set_state must put the environment back"):
        lost.advance(rows, np.zeros((2, 1)), [np.random.default_rng(0)] * 2)


def test_torch_and_numpy_models_agree() -> None:
    def net(states: Any, actions: Any) -> Any:
        return states + torch.cat([actions, actions], dim=-1), 0 * states + 1e-12

    one = Dynamics.of(net, members=2)(np.zeros((3, 2)), np.ones((3, 4, 1)))
    assert one.mean[:, -1] == pytest.approx(4 * np.ones((3, 2)), abs=1e-4)
