"""The paper's comparison with baselines: ellipsoids of the forecaster's own mass 1 - epsilon.

    python scripts/halfcheetah_baselines.py [--smoke-test] [--out folder]

One baseline takes the forecaster as it is, the other after temperatures were fitted; neither has a
guarantee. Expect both to miss more trajectories than epsilon, and the PAC tubes to keep it.
"""

from __future__ import annotations

from typing import Any

from pac_core import evaluate, mass_gaussian_sets
from pac_rl.experiments import fit_ablation, fit_box
from pac_rl.figures import error_bars, size_boxes
from pac_rl.reports import Report, run
from pac_rl.studies import Study


def main(study: Study, report: Report) -> list[dict[str, Any]]:
    level, case, ours = study.design.level, study.closed_loop("one-step"), study.closed_loop()
    forecast, truth = case.part("test")
    paper = fit_ablation(case, "A+C+D")
    tubes = {
        "mass,\nas it is": mass_gaussian_sets(forecast.accumulated(), level.epsilon),
        "mass,\ncalibrated": mass_gaussian_sets(paper.score.prepared(forecast.wide()), level.epsilon),
        "PAC, paper's\nA+C+D": paper.at(level).tube(forecast),
        "PAC,\nour box": fit_box(ours, level).at(level).tube(ours.part("test")[0]),
    }
    found = {name: evaluate(tube, truth, level) for name, tube in tubes.items()}
    rows = [
        {
            "sets": name.replace("\n", " "),
            "promise": "none" if name.startswith("mass") else f"error <= {level.epsilon:g}",
            "error": one.all.error,
            "98% interval": "{:.4f}..{:.4f}".format(*one.all.interval),
            "median size": one.all.median,
            "mean": one.all.mean,
        }
        for name, one in found.items()
    ]
    where = str(study.design)
    report.table("baselines", rows, title=f"Baselines ({where})")
    errors = {name: (one.all.error, one.all.interval) for name, one in found.items()}
    title = f"Measured error of baselines and PAC tubes\n{where}"
    report.figure("baselines_error", error_bars(errors, level.epsilon, title))
    sizes = {name: tube.size() for name, tube in tubes.items()}
    report.figure("baselines_size", size_boxes(sizes, f"Size of baselines and PAC tubes\n{where}"))
    return rows


if __name__ == "__main__":
    run(main, __doc__)
