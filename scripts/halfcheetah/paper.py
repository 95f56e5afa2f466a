"""The paper's own figures: ablation, sizes per step, sizes against the level, tables, baselines.

A is the accumulated variance, C the calibrated forecaster (a temperature for each step), D the direct bound.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from halfcheetah.drawing import SIZE, error_bars, level_grid, level_lines, size_boxes
from halfcheetah.experiment import Experiment
from halfcheetah.fits import DELTAS, EPSILONS, fit_ablation, fit_ablations, fit_box, measured
from pac_core import NotEnoughData, PACLevel, evaluate
from pac_core.bounds import Entry, joint_failure_probability
from pac_core.evaluation import mass_gaussian_sets
from pac_rl.plots import plot_step_sizes

Rows = list[dict[str, Any]]


def ablation(experiment: Experiment) -> Rows:
    """Figure 3 (a): sizes of the tubes with C+D, A+D and A+C+D.

    Expect A+C+D (the paper's) to be smaller than C+D, to have a shorter tail than A+D at much the same mean,
    and all errors below epsilon.
    """
    design, case = experiment.design, experiment.case("closed", "one-step")
    forecast, truth = case.part("test")
    sizes, rows = {}, []
    for name, fitted in fit_ablations(case).items():
        tube = fitted.at(design.level).tube(forecast)
        found = evaluate(tube, truth, design.level)
        sizes[name] = tube.size()
        about = {"ablation": name} | measured(found) | {"refuted": "yes" if found.refuted else "no"}
        sized = {"smallest": found.all.smallest, "largest": found.all.largest}
        rows.append(about | {"median size": found.all.median, "mean": found.all.mean} | sized)
    experiment.report.table("ablation", rows, f"Ablation ({design})")
    title = f"The paper's ablation: A accumulated, C calibrated, D direct bound\n{design}"
    experiment.report.figure("ablation", size_boxes(sizes, title))
    return rows


def steps(experiment: Experiment) -> None:
    """Figure 3 (b): the mean size at each step; it grows with t where variances are accumulated."""
    design, case = experiment.design, experiment.case("closed", "one-step")
    forecast, _ = case.part("test")
    sizes = {
        name: fitted.at(design.level).tube(forecast).step_size().mean(axis=0)
        for name, fitted in fit_ablations(case).items()
    }
    rows = [
        {"t": t + 1} | {name: float(size[t]) for name, size in sizes.items()} for t in range(design.horizon)
    ]
    experiment.report.table("steps", rows, f"Mean size at each step ({design})")
    experiment.report.figure("steps", plot_step_sizes(sizes, f"The paper's ablation, step by step\n{design}"))


def levels(experiment: Experiment) -> None:
    """Figure 3 (c) and (d): sizes against epsilon and against delta, of A+C+D and of our box.

    Expect smaller tubes for a larger epsilon, and little dependence on delta.
    """
    design = experiment.design
    paper, ours = experiment.case("closed", "one-step"), experiment.case("closed")
    fitted = {
        "paper, A+C+D": (fit_ablation(paper, "A+C+D"), paper.part("test")[0]),
        "ours, box": (fit_box(ours, design.level), ours.part("test")[0]),
    }
    epsilons = [e for e in (*EPSILONS, 0.1, 0.2) if e >= min(design.epsilon, 0.05)]
    swept = {
        "epsilon": [PACLevel(epsilon, design.delta) for epsilon in epsilons],
        "delta": [PACLevel(design.epsilon, delta) for delta in (*DELTAS, 1e-7, 1e-9)],
    }
    words = {"epsilon": "promised error, epsilon", "delta": "probability that the promise fails, delta"}
    for name, tried in swept.items():
        sizes: dict[str, dict[float, np.ndarray]] = {label: {} for label in fitted}
        rows = []
        for level in tried:
            for label, (one, forecast) in fitted.items():
                with suppress(NotEnoughData):  # a level that so few units cannot prove has no tube
                    found = one.at(level).tube(forecast).size()
                    sizes[label][getattr(level, name)] = found
                    row = {"tube": label, "epsilon": level.epsilon, "delta": level.delta}
                    rows.append(row | {"median size": float(sorted(found)[len(found) // 2])})
        other = f"delta {design.delta:g}" if name == "epsilon" else f"epsilon {design.epsilon:g}"
        where = f"{design.env}, n = {design.calibrate:,}, {other}"
        experiment.report.table(f"levels_{name}", rows, f"Sizes against {name} ({where})")
        title = f"Size of the tubes against {name}\n{where}"
        figure = level_lines(sizes, words[name], title)
        figure.axes[0].set_xscale("log" if name == "delta" else "linear")
        experiment.report.figure(f"levels_{name}", figure)


def tables(experiment: Experiment) -> None:
    """The appendix: box plots and sizes per step of the ablation, for 5 epsilons x 3 deltas.

    The fifteen levels share one calibrate part: what they cost together is printed.
    """
    case, n = experiment.case("closed", "one-step"), experiment.design.calibrate
    forecast, truth = case.part("test")
    fitted = fit_ablations(case)
    sizes: dict[tuple[float, float], dict[str, Any]] = {}
    per_step: dict[tuple[float, float], dict[str, Any]] = {}
    rows, proved = [], []
    for level in (PACLevel(epsilon, delta) for epsilon in EPSILONS for delta in DELTAS):
        at = level.epsilon, level.delta
        sizes[at], per_step[at] = {}, {}
        for name, one in fitted.items():
            try:
                tube = one.at(level).tube(forecast)
            except NotEnoughData:
                continue
            found = evaluate(tube, truth, level).all
            sizes[at][name], per_step[at][name] = tube.size(), tube.step_size().mean(axis=0)
            proved += [Entry(name, *at)] if name == "A+C+D" else []
            row = {"epsilon": level.epsilon, "delta": level.delta, "ablation": name, "error": found.error}
            rows.append(row | {"median size": found.median, "mean": found.mean})
    experiment.report.table("tables", rows, f"Error and size at each level, n = {n:,}")
    cost = joint_failure_probability(n, proved)
    print(f"  The {len(proved)} levels of A+C+D all hold with probability at least {1 - cost:.3f}.")

    title = f"{experiment.design.env}, n = {n:,}: A accumulated, C calibrated, D direct bound"
    experiment.report.figure("tables_boxes", level_grid(sizes, size_boxes, title, SIZE))
    label = "mean size at the step (half-diagonal of the box)"
    figure = level_grid(per_step, plot_step_sizes, title, label)
    figure.axes[0].legend(frameon=False, fontsize=7.5)
    for axes in figure.axes[-len(DELTAS) :]:
        axes.set_xlabel("step t", fontsize=9)
    experiment.report.figure("tables_steps", figure)


def baselines(experiment: Experiment) -> Rows:
    """Ellipsoids of the forecaster's own mass 1 - epsilon, as it is and after temperatures were fitted.

    Neither has a guarantee: expect both to miss more trajectories than epsilon, and the PAC tubes to keep it.
    """
    design, level = experiment.design, experiment.design.level
    case, ours = experiment.case("closed", "one-step"), experiment.case("closed")
    forecast, truth = case.part("test")
    paper = fit_ablation(case, "A+C+D")
    tubes = {
        "mass,\nas it is": mass_gaussian_sets(forecast.accumulated(), level.epsilon),
        "mass,\ncalibrated": mass_gaussian_sets(paper.score.prepared(forecast.wide()), level.epsilon),
        "PAC, paper's\nA+C+D": paper.at(level).tube(forecast),
        "PAC,\nour box": fit_box(ours, level).at(level).tube(ours.part("test")[0]),
    }
    found = {name: evaluate(tube, truth, level) for name, tube in tubes.items()}
    promise = f"error <= {level.epsilon:g}"
    rows = [
        {"sets": name.replace("\n", " "), "promise": "none" if name.startswith("mass") else promise}
        | measured(one)
        | {"median size": one.all.median, "mean": one.all.mean}
        for name, one in found.items()
    ]
    experiment.report.table("baselines", rows, f"Baselines ({design})")
    errors = {name: (one.all.error, one.all.interval) for name, one in found.items()}
    title = f"Measured error of baselines and PAC tubes\n{design}"
    experiment.report.figure("baselines_error", error_bars(errors, level.epsilon, title))
    sizes = {name: tube.size() for name, tube in tubes.items()}
    figure = size_boxes(sizes, f"Size of baselines and PAC tubes\n{design}")
    experiment.report.figure("baselines_size", figure)
    return rows
