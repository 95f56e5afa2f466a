"""Betting against a risk: tests that stay valid however often they are looked at.

The null hypothesis is that the risk, the expected loss of each unit given all before it, is alpha or more.
Under it, wealth that multiplies by ``1 + lambda (alpha - loss)`` for each unit is a non-negative
supermartingale, and so is a mixture of such bets: it ever reaches 1 / delta with a probability of at most
delta (Ville's inequality). So whoever stops when wealth has reached 1 / delta shows the risk to be below
alpha with confidence 1 - delta. Losses lie in [0, 1]; for errors, which are 0 or 1, this is the mixture
e-process of Bernoulli rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Floats, check_list, check_numbers
from pac_core.bounds import PACLevel, check_level, check_probability
from pac_core.errors import InvalidInput

RATES, WEIGHTS = (0.05, 0.2, 0.4), (0.4, 0.4, 0.2)
"""Of the default bets, rates in units of alpha. At (0.05, 0.01) they take a median of 105, 157 and 359 units
where the true error is 0, 0.01 and 0.02."""
AT_END = 0.7
"""The share of delta of the Hoeffding-Bentkus bound at a fixed number of units; bets have the rest."""
_ROUNDING = 1e-9  # of log wealth: sums of a million logarithms are better than this


@dataclass(frozen=True)
class Bets:
    """A mixture of bets on how small the risk is, laid down before the first unit.

    alpha: the risk to be refuted
    rates: q_j, the risks that are bet on, each in [0, alpha); such a bet stakes
        lambda_j = (alpha - q_j) / (alpha (1 - alpha)), the best against errors of that rate. A rate of 0
        loses everything at the first full loss
    weights: of the bets; they sum to 1

    >>> Bets.at(0.5).rates
    (0.025, 0.1, 0.2)
    """

    alpha: float
    rates: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        check_probability("alpha", self.alpha)
        rates, weights = check_list("rates", self.rates), check_list("weights", self.weights)
        given = check_numbers("rates", rates, "[J]", finite=True).astype(np.float64)
        shares = check_numbers("weights", weights, "[J]", finite=True).astype(np.float64)
        if given.min() < 0 or given.max() >= self.alpha:
            raise InvalidInput(f"rates must lie in [0, alpha) with alpha={self.alpha:g}, got {rates}")
        if len(shares) != len(given) or shares.min() <= 0 or abs(math.fsum(shares) - 1) > 1e-12:
            raise InvalidInput(f"weights must be {len(given)} numbers above 0 that sum to 1, got {weights}")
        object.__setattr__(self, "rates", tuple(given.tolist()))
        object.__setattr__(self, "weights", tuple(shares.tolist()))

    @classmethod
    def at(cls, alpha: float, rates: Sequence[float] = RATES, weights: Sequence[float] = WEIGHTS) -> Bets:
        """The bets with these rates in units of alpha."""
        alpha = check_probability("alpha", alpha)
        return cls(alpha, tuple(alpha * rate for rate in rates), tuple(weights))

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON holds them."""
        return {"alpha": self.alpha, "rates": list(self.rates), "weights": list(self.weights)}

    def log_wealth(self, losses: Any) -> Floats:
        """`[n]` the logarithm of the wealth after each of these losses `[n]`, in their order."""
        return np.asarray(np.logaddexp.reduce(self._log_bets(check_losses("losses", losses)), axis=0))

    def _log_bets(self, losses: Floats) -> Floats:
        """`[J, n]` the logarithm of what each bet is worth after each loss, with its weight."""
        rates = np.array(self.rates)[:, None]
        stakes = (self.alpha - rates) / (self.alpha * (1 - self.alpha))
        with np.errstate(divide="ignore"):  # a rate of 0 is ruined by a full loss, and stays so
            odd, usual = np.log(rates / self.alpha), np.log1p(stakes * (self.alpha - losses))
        sums = np.cumsum(np.where(losses == 1, odd, usual), axis=1)
        return np.asarray(np.log(self.weights)[:, None] + sums)

    def first_proof(self, losses: Any, delta: float) -> int | None:
        """After how many of these losses the risk is shown to be below alpha; None if it is not.

        >>> Bets.at(0.05).first_proof([0] * 200, delta=0.01)
        105
        """
        reached = self.log_wealth(losses) >= needed_log_wealth(delta)
        return int(np.argmax(reached)) + 1 if reached.any() else None

    def fewest_more(self, losses: Any, delta: float) -> int:
        """How many more units without any loss would show it after these losses; 0 if it is shown, and more
        than anybody has (2^62) if all is lost.

        >>> Bets.at(0.05).fewest_more([], delta=0.01), Bets.at(0.05).fewest_more([0] * 30 + [1], delta=0.01)
        (105, 126)
        """
        array = check_losses("losses", losses) if len(losses) else np.empty(0)
        if len(array) and self.first_proof(array, delta):
            return 0
        held = self._log_bets(array)[:, -1] if len(array) else np.log(self.weights)
        gain, needed = self._log_bets(np.zeros(1))[:, 0] - np.log(self.weights), needed_log_wealth(delta)
        few, many = 0, 1 if held.max() > -np.inf else 2**62  # not enough, enough
        while many < 2**62 and np.logaddexp.reduce(held + many * gain) < needed:
            few, many = many, 2 * many
        while many - few > 1:
            middle = (few + many) // 2
            enough = np.logaddexp.reduce(held + middle * gain) >= needed
            few, many = (few, middle) if enough else (middle, many)
        return many


