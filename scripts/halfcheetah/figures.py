"""All figures of one experiment, what they say of the paper's claims, and the raw scores behind them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from halfcheetah import ours, paper
from halfcheetah.experiment import Experiment
from halfcheetah.fits import fit_ablation, fit_box
from pac_core.certificates import write_json
from pac_core.sets import score_units
from pac_rl.tasks import unit_seeds

FIGURES = {
    "certificate": ours.certificate,  # first: its level was chosen before anything was seen
    "ablation": paper.ablation,
    "steps": paper.steps,
    "levels": paper.levels,
    "tables": paper.tables,
    "baselines": paper.baselines,
    "shapes": ours.shapes,
    "coverage": ours.coverage,
    "propagation": ours.propagation,
}
PUBLISHED = "plots only (figure 3, tables 5 and 6, figure 4 c and d); the text gives no number"
"""What the paper says of its own half-cheetah: H = 20, n = 5000, epsilon = 0.01, delta = 1e-5."""


def draw_all(experiment: Experiment) -> None:
    """Every figure but that of propagation (its Jacobian takes minutes), scores.npz and summary.json."""
    found = {name: draw(experiment) for name, draw in FIGURES.items() if name != "propagation"}
    keep_scores(experiment)
    results = {name: rows for name, rows in found.items() if rows is not None}
    results |= {"certificate": found["certificate"].promise}
    summary = {"design": experiment.design.about(), "paper": PUBLISHED, "results": results}
    write_json(experiment.report.folder / "summary.json", without_nan(summary))
    print(f"\neverything is in {experiment.report.folder}")


def without_nan(value: Any) -> Any:
    """What JSON can hold: a number that there is not is null."""
    if isinstance(value, dict):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def keep_scores(experiment: Experiment) -> None:
    """Raw scores of every unit with its seed and part, for the paper's tube and for our box."""
    seeds = np.asarray(unit_seeds(**experiment.design.sizes))
    arrays: dict[str, Any] = {"seeds": seeds, "part": np.empty(len(seeds), dtype="U9")}
    for name in ("closed", "plans"):
        one_step, particles = experiment.case(name, "one-step"), experiment.case(name)
        box = fit_box(particles, experiment.design.level)
        kinds = {"joint": (one_step, fit_ablation(one_step, "A+C+D")), "box": (particles, box)}
        for kind, (case, fitted) in kinds.items():
            arrays[f"{name}_{kind}"] = scores = np.empty(len(seeds))
            for part in ("tune", "calibrate", "test"):
                rows = getattr(case.results.parts, part).rows
                scores[rows] = np.asarray(score_units(fitted.score, *case.part(part)))
                arrays["part"][rows] = part
    np.savez(experiment.report.folder / "scores.npz", **arrays)
