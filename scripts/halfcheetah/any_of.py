"""Best of many plans: the tube of a drawn plan breaks its promise, the tube of any of them keeps it.

From starts along the policy's rollouts a planner proposes K plans of 6 steps, and picks the one of the
largest predicted return. Two planners: 21 candidates around the policy (its actions times 0, 0.05 ... 1), and
random shooting of 400 plans, which finds what the model is mistaken about. Two tubes of the forward velocity
for each: one calibrated on a plan drawn from the K, and one on all K, each start counting by its worst plan;
around the policy also of its upper end alone, which is all that a speed limit reads. All plans are carried
out; of calibrate and test units only scores come back from the engine.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import numpy as np
from common import interval_text

import pac_core
from pac_core import GaussianForecast, PACLevel, Trajectories
from pac_core.certificates import Descent, Record, descend, episodes_needed, score_digest, write_descent
from pac_core.datasets import file_digest
from pac_core.evaluation import error_interval
from pac_core.forecasts import flatten_candidates
from pac_core.runs import RunFolder, Stage, Task
from pac_core.sets import score_units
from pac_core.thresholds import fit_threshold
from pac_core.tubes import fit_shape
from pac_rl import AroundPolicy, Dynamics, Ensemble, MujocoSystem, Shooting, fit_guard, velocity_limit
from pac_rl.planning import (
    CandidateRuns,
    FittedTubes,
    PutRowsBack,
    ReturnCost,
    RunToStarts,
    certify_candidates,
    cheetah_reward,
)
from pac_rl.rollouts import TRAINING_SEEDS
from pac_rl.tasks import NEEDS, SimulateRollouts

LEVEL, HORIZON = PACLevel(0.05, 1e-3), 6


def draw_uniformly(low, high, state, rng, count, horizon):
    """Plans of independent actions, uniform over their range."""
    return rng.uniform(low, high, (count, horizon, len(low)))


@dataclass(frozen=True)
class Counts:
    """Units of each planner, to tune, calibrate and test on."""

    around: tuple = (800, 1000, 1000)
    shooting: tuple = (150, 1000, 1000)
    plans: int = 400
    level: PACLevel = field(default=LEVEL)
    guarded: tuple = (300, 1000, 500)
    steps: int = 200
    proved: PACLevel = field(default=PACLevel(0.05, 0.01))
    allowed: int = 2


SMALL = Counts((20, 70, 30), (20, 70, 30), 12, PACLevel(0.1, 1e-3), (20, 70, 30), 8, PACLevel(0.5, 0.1), 1)


def compare_picks(experiment, counts, model=None):
    """Both planners, both tubes: how wide they are, and how often a plan leaves its own.

    model: file of another ensemble, such as the guard's: then of the planner around the policy alone
    """
    robot, level = experiment.robot, counts.level
    file = model or experiment.out / "model" / "ensemble.safetensors"
    ensemble = Ensemble.load(model) if model else experiment.ensemble
    system, price = MujocoSystem(experiment.design.env), ReturnCost(cheetah_reward)
    along = Dynamics.of(ensemble, propagation="one-step", batch=None)
    around = AroundPolicy.of(system, along, experiment.policy, price=price, horizon=HORIZON)
    of, name = (ensemble, file), "around, guard's model" if model else "around"
    rows = compare_tubes(experiment, name, around, of, counts.around, level, ("", "upper"))
    if model is None:
        draw = partial(draw_uniformly, robot.low, robot.high)
        shooting = Shooting(draw, price, counts.plans, HORIZON)
        rows += compare_tubes(experiment, "shooting", shooting, of, counts.shooting, level, ("",))
    title = f"Whichever plan is picked: epsilon {level.epsilon:g}, delta {level.delta:g}"
    table = "any_of_model" if model else "any_of"
    experiment.report.table(table, rows, title, note="Intervals are exact, two-sided, 98%.")


SEEDS = {"shooting": 1, "around": 2, "around, guard's model": 3}
"""Beyond the experiment's: starts of its own for each planner."""


