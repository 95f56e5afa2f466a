"""Scores that are fitted once on the tune part and thresholded at many levels, and a row of figures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import pac_core
from halfcheetah.experiment import Case
from pac_core import PACLevel, Predictor
from pac_core.bounds import max_errors
from pac_core.evaluation import Evaluation
from pac_core.scores import fit_temperature
from pac_core.sets import ConfidenceSets, Likelihood, Score, accumulate_variance, deviation, score_units
from pac_core.thresholds import fit_threshold
from pac_core.tubes import fit_shape
from pac_rl.systems import Environment

CALIBRATED, ACCUMULATED = fit_temperature, accumulate_variance
ABLATIONS = {"C+D": (CALIBRATED,), "A+D": (ACCUMULATED,), "A+C+D": (ACCUMULATED, CALIBRATED)}
"""Preparations of the paper's figures: A accumulated variance, C calibrated; D, the direct bound, in all."""
EPSILONS, DELTAS = (0.01, 0.02, 0.03, 0.04, 0.05), (1e-1, 1e-3, 1e-5)
WATCHED = {"forward velocity": "forward velocity", "rooty": "torso pitch"}
"""The state's numbers that limits read, with their names for people; in m/s and radians."""


def watched(robot: Environment) -> dict[str, str]:
    """Those of `WATCHED` that the robot's state has; another robot may have none."""
    return {name: words for name, words in WATCHED.items() if name in robot.names}


@dataclass(frozen=True, eq=False)
class Fitted:
    """A score fitted on the tune part, with its scores on the calibrate part.

    One look at many levels: the tables show what each would give, they are not certificates of all of them
    together.
    """

    score: Score
    scores: np.ndarray
    domain: tuple[Any, ...]

    @classmethod
    def of(cls, score: Score, case: Case) -> Fitted:
        forecast, truth = case.part("calibrate")
        return cls(score, np.asarray(score_units(score, forecast, truth)), forecast.domain)

    def at(self, level: PACLevel) -> Predictor:
        """The predictor of this level."""
        return Predictor(self.score, fit_threshold(self.scores, level), self.domain)


@cache
def fit_ablation(case: Case, name: str) -> Fitted:
    """One of `ABLATIONS`, of a case with one-step variances; A+C+D is the paper's tube."""
    return Fitted.of(Likelihood.fit(*case.part("tune"), ABLATIONS[name]), case)


def fit_ablations(case: Case) -> dict[str, Fitted]:
    return {name: fit_ablation(case, name) for name in ABLATIONS}


@cache
def fit_box(case: Case, level: PACLevel) -> Fitted:
    """The default tube of this level."""
    return fit_case(case, level, shape="box")


def fit_case(case: Case, level: PACLevel, **options: Any) -> Fitted:
    """A tube of any shape; its choices are made on the tune part for this level."""
    return Fitted.of(fit_shape(*case.part("tune"), level, **options), case)


def fit_watched(case: Case, level: PACLevel, robot: Environment) -> Fitted:
    """The tube `features` on the watched numbers, whose widths count in their own units."""
    names = watched(robot)
    rows = [robot.names.index(name) for name in names]
    features = pac_core.LinearFeatures(tuple(names.values()), np.eye(len(robot.names))[rows])
    return fit_case(case, level, shape="features", features=features, units=(1.0,) * len(names))


def hindsight(case: Case, level: PACLevel) -> ConfidenceSets:
    """Boxes of the same heuristic, fitted on the test part itself, scales and threshold; no predictor."""
    forecast, truth = case.part("test")
    score = fit_shape(forecast, truth, level, shape="box")
    ordered = np.sort(np.asarray(score_units(score, forecast, truth)))
    return score.sets(forecast, float(ordered[-1 - max_errors(len(ordered), level)]))


def measured(found: Evaluation) -> dict[str, Any]:
    """The error on the test part, with its exact interval."""
    return {"error": found.all.error, "98% interval": "{:.4f}..{:.4f}".format(*found.all.interval)}


def row(case: Case, tube: ConfidenceSets, level: PACLevel, robot: Environment) -> dict[str, Any]:
    """Error with its exact interval, and every size, on the test part."""
    found = pac_core.evaluate(tube, case.part("test")[1], level)
    unit = deviation(case.part("tune")[1].marked())
    whole = tube.region.center.shape[-1] == len(unit)
    sizes: dict[str, Any] = {
        "size": lambda: found.all.mean,
        "normalised": lambda: np.mean(tube.normalised_size(unit)),
        "volume^(1/d)": lambda: np.mean(tube.volume_root()),
        "mean width": lambda: np.mean(tube.mean_width(32)),
    }
    made = measured(found) | {"refuted": "yes" if found.refuted else "no"}
    made |= {name: float(size()) if whole else float("nan") for name, size in sizes.items()}
    for name, words in watched(robot).items():  # the mean over the tubes that are not empty
        along = np.eye(len(robot.names))[robot.names.index(name)]
        made[f"half-width, {words}"] = float(np.nanmean(tube.support(along) + tube.support(-along)) / 2)
    return made
