"""Margins against brute force: no point of a tube is nearer than they say, and exact ones are attained."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from pac_core import (
    FeatureLimit,
    GaussianForecast,
    HalfSpace,
    InvalidInput,
    KeepOutBall,
    KeepOutBox,
    LinearFeatures,
    PACLevel,
    StayIn,
    TubeChecker,
    fit_tube,
)
from pac_core.safety import Limit
from pac_core.sets import Boxes, ConfidenceSets, gaussian_sets
from pac_core.tubes import BoxShape, FeatureShape, FeatureTube
from pac_rl import no_flip, velocity_limit
from pac_rl.systems import Environment

B, H, D, POINTS = 40, 3, 3, 400


def box_tube(center: np.ndarray, widths: np.ndarray, to: Any = np.asarray) -> ConfidenceSets:
    region = Boxes(to(center), to(center - widths), to(center + widths))
    sound = to(np.ones(len(center), bool))
    return ConfidenceSets(region, lambda truth: truth, 1.0, sound, center.shape)


def tube_of(kind: str, to: Any = np.asarray, center: np.ndarray | None = None) -> ConfidenceSets:
    """A tube of boxes or of ellipsoids with diagonal or full covariances, in numpy or (`to`) torch."""
    rng = np.random.default_rng(1)
    center = rng.normal(size=(B, H, D), scale=2) if center is None else center
    if kind == "box":
        return box_tube(center, rng.uniform(0.1, 1.5, size=center.shape), to)
    var = rng.uniform(0.05, 1.0, size=center.shape)
    if kind == "full":
        factor = rng.normal(size=(*center.shape, D), scale=0.5)
        var = factor @ factor.swapaxes(-1, -2) + 0.05 * np.eye(D)
    return gaussian_sets(GaussianForecast(to(center), to(var)), H * D * 1.2)


def points_of(tube: ConfidenceSets) -> np.ndarray:
    """`[POINTS, B, H, D]` of the tube, many on its surface; corners of boxes among them."""
    rng = np.random.default_rng(2)
    drawn = rng.normal(size=(POINTS, B, H, D))
    if isinstance(tube.region, Boxes):
        inside = np.clip(drawn * 1.5, -1, 1)  # a third of the coordinates at a face
        lower, upper = tube.box()
        return (lower + upper) / 2 + inside * (upper - lower) / 2
    drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
    var = tube.region.forecast.var
    root = np.linalg.cholesky(var if tube.region.forecast.full else var[..., None] * np.eye(D))
    return tube.region.center + tube.region.radius[..., None] * (root @ drawn[..., None])[..., 0]


def norm(x: Any) -> Any:
    return (x**2).sum(-1) ** 0.5


def product(x: Any) -> Any:
    return x[..., 0] * x[..., 1]


def product_bounds(low: Any, high: Any) -> tuple[Any, Any]:
    ends = [a[..., 0] * b[..., 1] for a in (low, high) for b in (low, high)]
    least, most = ends[0], ends[0]
    for end in ends[1:]:
        least, most = (least + end - abs(least - end)) / 2, (most + end + abs(most - end)) / 2
    return least, most


def swapped(x: Any) -> Any:
    return x.flip(-1) if isinstance(x, torch.Tensor) else x[..., ::-1]


LIMITS: dict[str, Limit] = {
    "half-space": HalfSpace("h", np.array([1.0, -2.0, 0.5]), 3.0),
    "stay in": StayIn("s", np.array([-4.0, -np.inf, -3.0]), np.array([4.0, 3.5, np.inf])),
    "stay in, one number": StayIn("s1", np.array([-2.0]), np.array([2.5]), axes=(1,)),
    "out of box": KeepOutBox("b", np.array([0.5, -1.0]), np.array([1.5, 0.5]), axes=(2, 0)),
    "out of wall": KeepOutBox("w", np.array([1.0, -np.inf]), np.array([1.4, 0.0]), axes=(0, 1)),
    "out of ball": KeepOutBall("o", np.array([0.5, -0.5, 0.3]), 0.7),
    "out of disc": KeepOutBall("d", np.array([0.5, -0.5]), 0.7, axes=(0, 2)),
    "lipschitz": FeatureLimit("l", norm, upper=8.0, lipschitz=1.0),
    "bounds": FeatureLimit("i", product, lower=-6.0, upper=6.0, axes=(2, 1), bounds=product_bounds),
    "curvature": FeatureLimit(
        "c", product, lower=-6.0, upper=6.0, axes=(0, 1), gradient=swapped, curvature=1.0
    ),
}
TRUE_DISTANCE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "half-space": lambda x: 3.0 - x @ np.array([1.0, -2.0, 0.5]),
    "stay in": lambda x: np.min([x[..., 0] + 4, x[..., 2] + 3, 4 - x[..., 0], 3.5 - x[..., 1]], axis=0),
    "stay in, one number": lambda x: np.minimum(x[..., 1] + 2, 2.5 - x[..., 1]),
    "out of box": lambda x: np.max(
        [x[..., 2] - 1.5, 0.5 - x[..., 2], x[..., 0] - 0.5, -1.0 - x[..., 0]], axis=0
    ),
    "out of wall": lambda x: np.max([x[..., 0] - 1.4, 1.0 - x[..., 0], x[..., 1]], axis=0),
    "out of ball": lambda x: norm(x - [0.5, -0.5, 0.3]) - 0.7,
    "out of disc": lambda x: norm(x[..., [0, 2]] - [0.5, -0.5]) - 0.7,
    "lipschitz": lambda x: 8.0 - norm(x),
    "bounds": lambda x: 6.0 - abs(x[..., 1] * x[..., 2]),
    "curvature": lambda x: 6.0 - abs(x[..., 0] * x[..., 1]),
}


@pytest.mark.parametrize("kind", ["box", "diagonal", "full"])
@pytest.mark.parametrize("name", LIMITS)
def test_no_point_of_the_tube_is_nearer_than_the_margin(name: str, kind: str) -> None:
    tube = tube_of(kind)
    margin, points = LIMITS[name].margin(tube), points_of(tube)
    nearest = TRUE_DISTANCE[name](points).min(axis=0)
    assert (margin >= 0).any()  # otherwise nothing is tested
    assert (margin < 0).any()
    assert (margin <= nearest + 1e-9).all()
    safe = margin >= 0
    assert not LIMITS[name].violated(points)[:, safe].any()


@pytest.mark.parametrize("name", LIMITS)
def test_a_state_violates_if_its_distance_is_below_zero(name: str) -> None:
    states = np.random.default_rng(5).normal(size=(500, H, D), scale=3)
    distance = TRUE_DISTANCE[name](states)
    violated = LIMITS[name].violated(states)
    assert violated.any()
    assert not violated.all()
    assert ((distance < 0) == violated).all()


@pytest.mark.parametrize("kind", ["box", "diagonal", "full"])
@pytest.mark.parametrize("name", LIMITS)
def test_torch_gives_the_same_margins(name: str, kind: str) -> None:
    tube = tube_of(kind)
    there = LIMITS[name].margin(tube_of(kind, torch.from_numpy))
    assert isinstance(there, torch.Tensor)
    np.testing.assert_allclose(there.numpy(), LIMITS[name].margin(tube), rtol=1e-12, atol=1e-12)


def nearest_by_search(distance: Callable[[np.ndarray], np.ndarray], low: Any, high: Any) -> float:
    """The least distance over a box, on a fine grid: its corners and faces are on it."""
    axes = [np.linspace(a, b, 41) for a, b in zip(low, high, strict=True)]
    return float(distance(np.stack(np.meshgrid(*axes), axis=-1)).min())


@pytest.mark.parametrize(
    "name", ["half-space", "stay in", "stay in, one number", "out of box", "out of wall", "out of ball"]
)
def test_margins_of_boxes_are_exact(name: str) -> None:
    tube = tube_of("box")
    margin, (lower, upper) = LIMITS[name].margin(tube), tube.box()
    for b in range(12):
        found = nearest_by_search(TRUE_DISTANCE[name], lower[b, 0], upper[b, 0])
        # Below 0 the margin of an obstacle is that of the whole tube, deeper than its nearest point.
        if margin[b, 0] >= 0 or name in ("half-space", "stay in", "stay in, one number"):
            assert margin[b, 0] <= found + 1e-12
            assert found - margin[b, 0] < 0.05
        else:
            assert found < 0.1


def test_margins_by_hand() -> None:
    tube = box_tube(np.zeros((1, 1, 2)), np.array([[[1.0, 2.0]]]))
    assert HalfSpace("h", np.array([1.0, 1.0]), 5.0).margin(tube).item() == 2.0
    assert StayIn("s", np.array([-4.0, -2.5]), np.array([4.0, 9.0])).margin(tube).item() == 0.5
    assert KeepOutBall("o", np.array([4.0, 6.0]), 1.0).margin(tube).item() == 4.0  # 3-4-5, less the radius
    assert KeepOutBox("b", np.array([4.0, 6.0]), np.array([5.0, 7.0])).margin(tube).item() == 4.0
    overlap = KeepOutBox("b", np.array([0.75, -9.0]), np.array([5.0, 9.0])).margin(tube)
    assert overlap.item() == -0.25  # moved by a quarter along the first number it is free


def test_an_ellipsoid_passes_where_its_bounding_box_does_not() -> None:
    tube = gaussian_sets(
        GaussianForecast(np.zeros((1, 1, 2)), np.ones((1, 1, 2))), math.log(2 * math.pi) + 0.5
    )
    assert tube.box()[1] == pytest.approx(1.0)  # the unit disc
    ball = KeepOutBall("corner", np.array([1.0, 1.0]), 0.3)
    assert ball.margin(tube).item() == pytest.approx(math.sqrt(2) - 1.3)
    box = KeepOutBox("corner", np.array([0.9, 0.9]), np.array([2.0, 2.0]))
    assert box.margin(tube).item() == pytest.approx(0.9 - math.sqrt(0.5))  # along the diagonal
    at_center = KeepOutBall("here", np.zeros(2), 0.3)
    assert at_center.margin(tube).item() == -0.3


def unit_ball(kind: str) -> ConfidenceSets:
    """The ball of radius 1 at 0 in two dimensions, or the square around it."""
    if kind == "box":
        return box_tube(np.zeros((1, 1, 2)), np.ones((1, 1, 2)))
    var = np.ones((1, 1, 2)) if kind == "diagonal" else np.broadcast_to(np.eye(2), (1, 1, 2, 2)).copy()
    return gaussian_sets(GaussianForecast(np.zeros((1, 1, 2)), var), math.log(2 * math.pi) + 0.5)


@given(st.integers(-300, 299), st.sampled_from(["box", "diagonal", "full"]))
@example(-170, "diagonal")
@example(170, "full")
def test_a_half_space_does_not_depend_on_the_length_of_its_normal(exponent: int, kind: str) -> None:
    size, tube = 10.0**exponent, unit_ball(kind)
    for bound, safe in ((0.99, False), (1.01, True)):
        limit = HalfSpace("h", np.array([size, 0.0]), bound * size)
        assert TubeChecker([limit])(tube).safe.tolist() == [safe]
        assert limit.margin(tube).item() == pytest.approx((bound - 1) * size, rel=1e-5)
        assert bool(limit.violated(np.array([[1.0, 0.0]]))[0]) is not safe


@given(st.integers(-300, 300).filter(bool))
@example(-170)
@example(-162)
def test_an_obstacle_next_to_the_centre_is_entered_however_near_it_is(exponent: int) -> None:
    """Its direction is as long as the gap, whose square vanishes."""
    gap = 10.0**exponent
    for kind in ("box", "diagonal", "full"):
        for limit in (KeepOutBox("b", [gap, -1.0], [np.inf, 1.0]), KeepOutBall("o", [gap + 2, 0.0], 2.0)):
            checked = TubeChecker([limit])(unit_ball(kind))
            assert checked.safe.tolist() == [gap > 1], (kind, limit.name)


@given(st.integers(-300, 300), st.integers(1, 3))
def test_a_balls_distance_is_right_for_any_magnitude(exponent: int, dims: int) -> None:
    size = 10.0**exponent
    away = np.full((1, dims), size)
    for times, inside in ((0.99, False), (1.01, True)):
        ball = KeepOutBall("o", np.zeros(dims), times * size * math.sqrt(dims))
        assert ball.violated(away).tolist() == [inside]
        tube = box_tube(away[None], np.zeros((1, 1, dims)))
        assert TubeChecker([ball])(tube).safe.tolist() == [not inside]


def test_a_proof_does_not_vanish_with_the_widths_of_the_tube() -> None:
    """1e200 times 1e-170 is 1e30, though the square of 1e-170 is 0."""
    tube = box_tube(np.zeros((1, 1, 1)), np.full((1, 1, 1), 1e-170))
    steep = FeatureLimit("f", lambda x: 1e200 * x[..., 0], upper=1.0, lipschitz=1e200)
    curved = FeatureLimit("f", lambda x: x[..., 0] * 0, upper=1.0, gradient=np.zeros_like, curvature=1e300)
    assert steep.margin(tube).item() == pytest.approx(-1e30)
    wide = box_tube(np.zeros((1, 1, 1)), np.full((1, 1, 1), 1e-149))
    assert curved.margin(tube).item() == 1.0
    assert curved.margin(wide).item() == pytest.approx(1 - 50.0)


def test_a_feature_of_tiny_size_is_not_taken_for_another() -> None:
    """Its values lie below any fixed tolerance, and so do those with the other sign."""
    forecast = GaussianForecast(np.zeros((1, 1, 2)), np.ones((1, 1, 2)))
    shape = FeatureShape(
        LinearFeatures(("f",), np.array([[1e-20, 0.0]])),
        BoxShape(np.full((2, 1, 1), 1e-20), 0.0, False, (0,)),
    )
    tube = shape.sets(forecast, 1.0)
    own = FeatureLimit("f", lambda x: 1e-20 * x[..., 0], upper=2e-20)
    assert own.margin(tube).item() == pytest.approx(1e-20)
    with pytest.raises(InvalidInput, match="'f' must be this limit's"):
        FeatureLimit("f", lambda x: -1e-20 * x[..., 0], upper=2e-20).margin(tube)


def test_touching_is_allowed_and_agrees_with_violated() -> None:
    tube = box_tube(np.zeros((1, 1, 1)), np.ones((1, 1, 1)))
    for limit in (
        HalfSpace("h", np.ones(1), 1.0),
        StayIn("s", np.array([-1.0]), np.array([1.0])),
        KeepOutBox("b", np.array([1.0]), np.array([2.0])),
        KeepOutBall("o", np.array([2.0]), 1.0),
    ):
        assert limit.margin(tube).item() == 0.0
        assert not limit.violated(np.ones((1, 1))).any()
        assert limit.violated(np.full((1, 1), 1.5 if limit.name != "o" else 1.2)).all()


@pytest.mark.parametrize("kind", ["box", "diagonal", "full"])
@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_empty_tube_has_no_margin(name: str, kind: str, library: str) -> None:
    rng = np.random.default_rng(0)
    center = rng.normal(size=(2, H, D)) + 50  # far from every obstacle
    center[0, 1] = np.nan
    tube = tube_of(kind, np.asarray if library == "numpy" else torch.from_numpy, center)
    margin = np.asarray(LIMITS[name].margin(tube))
    assert np.isnan(margin[0]).all()
    assert not np.isnan(margin[1]).any()


def test_states_that_are_not_finite_violate_everything() -> None:
    states = np.full((3, 1, D), 40.0)  # outside of every obstacle
    states[0, 0, 1], states[1, 0, 2], states[2, 0, 0] = np.nan, np.inf, -np.inf
    for limit in LIMITS.values():
        assert limit.violated(states).all()
    one = np.full((1, 1), -np.inf)  # below any bound, and yet a failed simulation
    assert HalfSpace("h", np.ones(1), 1.0).violated(one).all()


class Own:
    """A user's tube of one plan and two steps: discs on a line, and no more than the two methods."""

    center, radius = np.array([[[0.0, 0.0], [2.0, 0.0]]]), 1.0

    def support(self, direction: Any) -> np.ndarray:
        return self.center @ np.asarray(direction) + self.radius * np.linalg.norm(direction)

    def box(self) -> tuple[np.ndarray, np.ndarray]:
        return self.center - self.radius, self.center + self.radius


