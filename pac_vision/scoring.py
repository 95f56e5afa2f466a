"""Scorers: made once per worker, called once per shard of images or of sequences.

What a unit gets depends on the unit alone, to the last bit, whatever shard and worker it falls to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, nll
from pac_vision.image_logits import ImageLogits
from pac_vision.images import Images
from pac_vision.models import load_model
from pac_vision.shares import share, share_score
from pac_vision.tracks import Tracks

SCORES = ("nll", "max")


class Shard(Protocol):
    """What a scorer asks of a shard."""

    @property
    def ids(self) -> Sequence[str]:
        """The units to score."""


class ClassifyImages:
    """Logits of images: `ids`, `labels`, `failed` (broken) `[n]` and `logits` `[n, K]` for a shard of n.

    images: with their labels
    model_name: for `load_model`
    batch, broken: see `ImageLogits`; a broken image that is no error has logits NaN

    Logits are float32, as the model gave them: float16 moves a logit of 10 by as much as 0.004, and sets
    made from fresh float32 logits would not be those that were calibrated.
    """

    def __init__(
        self, images: Images, model_name: str, batch: int = 1, broken: str = "error", *, device: str = "cpu"
    ) -> None:
        self.model = load_model(model_name, device)
        self.labels = images.by_id(self.model.classes)
        self.logits = ImageLogits(images.source, self.model, batch, broken)

    def __call__(self, shard: Shard, given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        ids = known(shard.ids, self.labels)
        logits, failed = self.logits(ids)
        labels = np.array([self.labels[i] for i in ids], np.int64)
        return {"ids": np.array(ids), "logits": logits, "labels": labels, "failed": failed}


class ScoreTracks:
    """Scores of video sequences: `ids` `[n]`, `scores` `[n]`, `frames` `[n]` for a shard of n.

    tracks: what the members predicted, and the truth
    gamma: the share of frames that may be missed, in [0, 1)
    score: of a frame: ``nll`` of the members' Gaussian, or ``max``, the largest error in standard deviations
    floor: the least variance, in pixels squared; members that agree by chance are not certain

    The unit is the sequence. Its score is `share_score` of its frames, so with a threshold calibrated on it a
    new sequence drawn like these has, with probability 1 - epsilon, at most a share gamma of its frames
    missed. A frame of several targets is missed if any of them is; frames without a target do not count.

    >>> from types import SimpleNamespace
    >>> truth = np.array([[0.0, 0, 10, 10], [1, 1, 11, 11], [5, 5, 15, 15], [3, 3, 13, 13]])
    >>> members = np.repeat([[[0.0, 0, 10, 10]]], 4, axis=0)
    >>> tracks = Tracks(np.array(["Deer"]), np.array([4]), truth, members)
    >>> found = ScoreTracks(tracks, 0.25, "max")(SimpleNamespace(ids=["Deer"]), {})
    >>> found["scores"].tolist(), found["frames"].tolist()
    ([3.0], [4])
    """

    def __init__(
        self, tracks: Tracks, gamma: float, score: str = "nll", floor: float = 1.0, *, device: str = "cpu"
    ) -> None:
        if score not in SCORES:
            raise InvalidInput(f"score must be one of {', '.join(SCORES)}, got {score!r}")
        if not 0 < floor < np.inf:
            raise InvalidInput(f"floor must be a variance above 0, got {floor!r}")
        self.tracks, self.gamma, self.score, self.floor = tracks, share("gamma", gamma), score, floor

    def __call__(self, shard: Shard, given: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        ids = known(shard.ids, self.tracks.targets)
        frames = [self.frame_scores(name) for name in ids]
        scores = [share_score(values, self.gamma) for values in frames]
        return {
            "ids": np.array(ids),
            "scores": np.array(scores),
            "frames": np.array([len(f) for f in frames]),
        }

    def frame_scores(self, name: str) -> NDArray[np.float64]:
        """`[F]` the scores of the frames of a sequence in which a target is present."""
        slices = self.tracks.targets[name]
        worst = np.full(max(rows.stop - rows.start for rows in slices), -np.inf)
        for rows in slices:
            truth, forecast = self.tracks.truth[rows], self.tracks.forecast(rows, self.floor)
            there = ~np.isnan(truth).any(axis=1)
            if there.any():
                forecast, truth, places = forecast.take(there), truth[there], np.flatnonzero(there)
                if self.score == "nll":
                    scores = nll(forecast, truth)
                else:
                    scores = (abs(truth - forecast.mean) / np.sqrt(forecast.var)).max(axis=1)
                worst[places] = np.maximum(worst[places], scores)
        if (worst == -np.inf).all():
            raise InvalidInput(f"the sequence {name} must have a frame with a target, got none")
        return worst[worst > -np.inf]


def known(ids: Sequence[str], units: Mapping[str, Any]) -> list[str]:
    """The ids of a shard, refused unless all are units of the scorer."""
    names = [str(name) for name in ids]
    if strange := [name for name in names if name not in units]:
        raise InvalidInput(f"ids must be among the {len(units):,} units of the scorer, got {strange[0]!r}")
    return names
