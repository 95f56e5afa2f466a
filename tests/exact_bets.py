"""How many units a bet against a risk takes, and how often it is wrong: exactly, for errors of a rate."""

from __future__ import annotations

import numpy as np

from pac_core.betting import Bets, needed_log_wealth


def proof_probability(bets: Bets, delta: float, error: float, most: int) -> np.ndarray:
    """`[most]` the probability that errors of this rate show the level within so many units, exactly.

    By recursion over the number of errors so far; what is proved stays proved.
    """
    needed = needed_log_wealth(delta)
    alive, proved = np.array([1.0]), np.zeros(most)
    rates, done = np.array(bets.rates)[:, None], 0.0
    with np.errstate(divide="ignore"):
        lost, kept = np.log(rates / bets.alpha), np.log((1 - rates) / (1 - bets.alpha))
    for n in range(1, most + 1):
        alive = np.append(alive * (1 - error), 0.0) + np.append(0.0, alive * error)
        k = np.arange(n + 1)
        parts = np.where(k > 0, k * np.where(k > 0, lost, 0.0), 0.0) + (n - k) * kept
        reached = np.logaddexp.reduce(np.log(bets.weights)[:, None] + parts, axis=0) >= needed
        done += float(alive[reached].sum())
        alive[reached] = 0.0
        proved[n - 1] = done
    return proved
