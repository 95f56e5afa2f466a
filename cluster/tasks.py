"""The tasks that ship: rollouts of a robot, images of a folder, tracks of videos."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from cluster.driver import Task
from cluster.folders import RunFolder
from cluster.jobs import Job, Stage
from cluster.results import View
from pac_core import InvalidInput, Record, ids_digest
from pac_core.files import real_path
from pac_core.options import say
from pac_core.tables import file_digest

IMAGES = 64
"""Images of a shard."""


def rl_task(**options: Any) -> Task:
    """Rollouts of a robot; the options are those of `pac_rl.tasks.rl_task`."""
    from pac_rl.tasks import rl_task

    return rl_task(**options)


def trained(
    folder: RunFolder,
    engine: Callable[[Job, RunFolder], Any],
    *,
    env: str,
    policy: Path,
    seed: int,
    **acting: Any,
) -> Path:
    """The file of an ensemble for this robot and policy, trained on this machine, kept in the run folder."""
    from pac_rl.policy_files import load_policy
    from pac_rl.tasks import train_ensemble

    std, sees = acting.pop("policy_std"), acting.pop("policy_sees")
    controller = load_policy(policy, std=std, sees=sees, **acting)
    model = train_ensemble(
        folder, env, controller, seed=seed, engine=engine, progress=lambda epoch: tqdm.write(f"  {epoch}")
    )
    home = Path(folder.root) / "model"
    say("ensemble", f"{model} in {home}")
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
    batch: int | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    cpus: int = 1,
) -> Task:
    """Images of a folder, of tar shards or of parquet files, classified by a model; the unit is an image.

    images, labels, classes: see `find_images`; every worker must see the images
    broken: ``miss`` counts an image that cannot be decoded as an error, see `ClassifyImages`; a run that
        stopped at one may go on with it
    batch: see `ImageLogits`
    preprocessing: for `load_model`
    """
    from pac_vision import ClassifyImages, ImageLogits, find_images, load_model
    from pac_vision.scoring import first_replaced, packages

    if model.startswith("python:") and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where `python` itself would look for the module
    found = find_images(Path(images).absolute(), labels=labels, classes=classes)
    classifier = load_model(model, preprocessing=preprocessing)
    truth = found.by_id(classifier.classes)
    ids = [str(name) for name in found.ids]
    together = ImageLogits(found.source, classifier, batch).batch
    args = (found, model, together, broken, classifier.digest, dict(preprocessing or {}))
    return Task.of(
        "imagenet",
        ids,
        # Labels and contents of the images are compared on their own, wherever they lie by now.
        [Stage(ClassifyImages, args, cpus, None, packages(model), exempt=("images", "broken"))],
        size=IMAGES,
        names=ids,
        unit="image",
        model=Record(classifier.name, digest=classifier.digest),
        tune=tune,
        calibrate=calibrate,
        seed=seed,
        batch=together,
        cpus=cpus,
        replaced=partial(first_replaced, found),
        labels=ids_digest([f"{name}={truth[name]}" for name in ids]),
    )


def track_task(
    *,
    tracks: Path | None = None,
    sequences: Path | None = None,
    tracker: Path | None = None,
    free: bool = False,
    gamma: float,
    score: str,
    power: float = 1.0,
    calibrate: int,
    seed: int,
    cpus: int = 1,
) -> Task:
    """Videos, by stored tracks or by a tracker that reads their frames; the unit is a sequence.

    tracks: predictions of an ensemble of trackers; or else
    sequences, tracker: a folder in OTB's layout, which every worker must see, and a tracker's file; the
        sequences that it was trained on are left out
    """
    from pac_vision import BoxScore, ScoreTracks, read_tracks
    from pac_vision.shares import share

    share("gamma", gamma)  # refuses here what would not do there
    frame_score = BoxScore(score, power=power)
    if tracks is not None:
        if sequences is not None or tracker is not None or free:
            raise InvalidInput(
                "--tracks are predictions already: it goes without --sequences, --tracker, --free"
            )
        found = read_tracks(tracks)
        ids = [str(name) for name in found.ids]
        stage = Stage(ScoreTracks, (found, gamma, frame_score), cpus, 0, ("numpy",))
        size, model = (
            max(1, min(8, len(ids) // 8)),
            Record("ensemble of trackers", digest=file_digest(tracks)),
        )
        about: dict[str, Any] = {}
    elif sequences is not None and tracker is not None:
        ids, stage, model, about = _tracked(sequences, tracker, free, gamma, frame_score, cpus)
        size = 1
    else:
        raise InvalidInput("either --tracks, or --sequences and --tracker must be given")
    return Task.of(
        "otb",
        ids,
        [stage],
        size=size,
        names=np.array(ids),
        unit="sequence",
        model=model,
        score=f"{frame_score} score exceeded in at most a share {gamma:g} of the frames",
        tune=0,
        calibrate=calibrate,
        seed=seed,
        gamma=gamma,
        frame_score=score,
        power=power,
        cpus=cpus,
        **about,
    )


def _tracked(
    folder: Path, tracker: Path, free: bool, gamma: float, score: Any, cpus: int
) -> tuple[list[str], Stage, Record, dict[str, Any]]:
    """Ids, stage, model and configuration of sequences that are read and tracked in the workers."""
    from pac_vision import Tracker, TrackSequences, find_sequences
    from pac_vision.scoring import packages
    from pac_vision.track_scoring import first_replaced_sequence

    model = Tracker.load(tracker)
    seen = set(model.trained_on)
    units = {one.name: one for one in find_sequences(folder) if one.name not in seen}
    if not units:
        raise InvalidInput(f"{folder} must have sequences that {tracker} was not trained on, got none")
    where = str(real_path(folder))
    args, needs = (where, units, model, gamma, score, free), packages(model.settings.backbone)
    stage = Stage(TrackSequences, args, cpus, None, needs, exempt=("folder",))
    boxes = [f"{name}={hashlib.sha256(one.truth.tobytes()).hexdigest()}" for name, one in units.items()]
    about = {"free": free, "boxes": ids_digest(boxes), "trained_on": sorted(seen)}
    about |= {"replaced": partial(first_replaced_sequence, where, units)}
    return list(units), stage, Record(str(model), digest=model.digest), about


def box_sizes(task: Task, folder: RunFolder, threshold: float) -> NDArray[np.float64] | None:
    """`[n]` the mean half-diagonal, in pixels, of the boxes of each test sequence; None if not known."""
    parts = [spreads for _, _, spreads in task.results(folder).over("test", _Spreads())]
    if not parts or parts[0] is None:
        return None
    return threshold * np.concatenate(parts)


class _Spreads(View):
    """Reads the spreads of sequences; see `pac_vision.ScoreTracks`."""

    def __call__(self, arrays: Any) -> Any:
        return arrays.get("spreads")
