"""Systems: what a step may do, what is put back, what goes to workers, what is refused at the first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
import toy_robot as own
from gymnasium.envs.classic_control import PendulumEnv
from numpy.random import default_rng

from pac_core import FeatureLimit, HalfSpace, InvalidInput
from pac_core.runs import Digests
from pac_rl import GymSystem, MujocoSystem, make_environment
from pac_rl.systems import check_system, velocity_limit


def rngs(count: int) -> list[np.random.Generator]:
    return [default_rng(i) for i in range(count)]


# --- functions -------------------------------------------------------------------------------------------


def together(states: Any, actions: Any, rngs: Any) -> Any:
    """The cart of `toy_robot`, vectorised; it breaks beyond 0.5 and is NaN below -0.5."""
    noise = np.array([rng.normal(0, 0.02) for rng in rngs])
    if (states[:, 0] > 0.5).any():
        raise RuntimeError("a wheel came off")
    velocity = states[:, 1] + own.DT * actions[:, 0] + noise
    position = np.where(states[:, 0] < -0.5, np.nan, states[:, 0] + own.DT * velocity)
    return np.stack([position, velocity], axis=1)


@pytest.mark.parametrize("vectorised", [True, False])
def test_one_rows_failure_is_nobody_elses(vectorised: bool) -> None:
    """Whoever shares the batch, a row's noise is that of its generator, drawn once."""

    def alone(state: Any, action: Any, rng: Any) -> Any:
        return together(state[None], action[None], [rng])[0]

    system = own.cart(step=together if vectorised else alone, vectorised=vectorised)
    rows, push = np.array([[0.1, 0.0], [0.9, 0.0], [-0.9, 0.0], [0.2, 0.3]]), np.ones((4, 1))
    given = rngs(4)
    reached, ended, failed = system.advance(rows, push, given)
    assert failed.tolist() == [False, True, True, False]
    assert not ended.any()
    for i in (0, 3):
        assert np.array_equal(reached[i], own.step(rows[i], push[i], default_rng(i)))
        once = default_rng(i)
        once.normal()
        assert given[i].random() == once.random()
    sound, _, _ = system.advance(rows[[0, 3]], push[:2], [default_rng(0), default_rng(3)])
    assert np.array_equal(sound, reached[[0, 3]])


def test_no_rows_are_no_rows() -> None:
    for system in (own.cart(), own.cart(step=together, vectorised=True)):
        reached, ended, failed = system.advance(np.zeros((0, 2)), np.zeros((0, 1)), [])
        assert (reached.shape, ended.shape, failed.shape) == ((0, 2), (0,), (0,))


@pytest.mark.parametrize("vectorised", [True, False])
def test_an_end_is_an_end_and_a_failed_row_is_not_asked(vectorised: bool) -> None:
    asked = []

    def ended(states: Any) -> Any:
        asked.append(states.shape)
        return states[..., 0] > 0

    def step(states: Any, actions: Any, rngs: Any) -> Any:
        return np.where(states == 7, np.nan, states)

    system = own.cart(step=step, ended=ended, vectorised=vectorised)
    _, over, failed = system.advance(np.array([[1.0, 0], [-1, 0], [7, 0]]), np.zeros((3, 1)), rngs(3))
    assert over.tolist() == [True, False, False]
    assert failed.tolist() == [False, False, True]
    assert asked == ([(2, 2)] if vectorised else [(2,), (2,)])


def test_a_step_may_not_change_what_it_was_given() -> None:
    def step(states: Any, actions: Any, rngs: Any) -> Any:
        states += 1
        actions *= 0
        return states

    for vectorised in (True, False):
        rows, actions = np.zeros((2, 2)), np.ones((2, 1))
        reached, _, _ = own.cart(step=step, vectorised=vectorised).advance(rows, actions, rngs(2))
        assert reached.tolist() == [[1, 1], [1, 1]]
        assert (rows == 0).all()
        assert (actions == 1).all()


def test_a_buffer_that_is_used_again_is_copied() -> None:
    """The same array at each reset: without a copy all rows would be the last one."""
    buffer = np.zeros(2)

    def reset(rng: Any) -> Any:
        buffer[0] = rng.uniform()
        return buffer

    assert own.cart(reset=reset).begin(rngs(3))[:, 0].tolist() == [rng.uniform() for rng in rngs(3)]


def forgets(state: Any, action: Any, rng: Any) -> Any:
    pass


