"""The nonconformity score of the paper: -log f(y|x). Larger is worse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from pac_core.arrays import Array, labels_for
from pac_core.forecasts import GaussianForecast, LogitForecast, a_forecast


def nll(forecast: LogitForecast | GaussianForecast, truth: Any) -> Array:
    """`[N]` -log f(y|x), summed over the steps of a horizon.

    `truth` is labels `[N]` for a `LogitForecast`, and of the shape of the mean for a `GaussianForecast`. A
    unit whose truth is infinite, because its simulation failed, scores +inf.

    >>> forecast = LogitForecast.from_probabilities(np.array([[0.75, 0.25], [0.5, 0.5]]))
    >>> np.exp(-nll(forecast, [0, 1])).round(12).tolist()
    [0.75, 0.5]
    """
    if isinstance(forecast, LogitForecast):
        labels = labels_for("labels", truth, *forecast.logits.shape)
        chosen = np.take_along_axis(forecast.logits, labels[:, None], axis=1)[:, 0]
        return label_nll(forecast, chosen)
    truth = a_forecast(forecast).check(truth)
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