def test_a_users_own_tube_is_checked() -> None:
    assert HalfSpace("h", np.array([0.6, 0.8]), 3.0).margin(Own()) == pytest.approx(np.array([[2.0, 0.8]]))
    assert StayIn("s", np.array([-2.0]), np.array([2.5]), axes=(0,)).margin(Own()).tolist() == [[1.0, -0.5]]
    assert KeepOutBall("o", np.array([5.0, 0.0]), 0.5).margin(Own()).tolist() == [[3.5, 1.5]]
    norms = FeatureLimit("n", norm, upper=4.0, lipschitz=1.0).margin(Own())
    assert norms == pytest.approx(np.array([[4 - math.sqrt(2), 2 - math.sqrt(2)]]))


class Corners:
    """A user's tube that is a box, in the precision that it comes in."""

    def __init__(self, lower: Any, upper: Any) -> None:
        self.lower, self.upper = lower, upper

    def support(self, direction: Any) -> Any:
        ends = [(self.upper if d > 0 else self.lower)[..., i] * int(d) for i, d in enumerate(direction) if d]
        return sum(ends[1:], ends[0])

    def box(self) -> tuple[Any, Any]:
        return self.lower, self.upper


@pytest.mark.parametrize("library", [np.asarray, torch.tensor])
@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "int64", "int16"])
def test_margins_are_those_of_doubles_whatever_the_tubes_precision(library: Any, kind: str) -> None:
    """In the tube's own precision the bounds 2.9 and 2.0003 would be rounded, and touching be safe."""
    two, zero = (library(np.full((1, 1, 1), value, kind)) for value in (2, 0))
    limits: list[tuple[Limit, float]] = [
        (HalfSpace("h", np.ones(1), 1.9997), -0.0003),
        (StayIn("s", [-1.0], [1.9997]), -0.0003),
        (KeepOutBox("b", [1.9997], [2.9]), -0.0003),
        (KeepOutBall("o", [2.5], 0.5003), -0.0003),
        (FeatureLimit("f", lambda x: x[..., 0], upper=1.9997, lipschitz=1.0), -0.0003),
        (HalfSpace("kept", np.ones(1), 2.0003), 0.0003),
    ]
    for limit, margin in limits:
        checked = TubeChecker([limit])(Corners(zero, two))
        assert float(checked.margin[0, 0, 0]) == pytest.approx(margin, rel=1e-9), limit.name
        assert bool(checked.safe[0]) is (margin > 0)


