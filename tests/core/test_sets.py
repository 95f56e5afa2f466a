"""Sets against their definition, point by point, and one geometry on two array libraries."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pac_program import on_another_cpu

from pac_core import GaussianForecast, InvalidInput, LogitForecast
from pac_core.forecasts import EXACT_TO
from pac_core.scores import nll
from pac_core.sets import Boxes, ConfidenceSets, Ellipsoids, LabelSets, gaussian_sets, label_sets
from pac_core.sets.kinds import widen_for_labels

ONE = np.array([True])


def gaussian(full: bool, shape: tuple[int, ...] = (4, 3), seed: int = 0) -> GaussianForecast:
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=shape)
    if not full:
        return GaussianForecast(mean, rng.uniform(0.2, 2, size=shape))
    root = rng.normal(size=(*shape, shape[-1]))
    return GaussianForecast(mean, root @ np.swapaxes(root, -1, -2) + 0.1 * np.eye(shape[-1]))


@given(
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    scale=st.sampled_from([1e-4, 1e-2, 1.0, 30.0, 3000.0]),
    tau=st.floats(0.2, 5),
    seed=st.integers(0, 10**6),
)
def test_membership_is_score_at_most_t_to_the_last_bit(
    dtype: Any, scale: float, tau: float, seed: int
) -> None:
    """T, once widened, is a score itself, so every rounding slip would show."""
    rng = np.random.default_rng(seed)
    forecast = LogitForecast((rng.normal(size=(20, 7)) * scale).astype(dtype), tau)
    scores = np.stack([nll(forecast, np.full(20, label)) for label in range(7)], axis=1)
    for edge in (*rng.choice(scores.ravel(), 5), *forecast.normaliser[1][:3], 0.0):
        near = 2 * edge - widen_for_labels(edge)
        for limit in (near, np.nextafter(near, -np.inf), np.nextafter(near, np.inf), edge):
            member = label_sets(forecast, float(limit)).member
            assert (member == (scores <= widen_for_labels(float(limit)))).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("tau", [1.0, 0.37, 30.0])
def test_the_normaliser_is_as_exact_as_is_proved(dtype: type, tau: float) -> None:
    """Rows whose plain sum lies at both ends of the range in which it is trusted, and beyond."""
    rng = np.random.default_rng(0)
    middle = np.linspace(-55, 75, 400)[:, None] - np.log(200)
    wanted = np.where(np.arange(200) % 3, middle, middle - rng.exponential(30, size=(400, 200)))
    logits = np.clip((wanted + rng.normal(size=wanted.shape)) / tau, -6e4, 6e4).astype(dtype)
    shift, log = LogitForecast(logits, tau).normaliser
    exact = tau * logits.astype(np.longdouble)
    exact = np.log(np.exp(exact - exact.max(axis=1, keepdims=True)).sum(axis=1)) + exact.max(axis=1)
    assert 0 < np.count_nonzero(shift) < len(shift), "both ways of computing it must be met"
    assert abs(shift + log - exact).max() < (1e-12 if dtype == np.float64 else EXACT_TO)


def test_probabilities_have_the_same_scores_on_another_cpu(tmp_path: Path) -> None:
    code = """
import sys
import numpy as np
from pac_core import LogitForecast
from pac_core.scores import nll
p = np.random.default_rng(0).dirichlet(np.full(6, 0.5), size=9999).astype(np.float32)
np.save(sys.argv[1], nll(LogitForecast.from_probabilities(p), np.zeros(9999, int)))
"""
    answer = on_another_cpu("-c", code, tmp_path / "there.npy")
    assert answer.returncode == 0, answer.stderr
    subprocess.run([sys.executable, "-c", code, tmp_path / "here.npy"], check=True)
    assert np.load(tmp_path / "there.npy") == pytest.approx(
        np.load(tmp_path / "here.npy"), rel=1e-14, abs=1e-14
    )


def test_nearly_singular_covariances_have_the_same_scores_on_another_cpu(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    turned = np.linalg.qr(rng.normal(size=(200, 6, 6)))[0]
    var = (turned * np.geomspace(1, 1e-11, 6)) @ np.swapaxes(turned, -1, -2)
    mean, truth = rng.normal(size=(2, 200, 6))
    var = (var + np.swapaxes(var, -1, -2)) / 2
    np.savez(tmp_path / "in.npz", mean=mean, var=var, truth=truth)
    code = """
