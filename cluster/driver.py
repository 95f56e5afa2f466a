"""The driver: a task becomes a job, the job a finished run, the run certificates."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster.results import ALL, Results, View, part_names
from cluster.scoring import Job, Stage
from cluster.storage import RunFolder
from pac_core import (
    Asked,
    Certificate,
    Evaluation,
    InvalidInput,
    PACLevel,
    Record,
    SplitRecord,
    certify_menu,
    fit_shape,
    fit_threshold,
    ids_digest,
    max_errors,
    split,
    tempered,
    write_certificate,
)
from pac_core.certification import Certified
from pac_core.predictors import GivenScore, Score
from pac_core.tables import file_digest


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be found out, in the words of its field.

    names: `[N]` of the units, for ledger and certificate, in the order of the job's ids
    unit: what is drawn independently, in a word
    model: for the certificate
    shape: tube shape or other kind of score, fitted on the tune part
    """

    job: Job
    names: NDArray[np.str_]
    unit: str
    model: Record
    shape: str
    tune: int
    calibrate: int
    seed: int

    def results(self, folder: RunFolder) -> Results:
        """The finished run in a folder."""
        parts = split(self.names, tune=self.tune, calibrate=self.calibrate, seed=self.seed)
        return Results(self.job, folder, self.names, parts)

    def check(self, levels: Sequence[PACLevel]) -> None:
        """Refuse, before any work, what so many units cannot prove."""
        for level in levels:
            max_errors(self.calibrate, level)
        if self.tune + self.calibrate > len(self.names):
            raise InvalidInput(
                f"tune + calibrate must be at most the {len(self.names):,} units, got "
                f"{self.tune + self.calibrate:,}"
            )


@dataclass(frozen=True, eq=False)
class Finding:
    """A certificate, where its file is, and what the test part says of it; None without test units."""

    certificate: Certificate
    file: str
    evaluation: Evaluation | None


def rl_task(
    *,
    env: str,
    policy: Path,
    ensemble: Path,
    horizon: int,
    burn_in: tuple[int, int],
    propagation: str,
    members: Sequence[int],
    tune: int,
    calibrate: int,
    test: int,
    seed: int,
    shape: str = "box",
    cpus: int = 1,
) -> Task:
    """Rollouts of a policy, forecast by an ensemble; the unit is a rollout from its own reset."""
    from pac_rl import Ensemble, load_policy
    from pac_rl.scoring import NEEDS, UNITS, ForecastRollouts, SimulateRollouts
    from pac_rl.studies import TRAINING_SEEDS

    controller, model = load_policy(policy), Ensemble.load(ensemble)
    digests = {"policy": file_digest(policy), "ensemble": file_digest(ensemble)}
    seeds = range(first := 2 * TRAINING_SEEDS * seed, first + tune + calibrate + test)
    forecasting = (env, controller, model, propagation, tuple(members))
    ForecastRollouts(*forecasting)  # refuses here what would not do there
    stages = [
        Stage(SimulateRollouts, (env, controller, horizon, burn_in), cpus, 0, NEEDS),
        Stage(ForecastRollouts, forecasting, cpus, None, NEEDS),
    ]
    settings = {
        "env": env,
        "horizon": horizon,
        "burn_in": list(burn_in),
        "propagation": propagation,
        "members": list(members),
        "cpus": cpus,
    }
    job = Job.of("rl", seeds, stages, size=UNITS, seed=seed, **digests, **settings)
    names = np.array([f"{env}/{digests['policy'][:12]}/{unit}" for unit in seeds])
    about = Record(str(model), digest=digests["ensemble"])
    return Task(job, names, "rollout", about, shape, tune, calibrate, seed)


def trained(folder: RunFolder, env: str, policy: Path, seed: int) -> Path:
    """The file of an ensemble for this policy, trained on this machine and kept in the run folder."""
    from pac_rl import Design, Study

    if not folder.local:
        raise InvalidInput("--ensemble must be given where the run folder is a URL: train it first")
    home = Path(folder.root) / "model"
    study = Study(Design(env=env, policy=str(policy), seed=seed), home)
    _ = study.ensemble
    return home / "ensemble.safetensors"


def fitted(results: Results, shape: str, level: PACLevel, view: View = ALL) -> tuple[Score, Any]:
    """A score fitted on the tune part for this level, and the domain of its forecasts."""
    _, _, (scores, forecast, _) = next(results.over("calibrate", view))
    if scores is not None:
        return GivenScore(shape), None
    if shape == "joint":
        return results.paper_score(view), forecast.domain
    gathered = results.gathered("tune", view)
    fit = partial(fit_shape, shape=shape) if forecast.domain[0] == "trajectories" else tempered
    return fit(*gathered, level), forecast.domain


def certify_run(
    task: Task, folder: RunFolder, levels: Sequence[PACLevel], ledger: Path, *, view: View = ALL
) -> tuple[Certified, list[Finding]]:
    """Certificates of a finished run at these levels, written into its folder, and their test."""
    results = task.results(folder)
    score, domain = fitted(results, task.shape, levels[0], view)
    asked = Asked(score, tuple(levels), partial(results.scores, score, "scores.parquet", view), domain)
    (made,) = certify_results(task, results, [asked], ledger)
    if not made.certificates:
        fit_threshold(made.scores, made.refused[-1])  # raises the reason, with its numbers
    return made, [found(task, results, folder, certificate, view) for certificate in made.certificates]


def certify_results(task: Task, results: Results, menu: Sequence[Asked], ledger: Path) -> list[Certified]:
    """One look at the calibrate part, for everything on the menu."""
    tune, test = results.parts.tune, results.parts.test
    return certify_menu(
        menu,
        ids=part_names(results, "calibrate"),
        ledger=ledger,
        data=results.digest(),
        parts=results.parts,
        source=Record(f"run of the task {task.job.name}", task.job.units, results.digest()),
        unit=task.unit,
        tune=Record("tune", tune.n, tune.digest),
        test=Record("test", test.n, test.digest),
        model=task.model,
        split=SplitRecord(task.seed, ids_digest(results.names), "ids"),
    )


def found(
    task: Task, results: Results, folder: RunFolder, certificate: Certificate, view: View, prefix: str = ""
) -> Finding:
    """Writes a certificate into the run folder, and asks the test part."""
    level = certificate.predictor.threshold.level
    name = f"{prefix}certificate-{level.epsilon!r}-{level.delta!r}.json"
    store(folder, name, certificate)
    asked = results.parts.test.n and not isinstance(certificate.predictor.score, GivenScore)
    return Finding(certificate, name, results.evaluate(certificate.predictor, view) if asked else None)


def store(folder: RunFolder, name: str, certificate: Certificate) -> None:
    """A certificate as a file of the run folder, wherever that is."""
    import tempfile

    with tempfile.TemporaryDirectory() as here:
        write_certificate(certificate, Path(here) / name)
        folder.put(name, (Path(here) / name).read_bytes())


def table(rows: Sequence[dict[str, Any]]) -> bytes:
    """Rows as csv."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
