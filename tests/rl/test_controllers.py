"""A guard lets no unsafe candidate through, and says when it had none to give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pac_core import (
    FeatureLimit,
    GaussianForecast,
    HalfSpace,
    InvalidInput,
    LinearFeatures,
    PACLevel,
    StayIn,
    Trajectories,
    TubeChecker,
)
from pac_core.tubes import BoxShape, FeatureShape, MaxShape, fit_shape
from pac_rl import Controller, Dynamics, NoSafePlan
from pac_rl.planning import (
    Decision,
    FittedTubes,
    HullTube,
    MeanTubes,
    MemberForecast,
    MemberTubes,
    ReturnCost,
    ScaledTube,
    cheetah_reward,
)
from pac_rl.policies import actions_by

STARTS = np.random.default_rng(1).normal(size=(6, 18)) * 0.3
AHEAD = np.eye(18)[0]


def decide(controller: Controller, states: Any = STARTS) -> Decision:
    return controller.decide(states, [np.random.default_rng(i) for i in range(len(states))])


def keeping(controller: Controller, bound: float, **changed: Any) -> Controller:
    """The same with a speed limit, and what else is to change."""
    return replace(controller, limits=(HalfSpace("speed", AHEAD, bound),), **changed)


def pricing(controller: Controller, price: Any) -> Controller:
    return replace(controller, planner=replace(controller.planner, price=price))  # type: ignore[type-var]


def box_tubes(scale: float = 1.0) -> FittedTubes:
    """Boxes of half-width 0.2 in every number and step, whatever the forecast."""
    shape = BoxShape(np.full((2, 3, 18), 0.2), 0.0, False, (0,) * 18)
    return FittedTubes(shape, 1.0, scale)


class Line:
    """Tubes that are a line, the same for all plans."""

    def __init__(self, way: Any) -> None:
        self.way = way

    def tube(self, forecast: GaussianForecast) -> HullTube:
        return HullTube(np.broadcast_to(self.way, (1, len(forecast.mean), 3, 18)).astype(np.float64))


@pytest.mark.parametrize("tubes", [MeanTubes(), MemberTubes(), box_tubes(), box_tubes(0.1)])
@pytest.mark.parametrize("boldest", [False, True])
def test_the_chosen_candidate_is_safe_and_the_best_of_those(
    controller: Controller, tubes: Any, boldest: bool
) -> None:
    made = pricing(controller, None if boldest else ReturnCost(cheetah_reward))
    speeds = decide(made).forecast.mean[..., 0].max(axis=1)
    made = keeping(made, float(np.median(speeds)), tubes=tubes)  # some candidates pass and some do not
    found = decide(made)
    mean, var = found.forecast.mean, found.forecast.var
    starts, plans = np.repeat(STARTS, 5, axis=0), found.plans.reshape(30, 3, 6)
    ways = MemberForecast(mean, var, members=made.model.members(starts, plans))  # type: ignore[misc]
    checked = TubeChecker(made.limits)(tubes.tube(ways)).safe.reshape(6, 5)
    np.testing.assert_array_equal(found.safe, checked)
    worth = mean[..., 0].sum(axis=1) - 0.1 * (plans**2).sum(axis=(1, 2))
    acting = made.acting(STARTS, found)[0]
    for i in range(6):
        safe = np.flatnonzero(checked[i]).tolist()
        if not safe:
            assert found.chosen[i] == -1
            assert not found.actions[i].any()  # hold
            assert not acting[i].any()
            assert found.margin[i] < 0
            assert found.reasons[i].startswith("speed: may reach")
            continue
        best = max(safe) if boldest else max(safe, key=lambda c: float(worth.reshape(6, 5)[i, c]))
        assert found.chosen[i] == best
        assert found.margin[i] >= 0
        np.testing.assert_array_equal(found.actions[i], found.plans[i, best, 0])
        np.testing.assert_array_equal(acting[i], found.plans[i, best])
    assert checked.any()
    assert not checked.all()


def test_plans_are_forecast_by_the_model_that_is_guarded(controller: Controller) -> None:
    """A planner may use another one; its forecasts would be checked against tubes of this one."""
    own = controller.model
    doubting = Dynamics(lambda starts, plans: (own(starts, plans).mean, 4 * own(starts, plans).var))
    usual, other = decide(controller), decide(replace(controller, model=doubting))
    np.testing.assert_array_equal(other.plans, usual.plans)
    np.testing.assert_allclose(other.forecast.var, 4 * usual.forecast.var, rtol=1e-4)


def test_steps_that_are_not_checked_are_left_to_later_plans(controller: Controller) -> None:
    """A tube that leaves the limit at its third step only."""
    way = np.zeros((3, 18))
    way[2, 0] = 9.0
    late = replace(controller, tubes=Line(way))
    assert not decide(late).safe.any()
    assert decide(replace(late, checked=2)).safe.all()
    assert not decide(replace(late, checked=3)).safe.any()
    with pytest.raises(InvalidInput, match="checked must be at most the horizon 3, got 4"):
        replace(late, checked=4)


def test_what_is_not_a_number_is_never_chosen(controller: Controller) -> None:
    """NaN must not win a minimum of costs, nor a comparison of margins."""
    blind = ReturnCost(lambda states, actions: states[..., 0] * np.nan)
    assert decide(pricing(keeping(controller, 1e6), blind)).chosen.tolist() == [-1] * 6
    nonsense = decide(replace(controller, tubes=Line(np.full((3, 18), np.nan))))
    assert not nonsense.safe.any()
    assert nonsense.chosen.tolist() == [-1] * 6


@pytest.mark.parametrize(
    "reward",
    [lambda x, a: 1.0, lambda x, a: x[..., 0].sum(-1), lambda x, a: x[..., :1], lambda x, a: x[:1, ..., 0]],
)
def test_a_reward_of_another_shape_is_refused(controller: Controller, reward: Any) -> None:
    with pytest.raises(InvalidInput, match=r"reward must be numbers of shape \(6, 5, 3\), got"):
        decide(pricing(controller, ReturnCost(reward)))


def test_a_policy_or_a_tube_of_another_shape_is_refused(controller: Controller) -> None:
    planner: Any = controller.planner
    with pytest.raises(InvalidInput, match=r"the policy's actions must be numbers of shape \(30, 6\), got"):
        decide(replace(controller, planner=replace(planner, act=lambda states: np.zeros(6))))

    class Short(MeanTubes):
        def tube(self, forecast: GaussianForecast) -> HullTube:
            return HullTube(forecast.wide().mean[None, :, :2])

    for checked in (None, 3, 1):
        with pytest.raises(InvalidInput, match="a tube of 30 plans x 3 steps, got"):
            decide(replace(controller, tubes=Short(), checked=checked))


@pytest.mark.parametrize("tubes", [MeanTubes(), MemberTubes(), None])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_robot_whose_state_is_no_number_falls_back_alone(
    controller: Controller, tubes: Any, value: float
) -> None:
    made = pricing(keeping(controller, 1e6, tubes=tubes), None)
    usual, lost = decide(made), STARTS.copy()
    lost[2, 7] = value
    found = decide(made, lost)
    assert found.chosen.tolist() == [4, 4, -1, 4, 4, 4]
    assert not found.actions[2].any()  # hold
    assert np.isnan(found.margin[2])
    leads: Any = made.acting(lost, found)[1]
    assert np.isnan(leads.mean[2]).all()  # nothing is known of where that leads, by no member
    assert tubes != MemberTubes() or np.isnan(leads.members).any(axis=(0, 2, 3)).tolist() == [
        i == 2 for i in range(6)
    ]
    others = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(found.plans[others], usual.plans[others])
    stop = replace(made, fallback="stop")
    assert decide(stop, lost).stopped.tolist() == [False, False, True, False, False, False]
    with pytest.raises(NoSafePlan, match="no plan was safe"):
        stop.act(lost[2])
    if not np.isfinite(value):
        with pytest.raises(InvalidInput, match="the fallback must return 6 finite numbers"):
            decide(replace(made, fallback=lambda state: state[3:9]), lost)


def test_the_fallback_is_the_one_that_was_chosen(controller: Controller, bare: Controller) -> None:
    never = keeping(controller, -1e6)
    assert not decide(never).actions.any()
    by_policy = actions_by(controller.system, bare.planner.act.policy)  # type: ignore[attr-defined]
    backup = replace(never, fallback=lambda state: by_policy(state[None])[0])
    found = decide(backup)
    assert found.chosen.tolist() == [-1] * 6
    np.testing.assert_allclose(found.actions, decide(bare).actions, atol=1e-6)
    acting, forecast = backup.acting(STARTS, found)
    np.testing.assert_allclose(acting[:, 0], found.actions, atol=1e-6)
    np.testing.assert_allclose(forecast.mean, controller.model(STARTS, acting).mean, atol=1e-4)
    mine = decide(replace(never, fallback=lambda state: np.full(6, 0.25)))
    assert (mine.actions == 0.25).all()
    with pytest.raises(InvalidInput, match="must return an action for any state, but raised ZeroDivisionE"):
        decide(replace(never, fallback=lambda state: 1 / 0))
    assert decide(replace(never, fallback="stop")).stopped.all()
    assert controller.act(STARTS[0]).tolist() == decide(controller).actions[0].tolist()


def test_bad_controllers_are_refused(controller: Controller) -> None:
    with pytest.raises(InvalidInput, match="fallback must be 'hold', 'stop' or a function of the state"):
        replace(controller, fallback="pray")
    with pytest.raises(InvalidInput, match="limits must be one or more"):
        decide(replace(controller, limits=()))
    with pytest.raises(InvalidInput, match="limits must hold at every step"):  # it would be left unchecked
        replace(controller, limits=(HalfSpace("speed", AHEAD, 0.6, steps=(2,)),))
    with pytest.raises(InvalidInput, match="plans must have at least the tube's 4 steps, got 3"):
        decide(replace(controller, horizon=4))
    with pytest.raises(InvalidInput, match="the model must have members"):
        decide(replace(controller, tubes=MemberTubes(), model=replace(controller.model, members=None)))


def two_steps() -> GaussianForecast:
    mean = np.array([[[1.0, 0.0], [2.0, -1.0]]])
    return GaussianForecast(mean, np.ones((1, 2, 2)))


def test_scaled_boxes_by_hand() -> None:
    """A box of 1 below and 2 above its centre (1, 0), tripled: from -2 to 7 in the first number."""
    shape = BoxShape(np.stack([np.full((2, 2), 1.0), np.full((2, 2), 2.0)]), 0.0, False, (0, 0))
    forecast = two_steps()
    tube = ScaledTube(shape.sets(forecast, 1.0), forecast.mean, 3.0)
    np.testing.assert_allclose(tube.support([1.0, 0.0]), [[7.0, 8.0]], rtol=1e-8)
    np.testing.assert_allclose(tube.support([-1.0, 0.0]), [[2.0, 1.0]], rtol=1e-8)
    np.testing.assert_allclose(tube.support([0.0, 2.0]), [[12.0, 10.0]], rtol=1e-8)
    lower, upper = tube.box()
    np.testing.assert_allclose(lower, [[[-2.0, -3.0], [-1.0, -4.0]]], rtol=1e-8)
    np.testing.assert_allclose(upper, [[[7.0, 6.0], [8.0, 5.0]]], rtol=1e-8)
    inside = np.array([[[6.9, 5.9], [-0.9, 4.9]]])
    assert tube.contains(inside).tolist() == [True]
    outside = np.array([[[6.9, 5.9], [-1.1, 4.9]]])
    assert tube.contains(outside).tolist() == [False]
    # The same misstep after the end of the episode is none.
    assert tube.contains(Trajectories(outside, np.array([1]))).tolist() == [True]
    assert tube.contains(np.full((1, 2, 2), np.inf)).tolist() == [False]


@pytest.mark.parametrize("scale", [0, 0.0, -1.0, np.inf, np.nan, True, "1"])
def test_a_scale_that_makes_no_tube_is_refused(scale: Any) -> None:
    """At 0 a tube is a line, which every limit that its mean keeps would be called safe for."""
    forecast = two_steps()
    tube = MaxShape(np.ones(2), False).sets(forecast, 4.0)
    with pytest.raises(InvalidInput, match="scale must be finite and above 0"):
        ScaledTube(tube, forecast.mean, scale)
    with pytest.raises(InvalidInput, match="scale must be finite and above 0"):
        FittedTubes(MaxShape(np.ones(2), False), 4.0, scale)
    with pytest.raises(InvalidInput, match=r"center must have shape \(1, 2, 2\), got \(1, 1, 2\)"):
        ScaledTube(tube, forecast.mean[:, :1], 1.0)


def test_scaled_ellipsoids_by_hand() -> None:
    """Circles of radius 2, halved."""
    forecast = two_steps()
    tube = ScaledTube(MaxShape(np.ones(2), False).sets(forecast, 4.0), forecast.mean, 0.5)
    np.testing.assert_allclose(tube.support([0.6, 0.8]), [[1.6, 1.4]], rtol=1e-8)
    shifts = np.array([[0.59, 0.79], [0.0, 0.0]])
    assert tube.contains(forecast.mean + shifts).tolist() == [True]
    assert tube.contains(forecast.mean + 1.03 * shifts).tolist() == [False]


def test_scaled_intervals_of_features_by_hand() -> None:
    """The interval of the sum of both numbers, half-width 1 about 1, at scale 2; no other direction."""
    features = LinearFeatures(("sum",), np.array([[1.0, 1.0]]))
    shape = FeatureShape(features, BoxShape(np.ones((2, 2, 1)), 0.0, False, (0,)))
    forecast = two_steps()
    tube = ScaledTube(shape.sets(forecast, 1.0), forecast.mean, 2.0)
    np.testing.assert_allclose(tube.support([1.0, 1.0]), [[3.0, 3.0]], rtol=1e-8)
    assert np.isposinf(tube.support([1.0, 0.0])).all()
    np.testing.assert_allclose(tube.interval("sum"), [[[-1.0, -1.0]], [[3.0, 3.0]]], rtol=1e-8)
    np.testing.assert_allclose([end[..., 0] for end in tube.box()], tube.interval("sum"))
    with pytest.raises(InvalidInput, match="must have the feature 'difference'"):
        tube.interval("difference")


def test_a_limit_on_a_feature_reads_the_tubes_that_have_it(controller: Controller) -> None:
    features = LinearFeatures(("speed",), AHEAD[None])
    shape = FeatureShape(features, BoxShape(np.full((2, 3, 1), 0.5), 0.0, False, (0,)))
    limit = FeatureLimit("speed", lambda x: x[..., 0], upper=0.6)
    tubes = FittedTubes(shape, 1.0, 1.5)
    plain = decide(keeping(controller, 0.6, tubes=tubes))
    by_name = decide(replace(controller, tubes=tubes, limits=(limit,)))
    np.testing.assert_array_equal(by_name.safe, plain.safe)
    np.testing.assert_allclose(by_name.margin, plain.margin)
    with pytest.raises(InvalidInput, match="neither bounds, lipschitz nor gradient"):
        decide(replace(controller, tubes=box_tubes(), limits=(limit,)))


def test_the_paper_s_shape_scales_too() -> None:
    """A scale of 1 changes nothing, and what a scale holds lies within its support."""
    rng = np.random.default_rng(0)
    forecast = GaussianForecast(rng.normal(size=(200, 2, 2)), np.full((200, 2, 2), 0.5))
    states = forecast.mean + rng.normal(size=(200, 2, 2)).cumsum(axis=1)
    joint = fit_shape(forecast, states, PACLevel(0.1, 0.1), shape="joint").sets(forecast, 6.0)
    np.testing.assert_array_equal(
        ScaledTube(joint, forecast.mean, 1.0).contains(states), joint.contains(states)
    )
    half = ScaledTube(joint, forecast.mean, 0.5)
    np.testing.assert_array_equal(
        half.contains(states), joint.contains(forecast.mean + 2 * (states - forecast.mean))
    )
    kept = half.contains(states)
    assert 0 < kept.sum() < joint.contains(states).sum()
    assert (states[kept] @ [1.0, 0.0] <= half.support([1.0, 0.0])[kept]).all()


def test_a_scaled_controller_has_wider_tubes(controller: Controller) -> None:
    """Half-widths of 0.2, doubled, leave 0.2 less to the limit."""
    once = pricing(keeping(controller, 1e6, tubes=box_tubes()), None)
    np.testing.assert_allclose(decide(once).margin - decide(once.scaled(2.0)).margin, 0.2, rtol=1e-4)
    with pytest.raises(InvalidInput, match="tubes must be FittedTubes to be scaled, got MeanTubes"):
        controller.scaled(2.0)


def test_the_worst_member_decides() -> None:
    ways = np.array([[[[1.0, 0.0]]], [[[3.0, -1.0]]]])
    tube = HullTube(ways)
    assert tube.support([1.0, 0.0]).tolist() == [[3.0]]
    assert tube.support([-1.0, 0.0]).tolist() == [[-1.0]]
    assert tube.contains(np.array([[[2.0, -0.5]]])).tolist() == [True]
    assert tube.contains(np.array([[[2.0, 0.5]]])).tolist() == [False]
    assert tube.contains(np.array([[[2.0, np.nan]]])).tolist() == [False]
    with pytest.raises(InvalidInput, match="members=True"):
        MemberTubes().tube(two_steps())


def test_a_scaled_tube_of_features_knows_no_other_number() -> None:
    """Its feature is number 1 of the state; a box to stay in for number 0 must not be read off it."""
    shape = FeatureShape(
        LinearFeatures(("second",), np.eye(3)[1:2]), BoxShape(np.full((2, 2, 1), 0.2), 0.0, False, (0,))
    )
    forecast = GaussianForecast(np.zeros((1, 2, 3)), np.ones((1, 2, 3)))
    tube = ScaledTube(shape.sets(forecast, 1.0), forecast.mean, 2.0)
    assert np.isinf(tube.support(np.eye(3)[0])).all()
    assert np.ravel(tube.box())[[0, 2]].tolist() == [pytest.approx(-0.4), pytest.approx(0.4)]
    for axis, safe in ((0, False), (1, True)):
        limit = StayIn("box", np.array([-0.5]), np.array([0.5]), axes=(axis,))
        assert TubeChecker([limit])(tube).safe.tolist() == [safe]
