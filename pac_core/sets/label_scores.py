"""Scores of labels by likelihood and rank, and which has the smallest sets on the tune part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Floats, check_labels, run_over_rows
from pac_core.bounds import PACLevel, max_errors
from pac_core.errors import BadCertificate, InvalidInput, NotEnoughData
from pac_core.forecasts import LogitForecast, check_forecast
from pac_core.scores import fit_temperature
from pac_core.sets.kinds import LabelSets, widen_for_labels
from pac_core.sets.predictor import Score, fit_tempered
from pac_core.thresholds import Threshold

BASES = ("likelihood", "mass", "top")
_ABOVE = math.ulp(0.0)
_RANGES = {
    "tau": (_ABOVE, math.inf, "above 0"),
    "weight": (0.0, math.inf, "at least 0"),
    "power": (0.0, 2.0, "from 0 to 2"),
    "share": (0.0, 0.5, "from 0 to 0.5"),
    "flat": (_ABOVE, 1.0, "above 0 and at most 1"),
}


@dataclass(frozen=True)
class RankedScore:
    """A score of labels by probability, plus a penalty that grows with the rank.

    base: for the label with the r-th largest probability, "likelihood" -log p_r (the paper's), "mass"
        p_1 + ... + p_r, "top" p_1
    tau: temperature; it multiplies the logits
    share, flat: a share of p comes from a flatter forecast, p = (1 - share) softmax(tau * logits) + share
        softmax(flat * tau * logits), for a classifier that is sometimes overconfident
    weight: of the penalty, at least 0
    power: the penalty is (r^power - 1) / power: log r for 0, r - 1 for 1
    n: tune units it was chosen on; 0 if it was not chosen on any

    Labels with equal logits share the worst of their ranks, and a set is the first labels of the ranking.
    With power 1 "mass" is RAPS and "top" is SAPS, each without its random part.

    >>> three = LogitForecast.from_probabilities(np.array([[0.7, 0.2, 0.1]]))
    >>> score = RankedScore("likelihood", tau=1.0, weight=2.0)
    >>> score.scores(three, [1]).round(6).item() == round(-math.log(0.2) + 2 * math.log(2), 6)
    True
    >>> score.sets(three, 3.0).labels()
    [[0, 1]]
    """

    kind: ClassVar[str] = "ranked"
    base: str
    tau: float
    weight: float = 0.0
    power: float = 0.0
    share: float = 0.0
    flat: float = 1.0
    n: int = 0

    def __post_init__(self) -> None:
        if self.base not in BASES:
            raise InvalidInput(f"base must be one of {', '.join(BASES)}, got {self.base!r}")
        for name, (least, most, rule) in _RANGES.items():
            value = getattr(self, name)
            known = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
            if not known or not (math.isfinite(value) and least <= value <= most):
                raise InvalidInput(f"{name} must be a finite number {rule}, got {value!r}")
            object.__setattr__(self, name, float(value))
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 0:
            raise InvalidInput(f"n must be a whole number of tune units, got {self.n!r}")

    def penalty(self, classes: int) -> Floats:
        """`[K]` the penalty of each rank."""
        ranks = np.arange(1, classes + 1, dtype=np.float64)
        return self.weight * (np.log(ranks) if self.power == 0 else (ranks**self.power - 1) / self.power)

    def scores(self, forecast: LogitForecast, truth: Any) -> Floats:
        """`[N]` the score of each label."""
        labels = check_labels("labels", truth, *check_forecast(forecast, LogitForecast).logits.shape)
        scores = np.empty(len(labels))

        def block(rows: slice, z: Floats, fallen: Floats, ordered: Floats) -> None:
            chosen = np.take_along_axis(z, labels[rows, None], axis=1)
            worst = np.count_nonzero(z >= chosen, axis=1) - 1
            scores[rows] = np.take_along_axis(ordered, worst[:, None], axis=1)[:, 0]

        self._over(forecast, block)
        return scores

    def sets(self, forecast: LogitForecast, threshold: Threshold | float) -> LabelSets:
        """The labels whose score is at most `widen_for_labels(T)`, by the numbers that `scores` gives."""
        limit = widen_for_labels(threshold, moves=self.moves)
        member = np.empty(check_forecast(forecast, LogitForecast).logits.shape, dtype=bool)

        def block(rows: slice, z: Floats, fallen: Floats, ordered: Floats) -> None:
            inside = np.count_nonzero(ordered <= limit, axis=1)
            # Ties with the first rank outside are outside too: they share the last of their ranks.
            first = np.take_along_axis(fallen, np.minimum(inside, z.shape[1] - 1)[:, None], axis=1)
            np.greater(z, -first, out=member[rows])
            member[rows][inside == z.shape[1]] = True

        self._over(forecast, block)
        return LabelSets(member)

    def _over(self, forecast: LogitForecast, visit: Callable[[slice, Floats, Floats, Floats], None]) -> None:
        """Visit block by block: the logits, those negated in rising order, and the score at each rank."""
        logits, penalty = forecast.logits, self.penalty(forecast.logits.shape[1])
        parts = [(forecast.tempered(tau), log) for tau, log in self.mixture()]
        for part, _ in parts:
            part.check()

        def block(rows: slice, scratch: Floats) -> None:
            z, (fallen,) = logits[rows], scratch
            np.negative(z, out=fallen, dtype=fallen.dtype)
            fallen.sort(axis=1)
            with np.errstate(over="ignore"):
                gaps = fallen.astype(np.float64) - fallen[:, :1].astype(np.float64)
                tops = [(log, part.tau, _top(part, rows, fallen)) for part, log in parts]
                ordered = _based(self.base, negative_log_p(tops, gaps)) + penalty
            # A rounded sum may fall by its last bit where its parts rise.
            np.maximum.accumulate(ordered, axis=1, out=ordered)
            ordered[gaps == np.inf] = np.inf  # a label of probability zero, whatever its base
            visit(rows, z, fallen, ordered)

        run_over_rows(block, logits, 1, np.float64 if logits.dtype == np.float64 else np.float32)

    def mixture(self) -> list[tuple[float, float]]:
        """Temperature and log share of each forecast that p is made of."""
        if not self.share:
            return [(self.tau, 0.0)]
        return [(self.tau, math.log1p(-self.share)), (self.flat * self.tau, math.log(self.share))]

    @property
    def moves(self) -> int:
        """How many times the error of its normalisers a score may be off on another CPU: two in a mixture."""
        return 2 if self.share else 1

    def close_to(self, other: RankedScore) -> bool:
        """Whether the two are equal up to the last digits of their numbers."""
        mine, theirs = ((s.tau, s.weight, s.power, s.share, s.flat) for s in (self, other))
        return (self.base, self.n) == (other.base, other.n) and np.allclose(mine, theirs, rtol=1e-6)

    def __str__(self) -> str:
        known = {"likelihood": "-log p", "mass": "mass down to p", "top": "p_1"}
        other = f"(rank^{self.power:g} - 1) / {self.power:g}"
        ranks = {0.0: "log(rank)", 1.0: "(rank - 1)"}.get(self.power, other)
        penalty = f" + {self.weight:.4g} {ranks}" if self.weight else ""
        mixed = f" ({self.share:g} of it at {self.flat:g} tau)" if self.share else ""
        chosen = f", chosen on {self.n:,} tune units" if self.n else ""
        return f"{known[self.base]} at tau = {self.tau:.4g}{mixed}{penalty}{chosen}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, numbers: dict[str, Any]) -> RankedScore:
        names = sorted(field.name for field in fields(cls))
        if sorted(numbers) != names:
            raise BadCertificate(f"a ranked score must have the fields {names}, got {sorted(numbers)}")
        return cls(**numbers)


def _top(part: LogitForecast, rows: slice, fallen: Floats) -> Floats:
    """`[B, 1]` -log of the largest probability."""
    shift, log = part.normaliser
    return (log[rows] + (shift[rows] + part.tau * fallen[:, 0].astype(np.float64)))[:, None]


def negative_log_p(parts: Sequence[tuple[float, float, Floats]], gaps: Floats) -> Floats:
    """-log p, from the gaps to the largest logit and, of each part, log share, temperature and -log p_1."""
    first, *rest = (log - tau * gaps - top for log, tau, top in parts)
    for other in rest:
        first = np.logaddexp(first, other)
    return -first


def _based(base: str, surprise: Floats) -> Floats:
    """`[B, K]` the base at each rank, from -log p."""
    if base == "likelihood":
        return surprise
    if base == "mass":
        return np.cumsum(np.exp(-surprise), axis=1)
    return np.broadcast_to(np.exp(-surprise[:, :1]), surprise.shape)


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

        if score.base == "mass":
            whole = negative_log_p([(log, tau, below[:, None]) for log, tau, below in parts], self.gaps)
            mass = np.cumsum(np.exp(-whole), axis=1)
            return lambda ranks: mass[rows, ranks]
        if score.base == "top":
            top = np.exp(-likelihood(np.zeros_like(self.ranks)))
            return lambda ranks: top
        return likelihood

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
