"""Which score is fitted on the tune units, by name or by default, in Python and in the program alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from pac_core.bounds import Bound, PACLevel, max_errors
from pac_core.errors import InvalidInput
from pac_core.forecasts import drop_failed
from pac_core.sets.label_scores import LABEL_SCORES, choose_label_score, resolve_score_name
from pac_core.sets.predictor import AnyForecast, FitScore, Likelihood, Predictor, calibrate, fit_tempered
from pac_core.tubes import LinearFeatures, check_shape, fit_shape

_DEFAULT = {"labels": "smallest", "vectors": "paper", "trajectories": "box"}  # where no score is named


def score_fitter(
    domain: tuple[Any, ...],
    score: str | None = None,
    *,
    calibrate: int | None = None,
    others: Sequence[PACLevel] = (),
    features: Sequence[str] = (),
    **chosen: Any,
) -> FitScore:
    """How the score of this name (see `fit_sets`), refused before any work, is fitted on tune units.

    calibrate, others: for the smallest label sets, see `choose_label_score`
    features: for the tube shape "features", texts NAME=DIMENSION
    chosen: of a tube, any_of and drawn_of
    """
    name = _DEFAULT[domain[0]] if score is None else score
    check_score(name, domain, features)
    if domain[0] == "trajectories":
        options: dict[str, Any] = {"features": name_features(features, domain[-1])} if features else {}
        return partial(fit_shape, shape=name, **options, **chosen)
    if chosen:
        raise InvalidInput(f"--any-of is for trajectories, the forecasts are of {domain[0]}")
    if name == "smallest":
        return partial(choose_label_score, calibrate=calibrate, others=others)
    return fit_tempered if name == "paper" else lambda forecast, truth, level: Likelihood()


def check_score(name: str, domain: tuple[Any, ...], features: Sequence[str] = ()) -> None:
    """Refuse before any work a score that forecasts of this domain cannot have; see `score_fitter`."""
    if domain[0] == "vectors" and name == "smallest":
        raise InvalidInput(f"score 'smallest' is for labels, the forecasts are of {domain[0]}")
    if domain[0] != "trajectories":
        if name not in LABEL_SCORES:
            raise InvalidInput(f"score must be one of {', '.join(LABEL_SCORES)}, got {name!r}")
        return
    check_shape(name)
    if bool(features) != (name == "features"):
        raise InvalidInput("--shape features and --feature NAME=DIMENSION go together, got only one of them")
    if features and len(domain) > 1:
        name_features(features, domain[-1])


def fit_sets(
    tune_forecast: AnyForecast,
    tune_truth: Any,
    cal_forecast: AnyForecast,
    cal_truth: Any,
    level: PACLevel,
    *,
    score: str | None = None,
    bound: Bound = max_errors,
    groups: Any = None,
) -> Predictor:
    """A predictor: its score chosen and fitted on the tune split, T proved on the calibrate split.

    Truths are labels `[N]`, or values of the shape of the mean; the two splits must share no unit with each
    other or with the model's training data, and the calibrate split be used once (`certify` keeps watch).

    score: for labels "smallest", the default (see `choose_label_score`), "paper", -log f with the tune
        split's temperature, or "plain", -log f as it is; for vectors "paper", the default, or "plain"; for a
        horizon the tube shape, see `fit_tube`
    groups: `[N]` names of the calibration units' groups, or `Groups`: a threshold for each (Mondrian)

    >>> from pac_core import LogitForecast
    >>> rng = np.random.default_rng(0)
    >>> tune, cal = rng.normal(size=(2, 500, 3))
    >>> labels = [(z + rng.gumbel(size=z.shape)).argmax(axis=1) for z in (tune, cal)]
    >>> level = PACLevel(0.1, 0.01)
    >>> predictor = fit_sets(LogitForecast(tune), labels[0], LogitForecast(cal), labels[1], level)
    >>> predictor.sets(LogitForecast(np.array([[4.0, 0.0, -4.0]]))).labels()
    [[0]]
    """
    tune = drop_failed(tune_forecast, tune_truth)
    fitted = score_fitter(tune_forecast.domain, score, calibrate=len(cal_truth))(*tune, level)
    return calibrate(fitted, cal_forecast, cal_truth, level, bound=bound, groups=groups)


def resolve_score(forecast: Any, score: str | None, temperature: bool | None) -> str:
    """Which score is asked for: one of `LABEL_SCORES`, or "shape" for trajectories."""
    of = forecast.domain[0]
    if score is not None and of != "labels":
        raise InvalidInput(f"--score is for labels, the file holds forecasts of {of}")
    if of == "trajectories":
        if temperature is False:
            raise InvalidInput("--no-temperature is for labels and vectors; trajectories have a --shape")
        return "shape"
    return resolve_score_name(score, temperature, default=_DEFAULT[of])


def command_fitter(
    forecast: Any,
    kind: str,
    shape: str | None,
    features: tuple[str, ...],
    levels: Sequence[PACLevel],
    calibrate: int,
    **chosen: Any,
) -> FitScore:
    """What to fit on the tune units: a tube shape for a horizon, else a score of labels or vectors."""
    if kind != "shape":
        if shape or features:
            raise InvalidInput("--shape and --feature are for trajectories [N, H, D], the file holds others")
        return score_fitter(forecast.domain, kind, calibrate=calibrate, others=levels[1:], **chosen)
    return score_fitter(forecast.domain, shape, features=features, **chosen)


def name_features(texts: Sequence[str], dims: int) -> LinearFeatures:
    """NAME=DIMENSION pairs as features that are single coordinates."""
    pairs = [text.partition("=") for text in texts]
    for (_, _, index), text in zip(pairs, texts, strict=True):
        if not index.isdecimal() or int(index) >= dims or not text.partition("=")[0]:
            raise InvalidInput(f"--feature must be NAME=DIMENSION, a dimension below {dims}, got {text!r}")
    return LinearFeatures(tuple(name for name, _, _ in pairs), np.eye(dims)[[int(i) for _, _, i in pairs]])
