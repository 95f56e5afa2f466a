"""A whole study in a folder: train, roll out, forecast. Each part is kept, so it can be interrupted."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from pac_core import (
    GaussianForecast,
    InvalidInput,
    PACLevel,
    Splits,
    Trajectories,
    UnreadableFile,
    max_errors,
    split,
)
from pac_core.arrays import threads
from pac_core.documents import write_json
from pac_core.tables import file_digest, read_arrays
from pac_rl.ensembles import Ensemble, Epoch, Settings, Transitions
from pac_rl.environments import Environment, make_environment
from pac_rl.forecasts import closed_loop, for_plans
from pac_rl.plans import propose
from pac_rl.policies import Noisy, Policy, fitting
from pac_rl.policy_files import SHIPPED, load_policy
from pac_rl.progress import bar
from pac_rl.training import train
from pac_rl.trajectories import BATCH, Rollouts, execute, simulate

_ENSEMBLE = "ensemble.safetensors"
Tick: TypeAlias = Callable[[int], Any]
"""Called with the number of units that were finished."""
EXTRA_NOISE = (0.0, 0.0, 0.2, 0.5)
"""On the actions of each quarter of the training episodes, so that plans off the policy are covered."""
TRAINING_SEEDS = 1_000_000_000
"""Training episodes have seeds from here on, so that none is ever a unit of the study."""


@dataclass(frozen=True)
class Design:
    """Everything that determines what a study finds.

    Units are rollouts of `horizon` steps, each from its own reset and a burn-in drawn from `burn_in`.
    """

    env: str = "HalfCheetah-v5"
    policy: str = str(SHIPPED)
    policy_std: float | None = None
    """noise on each action, instead of the policy file's; needed for a file that has none"""
    horizon: int = 20
    burn_in: tuple[int, int] = (0, 200)
    tune: int = 5000
    calibrate: int = 5000
    test: int = 5000
    epsilon: float = 0.01
    delta: float = 1e-5
    seed: int = 0
    episodes: int = 1600
    """training episodes: half by the policy itself, half with more noise"""
    episode_steps: int = 200
    settings: Settings = field(default_factory=Settings)

    @property
    def level(self) -> PACLevel:
        return PACLevel(self.epsilon, self.delta)

    def __str__(self) -> str:
        return f"{self.env}, n = {self.calibrate:,}, epsilon {self.epsilon:g}, delta {self.delta:g}"

    @property
    def units(self) -> int:
        return self.tune + self.calibrate + self.test

    @classmethod
    def smoke(cls, **changes: Any) -> Design:
        """A study of seconds, to see that everything runs; its level is one that so few units can prove."""
        small = Settings(members=3, hidden=48, layers=3, epochs=3, batch=256, rate=5e-3)
        sizes: dict[str, Any] = {"tune": 256, "calibrate": 320, "test": 256, "epsilon": 0.1, "delta": 1e-3}
        sizes |= {"episodes": 64, "episode_steps": 100, "burn_in": (0, 40), "horizon": 10}
        return cls(**({"settings": small} | sizes | changes))


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

    Bad input is refused when the study is opened, before any long work.
    """

    def __init__(self, design: Design, folder: str | Path, *, quiet: bool = False) -> None:
        for name in ("horizon", "tune", "calibrate", "test", "episodes", "episode_steps"):
            if getattr(design, name) < 1:
                raise InvalidInput(f"{name} must be at least 1, got {getattr(design, name)}")
        max_errors(design.calibrate, design.level)
        if design.units >= TRAINING_SEEDS or design.seed < 0:
            raise InvalidInput(f"units must be fewer than {TRAINING_SEEDS:,} and seed at least 0")
        self.design, self.folder, self.quiet = design, Path(folder), quiet
        self.environment: Environment = make_environment(design.env)
        self.policy: Policy = fitting(self.environment, load_policy(design.policy, std=design.policy_std))
        self.seconds: dict[str, float] = {}
        self._claim()

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
        return self._simulated("training data", jobs)

    @cached_property
    def ensemble(self) -> Ensemble:
        """The dynamics model."""
        file = self.folder / _ENSEMBLE
        if file.exists():
            return Ensemble.load(file)
        transitions = Transitions.of(self.episodes)
        settings = self.design.settings
        with self._stage("training", settings.epochs) as tick:

            def progress(epoch: Epoch) -> None:
                tick(1)
                self.say(f"  {epoch}")

            checkpoint = self.folder / "training.safetensors"
            made = train(transitions, self.design.env, settings, checkpoint=checkpoint, progress=progress)
        made.save(file)
        checkpoint.unlink()
        return made

    @cached_property
    def rollouts(self) -> Rollouts:
        """The true trajectories of all units."""
        usual = {"policy": self.policy, "horizon": self.design.horizon, "burn_in": self.design.burn_in}
        size = BATCH * max(2, threads())  # a block for each CPU, then they are kept
        firsts = range(0, len(self.seeds), size)
        jobs = [(f"rollouts-{i}-{size}", self.seeds[i : i + size], usual) for i in firsts]
        return self._simulated("rollouts", jobs)

    @cache  # noqa: B019 - a study lives as long as its process
    def closed_loop(self, propagation: str = "particles") -> Case:
        """Forecasts of the policy's own trajectories."""
        ensemble, rollouts = self.ensemble, self.rollouts

        def make(tick: Tick) -> GaussianForecast:
            options: Any = {"horizon": self.design.horizon, "propagation": propagation, "progress": tick}
            return closed_loop(ensemble, self.environment, self.policy, rollouts.start, **options)

        name = f"closed loop, {propagation}"
        return Case("closed loop", self._kept(name, GaussianForecast, make), rollouts.truth, self.parts)

    @cache  # noqa: B019
    def given_plans(self, propagation: str = "particles") -> Case:
        """Forecasts of plans that are carried out whatever happens, see `plans.propose`."""
        ensemble, done = self.ensemble, self.executed

        def make(tick: Tick) -> GaussianForecast:
            return for_plans(ensemble, done.start, done.actions, propagation=propagation, progress=tick)

        name = f"given plans, {propagation}"
        return Case("given plans", self._kept(name, GaussianForecast, make), done.truth, self.parts)

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

    def _simulated(self, stage: str, jobs: list[tuple[str, Any, dict[str, Any]]]) -> Rollouts:
        """The rollouts of all jobs (name, seeds, options), each kept as soon as it is done."""
        ready = sum(len(seeds) for name, seeds, _ in jobs if self._file(name).exists())
        with self._stage(stage, sum(len(seeds) for _, seeds, _ in jobs), ready) as tick:
            parts = [
                self._keep(
                    name, Rollouts, partial(simulate, self.environment, seeds=seeds, progress=tick, **options)
                )
                for name, seeds, options in jobs
            ]
        return Rollouts.join(parts)

    def _kept(self, name: str, kind: Any, make: Callable[[Tick], Any]) -> Any:
        """Something of all units that the ensemble has a part in; another ensemble has files of its own."""
        total, model = len(self.seeds), file_digest(self.folder / _ENSEMBLE)[:12]
        stored = f"{name}, {model}"
        with self._stage(name, total, total if self._file(stored).exists() else 0) as tick:
            return self._keep(stored, kind, lambda: make(tick))

    def _keep(self, name: str, kind: Any, make: Callable[[], Any]) -> Any:
        """What the file of this name holds, or what `make` returns, written to it."""
        file = self._file(name)
        if file.exists():
            return kind(**read_arrays(file))
        made = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".partial.npz")
        np.savez(unfinished, **vars(made))
        unfinished.replace(file)
        return made

    def _file(self, name: str) -> Path:
        return self.folder / "kept" / f"{name.replace(', ', '-').replace(' ', '-')}.npz"

    def _claim(self) -> None:
        """Writes the design down in the folder; refuses a folder that belongs to another."""
        file = self.folder / "design.json"
        ours = asdict(self.design) | {"policy": file_digest(self.design.policy)}
        ours |= {"batch": BATCH, "extra_noise": EXTRA_NOISE}
        ours = json.loads(json.dumps(ours))
        if not file.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            return write_json(file, ours)
        try:
            theirs = json.loads(file.read_text())
        except json.JSONDecodeError:
            raise UnreadableFile(f"{file} is cut off or damaged; remove the folder to start anew") from None
        if differing := [name for name in ours | theirs if theirs.get(name) != ours.get(name)]:
            raise InvalidInput(
                f"{self.folder} belongs to a study with another {', '.join(differing)}; choose another folder"
            )

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
