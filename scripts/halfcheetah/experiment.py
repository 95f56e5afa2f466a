"""What determines an experiment, its runs, and where its results go.

Everything is computed in run folders below one folder: the training episodes and the ensemble in `model`, the
rollouts with their forecasts in `closed` and `plans`. Interrupted, the same command goes on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from tqdm import tqdm

from pac_core import GaussianForecast, PACLevel, Trajectories
from pac_core.bounds import max_errors
from pac_core.datasets import file_digest
from pac_core.runs import Job, Results, RunFolder, Task, View
from pac_rl import Ensemble, Settings, load_policy, make_environment
from pac_rl.policies import Policy, check_policy
from pac_rl.policy_files import NOT_NORMALISED, SHIPPED
from pac_rl.systems import Environment
from pac_rl.tasks import Engine, rollout_task, train_ensemble, training_job, unit_seeds

WIDTH = 110
"""Of a terminal."""


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
    def level(self) -> PACLevel:
        return PACLevel(self.epsilon, self.delta)

    @property
    def sizes(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("tune", "calibrate", "test", "seed")}

    @property
    def training(self) -> dict[str, int]:
        return {"episodes": self.episodes, "steps": self.episode_steps, "seed": self.seed}

    def __str__(self) -> str:
        return f"{self.env}, n = {self.calibrate:,}, epsilon {self.epsilon:g}, delta {self.delta:g}"

    def about(self) -> dict[str, Any]:
        """The design as JSON can say it; files are known by their content."""
        found = asdict(self) | {"policy": file_digest(self.policy)}
        if self.vecnormalize not in (None, NOT_NORMALISED):
            found["vecnormalize"] = file_digest(self.vecnormalize)
        return found

    def open(self) -> tuple[Environment, Policy]:
        """Robot and policy; a design that cannot lead anywhere is refused here, before any long work."""
        max_errors(self.calibrate, self.level)
        unit_seeds(**self.sizes)
        about: Any = {"std": self.policy_std, "vecnormalize": self.vecnormalize, "sees": self.policy_sees}
        robot = make_environment(self.env)
        return robot, check_policy(robot, load_policy(self.policy, **about))


SMOKE = Design(
    **{"tune": 256, "calibrate": 320, "test": 256, "epsilon": 0.1, "delta": 1e-3, "horizon": 10},
    **{"episodes": 64, "episode_steps": 100, "burn_in": (0, 40)},
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
        self.robot, self.policy = design.open()
        self.report = Report(out / "results")

    @cached_property
    def episodes(self) -> tuple[Job, RunFolder]:
        """The training episodes: their finished job, and where they lie."""
        job = training_job(self.design.env, self.policy, **self.design.training)
        folder = RunFolder(self.out / "model/episodes")
        self.engine(job, folder)
        return job, folder

    @cached_property
    def ensemble(self) -> Ensemble:
        """The dynamics model."""
        options: Any = {"engine": self.engine, "device": self.device, "progress": say}
        settings, training = self.design.settings, self.design.training
        return train_ensemble(self.out, self.design.env, self.policy, settings, **training, **options)

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
        """The forecasts of a run by one propagation."""
        task, folder = self._run(name, "particles" if propagation == "one-step" else propagation)
        view = View(propagation="one-step") if propagation == "one-step" else View()
        case = Case({"closed": "closed loop", "plans": "given plans"}[name], task.results(folder), view)
        marks = [case.part(part)[0].failed for part in ("tune", "calibrate", "test")]
        if lost := sum(int(failed.sum()) for failed in marks if failed is not None):
            say(f"{case.name}, {propagation}: the ensemble explodes on {lost:,} units, which count as errors")
        return case


def say(what: Any) -> None:
    """A line that does not disturb a progress bar."""
    tqdm.write(f"  {what}")


class Report:
    """A folder for tables and figures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def table(self, name: str, rows: list[dict[str, Any]], title: str) -> None:
        """Prints the rows and writes them to `name`.csv, with all digits."""
        table = pd.DataFrame(rows)
        table.to_csv(self.folder / f"{name}.csv", index=False, na_rep="nan")
        cells = table.map(lambda cell: f"{cell:.4g}" if isinstance(cell, float) else str(cell))
        text = cells.replace("nan", "-").to_string(index=False)
        if max(map(len, text.splitlines())) > WIDTH:  # a column for each row, then
            text = cells.replace("nan", "-").T.to_string(header=False)
        print(f"\n{title}\n{text}\n  (also in {self.folder / name}.csv)", flush=True)

    def figure(self, name: str, figure: Any) -> None:
        """Writes the figure to `name`.png."""
        figure.savefig(self.folder / f"{name}.png")
        print(f"figure {self.folder / name}.png", flush=True)