def check_losses(name: str, losses: Any) -> Floats:
    """`[N]` losses as doubles; refused outside [0, 1]."""
    array = check_numbers(name, losses, "[N]").astype(np.float64)
    if not (inside := (array >= 0) & (array <= 1)).all():
        raise InvalidInput(f"{name} must lie in [0, 1], got {array[~inside][0]}")
    return array


def needed_log_wealth(delta: float) -> float:
    """log(1 / delta), and a little more than what rounding can add."""
    return -math.log(check_probability("delta", delta)) + _ROUNDING


def refutes_at(losses: Any, level: PACLevel, bets: Bets | None = None) -> bool:
    """Whether these losses, as many as were planned, show the risk to be below epsilon: once, at the end.

    0.7 delta go to the Hoeffding-Bentkus bound, 0.3 delta to betting, which is far tighter where losses vary
    little; see `hoeffding_bentkus`.
    """
    level = check_level(level)
    bets = bets or Bets.at(level.epsilon)
    wealth = bets.log_wealth(losses)
    array = np.asarray(losses, np.float64)
    if hoeffding_bentkus(float(array.mean()), len(array), level.epsilon) <= AT_END * level.delta:
        return True
    return bool(wealth.max() >= needed_log_wealth((1 - AT_END) * level.delta))


def hoeffding_bentkus(mean: float, n: int, alpha: float) -> float:
    """A p-value of the null hypothesis that the risk is alpha or more, from the mean of n losses in [0, 1]
    (Bates, Angelopoulos, Lei, Malik, Jordan, 2021)."""
    from scipy.special import bdtr  # see bounds.proves

    if mean >= alpha:
        return 1.0
    entropy = (1 - mean) * math.log((1 - mean) / (1 - alpha)) + (
        mean * math.log(mean / alpha) if mean else 0.0
    )
    return min(1.0, math.exp(-n * entropy), math.e * float(bdtr(math.ceil(n * mean), n, alpha)))


def confidence_sequence(errors: Any, delta: float) -> NDArray[np.float64]:
    """`[n, 2]` limits of the error rate after each unit that hold at all of them together with confidence
    1 - delta, whenever one looks: the method of mixtures with a Beta(1/2, 1/2).

    >>> confidence_sequence([0] * 100, 0.02)[-1].round(4).tolist()
    [0.0, 0.0656]
    """
    array = check_numbers("errors", errors, "[N]")
    if not np.isin(array, (0, 1)).all():
        raise InvalidInput("errors must be 0 or 1, or booleans")
    n, k, needed = np.arange(1, len(array) + 1), np.cumsum(array.astype(np.int64)), needed_log_wealth(delta)
    from scipy.special import betaln, xlog1py, xlogy

    mixed = betaln(k + 0.5, n - k + 0.5) - betaln(0.5, 0.5)

    def rejected(rate: Floats) -> NDArray[np.bool_]:
        return np.asarray(mixed - xlogy(k, rate) - xlog1py(n - k, -rate) >= needed)

    middle, ends = k / n, []
    for outer in (np.zeros(len(n)), np.ones(len(n))):
        inside, outside = middle.copy(), outer.copy()
        for _ in range(60):  # the rejected rates are those beyond a point on either side of the mean
            half = (inside + outside) / 2
            far = rejected(half)
            outside, inside = np.where(far, half, outside), np.where(far, inside, half)
        ends.append(np.where(rejected(outer), outside, outer))
    low, high = np.maximum.accumulate(ends[0]), np.minimum.accumulate(ends[1])
    return np.stack([low, high], axis=1)
