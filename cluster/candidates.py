"""The ways to score that a sweep compares, and how the smallest is found on the tune part alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from cluster.results import ALL, View
from pac_core import (
    InvalidInput,
    Likelihood,
    NotEnoughData,
    PACLevel,
    accumulated,
    fit_shape,
    fit_temperature,
    max_errors,
)
from pac_core.label_scores import LABEL_SCORES, label_score_fit
from pac_core.predictors import Score
from pac_core.score_fits import check_score
from pac_core.truths import Trajectories
from pac_core.tubes import with_typical

DEFAULT_SHAPES = ("box", "max", "joint")
_SIZED = 1000  # units on which a mean size is measured: it needs no more


@dataclass(frozen=True)
class Candidate:
    """One way to score.

    shape: a tube shape, or one of `LABEL_SCORES`
    accumulate, temperature: the paper's A and C, where the shape leaves the choice
    view: which of the stored forecasts
    at: the level it is fitted for, where that makes a difference; it may serve others as well
    """

    shape: str
    accumulate: bool = False
    temperature: bool = False
    view: View = ALL
    at: PACLevel | None = None

    def __str__(self) -> str:
        extra = [word for flag, word in ((self.accumulate, "A"), (self.temperature, "C")) if flag]
        words = [self.shape, *(["with " + "+".join(extra)] if extra else [])]
        if self.at is not None:
            words.append(f"for ({self.at.epsilon:g}, {self.at.delta:g})")
        return " ".join(words)

    @property
    def for_all(self) -> bool:
        """Whether one fit serves every level; what is chosen for its size is chosen for a level."""
        return self.shape in ("joint", "paper", "plain")

    def fit(
        self,
        forecast: Any,
        truth: Any,
        level: PACLevel,
        others: Sequence[PACLevel] = (),
        *,
        calibrate: int | None = None,
    ) -> Score:
        """The score, fitted on these tune units.

        others: further levels that it is to serve, where that makes a difference
        calibrate: how many units it will be calibrated on, likewise
        """
        if self.shape in LABEL_SCORES:
            return label_score_fit(self.shape, calibrate=calibrate, others=others)(forecast, truth, level)
        if not self.for_all:
            return fit_shape(forecast, truth, level, shape=self.shape)
        steps = [accumulated] * self.accumulate + [fit_temperature] * self.temperature
        return with_typical(Likelihood.fit(forecast, truth, steps), forecast, truth)


def candidates(kind: str, shapes: Sequence[str], views: Sequence[View]) -> list[Candidate]:
    """Every way to score forecasts of this kind; `shapes` are tube shapes, by default box, max and joint."""
    if kind != "trajectories":
        if shapes:
            raise InvalidInput(f"--shape is for trajectories, but the run holds forecasts of {kind}")
        return [Candidate(name) for name in sorted(LABEL_SCORES) if kind == "labels" or name != "smallest"]
    shapes = shapes or DEFAULT_SHAPES
    for shape in shapes:
        check_score(shape, (kind,))
    plain = [Candidate(shape) for shape in shapes if shape != "joint"]
    paper = [Candidate("joint", a, c) for a in (True, False) for c in (True, False)]
    every = plain + (paper if "joint" in shapes else [])
    return [Candidate(c.shape, c.accumulate, c.temperature, view) for view in views for c in every]


def fits(menu: Sequence[Candidate], levels: Sequence[PACLevel]) -> list[Candidate]:
    """What has to be fitted: each is measured at every level, so that none is fitted twice.

    >>> two = (PACLevel(0.1, 0.01), PACLevel(0.05, 0.01))
    >>> [str(one) for one in fits([Candidate("box"), Candidate("joint")], two)]
    ['box for (0.1, 0.01)', 'box for (0.05, 0.01)', 'joint']
    """
    own = [(one, (None,) if one.for_all else levels) for one in menu]
    return [replace(one, at=at) for one, places in own for at in places]


def held_out_sizes(
    candidate: Candidate,
    forecast: Any,
    truth: Any,
    levels: Sequence[PACLevel],
    *,
    calibrate: int | None = None,
) -> list[float]:
    """The mean size at each level of one fit, on tune units the candidate was not fitted on.

    Either half of the units judges what was fitted on the other.
    Tubes are measured in units of the tune deviation, because their dimensions have different units.
    calibrate: how many units are to calibrate, which says how many errors are allowed: so a looser level
        never has a larger size than a stricter one
    """
    order = np.random.default_rng(0).permutation(len(truth))
    halves = [(forecast.take(rows), truth[rows]) for rows in (np.sort(order[::2]), np.sort(order[1::2]))]
    crossed = [(candidate.fit(*halves[i], candidate.at or levels[0]), *halves[1 - i]) for i in (0, 1)]
    scores = [np.sort(np.asarray(score.scores(half, labels))) for score, half, labels in crossed]
    if candidate.shape != "smallest":  # whose halves may have chosen scores that do not compare
        scores = 2 * [np.sort(np.concatenate(scores))]
    some = [(score, half.take(slice(0, _SIZED // 2))) for score, half, _ in crossed]
    deviation = None
    if isinstance(truth, Trajectories):
        marked = truth.marked()
        deviation = np.nanstd(np.where(np.isinf(marked), np.nan, marked), axis=(0, 1))

    def size(level: PACLevel) -> float:
        limits = [float(values[-1 - _allowed(len(values), level, calibrate)]) for values in scores]
        if not np.isfinite(limits).all():
            return float("inf")
        sets = [score.sets(half, limit) for (score, half), limit in zip(some, limits, strict=True)]
        parts = [one.size() if deviation is None else one.normalised_size(deviation) for one in sets]
        return float(np.mean(np.concatenate(parts)))

    return [size(level) for level in levels]


def choose(
    sizes: dict[tuple[Candidate, PACLevel], float], *, same: bool = False
) -> dict[tuple[int | None, PACLevel], Candidate]:
    """For each horizon and level, the candidate of the smallest held-out size.

    Every fit is compared at every level, whichever it was fitted for. So a looser level never takes larger
    sets than a stricter one: it could have taken the same fit.
    same: one candidate for all levels of a horizon, by the mean logarithm of its sizes
    """
    chosen: dict[tuple[int | None, PACLevel], Candidate] = {}
    for horizon in dict.fromkeys(candidate.view.horizon for candidate, _ in sizes):
        menu = list(dict.fromkeys(c for c, _ in sizes if c.view.horizon == horizon))
        levels = list(dict.fromkeys(level for _, level in sizes))

        def mean_log(candidate: Candidate, levels: list[PACLevel] = levels) -> float:
            return float(np.mean([np.log(sizes[candidate, level]) for level in levels]))

        for level in levels:
            key: Callable[[Candidate], float] = mean_log if same else partial(_at, sizes, level)
            chosen[horizon, level] = min(menu, key=key)
    return chosen


def _at(sizes: dict[tuple[Candidate, PACLevel], float], level: PACLevel, candidate: Candidate) -> float:
    return sizes[candidate, level]


def _allowed(n: int, level: PACLevel, calibrate: int | None) -> int:
    """Errors among `n` tune units, in the share that the calibration allows; none where it cannot prove."""
    units = calibrate or n
    try:
        return n * max_errors(units, level) // units
    except NotEnoughData:
        return 0
