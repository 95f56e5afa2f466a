"""The two tables of figures in the paper's appendix: the ablation for 5 epsilons x 3 deltas.

    python scripts/halfcheetah_tables.py [--smoke-test] [--out folder]

One figure has the box plots of `halfcheetah_ablation.py`, the other the sizes per step of
`halfcheetah_steps.py`; epsilon 0.01 to 0.05 down, delta 1e-1, 1e-3, 1e-5 across. A table in CSV has
error and size of each. The fifteen levels share one calibrate split: the ledger's cost of the
whole menu is printed.
"""

from __future__ import annotations

from pac_core import NotEnoughData, PACLevel, evaluate, joint_cost
from pac_core.costs import Entry
from pac_rl.experiments import DELTAS, EPSILONS, fit_ablations
from pac_rl.figures import SIZE, STEP_SIZE, draw_boxes, draw_steps, grid
from pac_rl.reports import Report, run
from pac_rl.studies import Study


def main(study: Study, report: Report) -> None:
    case, n = study.closed_loop("one-step"), study.design.calibrate
    forecast, truth = case.part("test")
    fitted = fit_ablations(case)
    sizes: dict[tuple[float, float], dict[str, object]] = {}
    steps: dict[tuple[float, float], dict[str, object]] = {}
    rows, menu = [], []
    for epsilon in EPSILONS:
        for delta in DELTAS:
            level = PACLevel(epsilon, delta)
            sizes[epsilon, delta], steps[epsilon, delta] = {}, {}
            for name, one in fitted.items():
                try:
                    tube = one.at(level).tube(forecast)
                except NotEnoughData:
                    continue
                found = evaluate(tube, truth, level)
                sizes[epsilon, delta][name] = tube.size()
                steps[epsilon, delta][name] = tube.step_size().mean(axis=0)
                menu += [Entry(name, epsilon, delta)] if name == "A+C+D" else []
                row = {"epsilon": epsilon, "delta": delta, "ablation": name, "error": found.all.error}
                rows.append(row | {"median size": found.all.median, "mean": found.all.mean})
    report.table("tables", rows, title=f"Error and size at each level, n = {n:,}")
    print(
        f"  The {len(menu)} levels of A+C+D all hold with probability at least {1 - joint_cost(n, menu):.3f}."
    )

    def too_few(axes: object) -> None:
        axes.text(0.5, 0.5, f"{n:,} rollouts\nare too few", ha="center", transform=axes.transAxes, fontsize=9)

    def boxes(axes: object, epsilon: float, delta: float) -> None:
        if not sizes[epsilon, delta]:
            return too_few(axes)
        draw_boxes(axes, sizes[epsilon, delta])

    def lines(axes: object, epsilon: float, delta: float) -> None:
        if not steps[epsilon, delta]:
            return too_few(axes)
        draw_steps(axes, steps[epsilon, delta])
        if (epsilon, delta) == (EPSILONS[0], DELTAS[0]):
            axes.legend(frameon=False, fontsize=7.5)
        if epsilon == EPSILONS[-1]:
            axes.set_xlabel("step t", fontsize=9)

    title = f"{study.design.env}, n = {n:,}: A accumulated, C calibrated, D direct bound"
    report.figure("tables_boxes", grid(EPSILONS, DELTAS, boxes, title, SIZE))
    report.figure("tables_steps", grid(EPSILONS, DELTAS, lines, title, f"mean {STEP_SIZE}"))


if __name__ == "__main__":
    run(main, __doc__)
