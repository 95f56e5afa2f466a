"""The score of labels with the smallest sets, chosen on the tune split from a fixed menu."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Floats, labels_for, over_rows
from pac_core.bounds import PACLevel, max_errors
from pac_core.certification import FitScore, tempered
from pac_core.errors import InvalidInput, NotEnoughData
from pac_core.forecasts import LogitForecast
from pac_core.predictors import Likelihood, Score
from pac_core.ranked_scores import RankedScore, surprise
from pac_core.temperatures import fit_temperature

LABEL_SCORES = ("smallest", "paper", "plain")
"""Chosen on the tune units; -log f with their temperature (C+D); -log f as it is (D)."""
_TAUS = (0.7, 0.85, 1.2)  # times the most likely one
_MIXTURES = ((0.1, 0.33), (0.1, 0.5), (0.2, 0.5), (0.2, 0.7))  # share and flatness
_RANKS = ((1.0, 0.5), (1.2, 1.0), (1.5, 2.0))  # times the most likely tau, and weight of log(rank)
_WIDEST = 3.0  # the band's ends, at most so many times the expected errors
_GAIN = 0.07  # over the root of the expected errors: by how much the paper's must be beaten
_LEAST_GAIN = 0.02  # and at least by so much: less is not worth what chance does to a choice


def choose_label_score(
    forecast: LogitForecast,
    labels: Any,
    level: PACLevel,
    *,
    calibrate: int | None = None,
    others: Sequence[PACLevel] = (),
) -> Score:
    """The score of a fixed menu whose sets are smallest at this level, chosen and fitted on the tune split.

    forecast, labels: of the tune units; the promise holds whatever is chosen, because none of them is
        calibrated on
    calibrate: how many units it will be calibrated on, which says how many of them may lie above T
    others: further levels that the same score is to serve; their relative sizes are averaged

    On the menu is the paper's -log p, at its temperature and others, mixed with a flatter forecast, or with
    a multiple of log(rank); the plain -log p, whose sets are those of LAC; and RAPS and SAPS without their
    random part. Each is judged by the mean size of the tune units' sets relative to the paper's, averaged
    over thresholds that leave about as many tune labels outside as the level allows. The paper's is kept
    unless another is smaller by more than chance.

    >>> rng = np.random.default_rng(0)
    >>> logits = -np.sort(-4 * rng.gumbel(size=(1000, 50)), axis=1)
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> labels[:80] = rng.integers(0, 20, size=80)      # some lie anywhere among the first twenty
    >>> score = choose_label_score(LogitForecast(logits), labels, PACLevel(0.05, 0.01), calibrate=2000)
    >>> print(score)
    mass down to p at tau = 0.5305 + 0.1 (rank - 1), chosen on 1,000 tune units
    """
    paper = tempered(forecast, labels, level)
    units = Units.of(forecast, labels)
    return choose_among(menu(units), units, (level, *others), calibrate=calibrate) or paper


def menu(units: Units) -> list[RankedScore]:
    """What is tried: likelihoods at multiples of the most likely temperature, and what others use."""
    n, tau = len(units.ranks), units.tau
    ours = [RankedScore("likelihood", times * tau, n=n) for times in _TAUS]
    ours += [RankedScore("likelihood", tau, share=share, flat=flat, n=n) for share, flat in _MIXTURES]
    ours += [RankedScore("likelihood", times * tau, weight, n=n) for times, weight in _RANKS]
    raps = [RankedScore("mass", tau, weight, power=1.0, n=n) for weight in (0.01, 0.1)]
    saps = [RankedScore("top", tau, weight, power=1.0, n=n) for weight in (0.05, 0.2)]
    return [*ours, RankedScore("likelihood", 1.0, n=n), *raps, *saps]


def choose_among(
    scores: Iterable[RankedScore],
    units: Units,
    levels: Sequence[PACLevel],
    *,
    calibrate: int | None = None,
    always: bool = False,
) -> RankedScore | None:
    """The one with the smallest relative size; None if the paper's is as small (unless `always`)."""
    n = len(units.ranks)
    expected = [_expected(n, level, calibrate) for level in levels]
    bands = [_band(errors, n) for errors in expected]
    counts, ends = np.concatenate(bands), np.cumsum([len(band) for band in bands])[:-1]
    paper = units.sizes(RankedScore("likelihood", units.tau), counts)

    def relative(score: RankedScore) -> float:
        parts = np.split(np.log(units.sizes(score, counts) / paper), ends)
        return float(np.mean([part.mean() for part in parts]))

    least, best = min(((relative(score), score) for score in scores), key=lambda one: one[0])
    worth = max(_GAIN / np.sqrt(np.mean(expected)), _LEAST_GAIN)
    return best if always or least < -worth else None