def test_a_large_number_in_single_precision_is_not_rounded_to_the_limit() -> None:
    end = np.full((1, 1, 1), 4500000.5, np.float32)
    for tube in (Corners(end - 1, end), Corners(*map(torch.from_numpy, (end - 1, end)))):
        checked = TubeChecker([HalfSpace("h", np.ones(1), 4500000.3)])(tube)
        assert float(checked.margin[0, 0, 0]) == pytest.approx(-0.2)
        assert not checked.safe[0]


@pytest.mark.parametrize("library", [np.asarray, torch.tensor])
@pytest.mark.parametrize("ends", [(np.nan, np.nan), (2.0, 1.0), (np.inf, np.inf), (-np.inf, -np.inf)])
def test_a_tube_that_is_empty_where_no_limit_looks_is_unsafe(library: Any, ends: tuple[float, float]) -> None:
    lower, upper = np.zeros((2, 3, 2)), np.ones((2, 3, 2))
    lower[1, 2, 1], upper[1, 2, 1] = ends
    for limit in (HalfSpace("h", np.array([1.0, 0.0]), 5.0), StayIn("s", [-1.0], [2.0], axes=(0,))):
        checked = TubeChecker([limit])(Corners(library(lower), library(upper)))
        assert checked.safe.tolist() == [True, False]
        assert checked.reason(1) == f"{limit.name}: nothing is known at step 3 of 3"


