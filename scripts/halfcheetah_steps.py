"""Figure 3 (b) of the paper: the mean size of the tubes at each step, with C+D, A+D and A+C+D.

    python scripts/halfcheetah_steps.py [--smoke-test] [--out folder]

Expect sizes that grow with t where variances are accumulated.
"""

from __future__ import annotations

from pac_rl.experiments import fit_ablations
from pac_rl.figures import step_lines
from pac_rl.reports import Report, run
from pac_rl.studies import Study


def main(study: Study, report: Report) -> None:
    level, case = study.design.level, study.closed_loop("one-step")
    forecast, _ = case.part("test")
    steps = {
        name: fitted.at(level).tube(forecast).step_size().mean(axis=0)
        for name, fitted in fit_ablations(case).items()
    }
    rows = [
        {"t": t + 1} | {name: float(size[t]) for name, size in steps.items()}
        for t in range(study.design.horizon)
    ]
    where = str(study.design)
    report.table("steps", rows, title=f"Mean size at each step ({where})")
    report.figure("steps", step_lines(steps, f"The paper's ablation, step by step\n{where}"))


if __name__ == "__main__":
    run(main, __doc__)
