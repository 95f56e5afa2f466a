"""The paper's figures and tables, and ours beside them; and the raw scores behind them.

A is the accumulated variance, C the calibrated forecaster (a temperature for each step), D the direct bound.
"""

import json
import math
import time
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
from baselines import mass_gaussian_sets
from common import INK, draw_bands, draw_boxes, draw_errors, level_grid, log_axis, new_panel, say_refuted
from halfcheetah.drawings import plot_step_sizes, plot_tubes
from halfcheetah.experiment import ABLATIONS, PARTS, error_cells
from scipy.stats import binom, binomtest

from pac_core import NotEnoughData, PACLevel, evaluate
from pac_core.bounds import Entry, joint_failure_probability, max_errors
from pac_core.certificates import write_json
from pac_core.runs import certify_run
from pac_core.thresholds import fit_threshold
from pac_rl import forecast_plans
from pac_rl.dynamics.forecasts import BATCH
from pac_rl.tasks import unit_seeds

SIZE = "size of the tube (half-diagonal of its box, mean over steps)"
EPSILONS, DELTAS = (0.01, 0.02, 0.03, 0.04, 0.05), (1e-1, 1e-3, 1e-5)
LABELS = {"forward velocity": "forward velocity, m/s", "rooty": "torso pitch, rad"}
LABELS |= {"rootz": "torso height, m"}
REPEATS = 2_000
LEVELS = [PACLevel(0.05, 0.1), PACLevel(0.02, 0.1), PACLevel(0.02, 0.01), PACLevel(0.01, 1e-5)]
PUBLISHED = "plots only (figure 3, tables 5 and 6, figure 4 c and d); the text gives no number"
"""What the paper says of its own half-cheetah: H = 20, n = 5000, epsilon = 0.01, delta = 1e-5."""


def certificate(experiment):
    """A certificate of the default tube at one level, with its ledger; `pac verify` checks it.

    Choose the level before any other figure shows what other levels would give from the same calibration
    rollouts: a level chosen afterwards needs new ones (`--seed`).
    """
    task, folder = experiment.run("closed")
    ledger = experiment.out / "pac-ledger.json"
    _, [finding] = certify_run(task, folder, [experiment.design.level], ledger, score="box")
    for remark in finding.certificate.predictor.remarks:
        print(f"note: {remark}")
    said = (finding.certificate.promise, finding.evaluation.verdict)
    print("", *said, f"certificate {folder}/{finding.file}", sep="\n")
    return finding.certificate.promise


def size_boxes(sizes, title):
    figure, axes = new_panel(title, SIZE)
    draw_boxes(axes, sizes)
    log_axis(axes)
    return figure


def ablation(experiment):
    """Figure 3 (a): sizes of the tubes with C+D, A+D and A+C+D.

    Expect A+C+D (the paper's) to be smaller than C+D, to have a shorter tail than A+D at much the same mean,
    and all errors below epsilon.
    """
    design, case = experiment.design, experiment.case("closed", "one-step")
    tubes = {name: case.fit_ablation(name).tube(design.level) for name in ABLATIONS}
    rows = []
    for name, tube in tubes.items():
        found = evaluate(tube, case.part("test")[1], design.level)
        of = found.all
        row = {"ablation": name} | error_cells(found) | {"refuted": say_refuted(found)}
        row |= {"median size": of.median, "mean": of.mean, "smallest": of.smallest, "largest": of.largest}
        rows.append(row)
    experiment.report.table("ablation", rows, f"Ablation ({design})")
    title = f"The paper's ablation: A accumulated, C calibrated, D direct bound\n{design}"
    sizes = {name: tube.size() for name, tube in tubes.items()}
    experiment.report.figure("ablation", size_boxes(sizes, title))
    return rows


def steps(experiment):
    """Figure 3 (b): the mean size at each step; it grows with t where variances are accumulated."""
    design, case = experiment.design, experiment.case("closed", "one-step")
    tubes = {name: case.fit_ablation(name).tube(design.level) for name in ABLATIONS}
    sizes = {name: tube.step_size().mean(axis=0) for name, tube in tubes.items()}
    rows = {"t": range(1, design.horizon + 1)} | sizes
    experiment.report.table("steps", rows, f"Mean size at each step ({design})")
    experiment.report.figure("steps", plot_step_sizes(sizes, f"The paper's ablation, step by step\n{design}"))


