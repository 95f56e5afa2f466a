"""The score of labels with the smallest sets, chosen on the tune part from a fixed list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Floats, check_labels, run_over_rows
from pac_core.bounds import PACLevel, max_errors
from pac_core.errors import InvalidInput, NotEnoughData
from pac_core.forecasts import LogitForecast
from pac_core.scores import fit_temperature
from pac_core.sets.labels import RankedScore, negative_log_p
from pac_core.sets.predictor import FitScore, Likelihood, Score, fit_tempered

LABEL_SCORES = ("smallest", "paper", "plain")
"""Chosen on the tune units; -log f with their temperature (C+D); -log f as it is (D)."""
_TAUS = (0.7, 0.85, 1.2)  # times the most likely one
_MIXTURES = ((0.1, 0.5), (0.2, 0.7))  # share and flatness
_RANKS = ((1.0, 0.5), (1.2, 1.0), (1.5, 2.0))  # times the most likely tau, and weight of log(rank)
_WIDEST = 3.0  # the ends of the band, at most so many times the expected errors
_KIN = 0.5  # standard errors by which another temperature must beat the first candidate
_OTHERS = 1.25  # likewise any other score; more where few errors are expected
_LEAST_SLOPE = 0.05  # of log size by log errors, which few tune errors may not show


def choose_label_score(
    forecast: LogitForecast,
    labels: Any,
    level: PACLevel,
    *,
    calibrate: int | None = None,
    others: Sequence[PACLevel] = (),
) -> Score:
    """The score of a fixed list whose sets are smallest at this level, chosen and fitted on the tune part.

    forecast, labels: of the tune units; the promise holds whatever is chosen, because none of them is
        calibrated on
    calibrate: how many units it will be calibrated on, which determines how many may lie above T
    others: further levels that the same score is to serve; their relative sizes are averaged

    The default is -log p halfway between the forecast as it is (the paper's D, the sets of LAC) and at its
    most likely temperature (C+D). The other candidates are these two, other temperatures, mixtures with a
    flatter forecast, multiples of log(rank), and RAPS and SAPS without their random part. Each is judged by
    the mean size of the tune units' sets relative to the default, averaged over thresholds that leave about
    as many tune labels outside as the level allows; the default is kept unless the gain exceeds chance.

    >>> rng = np.random.default_rng(0)
    >>> logits = -np.sort(-4 * rng.gumbel(size=(1000, 50)), axis=1)
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> labels[:80] = rng.integers(0, 20, size=80)      # some lie anywhere among the first twenty
    >>> score = choose_label_score(LogitForecast(logits), labels, PACLevel(0.05, 0.01), calibrate=2000)
    >>> print(score)
    mass down to p at tau = 0.5305 + 0.01 (rank - 1), chosen on 1,000 tune units
    """
    units = Units.of(forecast, labels)
    chosen = choose_among(candidate_scores(units), units, (level, *others), calibrate=calibrate)
    return fit_tempered(forecast, labels, level) if chosen == _paper(units) else chosen


def candidate_scores(units: Units) -> list[RankedScore]:
    """The candidates: the default, the paper's two scores, their variants, and those of the literature."""
    n, tau = len(units.ranks), units.tau
    ours = [RankedScore("likelihood", one, n=n) for one in (np.sqrt(tau), 1.0)]
    ours += [_paper(units), *(RankedScore("likelihood", times * tau, n=n) for times in _TAUS)]
    ours += [RankedScore("likelihood", tau, share=share, flat=flat, n=n) for share, flat in _MIXTURES]
    ours += [RankedScore("likelihood", times * tau, weight, n=n) for times, weight in _RANKS]
    raps = [RankedScore("mass", tau, weight, power=1.0, n=n) for weight in (0.01, 0.1)]
    saps = [RankedScore("top", tau, weight, power=1.0, n=n) for weight in (0.05, 0.2)]
    return [*ours, *raps, *saps]


def _paper(units: Units) -> RankedScore:
    return RankedScore("likelihood", units.tau, n=len(units.ranks))


def choose_among(
    scores: Sequence[RankedScore], units: Units, levels: Sequence[PACLevel], *, calibrate: int | None = None
) -> RankedScore:
    """The score with the smallest relative size if it beats the first by more than chance; else the first.

    If k tune labels lie outside, T and hence the log of the size are known to b / sqrt(k), where b is the
    slope of log size by log k. In a comparison only those labels count that are outside of one score's sets
    and not the other's: a share m of k makes the standard error of the difference b sqrt(m / k). That holds
    for many errors; where few are expected, scores of another kind must gain more.
    """
    n = len(units.ranks)
    total = np.zeros(len(scores))
    kin = np.array([(one.base, one.weight, one.share) == ("likelihood", 0.0, 0.0) for one in scores])
    for level in levels:
        errors = _expected(n, level, calibrate)
        counts = _band(errors, n)
        along = np.log(counts + 0.5) - np.log(counts + 0.5).mean()
        sizes, outside = zip(*(units.judged(score, counts) for score in scores), strict=True)
        logs = np.log(sizes)
        slopes = np.maximum(-(logs @ along) / max(along @ along, 1e-12), _LEAST_SLOPE)
        apart = np.maximum([np.count_nonzero(one ^ outside[0]) for one in outside], 1) / max(counts[-1], 1)
        doubt = np.maximum(slopes, slopes[0]) * np.sqrt(apart / errors)
        margins = np.where(kin, _KIN, _OTHERS * (1 + 1 / errors))
        total += (logs - logs[0]).mean(axis=1) + margins * doubt
    total[0] = 0.0
    # With few labels scores often tie: their last bits, and so the order of units, must decide nothing.
    return scores[int(np.argmin(total.round(9)))]


@dataclass(frozen=True, eq=False)
class Units:
    """Tune units, with the labels of each in the order of their logits.

    gaps: `[N, K]` from the largest logit down to each, rising, times the forecast's own temperature
    ranks: `[N]` of the true label, from 0; ties share the last
    tau, known: the most likely temperature, and normalisers computed so far, by temperature
    """

    gaps: Floats
    ranks: NDArray[np.int64]
    tau: float
    known: dict[float, Floats] = field(default_factory=dict)

    @classmethod
    def of(cls, forecast: LogitForecast, labels: Any) -> Units:
        """Sort block by block, in the precision of the logits."""
        logits, truth = forecast.logits, check_labels("labels", labels, *forecast.logits.shape)
        tau = float(fit_temperature(forecast, truth).tau)
        work = np.float64 if logits.dtype == np.float64 else np.float32
        gaps, ranks = np.empty(logits.shape, dtype=work), np.empty(len(truth), dtype=np.int64)

        def block(rows: slice, _: Floats) -> None:
            z = logits[rows]
            ranks[rows] = (z >= np.take_along_axis(z, truth[rows, None], axis=1)).sum(axis=1) - 1
            fallen = np.sort(np.negative(z, dtype=work), axis=1)
            np.multiply(fallen - fallen[:, :1], forecast.tau, out=gaps[rows])

        run_over_rows(block, logits, 0, work)
        return cls(gaps, ranks, tau)

    def judged(self, score: RankedScore, counts: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
        """`[C]` mean size of sets that leave `counts` (rising) labels outside, `[N]` which the last omits."""
        classes, penalty = self.gaps.shape[1], score.penalty(self.gaps.shape[1])
        base = self._base(score)
        own = base(self.ranks) + penalty[self.ranks]
        limits = np.sort(own)[len(own) - 1 - counts, None]
        # The score rises along the ranks: find the size of each set by bisection.
        low = np.zeros((len(counts), len(own)), dtype=np.int64)
        high = np.full_like(low, classes)
        while (low < high).any():
            middle = (low + high) // 2
            at = np.minimum(middle, classes - 1)
            inside = (base(at) + penalty[at] <= limits) & (low < high)
            low, high = np.where(inside, middle + 1, low), np.where(inside, high, middle)
        return low.mean(axis=1), own > limits[-1]

    def _base(self, score: RankedScore) -> Callable[[NDArray[np.int64]], Floats]:
        """Maps ranks `[..., N]` to the score there, before its penalty."""
        rows = np.arange(len(self.ranks))
        parts = [(log, tau, self._below(tau)) for tau, log in score.mixture()]

        def likelihood(ranks: NDArray[np.int64]) -> Floats:
            return negative_log_p(parts, self.gaps[rows, ranks].astype(np.float64))

        top = likelihood(np.zeros_like(self.ranks))
        if score.base == "mass":
            whole = negative_log_p([(log, tau, below[:, None]) for log, tau, below in parts], self.gaps)
            mass = np.cumsum(np.exp(-whole), axis=1)
            return lambda ranks: mass[rows, ranks]
        if score.base == "top":
            return lambda ranks: np.exp(-top)
        return likelihood if score.base == "likelihood" else lambda ranks: likelihood(ranks) - top

    def _below(self, tau: float) -> Floats:
        """`[N]` -log of the largest probability at this temperature, cached."""
        if tau not in self.known:
            below = np.empty(len(self.ranks))

            def block(rows: slice, scratch: Floats) -> None:
                weights = np.multiply(self.gaps[rows], -tau, out=scratch[0])
                below[rows] = np.log(np.exp(weights, out=weights).sum(axis=1, dtype=np.float64))

            run_over_rows(block, self.gaps, 1, self.gaps.dtype)
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
    """Numbers of errors around the expected one, up to three standard deviations to either side."""
    width = min(3 / np.sqrt(errors), np.log(_WIDEST))
    ends = np.rint(errors * np.exp(np.linspace(-width, width, 15))).astype(np.int64)
    return np.unique(np.clip(ends, 0, n - 1))


def resolve_score_name(score: str | None, temperature: bool | None, *, default: str = "smallest") -> str:
    """The score that `--score` and `--temperature/--no-temperature` ask for, one of `LABEL_SCORES`."""
    if temperature is None:
        return score or default
    name = "paper" if temperature else "plain"
    if score not in (None, name):
        option = "--temperature" if temperature else "--no-temperature"
        raise InvalidInput(f"{option} means --score {name}, got --score {score} as well")
    return name


def label_score_fitter(
    name: str, *, calibrate: int | None = None, others: Sequence[PACLevel] = ()
) -> FitScore:
    """How the score of this name, one of `LABEL_SCORES`, is fitted on tune units."""
    check_label_score(name)
    if name == "smallest":
        return partial(choose_label_score, calibrate=calibrate, others=others)
    return fit_tempered if name == "paper" else lambda forecast, truth, level: Likelihood()


def check_label_score(name: Any, domain: tuple[Any, ...] = ("labels",)) -> None:
    """Refuse a score that does not exist for labels, or for vectors, before any work."""
    if domain[0] != "labels" and name == "smallest":
        raise InvalidInput(f"score 'smallest' is for labels, the forecasts are of {domain[0]}")
    if name not in LABEL_SCORES:
        raise InvalidInput(f"score must be one of {', '.join(LABEL_SCORES)}, got {name!r}")
