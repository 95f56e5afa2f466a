"""The paper's whole half-cheetah experiment, and ours beside it, from nothing.

    python scripts/halfcheetah_all.py [--smoke-test] [--out folder]

Trains the ensemble, rolls out 5,000 trajectories each to tune, calibrate and test, forecasts them,
and runs every other halfcheetah script but the one on propagation (its Jacobian takes minutes).
Everything is in the results folder: tables (CSV), figures (PNG), certificate, raw scores with their
seeds (scores.npz), and a summary (summary.json): the design, the numbers of the tables, and what the
paper says of its own.
"""

from __future__ import annotations

import math
import time
from typing import Any

import halfcheetah_ablation
import halfcheetah_baselines
import halfcheetah_certificate
import halfcheetah_coverage
import halfcheetah_levels
import halfcheetah_shapes
import halfcheetah_steps
import halfcheetah_tables
import numpy as np

from pac_core.documents import write_json
from pac_core.failures import unit_scores
from pac_rl.experiments import fit_ablation, fit_box
from pac_rl.reports import Report, run
from pac_rl.studies import Study

PAPER = {
    "setting": "half-cheetah, H = 20, n = 5000, epsilon = 0.01, delta = 1e-5",
    "published": "plots only (figure 3, tables 5 and 6, figure 4 c and d); the text gives no number",
    "claims": [
        "A+C+D is smaller than A+D and than C+D; calibration gains most, above all in the tails",
        "the accumulated variance gains less, but significantly",
        "neither baseline keeps the error of 0.01; A+C+D does",
    ],
    "axes": "the reference code plots the norm of the scaled covariance, not of Lambda: up to about 1e18",
}


def main(study: Study, report: Report) -> None:
    start = time.perf_counter()
    training = time.perf_counter()
    study.episodes  # noqa: B018
    training = time.perf_counter() - training
    found: dict[str, Any] = {}
    for part in (
        halfcheetah_certificate,  # first: its level was chosen before anything was seen
        halfcheetah_ablation,
        halfcheetah_steps,
        halfcheetah_levels,
        halfcheetah_tables,
        halfcheetah_baselines,
        halfcheetah_shapes,
        halfcheetah_coverage,
    ):
        before = time.perf_counter()
        known = sum(study.seconds.values())
        found[part.__name__] = part.main(study, report)
        spent = time.perf_counter() - before - (sum(study.seconds.values()) - known)
        study.seconds[part.__name__] = spent
    keep_scores(study, report)
    total = time.perf_counter() - start
    rows = [{"part": name, "seconds": round(spent, 1)} for name, spent in study.seconds.items()]
    rows.append({"part": "all but the training data", "seconds": round(total - training, 1)})
    report.table("seconds", rows, title="Where the time went (this run)")
    certificate = found.pop(halfcheetah_certificate.__name__)
    results = {name.removeprefix("halfcheetah_"): rows for name, rows in found.items() if rows is not None}
    results |= {"certificate": certificate.promise}
    summary = {"design": study.about, "paper": PAPER, "results": results, "seconds": study.seconds}
    write_json(report.folder / "summary.json", without_nan(summary))
    print(f"\neverything is in {report.folder}")


def without_nan(value: Any) -> Any:
    """What JSON can hold: a number that there is not is null."""
    if isinstance(value, dict):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def keep_scores(study: Study, report: Report) -> None:
    """Raw scores of every unit with its seed and part, for the paper's tube and for our box."""
    parts = np.empty(len(study.seeds), dtype="U9")
    for name in ("tune", "calibrate", "test"):
        parts[getattr(study.parts, name).rows] = name
    arrays = {"seeds": study.seeds, "part": parts}
    for name, case_of in (("closed", study.closed_loop), ("plans", study.given_plans)):
        paper, ours = case_of("one-step"), case_of("particles")
        joint = unit_scores(fit_ablation(paper, "A+C+D").score, paper.forecast, paper.truth)
        box = unit_scores(fit_box(ours, study.design.level).score, ours.forecast, ours.truth)
        arrays |= {f"{name}_joint": np.asarray(joint), f"{name}_box": np.asarray(box)}
    np.savez(report.folder / "scores.npz", **arrays)


if __name__ == "__main__":
    run(main, __doc__)
