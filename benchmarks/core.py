"""pac_core against TorchCP and MAPIE, doing the same step with the peers' own functions."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from functools import partial

import numpy as np
from scipy.optimize import brentq

from benchmarks.figures import Figure, faster, take_turns, within
from pac_core import LogitForecast, PACLevel
from pac_core.bounds import max_errors
from pac_core.scores import fit_temperature, nll
from pac_core.sets import LabelSets, label_sets
from pac_core.thresholds import fit_threshold

LEVEL = PACLevel(0.05, 1e-5)
CLASSES = 1000


def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Float32 logits of a classifier that is right three times in four, and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((n, CLASSES), dtype=np.float32) * np.float32(1.5)
    labels = rng.integers(0, CLASSES, size=n)
    bump = np.where(rng.random(n) < 0.75, rng.uniform(4, 12, size=n), 2)
    logits[np.arange(n), labels] += bump.astype(np.float32)
    return logits, labels


def both(cal: LogitForecast, labels: np.ndarray, test: LogitForecast) -> LabelSets:
    """The threshold from one forecast, and the sets of the other."""
    return label_sets(test, fit_threshold(nll(cal, labels), LEVEL))


def sets() -> Iterator[Figure]:
    """A threshold from 20,000 x 1,000 logits, and their label sets."""
    from benchmarks import peers

    logits, labels = draw(20_000, seed=0)
    other = logits.copy()

    def ours() -> LabelSets:
        forecast = LogitForecast(logits)
        return both(forecast, labels, forecast)

    best = take_turns(
        {
            "sum": logits.sum,
            "ours": ours,
            "ours, two arrays": lambda: both(LogitForecast(logits), labels, LogitForecast(other)),
            "torchcp": lambda: peers.torchcp_sets(logits, labels, logits, 0.05),
            "torchcp, batches": lambda: peers.torchcp_sets_in_batches(logits, labels, logits, 0.05, 1024),
            "mapie": lambda: peers.mapie_sets(logits, labels, logits, 0.05),
        },
        rounds=7,
        in_a_row=3,
    )
    us, two = best["ours"], best["ours, two arrays"]
    yield faster("sets: TorchCP", us, best["torchcp"], ">= 2", peers.STUBBED)
    yield faster("sets: TorchCP in batches of 1,024", us, best["torchcp, batches"], "")
    yield faster(
        "sets: MAPIE", us, best["mapie"], ">= 5", "its softmax by torch, as MAPIE takes probabilities"
    )
    yield within("sets: numpy sum of the array", us, best["sum"], "s", "<= 8")
    yield faster("sets, calibrate and test apart: TorchCP", two, best["torchcp"], "")
    yield within("sets, calibrate and test apart: numpy sum", two, best["sum"], "s", "")
    yield _memory("sets: peak memory", 20_000, ours=lambda z, y: both(f := LogitForecast(z), y, f))


def temperature() -> Iterator[Figure]:
    """The temperature of 50,000 x 1,000 logits."""
    from benchmarks import peers

    logits, labels = draw(50_000, seed=1)
    best = take_turns(
        {
            "ours": lambda: fit_temperature(LogitForecast(logits), labels),
            "strong Wolfe": lambda: peers.strong_wolfe_temperature(logits, labels),
        },
        rounds=5,
    )
    best |= take_turns({"torchcp": lambda: peers.torchcp_temperature(logits, labels, steps=50)}, rounds=1)
    yield faster("temperature: TorchCP's LBFGS", best["ours"], best["torchcp"], ">= 5", peers.STUBBED)
    yield faster("temperature: LBFGS with strong Wolfe", best["ours"], best["strong Wolfe"], ">= 1")
    keep = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
    run = [sys.executable, "-m", "benchmarks.kept"]
    kept = subprocess.run(run, env=os.environ | keep, capture_output=True, text=True, check=True).stdout
    yield faster("temperature: strong Wolfe, freed memory kept", *map(float, kept.split()), goal=">= 1")
    ours = fit_temperature(LogitForecast(logits), labels).tau
    optimum = _float64_optimum(logits, labels, near=ours)
    yield within("temperature: distance to the optimum", abs(ours - optimum), 1e-6, "in tau", "<= 1")
    yield _memory("temperature: peak memory", 50_000, ours=lambda z, y: fit_temperature(LogitForecast(z), y))


def start() -> Iterator[Figure]:
    """Importing the package, in fresh processes."""
    code = "import time; start = time.perf_counter(); import pac_core; print(time.perf_counter() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(15)]
    yield within("import of pac_core", float(np.median([float(r.stdout) for r in runs])), 0.5, "s", "<= 1")
    level = PACLevel(0.01, 1e-5)
    best = take_turns({str(n): partial(max_errors, n, level) for n in (20_000, 10**9)}, rounds=20)
    yield within("k* at n = 20,000", best["20000"], 1e-3, "s", "<= 1")
    yield within("k* at n = 1,000,000,000", best[str(10**9)], 1e-3, "s", "<= 1")


ALL = {"start": start, "sets": sets, "temperature": temperature}


def _memory(name: str, n: int, ours: object) -> Figure:
    """Peak of all memory numpy asked for, logits included, against the logits alone."""
    tracemalloc.start()
    logits, labels = draw(n, seed=2)
    tracemalloc.reset_peak()
    ours(logits, labels)  # type: ignore[operator]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return within(name, peak / 1e6, logits.nbytes / 1e6, "MB", "<= 1.5")


def _float64_optimum(logits: np.ndarray, labels: np.ndarray, near: float) -> float:
    """The root of the slope of the likelihood, in float64 throughout, by bracketing."""

    def slope(tau: float) -> float:
        total = 0.0
        for start in range(0, len(logits), 1000):
            z = logits[start : start + 1000].astype(np.float64)
            weight = np.exp(tau * (z - z.max(axis=1, keepdims=True)))
            mean = (weight * z).sum(axis=1) / weight.sum(axis=1)
            total += float((mean - z[np.arange(len(z)), labels[start : start + 1000]]).sum())
        return total

    return float(brentq(slope, near * 0.9985, near * 1.002, xtol=1e-12, rtol=1e-14))
