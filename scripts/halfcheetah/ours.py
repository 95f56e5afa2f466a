"""Our tubes beside the paper's: a certificate, shapes, propagations, and whether the promise holds."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.stats import binom, binomtest

from halfcheetah.drawing import size_boxes
from halfcheetah.experiment import Experiment
from halfcheetah.fits import fit_ablation, fit_box, fit_case, fit_watched, hindsight, row, watched
from pac_core import Certificate, NotEnoughData, PACLevel
from pac_core.bounds import max_errors
from pac_core.plots import INK, canvas
from pac_core.runs import certify_run
from pac_core.sets import score_units
from pac_core.thresholds import fit_threshold
from pac_rl import Ensemble, forecast_plans
from pac_rl.forecasts import BATCH
from pac_rl.plots import plot_step_sizes, plot_tubes
from pac_rl.systems import Environment

Rows = list[dict[str, Any]]
LABELS = {
    "forward velocity": "forward velocity, m/s",
    "rooty": "torso pitch, rad",
    "rootz": "torso height, m",
}
REPEATS = 2_000
LEVELS = [PACLevel(0.05, 0.1), PACLevel(0.02, 0.1), PACLevel(0.02, 0.01), PACLevel(0.01, 1e-5)]


def certificate(experiment: Experiment) -> Certificate:
    """A certificate of the default tube at one level, with its ledger; `pac verify` checks it.

    Choose the level before any other figure shows what other levels would give from the same calibration
    rollouts: a level chosen afterwards needs new ones (`--seed`).
    """
    task, folder = experiment.run("closed")
    ledger = experiment.out / "pac-ledger.json"
    _, [finding] = certify_run(task, folder, [experiment.design.level], ledger, shape="box")
    for remark in finding.certificate.predictor.remarks:
        print(f"note: {remark}")
    print(
        f"\n{finding.certificate.promise}\n{finding.evaluation.verdict}\ncertificate {folder}/{finding.file}"
    )
    return finding.certificate


def shapes(experiment: Experiment) -> dict[str, Rows]:
    """The paper's tube and our shapes with one promise, in the closed loop and for given plans."""
    return {name: compare(experiment, name) for name in ("closed", "plans")}


def compare(experiment: Experiment, name: str) -> Rows:
    """Error and all sizes of each shape, and of the box in hindsight; `joint` is the paper's A+C+D."""
    level, robot, report = experiment.design.level, experiment.robot, experiment.report
    paper, ours = experiment.case(name, "one-step"), experiment.case(name)
    test, truth = ours.part("test")
    tubes = {"joint": fit_ablation(paper, "A+C+D").at(level).tube(paper.part("test")[0])}
    own = {"max": fit_case(ours, level, shape="max"), "box": fit_box(ours, level)}
    if watched(robot):
        own["features"] = fit_watched(ours, level, robot)
    tubes |= {shape: fitted.at(level).tube(test) for shape, fitted in own.items()}
    with suppress(NotEnoughData):  # of the test part, which may be smaller than the calibrate part
        tubes["box, hindsight"] = hindsight(ours, level)
    rows = [{"shape": shape} | row(ours, tube, level, robot) for shape, tube in tubes.items()]
    for one in rows:
        one["times smaller"] = rows[0]["size"] / one["size"]
        for words in watched(robot).values():
            one[f"times, {words}"] = rows[0][f"half-width, {words}"] / one[f"half-width, {words}"]
    where = f"{ours.name}, {experiment.design}"
    report.table(f"shapes_{name}", rows, f"The paper's shape (joint) and ours ({where})")

    shown = {"joint (the paper's)" if k == "joint" else k: t for k, t in tubes.items() if k != "features"}
    steps = {label: tube.step_size().mean(axis=0) for label, tube in shown.items()}
    figure = plot_step_sizes(steps, f"Mean size of the tube at each step\n{where}")
    report.figure(f"shapes_{name}_steps", figure)
    sizes = {label: tube.size() for label, tube in shown.items()}
    report.figure(f"shapes_{name}_sizes", size_boxes(sizes, f"Size of the tubes, by shape\n{where}"))
    longest = np.argsort(-truth.lengths, kind="stable")[:3].tolist()
    drawn = {label: shown[label] for label in ("joint (the paper's)", "box")}
    title = f"Tubes around three test rollouts\n{where}"
    figure = plot_tubes(drawn, truth.marked(), drawn_columns(robot), longest, title)
    report.figure(f"shapes_{name}_tubes", figure)
    return rows


def drawn_columns(robot: Environment) -> dict[int, str]:
    """The numbers of the state that are drawn, with their labels; the first three of an unknown robot."""
    names = robot.names
    known = {names.index(name): words for name, words in LABELS.items() if name in names}
    return known or dict(enumerate(names[:3]))


