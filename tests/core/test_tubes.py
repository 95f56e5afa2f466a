"""Four shapes: what each set is, and that all agree across libraries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pac_core import GaussianForecast, InvalidInput, LinearFeatures, PACLevel, Predictor, fit_tube
from pac_core.errors import TooManyFailures
from pac_core.sets import calibrate
from pac_core.tubes import SHAPES, BoxShape, FeatureShape, MaxShape, fit_shape

LEVEL = PACLevel(0.1, 0.01)
FEATURES = LinearFeatures(("first", "difference"), np.array([[1.0, 0.0, 0.0], [0.0, 1.0, -1.0]]))


def walks(n: int, seed: int, steps: int = 5) -> tuple[GaussianForecast, np.ndarray]:
    """Random walks whose spread the forecast knows only in part."""
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.5, 2.0, size=(n, 1, 1)) * np.array([1.0, 0.1, 3.0])
    states = (scale * rng.normal(size=(n, steps, 3))).cumsum(axis=1)
    return GaussianForecast(np.zeros_like(states), np.broadcast_to(scale**2, states.shape).copy()), states


def options(shape: str) -> dict[str, object]:
    return {"features": FEATURES} if shape == "features" else {}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_contained_trajectory_stays_below_the_support(shape: str) -> None:
    predictor = fit_tube(*walks(400, 0), *walks(400, 1), LEVEL, shape=shape, **options(shape))
    forecast, states = walks(1000, 2)
    tube = predictor.tube(forecast)
    inside = tube.contains(states)
    assert 0.85 < inside.mean() < 1  # epsilon is 0.1: neither everything nor too little
    for direction in ([1.0, 0, 0], [0, 1.0, -1.0], [-2.0, 0, 0]):
        along = states[inside] @ np.array(direction)
        assert (along <= tube.support(direction)[inside] + 1e-9).all()


@pytest.mark.parametrize("shape", ["max", "box", "features"])
def test_per_step_shapes_contain_exactly_what_lies_in_every_step(shape: str) -> None:
    predictor = fit_tube(*walks(400, 0), *walks(400, 1), LEVEL, shape=shape, **options(shape))
    forecast, states = walks(1000, 2)
    tube = predictor.tube(forecast)
    if shape == "max":
        region = tube.region
        inside = (region.forecast.mahalanobis2(states) <= region.radius2).all(axis=1)
    else:
        lower, upper = tube.box()
        seen = FEATURES.of(states) if shape == "features" else states
        inside = ((seen >= lower) & (seen <= upper)).all(axis=(1, 2))
    assert (tube.contains(states) == inside).all()


def test_joint_is_the_projection_of_one_ellipsoid() -> None:
    """radius^2 = 2T - H d ln 2 pi - sum_t ln det Sigma_t, the same at every step."""
    predictor = fit_tube(*walks(400, 0), *walks(400, 1), LEVEL, shape="joint")
    forecast, states = walks(5, 2)
    tube = predictor.tube(forecast)
    prepared = predictor.score.prepared(forecast)
    expected = (
        2 * predictor.threshold.value - 5 * 3 * np.log(2 * np.pi) - np.log(prepared.var).sum(axis=(1, 2))
    )
    np.testing.assert_allclose(tube.region.radius2, np.repeat(expected[:, None], 5, axis=1))
    # The product of the projections is larger than the joint set.
    everywhere = (prepared.mahalanobis2(states) <= tube.region.radius2).all(axis=1)
    assert (everywhere | ~tube.contains(states)).all()


def test_box_is_the_smallest_and_joint_the_largest() -> None:
    forecast, _ = walks(500, 2, steps=20)
    sizes = {
        shape: fit_tube(*walks(1000, 0, 20), *walks(1000, 1, 20), LEVEL, shape=shape)
        .tube(forecast)
        .size()
        .mean()
        for shape in ("joint", "max", "box")
    }
    assert sizes["box"] < sizes["max"] < sizes["joint"]


@pytest.mark.parametrize("shape", list(SHAPES))
def test_torch_gives_the_same_tube(shape: str) -> None:
    predictor = fit_tube(*walks(400, 0), *walks(400, 1), LEVEL, shape=shape, **options(shape))
    ours, states = walks(50, 2)
    theirs = GaussianForecast(torch.from_numpy(ours.mean), torch.from_numpy(ours.var))
    a, b = predictor.tube(ours), predictor.tube(theirs)
    assert b.contains(torch.from_numpy(states)).tolist() == a.contains(states).tolist()
    for direction in ([1.0, 0, 0], [0.0, 1.0, 1.0]):
        np.testing.assert_allclose(b.support(direction).numpy(), a.support(direction), rtol=1e-10)
    np.testing.assert_allclose(b.size().numpy(), a.size(), rtol=1e-10)
    assert b.empty.tolist() == a.empty.tolist() == [False] * 50


def test_features_say_nothing_of_other_directions() -> None:
    predictor = fit_tube(*walks(400, 0), *walks(400, 1), LEVEL, shape="features", features=FEATURES)
    tube = predictor.tube(walks(3, 2)[0])
    assert np.isinf(tube.support([0, 1.0, 0])).all()
    assert np.isinf(tube.support([1.0, 1.0, -1.0])).all()
    lower, upper = tube.interval("difference")
    np.testing.assert_allclose(tube.support([0, 2.0, -2.0]), 2 * upper)
    np.testing.assert_allclose(tube.support([0, -1.0, 1.0]), -lower)
    with pytest.raises(InvalidInput, match="feature must be one of"):
        tube.interval("speed")


def test_one_side_is_tighter_than_two_and_open_on_the_other() -> None:
    two, one = (
        fit_tube(*walks(2000, 0), *walks(2000, 1), LEVEL, shape="features", features=FEATURES, sides=sides)
        for sides in ((0, 0), (1, -1))
    )
    forecast, states = walks(4000, 2)
    tube = one.tube(forecast)
    assert np.mean(tube.support([1.0, 0, 0])) < np.mean(two.tube(forecast).support([1.0, 0, 0]))
    assert np.isinf(tube.support([-1.0, 0, 0])).all()
    assert np.isinf(tube.support([0, 1.0, -1.0])).all()
    assert 0.85 < tube.contains(states).mean() < 1


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("shape", ["box", "features"])
def test_a_model_that_only_errs_on_the_side_that_does_not_count_has_a_tube(shape: str, library: Any) -> None:
    """T = 0: the tube ends at the mean and is open on the other side, and it holds every such truth."""

    def above(n: int, seed: int) -> tuple[GaussianForecast, np.ndarray]:
        forecast, states = walks(n, seed)
        lower = GaussianForecast(states + np.array([0.1, 0.1, -0.1]), forecast.var)  # FEATURES are lower, too
        return lower, states

    sides = (1, 1, -1) if shape == "box" else (1, 1)
    predictor = fit_tube(*above(400, 0), *above(400, 1), LEVEL, shape=shape, sides=sides, **options(shape))
    assert predictor.threshold.value == 0.0
    forecast, states = above(1000, 2)
    tube = predictor.tube(GaussianForecast(library(forecast.mean), library(forecast.var)))
    assert not tube.empty.any()
    assert tube.contains(states).all()
    assert not tube.contains(forecast.mean + np.array([1e-9, 0, 0])).any()
    np.testing.assert_array_equal(tube.support([1.0, 0, 0]), forecast.mean[..., 0])
    assert (tube.support([-1.0, 0, 0]) == np.inf).all()
    below = predictor.score.sets(forecast, -1e-3)  # nothing scores less than 0
    assert below.empty.all()
    assert not below.contains(states).any()


ERRORS = {
    "none": lambda size: 0 * size,
    "below": lambda size: -size,
    "above": lambda size: size,
    "one unit in ten": lambda size: np.where(np.arange(len(size))[:, None, None] % 10, 0, size),
    "vanishing": lambda size: 1e-20 * size,
}


@settings(max_examples=30)
@given(
    shape=st.sampled_from(list(SHAPES)),
    kind=st.sampled_from(list(ERRORS)),
    exponent=st.integers(-140, 140),
    sides=st.tuples(*[st.sampled_from((-1, 0, 1))] * 2),
    covariances=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_fitted_tube_holds_exactly_the_trajectories_that_score_at_most_t(
    shape: str, kind: str, exponent: int, sides: tuple[int, int], covariances: bool, seed: int
) -> None:
    rng, unit = np.random.default_rng(seed), 10.0**exponent
    features = LinearFeatures(("a", "b"), rng.normal(size=(2, 2)))

    def world() -> tuple[GaussianForecast, np.ndarray]:
        mean, size = unit * rng.normal(size=(30, 2, 2)), unit * np.abs(rng.normal(size=(30, 2, 2)))
        var = unit**2 * np.exp(rng.normal(size=mean.shape))
        var = var[..., None] * np.eye(2) if covariances else var
        return GaussianForecast(mean, var), mean + ERRORS[kind](size)

    more: dict[str, object] = {"sides": sides} if shape in ("box", "features") else {}
    more |= {"features": features} if shape == "features" else {}
    calibration = world()
    predictor = fit_tube(*world(), *calibration, PACLevel(0.2, 0.2), shape=shape, **more)
    for forecast, states in (calibration, world()):
        scores, tube = predictor.score.scores(forecast, states), predictor.tube(forecast)
        inside = tube.contains(states)
        assert inside[scores <= predictor.threshold.value].all()
        assert (scores[inside] <= tube.limit).all()
        seen = features.of(states) if shape == "features" else states
        last_digit = 4 * np.spacing(abs(states).max(axis=-1, keepdims=True))  # a feature's sum rounds
        lower, upper = tube.box()
        assert ((lower - last_digit <= seen) & (seen <= upper + last_digit))[inside].all()


def test_a_scale_that_is_no_scale_is_refused() -> None:
    for wrong in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(InvalidInput, match="scale must be finite and above 0"):
            BoxShape(np.full((2, 1, 1), wrong), 0.0, False, (0,))
        with pytest.raises(InvalidInput, match="scale must be finite and above 0"):
            MaxShape(np.full(1, wrong), False)


def test_a_feature_whose_variance_vanishes_has_an_empty_tube() -> None:
    """1e-300 times 1e-100 is 0: no truth scores at most T, so a tube that is a point would be called safe."""
    features = LinearFeatures(("small",), np.array([[1e-50, 0.0]]))
    score = FeatureShape(features, BoxShape(np.ones((2, 1, 1)), 1.0, False, (0,)))
    forecast = GaussianForecast(np.zeros((2, 1, 2)), np.array([[[1e-300, 1.0]], [[1.0, 1.0]]]))
    tube = score.sets(forecast, 1.0)
    assert tube.empty.tolist() == [True, False]
    assert np.isnan(tube.support([1e-50, 0.0])[0]).all()
    with pytest.raises(InvalidInput, match="the first in row 0"):
        score.scores(forecast, np.zeros((2, 1, 2)))


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("mark", [np.inf, -np.inf])
def test_failed_units_are_errors_and_never_dropped(shape: str, mark: float) -> None:
    sides = {"sides": (1, 1)} if shape == "features" else {}
    score = fit_shape(*walks(400, 0), LEVEL, shape=shape, **options(shape), **sides)
    forecast, states = walks(100, 1)
    states[:3] = mark
    assert (score.scores(forecast, states)[:3] == np.inf).all()
    states[:20] = mark
    with pytest.raises(TooManyFailures):
        calibrate(score, forecast, states, LEVEL)


def test_failed_tune_units_do_not_spoil_the_fit() -> None:
    forecast, states = walks(400, 0)
    spoiled = states.copy()
    spoiled[::10] = np.inf
    for shape in SHAPES:
        score = fit_shape(forecast, spoiled, LEVEL, shape=shape, **options(shape))
        assert np.isfinite(score.scores(forecast, states)).all()


def test_a_dimension_without_error_gets_a_floor() -> None:
    forecast, states = walks(400, 0)
    states[..., 1] = 0
    tube = fit_tube(forecast, states, forecast, states, LEVEL).tube(forecast)
    widths = tube.region.half_widths()[..., 1]
    assert (widths > 0).all()
    assert (widths < 1e-3).all()


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize(("part", "value"), [("mean", np.nan), ("mean", np.inf), ("var", 0.0), ("var", -0.5)])
def test_a_broken_forecast_has_an_empty_tube(shape: str, part: str, value: float) -> None:
    """One number, late in the horizon, where a sum over the steps would hide it."""
    score = fit_shape(*walks(400, 0), LEVEL, shape=shape, **options(shape))
    forecast, states = walks(2, 2)
    getattr(forecast, part)[0, 3, 2] = value
    tube = score.sets(forecast, 100.0)
    assert tube.empty.tolist() == [True, False]
    assert not tube.contains(states)[0]
    assert not (tube.support([1.0, 0, 0])[0] <= np.inf).any()
    with pytest.raises(InvalidInput, match="the first in row 0"):
        score.scores(forecast, states)


@pytest.mark.parametrize("shape", list(SHAPES))
def test_single_precision_scores_as_double_precision_does(shape: str) -> None:
    """The same numbers in numpy float32, torch float32 and float64 give the same scores."""
    score = fit_shape(*walks(400, 0), LEVEL, shape=shape, **options(shape))
    forecast, states = walks(300, 1)
    mean, var = forecast.mean.astype(np.float32), forecast.var.astype(np.float32)
    single = score.scores(GaussianForecast(mean, var), states.astype(np.float32))
    double = score.scores(
        GaussianForecast(mean.astype(np.float64), var.astype(np.float64)), states.astype(np.float32)
    )
    assert single.tolist() == double.tolist()
    tensors = GaussianForecast(torch.from_numpy(mean), torch.from_numpy(var))
    theirs = score.scores(tensors, torch.from_numpy(states.astype(np.float32)))
    np.testing.assert_allclose(theirs.numpy(), single, rtol=1e-12)
    limit = float(np.median(single))  # a tie with T in every library
    tied = single <= limit
    assert score.sets(tensors, limit).contains(states.astype(np.float32)).numpy()[tied].all()


@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_truth_is_not_rounded_to_the_precision_of_the_forecast(shape: str) -> None:
    """A model in float32 and a simulator in float64: sets hold exactly the truths that score at most T."""
    score = fit_shape(*walks(400, 0), LEVEL, shape=shape, **options(shape))
    forecast, states = walks(300, 1)
    mean, var = forecast.mean.astype(np.float32), forecast.var.astype(np.float32)
    for single in (
        GaussianForecast(mean, var),
        GaussianForecast(torch.from_numpy(mean), torch.from_numpy(var)),
    ):
        scores = np.asarray(score.scores(single, states))
        for limit in np.sort(scores)[::20].tolist():
            assert np.asarray(score.sets(single, limit).contains(states)).sum() == (scores <= limit).sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": "banana"}, "shape must be one of joint, max, box, features, got 'banana'"),
        ({"shape": "features"}, "needs features=LinearFeatures"),
        ({"shape": "box", "sides": (2, 0, 0)}, "sides must be 3 of -1, 0 or 1"),
        ({"shape": "box", "units": (1.0, 1.0)}, "units must be 3 numbers above 0"),
        ({"shape": "box", "units": (1.0, 1.0, 0.0)}, "units must be 3 numbers above 0"),
    ],
)
def test_bad_shapes_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fit_tube(*walks(100, 0), *walks(100, 1), LEVEL, **change)  # type: ignore[arg-type]


def test_bad_tune_data_are_named() -> None:
    forecast, states = walks(100, 0)
    with pytest.raises(InvalidInput, match="truth must not contain NaN"):
        fit_shape(forecast, np.where(states > 2, np.nan, states), LEVEL)
    with pytest.raises(InvalidInput, match="at least 4 tune units that did not fail"):
        fit_shape(forecast, np.full_like(states, np.inf), LEVEL)
    with pytest.raises(InvalidInput, match=r"a tube needs a horizon \[B, H, D\]"):
        fit_shape(GaussianForecast(np.zeros((9, 2)), np.ones((9, 2))), np.zeros((9, 2)), LEVEL)
    with pytest.raises(InvalidInput, match="one row, not all 0"):
        LinearFeatures(("a",), np.zeros((1, 3)))
    for size in (1e-170, 1e170):
        with pytest.raises(InvalidInput, match="each row of matrix must lie between 1e-100 and 1e100"):
            LinearFeatures(("a",), np.full((1, 3), size))


def scattered(n: int, seed: int, *, error: float, sure: float) -> tuple[GaussianForecast, np.ndarray]:
    """States of deviation 1, means that miss them by `error`, and variances that know it or (sure=1) not."""
    rng = np.random.default_rng(seed)
    states, spread = rng.normal(size=(n, 3, 2)), np.exp(rng.normal(size=(n, 3, 2)))
    mean = states + error * np.where(sure, 1.0, spread) * rng.normal(size=states.shape)
    return GaussianForecast(mean, (error * spread) ** 2), states


@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_predictor_says_when_its_tube_is_wider_than_the_states_vary(shape: str) -> None:
    features = LinearFeatures(("speed", "pitch"), np.eye(2))
    more = {"features": features} if shape == "features" else {}
    for error, wide in ((0.01, False), (3.0, True)):
        parts = [scattered(600, seed, error=error, sure=0) for seed in (0, 1)]
        predictor = fit_tube(*parts[0], *parts[1], LEVEL, shape=shape, **more)
        tube = predictor.tube(parts[0][0])
        widths = np.nanmean(tube.region.half_widths(), axis=(0, 1)) / parts[0][1].std(axis=(0, 1))
        assert (widths > 1).all() == wide
        said = [remark for remark in predictor.remarks if "wider than the states vary" in remark]
        assert len(said) == wide
        if wide:
            assert "of 2 of 2 numbers is above" in said[0]
            assert said[0] in repr(predictor)
        if wide and shape != "joint":  # whose sets have no mean width: some are empty
            name = ("speed", "pitch")[widths.argmax()] if shape == "features" else f"number {widths.argmax()}"
            assert said[0].endswith(f"most of {name}: {widths.max():.2g} times")


@pytest.mark.parametrize("shape", ["box", "features"])
def test_a_predictor_says_when_its_tube_ignores_the_variances(shape: str) -> None:
    features = LinearFeatures(("speed", "pitch"), np.eye(2))
    more = {"features": features} if shape == "features" else {}
    for sure in (0, 1):
        parts = [scattered(600, seed, error=0.1, sure=sure) for seed in (0, 1)]
        predictor = fit_tube(*parts[0], *parts[1], LEVEL, shape=shape, **more)
        sizes = predictor.tube(parts[0][0]).size()
        assert (np.ptp(sizes) < 1e-9) == bool(sure)
        said = [remark for remark in predictor.remarks if "ignores the model's variance" in remark]
        assert len(said) == sure
        if sure:
            again = Predictor(type(predictor.score).from_json(predictor.score.to_json()), predictor.threshold)
            assert again.remarks == tuple(said)  # the widths are not stored, the power is


def test_a_score_of_ones_own_is_not_broadcast() -> None:
    forecast, states = walks(100, 0)

    class Half(MaxShape):
        def scores(self, forecast: Any, truth: Any) -> Any:
            return super().scores(forecast, truth)[:50]

    with pytest.raises(InvalidInput, match=r"scores must be one for each of 100 units, got shape \(50,\)"):
        calibrate(Half(np.ones(5), False), forecast, states, LEVEL)
    tube = replace(MaxShape(np.ones(5), False).sets(forecast, 1.0), score=lambda truth: np.zeros(1))
    with pytest.raises(InvalidInput, match=r"score of a set must be numbers of shape \(100,\), got \(1,\)"):
        tube.contains(states)


@pytest.mark.parametrize("names", [None, "speed", [["a"]], [1]], ids=str)
def test_features_of_another_width_or_without_names_are_refused(names: object) -> None:
    narrow, wide = (LinearFeatures(("a",), np.ones((1, width))) for width in (2, 4))
    for features in (narrow, wide):
        said = rf"read states of {features.matrix.shape[1]} numbers, got 3"
        with pytest.raises(InvalidInput, match=said):
            fit_tube(*walks(400, 0), *walks(400, 1), LEVEL, shape="features", features=features)
    with pytest.raises(InvalidInput, match="names"):
        LinearFeatures(names, np.ones((1, 3)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"sides": 1},
        {"sides": "000"},
        {"sides": [[0], [0], [0]]},
        {"units": "111"},
        {"units": 1.0},
        {"units": [None] * 3},
        {"shape": None},
    ],
    ids=str,
)
def test_options_of_a_shape_that_are_none_are_named(options: dict) -> None:
    with pytest.raises(InvalidInput, match=f"{next(iter(options))} must"):
        fit_shape(*walks(400, 0), LEVEL, **options)
