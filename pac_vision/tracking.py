"""Videos: sequences in OTB's layout, tracks stored or of your tracker, scores of boxes and of videos."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pac_core import GaussianForecast, InvalidInput, PACError
from pac_core.arrays import check_array, check_number, check_numbers, check_returned
from pac_core.datasets import read_arrays
from pac_core.errors import UnreadableFile
from pac_core.sets import Boxes, ConfidenceSets, threshold_value, widen
from pac_core.splits import unit_names
from pac_vision.images.decoding import read_image

Floats: TypeAlias = NDArray[np.float64]
TRUTH = re.compile(r"groundtruth_rect(?:\.(\d+))?\.txt")

ANNOTATED = {
    ("David", 770, 471): 299,
    ("Diving", 231, 215): 0,
    ("Football1", 81, 74): 0,
    ("Freeman3", 474, 460): 0,
    ("Freeman4", 297, 283): 0,
}
"""OTB's five sequences with more frames than boxes: (name, frames, boxes) -> frames before the first box."""


@dataclass(frozen=True, eq=False)
class Sequence:
    """A video; it is one unit, with all its targets.

    name: of its folder
    frames: F paths of its frames, below the folder of all sequences
    truth: `[targets, F, 4]` true boxes (xmin, ymin, xmax, ymax); NaN where the target is absent
    """

    name: str
    frames: tuple[str, ...]
    truth: Floats


def find_sequences(folder: str | os.PathLike[str]) -> tuple[Sequence, ...]:
    """Find the sequences of a folder, sorted by name.

    folder: one folder per sequence, with the frames ``img/*.jpg`` and the boxes ``groundtruth_rect.txt``, or
        ``groundtruth_rect.1.txt``, ``groundtruth_rect.2.txt`` for several targets; a line per frame
        holds x, y, width and height, separated by commas, tabs or blanks

    An empty file of one of several targets is left out with a warning: OTB's Human4 has one.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UnreadableFile(f"there is no folder {root}")
    names = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise UnreadableFile(f"{root} holds no folders of sequences")
    return tuple(_read_sequence(root, name) for name in names)


def read_boxes(path: str | os.PathLike[str]) -> Floats:
    """Read `[F, 4]` boxes (xmin, ymin, xmax, ymax) from a text with a line per frame; NaN where absent."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{path} cannot be read as boxes: {error}") from None
    if not lines:
        raise UnreadableFile(f"{path} holds no boxes")
    rows = [_box(f"{path} line {i}", line) for i, line in enumerate(lines, start=1)]
    return to_true_corners(np.array(rows))


def _box(where: str, line: str) -> list[float]:
    try:
        box = [float(text) for text in re.split(r"\s*,\s*|\s+", line.strip())]
    except ValueError:
        box = []
    if len(box) != 4 or any(map(math.isinf, box)):
        raise UnreadableFile(f"{where} must be x, y, width, height, got {line.strip()!r}")
    if box[2] < 0 or box[3] < 0:
        raise UnreadableFile(f"{where} must have a width and height of at least 0, got {line.strip()!r}")
    return box


def to_corners(boxes: NDArray[Any]) -> Floats:
    """Boxes `[..., 4]` (x, y, width, height) as (xmin, ymin, xmax, ymax), in float64.

    >>> to_corners(np.array([[2.0, 3.0, 10.0, 20.0]])).tolist()
    [[2.0, 3.0, 12.0, 23.0]]
    """
    wide = np.asarray(boxes, np.float64)
    return np.concatenate([wide[..., :2], wide[..., :2] + wide[..., 2:]], axis=-1)


def to_true_corners(boxes: NDArray[Any]) -> Floats:
    """`to_corners` of true boxes `[F, 4]`; NaN where a target is absent: a NaN, or no width or height."""
    absent = np.isnan(boxes).any(axis=1) | (boxes[:, 2:] == 0).any(axis=1)
    return np.where(absent[:, None], np.nan, to_corners(boxes))


