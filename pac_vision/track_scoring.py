"""Scorers of video sequences: made once per worker, called once per shard.

The unit is the sequence. Its score is `share_score` of its frames, so with a threshold calibrated on it a
new sequence drawn like these has, with probability 1 - epsilon, at most a share gamma of its frames missed.
A frame of several targets is missed if any of them is; frames without a target do not count, nor does
the first frame, whose box is given.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_vision.box_scores import BoxScore
from pac_vision.decoding import read_bytes
from pac_vision.scoring import Shard, file_size, known
from pac_vision.sequences import Sequence as Frames
from pac_vision.shares import share, share_score
from pac_vision.trackers import Tracker
from pac_vision.tracking import track
from pac_vision.tracks import Tracks
from pac_vision.videos import Video


class _ScoreVideos:
    """Scores sequences by their names.

    A shard of n gets `ids` `[n]`, `scores` `[n]`, `frames` `[n]` that count, and with the score ``max`` the
    `spreads` `[n]` of the boxes: T times the spread is the mean half-diagonal of a sequence's boxes.
    """

    units: Mapping[str, Any]
    gamma: float
    score: BoxScore
    video: Callable[[str], Video]

    def __call__(self, shard: Shard, given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        ids = known(shard.ids, self.units)
        scores, frames, spreads = [], [], []
        for name in ids:
            video = self.video(name)
            of_frames = self.score.frame_scores(video)
            scores.append(share_score(of_frames, self.gamma))
            frames.append(len(of_frames))
            spreads.append(self.score.spread(video))
        found = {"ids": np.array(ids), "scores": np.array(scores), "frames": np.array(frames)}
        return found | ({"spreads": np.array(spreads)} if self.score.kind == "max" else {})


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
        self.units, self.video = tracks.targets, tracks.video
        self.gamma, self.score = share("gamma", gamma), score or BoxScore()


class TrackSequences(_ScoreVideos):
    """Reads and tracks sequences, and scores them.

    folder: of the sequences, which the worker must see
    sequences: by their names
    tracker: trained on others
    gamma, score: see `ScoreTracks`
    free: whether the tracker runs freely from the first box, see `track`

    A frame that cannot be read is an error with its path. `contents` `[n]` are the `frames_mark` of each
    sequence, for `first_replaced_sequence`.
    """

    def __init__(
        self,
        folder: str,
        sequences: Mapping[str, Frames],
        tracker: Tracker,
        gamma: float,
        score: BoxScore | None = None,
        free: bool = False,
        *,
        device: str = "cpu",
    ) -> None:
        self.units, self.folder, tracker = dict(sequences), folder, tracker.to(device)
        self.video = lambda name: track(tracker, folder, self.units[name], free=free)
        self.gamma, self.score = share("gamma", gamma), score or BoxScore()

    def __call__(self, shard: Shard, given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        found = super().__call__(shard, given)
        marks = [frames_mark(self.folder, self.units[name]) for name in found["ids"].tolist()]
        return found | {"contents": np.array(marks, np.int64)}


def frames_mark(folder: str, sequence: Frames) -> int:
    """A CRC-32 of the sizes of a sequence's frames, and of what the first of them holds."""
    paths = [Path(folder) / name for name in sequence.frames]
    sizes = ",".join(str(file_size(path)) for path in paths)
    return zlib.crc32(sizes.encode(), zlib.crc32(read_bytes(paths[0])))


def first_replaced_sequence(
    folder: str, sequences: Mapping[str, Frames], arrays: Mapping[str, NDArray[Any]]
) -> str | None:
    """Find the first sequence of a shard whose frames are no longer those that were scored; None if none is.

    arrays: of the shard, as `TrackSequences` gave them
    """
    stored = zip(arrays["ids"].tolist(), arrays["contents"].tolist(), strict=True)
    return next((name for name, mark in stored if frames_mark(folder, sequences[name]) != mark), None)
