"""Scores of labels beside the paper's, and the choice among them on the tune split."""

from __future__ import annotations

from typing import Any

from pac_core.bounds import PACLevel
from pac_core.certification import tempered
from pac_core.forecasts import LogitForecast
from pac_core.predictors import Score


def choose_label_score(forecast: LogitForecast, labels: Any, level: PACLevel) -> Score:
    """The score whose sets are smallest at this level, chosen and fitted on the tune split."""
    return tempered(forecast, labels, level)
