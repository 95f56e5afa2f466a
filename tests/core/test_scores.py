"""-log f against definitions, at extreme logits and variances, on both array libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

from pac_core import GaussianForecast, InvalidInput, LogitForecast, nll


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
        (lambda: GaussianForecast(np.zeros(3), np.ones(3)), r"mean must have shape \[B, D\] or"),
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
