"""How many errors a calibration set may contain and still prove a level (Theorem 1 of Park et al., 2020), and
what several certificates cost together.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from pac_core.errors import InvalidInput, NotEnoughData, OverBudget

_TIE = 1e-11  # betaincc is better than this; nearer to delta than this, integers decide
_EXACT = 2_000  # largest n for which the exact sum takes milliseconds
_MOST = 2**53  # beyond it a double no longer counts in ones


@dataclass(frozen=True)
class PACLevel:
    """The level of a promise: the set of a new unit misses the truth with probability at most `epsilon`, with
    confidence at least 1 - `delta` over the draw of the calibration set; both in (0, 1)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, check_probability(name, getattr(self, name)))


Bound: TypeAlias = Callable[[int, PACLevel], int]
"""Maps the number of units and the level to the number of errors allowed."""


def max_errors(n: int, level: PACLevel) -> int:
    """k*, the largest k with P[Binomial(n, epsilon) <= k] < delta (equation 8 of the paper).

    >>> max_errors(20_000, PACLevel(epsilon=0.01, delta=1e-5))
    142
    >>> max_errors(20, PACLevel(epsilon=0.1, delta=0.1))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    pac_core.errors.NotEnoughData: 20 calibration units cannot prove epsilon=0.1 ...
    """
    n, level = check_integer("n", n, least=1), check_level(level)
    allowed = bisect_left(range(n), True, key=lambda k: not proves(n, k, level)) - 1
    if allowed < 0:
        raise NotEnoughData(n, min_samples(level), level)
    return allowed


def check_probability(name: str, value: Any) -> float:
    """Return a number strictly between 0 and 1; refuse anything else."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise InvalidInput(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return float(value)


def min_samples(level: PACLevel, errors: int = 0) -> int:
    """The smallest number of units that proves the level with `errors` errors.

    >>> min_samples(PACLevel(epsilon=0.01, delta=1e-5))
    1146
    """
    errors, level = check_integer("errors", errors, least=0), check_level(level)
    return _first(errors + 1, lambda n: proves(n, errors, level), level)


def share_level(level: PACLevel, candidates: int) -> PACLevel:
    """(epsilon / K, delta): at this level one candidate of each unit, drawn uniformly, proves `level` for all
    K together, because any of them misses with at most K times the probability of a drawn one.

    >>> min_samples(share_level(PACLevel(epsilon=0.05, delta=1e-3), 21))
    2898
    """
    k, level = check_integer("candidates", candidates, least=1), check_level(level)
    each = level.epsilon / k
    while Fraction(each) * k > Fraction(level.epsilon):
        each = math.nextafter(each, 0.0)
    return PACLevel(each, level.delta)


def proves(n: int, errors: int, level: PACLevel) -> bool:
    """Whether P[Binomial(n, epsilon) <= errors] < delta; a tie is exact to 2,000 units, then a no."""
    if errors >= n:
        return False
    from scipy.special import betaincc  # half of the package's import time, so not at its top

    tail = float(betaincc(errors + 1, n - errors, level.epsilon))
    if abs(tail - level.delta) > _TIE * level.delta:
        return tail < level.delta
    return n <= _EXACT and _exactly_below(n, errors, level)


def vc_max_errors(n: int, level: PACLevel) -> int:
    """The number of errors that the VC bound (equation 7 of the paper) allows among `n` units.

    >>> vc_max_errors(20_000, PACLevel(epsilon=0.05, delta=1e-5))
    300
    """
    n, level = check_integer("n", n, least=1), check_level(level)
    allowed = math.floor(_vc_errors(n, level))
    if allowed < 0:
        raise NotEnoughData(n, vc_min_samples(level), level)
    return allowed


def vc_min_samples(level: PACLevel, errors: int = 0) -> int:
    """The smallest number of units at which the VC bound allows `errors` errors."""
    errors, level = check_integer("errors", errors, least=0), check_level(level)
    return _first(errors + 1, lambda n: _vc_errors(n, level) >= errors, level)


BOUNDS: dict[str, Bound] = {bound.__name__: bound for bound in (max_errors, vc_max_errors)}


def check_level(level: Any) -> PACLevel:
    """Return `level`; refuse anything but a `PACLevel`."""
    if not isinstance(level, PACLevel):
        raise InvalidInput(f"level must be a PACLevel(epsilon, delta), got {level!r}")
    return level


def check_integer(name: str, value: Any, *, least: int) -> int:
    """Return `value` as an int of at least `least`; refuse floats and booleans."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number <= _MOST:
        raise InvalidInput(f"{name} must be a whole number from {least} to 2**53, got {value!r}")
    return number