def lucky(state: Any, action: Any, rng: Any) -> Any:
    return state + np.random.normal(size=2)  # noqa: NPY002 - what a user does wrong


CALLS = [0.0]


def counts(state: Any, action: Any, rng: Any) -> Any:
    CALLS[0] += 1
    return state + CALLS[0]


def returns(value: Any) -> Callable[..., Any]:
    return lambda *given: value


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"step": returns(np.zeros(3))}, r"step must be numbers of shape \(2,\), got \(3,\)"),
        ({"step": returns(np.zeros(2, complex))}, r"step must be .* got \(2,\) of complex128"),
        ({"step": returns(np.array([None, 1]))}, "step must be .* of object"),
        ({"step": returns([[1.0], [1.0, 2.0]])}, "step must be numbers of shape"),
        ({"step": returns("ab")}, "step must be numbers of shape"),
        ({"step": forgets}, "step must be numbers of shape"),
        ({"step": returns(np.full(2, np.nan))}, "step must return finite numbers from a reset"),
        ({"step": lucky}, "a step must depend on its state, action and generator alone"),
        ({"step": counts}, "a step must depend on its state, action and generator alone"),
        ({"step": returns(np.zeros(2)), "vectorised": True}, r"step must be numbers of shape \(1, 2\)"),
        ({"step": lambda states: states, "vectorised": True}, "step must take .* but raised TypeError"),
        ({"reset": returns([0.0, np.nan])}, "reset must return 2 finite numbers, one for each of position"),
        ({"reset": returns([0.0, 1j])}, "reset must return 2 finite .* complex128"),
        ({"reset": returns(np.zeros(3))}, r"reset must return 2 finite .* got \(3,\)"),
        ({"reset": lambda: np.zeros(2)}, "reset must return 2 finite numbers.* but raised TypeError"),
        ({"ended": returns(1)}, r"ended must return a bool for each of 1 states, got int64 of \(\)"),
        ({"ended": returns(None)}, "ended must return a bool for each of 1 states, got object"),
        ({"ended": returns([False, True])}, r"ended must return a bool for each .* bool of \(2,\)"),
        ({"ended": returns(True), "step": together, "vectorised": True}, "ended must return a bool"),
    ],
)
def test_what_is_wrong_is_refused_at_the_first_call(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_system(own.cart(**changed))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"low": [1.0], "high": [1.0]}, "low must be below high"),
        ({"names": ("x", "x")}, "names must be different"),
        ({"names": "position"}, "names must be a list"),
        ({"low": [np.nan]}, "low must not contain NaN"),
        ({"high": [np.inf]}, "high must be finite"),
    ],
)
def test_systems_that_are_none(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        own.cart(**changed)


# --- MuJoCo ----------------------------------------------------------------------------------------------


def test_a_mujoco_robot_steps_as_gymnasium_does_and_rows_carry_what_its_state_hides() -> None:
    """The half-cheetah's state has no x; put back from a row, it goes on from the x it had."""
    cheetah = MujocoSystem("HalfCheetah-v5")
    rows = cheetah.begin([default_rng(0)])
    actions = default_rng(1).uniform(-1, 1, size=(3, 6))
    gym = make_environment().gym
    gym.reset(seed=int(default_rng(0).integers(2**31)))
    for action in actions:
        cheetah.advance(
            cheetah.begin([default_rng(9)]), -action[None], [default_rng(0)]
        )  # another, in between
        rows, ended, failed = cheetah.advance(rows, action[None], [default_rng(0)])
        x = gym.data.qpos[0]
        gym.step(action)
        state = cheetah.see(rows)[0]
        assert state[0] == pytest.approx((gym.data.qpos[0] - x) / gym.dt, abs=1e-6)
        assert state[1:] == pytest.approx(np.concatenate([gym.data.qpos[1:], gym.data.qvel]), abs=1e-6)
        assert not (ended | failed).any()


def test_gymnasiums_options_reach_it_and_leave_the_state() -> None:
    plain, ant = MujocoSystem("Ant-v5"), MujocoSystem("Ant-v5", include_cfrc_ext_in_observation=False)
    assert ant.names == plain.names
    assert len(ant.names) == 15 + 14
    gym: Any = ant.environment.gym
    assert gym.observation_space.shape == (27,)
    fallen = MujocoSystem("Ant-v5", terminate_when_unhealthy=False)
    for system, end in ((plain, True), (fallen, False)):
        rows = system.begin([default_rng(0)])
        rows[0, 3] = 3.0  # metres above the floor; more than 1 is unhealthy
        _, ended, failed = system.advance(rows, np.zeros((1, 8)), [default_rng(0)])
        assert ended[0] == end
        assert not failed[0]


def test_a_mujoco_robot_with_a_state_of_its_own() -> None:
    def lean(gym: Any, before: Any, after: Any) -> Any:
        return after[:, 2:4]

    system = MujocoSystem("Hopper-v5", observe=lean, names=("height", "lean"))
    rows = system.begin(rngs(3))
    assert system.see(rows).tolist() == rows[:, 2:4].tolist()
    check_system(system)
    wrong = MujocoSystem("Hopper-v5", observe=lean, names=("height",))
    with pytest.raises(InvalidInput, match=r"observe must return states of shape \(1, 1\)"):
        check_system(wrong)


def read(env: Any) -> Any:
    return env.unwrapped.state


def put(env: Any, state: Any) -> None:
    env.unwrapped.state = state


NAMES = ("angle", "speed")


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (
            lambda: MujocoSystem("Hopper-v5", ctrl_cost_weight=0.1, healthy_reward=2.0),
            MujocoSystem("Hopper-v5"),
        ),
        (
            lambda: GymSystem("Pendulum-v1", read, put, NAMES, {"g": 9.0}),
            GymSystem("Pendulum-v1", read, put, NAMES),
        ),
        (
            lambda: GymSystem("Pendulum-v1", read, None, NAMES),
            GymSystem("Pendulum-v1", read, None, NAMES, steps=9),
        ),
        (own.cart, own.cart(low=[-2.0])),
    ],
)
def test_a_system_goes_to_workers_and_is_known_by_its_content(make: Callable[[], Any], other: Any) -> None:
    system, fresh = make(), Digests()(make())
    rows = system.begin(rngs(2))
    first = system.advance(rows, np.stack([system.low] * 2), rngs(2))
    assert Digests()(system) == fresh, "what it made for itself does not count"
    assert Digests()(other) != fresh
    sent = cloudpickle.dumps(system)
    assert len(sent) < 2000, "no simulator travels"
    back = cloudpickle.loads(sent)
    assert Digests()(back) == fresh
    again = back.advance(rows, np.stack([system.low] * 2), rngs(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_the_order_of_options_says_nothing() -> None:
    one = MujocoSystem("Hopper-v5", ctrl_cost_weight=0.1, healthy_reward=2.0)
    two = MujocoSystem("Hopper-v5", healthy_reward=2.0, ctrl_cost_weight=0.1)
    assert Digests()(one) == Digests()(two)


# --- other Gymnasium environments ------------------------------------------------------------------------


class Windy(PendulumEnv):
    """A pendulum in gusts of `np_random`; it breaks at 7 rad/s, ends at 6, explodes at -6 and ends."""

    def step(self, u: Any) -> Any:
        if self.state[1] > 7:
            raise RuntimeError("the joint broke")
        _, reward, _, _, info = super().step(u)
        self.state[1] += self.np_random.normal(0, 0.1)
        if self.state[1] < -6:
            self.state = self.state * np.nan
        return self._get_obs(), reward, not -6 < self.state[1] < 6, False, info


class Unbounded(Windy):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))