def compare_tubes(experiment, name, planner, model, sizes, level, ends):
    """Rows of a planner; `ends` are "" for an interval of the speed, and "upper" for its upper end alone."""
    ensemble, file = model
    design, folder = experiment.design, RunFolder(experiment.out / "any_of" / name.replace(", ", "-"))
    speed = pac_core.LinearFeatures(("speed",), experiment.along("forward velocity")[None])
    shape = {"shape": "features", "features": speed, "units": (1.0,)}
    starts = Stage(SimulateRollouts, (design.env, experiment.policy, 1, design.burn_in), 1, 0, NEEDS)
    count = getattr(planner, "candidates", None) or len(planner.factors)
    forecast = Dynamics.of(ensemble, propagation="one-step", batch=count)
    runs = CandidateRuns(starts, planner, forecast, PutRowsBack(MujocoSystem(design.env)))

    def fit_others(forecast, truth):
        """Beside the tube that is certified: that of a drawn plan, and both of the upper end."""
        rows, found = np.arange(len(truth)), {}
        which = np.random.default_rng(design.seed).integers(count, size=len(rows))
        drawn = GaussianForecast(forecast.mean[rows, which], forecast.var[rows, which]).mark_failures()
        plans = Trajectories(truth.states[rows, which], truth.lengths[rows, which])
        for end in ends:
            one = shape | {"sides": (1 if end else 0,)}
            found[f"{end}drawn"] = fit_shape(drawn, plans, level, **one)
            if end:
                found[end] = fit_shape(forecast, truth, level, any_of=True, **one).shape
        return found

    made, _ = certify_candidates(
        runs,
        folder,
        [level],
        experiment.out / "any_of" / "pac-ledger",
        model=Record(str(ensemble), digest=file_digest(file)),
        train=ensemble.train_record,
        also=fit_others,
        engine=experiment.engine,
        seed=design.seed + SEEDS[name],
        **dict(zip(("tune", "calibrate", "test"), sizes, strict=True)),
        **shape,
    )
    print(f"\n{made.certificates[0].promise}")
    found, tuned = folder.read_all(), RunFolder(f"{folder}/tune").read_all()
    parts = Task.read(folder).results(folder).parts
    forecast = GaussianForecast(tuned["mean"], tuned["var"]).mark_failures()
    truth = Trajectories(tuned["truth"], tuned["lengths"])
    shapes = fit_others(forecast, truth) | {"": made.score.shape}
    plans, _ = flatten_candidates(forecast, truth)
    rows = []
    for end, drawn in product(ends, ("drawn", "")):
        kind = f"{end}{drawn}"
        suffix = f"_{kind}" if kind else ""
        scores = found[("drawn" if drawn else "scores") + suffix]
        limit = fit_threshold(scores[parts.calibrate.rows], level).value
        tube = shapes[kind].sets(plans, limit)
        row = {"planner": name, "K": count, "of the speed": "upper end" if end else "interval"}
        row |= {"calibrated on": "a drawn plan" if drawn else "all of them", "T": limit}
        lower, upper = tube.box()
        width = upper - tube.region.center if end else (upper - lower) / 2
        row |= {"half-width, m/s": float(np.nanmean(width))}
        for words, part in (("drawn", "drawn"), ("picked", "picked"), ("any", "scores")):
            errors = int((found[part + suffix][parts.test.rows] > limit).sum())
            row |= {f"{words} missed": errors}
            row |= {f"{words}, 98%": interval_text(error_interval(errors, sizes[2]))}
        rows.append(row | {"calibrate": sizes[1], "test": sizes[2]})
    return rows


