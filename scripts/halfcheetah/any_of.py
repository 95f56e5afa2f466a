"""Best of many plans: the tube of a drawn plan breaks its promise, the tube of any of them keeps it.

From starts along the policy's rollouts a planner proposes K plans of 6 steps, and picks the one of the
largest predicted return. Two planners: 21 candidates around the policy (its actions times 0, 0.05 ... 1), and
random shooting of 400 plans, which finds what the model is mistaken about. Two tubes of the forward velocity
for each: one calibrated on a plan drawn from the K, and one on all K, each start counting by its worst plan;
around the policy also of its upper end alone, which is all that a speed limit reads. All plans are carried
out; of calibrate and test units only scores come back from the engine.
"""

from dataclasses import dataclass, field
from functools import partial
from itertools import product

import numpy as np
from common import interval_text

import pac_core
from pac_core import GaussianForecast, PACLevel, Trajectories
from pac_core.certificates import Record
from pac_core.datasets import file_digest
from pac_core.evaluation import error_interval
from pac_core.forecasts import flatten_candidates
from pac_core.runs import RunFolder, Stage, Task
from pac_core.thresholds import fit_threshold
from pac_core.tubes import fit_shape
from pac_rl import Ensemble, candidates_around, forecast_plans
from pac_rl.candidates import CandidateRuns, PutBack, certify_candidates, find_robot
from pac_rl.planning import FACTORS, cheetah_reward
from pac_rl.tasks import NEEDS, SimulateRollouts

LEVEL, HORIZON = PACLevel(0.05, 1e-3), 6


@dataclass(frozen=True, eq=False)
class AroundPolicy:
    """The policy's actions along the predicted mean, times each factor."""

    env: str
    policy: object
    ensemble: object
    horizon: int = HORIZON
    factors: tuple = FACTORS

    @property
    def count(self):
        return len(self.factors)

    def propose(self, starts, rngs):
        parts = (self.policy, self.ensemble, find_robot(self.env), starts)
        found = candidates_around(*parts, horizon=self.horizon, factors=self.factors)
        return found.plans.double().cpu().numpy()

    def cost(self, forecast, plans):
        return -cheetah_reward(forecast.mean, plans).sum(axis=-1)


@dataclass(frozen=True, eq=False)
class RandomShooting:
    """Plans of independent actions, uniform over their range."""

    low: object
    high: object
    count: int = 400
    horizon: int = HORIZON

    def propose(self, starts, rngs):
        size = (self.count, self.horizon, len(self.low))
        return np.stack([rng.uniform(self.low, self.high, size) for rng in rngs])

    cost = AroundPolicy.cost


@dataclass(frozen=True)
class Counts:
    """Units of each planner, to tune, calibrate and test on."""

    around: tuple = (800, 1000, 1000)
    shooting: tuple = (150, 1000, 1000)
    plans: int = 400
    level: PACLevel = field(default=LEVEL)


SMALL = Counts((20, 70, 30), (20, 70, 30), 12, PACLevel(0.1, 1e-3))


def compare_picks(experiment, counts, model=None):
    """Both planners, both tubes: how wide they are, and how often a plan leaves its own.

    model: file of another ensemble, such as the guard's: then of the planner around the policy alone
    """
    robot, level = experiment.robot, counts.level
    file = model or experiment.out / "model" / "ensemble.safetensors"
    ensemble = Ensemble.load(model) if model else experiment.ensemble
    around = AroundPolicy(experiment.design.env, experiment.policy, ensemble)
    of, name = (ensemble, file), "around, guard's model" if model else "around"
    rows = compare_tubes(experiment, name, around, of, counts.around, level, ("", "upper"))
    if model is None:
        shooting = RandomShooting(robot.low, robot.high, counts.plans)
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
    options = {"propagation": "one-step", "batch": planner.count}
    forecast = partial(forecast_plans, ensemble, **options)
    runs = CandidateRuns(starts, planner, forecast, PutBack(design.env))

    def fit_others(forecast, truth):
        """Beside the tube that is certified: that of a drawn plan, and both of the upper end."""
        rows, found = np.arange(len(truth)), {}
        which = np.random.default_rng(design.seed).integers(planner.count, size=len(rows))
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
        row = {"planner": name, "K": planner.count, "of the speed": "upper end" if end else "interval"}
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
