"""The tasks that ship: rollouts of a robot, images of a folder, tracks of videos."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cluster.driver import Task
from cluster.scoring import Stage
from cluster.storage import RunFolder
from pac_core import InvalidInput, Record, ids_digest
from pac_core.tables import file_digest

IMAGES = 64
"""Images of a shard."""
NEEDS_OF_IMAGES = ("numpy", "torch", "pillow")


def rl_task(
    *,
    env: str,
    policy: Path,
    policy_std: float | None = None,
    ensemble: Path | Callable[[], Path],
    horizon: int,
    burn_in: tuple[int, int],
    propagation: str,
    members: Sequence[int],
    tune: int,
    calibrate: int,
    test: int,
    seed: int,
    cpus: int = 1,
) -> Task:
    """Rollouts of a policy, forecast by an ensemble; the unit is a rollout from its own reset.

    ensemble: a file, or what makes it; it is made last, because that may take long
    """
    from pac_rl import PROPAGATIONS, Design, Ensemble, load_policy
    from pac_rl.designs import TRAINING_SEEDS, checked
    from pac_rl.scoring import NEEDS, UNITS, ForecastRollouts, SimulateRollouts

    sizes: dict[str, Any] = {"tune": tune, "calibrate": calibrate, "test": test, "seed": seed}
    checked(Design(env=env, horizon=horizon, burn_in=burn_in, epsilon=0.5, delta=0.5, **sizes))
    controller = load_policy(policy, std=policy_std)
    if propagation not in PROPAGATIONS:
        raise InvalidInput(f"--propagation must be one of {', '.join(PROPAGATIONS)}, got {propagation!r}")
    file = ensemble() if callable(ensemble) else ensemble
    model = Ensemble.load(file)
    digests = {"policy": file_digest(policy), "ensemble": file_digest(file)}
    first = 2 * TRAINING_SEEDS * seed
    seeds = range(first, first + tune + calibrate + test)
    forecasting = (env, controller, model, propagation, tuple(members))
    ForecastRollouts(*forecasting)  # refuses here what would not do there
    return Task.of(
        "rl",
        seeds,
        [
            Stage(SimulateRollouts, (env, controller, horizon, burn_in), cpus, 0, NEEDS),
            Stage(ForecastRollouts, forecasting, cpus, None, NEEDS),
        ],
        size=UNITS,
        names=[f"{env}/{digests['policy'][:12]}/{unit}" for unit in seeds],
        unit="rollout",
        model=Record(str(model), digest=digests["ensemble"]),
        tune=tune,
        calibrate=calibrate,
        seed=seed,
        env=env,
        horizon=horizon,
        burn_in=list(burn_in),
        propagation=propagation,
        members=list(members),
        policy_std=policy_std,
        cpus=cpus,
        **digests,
    )


def trained(folder: RunFolder, env: str, policy: Path, policy_std: float | None, seed: int) -> Path:
    """The file of an ensemble for this policy, trained on this machine and kept in the run folder."""
    from pac_rl import Design, Study

    if not folder.local:
        raise InvalidInput("--ensemble must be given where the run folder is a URL: train it first")
    home = Path(folder.root) / "model"
    study = Study(Design(env=env, policy=str(policy), policy_std=policy_std, seed=seed), home)
    study.say(f"ensemble  {study.ensemble} in {home}")
    return home / "ensemble.safetensors"


def image_task(
    *,
    images: str | Path,
    labels: Path | None,
    model: str,
    tune: int,
    calibrate: int,
    seed: int,
    classes: Path | None = None,
    broken: str = "error",
    batch: int = 1,
    cpus: int = 1,
) -> Task:
    """Images of a folder, of tar shards or of parquet files, classified by a model; the unit is an image.

    images, labels, classes: see `find_images`; every worker must see the images
    broken: ``miss`` counts an image that cannot be decoded as an error, see `ClassifyImages`; a run that
        stopped at one may go on with it
    """
    from pac_vision import ClassifyImages, find_images, load_model

    if model.startswith("python:") and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where `python` itself would look for the module
    found = find_images(Path(images).absolute(), labels=labels, classes=classes)
    classifier = load_model(model)
    truth = found.by_id(classifier.classes)
    ids = [str(name) for name in found.ids]
    return Task.of(
        "imagenet",
        ids,
        [Stage(ClassifyImages, (found, model, batch, broken), cpus, None, NEEDS_OF_IMAGES)],
        size=IMAGES,
        names=ids,
        unit="image",
        model=Record(model, digest=classifier.digest),
        tune=tune,
        calibrate=calibrate,
        seed=seed,
        batch=batch,
        cpus=cpus,
        labels=ids_digest([f"{name}={truth[name]}" for name in ids]),
    )


def track_task(*, tracks: Path, gamma: float, score: str, calibrate: int, seed: int, cpus: int = 1) -> Task:
    """Stored tracks of videos by an ensemble of trackers; the unit is a sequence, with all its targets."""
    from pac_vision import ScoreTracks, read_tracks

    found = read_tracks(tracks)
    ids = [str(name) for name in found.ids]
    ScoreTracks(found, gamma, score)  # refuses here what would not do there
    return Task.of(
        "otb",
        ids,
        [Stage(ScoreTracks, (found, gamma, score), cpus, 0, ("numpy",))],
        size=max(1, min(8, len(ids) // 8)),
        names=np.array(ids),
        unit="sequence",
        model=Record("ensemble of trackers", digest=file_digest(tracks)),
        score=f"{score} score exceeded in at most a share {gamma:g} of the frames",
        tune=0,
        calibrate=calibrate,
        seed=seed,
        gamma=gamma,
        frame_score=score,
        cpus=cpus,
    )
