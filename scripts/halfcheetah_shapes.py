"""The paper's tube beside ours: four shapes with one promise, in the closed loop and for given plans.

    python scripts/halfcheetah_shapes.py [--smoke-test] [--out folder]

Same ensemble, same rollouts, same level. `joint` is the paper's A+C+D; the other shapes follow the
mean and spread of particles. Prints error and all sizes of each, of the box fitted in hindsight (on
the test rollouts themselves), and how many times smaller each is than the paper's; draws size per
step, sizes, and tubes around real trajectories.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from pac_core import ConfidenceSets, NotEnoughData, fit_shape
from pac_rl import Environment
from pac_rl.experiments import Fitted, fit_ablation, fit_box, fit_watched, hindsight, row, watched
from pac_rl.figures import size_boxes, step_lines, tubes_over_time
from pac_rl.reports import Report, run
from pac_rl.studies import Case, Study

LABELS = {
    "forward velocity": "forward velocity, m/s",
    "rooty": "torso pitch, rad",
    "rootz": "torso height, m",
}


def main(study: Study, report: Report) -> dict[str, list[dict[str, Any]]]:
    return {
        name: compare(study, report, name, case_of("one-step"), case_of("particles"))
        for name, case_of in (("closed", study.closed_loop), ("plans", study.given_plans))
    }


def compare(study: Study, report: Report, name: str, paper: Case, ours: Case) -> list[dict[str, Any]]:
    """Tables and figures of one case; returns the rows."""
    level, environment = study.design.level, study.environment
    test = ours.part("test")[0]
    tubes: dict[str, ConfidenceSets] = {}
    tubes["joint"] = fit_ablation(paper, "A+C+D").at(level).tube(paper.part("test")[0])
    widest = Fitted.of(fit_shape(*ours.part("tune"), level, shape="max"), ours)
    own = {"max": widest, "box": fit_box(ours, level)}
    if watched(environment):
        own["features"] = fit_watched(ours, level, environment)
    tubes |= {name: fitted.at(level).tube(test) for name, fitted in own.items()}
    with suppress(NotEnoughData):  # of the test part, which may be smaller than the calibrate part
        tubes["box, hindsight"] = hindsight(ours, level)
    rows = [{"shape": shape} | row(ours, tube, level, environment) for shape, tube in tubes.items()]
    for one in rows:
        one["times smaller"] = rows[0]["size"] / one["size"]
        for words in watched(environment).values():
            one[f"times, {words}"] = rows[0][f"half-width, {words}"] / one[f"half-width, {words}"]
    where = f"{ours.name}, {study.design}"
    report.table(f"shapes_{name}", rows, title=f"The paper's shape (joint) and ours ({where})")

    shown = {"joint (the paper's)" if k == "joint" else k: t for k, t in tubes.items() if k != "features"}
    steps = {label: tube.step_size().mean(axis=0) for label, tube in shown.items()}
    report.figure(f"shapes_{name}_steps", step_lines(steps, f"Mean size of the tube at each step\n{where}"))
    sizes = {label: tube.size() for label, tube in shown.items()}
    report.figure(f"shapes_{name}_sizes", size_boxes(sizes, f"Size of the tubes, by shape\n{where}"))
    truth = ours.part("test")[1]
    longest = np.argsort(-truth.lengths, kind="stable")[:3].tolist()
    drawn = {label: shown[label] for label in ("joint (the paper's)", "box")}
    title = f"Tubes around three test rollouts\n{where}"
    report.figure(
        f"shapes_{name}_tubes",
        tubes_over_time(drawn, truth.marked(), columns(environment), longest, title),
    )
    return rows


def columns(environment: Environment) -> dict[int, str]:
    """The numbers of the state that are drawn, with their labels; the first three of an unknown robot."""
    names = environment.names
    known = {names.index(name): words for name, words in LABELS.items() if name in names}
    return known or dict(enumerate(names[:3]))


if __name__ == "__main__":
    run(main, __doc__)
