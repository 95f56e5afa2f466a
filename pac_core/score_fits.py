"""What `pac fit` fits on the tune units: which score its options ask for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from pac_core.bounds import PACLevel
from pac_core.certification import FitScore
from pac_core.errors import InvalidInput
from pac_core.features import LinearFeatures
from pac_core.label_scores import label_score_fit, score_named
from pac_core.tubes import fit_shape


def asked_score(forecast: Any, score: str | None, temperature: bool | None) -> str:
    """Which score is asked for: one of `LABEL_SCORES`, or "shape" for trajectories."""
    of = forecast.domain[0]
    if score is not None and of != "labels":
        raise InvalidInput(f"--score is for labels, the file holds forecasts of {of}")
    if of == "trajectories":
        if temperature is False:
            raise InvalidInput(
                "--no-temperature is for labels and vectors; for trajectories choose a --shape"
            )
        return "shape"
    return score_named(score, temperature, default="smallest" if of == "labels" else "paper")


def score_fit(
    forecast: Any,
    kind: str,
    shape: str | None,
    features: tuple[str, ...],
    levels: Sequence[PACLevel],
    calibrate: int,
) -> FitScore:
    """What to fit on the tune units: a tube shape for a horizon, else a score of labels or vectors."""
    if kind != "shape":
        if shape or features:
            raise InvalidInput("--shape and --feature are for trajectories [N, H, D], the file holds others")
        return label_score_fit(kind, calibrate=calibrate, others=levels[1:])
    if bool(features) != (shape == "features"):
        raise InvalidInput("--shape features and --feature NAME=DIMENSION go together, got only one of them")
    options: dict[str, Any] = {"features": _features(features, forecast.mean.shape[-1])} if features else {}
    return partial(fit_shape, shape=shape or "box", **options)


def _features(texts: tuple[str, ...], dims: int) -> LinearFeatures:
    """NAME=DIMENSION pairs as features that are single coordinates."""
    pairs = [text.partition("=") for text in texts]
    for (_, _, index), text in zip(pairs, texts, strict=True):
        if not index.isdecimal() or int(index) >= dims or not text.partition("=")[0]:
            raise InvalidInput(
                f"--feature must be NAME=DIMENSION with a dimension below {dims}, got {text!r}"
            )
    return LinearFeatures(tuple(name for name, _, _ in pairs), np.eye(dims)[[int(i) for _, _, i in pairs]])
