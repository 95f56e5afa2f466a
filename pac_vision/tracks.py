"""Stored tracks: what the members of an ensemble of trackers predicted, beside the truth."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, PACError, UnreadableFile
from pac_core.arrays import plain
from pac_core.splits import unit_names
from pac_core.tables import read_arrays
from pac_vision.sequences import corners, is_present, true_corners
from pac_vision.videos import Video


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
    truth: NDArray[np.float64]
    members: NDArray[np.float64]

    def __post_init__(self) -> None:
        names, lengths = unit_names("names", self.names), plain("lengths", self.lengths, "[S]")
        truth, members = _boxes("truth", self.truth, "[F, 4]"), _boxes("members", self.members, "[F, M, 4]")
        if len(np.unique(names)) != len(names):
            raise InvalidInput(f"names must be unique, got {len(names) - len(np.unique(names))} repeats")
        if lengths.dtype.kind not in "iu" or len(lengths) != len(names) or lengths.min() < 1:
            raise InvalidInput(f"lengths must be whole numbers from 1, one per name, got {self.lengths!r}")
        if truth.shape != (lengths.sum(), 4):
            raise InvalidInput(f"truth must have shape [{lengths.sum()}, 4], got {truth.shape}")
        if len(members) != len(truth):
            raise InvalidInput(f"members must have shape [{len(truth)}, M, 4], got {members.shape}")
        for name, array, lost in (
            ("truth", truth, np.isinf(truth)),
            ("members", members, ~np.isfinite(members)),
        ):
            for row in np.flatnonzero(lost.reshape(len(lost), -1).any(axis=1))[:1]:
                raise InvalidInput(
                    f"{name} must be finite numbers, got {array[row][lost[row]][0]} in row {row}"
                )
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
        parts = []
        for target, rows in enumerate(self.targets[name]):
            there = np.flatnonzero(is_present(self.truth[rows]))[1:]  # the first box was given
            members, truth = self.members[rows][there], self.truth[rows][there]
            targets = np.full(len(there), target)
            parts.append((there, targets, members.mean(axis=1), members.var(axis=1), truth))
        return Video(name, *(np.concatenate(columns) for columns in zip(*parts, strict=True)))

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
        return Tracks(arrays["sequence"], arrays["length"], true_corners(truth), corners(members))
    except PACError as error:
        raise UnreadableFile(f"{path}: {error}") from None


def _boxes(name: str, value: Any, shape: str) -> NDArray[Any]:
    array = plain(name, value, shape)
    if array.dtype.kind not in "fiu" or array.shape[-1] != 4:
        raise InvalidInput(f"{name} must hold numbers {shape}, got {array.dtype} of shape {array.shape}")
    return array