class Gusty(Windy):
    """Its gusts are nobody's."""

    def step(self, u: Any) -> Any:
        self.np_random = default_rng()
        return super().step(u)


class Sluggish(Windy):
    """It acts a step late, which its state does not say."""

    late = 0.0

    def step(self, u: Any) -> Any:
        before, self.late = self.late, u
        return super().step(0 * u + before)


def test_another_gymnasium_environment_is_put_back() -> None:
    """In any order: its noise comes from the row's generator."""
    pendulum = GymSystem(Windy, read, put, NAMES)
    check_system(pendulum)
    rows, push = pendulum.begin(rngs(3)), np.array([[1.0], [-1.0], [2.0]])
    one, _, _ = pendulum.advance(rows, push, rngs(3))
    again, _, _ = pendulum.advance(rows[::-1], push[::-1], rngs(3)[::-1])
    assert np.array_equal(one, again[::-1])
    speed = rows[0, 1] + (15 * np.sin(rows[0, 0]) + 3 * 1.0) * 0.05 + default_rng(0).normal(0, 0.1)
    assert one[0, 1] == pytest.approx(speed, abs=1e-12)


def test_one_that_cannot_be_put_back_is_led_there_again() -> None:
    """Whether an environment waits there or is led there again, from a seed: the bits are Gymnasium's."""
    pendulum = GymSystem(Windy, read, None, NAMES, steps=6)
    rows = pendulum.begin(rngs(2))
    push = default_rng(5).uniform(-2, 2, size=(6, 2, 1))
    kept = [rows]
    for action in push[:5]:
        kept.append(pendulum.advance(kept[-1], action, rngs(2))[0])
    back = cloudpickle.loads(cloudpickle.dumps(pendulum))  # nothing waits there
    for t in (4, 0, 2):
        reached, ended, failed = back.advance(kept[t], push[t], rngs(2))
        assert np.array_equal(reached, kept[t + 1])
        assert not (ended | failed).any()
    gym = Windy()
    gym.reset(seed=int(default_rng(1).integers(2**31)))
    for action in push[:5, 1]:
        gym.step(action.astype(np.float32))
    assert np.array_equal(pendulum.see(kept[5])[1], gym.state)
    last, _, _ = pendulum.advance(kept[5], push[5], rngs(2))
    with pytest.raises(InvalidInput, match=r"steps must be the most of an episode .* got 6 and a step more"):
        pendulum.advance(last, push[5], rngs(2))


