"""The tasks that ship: rollouts of a robot, images of a folder, tracks of videos."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cluster.driver import Task
from cluster.folders import RunFolder
from cluster.jobs import Stage
from cluster.results import View
from pac_core import InvalidInput, Record, ids_digest
from pac_core.files import real_path
from pac_core.options import say
from pac_core.tables import file_digest

IMAGES = 64
"""Images of a shard."""


def rl_task(
    *,
    env: str,
    policy: Path,
    policy_std: float | None = None,
    vecnormalize: str | None = None,
    policy_sees: str | None = None,
    ensemble: Path | Callable[[], Path],
    trained_on: Sequence[str] = (),
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
    trained_on: see `_with_training`; a unit that the ensemble was trained on is refused
    """
    from pac_rl import PROPAGATIONS, Design, Ensemble, load_policy, make_environment
    from pac_rl.designs import TRAINING_SEEDS, checked
    from pac_rl.policy_files import NOT_NORMALISED
    from pac_rl.returns import returns_in_words
    from pac_rl.scoring import NEEDS, UNITS, ForecastRollouts, SimulateRollouts

    sizes: dict[str, Any] = {"tune": tune, "calibrate": calibrate, "test": test, "seed": seed}
    checked(Design(env=env, horizon=horizon, burn_in=burn_in, epsilon=0.5, delta=0.5, **sizes))
    controller = load_policy(policy, std=policy_std, vecnormalize=vecnormalize, sees=policy_sees)
    if propagation not in PROPAGATIONS:
        raise InvalidInput(f"--propagation must be one of {', '.join(PROPAGATIONS)}, got {propagation!r}")
    say("policy", returns_in_words(make_environment(env), controller))
    file = ensemble() if callable(ensemble) else ensemble
    model = _with_training(Ensemble.load(file), file, trained_on)
    digests: dict[str, Any] = {"policy": file_digest(policy), "ensemble": file_digest(file)}
    # Units are named by what acts: what the file alone says, and what is not applied, makes no other units.
    alone = load_policy(policy, std=policy_std, vecnormalize=vecnormalize)
    statistics = None if vecnormalize == NOT_NORMALISED else vecnormalize
    changed = {
        "vecnormalize": None if statistics is None else file_digest(statistics),
        "policy_sees": None if controller.sees == alone.sees else controller.sees,
    }
    digests |= {name: value for name, value in changed.items() if value is not None}
    acting = hashlib.sha256("/".join(map(str, changed.values())).encode()).hexdigest()
    known_by = digests["policy"][:6] + acting if any(changed.values()) else digests["policy"]
    first = 2 * TRAINING_SEEDS * seed
    seeds = range(first, first + tune + calibrate + test)
    if model.trained_on is not None:
        model.refuse_seen(seeds)
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
        names=[f"{env}/{known_by[:12]}/{unit}" for unit in seeds],
        unit="rollout",
        model=Record(str(model), digest=digests["ensemble"]),
        train=model.train_record,
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


def _with_training(model: Any, file: Path, stated: Sequence[str]) -> Any:
    """The ensemble with the rollouts it was trained on: what its file says, or else what is stated.

    stated: seeds, as "7" or "1000..1999", or the one word "unknown"
    """
    if model.trained_on is not None:
        if stated:
            raise InvalidInput(f"--trained-on must not be given: {file} says what it was trained on")
        return model
    if not stated:
        raise InvalidInput(
            f"{file} does not say which rollouts the ensemble was trained on: give their seeds with "
            "--trained-on FIRST..LAST, or --trained-on unknown for a certificate that says 'not named'"
        )
    if [*stated] == ["unknown"]:
        return model
    ends = [text.split("..") for text in stated]
    if not all(len(pair) <= 2 and all(end.isdecimal() for end in pair) for pair in ends):
        raise InvalidInput(f"--trained-on must be a seed, FIRST..LAST or unknown, got {', '.join(stated)}")
    from pac_rl.ensembles import MOST_ROLLOUTS

    parts = [range(int(pair[0]), int(pair[-1]) + 1) for pair in ends]
    if not all(parts) or max(part[-1] for part in parts) >= 2**63 or sum(map(len, parts)) > MOST_ROLLOUTS:
        raise InvalidInput(
            f"--trained-on must be 1 to {MOST_ROLLOUTS:,} seeds below 2**63, the first one first, "
            f"got {', '.join(stated)}"
        )
    return replace(model, trained_on=np.concatenate([np.array(part, dtype=np.int64) for part in parts]))


def trained(folder: RunFolder, **design: Any) -> Path:
    """The file of an ensemble for this robot and policy, trained on this machine, kept in the run folder."""
    from pac_rl import Design, Study

    if not folder.local:
        raise InvalidInput("--ensemble must be given where the run folder is a URL: train it first")
    home = Path(folder.root) / "model"
    study = Study(Design(**design), home)
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