import sys
import numpy as np
from pac_core import GaussianForecast
from pac_core.scores import nll
with np.load(sys.argv[1]) as given:
    np.save(sys.argv[2], nll(GaussianForecast(given["mean"], given["var"]), given["truth"]))
"""
    answer = on_another_cpu("-c", code, tmp_path / "in.npz", tmp_path / "there.npy")
    assert answer.returncode == 0, answer.stderr
    here = nll(GaussianForecast(mean, var), truth)
    assert np.load(tmp_path / "there.npy") == pytest.approx(here, rel=1e-13)
    torches = nll(GaussianForecast(torch.as_tensor(mean), torch.as_tensor(var)), torch.as_tensor(truth))
    assert torches.numpy() == pytest.approx(here, rel=1e-13)


def test_no_probability_in_float16_has_a_log_that_rounds_by_chance() -> None:
    """The log of each lies further from the middle of two float16 than any CPU's float64 log is off."""
    every = np.arange(1, 0x3C01, dtype=np.uint16).view(np.float16)
    exact = np.log(every.astype(np.float64))
    near = exact.astype(np.float16)
    for side in (-np.inf, np.inf):
        middle = (near.astype(np.float64) + np.nextafter(near, np.float16(side)).astype(np.float64)) / 2
        assert (abs(exact - middle) > 1e-12 * np.maximum(abs(exact), 1e-9)).all()
    assert (LogitForecast.from_probabilities(np.stack([every, 1 - every], axis=1)).logits[:, 0] == near).all()


@given(st.floats(-5, 40), st.floats(0, 10))
def test_sets_grow_with_t(low: float, more: float) -> None:
    forecast = LogitForecast(np.random.default_rng(0).normal(size=(30, 6)) * 3)
    small, large = label_sets(forecast, low), label_sets(forecast, low + more)
    assert not (small.member & ~large.member).any()
    inner, outer = (gaussian_sets(gaussian(True), t) for t in (low, low + more))
    assert not (np.nan_to_num(inner.size()) > np.nan_to_num(outer.size())).any()


def test_label_sets_by_eye() -> None:
    forecast = LogitForecast.from_probabilities(np.array([[0.6, 0.3, 0.1], [0.4, 0.3, 0.3]]))
    sets = label_sets(forecast, -math.log(0.45))
    assert sets.member.tolist() == [[True, False, False], [False, False, False]]
    assert sets.size().tolist() == [1, 0]
    assert sets.empty.tolist() == [False, True]
    assert sets.contains([0, 0]).tolist() == [True, False]


def test_the_paper_interval() -> None:
    """C_T = mu +- sigma sqrt(2 (T - log(sigma sqrt(2 pi)))), appendix C of the paper."""
    mean, sigma, limit = 1.5, 0.7, 2.0
    lower, upper = gaussian_sets(GaussianForecast(np.array([[mean]]), np.array([[sigma**2]])), limit).box()
    half = sigma * math.sqrt(2 * (limit - math.log(sigma * math.sqrt(2 * math.pi))))
    assert lower.item() == pytest.approx(mean - half)
    assert upper.item() == pytest.approx(mean + half)


def root_of(sets: ConfidenceSets) -> np.ndarray:
    """`[B, D, D]` what maps the unit ball to each ellipsoid, around its centre."""
    forecast, radius = sets.region.forecast, sets.region.radius  # type: ignore[union-attr]
    full = forecast.var if forecast.full else forecast.var[..., None] * np.eye(forecast.var.shape[-1])
    return radius[..., None, None] * np.linalg.cholesky(full)


@pytest.mark.parametrize("full", [False, True])
def test_axes_reach_the_border_and_give_the_paper_size(full: bool) -> None:
    forecast, limit = gaussian(full), 6.0
    sets = gaussian_sets(forecast, limit)
    axes = root_of(sets)
    for column in range(3):
        border = nll(forecast, forecast.mean + axes[..., column])
        np.testing.assert_allclose(border, limit, rtol=2e-9)  # T is widened by a billionth
    np.testing.assert_allclose(sets.size(), np.linalg.norm(axes, axis=(1, 2)))