class Inverted(Own):
    radius = -1.0


def test_an_own_tube_whose_corners_are_swapped_is_empty() -> None:
    assert np.isnan(KeepOutBall("o", np.array([50.0, 0.0]), 0.5).margin(Inverted())).all()


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("end", [-np.inf, np.inf])
def test_a_tube_that_lies_at_infinity_keeps_no_limit(end: float, library: Any) -> None:
    """A forecast that diverged to one side is far from a limit on the other: that says nothing."""
    lost = box_tube(np.full((1, 1, 1), end), np.zeros((1, 1, 1)), library)
    away = -np.sign(end)
    limits: list[Limit] = [
        HalfSpace("h", np.array([away]), 1.0),
        StayIn("s", np.array([0.0 if end > 0 else -np.inf]), np.array([np.inf if end > 0 else 0.0])),
        KeepOutBox("b", np.array([0.0]), np.array([1.0])),
        KeepOutBall("o", np.array([0.0]), 1.0),
        FeatureLimit(
            "f", lambda x: away * x[..., 0], upper=1.0, bounds=lambda low, high: (away * low[..., 0],) * 2
        ),
    ]
    for limit in limits:
        assert np.isnan(np.asarray(limit.margin(lost))).all(), limit.name


def test_an_overflow_of_a_feature_proves_nothing() -> None:
    tube = box_tube(np.full((1, 1, 1), 5.0), np.ones((1, 1, 1)))
    above = FeatureLimit("f", np.sum, lower=0.0, bounds=lambda low, high: (low[..., 0] * np.inf,) * 2)
    assert np.isnan(above.margin(tube)).all()


