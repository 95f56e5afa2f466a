"""Label sets, and scores of labels by likelihood and rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Floats, check_labels, run_over_rows
from pac_core.errors import BadCertificate, InvalidInput
from pac_core.forecasts import EXACT_TO, LogitForecast, check_forecast
from pac_core.scores import label_nll
from pac_core.sets.gaussian import threshold_value, widen
from pac_core.thresholds import Threshold


def widen_for_labels(threshold: Threshold | float, *, moves: int = 1) -> float:
    """T of label sets, widened so that the promise holds on a CPU other than the calibrating one.

    If every score is within b = `moves` * `EXACT_TO` of its exact value, T of the exact scores is at most
    T + b, and a new label whose exact score is at most that scores at most T + 2 b on any CPU.
    """
    return widen(threshold_value(threshold), least=1.0) + 2 * moves * EXACT_TO


@dataclass(frozen=True, eq=False)
class LabelSets:
    """`member` `[N, K]` bool: the labels in each set."""

    member: NDArray[np.bool_]
    size_in: ClassVar[str] = "labels"

    def contains(self, labels: Any) -> NDArray[np.bool_]:
        """`[N]` whether each set contains its label."""
        chosen = check_labels("labels", labels, *self.member.shape)
        return self.member[np.arange(len(chosen)), chosen]

    def size(self) -> NDArray[np.int64]:
        """`[N]` the number of labels in each set."""
        return np.asarray(np.count_nonzero(self.member, axis=1))

    def labels(self) -> list[list[int]]:
        """The labels of each set."""
        return [np.flatnonzero(row).tolist() for row in self.member]

    @property
    def empty(self) -> NDArray[np.bool_]:
        """`[N]` whether a set contains no label."""
        return np.asarray(~self.member.any(axis=1))


def label_sets(forecast: LogitForecast, threshold: Threshold | float) -> LabelSets:
    """The labels whose score is at most T, for each input: C_T(x) of the paper.

    Membership agrees with `nll(forecast, y) <= widen_for_labels(T)` to the last bit: logits are compared with
    the smallest one whose score passes. Appendix A.1 of the paper: no threshold gives the sets {} and {0, 1}
    of the forecasts (1/3, 1/3, 1/3) and (3/4, 1/4, 0); a temperature near 0 makes the second (1/2, 1/2, 0).

    >>> import math
    >>> two = LogitForecast.from_probabilities(np.array([[1/3, 1/3, 1/3], [3/4, 1/4, 0.0]]))
    >>> target = [[False, False, False], [True, True, False]]
    >>> any(label_sets(two, T).member.tolist() == target for T in np.linspace(0.0, 5.0, 1001).tolist())
    False
    >>> label_sets(two.tempered(1e-3), -math.log(2/5)).member.tolist() == target
    True
    """
    limit = widen_for_labels(threshold)
    logits, (shift, log) = check_forecast(forecast, LogitForecast).logits, forecast.normaliser

    def inside(least: Any) -> Any:
        return label_nll(forecast, least) <= limit

    with np.errstate(over="ignore", invalid="ignore"):
        near = ((shift + (log - limit)) / forecast.tau).astype(logits.dtype)
        below, above = (np.nextafter(near, logits.dtype.type(side)) for side in (-np.inf, np.inf))
        least = np.where(inside(below), below, np.where(inside(near), near, above))
        sure = inside(least) & ~inside(np.nextafter(least, logits.dtype.type(-np.inf)))
    member: NDArray[np.bool_] = logits >= least[:, None]
    for row in np.flatnonzero(~sure):  # rounding hides the limit: compare every label's score
        member[row] = log[row] + (shift[row] - forecast.tau * logits[row].astype(np.float64)) <= limit
    return LabelSets(member)


BASES = ("likelihood", "margin", "mass", "top")
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

    base: for the label with the r-th largest probability, "likelihood" -log p_r (the paper's), "margin"
        log(p_1 / p_r), "mass" p_1 + ... + p_r, "top" p_1
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
        known = {"likelihood": "-log p", "margin": "log(p_1 / p)", "mass": "mass down to p", "top": "p_1"}
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
    if base == "margin":
        return surprise - surprise[:, :1]
    if base == "mass":
        return np.cumsum(np.exp(-surprise), axis=1)
    return np.broadcast_to(np.exp(-surprise[:, :1]), surprise.shape)
