"""Joint failure probability of several statements from the same units."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pac_core.bounds import PACLevel, max_errors, whole
from pac_core.errors import InvalidInput, OverBudget

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
        whole("attempts", self.attempts, least=0)
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
        """A delta for the next attempt that leaves room for any number of later ones.

        If every attempt takes its share, attempt a costs B / (a (a + 1)).

        >>> Family(0, 0.0, 0.01).share, Family(1, 0.005, 0.01).share
        (0.005, 0.0016666666666666668)
        """
        return None if self.left is None else self.left / (self.attempts + 2)

    def and_one_of(self, cost: float) -> Family:
        """Add one attempt; raise `OverBudget` if the budget does not cover it."""
        total = math.fsum((self.cost, cost))
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


def joint_cost(n: int, menu: Iterable[Entry]) -> float:
    """A bound on the probability that any of these certificates, from the same `n` units, fails.

    The costs of different scores add up. For one score at one epsilon only the largest delta counts. For one
    score at several epsilons the probability is exact: the counts beyond the true quantiles are nested
    binomials.

    >>> menu = [Entry("s", e, d) for e in (0.01, 0.02, 0.03, 0.04, 0.05) for d in (1e-1, 1e-3, 1e-5)]
    >>> round(joint_cost(5000, menu), 3)
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
