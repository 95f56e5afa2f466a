"""The environment's state is Gymnasium's own, seen as PETS sees it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from pac_core import InvalidInput
from pac_rl import make_environment, simulate
from pac_rl.policies import Function
from pac_rl.rollouts import Simulator
from pac_rl.systems.mujoco import KNOWN, never

DIMS = {"HalfCheetah-v5": (18, 6), "Hopper-v5": (12, 3), "Walker2d-v5": (18, 6)}


@pytest.mark.parametrize("id", KNOWN)
def test_a_step_is_gymnasiums(id: str) -> None:
    """One step from the same reset: states, forward velocity and the policy's view agree."""
    environment, gym = make_environment(id), gymnasium.make(id)
    dims, action_dims = DIMS[id]
    assert (len(environment.names), len(environment.low)) == (dims, action_dims)
    action = np.linspace(-0.8, 0.7, action_dims)
    for seed in range(5):
        gym.reset(seed=seed)
        observed, _, terminated, _, info = gym.step(action)
        physics = environment.reset(seed)[None]
        state, ended, diverged = Simulator(environment).step(physics, np.array([0]), action[None])
        # The solver starts cold here and warm there; its tolerance is 1e-8.
        np.testing.assert_allclose(environment.view(state)[0], observed, atol=1e-5)
        assert state[0, 0] == pytest.approx(info["x_velocity"], abs=1e-5)
        assert ended[0] == terminated
        assert not diverged[0]


@pytest.mark.parametrize("id", ["Hopper-v5", "Walker2d-v5"])
def test_the_end_is_gymnasiums(id: str) -> None:
    environment = make_environment(id)
    gym: Any = environment.gym
    rng = np.random.default_rng(0)
    ends = []
    for seed in range(300):
        physics = environment.reset(seed)
        physics[1:] += rng.normal(size=len(physics) - 1) * rng.choice([0.1, 0.5, 60.0])
        nq, nv = gym.model.nq, gym.model.nv
        gym.set_state(physics[1 : 1 + nq], physics[1 + nq : 1 + nq + nv])
        ends.append(not gym.is_healthy)
        assert environment.ends(gym, physics[None])[0] == ends[-1]
    assert 50 < sum(ends) < 290


@pytest.mark.parametrize("id", ["Ant-v5", "Humanoid-v5", "InvertedPendulum-v5", "Swimmer-v5"])
def test_a_robot_that_nobody_registered_is_gymnasiums(id: str) -> None:
    """States are qpos and qvel, with a name each, and an episode ends where Gymnasium ends it."""
    environment, gym = make_environment(id), gymnasium.make(id)
    own: Any = gym.unwrapped
    rng, ends, many = np.random.default_rng(0), 0, 150 if id == "InvertedPendulum-v5" else 20
    for seed in range(5):
        gym.reset(seed=seed)
        physics = environment.reset(seed)[None]
        for _ in range(many):
            action = rng.uniform(environment.low, environment.high)
            _, _, terminated, _, _ = gym.step(action.astype(np.float32))
            controls = action.astype(np.float32)[None].astype(np.float64)
            state, ended, _ = Simulator(environment).step(physics, np.array([0]), controls)
            whole = np.concatenate([own.data.qpos, own.data.qvel])
            np.testing.assert_allclose(state[0], whole, atol=1e-3)
            assert ended[0] == terminated
            assert len(environment.names) == len(whole)
            physics = physics.copy()
            physics[0, 1 : 1 + len(whole)] = whole  # chaos would make of 1e-8 anything
            if terminated:
                ends += 1
                break
    assert (ends > 0) == (id in ("InvertedPendulum-v5", "Humanoid-v5"))


def test_the_double_pendulum_ends_where_its_tip_is_low() -> None:
    """Two poles of 0.6 m: at an angle of 0.58 the tip is at 1.004 m, at 0.59 at 0.997, and 1 is the end."""
    pendulum = make_environment("InvertedDoublePendulum-v5")
    physics = np.repeat(pendulum.reset(0)[None], 3, axis=0)
    physics[:, 1:] = 0
    physics[:, 2] = [0.58, 0.59, -0.59]
    assert pendulum.ends(pendulum.gym, physics).tolist() == [False, True, True]
    assert pendulum.names[:3] == ("slider", "hinge", "hinge2")


def test_a_policy_sees_what_gymnasium_shows_where_the_state_has_it() -> None:
    ant, swimmer = (
        make_environment("Ant-v5", include_cfrc_ext_in_observation=False),
        make_environment("Swimmer-v5"),
    )
    for environment, hidden in ((ant, 2), (swimmer, 2)):
        state = np.arange(len(environment.names), dtype=float)[None]
        assert environment.view(state).tolist() == [state[0, hidden:].tolist()]
    whole = make_environment("Ant-v5")  # contact forces are no part of the state
    assert whole.view(np.zeros((1, 29))).shape == (1, 29)