@pytest.mark.parametrize("full", [False, True])
def test_support_and_box_are_touched_and_never_left(full: bool) -> None:
    forecast = gaussian(full)
    sets = gaussian_sets(forecast, 6.0)
    rng = np.random.default_rng(1)
    ball = rng.normal(size=(20_000, 3))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    surface = forecast.mean[:, None] + np.einsum("bij,nj->bni", root_of(sets), ball)
    direction = np.array([0.3, -1.0, 2.0])
    most = (surface @ direction).max(axis=1)
    support = sets.support(direction)
    assert (most <= support + 1e-9).all()
    np.testing.assert_allclose(most, support, rtol=0.01)  # 20,000 points come this near to the tip
    lower, upper = sets.box()
    assert (surface >= lower[:, None] - 1e-9).all()
    assert (surface <= upper[:, None] + 1e-9).all()
    np.testing.assert_allclose(surface.max(axis=1), upper, rtol=0.01, atol=0.01)


def test_sizes_by_eye() -> None:
    """A sphere of radius 2 in 3 dimensions, and a box of half-widths 1, 2, 3."""
    forecast = GaussianForecast(np.zeros((1, 3)), np.ones((1, 3)))
    ball = ConfidenceSets(
        Ellipsoids(forecast, np.array([4.0])), lambda truth: forecast.mahalanobis2(truth), 4.0, ONE, (1, 3)
    )
    assert ball.size().item() == pytest.approx(2 * math.sqrt(3))
    assert ball.normalised_size([2.0, 2.0, 2.0]).item() == pytest.approx(1)
    reach = np.array([[1.0, 2.0, 3.0]])
    box = ConfidenceSets(
        Boxes(np.zeros((1, 3)), -reach, reach), lambda truth: abs(truth).max(axis=-1), 1.0, ONE, (1, 3)
    )
    assert box.size().item() == pytest.approx(math.sqrt(14))
    assert box.support([1.0, -1.0, 0.0]).item() == 3


@pytest.mark.parametrize("shape", [(4, 3), (4, 2, 3)])
def test_empty_sets_are_empty_not_points(shape: tuple[int, ...]) -> None:
    forecast = gaussian(False, shape)
    sets = gaussian_sets(forecast, -50.0)
    assert sets.empty.all()
    assert not sets.contains(forecast.mean).any()
    assert (sets.size() == 0).all()
    assert np.isnan(sets.support([1.0, 0.0, 0.0])).all()
    assert np.isnan(sets.box()[0]).all()
    assert not (sets.support([1.0, 0.0, 0.0]) <= 1e9).any()


def test_nan_is_never_contained() -> None:
    forecast = gaussian(False)
    broken = GaussianForecast(np.full((4, 3), np.nan), forecast.var)
    sets = gaussian_sets(broken, 50.0)
    assert not sets.contains(forecast.mean).any()
    assert not (sets.support([1.0, 0.0, 0.0]) <= 1e9).any()
    assert not gaussian_sets(forecast, 50.0).contains(np.full((4, 3), np.nan)).any()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(4, 3), (4, 5, 3)])
def test_numpy_and_torch_agree(full: bool, shape: tuple[int, ...]) -> None:
    ours = gaussian(full, shape)
    theirs = GaussianForecast(torch.from_numpy(ours.mean), torch.from_numpy(ours.var))
    truth = ours.mean + 0.5
    a, b = gaussian_sets(ours, 20.0), gaussian_sets(theirs, 20.0)
    direction = np.array([0.3, -1.0, 2.0])
    for one, other in (
        (a.contains(truth), b.contains(torch.from_numpy(truth))),
        (a.support(direction), b.support(torch.from_numpy(direction))),
        (a.size(), b.size()),
        (a.normalised_size(np.ones(3)), b.normalised_size(np.ones(3))),
        (a.box()[1], b.box()[1]),
        (a.empty, b.empty),
    ):
        assert isinstance(other, torch.Tensor)
        np.testing.assert_allclose(other.numpy(), one, rtol=1e-10)


@pytest.mark.parametrize("full", [False, True])
def test_single_precision_forecasts_are_scored_in_double(full: bool) -> None:
    """Calibration in numpy and sets in torch see the same numbers, so they agree to the last bit."""
    ours = gaussian(full, (500, 5, 3))
    mean, var = ours.mean.astype(np.float32) + np.float32(1e4), ours.var.astype(np.float32)
    truth = mean.astype(np.float64) + 1.3 * np.random.default_rng(1).normal(size=mean.shape)
    scores = nll(GaussianForecast(mean, var), truth)
    tube = gaussian_sets(
        GaussianForecast(torch.from_numpy(mean), torch.from_numpy(var)), float(np.median(scores))
    )
    assert tube.contains(torch.from_numpy(truth)).sum() == 250
    assert tube.support([1.0, 0.0, 0.0]).dtype == torch.float64


