"""-log f against definitions, at extreme logits and variances, on both array libraries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from pac_core import GaussianForecast, InvalidInput, LogitForecast, PACLevel, fit_sets
from pac_core.scores import fit_temperature, nll
from pac_core.sets import gaussian_sets, label_sets
from pac_core.tubes import fit_shape


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0, 3000.0])
@pytest.mark.parametrize("tau", [1.0, 0.3, 2.5])
def test_label_scores_match_scipy(dtype: type, scale: float, tau: float) -> None:
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(200, 30)) * scale).astype(dtype)
    labels = rng.integers(0, 30, size=200)
    z = tau * logits.astype(np.float64)
    expected = logsumexp(z, axis=1) - z[np.arange(200), labels]
    got = nll(LogitForecast(logits, tau), labels)
    # exp in float32 is good to a few units of 6e-8, times the size of its argument.
    room = 1e-12 if dtype == np.float64 else 1e-6
    np.testing.assert_allclose(got, expected, rtol=room, atol=room * max(1, scale))


def test_extreme_logits_stay_finite() -> None:
    huge = np.array([[1e30, 0.0], [-1e30, -1e30], [800.0, 799.0], [-800.0, -801.0]], dtype=np.float32)
    np.testing.assert_allclose(
        nll(LogitForecast(huge), [0, 1, 1, 0]),
        [0, math.log(2), 1 + math.log1p(math.exp(-1)), math.log1p(math.exp(-1))],
        rtol=1e-6,
    )


def test_probability_zero_scores_infinity() -> None:
    forecast = LogitForecast.from_probabilities(np.array([[1.0, 0.0]]))
    assert nll(forecast, [1]).tolist() == [np.inf]
    assert nll(forecast, [0]).tolist() == [0.0]


@given(st.integers(1, 7), st.integers(1, 1500))
def test_blocks_and_threads_change_no_bit(threads: int, rows: int) -> None:
    """A row's score depends on the row alone, however the rows are blocked."""
    rng = np.random.default_rng(rows)
    logits = rng.normal(size=(rows, 700)).astype(np.float32)
    labels = rng.integers(0, 700, size=rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", str(threads))
        together = nll(LogitForecast(logits), labels)
    alone = [nll(LogitForecast(logits[i : i + 1]), labels[i : i + 1]).item() for i in range(0, rows, 137)]
    assert together[::137].tolist() == alone


def test_gaussian_scores_match_scipy() -> None:
    rng = np.random.default_rng(0)
    mean, truth = rng.normal(size=(2, 5, 3))
    root = rng.normal(size=(5, 3, 3))
    cov = root @ root.transpose(0, 2, 1) + np.eye(3)
    expected = [-multivariate_normal(m, c).logpdf(y) for m, c, y in zip(mean, cov, truth, strict=True)]
    np.testing.assert_allclose(nll(GaussianForecast(mean, cov), truth), expected)
    var = rng.uniform(0.1, 2, size=(5, 3))
    expected = -norm(mean, np.sqrt(var)).logpdf(truth).sum(axis=1)
    np.testing.assert_allclose(nll(GaussianForecast(mean, var), truth), expected)


def test_a_horizon_adds_its_steps() -> None:
    rng = np.random.default_rng(0)
    mean, truth, var = rng.normal(size=(5, 4, 3)), rng.normal(size=(5, 4, 3)), rng.uniform(1, 2, (5, 4, 3))
    steps = [nll(GaussianForecast(mean[:, t], var[:, t]), truth[:, t]) for t in range(4)]
    np.testing.assert_allclose(nll(GaussianForecast(mean, var), truth), np.sum(steps, axis=0))


@pytest.mark.parametrize("var", [1e-300, 1e-30, 1e300])
def test_extreme_variances(var: float) -> None:
    sigma = math.sqrt(var)
    forecast = GaussianForecast(np.zeros((1, 1)), np.full((1, 1), var))
    expected = 2.0 + math.log(sigma) + 0.5 * math.log(2 * math.pi)
    assert nll(forecast, np.array([[2 * sigma]])).item() == pytest.approx(expected)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("mark", [np.inf, -np.inf])
def test_a_failed_unit_scores_infinity(full: bool, mark: float) -> None:
    var = np.broadcast_to(np.eye(2), (3, 2, 2)) if full else np.ones((3, 2))
    truth = np.zeros((3, 2))
    truth[1, 0] = mark
    scores = nll(GaussianForecast(np.zeros((3, 2)), var), truth)
    assert np.isinf(scores).tolist() == [False, True, False]
    assert scores[1] > 0


@pytest.mark.parametrize("full", [False, True])
def test_torch_gives_the_same_numbers(full: bool) -> None:
    rng = np.random.default_rng(0)
    mean, truth = rng.normal(size=(2, 6, 4, 3))
    var = rng.uniform(0.5, 2, size=(6, 4, 3))
    var = var[..., None] * np.eye(3) + 0.1 if full else var
    ours = nll(GaussianForecast(mean, var), truth)
    theirs = nll(GaussianForecast(torch.from_numpy(mean), torch.from_numpy(var)), torch.from_numpy(truth))
    assert isinstance(theirs, torch.Tensor)
    np.testing.assert_allclose(theirs.numpy(), ours, rtol=1e-12)


def test_accumulated_variances_are_running_sums() -> None:
    forecast = GaussianForecast(np.zeros((1, 3, 1)), np.array([[[1.0], [2.0], [4.0]]]))
    assert forecast.accumulated().var.ravel().tolist() == [1, 3, 7]
    with pytest.raises(InvalidInput, match="only a horizon"):
        GaussianForecast(np.zeros((1, 3)), np.ones((1, 3))).accumulated()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LogitForecast(np.zeros(3)), r"logits must have shape \[N, K\], got \(3,\)"),
        (lambda: LogitForecast(np.zeros((0, 3))), "logits must not be empty"),
        (lambda: LogitForecast(np.zeros((2, 3), dtype=int)), "logits must be float16"),
        (lambda: LogitForecast(np.array([[None, 1.0]])), "plain values, got Python objects"),
        (lambda: LogitForecast(np.zeros((2, 3)), tau=0), "tau must be"),
        (lambda: LogitForecast(np.zeros((2, 3)), tau=math.nan), "tau must be"),
        (lambda: nll(LogitForecast(np.array([[0.0, np.nan]])), [0]), "row 0"),
        (lambda: nll(LogitForecast(np.array([[0.0, np.inf]])), [0]), "row 0"),
        (lambda: nll(LogitForecast(np.full((1, 2), -np.inf)), [0]), "row 0"),
        (lambda: nll(LogitForecast(np.zeros((2, 3))), [0, 3]), r"labels must lie in 0\.\.2, got 3"),
        (lambda: nll(LogitForecast(np.zeros((2, 3))), [0, -1]), r"labels must lie in 0\.\.2, got -1"),
        (lambda: nll(LogitForecast(np.zeros((2, 3))), [0]), "one entry per row, got 1 for 2"),
        (lambda: nll(LogitForecast(np.zeros((2, 3))), [0.0, 1.0]), "labels must be whole numbers"),
        (
            lambda: LogitForecast.from_probabilities(np.array([[0.7, 0.7]])),
            "must sum to 1 within 0.001, got 1.4 in row 0",
        ),
        (lambda: LogitForecast.from_probabilities(np.array([[1.5, -0.5]])), r"floats in \[0, 1\]"),
        (lambda: GaussianForecast(np.zeros(3), np.ones(3)), r"mean must have shape \[B, D\],"),
        (lambda: GaussianForecast(np.zeros((2, 3)), np.ones((2, 2))), "var must have the shape of mean"),
        (
            lambda: nll(GaussianForecast(np.zeros((2, 1)), np.zeros((2, 1))), np.zeros((2, 1))),
            "var must be finite",
        ),
        (
            lambda: nll(GaussianForecast(np.zeros((2, 1)), np.ones((2, 1))), np.zeros((2, 2))),
            "truth must have",
        ),
        (
            lambda: nll(GaussianForecast(np.zeros((1, 1)), np.ones((1, 1))), np.array([[np.nan]])),
            "truth must not contain NaN",
        ),
        (
            lambda: nll(
                GaussianForecast(np.zeros((1, 2)), np.array([[[1.0, 2.0], [2.0, 1.0]]])), np.zeros((1, 2))
            ),
            "positive definite",
        ),
        (lambda: nll("forecast", [0]), "forecast must be a LogitForecast"),  # type: ignore[arg-type]
        (lambda: GaussianForecast(np.zeros((1, 3, 1)), np.ones((1, 3, 1))).tempered([1.0]), "one per step"),
    ],
)
def test_bad_forecasts_are_named(build: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build()  # type: ignore[operator]


@pytest.mark.parametrize("made", [torch.Tensor.bfloat16, torch.Tensor.float], ids=["bfloat16", "float32"])
def test_a_forecast_may_be_of_any_precision_and_is_taken_at_its_word(made: Any) -> None:
    """Every bfloat16 is a float32 and a float64, so nothing is rounded."""
    rng = np.random.default_rng(0)
    logits, mean = (made(torch.from_numpy(rng.normal(size=(20, 3)))) for _ in range(2))
    labels, truth = rng.integers(0, 3, 20), rng.normal(size=(20, 3))
    assert np.array_equal(
        nll(LogitForecast(logits), labels), nll(LogitForecast(logits.float().numpy()), labels)
    )
    forecast = GaussianForecast(mean, torch.ones_like(mean))
    wide = GaussianForecast(mean.double().numpy(), np.ones((20, 3)))
    np.testing.assert_allclose(nll(forecast, truth).numpy(), nll(wide, truth), rtol=1e-14)
    np.testing.assert_array_equal(
        nll(wide, made(torch.from_numpy(truth))), nll(wide, made(torch.from_numpy(truth)).double())
    )
    predictor = fit_sets(forecast, truth, forecast, truth, PACLevel(0.5, 0.1))
    assert predictor.sets(forecast).contains(truth).sum() >= 10


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[::-1].copy()[::-1],
        lambda t: t.astype(">f8"),
        lambda t: t.astype(np.longdouble),
        lambda t: t.tolist(),
    ],
    ids=["backwards", "big-endian", "long double", "list"],
)
def test_truths_of_any_layout_go_with_torch_forecasts(change: Any) -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(20, 2))
    forecast = GaussianForecast(torch.zeros(20, 2).double(), torch.ones(20, 2).double())
    assert torch.equal(nll(forecast, change(truth)), nll(forecast, truth))
    assert torch.equal(
        gaussian_sets(forecast, 3.0).contains(change(truth)), gaussian_sets(forecast, 3.0).contains(truth)
    )
    with pytest.raises(InvalidInput, match="truth must"):
        nll(forecast, None)


