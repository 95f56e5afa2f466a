"""Baselines of the paper, without a guarantee: sets of mass 1 - epsilon, and the ablations.

A baseline trusts the forecaster's own probabilities, so its error may be anything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from array_api_compat import array_namespace

from pac_core.arrays import Array, Floats, over_rows
from pac_core.bounds import max_errors, share, vc_max_errors
from pac_core.forecasts import GaussianForecast, LogitForecast, a_forecast
from pac_core.predictors import Predictor, accumulated
from pac_core.regions import Ellipsoids
from pac_core.score_fits import fit_sets
from pac_core.sets import ConfidenceSets, LabelSets
from pac_core.temperatures import fit_temperature

ABLATIONS: dict[str, Callable[..., Predictor]] = {
    "C": partial(fit_sets, prepare=(fit_temperature,), bound=vc_max_errors),
    "D": partial(fit_sets, prepare=(), bound=max_errors),
    "C+D": partial(fit_sets, prepare=(fit_temperature,), bound=max_errors),
    "A+D": partial(fit_sets, prepare=(accumulated,), bound=max_errors),
    "A+C+D": partial(fit_sets, prepare=(accumulated, fit_temperature), bound=max_errors),
}
"""The rows of the paper's figures: A accumulated variance, C calibrated, D direct bound."""


def mass_label_sets(forecast: LogitForecast, epsilon: float) -> LabelSets:
    """The fewest most probable labels whose probabilities add up to 1 - epsilon.

    >>> forecast = LogitForecast.from_probabilities(np.array([[0.7, 0.2, 0.1], [0.98, 0.01, 0.01]]))
    >>> mass_label_sets(forecast, 0.05).size().tolist()
    [3, 1]
    """
    epsilon = share("epsilon", epsilon)
    member = np.zeros(a_forecast(forecast, LogitForecast).logits.shape, dtype=bool)
    shift, log = forecast.normaliser

    def block(rows: slice, _: Floats) -> None:
        z = forecast.tau * forecast.logits[rows].astype(np.float64)
        probability = np.exp((z - shift[rows, None]) - log[rows, None])
        order = np.argsort(-probability, axis=1, kind="stable")
        mass = np.cumsum(np.take_along_axis(probability, order, axis=1), axis=1)
        # A label is needed as long as those before it do not reach the mass.
        needed = np.roll(mass, 1, axis=1) < 1 - epsilon
        needed[:, 0] = True
        np.put_along_axis(member[rows], order, needed, axis=1)

    over_rows(block, forecast.logits, 0, np.float64)
    return LabelSets(member)


def mass_gaussian_sets(forecast: GaussianForecast, epsilon: float) -> ConfidenceSets:
    """The ellipsoid of mass 1 - epsilon around the mean; over a horizon, of all steps together."""
    from scipy.special import chdtri  # see bounds.proves

    epsilon = share("epsilon", epsilon)
    forecast, sound = a_forecast(forecast, GaussianForecast).for_sets()
    radius2 = float(chdtri(int(np.prod(forecast.mean.shape[1:])), epsilon))
    region = Ellipsoids(forecast, radius2 + 0 * forecast.mean[..., 0])
    return ConfidenceSets(region, partial(_distance, forecast), radius2, sound, tuple(forecast.mean.shape))


def _distance(forecast: GaussianForecast, truth: Array) -> Array:
    """`[B]` squared Mahalanobis distance, over all steps of a horizon."""
    distances = forecast.mahalanobis2(truth)
    return array_namespace(distances).sum(distances, axis=-1) if distances.ndim == 2 else distances