def is_present(truth: Floats) -> NDArray[np.bool_]:
    """`[...]` whether a target is there, from its true boxes `[..., 4]`."""
    return np.asarray(~np.isnan(truth).any(axis=-1))


def _read_sequence(root: Path, name: str) -> Sequence:
    images = root / name / "img"
    frames = sorted(path.name for path in images.glob("*.jpg") if not path.name.startswith("."))
    if not frames:
        raise UnreadableFile(f"{images} holds no frames (*.jpg)")
    numbers = {path: match[1] for path in (root / name).iterdir() if (match := TRUTH.fullmatch(path.name))}
    if not numbers:
        raise UnreadableFile(f"{root / name} holds no true boxes (groundtruth_rect.txt)")
    if len(numbers) > 1 and None in numbers.values():
        rule = "must have groundtruth_rect.txt or numbered files of several targets"
        raise UnreadableFile(f"{root / name} {rule}, got both")
    files = sorted(numbers, key=lambda path: int(numbers[path] or 0))
    empty = [path for path in files if not path.read_bytes().strip()]
    if empty and len(empty) < len(files):
        listed = ", ".join(path.name for path in empty)
        warnings.warn(f"{root / name}: left out {listed}, which holds no boxes", stacklevel=4)
        files = [path for path in files if path not in empty]
    targets = [read_boxes(path) for path in files]
    start = ANNOTATED.get((name, len(frames), len(targets[0])))
    if start is not None:
        frames = frames[start : start + len(targets[0])]
    for file, boxes in zip(files, targets, strict=True):
        if len(boxes) != len(frames):
            got = f"{len(boxes):,} for {len(frames):,} frames"
            raise UnreadableFile(f"{file} must have a box per frame, got {got}")
    return Sequence(name, tuple(f"{name}/img/{frame}" for frame in frames), np.stack(targets))


@dataclass(frozen=True, eq=False)
class Video:
    """A video with a Gaussian for each box that counts: a row per target and frame in which it is present.

    name: of the sequence
    frames: `[R]` the frame of each row, from 0
    targets: `[R]` its target, from 0
    mean, var: `[R, 4]` the forecast box (xmin, ymin, xmax, ymax), and its variances
    truth: `[R, 4]` the true box
    """

    name: str
    frames: NDArray[np.int64]
    targets: NDArray[np.int64]
    mean: Floats
    var: Floats
    truth: Floats

    def __post_init__(self) -> None:
        if not len(self.frames):
            raise InvalidInput(f"the sequence {self.name} must have a frame to predict a target in, got none")
        for name in ("mean", "var", "truth"):
            array, shape = getattr(self, name), [len(self.frames), 4]
            if [*array.shape] != shape or not np.isfinite(array).all():
                raise InvalidInput(f"{name} of the sequence {self.name} must be finite numbers {shape}")
        if (self.var < 0).any():
            raise InvalidInput(f"var of the sequence {self.name} must be at least 0, got {self.var.min():g}")

    @property
    def forecast(self) -> GaussianForecast:
        """Of each row."""
        return GaussianForecast(self.mean, self.var)

    def per_frame(self, rows: Any) -> Floats:
        """`[F]` the largest of the rows' values `[R]` in each frame that has one, in the order of frames.

        A frame of several targets is missed if any of them is.

        >>> nothing = np.zeros((3, 4))
        >>> video = Video("Jogging", np.array([5, 6, 6]), np.array([0, 0, 1]), nothing, nothing + 1, nothing)
        >>> video.per_frame([0.5, 2.0, 3.0]).tolist()
        [0.5, 3.0]
        """
        places, of_row = np.unique(self.frames, return_inverse=True)
        worst = np.full(len(places), -np.inf)
        np.maximum.at(worst, of_row, np.asarray(rows, np.float64))
        return worst


def box_sides(boxes: Floats) -> Floats:
    """`[..., 4]` width, height, width, height of boxes (xmin, ymin, xmax, ymax), at least a pixel.

    >>> box_sides(np.array([10.0, 10.0, 30.0, 10.0])).tolist()
    [20.0, 1.0, 20.0, 1.0]
    """
    sides = np.maximum(boxes[..., 2:] - boxes[..., :2], 1.0)
    return np.concatenate([sides, sides], axis=-1)