@pytest.mark.parametrize("tau", [None, "2", [1.0, 2.0], np.ones((2, 2)), 10**400, np.nan, 0.0, True], ids=str)
def test_a_temperature_is_a_number_above_0(tau: Any) -> None:
    logits, gaussian = LogitForecast(np.zeros((2, 3))), GaussianForecast(np.zeros((2, 3)), np.ones((2, 3)))
    for work in (
        lambda: LogitForecast(np.zeros((2, 3)), tau),
        lambda: logits.tempered(tau),
        lambda: gaussian.tempered(tau),
    ):
        with pytest.raises(InvalidInput, match="tau must"):
            work()


@pytest.mark.parametrize("forecast", [None, "x", np.zeros((20, 3)), 3], ids=str)
def test_what_is_no_forecast_is_named(forecast: Any) -> None:
    good, labels, level = LogitForecast(np.zeros((20, 3))), [0] * 20, PACLevel(0.5, 0.1)
    for work in (
        lambda: nll(forecast, labels),
        lambda: fit_sets(good, labels, forecast, labels, level, score="plain"),
        lambda: fit_sets(forecast, labels, good, labels, level, score="plain"),
        lambda: fit_shape(forecast, labels, level),
        lambda: fit_temperature(forecast, labels),
        lambda: gaussian_sets(forecast, 1.0),
        lambda: label_sets(forecast, 1.0),
    ):
        with pytest.raises(InvalidInput, match=r"forecast must be a .*Forecast, got"):
            work()
