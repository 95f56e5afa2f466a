"""A guard lets no unsafe candidate through, and says when it had none to give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

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
from pac_rl import Controller, Ensemble, NoSafePlan
from pac_rl.planning import FittedTubes, HullTube, MeanTubes, MemberTubes, ScaledTube
from pac_rl.policies import Network
from pac_rl.systems import Environment

FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0)
STARTS = np.random.default_rng(1).normal(size=(6, 18)) * 0.3
AHEAD = np.eye(18)[0]


@pytest.fixture(scope="module")
def controller(cheetah: Environment, ensemble: Ensemble, policy: Network) -> Controller:
    limit = HalfSpace("speed", AHEAD, 0.6)
    options: Any = {"horizon": 3, "factors": FACTORS, "fallback": "hold"}
    return Controller(cheetah, ensemble, policy, (limit,), MeanTubes(), **options)


def box_tubes(scale: float = 1.0) -> FittedTubes:
    """Boxes of half-width 0.2 in every number and step, whatever the forecast."""
    shape = BoxShape(np.full((2, 3, 18), 0.2), 0.0, False, (0,) * 18)
    return FittedTubes(shape, 1.0, scale)


@pytest.mark.parametrize("guard", [MeanTubes(), MemberTubes(), box_tubes(), box_tubes(0.1)])
@pytest.mark.parametrize("choice", ["return", "factor"])
def test_the_chosen_candidate_is_safe_and_the_best_of_those(
    controller: Controller, guard: object, choice: str
) -> None:
    made = replace(controller, guard=guard, choice=choice)  # type: ignore[arg-type]
    speeds = made._around(made.policy, STARTS, FACTORS).mean[..., 0].amax(dim=2)
    between = float(speeds.quantile(0.5))  # some candidates pass and some do not
    made = replace(made, limits=(HalfSpace("speed", AHEAD, between),))
    decision = made.decide(STARTS)
    found = decision.candidates
    checked = TubeChecker(made.limits)(made.guard.tube(found.forecast)).safe.reshape(6, 5)  # type: ignore[union-attr]
    assert torch.equal(decision.safe, checked)
    worth = found.mean[..., 0].sum(dim=2) - 0.1 * (found.plans**2).sum(dim=(2, 3))
    for i in range(6):
        safe = torch.nonzero(checked[i]).flatten().tolist()
        pick = int(decision.chosen[i])
        if not safe:
            assert pick == -1
            assert not decision.plans[i].any()  # hold
            assert decision.margin[i] < 0
            continue
        best = max(safe) if choice == "factor" else max(safe, key=lambda c: float(worth[i, c]))
        assert pick == best
        assert decision.margin[i] >= 0
        assert torch.equal(decision.plans[i], found.plans[i, best])
    assert bool(checked.any())
    assert not bool(checked.all())


def test_steps_that_are_not_checked_are_left_to_later_plans(controller: Controller) -> None:
    """A tube that leaves the limit at its third step only."""

    class Late:
        members = False

        def tube(self, forecast: object) -> HullTube:
            way = torch.zeros((1, 30, 3, 18), dtype=torch.float64)
            way[:, :, 2, 0] = 9.0
            return HullTube(way)

    late = replace(controller, guard=Late())
    assert not late.decide(STARTS).safe.any()
    assert replace(late, checked=2).decide(STARTS).safe.all()
    assert not replace(late, checked=3).decide(STARTS).safe.any()
    with pytest.raises(InvalidInput, match="checked must be at most the horizon 3, got 4"):
        replace(late, checked=4)


def test_a_plan_whose_return_is_unknown_is_not_chosen(controller: Controller) -> None:
    """NaN must not win a maximum, nor an unsafe plan take its place."""
    blind = replace(
        controller,
        limits=(HalfSpace("speed", AHEAD, 1e6),),
        reward=lambda states, actions: states[..., 0] * torch.nan,
    )
    assert blind.decide(STARTS).chosen.tolist() == [-1] * 6


@pytest.mark.parametrize(
    "reward",
    [lambda x, a: 1.0, lambda x, a: x[..., 0].sum(-1), lambda x, a: x[..., :1], lambda x, a: x[:1, ..., 0]],
)
def test_a_reward_of_another_shape_is_refused(controller: Controller, reward: Any) -> None:
    with pytest.raises(InvalidInput, match=r"reward must return values of shape \(6, 5, 3\), got"):
        replace(controller, reward=reward).decide(STARTS)


def test_a_policy_of_another_shape_is_refused(controller: Controller) -> None:
    class One:
        inputs, outputs, squash, sees = 18, 6, False, "state"

        def __call__(self, observations: Any, noise: Any) -> Any:
            return torch.zeros(6)

    with pytest.raises(InvalidInput, match=r"the policy must return actions of shape \(30, 6\), got \(6,\)"):
        replace(controller, policy=One()).decide(STARTS)


def test_a_tube_that_makes_no_sense_is_unsafe(controller: Controller) -> None:
    class Nonsense:
        members = False

        def tube(self, forecast: object) -> HullTube:
            return HullTube(torch.full((1, 30, 3, 18), torch.nan, dtype=torch.float64))

    decision = replace(controller, guard=Nonsense()).decide(STARTS)
    assert not decision.safe.any()
    assert not decision.accepted.any()


def test_a_tube_of_fewer_steps_than_the_plan_is_refused(controller: Controller) -> None:
    class Short(MeanTubes):
        def tube(self, forecast: GaussianForecast) -> HullTube:
            return HullTube(forecast.wide().mean[None, :, :2])

    for checked in (None, 3, 1):
        with pytest.raises(InvalidInput, match="a tube of 30 plans x 3 steps, got"):
            replace(controller, guard=Short(), checked=checked).decide(STARTS)


@pytest.mark.parametrize("guard", [MeanTubes(), MemberTubes(), None])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_robot_whose_state_is_no_number_falls_back_alone(
    controller: Controller, policy: Network, guard: Any, value: float
) -> None:
    made = replace(controller, guard=guard, limits=(HalfSpace("speed", AHEAD, 1e6),), choice="factor")
    usual, lost = made.decide(STARTS), STARTS.copy()
    lost[2, 7] = value
    others = [0, 1, 3, 4, 5]
    decision = made.decide(lost)
    assert decision.chosen.tolist() == [4, 4, -1, 4, 4, 4]
    assert not decision.plans[2].any()  # hold
    assert decision.acting.mean[2].isnan().all()  # nothing is known of where that leads
    assert decision.margin[2].isnan()
    assert torch.equal(decision.plans[others], usual.plans[others])
    with pytest.raises(NoSafePlan, match="no candidate of 5 is safe"):
        replace(made, fallback="stop").decide(lost)
    with pytest.raises(InvalidInput, match="starts must be finite numbers"):
        replace(made, fallback=policy).decide(lost)


def test_the_fallback_is_the_one_that_was_chosen(controller: Controller, policy: Network) -> None:
    never = (HalfSpace("never", AHEAD, -1e6),)
    held = replace(controller, limits=never).decide(STARTS)
    assert not held.plans.any()
    backup = replace(controller, limits=never, fallback=policy).decide(STARTS)
    full = controller.bare().decide(STARTS)
    torch.testing.assert_close(backup.plans[:, 0], full.plans[:, 0])
    assert backup.chosen.tolist() == [-1] * 6
    mine = replace(controller, limits=never, fallback=lambda state: np.full(6, 0.25)).decide(STARTS)
    assert (mine.plans == 0.25).all()
    stop = replace(controller, limits=never, fallback="stop")
    with pytest.raises(NoSafePlan, match="no candidate of 5 is safe"):
        stop.decide(STARTS)
    asked = torch.zeros(6, dtype=torch.bool)
    assert stop.decide(STARTS, asked=asked).chosen.tolist() == [-1] * 6  # rows that only fill the batch


def test_bad_controllers_are_refused(controller: Controller) -> None:
    with pytest.raises(InvalidInput, match="choice must be one of return, factor"):
        replace(controller, choice="luck")
    with pytest.raises(InvalidInput, match="fallback must be 'hold', 'stop' or a function of the state"):
        replace(controller, fallback="pray")
    with pytest.raises(InvalidInput, match="limits must be one or more"):
        replace(controller, limits=())


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
    by_name, plain = (
        replace(controller, guard=FittedTubes(shape, 1.0, 1.5), limits=(one,)).decide(STARTS)
        for one in (limit, HalfSpace("speed", AHEAD, 0.6))
    )
    assert torch.equal(by_name.safe, plain.safe)
    torch.testing.assert_close(by_name.margin, plain.margin)
    with pytest.raises(InvalidInput, match="neither bounds, lipschitz nor gradient"):
        replace(controller, guard=box_tubes(), limits=(limit,)).decide(STARTS)


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
    once = replace(controller, guard=box_tubes())
    twice = once.scaled(2.0)
    margins = [one.decide(STARTS).candidates for one in (once, twice)]
    assert torch.equal(margins[0].mean, margins[1].mean)
    forecast = margins[0].forecast
    found = [TubeChecker(one.limits)(one.guard.tube(forecast)).margin for one in (once, twice)]  # type: ignore[union-attr]
    torch.testing.assert_close(found[0] - found[1], torch.full_like(found[0], 0.2))


def test_the_worst_member_decides() -> None:
    ways = torch.tensor([[[[1.0, 0.0]]], [[[3.0, -1.0]]]], dtype=torch.float64)
    tube = HullTube(ways)
    assert tube.support([1.0, 0.0]).tolist() == [[3.0]]
    assert tube.support([-1.0, 0.0]).tolist() == [[-1.0]]
    assert tube.contains(np.array([[[2.0, -0.5]]])).tolist() == [True]
    assert tube.contains(np.array([[[2.0, 0.5]]])).tolist() == [False]
    assert tube.contains(np.array([[[2.0, np.nan]]])).tolist() == [False]


def test_members_must_have_been_asked_for(controller: Controller) -> None:
    found = controller.decide(STARTS).candidates
    with pytest.raises(InvalidInput, match="members=True"):
        MemberTubes().tube(found.forecast)


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


def test_a_limit_of_some_steps_is_refused(controller: Controller) -> None:
    """Steps of a plan that is made anew at every step would leave the limit unchecked."""
    later = HalfSpace("speed", AHEAD, 0.6, steps=(2,))
    with pytest.raises(InvalidInput, match="limits must hold at every step"):
        replace(controller, limits=(later,))