def test_joints_of_several_numbers_are_named_by_part() -> None:
    names = make_environment("Ant-v5").names
    assert names[2:8] == ("root z", "root qw", "root qx", "root qy", "root qz", "hip_1")
    assert names[17:20] == ("root z velocity", "root rx velocity", "root ry velocity")
    assert names[21] == "hip_1 velocity"


def test_an_environment_that_never_ends_is_believed() -> None:
    environment = make_environment("Hopper-v5", terminate_when_unhealthy=False)
    fallen = environment.reset(0)[None]
    fallen[0, 2] = 0.1
    assert not environment.ends(environment.gym, fallen)[0]


def test_velocities_are_clipped_where_gymnasium_clips_them() -> None:
    states = np.full((1, 12), 50.0)
    assert make_environment("Hopper-v5").view(states)[0].tolist() == [50.0] * 5 + [10.0] * 6
    assert make_environment().view(np.full((1, 18), 50.0))[0].tolist() == [50.0] * 17
    assert states.min() == 50.0  # nothing was clipped in place


def test_another_environment_brings_its_own_state() -> None:
    def angles(gym: Any, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        return after[:, 1:5]

    names = ("cart", "pole", "cart velocity", "pole velocity")
    pendulum = make_environment("InvertedPendulum-v5", observe=angles, names=names, ends=never)
    state, action = pendulum.reset(3), np.zeros((1, 1))
    states, ended, _ = Simulator(pendulum).step(state[None], np.array([0]), action)
    assert states.shape == (1, 4)
    assert not ended[0]
    assert pendulum.low[0] == -3.0


def heights(gym: Any, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    return after[:, 2:4]


def test_a_state_of_ones_own_is_seen_as_it_is() -> None:
    """The hopper's view would clip, and cut off, numbers that are not its own state's."""
    names, states = ("height", "angle"), np.array([[50.0, -50.0]])
    hopper = make_environment("Hopper-v5", observe=heights, names=names)
    np.testing.assert_array_equal(hopper.view(states), states)
    fallen = hopper.reset(0)[None]
    fallen[0, 2] = 0.1
    assert hopper.ends(hopper.gym, fallen)[0]  # it ends as every hopper does
    only = make_environment("Hopper-v5", observe=heights, names=names, view=lambda states: states[..., :1])
    assert only.view(states).tolist() == [[50.0]]
    assert make_environment("Hopper-v5", view=lambda states: states[..., :1]).view(states).shape == (1, 1)


@pytest.mark.parametrize(
    ("observe", "message"),
    [
        (lambda gym, before, after: after[:, 1:5] * np.nan, "observe must return numbers, got NaN"),
        (lambda gym, before, after: after[:, 1:4], r"shape \(4, 4\), a name each, got \(4, 3\)"),
        (lambda gym, before, after: after[0, 1:5], r"shape \(4, 4\), a name each, got \(4,\)"),
    ],
)
def test_a_state_that_cannot_be_used_is_named(observe: Any, message: str) -> None:
    robot = make_environment("InvertedPendulum-v5", observe=observe, names=("a", "b", "c", "d"), ends=never)
    still = Function(lambda seen: np.zeros((len(seen), 1)), 4, 1)
    with pytest.raises(InvalidInput, match=message):
        simulate(robot, still, range(4), horizon=2, burn_in=(0, 0), batch=4)


@pytest.mark.parametrize("ends", [lambda gym, after: True, lambda gym, after: np.zeros(1, bool), never])
def test_an_end_is_not_broadcast(ends: Any) -> None:
    """One robot's end would be the end of all, and what they do after it would not count."""
    names = ("a", "b", "c", "d")
    observe: Any = lambda gym, before, after: after[:, 1:5]  # noqa: E731
    robot = make_environment("InvertedPendulum-v5", observe=observe, names=names, ends=ends)
    still = Function(lambda seen: np.zeros((len(seen), 1)), 4, 1)
    if ends is never:
        assert (
            simulate(robot, still, range(4), horizon=2, burn_in=(0, 0), batch=4).lengths.tolist() == [2] * 4
        )
        return
    with pytest.raises(InvalidInput, match="ends must return a bool for each of 4 robots"):
        simulate(robot, still, range(4), horizon=2, burn_in=(0, 0), batch=4)


@pytest.mark.parametrize(
    ("id", "options", "message"),
    [
        ("Hopper-v5", {"observe": heights}, "names must be given with observe, one for each number"),
        ("NoSuchRobot-v5", {}, "what Gymnasium can make: Environment `NoSuchRobot` doesn't exist"),
        ("Ant-v5", {"legs": 6}, "what Gymnasium can make: .*unexpected keyword argument 'legs'"),
        ("CartPole-v1", {}, "must name a MuJoCo environment of Gymnasium, got CartPoleEnv: .* GymSystem"),
    ],
)
def test_unknown_environments_are_named(id: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_environment(id, **options)