@pytest.mark.parametrize(
    "break_it",
    [
        lambda mean, var: mean.__setitem__((1, 2, 1), np.nan),
        lambda mean, var: mean.__setitem__((1, 2, 1), -np.inf),
        lambda mean, var: var.__setitem__((1, 2, 1), np.nan),
        lambda mean, var: var.__setitem__((1, 2, 1), -1.0),
        lambda mean, var: var.__setitem__((1, 2, 1), 0.0),
    ],
)
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_one_broken_number_empties_the_whole_tube(break_it: Any, library: Any) -> None:
    ours = gaussian(False, (3, 4, 2))
    break_it(ours.mean, ours.var)
    tube = gaussian_sets(GaussianForecast(library(ours.mean), library(ours.var)), 50.0)
    assert tube.empty.tolist() == [False, True, False]
    assert not tube.contains(library(np.zeros((3, 4, 2))))[1]
    for direction in ([1.0, 0.0], [0.0, -1.0]):
        assert np.isnan(np.asarray(tube.support(direction)[1])).all()
    assert np.isnan(np.asarray(tube.box()[1][1])).all()
    assert tube.size()[1] == 0


@pytest.mark.parametrize(
    "cov",
    [
        [[1.0, 2.0], [2.0, 1.0]],  # indefinite
        [[1.0, 1.8], [-1.8, 1.0]],  # not symmetric
        [[1.0, 0.0], [0.5, 1.0]],  # a Cholesky factor, by mistake
        np.kron(np.eye(2), [[1.0, 2.0], [2.0, 1.0]]),  # indefinite with a positive determinant
        [[1e6, 0.0, 0.0], [0.0, 1e-6, 9e-7], [0.0, -9e-7, 1e-6]],  # uneven, in units that hide it
        [[np.nan, 0.0], [0.0, 1.0]],
    ],
)
def test_what_is_no_covariance_is_refused_and_has_no_set(cov: Any) -> None:
    matrix = np.asarray(cov)[None]
    forecast = GaussianForecast(np.zeros((1, matrix.shape[-1])), matrix)
    with pytest.raises(InvalidInput, match="positive definite covariances, got others in 1 units"):
        nll(forecast, np.zeros((1, matrix.shape[-1])))
    assert gaussian_sets(forecast, 50.0).empty.all()


def test_shapes_that_do_not_fit_are_named() -> None:
    sets = gaussian_sets(gaussian(False), 20.0)
    for shape in ((1, 3), (4, 1), (4,), (4, 4, 3)):
        with pytest.raises(InvalidInput, match="truth must have shape"):
            sets.contains(np.zeros(shape))
    with pytest.raises(InvalidInput, match="truth must be numbers"):
        sets.contains(np.full((4, 3), "x"))
    with pytest.raises(InvalidInput, match="must not be masked"):
        sets.contains(np.ma.masked_array(np.zeros((4, 3)), True))
    with pytest.raises(InvalidInput, match=r"direction must have shape \[3\], got \(1,\)"):
        sets.support([1.0])


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_sound_and_unsound_covariances_side_by_side(library: Any) -> None:
    good = gaussian(True, (3, 2, 2))
    good.var[1, 1] = [[1.0, 2.0], [2.0, 1.0]]
    forecast = GaussianForecast(library(good.mean), library(good.var))
    assert forecast.sound().tolist() == [True, False, True]
    assert gaussian_sets(forecast, 50.0).empty.tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_of_ordinary_size_is_sound(dtype: torch.dtype) -> None:
    forecast = GaussianForecast(
        torch.full((2, 20, 18), 200.0, dtype=dtype), torch.full((2, 20, 18), 300.0, dtype=dtype)
    )
    assert forecast.sound().all()
    assert not gaussian_sets(forecast, 5000.0).empty.any()


def test_confidence_sets_travel_between_processes() -> None:
    sets = gaussian_sets(gaussian(True), 20.0)
    again = pickle.loads(pickle.dumps(sets))
    assert again.support([1.0, 0.0, 0.0]).tolist() == sets.support([1.0, 0.0, 0.0]).tolist()


@pytest.mark.parametrize("wrong", [None, "3", float("nan"), True])
def test_bad_thresholds_are_named(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="threshold must be"):
        label_sets(LogitForecast(np.zeros((1, 2))), wrong)  # type: ignore[arg-type]


def test_labels_outside_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"labels must lie in 0\.\.1, got 2"):
        LabelSets(np.ones((2, 2), dtype=bool)).contains([0, 2])