def compare_guarded(experiment, counts, file):
    """Starts where a guarded robot goes: all plans of starts that a preliminary guard reaches, and of starts
    that the acting guard itself reaches, by a descent over thresholds that were fixed on tune units."""
    design, out, level = experiment.design, experiment.out / "any_of" / "guarded", counts.level
    system, ensemble = MujocoSystem(design.env), Ensemble.load(file)
    model = Dynamics.of(ensemble, propagation="one-step", batch=None)
    price = ReturnCost(cheetah_reward)
    planner = AroundPolicy.of(system, model, experiment.policy, price=price, horizon=HORIZON)
    speed = pac_core.LinearFeatures(("speed",), experiment.along("forward velocity")[None])
    sizes = dict(zip(("tune", "calibrate", "test"), counts.guarded, strict=True))
    rows, fitted = [], {}
    for number, promise in enumerate(("drawn", "any")):
        fitted[promise] = guard = fit_guard(
            *(system, model, [velocity_limit(system.environment)], planner),
            **{
                "fallback": "hold",
                "horizon": HORIZON,
                "checked": 3,
                "reward": cheetah_reward,
                "level": level,
            },
            **{"folder": out / promise, "seed": design.seed + 4 + number, "steps": counts.steps},
            **{"promise": promise, "shape": "features", "features": speed, "sides": (1,), "units": (1.0,)},
            **sizes,
            engine=experiment.engine,
        )
        print(f"\n{guard}")
        predictor, folder = guard.certificate.predictor, RunFolder(out / promise / "plans")
        found, parts = folder.read_all(), Task.read(folder).results(folder).parts
        errors = int((found["scores"][parts.test.rows] > predictor.threshold.value).sum())
        row = {
            "starts": "of the preliminary guard",
            "calibrated on": "a drawn plan" if number == 0 else "all",
        }
        row |= {"T": predictor.threshold.value, "missed": errors, "test": sizes["test"]}
        rows.append(row | {"98%": interval_text(error_interval(errors, sizes["test"]))})
    plans = RunFolder(out / "any" / "plans" / "tune").read_all()  # the widths of both tubes on the same plans
    forecast = GaussianForecast(plans["mean"], plans["var"]).mark_failures()
    truth = Trajectories(plans["truth"], plans["lengths"])
    flat, _ = flatten_candidates(forecast, truth)
    for row, guard in zip(rows, fitted.values(), strict=True):
        predictor = guard.certificate.predictor
        tube = predictor.score.shape.sets(flat, predictor.threshold.value)
        row["half-width, m/s"] = float(np.nanmean(tube.box()[1] - tube.region.center))
    score = fitted["any"].certificate.predictor.score
    tuned = np.asarray(score_units(score, forecast, truth))
    middle = float(np.quantile(tuned[np.isfinite(tuned)], 1 - level.epsilon))
    done = descend_thresholds(experiment, counts, fitted["any"], score, middle, out)
    for trial in done.trials:
        row = {"starts": "of the acting guard", "calibrated on": "all", "T": trial.scale}
        row |= {"missed": trial.errors, "test": trial.n}
        rows.append(row | {"98%": interval_text(error_interval(trial.errors, trial.n))})
    print(f"\n{done}")
    title = f"Starts of guarded episodes: epsilon {level.epsilon:g}, delta {level.delta:g}"
    experiment.report.table("any_of_guarded", rows, title, note="Intervals are exact, two-sided, 98%.")


def descend_thresholds(experiment, counts, guard, score, middle, out):
    """T_1 > T_2 > ...: drive with T_j, carry out all plans at a step drawn beforehand; an error is any score
    above T_j."""
    base, seeds = guard.base, 2 * TRAINING_SEEDS * (experiment.design.seed + 6)
    level, scales = counts.proved, tuple(round(middle * factor, 6) for factor in (1.6, 1.4, 1.2, 1.1))
    n = episodes_needed(level, counts.allowed)

    def drive(value):
        controller = replace(base, tubes=FittedTubes(score, value))
        return Stage(RunToStarts, (controller, counts.steps), needs=NEEDS)

    runs = CandidateRuns(drive(scales[0]), base.planner, base.model, PutRowsBack(base.system))
    plan = Descent(
        **{"scales": scales, "n": n, "allowed": counts.allowed, "level": level},
        episodes=seeds + np.arange(len(scales) * n).reshape(len(scales), n),
        error="a candidate at a step drawn beforehand leaves its tube, in an episode guarded with that T",
        tested={"controller": base.digest, "score": score_digest(score)},
    )
    run = runs.errors(drive, score, out / "descent", engine=experiment.engine)
    done = descend(plan, run, ledger=out / "descent" / "pac-ledger")
    write_descent(done, out / "descent" / "thresholds.json")
    return done
