"""How soon the run-time monitors notice, and how often they are wrong: simulated lives, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from benchmarks.figures import Figure, within
from pac_core.arrays import check_numbers
from pac_core.bounds import check_integer, check_probability
from pac_core.errors import InvalidInput
from pac_core.exchangeability import BETS, RankBets, settle_ranks
from pac_core.safety.monitor import ODDS, settle

EPSILON, ALPHA = 0.05, 0.01


def detection_times(
    epsilon: float, alpha: float, p: Any, *, lives: int, seed: int, longest: int = 5_000
) -> NDArray[np.float64]:
    """`[lives]` the episode at which a simulated monitor raises the alarm, infinite if it does not.

    p: the true probability of an exit, for `longest` episodes, or `[T]` that of each episode
    """
    epsilon, alpha = check_probability("epsilon", epsilon), check_probability("alpha", alpha)
    chances = np.atleast_1d(check_numbers("p", np.atleast_1d(p), "[T]", finite=True))
    if chances.min() < 0 or chances.max() > 1:
        raise InvalidInput(f"p must lie from 0 to 1, got {chances.min()} to {chances.max()}")
    if np.ndim(p) == 0:
        chances = np.full(check_integer("longest", longest, least=1), chances[0])
    rng = np.random.default_rng(check_integer("seed", seed, least=0))
    stakes = np.zeros((check_integer("lives", lives, least=1), len(ODDS)))
    times = np.full(len(stakes), np.inf)
    for episode, chance in enumerate(chances.tolist(), start=1):
        exited = rng.random(len(stakes)) < chance
        stakes = settle(stakes, episode, exited, epsilon=epsilon, alpha=alpha)
        reached = stakes.sum(-1) + 1 / (episode + 1) >= 1 / alpha
        times[reached & np.isinf(times)] = episode
        if np.isfinite(times).all():
            break
    return times


def monitor() -> Iterator[Figure]:
    """Episodes until the alarm at several true exit rates, and the share of lives with a false alarm."""
    for times_epsilon, lives in ((1.5, 2000), (2, 20_000), (4, 2000), (10, 2000)):
        times = detection_times(EPSILON, ALPHA, times_epsilon * EPSILON, lives=lives, seed=0)
        median, most = np.median(times), np.quantile(times, 0.9, method="higher")
        if times_epsilon == 2:
            yield within("monitor: median detection at twice epsilon", median, 235, "episodes", "<= 1.02")
            yield within("monitor: 90% detection at twice epsilon", most, 514, "episodes", "<= 1.02")
        else:
            name = f"monitor: detection at {times_epsilon:g} times epsilon"
            yield Figure(name, median, most, "episodes", most / median, "", "median, and 90% as the other")
    late = np.where(np.arange(4000) < 500, EPSILON / 5, 2 * EPSILON)
    times = detection_times(EPSILON, ALPHA, late, lives=2000, seed=1) - 500
    median, most = np.median(times), np.quantile(times, 0.9, method="higher")
    note = "median, and 90% as the other; counted from the change"
    name = "monitor: a change after 500 quiet episodes"
    yield Figure(name, median, most, "episodes", most / median, "", note)
    times = detection_times(EPSILON, ALPHA, EPSILON, lives=2000, seed=2)
    alarms = int(np.isfinite(times).sum())
    p = binomtest(alarms, len(times), ALPHA, alternative="greater").pvalue
    note = f"{alarms} of 2,000 lives of 5,000 episodes at P(exit) = epsilon; one-sided binomial p = {p:.2g}"
    yield within("monitor: false alarms over a life", alarms / len(times), ALPHA, "of lives", "", note)
    yield Figure("monitor: alpha not refuted at 1%", p, 0.01, "p", 0.01 / p, "<= 1", "")


def p_values(lives: int, scores: Any, seed: int, n: int = 1000) -> NDArray[np.float64]:
    """`[lives, T]` smoothed ranks of the scores that `scores(rng)` draws, `[T]`, after n standard normals."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(lives):
        bets = RankBets(rng.normal(size=n).tolist())
        low, high = np.array([bets.rank(score) for score in scores(rng).tolist()]).T
        found.append(low + rng.random(len(low)) * (high - low))
    return np.array(found)