def _first(least: int, holds: Callable[[int], bool], level: PACLevel) -> int:
    n = least + bisect_left(range(least, _MOST), True, key=holds)
    if n == _MOST:
        raise InvalidInput(f"{level} needs more than 2**53 units, which is out of reach")
    return n


def _vc_errors(n: int, level: PACLevel) -> float:
    slack = math.sqrt((math.log(2 * n) + 1 - math.log(level.delta / 4)) / n)
    return n * (level.epsilon - slack)


def _exactly_below(n: int, errors: int, level: PACLevel) -> bool:
    """Whether the tail is below delta, in exact integer arithmetic."""
    hit, base = level.epsilon.as_integer_ratio()
    miss = base - hit
    term = miss**n
    total = term
    for i in range(errors):
        term = term * (n - i) * hit // ((i + 1) * miss)
        total += term
    share, whole = level.delta.as_integer_ratio()
    return bool(total * whole < share * base**n)


_ROUNDED = 1 + 1e-12  # three thirds of a budget do not exceed it
_WIDEST = 4_000_000  # entries of a transition matrix; a wider one falls back to the sum of deltas
_SIGMAS = 12
_CUT_OFF = 1e-20  # more than the probability of leaving a window of twelve sigmas


@dataclass(frozen=True)
class Entry:
    """One certificate that a look is to give: a score, by its digest, at a level."""

    score: str
    epsilon: float
    delta: float

    @property
    def level(self) -> PACLevel:
        return PACLevel(self.epsilon, self.delta)


@dataclass(frozen=True)
class Family:
    """Every attempt recorded in one ledger, whatever its name: trying again costs again.

    attempts: looks, descents and claims, including failed, renamed and retrained ones, and monitor resets
    cost: the sum of their failure probabilities
    budget: fixed before the first attempt and never exceeded; None if there is none
    """

    attempts: int
    cost: float
    budget: float | None = None

    def __post_init__(self) -> None:
        check_integer("attempts", self.attempts, least=0)
        for name, value in (("cost", self.cost), ("budget", self.budget)):
            if value is not None and not (isinstance(value, float) and 0 <= value < math.inf):
                raise InvalidInput(f"{name} must be a float of at least 0, got {value!r}")
        if self.budget is not None and (not 0 < self.budget < 1 or self.cost > self.budget * _ROUNDED):
            raise InvalidInput(
                f"budget must lie strictly between 0 and 1 and cover the cost, got {self.budget!r} for "
                f"{self.cost!r}"
            )

    @property
    def left(self) -> float | None:
        """What is left of the budget, or None."""
        return None if self.budget is None else max(0.0, self.budget - self.cost)

    @property
    def share(self) -> float | None:
        """A delta for the next attempt that leaves room for later ones: attempt a may cost B / (a (a + 1)).

        >>> Family(0, 0.0, 0.01).share, Family(1, 0.005, 0.01).share
        (0.005, 0.0016666666666666668)
        """
        return None if self.left is None else self.left / (self.attempts + 2)

    def and_one_of(self, cost: float) -> Family:
        """Add one attempt; raise `OverBudget` if the budget does not cover it."""
        total = add_deltas((self.cost, cost))
        if self.budget is not None and total > self.budget * _ROUNDED:
            raise OverBudget(cost, self)
        return Family(self.attempts + 1, total, self.budget)

    def __str__(self) -> str:
        many = f"{self.attempts:,} attempt{'s' * (self.attempts != 1)} or look{'s' * (self.attempts != 1)}"
        if self.budget is not None:
            return (
                f"Its ledger holds {many}, charged {self.cost!r} in all to a budget laid down before the "
                f"first: with confidence 1 - {self.budget!r}, no statement ever issued from it is false."
            )
        if self.attempts == 1:
            return "Its ledger holds 1 attempt or look: no other is known."
        return (
            f"Its ledger holds {many} in all, whatever they were called; their deltas add up to "
            f"{self.cost!r}, which is no confidence level where one was made because of what another had "
            "shown. A budget laid down before the first would give one."
        )