def propagation(experiment: Experiment) -> Rows:
    """The box on three ways to carry uncertainty over the horizon; the Jacobian takes minutes."""
    level, rows = experiment.design.level, []
    for name in ("closed", "plans"):
        for kind in ("one-step", "jacobian", "particles"):
            case = experiment.case(name, kind)
            fitted = fit_box(case, level)
            tube = fitted.at(level).tube(case.part("test")[0])
            about = {"case": case.name, "propagation": kind, "power": fitted.score.power}
            about |= {"accumulated": "yes" if fitted.score.accumulate else "no"}
            found = row(case, tube, level, experiment.robot)
            rows.append(
                about | found | {"ms a forecast": cost(experiment.ensemble, experiment.design.horizon, kind)}
            )
    title = f"The box tube by propagation, n = {experiment.design.calibrate:,}"
    experiment.report.table("propagation", rows, title)
    return rows


def cost(model: Ensemble, horizon: int, kind: str) -> float:
    """Milliseconds of the forecast of one plan among those that are computed together."""
    starts, plans = np.zeros((BATCH, model.dims)), np.zeros((BATCH, horizon, model.action_dims))
    begun = time.perf_counter()
    forecast_plans(model, starts, plans, propagation=kind)
    return 1e3 * (time.perf_counter() - begun) / BATCH


def coverage(experiment: Experiment) -> Rows:
    """Does the promise hold? The default tube calibrated again and again, in a world whose error is known.

    The rollouts that did not tune are taken for the whole world: calibration units are drawn from them with
    replacement, so the true error of each tube is a count, not an estimate. A breach is a true error above
    epsilon; its probability is known exactly and lies below delta. Expect as many, within the scatter.
    """
    design, case, n = experiment.design, experiment.case("closed"), experiment.design.calibrate
    score = fit_box(case, design.level).score
    scores = [np.asarray(score_units(score, *case.part(part))) for part in ("calibrate", "test")]
    world = np.sort(np.concatenate(scores))
    rows, errors = [], {}
    for level in dict.fromkeys([*LEVELS, design.level]):
        try:
            allowed = max_errors(n, level)
        except NotEnoughData:
            continue
        counts = count_beyond(world, n, level, np.random.default_rng(design.seed))
        most = largest_kept(level.epsilon, len(world))
        exact = float(binom.cdf(allowed, n, (most + 1) / len(world)))  # most + 1: the least that is a breach
        breaches = int((counts > most).sum())
        doubt = binomtest(breaches, REPEATS, exact).pvalue
        errors[level] = counts / len(world)
        found = {
            "epsilon": level.epsilon,
            "delta": level.delta,
            "calibrations": REPEATS,
            "breaches": breaches,
        }
        found |= {"expected": exact * REPEATS, "allowed by delta": level.delta * REPEATS}
        found |= {"mean true error": float(errors[level].mean())}
        rows.append(found | {"as predicted": "yes" if doubt > 1e-3 else f"NO (p = {doubt:.1g})"})
    what = f"{design.env}, {len(world):,} rollouts as the world, n = {n:,} drawn with replacement"
    experiment.report.table("coverage", rows, f"Repeated calibrations of the box tube ({what})")
    figure, axes = canvas(7.0, 4.2)
    for (level, found), ink in zip(errors.items(), INK, strict=False):
        label = f"{level.epsilon:g}, {level.delta:g}"
        axes.hist(found, bins=60, color=ink, alpha=0.55, density=True, label=label)
        axes.axvline(level.epsilon, color=ink, linestyle=":")
    axes.set_xlabel("true error of the calibrated tube (dotted: its promise, epsilon)")
    axes.set_ylabel("density over calibrations")
    axes.legend(title="epsilon, delta", frameon=False)
    axes.set_title(f"True errors of {REPEATS:,} calibrations\n{what}", loc="left", fontsize=10.5)
    experiment.report.figure("coverage", figure)
    return rows


def count_beyond(world: np.ndarray, n: int, level: PACLevel, rng: np.random.Generator) -> np.ndarray:
    """`[REPEATS]` how many of the world lie above T, where T is calibrated on n units drawn from it."""
    limits = [fit_threshold(rng.choice(world, size=n), level).value for _ in range(REPEATS)]
    return len(world) - np.searchsorted(world, limits, side="right")


def largest_kept(epsilon: float, size: int) -> int:
    """The most of `size` units that are a share of at most epsilon, the decimal it is written as."""
    return math.floor(Fraction(str(epsilon)) * size)
