"""How soon the run-time monitor notices, and how often it is wrong: simulated lives, no clock."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import binomtest

from benchmarks.figures import Figure, within
from pac_core.safety import detection_times

EPSILON, ALPHA = 0.05, 0.01


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


ALL = {"monitor": monitor}