@dataclass(frozen=True, eq=False)
class Units:
    """Tune units, the labels of each in the order of their logits.

    gaps: `[N, K]` from the largest logit down to each, rising, times the forecast's own temperature
    ranks: `[N]` of the true label, from 0; equals share the last
    tau: the most likely temperature
    known: normalisers that were computed already, by temperature
    """

    gaps: Floats
    ranks: NDArray[np.int64]
    tau: float
    known: dict[float, Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, forecast: LogitForecast, labels: Any) -> Units:
        """Sorted block by block, in the precision of the logits."""
        logits, truth = forecast.logits, labels_for("labels", labels, *forecast.logits.shape)
        tau = float(fit_temperature(forecast, truth).tau)
        work = np.float64 if logits.dtype == np.float64 else np.float32
        gaps, ranks = np.empty(logits.shape, dtype=work), np.empty(len(truth), dtype=np.int64)

        def block(rows: slice, _: Floats) -> None:
            z = logits[rows]
            ranks[rows] = (z >= np.take_along_axis(z, truth[rows, None], axis=1)).sum(axis=1) - 1
            fallen = np.sort(np.negative(z, dtype=work), axis=1)
            np.multiply(fallen - fallen[:, :1], forecast.tau, out=gaps[rows])

        over_rows(block, logits, 0, work)
        return cls(gaps, ranks, tau)

    def sizes(self, score: RankedScore, counts: NDArray[np.int64]) -> Floats:
        """`[C]` the mean size of sets that leave so many true labels outside, for each of the counts."""
        classes, penalty = self.gaps.shape[1], score.penalty(self.gaps.shape[1])
        base = self._base(score)
        own = np.sort(base(self.ranks) + penalty[self.ranks])
        found = {}
        for count in np.unique(counts):
            limit = own[len(own) - 1 - count]
            # The score rises along the ranks: the size of a set is found by halving.
            low, high = np.zeros_like(self.ranks), np.full_like(self.ranks, classes)
            while (low < high).any():
                middle = (low + high) // 2
                at = np.minimum(middle, classes - 1)
                inside = (base(at) + penalty[at] <= limit) & (low < high)
                low, high = np.where(inside, middle + 1, low), np.where(inside, high, middle)
            found[count] = low.mean()
        return np.array([found[count] for count in counts])

    def _base(self, score: RankedScore) -> Callable[[NDArray[np.int64]], Floats]:
        """From ranks `[N]` to what the score has there before its penalty."""
        rows = np.arange(len(self.ranks))
        parts = [(log, tau, self._below(tau)) for tau, log in score.mixture()]

        def likelihood(ranks: NDArray[np.int64]) -> Floats:
            return surprise(parts, self.gaps[rows, ranks].astype(np.float64))

        top = likelihood(np.zeros_like(self.ranks))
        if score.base == "mass":
            whole = surprise([(log, tau, below[:, None]) for log, tau, below in parts], self.gaps)
            mass = np.cumsum(np.exp(-whole), axis=1)
            return lambda ranks: mass[rows, ranks]
        if score.base == "top":
            return lambda ranks: np.exp(-top)
        return likelihood if score.base == "likelihood" else lambda ranks: likelihood(ranks) - top

    def _below(self, tau: float) -> Floats:
        """`[N]` -log of the largest probability at this temperature, kept for the next score that asks."""
        if tau not in self.known:
            below = np.empty(len(self.ranks))

            def block(rows: slice, scratch: Floats) -> None:
                weights = np.multiply(self.gaps[rows], -tau, out=scratch[0])
                below[rows] = np.log(np.exp(weights, out=weights).sum(axis=1, dtype=np.float64))

            over_rows(block, self.gaps, 1, self.gaps.dtype)
            self.known[tau] = below
        return self.known[tau]


def _expected(n: int, level: PACLevel, calibrate: int | None) -> float:
    """How many of `n` tune labels would lie above T, at the share that the calibration allows."""
    units = calibrate or n
    try:
        return max(1.0, n * max_errors(units, level) / units)
    except NotEnoughData:  # a choice needs no proof
        return max(1.0, n * level.epsilon)


def _band(errors: float, n: int) -> NDArray[np.int64]:
    """Numbers of errors about the expected one, three of its standard deviations to either side.

    The size at one of them hangs on a single label; wider, it would be of another level.
    """
    width = min(3 / np.sqrt(errors), np.log(_WIDEST))
    ends = np.rint(errors * np.exp(np.linspace(-width, width, 15))).astype(np.int64)
    return np.unique(np.clip(ends, 0, n - 1))


def score_named(score: str | None, temperature: bool | None, *, default: str = "smallest") -> str:
    """What `--score` and `--temperature/--no-temperature` ask for together, one of `LABEL_SCORES`."""
    if temperature is None:
        return score or default
    told = "paper" if temperature else "plain"
    if score not in (None, told):
        word = "--temperature" if temperature else "--no-temperature"
        raise InvalidInput(f"{word} is --score {told}, got --score {score} as well")
    return told


def label_score_fit(name: str, *, calibrate: int | None = None, others: Sequence[PACLevel] = ()) -> FitScore:
    """How the score of this name, one of `LABEL_SCORES`, is fitted on tune units."""
    if name == "smallest":
        return partial(choose_label_score, calibrate=calibrate, others=others)
    if name == "paper":
        return tempered
    if name == "plain":
        return lambda forecast, truth, level: Likelihood()
    raise InvalidInput(f"score must be one of {', '.join(LABEL_SCORES)}, got {name!r}")