def test_many_environments_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pac_rl.systems.functions.LIVE", 3)
    few, many = GymSystem(Windy, read, None, NAMES, steps=4), GymSystem(Windy, read, None, NAMES, steps=4)
    rows, push = few.begin(rngs(8)), np.ones((8, 1))
    once, _, _ = few.advance(few.advance(rows, push, rngs(8))[0], push, rngs(8))
    assert len(few._live) <= 4
    monkeypatch.undo()
    assert np.array_equal(once, many.advance(many.advance(rows, push, rngs(8))[0], push, rngs(8))[0])


def test_room_for_an_episode_is_gymnasiums_time_limit() -> None:
    assert GymSystem("Pendulum-v1", read, None, NAMES).begin(rngs(1)).shape == (1, 2 + 200 + 2)
    with pytest.raises(InvalidInput, match="steps must be given without set_state and a time limit"):
        GymSystem(Windy, read, None, NAMES).begin(rngs(1))


@pytest.mark.parametrize("set_state", [put, None])
def test_raising_diverging_and_ending_are_outcomes(set_state: Any) -> None:
    def fast(env: Any) -> Any:
        return read(env)

    pendulum = GymSystem(lambda: Started(), fast, set_state, NAMES, steps=9)
    rows = pendulum.begin(rngs(4))
    _, ended, failed = pendulum.advance(rows, np.zeros((4, 1)), rngs(4))
    speeds = rows[:, -1]
    assert failed.tolist() == ((speeds > 7) | (speeds < -6)).tolist()
    assert sorted(speeds.tolist()) == [-7.0, 0.0, 6.5, 7.5]
    assert ended.tolist() == (speeds == 6.5).tolist()


