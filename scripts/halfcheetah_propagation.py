"""Three ways to carry uncertainty over the horizon: do the better ones earn their place?

    python scripts/halfcheetah_propagation.py [--smoke-test] [--out folder]

The same ensemble forecasts the same rollouts with one-step variances (the paper's), with the
covariance carried through the Jacobian, and with particles; the box tube is fitted to each. Prints
error, size and cost. The Jacobian takes minutes at full size.
"""

from __future__ import annotations

import time

from pac_rl.experiments import fit_box, row
from pac_rl.reports import Report, run
from pac_rl.studies import Study


def main(study: Study, report: Report) -> None:
    level, rows = study.design.level, []
    for case_of in (study.closed_loop, study.given_plans):
        for propagation in ("one-step", "jacobian", "particles"):
            before = time.perf_counter()
            case = case_of(propagation)
            seconds = time.perf_counter() - before
            fitted = fit_box(case, level)
            tube = fitted.at(level).tube(case.part("test")[0])
            about = {"case": case.name, "propagation": propagation, "power": fitted.score.power}
            about |= {"accumulated": "yes" if fitted.score.accumulate else "no"}
            found = row(case, tube, level, study.environment)
            rows.append(about | found | {"seconds": seconds})
    report.table("propagation", rows, title=f"The box tube by propagation, n = {study.design.calibrate:,}")


if __name__ == "__main__":
    run(main, __doc__)