def test_steps_say_where_a_limit_holds() -> None:
    tube, there = (box_tube(np.zeros((2, 4, 1)), np.ones((2, 4, 1)), to) for to in (np.asarray, torch.tensor))
    for steps, wanted in (((1, 3), [np.inf, 1, np.inf, 1]), (slice(2, None), [np.inf, np.inf, 1, 1])):
        limit = HalfSpace("h", np.ones(1), 2.0, steps=steps)
        assert limit.margin(tube).tolist() == [wanted] * 2
        assert limit.margin(there).tolist() == [wanted] * 2
        assert limit.violated(np.full((4, 1), 5.0)).tolist() == [value == 1 for value in wanted]
    # A mask would be read as the steps 0 and 1, and leave the others unchecked.
    for steps in (
        (4,),
        slice(4, None),
        slice(1, 10),
        slice(-9, None),
        ("x",),
        [False, False, True, True],
        np.arange(4) > 1,
        (1.0,),
    ):
        with pytest.raises(InvalidInput, match="steps of 'late'"):
            HalfSpace("late", np.ones(1), 2.0, steps=steps).margin(tube)
    empty = box_tube(np.full((1, 4, 1), np.nan), np.ones((1, 4, 1)))
    assert np.isnan(HalfSpace("h", np.ones(1), 2.0, steps=(1,)).margin(empty)).all()


