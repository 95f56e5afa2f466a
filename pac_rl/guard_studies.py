"""The guarded half-cheetah in a study's folder: a model that knows the limit, tubes, guards to compare."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pac_core import (
    GaussianForecast,
    HalfSpace,
    InvalidInput,
    LinearFeatures,
    PACLevel,
    Trajectories,
    fit_shape,
    fit_threshold,
)
from pac_core.failures import unit_scores
from pac_core.tables import file_digest
from pac_rl.candidates import FACTORS, candidates_around
from pac_rl.controllers import Controller
from pac_rl.designs import TRAINING_SEEDS
from pac_rl.ensembles import Ensemble, Settings, Transitions
from pac_rl.limits import SPEED
from pac_rl.policies import Function, Governed
from pac_rl.runs import BATCH
from pac_rl.scaled_tubes import FittedTubes, MeanTubes, MemberTubes
from pac_rl.studies import Study
from pac_rl.training import train
from pac_rl.trajectories import Rollouts, execute, simulate

TASKS = ("speed", "flip")
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
    """How much of everything."""

    steps: int = 200
    """of an episode"""
    rollouts: int = 2000
    """candidates carried out, to fit the tubes on"""
    horizon: int = 6
    """of a plan"""
    checked: int = 3
    """steps of a plan that must keep the limit; the later ones are planned again before they are reached"""
    choice: str = "return"
    """which safe plan acts: "return", that of the largest predicted one; "factor", the boldest"""
    governed: tuple[tuple[float, float, float], ...] = GOVERNED
    planned: tuple[tuple[tuple[int, str], float], ...] = PLANNED
    epochs: int = 20
    """of the model that guards; the one that it learns from has the study's"""


