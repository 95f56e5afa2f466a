"""The paper's tracking experiment, whose unit is a pair of frames: a reproduction, never a certificate.

Frames of one video depend on each other, so a threshold calibrated on them promises nothing about a new
video; see `compare_units`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import (
    ABLATIONS,
    Evaluation,
    GaussianForecast,
    InvalidInput,
    NotEnoughData,
    PACLevel,
    Predictor,
    evaluate,
)
from pac_vision.videos import Video

PAPER_PAIRS = (20_882, 22_761, 22_761)
"""Pairs of frames to tune, calibrate and test in the paper, of 99 videos."""
ROWS = ("D", "C+D", "C")
"""The paper's ablations: C calibrated, D direct bound (without it, the VC bound)."""
WHY = (
    "a reproduction of the paper, whose unit is a pair of frames: frames of one video depend on each other, "
    "so no certificate is written"
)


@dataclass(frozen=True, eq=False)
class PairParts:
    """Forecast and truth of pairs of frames, three disjoint parts.

    names: which videos each part is of
    """

    tune: tuple[GaussianForecast, NDArray[np.float64]]
    calibrate: tuple[GaussianForecast, NDArray[np.float64]]
    test: tuple[GaussianForecast, NDArray[np.float64]]
    names: tuple[tuple[str, ...], ...]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Pairs of each part."""
        return len(self.tune[1]), len(self.calibrate[1]), len(self.test[1])


def paper_parts(counts: Mapping[str, int], *, seed: int = 0) -> tuple[tuple[str, ...], ...]:
    """Three groups of videos, in the paper's proportions of pairs; the order is drawn by the seed.

    counts: pairs of each video; with the paper's benchmark the parts come as near to `PAPER_PAIRS` as whole
        videos can

    >>> [len(group) for group in paper_parts({f"video{i}": 100 for i in range(99)})]
    [31, 34, 34]
    """
    if len(counts) < 3:
        raise InvalidInput(f"videos must be 3 or more to tune, calibrate and test, got {len(counts)}")
    key = seed.to_bytes(8, "big")
    order = sorted(counts, key=lambda name: hashlib.blake2b(name.encode(), key=key).digest())
    ends = np.cumsum([counts[name] for name in order])
    shares = np.cumsum(PAPER_PAIRS) / sum(PAPER_PAIRS) * ends[-1]
    first, second = (int(abs(ends - share).argmin()) + 1 for share in shares[:2])
    first = min(first, len(order) - 2)
    second = min(max(second, first + 1), len(order) - 1)
    return tuple(order[:first]), tuple(order[first:second]), tuple(order[second:])


def split_by_video(
    groups: Sequence[Sequence[Video]], *, seed: int = 0, pairs: int | None = None, floor: float = 1.0
) -> PairParts:
    """Whole videos to each part, as in the paper; see `paper_parts`.

    pairs: so many of the calibrate part's, drawn at random; all by default
    floor: the least variance, in pixels squared
    """
    tune, calibrate, test = (_rows(group, floor) for group in groups)
    names = tuple(tuple(v.name for v in group) for group in groups)
    return PairParts(tune, _some(calibrate, pairs, seed), test, names)


def split_across(known: Video, new: Video, *, seed: int = 0, floor: float = 1.0) -> PairParts:
    """A third of one video's pairs to tune, the rest to calibrate; all of another's to test."""
    forecast, truth = _rows([known], floor)
    order = np.random.default_rng(seed).permutation(len(truth))
    tune, calibrate = order[: len(order) // 3], order[len(order) // 3 :]
    first, second = ((forecast.take(rows), truth[rows]) for rows in (tune, calibrate))
    return PairParts(first, second, _rows([new], floor), ((known.name,), (known.name,), (new.name,)))


def split_by_pair(
    videos: Sequence[Video],
    *,
    seed: int = 0,
    shares: tuple[int, int, int] = PAPER_PAIRS,
    pairs: int | None = None,
    floor: float = 1.0,
) -> PairParts:
    """Pairs of all videos at random to each part: what is found holds for pairs of these very videos only."""
    forecast, truth = _rows(videos, floor)
    order = np.random.default_rng(seed).permutation(len(truth))
    first, second = (np.cumsum(shares)[:2] / sum(shares) * len(order)).astype(int)
    rows = (order[:first], order[first:second], order[second:])
    tune, calibrate, test = ((forecast.take(part), truth[part]) for part in rows)
    names = tuple(v.name for v in videos)
    return PairParts(tune, _some(calibrate, pairs, seed), test, (names, names, names))


def fit_pairs(parts: PairParts, level: PACLevel, ablation: str = "C+D") -> Predictor:
    """The paper's predictor of pairs; `NotEnoughData` where its bound cannot prove the level."""
    return ABLATIONS[ablation](*parts.tune, *parts.calibrate, level)


def measure_pairs(parts: PairParts, level: PACLevel, ablation: str = "C+D") -> tuple[Evaluation, Any]:
    """Error and sizes on the test part, and the sets."""
    sets = fit_pairs(parts, level, ablation).sets(parts.test[0])
    return evaluate(sets, parts.test[1], level), sets


def ablation_table(parts: PairParts, level: PACLevel) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row per ablation, and the sizes `[n]` of those that could be made."""
    rows, sizes = [], {}
    for name in ROWS:
        row: dict[str, Any] = {"ablation": name, "n": parts.sizes[1]}
        try:
            found, sets = measure_pairs(parts, level, name)
        except NotEnoughData as refusal:
            rows.append(row | _cells(None) | {"why": f"needs {refusal.needed:,} pairs"})
            continue
        sizes[name] = np.asarray(sets.size())
        rows.append(row | _cells(found) | {"why": ""})
    return rows, sizes


def _cells(found: Evaluation | None) -> dict[str, Any]:
    heads = ("error", "98% interval", "refuted", "median size", "mean size")
    if found is None:
        return dict.fromkeys(heads, "-")
    row = found.all
    interval, refuted = "{:.4f}..{:.4f}".format(*row.interval), "yes" if found.refuted else "no"
    return dict(zip(heads, (row.error, interval, refuted, row.median, row.mean), strict=True))


def _rows(videos: Sequence[Video], floor: float) -> tuple[GaussianForecast, NDArray[np.float64]]:
    mean, var, truth = (
        np.concatenate([getattr(v, name) for v in videos]) for name in ("mean", "var", "truth")
    )
    return GaussianForecast(mean, np.maximum(var, floor)), truth


def _some(
    part: tuple[GaussianForecast, NDArray[np.float64]], count: int | None, seed: int
) -> tuple[GaussianForecast, NDArray[np.float64]]:
    forecast, truth = part
    if count is None or count >= len(truth):
        return part
    rows = np.sort(np.random.default_rng(seed).permutation(len(truth))[:count])
    return forecast.take(rows), truth[rows]
