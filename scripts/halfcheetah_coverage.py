"""Does the promise hold? The default tube calibrated again and again, in a world whose error is known.

    python scripts/halfcheetah_coverage.py [--smoke-test] [--out folder]

The rollouts that did not tune are taken for the whole world: calibration units are drawn from them with
replacement, thousands of times, so the true error of each resulting tube is a count, not an
estimate. A breach is a true error above epsilon; its probability is known exactly and lies
below delta. Expect as many breaches as that, within the scatter of counting.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.stats import binom, binomtest

from pac_core import NotEnoughData, PACLevel, fit_threshold, max_errors
from pac_core.failures import unit_scores
from pac_core.figures import INK, canvas
from pac_rl.experiments import fit_box
from pac_rl.reports import Report, run
from pac_rl.studies import Study

REPEATS = 2_000
LEVELS = [PACLevel(0.05, 0.1), PACLevel(0.02, 0.1), PACLevel(0.02, 0.01), PACLevel(0.01, 1e-5)]


def main(study: Study, report: Report) -> list[dict[str, Any]]:
    case, n = study.closed_loop("particles"), study.design.calibrate
    score = fit_box(case, study.design.level).score
    pool = np.concatenate(
        [np.asarray(unit_scores(score, *case.part(part))) for part in ("calibrate", "test")]
    )
    world = np.sort(pool)
    rows, errors = [], {}
    for level in dict.fromkeys([*LEVELS, study.design.level]):
        try:
            allowed = max_errors(n, level)
        except NotEnoughData:
            continue
        counts = beyond(world, n, level, np.random.default_rng(study.design.seed))
        most = largest_kept(level.epsilon, len(world))
        exact = float(binom.cdf(allowed, n, (most + 1) / len(world)))  # most + 1: the least that is a breach
        breaches = int((counts > most).sum())
        doubt = binomtest(breaches, REPEATS, exact).pvalue
        errors[level] = counts / len(world)
        rows.append(
            {
                "epsilon": level.epsilon,
                "delta": level.delta,
                "calibrations": REPEATS,
                "breaches": breaches,
                "expected": exact * REPEATS,
                "allowed by delta": level.delta * REPEATS,
                "mean true error": float(errors[level].mean()),
                "as predicted": "yes" if doubt > 1e-3 else f"NO (p = {doubt:.1g})",
            }
        )
    what = f"{study.design.env}, {len(world):,} rollouts as the world, n = {n:,} drawn with replacement"
    report.table("coverage", rows, title=f"Repeated calibrations of the box tube ({what})")
    figure, axes = canvas(7.0, 4.2)
    for (level, found), ink in zip(errors.items(), INK, strict=False):
        axes.hist(
            found, bins=60, color=ink, alpha=0.55, density=True, label=f"{level.epsilon:g}, {level.delta:g}"
        )
        axes.axvline(level.epsilon, color=ink, linestyle=":")
    axes.set_xlabel("true error of the calibrated tube (dotted: its promise, epsilon)")
    axes.set_ylabel("density over calibrations")
    axes.legend(title="epsilon, delta", frameon=False)
    axes.set_title(f"True errors of {REPEATS:,} calibrations\n{what}", loc="left", fontsize=10.5)
    report.figure("coverage", figure)
    return rows


def beyond(world: np.ndarray, n: int, level: PACLevel, rng: np.random.Generator) -> np.ndarray:
    """`[REPEATS]` how many of the world lie above T, where T is calibrated on n units drawn from it."""
    limits = [fit_threshold(rng.choice(world, size=n), level).value for _ in range(REPEATS)]
    return len(world) - np.searchsorted(world, limits, side="right")


def largest_kept(epsilon: float, size: int) -> int:
    """The most of `size` units that are a share of at most epsilon, the decimal it is written as."""
    return math.floor(Fraction(str(epsilon)) * size)


if __name__ == "__main__":
    run(main, __doc__)
