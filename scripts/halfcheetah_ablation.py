"""Figure 3 (a) of the paper: sizes of the tubes with C+D, A+D and A+C+D.

    python scripts/halfcheetah_ablation.py [--smoke-test] [--out folder]

A is the accumulated variance, C the calibrated forecaster (a temperature for each step), D the
direct bound. Trains the ensemble and rolls out first, unless the folder has them. Expect A+C+D (the
paper's) to be smaller than C+D, to have a shorter tail than A+D at much the same mean, and all
errors below epsilon.
"""

from __future__ import annotations

from typing import Any

from pac_core import evaluate
from pac_rl.experiments import fit_ablations
from pac_rl.figures import size_boxes
from pac_rl.reports import Report, run
from pac_rl.studies import Study


def main(study: Study, report: Report) -> list[dict[str, Any]]:
    level, case = study.design.level, study.closed_loop("one-step")
    forecast, truth = case.part("test")
    sizes, rows = {}, []
    for name, fitted in fit_ablations(case).items():
        tube = fitted.at(level).tube(forecast)
        found = evaluate(tube, truth, level)
        sizes[name] = tube.size()
        rows.append(
            {
                "ablation": name,
                "error": found.all.error,
                "98% interval": "{:.4f}..{:.4f}".format(*found.all.interval),
                "refuted": "yes" if found.refuted else "no",
                "median size": found.all.median,
                "mean": found.all.mean,
                "smallest": found.all.smallest,
                "largest": found.all.largest,
            }
        )
    where = str(study.design)
    report.table("ablation", rows, title=f"Ablation ({where})")
    title = f"The paper's ablation: A accumulated, C calibrated, D direct bound\n{where}"
    report.figure("ablation", size_boxes(sizes, title))
    return rows


if __name__ == "__main__":
    run(main, __doc__)
