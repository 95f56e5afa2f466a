"""A whole study in a folder: train, roll out, forecast. Each part is kept, so it can be interrupted."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from pac_core import GaussianForecast, InvalidInput, Splits, Trajectories, split
from pac_core.arrays import threads
from pac_core.tables import file_digest
from pac_rl.designs import TRAINING_SEEDS, Design, behaviour, checked
from pac_rl.ensembles import Ensemble, Epoch, Transitions
from pac_rl.environments import Environment, make_environment
from pac_rl.folders import Folder
from pac_rl.forecasts import closed_loop, for_plans
from pac_rl.plans import propose
from pac_rl.policies import Noisy, Policy, fitting
from pac_rl.policy_files import NOT_NORMALISED, load_policy
from pac_rl.progress import bar
from pac_rl.training import train
from pac_rl.trajectories import BATCH, Rollouts, execute, simulate

_ENSEMBLE = "ensemble.safetensors"
Tick: TypeAlias = Callable[[int], Any]
"""Called with the number of units that were finished."""
EXTRA_NOISE = (0.0, 0.0, 0.2, 0.5)
"""On the actions of each quarter of the training episodes, so that plans off the policy are covered."""
PART = 4 * BATCH
"""Rollouts in a file: the same on every machine, so that any can go on where another stopped."""


@dataclass(frozen=True, eq=False)
class Case:
    """Forecasts and what came true, for all units of a study.

    name: "closed loop" or "given plans"
    """

    name: str
    forecast: GaussianForecast
    truth: Trajectories
    parts: Splits

    def part(self, name: str) -> tuple[GaussianForecast, Trajectories]:
        """Forecast and truth of "tune", "calibrate" or "test"."""
        rows = getattr(self.parts, name).rows
        return self.forecast.take(rows), self.truth[rows]


class Study:
    """A design and the folder that keeps what has been computed of it.

    environment: instead of the one that `design.env` names
    policy: instead of the one in the file `design.policy`
    device: of the dynamics model, in training and forecasts

    Bad input is refused when the study is opened, before any long work.
    """

    def __init__(
        self,
        design: Design,
        folder: str | Path,
        *,
        environment: Environment | None = None,
        policy: Policy | None = None,
        device: str | torch.device = "cpu",
        quiet: bool = False,
    ) -> None:
        checked(design)
        of_files = {name: getattr(design, name) for name in ("policy_std", "vecnormalize", "policy_sees")}
        if policy is not None and (given := [name for name, value in of_files.items() if value is not None]):
            raise InvalidInput(f"{given[0]} must be None where a policy is given: it is for policy files")
        self.environment = make_environment(design.env) if environment is None else environment
        if policy is None:
            about: Any = {"vecnormalize": design.vecnormalize, "sees": design.policy_sees}
            policy_in_file = load_policy(design.policy, std=design.policy_std, **about)
        self.policy: Policy = policy_in_file if policy is None else policy
        fitting(self.environment, self.policy)
        self.design, self.quiet = replace(design, env=self.environment.id), quiet
        self.device = _usable(device)
        self.seconds: dict[str, float] = {}
        self.about: dict[str, Any] = asdict(self.design)
        """What tells this study from others; a policy is known by the digest of its file."""
        for name in ("vecnormalize", "policy_sees"):
            if of_files[name] is None:
                del self.about[name]
        if design.vecnormalize not in (None, NOT_NORMALISED):
            self.about |= {"vecnormalize": file_digest(design.vecnormalize)}
        self.about |= {"policy": "given" if policy is not None else file_digest(design.policy)}
        if environment is not None or policy is not None:
            self.about |= {"behaviour": behaviour(self.environment, self.policy)}
        self.about |= {"batch": BATCH, "part": PART, "extra_noise": EXTRA_NOISE}
        self.folder = Folder(folder, self.about)

    @property
    def source(self) -> str:
        """Environment and policy, in a few words."""
        policy = self.about.get("behaviour") or self.about["policy"]
        return f"{self.design.env}, policy {policy[:12]}"

    def say(self, text: str) -> None:
        """Prints, unless the study is quiet; beside a progress bar, too."""
        if not self.quiet:
            tqdm.write(text, file=sys.stdout)

    @cached_property
    def seeds(self) -> NDArray[np.int64]:
        """`[N]` of all units, which are also their ids."""
        return np.arange(self.design.units) + 2 * TRAINING_SEEDS * self.design.seed

    @cached_property
    def parts(self) -> Splits:
        """Who tunes, calibrates and tests."""
        design = self.design
        return split(self.seeds, tune=design.tune, calibrate=design.calibrate, seed=design.seed)

    @cached_property
    def episodes(self) -> Rollouts:
        """The training episodes: half by the policy itself, the rest with more noise."""
        seeds = self.seeds[0] + TRAINING_SEEDS + np.arange(self.design.episodes)
        changes = {"horizon": self.design.episode_steps, "burn_in": (0, 0)}
        groups = np.array_split(seeds, len(EXTRA_NOISE))
        jobs = [
            (f"episodes-{i}", group, changes | {"policy": Noisy(self.policy, extra)})
            for i, (group, extra) in enumerate(zip(groups, EXTRA_NOISE, strict=True))
        ]
        return self.simulated("training data", jobs)

    @cached_property
    def ensemble(self) -> Ensemble:
        """The dynamics model."""
        file = self.folder / _ENSEMBLE
        if file.exists():
            return self.disjoint(Ensemble.load(file, self.device), file)
        transitions = Transitions.of(self.episodes)
        settings = self.design.settings
        with self._stage("training", settings.epochs) as tick:

            def progress(epoch: Epoch) -> None:
                tick(1)
                self.say(f"  {epoch}")

            checkpoint = self.folder / "training.safetensors"
            options: Any = {"device": self.device, "checkpoint": checkpoint, "progress": progress}
            made = train(transitions, self.design.env, settings, **options)
        made.save(file)
        checkpoint.unlink()
        return self.disjoint(made, file)

    def disjoint(self, ensemble: Ensemble, file: Path) -> Ensemble:
        """`ensemble`, refused if it has seen a unit of the study, or does not know what it has seen."""
        if ensemble.trained_on is None:
            raise InvalidInput(
                f"{file} does not say which rollouts the ensemble was trained on, as a file of an earlier "
                "version does not: remove it, and it is trained anew"
            )
        ensemble.refuse_seen(self.seeds)
        return ensemble

    @cached_property
    def rollouts(self) -> Rollouts:
        """The true trajectories of all units."""
        usual = {"policy": self.policy, "horizon": self.design.horizon, "burn_in": self.design.burn_in}
        firsts = range(0, len(self.seeds), PART)
        jobs = [(f"rollouts-{i}", self.seeds[i : i + PART], usual) for i in firsts]
        # As many at once as occupy every CPU; kept part by part.
        return self.simulated("rollouts", jobs, together=max(1, threads() * BATCH // PART))

    @cache  # noqa: B019 - a study lives as long as its process
    def closed_loop(self, propagation: str = "particles") -> Case:
        """Forecasts of the policy's own trajectories."""
        ensemble, rollouts = self.ensemble, self.rollouts

        def make(tick: Tick) -> GaussianForecast:
            options: Any = {"horizon": self.design.horizon, "propagation": propagation, "progress": tick}
            return closed_loop(ensemble, self.environment, self.policy, rollouts.start, **options)

        return self._case("closed loop", propagation, make, rollouts.truth)

    @cache  # noqa: B019
    def given_plans(self, propagation: str = "particles") -> Case:
        """Forecasts of plans that are carried out whatever happens, see `plans.propose`."""
        ensemble, done = self.ensemble, self.executed

        def make(tick: Tick) -> GaussianForecast:
            return for_plans(ensemble, done.start, done.actions, propagation=propagation, progress=tick)

        return self._case("given plans", propagation, make, done.truth)

    def _case(
        self, name: str, propagation: str, make: Callable[[Tick], GaussianForecast], truth: Trajectories
    ) -> Case:
        forecast: GaussianForecast = self._kept(f"{name}, {propagation}", GaussianForecast, make)
        if forecast.failed is not None:
            lost = f"{forecast.failed.sum():,} of {len(truth):,} units"
            self.say(f"{name}, {propagation}: the ensemble explodes on {lost}, which count as errors")
        return Case(name, forecast, truth, self.parts)

    @cached_property
    def executed(self) -> Rollouts:
        """What became of a plan from the start of each unit."""
        ensemble, rollouts, horizon = self.ensemble, self.rollouts, self.design.horizon

        def make(tick: Tick) -> Rollouts:
            plans = propose(
                ensemble, self.environment, self.policy, rollouts.start, rollouts.seeds, horizon=horizon
            )
            done = execute(self.environment, rollouts, plans)
            tick(len(plans))
            return replace(done, actions=plans)

        found: Rollouts = self._kept("plans carried out", Rollouts, make)
        return found

    def simulated(
        self, stage: str, jobs: list[tuple[str, Any, dict[str, Any]]], *, together: int = 1
    ) -> Rollouts:
        """The rollouts of all jobs (name, seeds, options), kept as soon as they are done.

        `together` jobs, of the same options, are done at once.
        """
        left = [job for job in jobs if not self.folder.has(job[0])]
        todo, total = (sum(len(seeds) for _, seeds, _ in some) for some in (left, jobs))
        with self._stage(stage, total, total - todo) as tick:
            for group in (left[i : i + together] for i in range(0, len(left), together)):
                seeds = [seeds for _, seeds, _ in group]
                done = simulate(self.environment, seeds=np.concatenate(seeds), progress=tick, **group[0][2])
                ends = np.cumsum([len(part) for part in seeds])
                for (name, part, _), end in zip(group, ends, strict=True):
                    self.folder.write(name, done.take(slice(end - len(part), end)))
        return Rollouts.join([self.folder.read(name, Rollouts) for name, _, _ in jobs])

    def _kept(self, name: str, kind: Any, make: Callable[[Tick], Any]) -> Any:
        """Something of all units that the ensemble has a part in; another ensemble has files of its own."""
        stored = f"{name}, {file_digest(self.folder / _ENSEMBLE)[:12]}"
        if self.folder.has(stored):
            return self.folder.read(stored, kind)
        with self._stage(name, len(self.seeds)) as tick:
            made = make(tick)
        self.folder.write(stored, made)
        return made

    @contextmanager
    def _stage(self, name: str, total: int, ready: int = 0) -> Iterator[Tick]:
        """Shows progress and keeps the time, if there is anything left to do."""
        if ready == total:
            yield lambda n: None
            return
        before = time.perf_counter()
        with bar(name, total, ready, quiet=self.quiet) as tick:
            yield tick
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - before


def _usable(device: str | torch.device) -> torch.device:
    try:
        return torch.zeros(1, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise InvalidInput(f"device must be one that torch has here, got {device!r}: {error}") from None