def feature_tube() -> FeatureTube:
    tune, cal = np.random.default_rng(0).normal(size=(2, 300, 2, D))
    forecast = GaussianForecast(np.zeros((300, 2, D)), np.ones((300, 2, D)))
    features = LinearFeatures(("first", "difference"), np.array([[2.0, 0, 0], [0, 1.0, -1.0]]))
    level = PACLevel(0.1, 0.01)
    predictor = fit_tube(forecast, tune, forecast, cal, level, shape="features", features=features)
    return predictor.tube(forecast.take(slice(0, 5)))


def test_a_feature_tube_is_read_by_name() -> None:
    tube = feature_tube()
    low, high = tube.interval("difference")
    named = FeatureLimit("difference", lambda x: x[..., 1] - x[..., 2], lower=-7.0, upper=8.0)
    np.testing.assert_array_equal(named.margin(tube), np.minimum(low + 7, 8 - high))
    some = FeatureLimit("difference", lambda x: x[..., 0] - x[..., 1], upper=8.0, axes=(1, 2))
    np.testing.assert_array_equal(some.margin(tube), 8 - high)
    with pytest.raises(InvalidInput, match="'difference' must be this limit's"):
        FeatureLimit("difference", lambda x: x[..., 1] ** 2, upper=8.0).margin(tube)
    with pytest.raises(InvalidInput, match="'difference' must be this limit's"):  # the same near 0 only
        FeatureLimit("difference", lambda x: 9e3 * np.sinh((x[..., 1] - x[..., 2]) / 9e3), upper=8.0).margin(
            tube
        )


def test_a_feature_tube_knows_nothing_of_other_directions() -> None:
    tube = feature_tube()
    known = StayIn("s", np.array([-9.0]), np.array([9.0]), axes=(0,)).margin(tube)
    np.testing.assert_allclose(known, 9 - tube.support([1.0, 0, 0]), atol=1.0)
    assert (known > 0).all()
    others: list[Limit] = [
        HalfSpace("h", np.array([1.0, 1.0, 0]), 1e6),
        StayIn("s", np.array([-1e6]), np.array([1e6]), axes=(1,)),
        KeepOutBox("b", np.array([1e6]), np.array([2e6]), axes=(2,)),
        KeepOutBall("o", np.array([1e6, 0.0, 0.0]), 1.0, axes=(1, 0, 2)),
        FeatureLimit("sum", lambda x: x.sum(-1), upper=1e6, lipschitz=2.0),
        FeatureLimit("sum", lambda x: x.sum(-1), upper=1e6, gradient=np.ones_like, curvature=0.0),
    ]
    for limit in others:
        assert not (limit.margin(tube) >= 0).any(), limit


