"""Units that failed: there is no forecast of theirs, so every set misses them and none is left out.

A simulation that diverges has an infinite truth, and every score of it is infinite already. An image that
cannot be decoded has no logits, and a model that explodes on a unit makes no Gaussian: such a unit scores
+inf, its set is empty, and nothing is tuned on it. The promise then counts failed units, as errors: it is
about all units, whether they can be forecast or not.
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
    """`[N]` bool, the units of which there is no forecast; None if there are none."""
    return a_forecast(forecast).failed


def to_tune_on(forecast: Any, truth: Any) -> tuple[Any, Any]:
    """Forecast and truth of the units that have a forecast: what is chosen on these needs no others."""
    failed = failed_units(forecast)
    if failed is None:
        return forecast, truth
    if failed.all():
        raise InvalidInput(f"tune must have a unit that did not fail, got {len(failed):,} that did")
    return forecast.take(~failed), _rows(truth, ~failed)


def unit_scores(score: Any, forecast: Any, truth: Any) -> Array:
    """`[N]` the score of each unit's truth; +inf for a unit that failed.

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
        forecast.check(failures=True)  # refuses others here, by their own row
    found = score.scores(forecast.take(~failed), _rows(truth, ~failed))
    scores = like(found, scores)
    scores[~failed] = found
    return scores


def unit_sets(score: Any, forecast: Any, threshold: Any) -> Any:
    """The sets of score at most T; of a unit that failed the empty one, which misses every truth."""
    failed = failed_units(forecast)
    if failed is None or not isinstance(forecast, LogitForecast):  # sets of no Gaussian are empty already
        return score.sets(forecast, threshold)
    member = np.zeros(forecast.logits.shape, bool)
    if not failed.all():
        member[~failed] = score.sets(forecast.take(~failed), threshold).member
    return LabelSets(member)


def _rows(truth: Any, rows: Any) -> Any:
    """Some of the units of a truth, whatever it is kept in."""
    return (
        truth[rows] if isinstance(truth, Trajectories) or is_torch_array(truth) else np.asarray(truth)[rows]
    )
