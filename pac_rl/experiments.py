"""What the experiments share: scores fitted once and thresholded at many levels, and a row of figures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import (
    ConfidenceSets,
    Likelihood,
    LinearFeatures,
    PACLevel,
    Predictor,
    accumulated,
    evaluate,
    fit_shape,
    fit_temperature,
    fit_threshold,
    max_errors,
)
from pac_core.choices import deviation
from pac_core.failures import unit_scores
from pac_core.predictors import Prepare, Score
from pac_rl.environments import Environment
from pac_rl.studies import Case

ABLATIONS: dict[str, tuple[Prepare, ...]] = {
    "C+D": (fit_temperature,),
    "A+D": (accumulated,),
    "A+C+D": (accumulated, fit_temperature),
}
"""Preparations of the paper's figures: A accumulated variance, C calibrated; D, the direct bound, in all."""
EPSILONS = (0.01, 0.02, 0.03, 0.04, 0.05)
DELTAS = (1e-1, 1e-3, 1e-5)
WATCHED = {"forward velocity": "forward velocity", "rooty": "torso pitch"}
"""The state's numbers that limits read, with their names for people; in m/s and radians."""


def watched(environment: Environment) -> dict[str, str]:
    """Those of `WATCHED` that the environment's state has; another robot may have none."""
    return {name: words for name, words in WATCHED.items() if name in environment.names}


@dataclass(frozen=True, eq=False)
class Fitted:
    """A score fitted on the tune part, with its scores on the calibrate part.

    One look at many levels: the tables show what each would give, they are not certificates of all
    of them together.
    """

    score: Score
    scores: NDArray[np.float64]
    domain: tuple[Any, ...]

    @classmethod
    def of(cls, score: Score, case: Case) -> Fitted:
        forecast, truth = case.part("calibrate")
        return cls(score, np.asarray(unit_scores(score, forecast, truth)), forecast.domain)

    def at(self, level: PACLevel) -> Predictor:
        """The predictor of this level."""
        return Predictor(self.score, fit_threshold(self.scores, level), self.domain)


def fit_ablations(case: Case) -> dict[str, Fitted]:
    """The paper's three, of a case with one-step variances."""
    return {name: fit_ablation(case, name) for name in ABLATIONS}


@cache
def fit_ablation(case: Case, name: str) -> Fitted:
    """One of `ABLATIONS`; A+C+D is the paper's tube."""
    return Fitted.of(Likelihood.fit(*case.part("tune"), ABLATIONS[name]), case)


@cache
def box_score(case: Case, level: PACLevel) -> Score:
    """The default tube's score, its choices made on the tune part for this level; nothing else is read."""
    return fit_shape(*case.part("tune"), level, shape="box")


@cache
def fit_box(case: Case, level: PACLevel) -> Fitted:
    """The default tube of this level."""
    return Fitted.of(box_score(case, level), case)


def fit_watched(case: Case, level: PACLevel, environment: Environment) -> Fitted:
    """The tube `features` on the watched numbers, whose widths count in their own units."""
    names = watched(environment)
    rows = [environment.names.index(name) for name in names]
    features = LinearFeatures(tuple(names.values()), np.eye(len(environment.names))[rows])
    units = (1.0,) * len(names)
    score = fit_shape(*case.part("tune"), level, shape="features", features=features, units=units)
    return Fitted.of(score, case)


def hindsight(case: Case, level: PACLevel) -> ConfidenceSets:
    """Boxes of the same heuristic, fitted on the test part itself, scales and threshold; no predictor."""
    forecast, truth = case.part("test")
    score = fit_shape(forecast, truth, level, shape="box")
    ordered = np.sort(np.asarray(unit_scores(score, forecast, truth)))
    return score.sets(forecast, float(ordered[-1 - max_errors(len(ordered), level)]))  # type: ignore[no-any-return]


def half_widths(tube: ConfidenceSets, environment: Environment) -> dict[str, float]:
    """The mean half-width along each watched number, of the tubes that are not empty."""
    found = {}
    for name, words in watched(environment).items():
        along = np.eye(len(environment.names))[environment.names.index(name)]
        found[f"half-width, {words}"] = float(np.nanmean(tube.support(along) + tube.support(-along)) / 2)
    return found


def row(
    case: Case,
    tube: ConfidenceSets,
    level: PACLevel,
    environment: Environment,
) -> dict[str, Any]:
    """Error with its exact interval, and every size, on the test part."""
    found = evaluate(tube, case.part("test")[1], level)
    unit = deviation(case.part("tune")[1].marked())
    whole = tube.region.center.shape[-1] == len(unit)
    low, high = found.all.interval
    return {
        "error": found.all.error,
        "98% interval": f"{low:.4f}..{high:.4f}",
        "refuted": "yes" if found.refuted else "no",
        "size": found.all.mean if whole else float("nan"),
        "normalised": float(np.mean(tube.normalised_size(unit))) if whole else float("nan"),
        "volume^(1/d)": float(np.mean(tube.volume_root())) if whole else float("nan"),
        "mean width": float(np.mean(tube.mean_width(32))) if whole else float("nan"),
        **half_widths(tube, environment),
    }