def test_a_feature_without_a_proof_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"LinearFeatures\(\('size',\), matrix\)"):
        FeatureLimit("size", norm, upper=1.0).margin(tube_of("box"))
    with pytest.raises(InvalidInput, match="given together"):
        FeatureLimit("size", norm, upper=1.0, gradient=norm)
    with pytest.raises(InvalidInput, match="lipschitz must be finite"):
        FeatureLimit("size", norm, upper=1.0, lipschitz=-1.0)
    with pytest.raises(InvalidInput, match="lower must be below upper"):
        FeatureLimit("size", norm, lipschitz=1.0)


WRONG_SHAPES: dict[str, Callable[[Any], Any]] = {
    "one number": lambda x: 0.0,
    "a plan each": lambda x: x[:, :1, 0],
    "one plan": lambda x: x[:1, :, 0],
    "an axis more": lambda x: x[..., :1],
    "booleans": lambda x: x[..., 0] > 0,
    "complex": lambda x: x[..., 0] * 1j,
    "masked": lambda x: np.ma.masked_array(x[..., 0], x[..., 0] > 0),
}


@pytest.mark.parametrize("wrong", WRONG_SHAPES.values(), ids=list(WRONG_SHAPES))
def test_what_a_feature_returns_is_not_broadcast(wrong: Callable[[Any], Any]) -> None:
    """A safe plan's number would stand for the unsafe ones'."""
    tube = box_tube(np.repeat([0.0, 9.0, 9.0], 2).reshape(3, 2, 1), np.ones((3, 2, 1)))
    first = lambda x: x[..., 0]  # noqa: E731
    limits = [
        FeatureLimit("f", wrong, upper=5.0, lipschitz=1.0),
        FeatureLimit("f", first, upper=5.0, bounds=lambda low, high: (wrong(low), wrong(low))),
        FeatureLimit("f", first, upper=5.0, bounds=lambda low, high: (first(low), wrong(high))),
    ]
    if wrong is not WRONG_SHAPES["an axis more"]:  # which is right for a gradient
        limits.append(FeatureLimit("f", first, upper=5.0, gradient=wrong, curvature=0.0))
    for limit in limits:
        with pytest.raises(InvalidInput, match=r"(value|bounds|gradient) of 'f' must be numbers of shape"):
            TubeChecker([limit])(tube)
    with pytest.raises(InvalidInput, match=r"value of 'f' must be numbers of shape \(3, 2\)"):
        limits[0].violated(np.zeros((3, 2, 1)))
    with pytest.raises(InvalidInput, match="bounds of 'f' must be two ends"):
        FeatureLimit("f", first, upper=5.0, bounds=lambda low, high: (first(low),)).margin(tube)  # type: ignore[return-value, arg-type]


def test_nan_from_a_feature_is_unsafe() -> None:
    tube, lost = tube_of("box"), lambda x: x[..., 0] * np.nan
    for limit in (
        FeatureLimit("f", lost, upper=1e9, lipschitz=1.0),
        FeatureLimit("f", norm, upper=1e9, bounds=lambda low, high: (norm(low) * 0, lost(high))),
        FeatureLimit("f", product, upper=1e9, gradient=lambda x: x * np.nan, curvature=1.0),
        FeatureLimit("f", norm, upper=1e9, lipschitz=1.0, bounds=lambda low, high: (lost(low), lost(high))),
    ):
        assert not TubeChecker([limit])(tube).safe.any()


