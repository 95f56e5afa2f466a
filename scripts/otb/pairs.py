"""The paper's tracking experiment, whose unit is a pair of frames: a reproduction, never a certificate.

Frames of one video depend on each other, so a threshold calibrated on them promises nothing about a new
video; see `otb.stored.compare_units`.
"""

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from baselines import fit_ablation
from common import (
    ResultFolder,
    draw_bands,
    draw_boxes,
    interval_text,
    log_axis,
    new_panel,
    say_level,
    say_refuted,
)
from otb import regressor
from otb.overlays import Overlay, overlay_grid, write_gif
from otb.regressor import find_pairs, predict_no_motion, track_pairs

import pac_vision as vision
from pac_core import GaussianForecast, InvalidInput, NotEnoughData, PACLevel, evaluate
from pac_core.bounds import max_errors

PAPER_PAIRS = (20_882, 22_761, 22_761)
"""Pairs of frames to tune, calibrate and test in the paper, of 99 videos."""
FEW = PACLevel(0.1, 0.05)
"""Of a pair, where there are few videos."""
EPSILONS, DELTAS = (0.01, 0.02, 0.03, 0.04, 0.05), (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
SHOWN = 4  # videos to draw, however many there are
DIAGONAL = "half-diagonal of the set's box (4 dimensions), pixels"
WHY = "frames of one video depend on each other, so this reproduction of the paper writes no certificate"


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
    """Whole videos in three groups, as near to the paper's proportions of pairs as they can come."""
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
    return fit_ablation(ablation, parts.tune, parts.calibrate, level)


def ablation_table(parts, level):
    """A row per ablation (C calibrated, D direct bound), and the sizes `[n]` of those that could be made."""
    rows, sizes = [], {}
    for name in ("D", "C+D", "C"):
        row = {"ablation": name, "n": parts.sizes[1]}
        try:
            sets = fit_pairs(parts, level, name).sets(parts.test[0])
        except NotEnoughData as refusal:
            rows.append(row | {"why": f"needs {refusal.needed:,} pairs"})
            continue
        found = evaluate(sets, parts.test[1], level)
        row |= {"error": found.all.error, "98% interval": interval_text(found.all.interval)}
        row |= {"refuted": say_refuted(found), "median size": found.all.median, "mean size": found.all.mean}
        rows.append(row)
        sizes[name] = np.asarray(sets.size())
    return rows, sizes


def size_boxes(sizes, what, parts, level):
    """A box per name, of the sets that are not empty."""
    known = "C calibrated, D direct bound; a reproduction, no certificate"
    title = f"{what}, n = {parts.sizes[1]:,}, {say_level(level)}\n({known})"
    figure, axes = new_panel(title, DIAGONAL, (7.0, 4.4))
    draw_boxes(axes, {name: size[size > 0] for name, size in sizes.items()})
    log_axis(axes)
    return figure


def draw_levels(folder, parts, usual, title, prefix):
    """Median size of C+D against epsilon, and against delta, with the range of nine in ten sets."""
    for name, values, fixed in (("epsilon", EPSILONS, "delta"), ("delta", DELTAS, "epsilon")):
        levels = {v: replace(usual, **{name: v}) for v in values if v >= getattr(usual, name)}
        if levels:
            sizes = {v: fit_pairs(parts, one).sets(parts.test[0]).size() for v, one in levels.items()}
            where = f"n = {parts.sizes[1]:,}, {fixed} {getattr(usual, fixed):g}"
            figure, axes = new_panel(f"{title}, C+D, {where}\n(a reproduction, no certificate)", DIAGONAL)
            draw_bands(axes, {"median; band: nine in ten sets": sizes}, name)
            log_axis(axes)
            axes.set_xlabel(name)
            folder.figure(prefix + name, figure)


def study_frames(args, settings, device):
    """A regressor trained on some videos of a folder, tried on others; as in the paper if they are many."""
    if args.sequences is None:
        raise InvalidInput("a folder in OTB's layout must be given (--smoke-test makes its own)")
    sequences = vision.find_sequences(args.sequences)
    if len(sequences) == 1:
        raise InvalidInput("the folder must hold 2 videos or more, some to train on and others, got 1")
    backbone, folder = regressor.Backbone(settings.backbone, settings.size, device), ResultFolder(args.out)
    targets = sum(len(one.truth) for one in sequences)
    print(f"\n{len(sequences)} videos with frames of {targets} targets; the unit is a pair: {WHY}")

    def train(videos, name):
        """A tracker trained on some videos, saved under this name."""
        print(f"  training on {', '.join(one.name for one in videos)}")
        options = {"backbone": backbone, "device": device, "progress": print}
        tracker = regressor.train(args.sequences, videos, settings, **options)
        tracker.save(folder.folder / name)
        return tracker

    (whole_benchmark if targets >= args.full else few_videos)(args, folder, train, sequences)
    print(f"\neverything is in {args.out}")


def few_videos(args, folder, train, sequences):
    """Two regressors, each trained on one half of the videos and measured on the other."""
    try:
        max_errors(len(sequences), FEW)
    except NotEnoughData as refusal:
        print(f"  by video, a certificate is refused: {refusal}")
    print("  tested on the same videos, a result is about further pairs of these very videos")
    ranked = sorted(sequences, key=lambda one: -one.truth.size)
    halves = [*ranked[0::4], *ranked[3::4]], [*ranked[1::4], *ranked[2::4]]
    rows, errors, overlays, few = [], [], [], say_level(FEW)
    for number, (seen, held) in enumerate((halves, halves[::-1]), start=1):
        tracker = train(seen, f"tracker{number}.safetensors")
        videos = [track_pairs(tracker, args.sequences, one) for one in held]
        still = [predict_no_motion(one) for one in held]
        for kind, known, new, parts in list_cases({"regressor": videos, "box stays": still}, args.seed):
            found, sizes = ablation_table(parts, FEW)
            rows += [{"forecast": kind, "calibrated on": known, "tested on": new} | row for row in found]
            if kind == "regressor" and known == new and sizes:
                figure = size_boxes(sizes, f"Pairs of {known}", parts, FEW)
                folder.figure(f"frames_ablation{number}", figure)
                overlays += draw_sets(args, held, videos, parts, FEW)[: SHOWN // 2]
        for one, video, same in zip(held, videos, still, strict=True):
            free = vision.track(tracker, args.sequences, one)
            of = {"regressor": video, "box stays": same, "regressor, running freely": free}
            off = {kind: float(abs(v.truth - v.mean).mean()) for kind, v in of.items()}
            errors.append({"video": one.name, "pairs": len(video.frames)} | off)
    folder.table("frame_errors", errors, "Mean error of a side, pixels (from the true box before, or freely)")
    folder.table("frames", rows, f"Pairs of frames, {few} (reproduction, no certificate)")
    if overlays:
        words = f"{few} by pair: a reproduction, no certificate"
        write_overlays(folder, overlays, f"A regressor that was trained on other videos; {words}")


def list_cases(kinds, seed):
    """Forecast, what it is calibrated on, what it is tested on, and the parts."""
    found = []
    for kind, videos in kinds.items():
        both = " + ".join(video.name for video in videos) if len(videos) < SHOWN else f"{len(videos)} videos"
        found.append((kind, both, both, split_by_pair(videos, seed=seed, shares=(1, 2, 2))))
        ways = [(a, b) for a in videos[:SHOWN] for b in videos[:SHOWN] if a is not b]
        found += [(kind, a.name, b.name, split_across(a, b, seed=seed)) for a, b in ways]
    return found


def whole_benchmark(args, folder, train, sequences):
    """The paper's split; three quarters of its first part train, the rest fits the temperature."""
    by_name = {one.name: one for one in sequences}
    counts = {one.name: len(find_pairs([one])) for one in sequences}
    groups = paper_parts(counts, seed=args.seed)
    sizes = [sum(counts[name] for name in group) for group in groups]
    print(f"  pairs of the three parts: {sizes}; the paper's: {list(PAPER_PAIRS)}")
    cut = max(1, min(len(groups[0]) - 1, len(groups[0]) * 3 // 4))
    tracker = train([by_name[name] for name in groups[0][:cut]], "tracker.safetensors")
    forecast = [
        [track_pairs(tracker, args.sequences, by_name[name]) for name in group]
        for group in (groups[0][cut:], *groups[1:])
    ]
    parts, rows = PairParts(*map(gather, forecast)).draw(args.pairs, args.seed), []
    print(f"  pairs to tune, calibrate (of the second part, --pairs) and test: {list(parts.sizes)}")
    paper = PACLevel(args.epsilon, args.delta)
    for level in (paper, FEW):
        found, sizes = ablation_table(parts, level)
        rows += [{"epsilon": level.epsilon, "delta": level.delta} | row for row in found]
        if sizes:
            figure = size_boxes(sizes, "All videos by pair", parts, level)
            folder.figure(f"full_ablation_{level.epsilon:g}", figure)
    folder.table("full_frames", rows, "All videos by pair (reproduction, no certificate)")
    draw_levels(folder, parts, paper, "All videos by pair", "full_")
    shown = forecast[2][:SHOWN]
    overlays = draw_sets(args, [by_name[video.name] for video in shown], shown, parts, paper)
    words = f"{say_level(paper)} by pair: a reproduction, no certificate"
    write_overlays(folder, overlays, f"Test videos; {words}")
    path = folder.folder / "tracker.safetensors"
    print(f"  by video, with a certificate: {regressor.COMMAND.format(args.sequences, path)}")


def draw_sets(args, sequences, videos, parts, level):
    """The videos with their boxes at this level (C+D)."""
    predictor, floored = fit_pairs(parts, level), vision.BoxScore()
    sets = [predictor.sets(floored.prepared(video.forecast)) for video in videos]
    return [Overlay.of(args.sequences, *known) for known in zip(sequences, videos, sets, strict=True)]


def write_overlays(folder, overlays, title):
    folder.figure("overlays", overlay_grid(overlays, title))
    for overlay in overlays:
        write_gif(overlay, folder.folder / f"overlay_{overlay.frames.name}.gif")
