"""tau against its definition: the most likely one, the closed form, and sums that merge exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from pac_core import GaussianForecast, InvalidInput, LogitForecast
from pac_core.errors import NoTemperature
from pac_core.scores import fit_temperature


def draw(n: int, classes: int, true_tau: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels drawn from softmax(true_tau * logits)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, classes)) * 2
    labels = (true_tau * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, labels


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("true_tau", [0.2, 1.0, 3.0])
def test_is_the_minimum_of_the_likelihood(dtype: type, true_tau: float) -> None:
    logits, labels = draw(9000, 12, true_tau)
    logits = logits.astype(dtype)
    z = logits.astype(np.float64)

    def slope(tau: float) -> float:
        weights = np.exp(tau * z - logsumexp(tau * z, axis=1, keepdims=True))
        return float(((weights * z).sum(axis=1) - z[np.arange(len(z)), labels]).mean())

    tau = fit_temperature(LogitForecast(logits), labels).tau
    assert slope(tau * (1 - 1e-8)) < 0 < slope(tau * (1 + 1e-8))
    assert tau == pytest.approx(true_tau, rel=0.1)


def test_starting_at_the_optimum_stays_there() -> None:
    for seed in range(60):
        logits, labels = draw(60, 3, 1.0, seed)
        tau = fit_temperature(LogitForecast(logits), labels).tau
        again = fit_temperature(LogitForecast(logits, tau), labels).tau
        assert again == pytest.approx(1, abs=1e-8)


def test_starts_from_a_tempered_forecast() -> None:
    logits, labels = draw(500, 5, 0.7)
    plain = fit_temperature(LogitForecast(logits), labels)
    again = fit_temperature(LogitForecast(logits, tau=4.0), labels)
    assert again.tau * 4 == pytest.approx(plain.tau, rel=1e-8)
    assert fit_temperature(plain(LogitForecast(logits)), labels).tau == pytest.approx(1, rel=1e-8)


@given(scale=st.floats(1e-3, 1e3), tau=st.floats(0.3, 3))
def test_scale_of_the_logits_only_moves_tau(scale: float, tau: float) -> None:
    logits, labels = draw(300, 4, tau)
    base = fit_temperature(LogitForecast(logits), labels).tau
    assert fit_temperature(LogitForecast(logits * scale), labels).tau * scale == pytest.approx(base, rel=1e-7)


def test_labels_of_probability_zero_elsewhere_do_no_harm() -> None:
    logits, labels = draw(300, 4, 1.0)
    wider = np.concatenate([logits, np.full((300, 1), -np.inf)], axis=1)
    with_zero = fit_temperature(LogitForecast(wider), labels).tau
    assert with_zero == pytest.approx(fit_temperature(LogitForecast(logits), labels).tau, rel=1e-9)


def test_no_finite_temperature_is_refused() -> None:
    logits, _ = draw(100, 3, 1.0)
    with pytest.raises(NoTemperature, match="every label is the most probable one"):
        fit_temperature(LogitForecast(logits), logits.argmax(axis=1))
    with pytest.raises(NoTemperature, match="carry no information about the labels"):
        fit_temperature(LogitForecast(logits), logits.argmin(axis=1))
    with pytest.raises(NoTemperature):
        fit_temperature(LogitForecast(np.zeros((5, 3))), [0, 1, 2, 0, 1])


def test_bad_logits_are_named() -> None:
    with pytest.raises(InvalidInput, match="NaN"):
        fit_temperature(LogitForecast(np.array([[0.0, np.nan], [1.0, 0.0]])), [0, 1])
    with pytest.raises(InvalidInput, match="true label must be finite"):
        fit_temperature(LogitForecast(np.array([[0.0, -np.inf], [1.0, 0.0]])), [1, 1])


@pytest.mark.parametrize("full", [False, True])
def test_closed_form_maximises_the_gaussian_likelihood(full: bool) -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(400, 3)) * 1.7
    var = np.broadcast_to(np.diag([0.5, 1.0, 2.0]), (400, 3, 3)) if full else np.full((400, 3), 0.8)
    forecast = GaussianForecast(np.zeros((400, 3)), var)
    from pac_core.scores import nll

    best = minimize_scalar(
        lambda log_tau: nll(forecast.tempered(np.exp(log_tau)), truth).mean(), bracket=(-2, 2), tol=1e-10
    )
    assert fit_temperature(forecast, truth).tau == pytest.approx(np.exp(best.x), rel=1e-6)


def test_one_temperature_per_step() -> None:
    mean, var = np.zeros((2, 3, 1)), np.ones((2, 3, 1))
    truth = np.array([[[1.0], [2.0], [4.0]], [[-1.0], [-2.0], [-4.0]]])
    fitted = fit_temperature(GaussianForecast(mean, var), truth)
    assert fitted.tau.tolist() == [1, 1 / 4, 1 / 16]
    assert fitted(GaussianForecast(mean, var)).var[0].ravel().tolist() == [1, 4, 16]


def test_exact_model_gets_a_finite_temperature() -> None:
    fitted = fit_temperature(GaussianForecast(np.zeros((3, 1)), np.ones((3, 1))), np.zeros((3, 1)))
    assert 1 < fitted.tau < np.inf


def test_failures_are_left_out_and_only_failures_refused() -> None:
    rng = np.random.default_rng(0)
    forecast = GaussianForecast(rng.normal(size=(90, 4, 2)), rng.uniform(0.1, 3, size=(90, 4, 2)))
    truth = rng.normal(size=(90, 4, 2))
    truth[7] = np.inf
    kept = np.delete(np.arange(90), 7)
    fitted, other = (
        fit_temperature(forecast, truth),
        fit_temperature(forecast.take(kept[::-1]), truth[kept[::-1]]),
    )
    assert (fitted.tau.tolist(), fitted.n) == (other.tau.tolist(), 89), "to the last bit, in any order"
    with pytest.raises(InvalidInput, match="did not fail"):
        fit_temperature(forecast, np.full((90, 4, 2), np.inf))


def test_torch_forecasts_are_fitted_too() -> None:
    forecast = GaussianForecast(torch.zeros(4, 2, 1), torch.ones(4, 2, 1))
    fitted = fit_temperature(forecast, 2 * torch.ones(4, 2, 1))
    assert fitted.tau.tolist() == [0.25, 0.25]
    assert isinstance(fitted(forecast).var, torch.Tensor)
