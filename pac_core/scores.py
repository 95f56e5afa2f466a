"""The paper's nonconformity score, -log f(y|x), larger is worse; and temperatures by maximum likelihood."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from pac_core.arrays import Array, Floats, check_labels, convert_like, run_over_rows
from pac_core.errors import InvalidInput, NoTemperature
from pac_core.forecasts import GaussianForecast, LogitForecast, check_forecast, check_tau, drop_failed


def nll(forecast: LogitForecast | GaussianForecast, truth: Any) -> Array:
    """`[N]` -log f(y|x), summed over the steps of a horizon.

    truth: labels `[N]`, or of the shape of the mean, infinite (score +inf) where the simulation failed

    >>> forecast = LogitForecast.from_probabilities(np.array([[0.75, 0.25], [0.5, 0.5]]))
    >>> np.exp(-nll(forecast, [0, 1])).round(12).tolist()
    [0.75, 0.5]
    """
    if isinstance(forecast, LogitForecast):
        labels = check_labels("labels", truth, *forecast.logits.shape)
        chosen = np.take_along_axis(forecast.logits, labels[:, None], axis=1)[:, 0]
        return label_nll(forecast, chosen)
    truth = check_forecast(forecast).check(truth)
    return gaussian_nll(forecast.wide(), truth)


def label_nll(forecast: LogitForecast, chosen: Any) -> Any:
    """`[N]` the score of a label with logit `chosen` `[N]` in each row, in float64."""
    shift, log = forecast.normaliser
    return log + (shift - forecast.tau * chosen.astype(np.float64))


def gaussian_nll(forecast: GaussianForecast, truth: Array) -> Array:
    """`[B]` the score of `truth`, unchecked: NaN where the forecast is not Gaussian."""
    xp = array_namespace(forecast.mean)
    step = 0.5 * (forecast.mahalanobis2(truth) + volume_term(forecast))
    return xp.sum(step, axis=-1) if step.ndim == 2 else step


def volume_term(forecast: GaussianForecast) -> Array:
    """`[...]` D ln(2 pi) + ln det Sigma, twice the score of the mean itself."""
    return forecast.log_det() + forecast.mean.shape[-1] * math.log(2 * math.pi)


Forecast = TypeVar("Forecast", LogitForecast, GaussianForecast)

_LAST_STEP = 3e-4  # in log tau; convergence is cubic, so the error left is near 1e-10
_LARGEST = math.log(1e6)  # of |log tau|: beyond it the optimum is zero or infinite
_ROWS_TO_START = 4096  # starting from so many rows leaves two passes over all
_WHY = (
    "the likelihood has no maximum at a finite temperature ({}): check that the labels belong to these rows "
    "and start at 0; if they do, tune on more units, or do without a temperature"
)
_FLOOR = 1e-12  # a model that is exactly right gets a large tau, not an infinite one


@dataclass(frozen=True, eq=False)
class Temperature:
    """A fitted temperature; call it on a forecast to temper it.

    tau: one number, or one per step `[H]` for trajectories; it multiplies log f
    n: tune units it was fitted on
    """

    tau: float | Floats
    n: int

    def __post_init__(self) -> None:
        check_tau(self.tau, "one number or [H]")

    def __call__(self, forecast: Forecast) -> Forecast:
        return forecast.tempered(self.tau)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"temperature tau = {np.round(self.tau, 4).tolist()} from {self.n:,} units"

    def __repr__(self) -> str:
        return f"Temperature(tau={np.round(self.tau, 6).tolist()}, n={self.n})"


def fit_temperature(forecast: LogitForecast | GaussianForecast, truth: Any) -> Temperature:
    """The temperature that maximises the likelihood of `truth`.

    One tau for labels (a convex problem in one dimension, solved by Halley's method) and for Gaussians of one
    step, where 1 / tau is the mean squared error in units of the variance; one per step for a horizon. Failed
    units are left out: tau is a choice, not a guarantee.

    >>> forecast = GaussianForecast(np.zeros((4, 1)), np.ones((4, 1)))
    >>> fit_temperature(forecast, np.array([[2.0], [-2.0], [2.0], [-2.0]]))
    Temperature(tau=0.25, n=4)
    """
    if isinstance(forecast, LogitForecast):
        labels = check_labels("labels", truth, *forecast.logits.shape)
        whole, labels = drop_failed(forecast, labels)
        return Temperature(_label_tau(whole, labels), len(labels))
    truth = check_forecast(forecast, GaussianForecast).check(truth, failures=True)
    kept, truth = drop_failed(forecast, truth)
    distances = convert_like(np.zeros(1), kept.wide().mahalanobis2(truth)).reshape(len(truth), -1)
    states = convert_like(np.zeros(1), truth).reshape(*distances.shape, -1)
    whole = np.isfinite(distances).all(axis=1)
    if not whole.any():
        raise InvalidInput("truth must have at least one unit that did not fail, got none")
    units = (~np.isnan(states[whole, :, 0])).sum(axis=0)  # that lived at each step
    squares = np.array([math.fsum(step) for step in distances[whole].T])
    tau = 1 / np.maximum(squares / np.maximum(units * states.shape[-1], 1), _FLOOR)
    lived = int(np.count_nonzero(units))  # a step that no unit reached is tempered like the one before
    tau[lived:] = tau[lived - 1]
    return Temperature(tau if kept.mean.ndim == 3 else float(tau[0]), int(units[0]))


def _label_tau(forecast: LogitForecast, labels: NDArray[np.int64]) -> float:
    """The root of the derivative of the log-likelihood, which is monotone in tau."""
    logits, tau = forecast.logits, forecast.tau
    if (logits.max(axis=1) == logits[np.arange(len(labels)), labels]).all():
        raise NoTemperature(_WHY.format("every label is the most probable one"))
    stride = len(logits) // _ROWS_TO_START
    if stride > 1:
        # Start from a few rows, then all in the precision of the logits: one pass in doubles remains.
        fast = np.float64 if logits.dtype == np.float64 else np.float32
        with contextlib.suppress(NoTemperature):  # where a few rows have no root, all of them may
            tau = _root(_slope(logits[::stride], labels[::stride], fast), tau)
            tau = _root(_slope(logits, labels, fast), tau, last_step=0.05)
    return _root(_slope(logits, labels, np.float64), tau) / forecast.tau


def _root(
    slope: Callable[[float], tuple[float, float, float]], tau: float, last_step: float = _LAST_STEP
) -> float:
    """The root of an increasing function by Halley's method in log tau, kept inside a bracket."""
    low, high = -_LARGEST, _LARGEST
    log_tau = math.log(tau)
    while abs(log_tau) < _LARGEST - 1:
        tau = math.exp(log_tau)
        value, first, second = slope(tau)
        low, high = (log_tau, high) if value < 0 else (low, log_tau)
        first, second = tau * first, tau * (tau * second + first)  # derivatives in log tau
        curve = first - value * second / (2 * first) if first > 0 else 0.0
        step = -value / curve if curve > abs(value) / 2 else math.copysign(2, -value)
        inside = low <= log_tau + step <= high
        new = log_tau + step if inside else (low + high) / 2
        if inside and abs(step) <= last_step:
            return math.exp(new)
        log_tau = new
    raise NoTemperature(_WHY.format("the logits carry no information about the labels"))


def _slope(
    logits: Floats, labels: NDArray[np.int64], work: type[np.floating[Any]]
) -> Callable[[float], tuple[float, float, float]]:
    """The first three derivatives in tau of the mean -log f: cumulants of the logits, in dtype `work`."""
    true = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0].astype(np.float64)
    if not np.isfinite(true).all():
        raise InvalidInput("the logit of each true label must be finite, got NaN or infinity")

    def at(tau: float) -> tuple[float, float, float]:
        cumulants = np.empty((3, len(logits)))

        def block(rows: slice, scratch: Floats) -> None:
            z, weight = scratch
            top = logits[rows].max(axis=1)
            np.subtract(logits[rows], top[:, None], out=z, dtype=work)
            np.exp(np.multiply(z, tau, out=weight), out=weight)
            np.maximum(z, -1e30, out=z)  # -inf has no weight, but 0 * inf would be no number
            mass = weight.sum(axis=1, dtype=np.float64)
            m1 = np.vecdot(weight, z) / mass
            m2 = np.vecdot(np.multiply(weight, z, out=weight), z) / mass
            m3 = np.vecdot(np.multiply(weight, z, out=weight), z) / mass
            cumulants[0, rows] = m1 + top - true[rows]
            cumulants[1, rows] = m2 - m1**2
            cumulants[2, rows] = m3 - 3 * m1 * m2 + 2 * m1**3

        run_over_rows(block, logits, 2, work)
        value, first, second = (float(mean) for mean in cumulants.mean(axis=1))
        if not math.isfinite(value + first + second):
            raise InvalidInput("logits must be numbers or -inf, got NaN or +inf")
        return value, first, second

    return at