class GuardStudy:
    """A limit, and the controllers that are to keep it, on a study's robot and policy.

    task: "speed", Safety-Gymnasium's limit on the forward velocity; or "flip", the torso's pitch within a
        quarter turn
    """

    def __init__(self, study: Study, task: str, sizes: Sizes | None = None) -> None:
        if task not in TASKS:
            raise InvalidInput(f"task must be one of {', '.join(TASKS)}, got {task!r}")
        self.study, self.task, self.sizes = study, task, sizes or Sizes()
        names = study.environment.names
        self.feature = "forward velocity" if task == "speed" else "rooty"
        self.along: NDArray[np.float64] = np.eye(len(names))[names.index(self.feature)]
        self.limits: tuple[HalfSpace, ...] = (HalfSpace("speed limit", self.along, SPEED),)
        if task == "flip":
            ends = (("no flip, forward", self.along), ("no flip, back", -self.along))
            self.limits = tuple(HalfSpace(name, normal, PITCH) for name, normal in ends)

    def seeds(self, part: str, count: int, first: int = 0) -> NDArray[np.int64]:
        """Seeds for a part of this study, as many as asked for, from the `first` on."""
        begin = self.study.seeds[0] + TRAINING_SEEDS + 10**8
        place = TASKS.index(self.task) * len(PARTS) + PARTS.index(part)
        return np.asarray(begin + 10**7 * place + first + np.arange(count))

    def training_seeds(self, kind: str, i: int) -> NDArray[np.int64]:
        """Of the i-th sort of "governed" or "planned" training episodes; no part of the study has them."""
        place, share, sorts = {
            "governed": (1, 2, self.sizes.governed),
            "planned": (50, 4, self.sizes.planned),
        }[kind]
        each = max(1, self.study.design.episodes // (share * len(sorts)))
        return np.asarray(self.study.seeds[0] + TRAINING_SEEDS + 10**6 * (place + i) + np.arange(each))

    @cached_property
    def ensemble(self) -> Ensemble:
        """Trained twice, because it must know where a guard holds the robot, and the planner's own mistakes.

        A planner picks what the model is mistaken about, so the second model also learns from episodes that
        were planned with the first. Of the study's episodes a quarter is the policy's own, a half keeps
        near the speed limit, a quarter is planned: the budget is the same.
        """
        file = self.study.folder / "guard_ensemble.safetensors"
        if file.exists():
            return self._loaded(file)
        near, settings = self._near_the_limit(), self.study.design.settings
        first = self._trained("guard_first", near, settings)
        later = Transitions.join([near, self._planned(first)])
        return self._trained("guard_ensemble", later, replace(settings, epochs=self.sizes.epochs))

    def _near_the_limit(self) -> Transitions:
        """Every fourth of the study's episodes, and others that keep near the limit without a model."""
        study, steps = self.study, self.study.design.episode_steps
        parts = [Transitions.of(study.episodes.take(slice(0, None, 4)))]
        for i, governed in enumerate(self.sizes.governed):
            policy, seeds = self._governed(*governed), self.training_seeds("governed", i)
            done = simulate(study.environment, policy, seeds, burn_in=(0, 0), horizon=steps)
            parts.append(Transitions.of(done))
        return Transitions.join(parts)

    def _planned(self, first: Ensemble) -> Transitions:
        """Episodes of planners that trust the predicted mean, down to some way below the limit."""
        study, names, jobs = self.study, self.study.environment.names, []
        along = np.eye(len(names))[names.index("forward velocity")]
        digest = file_digest(study.folder / "guard_first.safetensors")[:12]
        for i, ((checked, choice), below) in enumerate(self.sizes.planned):
            limit = HalfSpace("speed limit", along, SPEED - below)
            options: Any = {"horizon": 6, "checked": checked, "choice": choice, "fallback": "hold"}
            planner = Controller(study.environment, first, study.policy, (limit,), MeanTubes(), **options)
            acting = {"policy": _acting(planner), "horizon": study.design.episode_steps, "batch": BATCH}
            seeds = self.training_seeds("planned", i)
            jobs.append((f"planned-{digest}-{i}", seeds, acting | {"burn_in": (0, 0)}))
        return Transitions.of(study.simulated("episodes of the planner", jobs))

    def _trained(self, name: str, transitions: Transitions, settings: Settings) -> Ensemble:
        study, file = self.study, self.study.folder / f"{name}.safetensors"
        if file.exists():
            return self._loaded(file)
        study.say(f"training on {len(transitions.states):,} steps: {name}")
        made = train(
            transitions,
            study.design.env,
            settings,
            device=study.device,
            checkpoint=study.folder / f"{name}_training.safetensors",
            progress=lambda epoch: study.say(f"  {epoch}"),
        )
        made.save(file)
        return made

    def _loaded(self, file: Path) -> Ensemble:
        return self.study.disjoint(Ensemble.load(file, self.study.device), file)

    @cached_property
    def base(self) -> Controller:
        """The planner without a guard."""
        study = self.study
        return Controller(study.environment, self.ensemble, study.policy, self.limits, None, **self.options)

    @property
    def options(self) -> dict[str, Any]:
        """Of the planner, beside what it is made of: what a worker sets up, and what a certificate names."""
        sizes = self.sizes
        return {
            "horizon": sizes.horizon,
            "checked": sizes.checked,
            "factors": FACTORS,
            "choice": sizes.choice,
            "fallback": "hold",
        }

    @cached_property
    def ours(self) -> FittedTubes:
        """Intervals of the one number that the limit reads, at scale 1."""
        features = LinearFeatures((self.feature,), self.along[None])
        sides = (1,) if self.task == "speed" else (0,)
        return self.tubes(shape="features", features=features, sides=sides, units=(1.0,))

    def guarded(self, scale: float) -> Controller:
        """Our controller at a scale of its tubes."""
        return replace(self.base, guard=self.ours.scaled(scale))

    def controllers(self, scale: float) -> dict[str, Controller]:
        """Every guard to compare, on the same ensemble and candidates; ours at this scale."""
        return {
            "no guard": self.base.bare(),
            "mean": replace(self.base, guard=MeanTubes()),
            "worst member": replace(self.base, guard=MemberTubes()),
            "paper's tube": replace(self.base, guard=self.tubes(shape="joint")),
            "ours": self.guarded(scale),
        }

    def tubes(self, **options: Any) -> FittedTubes:
        """Tubes of a shape from one half of the carried out candidates, T from the other."""
        forecast, truth = self.carried_out
        half = len(truth) // 2
        score = fit_shape(forecast.take(slice(half)), truth[:half], LEVEL, **options)
        scores = unit_scores(score, forecast.take(slice(half, None)), truth[half:])
        return FittedTubes(score, fit_threshold(np.asarray(scores), LEVEL))

    @cached_property
    def carried_out(self) -> tuple[GaussianForecast, Trajectories]:
        """Candidates as the planner would weigh them, one drawn for each start, and what came of them.

        The starts lie along governed episodes, up to their last step.
        """
        base, draw = self.base, np.random.default_rng(0)
        environment, parts, forecasts = base.environment, [], []
        each = max(1, self.sizes.rollouts // len(self.sizes.governed))
        for i, options in enumerate(self.sizes.governed):
            seeds = self.seeds("tubes", each, first=i * each)
            base.ensemble.refuse_seen(seeds, "tubes")
            policy, burn_in = self._governed(*options), (0, self.sizes.steps - 1)
            starts = simulate(environment, policy, seeds, horizon=1, burn_in=burn_in)
            around = {"horizon": base.horizon, "factors": base.factors}
            found = candidates_around(base.policy, base.ensemble, environment, starts.start, **around)  # type: ignore[arg-type]
            picked = found.pick(torch.from_numpy(draw.integers(len(base.factors), size=each)))
            parts.append(execute(environment, starts, picked.plans[:, 0].double().cpu().numpy()))
            forecasts.append(picked.forecast)
        mean, var = (torch.cat([getattr(f, name) for f in forecasts]).cpu() for name in ("mean", "var"))
        done, mixed = Rollouts.join(parts), draw.permutation(len(mean))
        forecast = GaussianForecast(mean.numpy(), var.numpy()).mark_failures()
        return forecast.take(mixed), done.truth[mixed]

    def _governed(self, bound: float, width: float, jitter: float) -> Governed:
        environment, names = self.study.environment, self.study.environment.names
        column = names.index("forward velocity")
        return Governed(self.study.policy, environment.view, len(names), column, bound, width, jitter)


def _acting(planner: Controller) -> Function:
    """The planner as a policy that sees the state."""

    def act(states: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(planner.decide(states).plans[:, 0].double().cpu().numpy())

    sizes = len(planner.environment.names), len(planner.environment.low)
    return Function(act, *sizes, sees="state")