def test_a_tubes_own_interval_must_be_of_its_plans_and_steps() -> None:
    class Broadcast(FeatureTube):
        def interval(self, name: str) -> tuple[Any, Any]:
            lower, upper = super().interval(name)
            return lower[:1], upper[:1]

    tube = feature_tube()
    parts = (tube.region, tube.score, tube.limit, tube.sound, tube.shape, tube.features)
    limit = FeatureLimit("difference", lambda x: x[..., 1] - x[..., 2], upper=8.0)
    with pytest.raises(InvalidInput, match=r"interval of 'difference' must be numbers of shape \(5, 2\)"):
        limit.margin(Broadcast(*parts))


def test_an_interval_that_is_upside_down_proves_nothing() -> None:
    limit = FeatureLimit("i", norm, upper=9.0, bounds=lambda low, high: (norm(high) + 5, norm(low)))
    assert np.isnan(limit.margin(tube_of("box"))).all()


def test_wrong_dimensions_are_refused() -> None:
    tube = tube_of("box")
    for limit, sentence in (
        (HalfSpace("h", np.ones(2), 1.0), r"direction must have shape \[3\]"),
        (StayIn("s", np.zeros(2), np.ones(2)), "reads states of 2 numbers, got 3"),
        (KeepOutBox("b", np.zeros(1), np.ones(1), axes=(7,)), "reads number 7 of the state, got states of 3"),
        (KeepOutBall("o", np.zeros(4), 1.0), "reads states of 4 numbers, got 3"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            limit.margin(tube)
    with pytest.raises(InvalidInput, match="reads states of 2 numbers, got 3"):
        HalfSpace("h", np.ones(2), 1.0).violated(np.zeros((1, 3)))
    for wrong in (
        lambda: StayIn("s", np.ones(2), np.zeros(2)),
        lambda: StayIn("s", np.full(2, -np.inf), np.full(2, np.inf)),
        lambda: StayIn("s", np.array([np.nan]), np.ones(1)),
        lambda: KeepOutBox("b", np.zeros(2), np.ones(2), axes=(1, 1)),
        lambda: KeepOutBox("b", np.zeros(2), np.ones(2), axes=(1,)),
        lambda: KeepOutBall("o", np.zeros(2), 0.0),
        lambda: KeepOutBall("o", np.zeros(2), math.nan),
        lambda: HalfSpace("h", np.zeros(2), 1.0),
        lambda: HalfSpace("h", np.array([np.nan, 1.0]), 1.0),
        lambda: HalfSpace("h", np.array([np.inf, 1.0]), 1.0),
        lambda: HalfSpace("h", np.array([1e-310, 0.0]), 1.0),
        lambda: HalfSpace("h", np.array([1e305, 0.0]), 1.0),
    ):
        with pytest.raises(InvalidInput):
            wrong()


def test_the_half_cheetahs_limits(cheetah: Environment) -> None:
    states = np.zeros((3, 1, 18))
    states[1, 0, 0], states[2, 0, 2] = 3.21, -1.6
    assert velocity_limit(cheetah).violated(states)[:, 0].tolist() == [False, True, False]
    assert no_flip(cheetah).violated(states)[:, 0].tolist() == [False, False, True]
    assert velocity_limit(cheetah, 3.3).violated(states)[:, 0].tolist() == [False, False, False]


@pytest.mark.parametrize(
    "value", ["1", "x", None, np.ones(2), np.ones(1), [1.0], 1j, 10**400, np.nan, True], ids=str
)
def test_bounds_and_radii_are_numbers(value: Any, cheetah: Environment) -> None:
    for work, name in (
        (lambda: HalfSpace("a", [1.0, 0.0], value), "bound"),
        (lambda: KeepOutBall("a", [0.0], value), "radius"),
        (lambda: FeatureLimit("a", lambda x: x[..., 0], upper=value, lipschitz=1.0), "upper"),
        (lambda: FeatureLimit("a", lambda x: x[..., 0], lower=value, lipschitz=1.0), "lower"),
        *([(lambda: velocity_limit(cheetah, value), "bound")] if value is not None else []),
        (lambda: no_flip(cheetah, value), "bound"),
    ):
        with pytest.raises(InvalidInput, match=f"{name} must be one number, got"):
            work()
    assert HalfSpace("a", [1.0, 0.0], np.array(2.0)).bound == 2.0


@pytest.mark.parametrize("limits", [None, 3, "speed", [None]], ids=str)
def test_what_is_no_limit_is_named(limits: Any) -> None:
    with pytest.raises(InvalidInput, match="limits must be"):
        TubeChecker(limits)