@dataclass(frozen=True, eq=False)
class Tracks:
    """Tracks of S targets by M members, their frames one after the other.

    names: `[S]` of the targets; ``Jogging.1`` and ``Jogging.2`` are two targets of the sequence ``Jogging``
    lengths: `[S]` frames of each, the sum of which is F
    truth: `[F, 4]` true boxes (xmin, ymin, xmax, ymax); NaN where the target is absent
    members: `[F, M, 4]` predicted boxes

    The targets of a sequence start at the same frame. A track starts from the true box of the first frame in
    which its target is present: that box was given, so it is no prediction and does not count.
    """

    names: NDArray[np.str_]
    lengths: NDArray[np.int64]
    truth: Floats
    members: Floats

    def __post_init__(self) -> None:
        names, lengths = unit_names("names", self.names), check_array("lengths", self.lengths, "[S]")
        truth, members = _boxes("truth", self.truth, "[F, 4]"), _boxes("members", self.members, "[F, M, 4]")
        if len(np.unique(names)) != len(names):
            raise InvalidInput(f"names must be unique, got {len(names) - len(np.unique(names))} repeats")
        if lengths.dtype.kind not in "iu" or len(lengths) != len(names) or lengths.min() < 1:
            raise InvalidInput(f"lengths must be whole numbers from 1, one per name, got {self.lengths!r}")
        if truth.shape != (lengths.sum(), 4):
            raise InvalidInput(f"truth must have shape [{lengths.sum()}, 4], got {truth.shape}")
        if len(members) != len(truth):
            raise InvalidInput(f"members must have shape [{len(truth)}, M, 4], got {members.shape}")
        lost_of = {"truth": np.isinf(truth), "members": ~np.isfinite(members)}
        for (name, lost), array in zip(lost_of.items(), (truth, members), strict=True):
            for row in np.flatnonzero(lost.reshape(len(lost), -1).any(axis=1))[:1]:
                got = array[row][lost[row]][0]
                raise InvalidInput(f"{name} must be finite numbers, got {got} in row {row}")
        for field, value in (("names", names), ("lengths", lengths), ("truth", truth), ("members", members)):
            object.__setattr__(self, field, value)

    @cached_property
    def targets(self) -> dict[str, list[slice]]:
        """The rows of each target of each sequence, by the name of the sequence, sorted."""
        ends = np.cumsum(self.lengths).tolist()
        found: dict[str, list[slice]] = {}
        for name, end, length in sorted(zip(self.names.tolist(), ends, self.lengths.tolist(), strict=True)):
            found.setdefault(re.sub(r"\.\d+$", "", name), []).append(slice(end - length, end))
        return dict(sorted(found.items()))

    @property
    def ids(self) -> NDArray[np.str_]:
        """`[n]` the sequences, which are the units."""
        return np.array(list(self.targets))

    def video(self, name: str) -> Video:
        """The forecasts of a sequence: mean and variance of the members where a target is present again."""
        return _as_video(
            name,
            [
                (self.truth[rows], self.members[rows].mean(axis=1), self.members[rows].var(axis=1))
                for rows in self.targets[name]
            ],
        )

    @property
    def videos(self) -> dict[str, Video]:
        """The forecasts of every sequence, by its name."""
        return {name: self.video(name) for name in self.targets}


