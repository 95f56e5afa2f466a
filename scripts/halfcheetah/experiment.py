"""What determines an experiment, its runs, and the scores that are fitted to them.

Everything is computed in run folders below one folder: the training episodes and the ensemble in `model`, the
rollouts with their forecasts in `closed` and `plans`. Interrupted, the same command goes on.
"""

from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from typing import Annotated

import numpy as np
from baselines import mean_width, volume_root
from common import ResultFolder, interval_text, say_refuted
from tqdm import tqdm

import pac_core
from pac_core import PACLevel, Predictor
from pac_core.bounds import max_errors
from pac_core.datasets import file_digest
from pac_core.runs import RunFolder, View
from pac_core.sets import Likelihood, deviation, score_units
from pac_core.thresholds import fit_threshold
from pac_core.tubes import fit_shape
from pac_rl import Settings, load_policy, make_environment
from pac_rl.policies import NOT_NORMALISED, SHIPPED, check_policy
from pac_rl.tasks import rollout_task, train_ensemble, training_job, unit_seeds

ABLATIONS = ("C+D", "A+D", "A+C+D")
"""Rows of the paper's figures: A accumulated variance, C calibrated; D, the direct bound, in all."""
WATCHED = {"forward velocity": "forward velocity", "rooty": "torso pitch"}
"""The state's numbers that limits read, with their names for people; in m/s and radians."""
PARTS = ("tune", "calibrate", "test")


def say(what):
    """A line that does not disturb a progress bar."""
    tqdm.write(f"  {what}")


@dataclass(frozen=True)
class Design:
    """Everything that determines what an experiment finds; the defaults are the paper's.

    Units are rollouts of `horizon` steps, each from its own reset and a burn-in drawn from `burn_in`. What
    has a text is an option of the command.
    episodes, episode_steps: of the training
    """

    env: Annotated[str, "Gymnasium's id of the environment."] = "HalfCheetah-v5"
    policy: Annotated[str, "An npz or a Stable-Baselines3 zip, instead of the one that ships."] = str(SHIPPED)
    policy_std: Annotated[float | None, "Noise on each action, instead of the policy file's."] = None
    vecnormalize: Annotated[str | None, "Of such a zip: npz of mean, var, clip, epsilon; or none."] = None
    policy_sees: Annotated[str | None, "observation or state, instead of what the file says."] = None
    horizon: Annotated[int, "Steps of a rollout."] = 20
    epsilon: Annotated[float, "Promised error."] = 0.01
    delta: Annotated[float, "Probability that the promise fails."] = 1e-5
    seed: Annotated[int, "Of everything random."] = 0
    burn_in: tuple[int, int] = (0, 200)
    tune: int = 5000
    calibrate: int = 5000
    test: int = 5000
    episodes: int = 1600
    episode_steps: int = 200
    settings: Settings = field(default_factory=Settings)

    @property
    def level(self):
        return PACLevel(self.epsilon, self.delta)

    @property
    def sizes(self):
        return {name: getattr(self, name) for name in (*PARTS, "seed")}

    @property
    def training(self):
        return {"episodes": self.episodes, "steps": self.episode_steps, "seed": self.seed}

    def __str__(self):
        return f"{self.env}, n = {self.calibrate:,}, epsilon {self.epsilon:g}, delta {self.delta:g}"

    def about(self):
        """The design as JSON can say it; files are known by their content."""
        found = asdict(self) | {"policy": file_digest(self.policy)}
        if self.vecnormalize not in (None, NOT_NORMALISED):
            found["vecnormalize"] = file_digest(self.vecnormalize)
        return found

    def open(self):
        """Robot and policy; a design that cannot lead anywhere is refused here, before any long work."""
        max_errors(self.calibrate, self.level)
        unit_seeds(**self.sizes)
        about = {"std": self.policy_std, "vecnormalize": self.vecnormalize, "sees": self.policy_sees}
        robot = make_environment(self.env)
        return robot, check_policy(robot, load_policy(self.policy, **about))


SMOKE = Design(
    **{"tune": 256, "calibrate": 320, "test": 256, "epsilon": 0.1, "delta": 1e-3, "horizon": 10},
    **{"episodes": 64, "episode_steps": 100, "burn_in": (0, 40)},
    settings=Settings(members=3, hidden=48, layers=3, epochs=3, batch=256, rate=5e-3),
)
"""An experiment of seconds; its level is one that so few units can prove."""


