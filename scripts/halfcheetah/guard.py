"""The guarded half-cheetah: a model that knows the limit, tubes, and the controllers to compare.

Everything is run by the engine, in run folders below `guard` of the experiment's folder.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product

import numpy as np
from halfcheetah.experiment import say

import pac_core
import pac_rl
from pac_core import GaussianForecast, HalfSpace, PACLevel, Trajectories
from pac_core.runs import Job, RunFolder, Stage
from pac_core.sets import score_units
from pac_core.thresholds import fit_threshold
from pac_core.tubes import fit_shape
from pac_rl import Transitions, tasks
from pac_rl.planning import (
    BATCH,
    FACTORS,
    FittedTubes,
    MeanTubes,
    MemberTubes,
    ReturnCost,
    RunEpisodes,
    cheetah_reward,
    describe_episodes,
    read_episodes,
)
from pac_rl.policies import Function, policy_input
from pac_rl.rollouts import TRAINING_SEEDS
from pac_rl.systems import SPEED

FEATURES = {"speed": "forward velocity", "flip": "rooty"}
TASKS = tuple(FEATURES)
PITCH = math.pi / 2
LEVEL = PACLevel(0.05, 0.01)
GOVERNED = tuple(product((2.5, 3.0, 3.5, 4.0), (0.3, 1.0), (0.0, 0.5)))
"""Bounds on speed, widths and jitters of the training episodes that keep near the limit."""
PLANNED = tuple(product(((3, "return"), (6, "factor")), (0.0, 0.04, 0.08, 0.16)))
"""Steps that are checked and the choice, and how far below the limit the predicted mean must stay, in the
training episodes of the planner itself."""
PARTS = ("tubes", "tune", "compare", "certify")
"""What seeds are for; no two parts share one."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything.

    steps: of an episode
    rollouts: candidates carried out, to fit the tubes on
    horizon, checked: steps of a plan, and of them those that must keep the limit; the later ones are planned
        again before they are reached
    choice: which safe plan acts: "return", that of the largest predicted one; "factor", the boldest
    epochs: of the model that guards; the one that it learns from has the experiment's
    """

    steps: int = 200
    rollouts: int = 2000
    horizon: int = 6
    checked: int = 3
    choice: str = "return"
    governed: tuple[tuple[float, float, float], ...] = GOVERNED
    planned: tuple[tuple[tuple[int, str], float], ...] = PLANNED
    epochs: int = 20


FEW = {"steps": 12, "rollouts": 320, "horizon": 2, "checked": 2, "epochs": 3}  # of a smoke test
SMALL = Sizes(governed=GOVERNED[::5], planned=PLANNED[:1], **FEW)


class Guarded:
    """A limit on the forward velocity ("speed") or the torso's pitch ("flip"), and controllers to keep it."""

    def __init__(self, experiment, task, sizes=None):
        self.experiment, self.task, self.sizes = experiment, task, sizes or Sizes()
        self.home, self.feature = experiment.out / "guard", FEATURES[task]
        self.along = experiment.along(self.feature)
        self.limits = (HalfSpace("speed limit", self.along, SPEED),)
        if task == "flip":
            ends = (("no flip, forward", self.along), ("no flip, back", -self.along))
            self.limits = tuple(HalfSpace(name, normal, PITCH) for name, normal in ends)

    @property
    def _first(self):
        return TRAINING_SEEDS * (2 * self.experiment.design.seed + 1)

    def seeds(self, part, count, first=0):
        """Seeds for a part of this study, as many as asked for, from the `first` on."""
        place = TASKS.index(self.task) * len(PARTS) + PARTS.index(part)
        return self._first + 10**8 + 10**7 * place + first + np.arange(count)

    def training_seeds(self, kind):
        """Of each sort of "governed" or "planned" training episodes; no part of the study has them."""
        known = {"governed": (1, 2, self.sizes.governed), "planned": (50, 4, self.sizes.planned)}
        place, share, sorts = known[kind]
        each = max(1, self.experiment.design.episodes // (share * len(sorts)))
        return [self._first + 10**6 * (place + i) + np.arange(each) for i in range(len(sorts))]

    @cached_property
    def ensemble(self):
        """Trained twice, because it must know where a guard holds the robot, and the planner's own mistakes.

        A planner picks what the model is mistaken about, so the second model also learns from episodes that
        were planned with the first. Of the experiment's episodes a quarter is the policy's own, a half keeps
        near the speed limit, a quarter is planned: the budget is the same.
        """
        experiment, settings = self.experiment, self.experiment.design.settings
        policies = tuple(self._governed(*governed) for governed in self.sizes.governed)
        governed = self._collect("governed", tasks.SimulateEpisodes, (policies,))

        def transitions(*collected):
            usual = tasks.read_rollouts(*experiment.episodes).take(slice(0, None, 4))
            episodes = (usual, *(tasks.read_rollouts(*one) for one in collected))
            return Transitions.join([Transitions.of(one) for one in episodes])

        first = self._fit("first", lambda: transitions(governed), settings)
        planned = self._collect("planned", SimulatePlanner, (experiment.policy, first, self.sizes.planned))
        more = replace(settings, epochs=self.sizes.epochs)
        return self._fit("ensemble", lambda: transitions(governed, planned), more)

    def _collect(self, kind, scorer, acting):
        """Training episodes of this kind: their finished job, and where they lie."""
        design, groups = self.experiment.design, self.training_seeds(kind)
        firsts = tuple(int(group[0]) for group in groups)
        stage = Stage(scorer, (design.env, *acting, firsts, design.episode_steps), needs=tasks.NEEDS)
        job = Job.of(kind, np.concatenate(groups).tolist(), [stage], size=len(groups[0]), unit="episode")
        return self._run(job, kind)

    def _run(self, job, name):
        folder = RunFolder(self.home / name)
        self.experiment.engine(job, folder)
        return job, folder

    def _fit(self, name, transitions, settings):
        options = {"device": self.experiment.device, "progress": say}
        file = self.home / f"{name}.safetensors"
        return tasks.fit_ensemble(file, transitions, self.experiment.design.env, settings, **options)

    @cached_property
    def base(self):
        """The planner without a guard."""
        parts = (self.experiment.design.env, self.experiment.policy, self.ensemble, self.limits)
        sizes = self.sizes
        return make_controller(*parts, horizon=sizes.horizon, checked=sizes.checked, choice=sizes.choice)

    @property
    def options(self):
        """Of the planner, beside what it is made of: what a certificate names."""
        made = {"horizon": self.sizes.horizon, "checked": self.sizes.checked, "factors": FACTORS}
        return made | {"choice": self.sizes.choice, "fallback": "hold"}

    @cached_property
    def ours(self):
        """Intervals of the one number that the limit reads, at scale 1."""
        features = pac_core.LinearFeatures((self.feature,), self.along[None])
        sides = (1,) if self.task == "speed" else (0,)
        return self.tubes(shape="features", features=features, sides=sides, units=(1.0,))

    def guarded(self, scale):
        """Our controller at a scale of its tubes."""
        return replace(self.base, tubes=self.ours.scaled(scale))

    @property
    def bare(self):
        """The policy itself, with nobody watching."""
        planner = replace(self.base.planner, factors=(1.0,), horizon=1)
        return replace(self.base, planner=planner, horizon=1, checked=None)

    def controllers(self, scale):
        """Every guard to compare, on the same ensemble and candidates; ours at this scale."""
        return {
            "no guard": self.bare,
            "mean": replace(self.base, tubes=MeanTubes()),
            "worst member": replace(self.base, tubes=MemberTubes()),
            "paper's tube": replace(self.base, tubes=self.tubes(shape="joint")),
            "ours": self.guarded(scale),
        }

    def tubes(self, **options):
        return fit_tubes(*self.carried_out, LEVEL, **options)

    @cached_property
    def carried_out(self):
        """Candidates as the planner would weigh them, one drawn for each start along governed episodes."""
        sizes, draw, experiment = self.sizes, np.random.default_rng(0), self.experiment
        each = max(1, sizes.rollouts // len(sizes.governed))
        seeds = self.seeds("tubes", each * len(sizes.governed))
        self.ensemble.refuse_seen(seeds, "tubes")
        picks = np.stack([draw.integers(len(FACTORS), size=each) for _ in sizes.governed])
        policies = tuple(self._governed(*governed) for governed in sizes.governed)
        about = (
            replace(self.base.planner, price=None),
            experiment.design.env,
            policies,
            picks,
            sizes.steps - 1,
        )
        stage = Stage(CarryOutCandidates, about, needs=tasks.NEEDS)
        job = Job.of("tubes", range(int(seeds[0]), int(seeds[-1]) + 1), [stage], size=each)
        found = tasks.read_arrays(*self._run(job, f"tubes-{self.task}-{sizes.horizon}"))
        mixed = draw.permutation(len(seeds))
        forecast = GaussianForecast(found["mean"], found["var"]).mark_failures()
        return forecast.take(mixed), Trajectories(found["truth"], found["lengths"])[mixed]

    def run(self, controller, part, count, name):
        """Episodes of a controller, on the first so many seeds of a part."""
        seeds = self.seeds(part, count)
        stage = Stage(RunEpisodes, (controller, self.sizes.steps), needs=tasks.NEEDS)
        ids = range(int(seeds[0]), int(seeds[0]) + count)
        about = describe_episodes(controller, name)
        job = Job.of("episodes", ids, [stage], size=BATCH, **about)
        settings = f"{self.sizes.horizon}-{self.sizes.checked}-{self.sizes.choice}"
        where = f"{self.task}-{part}-{count}-{settings}/{name.replace(' ', '-')}"
        return read_episodes(*self._run(job, where), controller)

    def _governed(self, bound, width, jitter):
        robot, policy = self.experiment.robot, self.experiment.policy
        column = robot.names.index("forward velocity")
        return SlowedPolicy(policy, robot.view, len(robot.names), column, bound, width, jitter)


def make_controller(env, policy, ensemble, limits, *, horizon, checked, choice, tubes=None):
    """Candidates around the policy, by what they return along the predicted mean or by their factors."""
    system, model = pac_rl.MujocoSystem(env), pac_rl.Dynamics.of(ensemble, propagation="one-step", batch=None)
    price = ReturnCost(cheetah_reward) if choice == "return" else None
    planner = pac_rl.AroundPolicy.of(system, model, policy, price=price, horizon=horizon)
    about = {"tubes": tubes, "checked": checked, "reward": cheetah_reward}
    return pac_rl.Controller(system, model, planner, limits, "hold", horizon, **about)


class SlowedPolicy:
    """A policy, scaled down as a number of the state nears a bound: a guard's way, without a model.

    What a model must know for a guard to trust it lies where the guard keeps the robot, and the policy
    alone is seldom there.

    column: which number of the state
    bound: where nothing is left of the action
    width: how far below it the scaling begins
    jitter: deviation of the factor
    """

    sees = "state"

    def __init__(self, policy, view, dims, column, bound, width, jitter):
        self.policy, self.view, self.inputs, self.column = policy, view, dims, column
        self.bound, self.width, self.jitter = bound, width, jitter
        self.outputs, self.squash = policy.outputs, policy.squash

    def __call__(self, states, noise):
        near = (self.bound - states[..., self.column, None]) / self.width
        factor = (near + self.jitter * noise[..., :1]).clamp(0, 1)
        seen = states if policy_input(self.policy) == "state" else self.view(states)
        return factor * self.policy(seen, noise / 2).clamp(-1, 1)


def fit_tubes(forecast, truth, level, **options):
    """Tubes of a shape from one half of the carried out plans, T from the other."""
    half = len(truth) // 2
    score = fit_shape(forecast.take(slice(half)), truth[:half], level, **options)
    scores = score_units(score, forecast.take(slice(half, None)), truth[half:])
    return FittedTubes(score, fit_threshold(np.asarray(scores), level))


class SimulatePlanner(tasks.SimulateEpisodes):
    """Episodes of planners that trust the predicted mean, down to some way below the limit; see `PLANNED`."""

    def __init__(self, env, policy, ensemble, planned, firsts, steps, *, device="cpu"):
        robot, model, acting = pac_rl.make_environment(env), ensemble.to(device), []
        along = np.eye(len(robot.names))[robot.names.index("forward velocity")]
        for (checked, choice), below in planned:
            limits = (HalfSpace("speed limit", along, SPEED - below),)
            options = {"horizon": 6, "checked": checked, "choice": choice, "tubes": MeanTubes()}
            planner = make_controller(env, policy, model, limits, **options)
            act = partial(self.act, planner)
            acting.append(Function(act, len(robot.names), len(robot.low), sees="state"))
        super().__init__(env, tuple(acting), firsts, steps, BATCH)

    @staticmethod
    def act(planner, states):
        return planner.decide(np.asarray(states), [None] * len(states)).actions


class CarryOutCandidates:
    """From starts along governed episodes up to step `last`, one candidate each, forecast and carried out."""

    def __init__(self, planner, env, governed, picks, last, *, device="cpu"):
        self.planner, self.robot = planner, pac_rl.make_environment(env)
        self.governed, self.picks, self.last = governed, picks, last

    def __call__(self, shard, given):
        burn_in, seeds = (0, self.last), np.asarray(shard.ids)
        starts = pac_rl.simulate(self.robot, self.governed[shard.number], seeds, horizon=1, burn_in=burn_in)
        plans, forecast = self.planner.propose_with_forecast(starts.start, [None] * len(seeds))
        rows, picks = np.arange(len(seeds)), self.picks[shard.number]
        done = pac_rl.execute(self.robot, starts, plans[rows, picks])
        mean, var = (x[rows * plans.shape[1] + picks] for x in (forecast.mean, forecast.var))
        return {"ids": seeds, "mean": mean, "var": var, "truth": done.states, "lengths": done.lengths}