def levels(experiment):
    """Figure 3 (c) and (d): expect smaller tubes for a larger epsilon, and little dependence on delta."""
    design, report = experiment.design, experiment.report
    fitted = {
        "paper, A+C+D": experiment.case("closed", "one-step").fit_ablation(),
        "ours, box": experiment.case("closed").fit_box(design.level),
    }
    epsilons = [e for e in (*EPSILONS, 0.1, 0.2) if e >= min(design.epsilon, 0.05)]
    for name, tried, words, fixed in (
        ("epsilon", epsilons, "promised error", "delta"),
        ("delta", (*DELTAS, 1e-7, 1e-9), "probability that the promise fails", "epsilon"),
    ):
        sizes, rows = {label: {} for label in fitted}, []
        for level in (replace(design.level, **{name: value}) for value in tried):
            for label, one in fitted.items():
                with suppress(NotEnoughData):  # a level that so few units cannot prove has no tube
                    found = sizes[label][getattr(level, name)] = one.tube(level).size()
                    row = {"tube": label, "epsilon": level.epsilon, "delta": level.delta}
                    rows.append(row | {"median size": float(sorted(found)[len(found) // 2])})
        where = f"{design.env}, n = {design.calibrate:,}, {fixed} {getattr(design, fixed):g}"
        report.table(f"levels_{name}", rows, f"Sizes against {name} ({where})")
        label = f"{SIZE}\n(line: median, band: nine in ten tubes)"
        figure, axes = new_panel(f"Size of the tubes against {name}\n{where}", label)
        draw_bands(axes, sizes, name)
        log_axis(axes)
        axes.set_xlabel(f"{words}, {name}")
        report.figure(f"levels_{name}", figure)


def tables(experiment):
    """The appendix: the ablation at 5 epsilons x 3 deltas, which share one calibrate part."""
    case, n = experiment.case("closed", "one-step"), experiment.design.calibrate
    every, tubes, rows = [PACLevel(e, delta) for e in EPSILONS for delta in DELTAS], {}, []
    for level in every:
        tubes[level] = {}
        with suppress(NotEnoughData):
            tubes[level] = {name: case.fit_ablation(name).tube(level) for name in ABLATIONS}
        for name, tube in tubes[level].items():
            found = evaluate(tube, case.part("test")[1], level).all
            row = {"epsilon": level.epsilon, "delta": level.delta, "ablation": name, "error": found.error}
            rows.append(row | {"median size": found.median, "mean": found.mean})
    experiment.report.table("tables", rows, f"Error and size at each level, n = {n:,}")
    proved = [Entry("A+C+D", level.epsilon, level.delta) for level in every if tubes[level]]
    cost = joint_failure_probability(n, proved)
    print(f"  The {len(proved)} levels of A+C+D all hold with probability at least {1 - cost:.3f}.")

    def draw(axes, level, steps):
        if not tubes[level]:
            axes.text(0.5, 0.5, "too few rollouts", ha="center", transform=axes.transAxes, fontsize=9)
        elif steps:
            of = {name: tube.step_size().mean(axis=0) for name, tube in tubes[level].items()}
            plot_step_sizes(of, axes=axes)
        else:
            draw_boxes(axes, {name: tube.size() for name, tube in tubes[level].items()})
            log_axis(axes)

    title = f"{experiment.design.env}, n = {n:,}: A accumulated, C calibrated, D direct bound"
    figure = level_grid(every, partial(draw, steps=False), title, SIZE)
    experiment.report.figure("tables_boxes", figure)
    label = "mean size at the step (half-diagonal of the box)"
    figure = level_grid(every, partial(draw, steps=True), title, label)
    figure.axes[0].legend(frameon=False, fontsize=7.5)
    for axes in figure.axes[-len(DELTAS) :]:
        axes.set_xlabel("step t", fontsize=9)
    experiment.report.figure("tables_steps", figure)


def baselines(experiment):
    """Ellipsoids of the forecaster's own mass 1 - epsilon, which promise nothing: expect larger errors."""
    design, level, report = experiment.design, experiment.design.level, experiment.report
    case = experiment.case("closed", "one-step")
    (forecast, truth), paper = case.part("test"), case.fit_ablation()
    tubes = {
        "mass,\nas it is": mass_gaussian_sets(forecast.accumulated(), level.epsilon),
        "mass,\ncalibrated": mass_gaussian_sets(paper.score.prepared(forecast.wide()), level.epsilon),
        "PAC, paper's\nA+C+D": paper.tube(level),
        "PAC,\nour box": experiment.case("closed").fit_box(level).tube(level),
    }
    found = {name: evaluate(tube, truth, level) for name, tube in tubes.items()}
    rows = []
    for name, one in found.items():
        promise = "none" if name.startswith("mass") else f"error <= {level.epsilon:g}"
        row = {"sets": name.replace("\n", " "), "promise": promise} | error_cells(one)
        rows.append(row | {"median size": one.all.median, "mean": one.all.mean})
    report.table("baselines", rows, f"Baselines ({design})")
    label = "share of test rollouts outside their tube\n(whisker: exact 98% interval)"
    figure, axes = new_panel(f"Measured error of baselines and PAC tubes\n{design}", label)
    draw_errors(axes, {name: one.all for name, one in found.items()}, level.epsilon)
    log_axis(axes)
    axes.set_ylim(top=3)
    report.figure("baselines_error", figure)
    sizes = {name: tube.size() for name, tube in tubes.items()}
    report.figure("baselines_size", size_boxes(sizes, f"Size of baselines and PAC tubes\n{design}"))
    return rows


def shapes(experiment):
    """The paper's tube and our shapes with one promise, in the closed loop and for given plans."""
    return {name: compare_shapes(experiment, name) for name in ("closed", "plans")}


def compare_shapes(experiment, name):
    """Error and all sizes of each shape, and of the box in hindsight; `joint` is the paper's A+C+D."""
    level, report, ours = experiment.design.level, experiment.report, experiment.case(name)
    fitted = {
        "joint": experiment.case(name, "one-step").fit_ablation(),
        "max": ours.fit(level, shape="max"),
        "box": ours.fit_box(level),
    }
    if experiment.watched:
        fitted["features"] = ours.fit_watched(level)
    tubes = {shape: one.tube(level) for shape, one in fitted.items()}
    with suppress(NotEnoughData):  # of the test part, which may be smaller than the calibrate part
        tubes["box, hindsight"] = ours.hindsight(level)
    rows = [{"shape": shape} | ours.measure(tube, level) for shape, tube in tubes.items()]
    for row in rows:
        row["times smaller"] = rows[0]["size"] / row["size"]
        for words in experiment.watched.values():
            row[f"times, {words}"] = rows[0][f"half-width, {words}"] / row[f"half-width, {words}"]
    where = f"{ours.name}, {experiment.design}"
    report.table(f"shapes_{name}", rows, f"The paper's shape (joint) and ours ({where})")

    shown = {"joint (the paper's)" if k == "joint" else k: t for k, t in tubes.items() if k != "features"}
    along = {label: tube.step_size().mean(axis=0) for label, tube in shown.items()}
    figure = plot_step_sizes(along, f"Mean size of the tube at each step\n{where}")
    report.figure(f"shapes_{name}_steps", figure)
    sizes = {label: tube.size() for label, tube in shown.items()}
    report.figure(f"shapes_{name}_sizes", size_boxes(sizes, f"Size of the tubes, by shape\n{where}"))
    truth, names = ours.part("test")[1], experiment.robot.names
    longest = np.argsort(-truth.lengths, kind="stable")[:3].tolist()
    drawn = {label: shown[label] for label in ("joint (the paper's)", "box")}
    columns = {names.index(number): words for number, words in LABELS.items() if number in names}
    columns = columns or dict(enumerate(names[:3]))  # of a robot that has none of these
    title = f"Tubes around three test rollouts\n{where}"
    report.figure(f"shapes_{name}_tubes", plot_tubes(drawn, truth.marked(), columns, longest, title))
    return rows


def coverage(experiment):
    """Does the promise hold? The default tube calibrated again and again, in a world whose error is known.

    The rollouts that did not tune are taken for the whole world: calibration units are drawn from them with
    replacement, so the true error of each tube is a count, not an estimate. A breach is a true error above
    epsilon; its probability is known exactly and lies below delta. Expect as many, within the scatter.
    """
    design, case, n = experiment.design, experiment.case("closed"), experiment.design.calibrate
    score = case.fit_box(design.level).score
    world = np.sort(np.concatenate([case.scores(score, part) for part in PARTS[1:]]))
    what = f"{design.env}, {len(world):,} rollouts as the world, n = {n:,} drawn with replacement"
    label = "density over calibrations"
    figure, axes = new_panel(f"True errors of {REPEATS:,} calibrations\n{what}", label)
    rows, inks = [], iter(INK)
    for level in dict.fromkeys([*LEVELS, design.level]):
        try:
            allowed = max_errors(n, level)
        except NotEnoughData:
            continue
        counts = count_beyond(world, n, level, np.random.default_rng(design.seed))
        most = largest_kept(level.epsilon, len(world))
        exact = float(binom.cdf(allowed, n, (most + 1) / len(world)))  # most + 1: the least that is a breach
        breaches, errors, ink = int((counts > most).sum()), counts / len(world), next(inks)
        doubt = binomtest(breaches, REPEATS, exact).pvalue
        row = {"epsilon": level.epsilon, "delta": level.delta, "calibrations": REPEATS, "breaches": breaches}
        row |= {"expected": exact * REPEATS, "allowed by delta": level.delta * REPEATS}
        row |= {"mean true error": float(errors.mean())}
        rows.append(row | {"as predicted": "yes" if doubt > 1e-3 else f"NO (p = {doubt:.1g})"})
        level_label = f"{level.epsilon:g}, {level.delta:g}"
        axes.hist(errors, bins=60, color=ink, alpha=0.55, density=True, label=level_label)
        axes.axvline(level.epsilon, color=ink, linestyle=":")
    experiment.report.table("coverage", rows, f"Repeated calibrations of the box tube ({what})")
    axes.set_xlabel("true error of the calibrated tube (dotted: its promise, epsilon)")
    axes.legend(title="epsilon, delta", frameon=False)
    experiment.report.figure("coverage", figure)
    return rows


def count_beyond(world, n, level, rng):
    """`[REPEATS]` how many of the world lie above T, where T is calibrated on n units drawn from it."""
    limits = [fit_threshold(rng.choice(world, size=n), level).value for _ in range(REPEATS)]
    return len(world) - np.searchsorted(world, limits, side="right")


def largest_kept(epsilon, size):
    """The most of `size` units that are a share of at most epsilon, the decimal it is written as."""
    return math.floor(Fraction(str(epsilon)) * size)


def propagation(experiment):
    """The box on two ways to carry uncertainty over the horizon."""
    design, model, rows = experiment.design, experiment.ensemble, []
    starts, plans = np.zeros((BATCH, model.dims)), np.zeros((BATCH, design.horizon, model.action_dims))
    for name in ("closed", "plans"):
        for kind in ("one-step", "particles"):
            case = experiment.case(name, kind)
            fitted = case.fit_box(design.level)
            row = {"case": case.name, "propagation": kind, "power": fitted.score.power}
            row |= {"accumulated": "yes" if fitted.score.accumulate else "no"}
            row |= case.measure(fitted.tube(design.level), design.level)
            begun = time.perf_counter()
            forecast_plans(model, starts, plans, propagation=kind)
            rows.append(row | {"ms a forecast": 1e3 * (time.perf_counter() - begun) / BATCH})
    experiment.report.table("propagation", rows, f"The box tube by propagation, n = {design.calibrate:,}")


# The certificate comes first: its level was chosen before anything was seen.
BUT_PROPAGATION = (certificate, ablation, steps, levels, tables, baselines, shapes, coverage)
FIGURES = {draw.__name__: draw for draw in (*BUT_PROPAGATION, propagation)}


def draw_all(experiment):
    """Every figure but that of propagation, scores.npz and summary.json."""
    found = {draw.__name__: draw(experiment) for draw in BUT_PROPAGATION}
    keep_scores(experiment)
    results = {name: rows for name, rows in found.items() if rows is not None}
    summary = json.dumps({"design": experiment.design.about(), "paper": PUBLISHED, "results": results})
    known = json.loads(summary, parse_constant=lambda _: None)  # a number that there is not is null
    write_json(experiment.report.folder / "summary.json", known)


def keep_scores(experiment):
    """Raw scores of every unit with its seed and part, for the paper's tube and for our box."""
    seeds = np.asarray(unit_seeds(**experiment.design.sizes))
    arrays = {"seeds": seeds, "part": np.empty(len(seeds), dtype="U9")}
    for name in ("closed", "plans"):
        paper = experiment.case(name, "one-step").fit_ablation()
        box = experiment.case(name).fit_box(experiment.design.level)
        for kind, fitted in (("joint", paper), ("box", box)):
            arrays[f"{name}_{kind}"] = scores = np.empty(len(seeds))
            for part in PARTS:
                rows = getattr(fitted.case.results.parts, part).rows
                scores[rows] = fitted.case.scores(fitted.score, part)
                arrays["part"][rows] = part
    np.savez(experiment.report.folder / "scores.npz", **arrays)
