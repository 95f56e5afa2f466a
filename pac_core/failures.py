"""Failed units have no forecast: they count as errors and are never left out.

A simulation that diverges has an infinite truth, so its score is infinite. An image that cannot be decoded
has no logits, and a model may diverge on a unit: such a unit scores +inf, its set is empty, and nothing is
tuned on it. The promise is about all units, whether they can be forecast or not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import is_torch_array

from pac_core.arrays import Array, doubles, like
from pac_core.errors import InvalidInput
from pac_core.forecasts import GaussianForecast, LogitForecast, a_forecast
from pac_core.sets import LabelSets
from pac_core.truths import Trajectories


def failed_units(forecast: Any) -> Any:
    """`[N]` bool, the units without a forecast; None if there are none."""
    return a_forecast(forecast).failed


def to_tune_on(forecast: Any, truth: Any) -> tuple[Any, Any]:
    """Forecast and truth of the units that have a forecast."""
    failed = failed_units(forecast)
    if failed is None:
        return forecast, truth
    if failed.all():
        raise InvalidInput(f"tune must have a unit that did not fail, got {len(failed):,} that did")
    return forecast.take(~failed), _rows(truth, ~failed)


def unit_scores(score: Any, forecast: Any, truth: Any) -> Array:
    """`[N]` the score of each unit's truth; +inf for a failed unit.

    >>> from pac_core.predictors import Likelihood
    >>> logits = np.array([[0.0, 0.0], [np.nan, np.nan]])
    >>> forecast = LogitForecast(logits, failed=np.array([False, True]))
    >>> unit_scores(Likelihood(), forecast, [1, 1]).tolist()
    [0.6931471805599453, inf]
    """
    failed = failed_units(forecast)
    if failed is None:
        return score.scores(forecast, truth)
    scores = np.full(len(failed), np.inf)
    if failed.all():
        return scores if isinstance(forecast, LogitForecast) else like(doubles(forecast.mean), scores)
    if isinstance(forecast, GaussianForecast):
        forecast.check(failures=True)  # refuses the others, naming the row in the whole forecast
    known = score.scores(forecast.take(~failed), _rows(truth, ~failed))
    scores = like(known, scores)
    scores[~failed] = known
    return scores


def unit_sets(score: Any, forecast: Any, threshold: Any) -> Any:
    """The sets of scores at most T; empty for a failed unit."""
    failed = failed_units(forecast)
    if failed is None or not isinstance(forecast, LogitForecast):  # unsound Gaussians have empty sets
        return score.sets(forecast, threshold)
    member = np.zeros(forecast.logits.shape, bool)
    if not failed.all():
        member[~failed] = score.sets(forecast.take(~failed), threshold).member
    return LabelSets(member)


def _rows(truth: Any, rows: Any) -> Any:
    kept = isinstance(truth, Trajectories) or is_torch_array(truth)
    return truth[rows] if kept else np.asarray(truth)[rows]
