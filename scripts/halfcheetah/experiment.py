"""What determines an experiment, its runs, and where its results go.

Everything is computed in run folders below one folder: the training episodes and the ensemble in `model`, the
rollouts with their forecasts in `closed` and `plans`. Interrupted, the same command goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from cluster import Job, Results, RunFolder, Task, View, connected, run_here, run_on_ray
from cluster.progress import shown
from pac_core import GaussianForecast, PACLevel, Trajectories, max_errors
from pac_core.tables import file_digest
from pac_rl import Ensemble, Settings, load_policy, make_environment
from pac_rl.policies import fitting
from pac_rl.policy_files import NOT_NORMALISED, SHIPPED
from pac_rl.tasks import Engine, rollout_task, train_ensemble, training_job, unit_seeds

WIDTH = 110
"""Of a terminal."""


@dataclass(frozen=True)
class Design:
    """Everything that determines what an experiment finds; the defaults are the paper's.

    Units are rollouts of `horizon` steps, each from its own reset and a burn-in drawn from `burn_in`.
    policy_std: noise on each action, instead of the policy file's
    vecnormalize, policy_sees: see `load_policy`
    episodes, episode_steps: of the training
    """

    env: str = "HalfCheetah-v5"
    policy: str = str(SHIPPED)
    policy_std: float | None = None
    vecnormalize: str | None = None
    policy_sees: str | None = None
    horizon: int = 20
    burn_in: tuple[int, int] = (0, 200)
    tune: int = 5000
    calibrate: int = 5000
    test: int = 5000
    epsilon: float = 0.01
    delta: float = 1e-5
    seed: int = 0
    episodes: int = 1600
    episode_steps: int = 200
    settings: Settings = field(default_factory=Settings)

    @property
    def level(self) -> PACLevel:
        return PACLevel(self.epsilon, self.delta)

    @property
    def sizes(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("tune", "calibrate", "test", "seed")}

    def __str__(self) -> str:
        return f"{self.env}, n = {self.calibrate:,}, epsilon {self.epsilon:g}, delta {self.delta:g}"

    def about(self) -> dict[str, Any]:
        """The design as JSON can say it; files are known by their content."""
        found = asdict(self) | {"policy": file_digest(self.policy)}
        if self.vecnormalize not in (None, NOT_NORMALISED):
            found["vecnormalize"] = file_digest(self.vecnormalize)
        return found


SMOKE = Design(
    tune=256,
    calibrate=320,
    test=256,
    epsilon=0.1,
    delta=1e-3,
    episodes=64,
    episode_steps=100,
    burn_in=(0, 40),
    horizon=10,
    settings=Settings(members=3, hidden=48, layers=3, epochs=3, batch=256, rate=5e-3),
)
"""An experiment of seconds; its level is one that so few units can prove."""


@dataclass(frozen=True, eq=False)
class Case:
    """Forecasts by one propagation and what came true, read from a finished run."""

    name: str
    results: Results
    view: View

    @cache  # noqa: B019 - a case lives as long as its process
    def part(self, name: str) -> tuple[GaussianForecast, Trajectories]:
        """Forecast and truth of "tune", "calibrate" or "test"; the units that failed are marked."""
        return self.results.gathered(name, self.view, failed=True)


class Experiment:
    """A design, the folder of its runs, and the engine that runs them.

    device: what trains
    """

    def __init__(self, design: Design, out: Path, engine: Engine, device: str = "cpu") -> None:
        self.design, self.out, self.engine, self.device = design, out, engine, device
        self.robot, self.policy = checked(design)
        self.report = Report(out / "results")

    @cached_property
    def episodes(self) -> tuple[Job, RunFolder]:
        """The training episodes: their finished job, and where they lie."""
        design = self.design
        lengths = {"episodes": design.episodes, "steps": design.episode_steps, "seed": design.seed}
        job, folder = training_job(design.env, self.policy, **lengths), RunFolder(self.out / "model/episodes")
        self.engine(job, folder)
        return job, folder

    @cached_property
    def ensemble(self) -> Ensemble:
        """The dynamics model."""
        design = self.design
        return train_ensemble(
            self.out,
            design.env,
            self.policy,
            design.settings,
            episodes=design.episodes,
            steps=design.episode_steps,
            seed=design.seed,
            engine=self.engine,
            device=self.device,
            progress=say,
        )

    def run(self, name: str) -> tuple[Task, RunFolder]:
        """A finished run: of the policy's own rollouts ("closed"), or of given plans ("plans").

        It holds forecasts by particles, and the paper's one-step forecasts.
        """
        return self._run(name, "particles")

    @cache  # noqa: B019 - an experiment lives as long as its process
    def _run(self, name: str, propagation: str) -> tuple[Task, RunFolder]:
        design, usual = self.design, propagation == "particles"
        folder = RunFolder(self.out / (name if usual else f"{name}-{propagation}"))
        task = rollout_task(
            design.env,
            self.policy,
            self.ensemble,
            ensemble=file_digest(self.out / "model/ensemble.safetensors"),
            plans=name == "plans",
            horizon=design.horizon,
            burn_in=design.burn_in,
            propagation=propagation,
            also=("one-step",) if usual else (),
            **design.sizes,
        )
        task.write(folder)
        self.engine(task.job, folder)
        return task, folder

    @cache  # noqa: B019
    def case(self, name: str, propagation: str = "particles") -> Case:
        """The forecasts of a run by one propagation; see `run`."""
        stored = propagation in ("particles", "one-step")
        task, folder = self._run(name, "particles" if stored else propagation)
        view = View(propagation="one-step") if propagation == "one-step" else View()
        words = {"closed": "closed loop", "plans": "given plans"}[name]
        case = Case(words, task.results(folder), view)
        failed = [case.part(part)[0].failed for part in ("tune", "calibrate", "test")]
        if lost := sum(int(marks.sum()) for marks in failed if marks is not None):
            say(f"{words}, {propagation}: the ensemble explodes on {lost:,} units, which count as errors")
        return case


def checked(design: Design) -> tuple[Any, Any]:
    """Robot and policy of a design, which is refused if it cannot lead anywhere, before any long work."""
    max_errors(design.calibrate, design.level)
    unit_seeds(**design.sizes)
    about: Any = {"std": design.policy_std, "vecnormalize": design.vecnormalize, "sees": design.policy_sees}
    robot = make_environment(design.env)
    return robot, fitting(robot, load_policy(design.policy, **about))


@contextmanager
def engine_at(address: str, device: str = "cpu") -> Iterator[Engine]:
    """What runs jobs: Ray at an address, or with "none" this process; it shows how far they are."""

    def watched(run: Any, job: Job, folder: RunFolder) -> Any:
        of = job.configuration.get("guard", job.configuration.get("scale", ""))
        name = f"{job.name}, {of}" if of else job.name
        with shown(name, job.configuration.get("unit", "unit")) as progress:
            return run(job, folder, progress=progress)

    if address == "none":
        yield partial(watched, partial(run_here, device=device))
    else:
        with connected(address) as session:
            print(f"ray       {session}")
            yield partial(watched, run_on_ray)


def say(what: Any) -> None:
    """A line that does not disturb a progress bar."""
    tqdm.write(f"  {what}")


class Report:
    """A folder for tables and figures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def table(self, name: str, rows: list[dict[str, Any]], *, title: str = "") -> None:
        """Prints the rows and writes them to `name`.csv, with all digits."""
        table = pd.DataFrame(rows)
        table.to_csv(self.folder / f"{name}.csv", index=False, na_rep="nan")
        shown = table.map(lambda cell: f"{cell:.4g}" if isinstance(cell, float) else str(cell))
        text = shown.replace("nan", "-").to_string(index=False)
        if max(map(len, text.splitlines())) > WIDTH:  # a column for each row, then
            text = shown.replace("nan", "-").T.to_string(header=False)
        print(f"\n{title or name}\n{text}\n  (also in {self.folder / name}.csv)", flush=True)

    def figure(self, name: str, figure: Any) -> Path:
        """Writes the figure to `name`.png."""
        path = self.folder / f"{name}.png"
        figure.savefig(path)
        print(f"figure {path}", flush=True)
        return path


def with_changes(design: Design, **changes: Any) -> Design:
    """The design with those options that were given; `n` is each of tune, calibrate and test."""
    n = changes.pop("n", None)
    changes |= dict.fromkeys(("tune", "calibrate", "test"), n)
    return replace(design, **{name: value for name, value in changes.items() if value is not None})


def all_seeds(design: Design) -> np.ndarray:
    """`[N]` of all units, which are also their names."""
    return np.asarray(unit_seeds(**design.sizes))
