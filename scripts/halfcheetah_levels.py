"""Figure 3 (c) and (d) of the paper: sizes against epsilon and against delta, of A+C+D and of our box.

    python scripts/halfcheetah_levels.py [--smoke-test] [--out folder]

Expect smaller tubes for a larger epsilon, and little dependence on delta.
"""

from __future__ import annotations

from contextlib import suppress

from pac_core import NotEnoughData, PACLevel
from pac_rl.experiments import DELTAS, EPSILONS, fit_ablation, fit_box
from pac_rl.figures import level_lines
from pac_rl.reports import Report, run
from pac_rl.studies import Study


def main(study: Study, report: Report) -> None:
    design, paper, ours = study.design, study.closed_loop("one-step"), study.closed_loop()
    fitted = {
        "paper, A+C+D": (fit_ablation(paper, "A+C+D"), paper.part("test")[0]),
        "ours, box": (fit_box(ours, design.level), ours.part("test")[0]),
    }
    epsilons = [e for e in (*EPSILONS, 0.1, 0.2) if e >= min(design.epsilon, 0.05)]
    menu = {
        "epsilon": [PACLevel(epsilon, design.delta) for epsilon in epsilons],
        "delta": [PACLevel(design.epsilon, delta) for delta in (*DELTAS, 1e-7, 1e-9)],
    }
    for name, levels in menu.items():
        sizes: dict[str, dict[float, object]] = {label: {} for label in fitted}
        rows = []
        for level in levels:
            for label, (one, forecast) in fitted.items():
                with suppress(NotEnoughData):  # a level that so few units cannot prove has no tube
                    found = one.at(level).tube(forecast).size()
                    sizes[label][getattr(level, name)] = found
                    row = {"tube": label, "epsilon": level.epsilon, "delta": level.delta}
                    rows.append(row | {"median size": float(sorted(found)[len(found) // 2])})
        other = f"delta {design.delta:g}" if name == "epsilon" else f"epsilon {design.epsilon:g}"
        where = f"{design.env}, n = {design.calibrate:,}, {other}"
        report.table(f"levels_{name}", rows, title=f"Sizes against {name} ({where})")
        title = f"Size of the tubes against {name}\n{where}"
        words = {"epsilon": "promised error, epsilon", "delta": "probability that the promise fails, delta"}
        report.figure(f"levels_{name}", level_lines(sizes, words[name], title, log_x=name == "delta"))


if __name__ == "__main__":
    run(main, __doc__)
