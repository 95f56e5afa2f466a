"""Units that failed: there is no forecast of theirs, so every set misses them and none is left out.

A simulation that diverges has an infinite truth, and every score of it is infinite already. An image that
cannot be decoded has no logits: it scores +inf, its set is empty, and nothing is tuned on it. The promise
then counts failed units, as errors: it is about all units, whether they can be read or not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pac_core.arrays import Array
from pac_core.errors import InvalidInput
from pac_core.forecasts import LogitForecast
from pac_core.sets import LabelSets


def failed_units(forecast: Any) -> Any:
    """`[N]` bool, the units of which there is no forecast; None if there are none."""
    return forecast.failed if isinstance(forecast, LogitForecast) else None


def to_tune_on(forecast: Any, truth: Any) -> tuple[Any, Any]:
    """Forecast and truth of the units that have a forecast: what is chosen on these needs no others."""
    failed = failed_units(forecast)
    if failed is None:
        return forecast, truth
    if failed.all():
        raise InvalidInput(f"tune must have a unit that did not fail, got {len(failed):,} that did")
    return forecast.take(~failed), truth[~failed]


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
    if not failed.all():
        scores[~failed] = score.scores(forecast.take(~failed), np.asarray(truth)[~failed])
    return scores


def unit_sets(score: Any, forecast: Any, threshold: Any) -> Any:
    """The sets of score at most T; of a unit that failed the empty one, which misses every truth."""
    failed = failed_units(forecast)
    if failed is None:
        return score.sets(forecast, threshold)
    member = np.zeros(forecast.logits.shape, bool)
    if not failed.all():
        member[~failed] = score.sets(forecast.take(~failed), threshold).member
    return LabelSets(member)