class Started(Windy):
    """It starts at 7.5, 6.5, 0 or -7 rad/s, by its seed."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        speeds = {int(default_rng(i).integers(2**31)): speed for i, speed in enumerate((7.5, 6.5, 0.0, -7.0))}
        self.state = np.array([np.pi, speeds.get(seed, 0.0)])
        return self._get_obs(), {}


def shortened() -> Any:
    return gymnasium.wrappers.RescaleAction(Windy(), np.float32(-1), np.float32(1))


def test_wrappers_of_ones_own_stay_on() -> None:
    whole, half = GymSystem(Windy, read, put, NAMES), GymSystem(shortened, read, put, NAMES)
    assert (whole.low, half.low) == (-2.0, -1.0)
    rows = whole.begin(rngs(1))
    one, _, _ = whole.advance(rows, np.array([[2.0]]), rngs(1))
    other, _, _ = half.advance(rows, np.array([[1.0]]), rngs(1))
    assert np.array_equal(one, other)


def nowhere(env: Any, state: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("system", "words"),
    [
        (
            GymSystem("CartPole-v1", read, put, tuple("abcd")),
            r"list of numbers with finite ends, got Discrete\(2\)",
        ),
        (
            GymSystem("NoSuchRobot-v1", read, put, NAMES),
            "id and options must make an environment: .*NoSuchRobot",
        ),
        (GymSystem("Pendulum-v1", read, put, NAMES, {"wings": 2}), "must make an environment: .*'wings'"),
        (GymSystem(Windy, read, put, ("angle",)), r"state must return 1 finite numbers, .* got \(2,\)"),
        (
            GymSystem(Windy, lambda env: env.sped, put, NAMES),
            "state must return .* but raised AttributeError",
        ),
        (GymSystem(Unbounded, read, put, NAMES), r"list of numbers with finite ends, got Box\(-inf"),
        (GymSystem(Windy, read, nowhere, NAMES), "set_state must put the environment back"),
        (GymSystem(Windy, read, lambda env: None, NAMES), "set_state must take .* but raised TypeError"),
        (GymSystem(Gusty, read, None, NAMES, steps=9), "a step must depend on its state, action"),
        (GymSystem(Gusty, read, put, NAMES), "a step must depend on its state, action and generator alone"),
        (
            GymSystem(Sluggish, read, put, NAMES),
            "a step must depend on its state, action and generator alone",
        ),
    ],
)
def test_environments_that_cannot_be_used_are_refused(system: GymSystem, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_system(system)


def test_what_hides_something_random_cannot_be_led_there_again() -> None:
    gusty, again = (GymSystem(Gusty, read, None, NAMES, steps=9) for _ in range(2))
    rows, _, _ = gusty.advance(gusty.begin(rngs(1)), np.ones((1, 1)), rngs(1))
    with pytest.raises(InvalidInput, match="the same seed and actions must lead to the same state"):
        again.advance(rows, np.ones((1, 1)), rngs(1))


def test_what_acts_late_can_be_led_there_again() -> None:
    check_system(GymSystem(Sluggish, read, None, NAMES, steps=9))


# --- velocity limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "name", "bound"),
    [
        ("HalfCheetah-v5", "forward velocity", 3.2096),
        ("Hopper-v5", "forward velocity", 0.7402),
        ("Walker2d-v5", "forward velocity", 2.3415),
        ("Swimmer-v5", "slider1 velocity", 0.2282),
        ("HalfCheetah-v4", "rootx velocity", 3.2096),
    ],
)
def test_a_velocity_along_x_is_limited_to_one_side(id: str, name: str, bound: float) -> None:
    system = MujocoSystem(id)
    limit = velocity_limit(system)
    states = np.zeros((3, 1, len(system.names)))
    states[:, 0, system.names.index(name)] = [bound - 1e-4, bound + 1e-4, -10]
    assert limit.violated(states)[:, 0].tolist() == [False, True, False]
    assert velocity_limit(system.environment, 11.0).violated(states).sum() == 0


class Box:
    def box(self) -> Any:
        lower, upper = np.zeros((2, 1, 1, 29))
        lower[..., 15:17], upper[..., 15:17] = [-4.0, 1.0], [3.0, 2.0]
        return lower, upper

    def support(self, direction: Any) -> Any:
        raise AssertionError("not asked")


def test_the_ants_speed_in_the_plane_is_limited() -> None:
    """(1.8, 1.8) is 2.55 m/s and (1.9, 1.9) 2.69; the limit is 2.6222."""
    limit = velocity_limit(MujocoSystem("Ant-v5"))
    assert isinstance(limit, FeatureLimit)
    states = np.zeros((4, 1, 29))
    states[:, 0, 15:17] = [[1.8, 1.8], [1.9, 1.9], [-2.7, 0.0], [0.0, -2.6]]
    states[:, 0, 17] = 9.0  # upwards does not count
    assert limit.violated(states)[:, 0].tolist() == [False, True, True, False]
    wide = velocity_limit(MujocoSystem("Ant-v5"), 5.0)
    assert wide.margin(Box())[0, 0] == pytest.approx(5 - np.hypot(4, 2))


def test_a_robot_without_that_velocity_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Humanoid-v5 must have 'x velocity' in its state"):
        velocity_limit(MujocoSystem("Humanoid-v5"))
    with pytest.raises(InvalidInput, match=r"a velocity limit is known of HalfCheetah, .*, got Pusher-v5"):
        velocity_limit(MujocoSystem("Pusher-v5"))

    def centre(gym: Any, before: Any, after: Any) -> Any:
        return after[:, 1:3]

    humanoid = MujocoSystem("Humanoid-v5", observe=centre, names=("x velocity", "y velocity"))
    assert velocity_limit(humanoid).violated(np.array([[[1.1, 0.9]], [[1.0, 0.9]]])).tolist() == [
        [True],
        [False],
    ]
    assert isinstance(velocity_limit(make_environment()), HalfSpace)
