"""Is it the same world? A conformal test martingale: ranks of scores, and bets that they are not uniform.

H0: all scores are exchangeable, as independent draws from one source are. The t-th score is ranked among all
up to it: p = (number larger + u times number equal, itself included) / t, with a uniform u of its own. Under
H0 the p-values are independent and uniform, with ties or without (Vovk, Nouretdinov, Gammerman, 2003). A bet
multiplies its stake by a density of p, whose mean is 1; so the wealth, which begins with 1, is a martingale
and ever reaches 1 / alpha with probability at most alpha (Ville's inequality), over the draw of all scores,
the first ones included.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pac_core.arrays import Floats, check_array, check_numbers
from pac_core.errors import InvalidInput
from pac_core.thresholds import ShardedScores

BETS = np.array(
    [(0.85, 1.15), (0.7, 1.3), (0.4, 1.6), (1.15, 0.85), (1.3, 0.7), (1.6, 0.4), (0.7, 0.7), (1.6, 1.6)]
)
"""Beta densities of p to bet on: scores larger by a little, by half a deviation, by much; likewise smaller;
wider; narrower. Power densities and the simple jumper take longer; see docs/benchmarks.md."""
SHARES = np.array([4, 8, 4, 2, 4, 2, 3, 1]) / 28  # of new stakes, for each of them
_POWERS = BETS.T - 1
_SCALES = np.array([math.gamma(a + b) / math.gamma(a) / math.gamma(b) for a, b in BETS.tolist()])
_STREAM = 0x70AC  # of the smoothing: whoever simulates scores with the same seed draws other numbers
GIVEN, AS_THEY_COME, LEVEL, MOST = "order of collection", "order of the units", 0.01, 10_000
"""Of comparisons: with what, their false-alarm probability, and how many scores they take, evenly spread."""


def settle_ranks(stakes: Any, unit: int, p: Any) -> Any:
    """`[..., J]` the stakes after a p-value `[...]`, from those before it; `unit` counts from 1.

    Of the initial wealth, 1 / sqrt(unit + 1) is still kept back after a unit, so that a change late in a long
    quiet life is detected too.
    """
    p = np.minimum(np.maximum(p, 1e-15), 1 - 1e-15)[..., None]  # inwards, where unbounded bets gain less
    joined = stakes + SHARES * (1 / math.sqrt(unit) - 1 / math.sqrt(unit + 1))
    return joined * _SCALES * np.exp(_POWERS[0] * np.log(p) + _POWERS[1] * np.log1p(-p))


class RankBets:
    """Bets that scores are not exchangeable with those before them.

    reference: `[n]` scores to rank with, which are not bet on; seen: those bet on before a restart
    seed: of the smoothing, which goes on after a restart as if there had been none
    """

    def __init__(self, reference: Iterable[float], seed: int = 0, seen: Sequence[float] = ()) -> None:
        self._sorted = sorted([*reference, *seen])
        self._rng = np.random.Generator(np.random.PCG64((_STREAM, seed)).advance(len(seen)))
        self.stakes: Floats = np.zeros(len(BETS))
        self.units = 0

    @property
    def wealth(self) -> float:
        return float(self.stakes.sum() + 1 / math.sqrt(self.units + 1))

    def rank(self, score: float) -> tuple[float, float]:
        """Between which numbers its p-value is uniform, given all scores so far; it counts from now on."""
        first, last = bisect_left(self._sorted, score), bisect_right(self._sorted, score)
        self._sorted.insert(last, score)
        n = len(self._sorted)
        return (n - 1 - last) / n, (n - first) / n

    def bet(self, score: float, alpha: float) -> bool:
        """Whether the wealth has reached 1 / alpha, and more than what rounding can add."""
        low, high = self.rank(score)
        self.units += 1
        self.stakes = settle_ranks(self.stakes, self.units, low + self._rng.random() * (high - low))
        return self.wealth >= (1 + 1e-9) / alpha


def compare_scores(scores: Any, reference: Any = ()) -> float:
    """The largest wealth of bets that calibration scores `[n]`, in the order in which their units were
    collected, are not exchangeable; a difference is shown from 1 / LEVEL on, and its inverse is a p-value.

    reference: `[m]` scores of other units, which the score was not fitted on, to rank them with

    >>> compare_scores([0.0] * 500 + [1.0] * 500) >= 1 / LEVEL
    True
    """
    bets, largest = RankBets(_thin(reference)), 1.0
    for score in _thin(scores):
        reached, largest = bets.bet(score, LEVEL), max(largest, bets.wealth)
        if reached:
            break
    return largest


def describe_world(world: Mapping[str, float] | None) -> list[str]:
    """What a look says of the world, in sentences, from what scores were compared with and the wealth."""
    found = [
        f"calibration scores, compared with the {name}: {'A' if wealth > 1 / LEVEL else 'no'} difference "
        f"(wealth {wealth:.3g}; {1 / LEVEL:g} shows one, falsely with probability at most {LEVEL:g})"
        for name, wealth in (world or {}).items()
    ]
    caveat = "after a random split, only the order of collection or a separate collection can show a "
    caveat += (
        "difference, and units that were sorted (by class, say) show one in any world; T does not depend "
    )
    return [*found, f"{caveat}on it, and stopping because of it counts as an attempt"] if found else []


def _thin(scores: Any) -> list[float]:
    step, start, found = max(1, -(-len(scores) // MOST)), 0, list[float]()
    for part in scores if isinstance(scores, ShardedScores) else [scores]:
        found += check_numbers("scores", part, "[N]")[-start % step :: step].tolist() if len(part) else []
        start += len(part)
    return found


def sort_by(order: Any, n: int) -> Any:
    """`[n]` the places of units in the order of these times or numbers `[n]`; text is sorted as text."""
    array = check_array("order", order, "[N]")
    if array.dtype.kind not in "iufUM" or len(array) != n or (array != array).any():
        got = f"{len(array):,} of dtype {array.dtype}"
        raise InvalidInput(f"order must be a time or a number for each of {n:,} units, not NaN, got {got}")
    return np.argsort(array, kind="stable")
