"""The paper's tracking experiment, whose unit is a pair of frames: a reproduction, never a certificate.

Frames of one video depend on each other, so a threshold calibrated on them promises nothing about a new
video; see `otb.units`.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from common import draw_box, interval_text

from pac_core import GaussianForecast, InvalidInput, NotEnoughData, PACLevel, evaluate
from pac_core.evaluation import ABLATIONS
from pac_core.plots import INK, canvas

PAPER_PAIRS = (20_882, 22_761, 22_761)
"""Pairs of frames to tune, calibrate and test in the paper, of 99 videos."""
FEW = PACLevel(0.1, 0.05)
"""Of a pair, where there are few videos."""
EPSILONS, DELTAS = (0.01, 0.02, 0.03, 0.04, 0.05), (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
NOT = "C calibrated, D direct bound; a reproduction, no certificate"
WHY = (
    "a reproduction of the paper, whose unit is a pair of frames: frames of one video depend on each other, "
    "so no certificate is written"
)


@dataclass(frozen=True, eq=False)
class PairParts:
    """Forecast and truth of pairs of frames, three disjoint parts."""

    tune: tuple[GaussianForecast, Any]
    calibrate: tuple[GaussianForecast, Any]
    test: tuple[GaussianForecast, Any]

    @property
    def sizes(self):
        """Pairs of each part."""
        return len(self.tune[1]), len(self.calibrate[1]), len(self.test[1])

    def draw(self, pairs, seed):
        """The same with at most so many pairs to calibrate on, drawn at random."""
        forecast, truth = self.calibrate
        if pairs >= len(truth):
            return self
        rows = np.sort(np.random.default_rng(seed).permutation(len(truth))[:pairs])
        return replace(self, calibrate=(forecast.take(rows), truth[rows]))


def gather(videos, rows=slice(None)):
    """Forecast and truth of some rows of all videos; the least variance is a pixel squared."""
    mean, var, truth = (np.concatenate([getattr(v, key) for v in videos]) for key in ("mean", "var", "truth"))
    return GaussianForecast(mean[rows], np.maximum(var, 1.0)[rows]), truth[rows]


def paper_parts(counts, *, seed=0):
    """Three groups of videos, in the paper's proportions of pairs; the order is drawn by the seed.

    counts: pairs of each video; with the paper's benchmark the parts come as near to `PAPER_PAIRS` as whole
        videos can
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


def split_by_video(groups):
    """Whole videos to each part, as in the paper; see `paper_parts`."""
    return PairParts(*map(gather, groups))


def split_across(known, new, *, seed=0):
    """A third of one video's pairs to tune, the rest to calibrate; all of another's to test."""
    order = np.random.default_rng(seed).permutation(len(known.truth))
    third = len(order) // 3
    return PairParts(gather([known], order[:third]), gather([known], order[third:]), gather([new]))


def split_by_pair(videos, *, seed=0, shares=PAPER_PAIRS):
    """Pairs of all videos at random to each part: what is found holds for pairs of these very videos only."""
    order = np.random.default_rng(seed).permutation(sum(len(video.truth) for video in videos))
    cuts = (np.cumsum(shares)[:2] / sum(shares) * len(order)).astype(int)
    return PairParts(*(gather(videos, rows) for rows in np.split(order, cuts)))


def fit_pairs(parts, level, ablation="C+D"):
    """The paper's predictor of pairs; `NotEnoughData` where its bound cannot prove the level."""
    return ABLATIONS[ablation](*parts.tune, *parts.calibrate, level)


def ablation_table(parts, level):
    """A row per ablation (C calibrated, D direct bound), and the sizes `[n]` of those that could be made."""
    rows, sizes = [], {}
    heads = ("error", "98% interval", "refuted", "median size", "mean size")
    for name in ("D", "C+D", "C"):
        row = {"ablation": name, "n": parts.sizes[1]}
        try:
            sets = fit_pairs(parts, level, name).sets(parts.test[0])
        except NotEnoughData as refusal:
            rows.append(row | dict.fromkeys(heads, "-") | {"why": f"needs {refusal.needed:,} pairs"})
            continue
        found = evaluate(sets, parts.test[1], level)
        one, refuted = found.all, "yes" if found.refuted else "no"
        cells = (one.error, interval_text(one.interval), refuted, one.median, one.mean)
        rows.append(row | dict(zip(heads, cells, strict=True)) | {"why": ""})
        sizes[name] = np.asarray(sets.size())
    return rows, sizes


def size_boxes(sizes, title):
    """A box per name, of the sets that are not empty."""
    figure, axes = canvas(7.0, 4.4)
    for place, (size, ink) in enumerate(zip(sizes.values(), INK, strict=False)):
        draw_box(axes, size[size > 0], place, ink)
    axes.set_xticks(range(len(sizes)), list(sizes))
    return _finish(figure, axes, title)


def draw_levels(folder, parts, usual, title, prefix):
    """Median size of C+D against epsilon, and against delta, with the range of nine in ten sets."""
    for name, values in (("epsilon", EPSILONS), ("delta", DELTAS)):
        values = [value for value in values if value >= getattr(usual, name)]
        if not values:
            continue
        predictors = [fit_pairs(parts, replace(usual, **{name: value})) for value in values]
        sizes = [np.asarray(predictor.sets(parts.test[0]).size()) for predictor in predictors]
        figure, axes = canvas(6.4, 4.2)
        low, middle, high = np.quantile(sizes, (0.05, 0.5, 0.95), axis=1)
        axes.fill_between(values, low, high, color=INK[0], alpha=0.15, label="nine in ten sets")
        axes.plot(values, middle, color=INK[0], marker="o", label="median")
        axes.set_xscale("log" if name == "delta" else "linear")
        if name == "epsilon":
            axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_xlabel(name)
        axes.legend(frameon=False)
        fixed = f"delta {usual.delta:g}" if name == "epsilon" else f"epsilon {usual.epsilon:g}"
        heading = f"{title}, C+D, n = {parts.sizes[1]:,}, {fixed}\n(a reproduction, no certificate)"
        folder.figure(prefix + name, _finish(figure, axes, heading))


def say_level(level):
    return f"epsilon {level.epsilon:g}, delta {level.delta:g}"


def _finish(figure, axes, title):
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter("{x:,g}" if high < 10 * low else "")  # one decade has one label of its own
    axes.set_ylabel("half-diagonal of the set's box (4 dimensions), pixels", fontsize=8.5)
    axes.set_title(title, loc="left", fontsize=10)
    return figure
