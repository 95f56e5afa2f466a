"""The experiment on coverage counts a breach where there is one, and only there."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from pac_core import PACLevel, max_errors

SCRIPT: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parents[2] / "scripts" / "halfcheetah_coverage.py"), run_name="script"
)
beyond, largest_kept, REPEATS = (SCRIPT[name] for name in ("beyond", "largest_kept", "REPEATS"))


@pytest.mark.parametrize(
    ("epsilon", "size", "kept"),
    [
        (0.01, 10_000, 100),  # 1 - 9900 / 10000 is above 0.01 in floats
        (0.02, 10_000, 200),
        (0.29, 100, 29),  # 0.29 * 100 is below 29 in floats
        (0.07, 100, 7),
        (0.1, 576, 57),
        (1e-5, 99_999, 0),
    ],
)
def test_an_error_of_exactly_epsilon_keeps_the_promise(epsilon: float, size: int, kept: int) -> None:
    assert largest_kept(epsilon, size) == kept


def test_true_errors_are_counts_of_the_world() -> None:
    """In a world of 0..199, as many lie above T as T says."""
    level = PACLevel(0.1, 0.1)
    counts = beyond(np.arange(200.0), 60, level, np.random.default_rng(0))
    assert counts.dtype.kind == "i"
    again = np.random.default_rng(0)
    k = max_errors(60, level)
    limits = [np.sort(again.choice(np.arange(200.0), size=60))[-1 - k] for _ in range(REPEATS)]
    assert counts.tolist() == [199 - int(limit) for limit in limits]


def test_breaches_are_as_many_as_the_binomial_says() -> None:
    """In a small world an error of exactly epsilon is common: taken for a breach, it would show."""
    level, n, size = PACLevel(0.1, 0.1), 60, 40
    counts = beyond(np.arange(float(size)), n, level, np.random.default_rng(0))
    most = largest_kept(level.epsilon, size)
    exact = float(binom.cdf(max_errors(n, level), n, (most + 1) / size))
    assert (counts == most).sum() > 20
    assert binomtest(int((counts > most).sum()), REPEATS, exact).pvalue > 1e-3
    assert binomtest(int((counts >= most).sum()), REPEATS, exact).pvalue < 1e-3