class Experiment:
    """A design, the folder of its runs, and the engine that runs them; `device` trains."""

    def __init__(self, design, out, engine, device="cpu"):
        self.design, self.out, self.engine, self.device = design, out, engine, device
        self.robot, self.policy = design.open()
        self.watched = {name: words for name, words in WATCHED.items() if name in self.robot.names}
        self.report = ResultFolder(out / "results")

    def along(self, name):
        """The unit vector of one number of the state."""
        return np.eye(len(self.robot.names))[self.robot.names.index(name)]

    @cached_property
    def episodes(self):
        """The training episodes: their finished job, and where they lie."""
        job = training_job(self.design.env, self.policy, **self.design.training)
        folder = RunFolder(self.out / "model/episodes")
        self.engine(job, folder)
        return job, folder

    @cached_property
    def ensemble(self):
        """The dynamics model."""
        options = {"engine": self.engine, "device": self.device, "progress": say}
        settings, training = self.design.settings, self.design.training
        return train_ensemble(self.out, self.design.env, self.policy, settings, **training, **options)

    @cache  # noqa: B019 - an experiment lives as long as its process
    def run(self, name):
        """Task and folder of a finished run: the policy's own rollouts ("closed") or given "plans"."""
        design, folder = self.design, RunFolder(self.out / name)
        task = rollout_task(
            design.env,
            self.policy,
            self.ensemble,
            ensemble=file_digest(self.out / "model/ensemble.safetensors"),
            plans=name == "plans",
            horizon=design.horizon,
            burn_in=design.burn_in,
            also=("one-step",),
            **design.sizes,
        )
        task.write(folder)
        self.engine(task.job, folder)
        return task, folder

    @cache  # noqa: B019
    def case(self, name, propagation="particles"):
        """The forecasts of a run by one propagation."""
        task, folder = self.run(name)
        view = View(propagation="one-step") if propagation == "one-step" else View()
        case = Case(self, {"closed": "closed loop", "plans": "given plans"}[name], task.results(folder), view)
        marks = [case.part(part)[0].failed for part in PARTS]
        if lost := sum(int(failed.sum()) for failed in marks if failed is not None):
            say(f"{case.name}, {propagation}: the ensemble explodes on {lost:,} units, which count as errors")
        return case


class Case:
    """Forecasts by one propagation and what came true, read from a finished run; scores fitted to them."""

    def __init__(self, experiment, name, results, view):
        self.experiment, self.name, self.results, self.view = experiment, name, results, view

    @cache  # noqa: B019
    def part(self, name):
        """Forecast and truth of "tune", "calibrate" or "test"; the units that failed are marked."""
        return self.results.gathered(name, self.view, failed=True)

    def scores(self, score, part):
        return np.asarray(score_units(score, *self.part(part)))

    @cache  # noqa: B019
    def fit_ablation(self, name="A+C+D"):
        """One of `ABLATIONS`, of a case with one-step variances; A+C+D is the paper's tube."""
        return Fitted(
            self, Likelihood.fit(*self.part("tune"), accumulate="A" in name, temperature="C" in name)
        )

    def fit(self, level, **options):
        """A tube of any shape; its choices are made on the tune part for this level."""
        return Fitted(self, fit_shape(*self.part("tune"), level, **options))

    @cache  # noqa: B019
    def fit_box(self, level):
        """The default tube of this level."""
        return self.fit(level, shape="box")

    def fit_watched(self, level):
        """The tube `features` on the watched numbers, whose widths count in their own units."""
        words, along = self.experiment.watched, self.experiment.along
        features = pac_core.LinearFeatures(tuple(words.values()), np.stack([along(name) for name in words]))
        return self.fit(level, shape="features", features=features, units=(1.0,) * len(words))

    def hindsight(self, level):
        """Boxes of the same heuristic, fitted on the test part itself, scales and threshold; no predictor."""
        forecast, truth = self.part("test")
        score = fit_shape(forecast, truth, level, shape="box")
        ordered = np.sort(self.scores(score, "test"))
        return score.sets(forecast, float(ordered[-1 - max_errors(len(ordered), level)]))

    def measure(self, tube, level):
        """Error with its exact interval, and every size, on the test part."""
        found = pac_core.evaluate(tube, self.part("test")[1], level)
        unit = deviation(self.part("tune")[1].marked())
        row = error_cells(found) | {"refuted": say_refuted(found)}
        names = ("size", "normalised", "volume^(1/d)", "mean width")
        row |= dict.fromkeys(names, float("nan"))
        if tube.region.center.shape[-1] == len(unit):  # of the whole state
            sizes = (tube.normalised_size(unit), volume_root(tube), mean_width(tube))
            row |= dict(zip(names, (found.all.mean, *(float(np.mean(s)) for s in sizes)), strict=True))
        for name, words in self.experiment.watched.items():  # the mean over the tubes that are not empty
            along = self.experiment.along(name)
            row[f"half-width, {words}"] = float(np.nanmean(tube.support(along) + tube.support(-along)) / 2)
        return row


class Fitted:
    """A score fitted on the tune part, and its tubes at many levels: a comparison, no certificates."""

    def __init__(self, case, score):
        self.case, self.score, self.calibrated = case, score, case.scores(score, "calibrate")

    def tube(self, level):
        domain, threshold = self.case.part("calibrate")[0].domain, fit_threshold(self.calibrated, level)
        return Predictor(self.score, threshold, domain).tube(self.case.part("test")[0])


def error_cells(found):
    """The error on the test part with its exact interval."""
    return {"error": found.all.error, "98% interval": interval_text(found.all.interval)}