def alarm_times(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """`[lives]` the unit at which a score monitor raises the alarm, infinite if it does not."""
    stakes, times = np.zeros((len(p), len(BETS))), np.full(len(p), np.inf)
    for unit in range(1, p.shape[1] + 1):
        stakes = settle_ranks(stakes, unit, p[:, unit - 1])
        times[(stakes.sum(-1) + 1 / np.sqrt(unit + 1) >= 1 / ALPHA) & np.isinf(times)] = unit
    return times


def power_times(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for a mixture of power densities, e p^(e-1), and their mirror images, all staked at once."""
    e = np.array([0.3, 0.5, 0.7])
    gains = [np.log(e) + (e - 1) * np.log(side[..., None]) for side in (p, 1 - p)]
    wealth = np.exp(np.cumsum(np.concatenate(gains, axis=-1), axis=1)).mean(-1)
    return first(wealth >= 1 / ALPHA)


def jumper_times(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for the simple jumper (Vovk et al., 2021): 1 + e (p - 1/2) with e = -1, 0, 1, 1% of each
    stake shared out among them after each unit."""
    e, stakes, wealth = np.array([-1.0, 0.0, 1.0]), np.full((len(p), 3), 1 / 3), []
    for column in p.T:
        stakes = 0.99 * stakes + 0.01 * stakes.mean(-1, keepdims=True)
        stakes = stakes * (1 + e * (column[:, None] - 0.5))
        wealth.append(stakes.sum(-1))
    return first(np.array(wealth).T >= 1 / ALPHA)


def first(reached: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.where(reached.any(1), reached.argmax(1) + 1.0, np.inf)


def scores() -> Iterator[Figure]:
    """Units until the monitor of scores notices that they are others, and how often it is wrong."""
    worlds: dict[str, Any] = {
        "half a deviation larger": lambda rng: rng.normal(0.5, size=1500),
        "half a deviation smaller": lambda rng: rng.normal(-0.5, size=1500),
        "a deviation larger": lambda rng: rng.normal(1.0, size=500),
        "half as widely spread again": lambda rng: rng.normal(0, 1.5, size=1500),
    }
    for seed, (words, draw) in enumerate(worlds.items()):
        p = p_values(2000 if not seed else 500, draw, seed)
        times = alarm_times(p)
        median, most = np.median(times), np.quantile(times, 0.9, method="higher")
        note = "median, and 90% as the other; after 1,000 calibration scores"
        yield Figure(f"score monitor: {words}", median, most, "units", most / median, "", note)
        if not seed:
            for name, other in (("power densities", power_times), ("the simple jumper", jumper_times)):
                peer = np.median(other(p))
                name = f"score monitor: half a deviation, {name}"
                yield Figure(name, median, peer, "units", peer / median, ">= 1", "medians")
    late = p_values(500, lambda rng: rng.normal(np.where(np.arange(2500) < 1000, 0, 0.5)), seed=5)
    times = alarm_times(late)
    times = times[times > 1000] - 1000
    median, most = np.median(times), np.quantile(times, 0.9, method="higher")
    name, note = "score monitor: after 1,000 quiet units", "median, and 90% as the other, from the change"
    yield Figure(name, median, most, "units", most / median, "", note)
    times = alarm_times(p_values(2000, lambda rng: rng.normal(size=10_000), seed=6))
    alarms = int(np.isfinite(times).sum())
    p_value = binomtest(alarms, len(times), ALPHA, alternative="greater").pvalue
    note = f"{alarms} of 2,000 lives of 10,000 units; one-sided binomial p = {p_value:.2g}"
    yield within("score monitor: false alarms over a life", alarms / len(times), ALPHA, "of lives", "", note)
    yield Figure("score monitor: alpha not refuted at 1%", p_value, 0.01, "p", 0.01 / p_value, "<= 1", "")


ALL = {"monitor": monitor, "score-monitor": scores}
