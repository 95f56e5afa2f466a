"""Trajectory tubes: four shapes, each a score fitted on the tune split, one threshold theorem.

Every shape keeps the same promise; they differ in how much room they waste. `joint` is the paper's, `box` the
smallest in all coordinates, `features` the smallest in the few that count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from pac_core import plugins
from pac_core.arrays import like
from pac_core.bounds import Bound, PACLevel, max_errors
from pac_core.choices import relative_widths
from pac_core.errors import InvalidInput
from pac_core.failures import to_tune_on
from pac_core.features import FeatureShape
from pac_core.forecasts import GaussianForecast, a_forecast
from pac_core.predictors import Likelihood, Predictor, Score, accumulated, calibrate, describe
from pac_core.scores import volume_term
from pac_core.shapes import BoxShape, MaxShape
from pac_core.temperatures import fit_temperature
from pac_core.truths import Trajectories, as_given


def _fit_joint(forecast: GaussianForecast, states: Any, level: PACLevel) -> Likelihood:
    """The paper's shape: accumulated variances, one temperature per step (A + C)."""
    return with_typical(Likelihood.fit(forecast, states, (accumulated, fit_temperature)), forecast, states)


def with_typical(score: Likelihood, forecast: GaussianForecast, states: Any) -> Likelihood:
    """A joint score that can say when its tube is wider than the states of these tune units vary."""
    prepared = score.prepared(forecast.wide())
    truth = states.marked() if isinstance(states, Trajectories) else states
    volume = float(volume_term(prepared).sum(axis=-1).mean())
    return replace(score, typical=(volume, relative_widths(np.sqrt(prepared.variances), truth)))


SHAPES: dict[str, Callable[..., Score]] = {
    "joint": _fit_joint,
    "max": MaxShape.fit,
    "box": BoxShape.fit,
    "features": FeatureShape.fit,
}


def shape_names() -> list[str]:
    """Every tube shape there is: the built-in ones, then those that plugins register (`pac_sets.shapes`)."""
    return [*SHAPES, *plugins.names("shapes")]


def check_shape(name: Any, domain: tuple[Any, ...] = ("trajectories",)) -> None:
    """Refuse a shape that does not exist, or a forecast that is not of trajectories, before any work."""
    if domain[0] != "trajectories":
        raise InvalidInput(f"a tube needs a horizon [B, H, D], got a forecast of {describe(domain)}")
    if name not in (known := shape_names()):
        raise InvalidInput(f"shape must be one of {', '.join(known)}, got {name!r}")


def fit_shape(
    forecast: GaussianForecast, states: Any, level: PACLevel, *, shape: str = "box", **options: Any
) -> Score:
    """Fit a tube score of one of the `shape_names` on the tune split; see `fit_tube` for the options."""
    check_shape(shape, a_forecast(forecast).domain)
    fit = SHAPES.get(shape) or plugins.load("shapes", shape).fit
    truth = as_given(states, like(np.zeros(1), forecast.check(states, failures=True)))
    forecast, truth = to_tune_on(forecast, truth)
    mean, var = (like(np.zeros(1), part) for part in (forecast.mean, forecast.var))  # fitted in numpy
    return fit(GaussianForecast(mean, var), truth, level, **options)


def fit_tube(
    tune_forecast: GaussianForecast,
    tune_states: Any,
    cal_forecast: GaussianForecast,
    cal_states: Any,
    level: PACLevel,
    *,
    shape: str = "box",
    bound: Bound = max_errors,
    **options: Any,
) -> Predictor:
    """A predictor whose `.tube(forecast)` holds the whole trajectory with the promised probability.

    Forecasts carry one-step variances `[B, H, D]`; states are `[B, H, D]`, infinite where a simulation
    failed, or `Trajectories` if units may end early. All choices are made on the tune split, T on the
    calibrate split; they must share no unit, and the calibrate split be used once (`certify` keeps watch,
    with ids).

    shape: "joint", "max", "box", "features", or a plugin's
    options: `features=LinearFeatures(names, matrix)` for "features"; `sides` for "box" and "features", 1 or
        -1 for each dimension of which only the upper or the lower end counts, 0 for both; `units`, how much
        of each dimension counts as one where widths are traded against each other (by default its deviation
        on the tune split)

    >>> rng = np.random.default_rng(0)
    >>> forecast = GaussianForecast(np.zeros((400, 5, 2)), np.ones((400, 5, 2)))
    >>> walk = lambda: rng.normal(size=(400, 5, 2)).cumsum(axis=1)
    >>> predictor = fit_tube(forecast, walk(), forecast, walk(), PACLevel(0.1, 0.01))
    >>> tube = predictor.tube(forecast)
    >>> tube.support([1.0, 0.0]).shape, bool(tube.contains(walk()).mean() > 0.9)
    ((400, 5), True)
    """
    score = fit_shape(tune_forecast, tune_states, level, shape=shape, **options)
    return calibrate(score, cal_forecast, cal_states, level, bound=bound)