def read_tracks(path: str | os.PathLike[str]) -> Tracks:
    """Read the tracks in an npz file, never unpickled.

    path: arrays `sequence` `[S]` names, `length` `[S]`, and for all their frames one after the other `truth`
        `[F, 4]` and `members` `[F, M, 4]`, boxes (x, y, width, height)
    """
    arrays = read_arrays(path)
    wanted = ("sequence", "length", "truth", "members")
    if missing := [name for name in wanted if name not in arrays]:
        raise UnreadableFile(f"{path} must hold {', '.join(wanted)}, got no {', '.join(missing)}")
    try:
        truth = _boxes("truth", arrays["truth"], "[F, 4]")
        members = _boxes("members", arrays["members"], "[F, M, 4]")
        for row in np.flatnonzero((truth[:, 2:] < 0).any(axis=1))[:1]:
            raise InvalidInput(f"truth must have widths and heights of at least 0, got others in row {row}")
        return Tracks(arrays["sequence"], arrays["length"], to_true_corners(truth), to_corners(members))
    except PACError as error:
        raise UnreadableFile(f"{path}: {error}") from None


Tracker: TypeAlias = Callable[[Iterator[Image.Image], Floats], tuple[Any, Any]]


def track(tracker: Tracker, folder: str | os.PathLike[str], sequence: Sequence) -> Video:
    """Forecast the boxes of a sequence by a tracker of yours, which runs from the first true box of a target.

    tracker: called for each target with F images, one after the other, and with the box `[4]` (xmin, ymin,
        xmax, ymax) in the first of them; it returns means and variances `[F, 4]` of the box in each, of which
        the first do not count
    folder: of all sequences; a frame that cannot be read is refused with its path
    """
    found = []
    for truth in sequence.truth:
        forecast = np.zeros((2, len(truth), 4))
        for start in np.flatnonzero(is_present(truth))[:1].tolist():
            images = (read_image(Path(folder) / name) for name in sequence.frames[start:])
            said, shape = tracker(images, truth[start].copy()), (len(truth) - start, 4)
            if not isinstance(said, tuple | list | np.ndarray) or len(said) != 2:
                raise InvalidInput(f"a tracker must return means and variances, got {type(said).__name__}")
            for place, name in enumerate(("means", "variances")):
                about = f"{name} of the tracker in the sequence {sequence.name}"
                forecast[place, start:] = check_returned(about, said[place], shape, truth)
        found.append((truth, *forecast))
    return _as_video(sequence.name, found)