def add_deltas(deltas: Iterable[float]) -> float:
    """Their sum, added as the decimals that people write.

    >>> add_deltas([0.05, 0.01]), 0.05 + 0.01
    (0.06, 0.060000000000000005)
    """
    return float(sum((Decimal(repr(float(delta))) for delta in deltas), Decimal(0)))


def joint_failure_probability(n: int, menu: Iterable[Entry]) -> float:
    """A bound on the probability that any of these certificates, from the same `n` units, fails.

    The costs of different scores add up. For one score only the largest delta of an epsilon counts, and at
    several epsilons the probability is exact: the counts beyond the true quantiles are nested binomials.

    >>> menu = [Entry("s", e, d) for e in (0.01, 0.02, 0.03, 0.04, 0.05) for d in (1e-1, 1e-3, 1e-5)]
    >>> round(joint_failure_probability(5000, menu), 3)
    0.214
    """
    by_score: dict[str, dict[float, float]] = {}
    for entry in menu:
        deltas = by_score.setdefault(entry.score, {})
        deltas[entry.epsilon] = max(entry.delta, deltas.get(entry.epsilon, 0.0))
    return min(1.0, math.fsum(_cost_of_one_score(n, deltas) for deltas in by_score.values()))


def _cost_of_one_score(n: int, deltas: dict[float, float]) -> float:
    if len(deltas) == 1:
        return next(iter(deltas.values()))
    epsilons = sorted(deltas)
    allowed = [max_errors(n, PACLevel(epsilon, deltas[epsilon])) for epsilon in epsilons]
    windows = [_window(n, epsilon) for epsilon in epsilons]
    if max(len(a) * len(b) for a, b in pairwise(windows)) > _WIDEST:
        return math.fsum(deltas.values())
    # alive[i]: probability that windows[j][i] units lie beyond quantile j and no bound failed yet
    alive, before, reached, failed = np.ones(1), np.zeros(1, dtype=np.int64), 0.0, _CUT_OFF
    for epsilon, window, errors in zip(epsilons, windows, allowed, strict=True):
        share = (epsilon - reached) / (1 - reached)
        step = _binomial(window[None, :] - before[:, None], n - before[:, None], share)
        alive = alive @ step
        failed += float(alive[window <= errors].sum())
        alive[window <= errors] = 0
        before, reached = window, epsilon
    return min(failed, math.fsum(deltas.values()))


def _window(n: int, epsilon: float) -> Any:
    """The counts within twelve standard deviations; `_CUT_OFF` charges the rest."""
    middle, wide = n * epsilon, _SIGMAS * math.sqrt(n * epsilon * (1 - epsilon)) + _SIGMAS
    return np.arange(max(0, math.floor(middle - wide)), min(n, math.ceil(middle + wide)) + 1)


def _binomial(hits: Any, trials: Any, share: float) -> Any:
    """P[Binomial(trials, share) = hits], 0 where hits is negative."""
    from scipy.special import betaln, xlog1py, xlogy  # see bounds.proves

    possible = (hits >= 0) & (hits <= trials)
    k = np.where(possible, hits, 0)
    log_choose = -betaln(trials - k + 1, k + 1) - np.log1p(trials)
    log_p = log_choose + xlogy(k, share) + xlog1py(trials - k, -share)
    return np.where(possible, np.exp(log_p), 0.0)