def _as_video(name: str, targets: Iterable[tuple[Floats, Floats, Floats]]) -> Video:
    """Of truth, means and variances of each target, where it is present again: its first box was given."""
    parts = []
    for target, (truth, *forecast) in enumerate(targets):
        there = np.flatnonzero(is_present(truth))[1:]
        parts.append((there, np.full(len(there), target), *(one[there] for one in (*forecast, truth))))
    return Video(name, *(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _boxes(name: str, value: Any, shape: str) -> NDArray[Any]:
    array = check_array(name, value, shape)
    if array.dtype.kind not in "fiu" or array.shape[-1] != 4:
        raise InvalidInput(f"{name} must hold numbers {shape}, got {array.dtype} of shape {array.shape}")
    return array


def share_score(frame_scores: Any, gamma: float) -> float:
    """The (floor(gamma F) + 1)-th largest of the F frame scores.

    frame_scores: `[F]`, larger is worse; +inf is a frame that no set contains
    gamma: the share of frames that may be missed, in [0, 1); 0 allows none

    At most a share gamma of the frames lies above a threshold exactly if this score does not. A threshold
    calibrated on n sequences therefore promises: with probability at least 1 - epsilon, a new sequence
    drawn like them has at most a share gamma of its frames missed. Frames of one sequence are not
    independent, so a threshold calibrated on frames promises nothing.

    >>> share_score([0.1, 0.9, 0.4, 0.8, 0.2], gamma=0.4)
    0.4
    >>> share_score([0.1, 0.9, 0.4, 0.8, 0.2], gamma=0)
    0.9
    """
    scores = check_numbers("frame_scores", frame_scores, "[F]")
    return float(np.sort(scores)[len(scores) - 1 - allowed_misses(len(scores), gamma)])


def allowed_misses(frames: int, gamma: float) -> int:
    """floor(gamma F): the largest number of frames whose share of all `frames` is at most `gamma`.

    The share is compared as it would be computed, because the product may fall just short of a whole number:

    >>> 0.29 * 100, allowed_misses(100, 0.29)
    (28.999999999999996, 29)
    """
    gamma = check_share("gamma", gamma)
    count = math.floor(gamma * frames)
    count += (count + 1) / frames <= gamma
    return count - (count / frames > gamma)


def check_share(name: str, value: Any) -> float:
    """`value` as a float in [0, 1), or a refusal that names it."""
    number = float(value) if isinstance(value, Real) else math.nan
    if not 0 <= number < 1:
        raise InvalidInput(f"{name} must be a share of frames in [0, 1), got {value!r}")
    return number


@dataclass(frozen=True)
class BoxScore:
    """The score of a true box, the largest error of its four sides in deviations; a set holds the boxes that
    score at most T.

    floor: the least variance, in pixels squared; members that agree by chance are not certain
    power: p, from 0 to 1: a deviation is sigma^p times side^(1 - p), the side that of the forecast
        box; 1 trusts the forecast's spread, 0 ignores it

    >>> forecast = GaussianForecast(np.array([[0.0, 0, 10, 10]]), np.full((1, 4), 4.0))
    >>> truth = np.array([[1.0, -3, 10, 12]])
    >>> BoxScore().scores(forecast, truth).tolist(), BoxScore(power=0).scores(forecast, truth).tolist()
    ([1.5], [0.3])
    >>> lower, upper = BoxScore().sets(forecast, 1.5).box()
    >>> lower.round(6).tolist(), upper.round(6).tolist()
    ([[-3.0, -3.0, 7.0, 7.0]], [[3.0, 3.0, 13.0, 13.0]])
    """

    floor: float = 1.0
    power: float = 1.0

    def __post_init__(self) -> None:
        for name in ("floor", "power"):
            object.__setattr__(self, name, check_number(name, getattr(self, name)))
        if not 0 <= self.power <= 1:
            raise InvalidInput(f"power must lie in [0, 1], got {self.power!r}")
        if not 0 < self.floor < np.inf:
            raise InvalidInput(f"floor must be a variance above 0, got {self.floor!r}")

    def __str__(self) -> str:
        power = f", power {self.power:g}" if self.power != 1 else ""
        return f"max, variance at least {self.floor:g}{power}"

    def prepared(self, forecast: GaussianForecast) -> GaussianForecast:
        """The forecast with the variances that the score uses."""
        var = np.maximum(forecast.var, self.floor)
        if self.power != 1:
            var = var**self.power * box_sides(forecast.mean) ** (2 - 2 * self.power)
        return replace(forecast, var=var)

    def scores(self, forecast: GaussianForecast, truth: Any) -> Floats:
        """`[R]` the score of each true box `[R, 4]`."""
        ready = self.prepared(forecast)
        return _largest(ready, ready.check(truth))

    def sets(self, forecast: GaussianForecast, threshold: Any) -> ConfidenceSets:
        """Of each row, the boxes that score at most T."""
        ready, sound = self.prepared(forecast).for_sets()
        limit = widen(threshold_value(threshold))
        reach = limit * np.sqrt(ready.var)
        region = Boxes(ready.mean, ready.mean - reach, ready.mean + reach)
        return ConfidenceSets(region, partial(_largest, ready), limit, sound, tuple(ready.mean.shape))

    def frame_scores(self, video: Video) -> Floats:
        """`[F]` the score of each frame: that of its worst target."""
        return video.per_frame(self.scores(video.forecast, video.truth))

    def video_score(self, video: Video, gamma: float) -> float:
        """The score of a sequence: at most a share gamma of its frames scores more."""
        return share_score(self.frame_scores(video), gamma)

    def spread(self, video: Video) -> float:
        """The mean half-diagonal, in pixels, of a video's boxes at T = 1; they grow with T."""
        return float(np.sqrt(self.prepared(video.forecast).var.sum(axis=1)).mean())


def _largest(forecast: GaussianForecast, truth: Any) -> Floats:
    """`[R]` the largest error of the four sides, in deviations."""
    scores: Floats = (abs(truth - forecast.mean) / np.sqrt(forecast.var)).max(axis=1)
    return scores
