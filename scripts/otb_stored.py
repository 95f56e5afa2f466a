"""Stored tracks of an ensemble of trackers: by video, by frame, and one against the other.

A part of `otb_results.py`, which says how to run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pac_core import (
    PACLevel,
    Record,
    SplitRecord,
    certify_scores,
    error_interval,
    fit_threshold,
    ids_digest,
    max_errors,
    split,
    write_certificate,
)
from pac_core.options import ledger_beside
from pac_core.predictors import GivenScore
from pac_core.tables import file_digest
from pac_vision import (
    BoxScore,
    Overlay,
    Video,
    choose_box_score,
    compare_units,
    overlay_grid,
    read_tracks,
    split_by_pair,
    split_by_video,
)
from pac_vision import Sequence as Frames
from pac_vision.box_scores import CANDIDATES, smallest
from pac_vision.frame_pairs import WHY, PairParts, ablation_table, measure_pairs, paper_parts
from pac_vision.track_figures import level_lines, size_boxes, unit_histograms
from pac_vision.track_reports import TrackReport

EPSILONS, DELTAS = (0.01, 0.02, 0.03, 0.04, 0.05), (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
SHOWN = 4  # videos to draw, however many there are
NOT = "C calibrated, D direct bound; a reproduction, no certificate"


def main(args: Any, report: TrackReport, sequences: Sequence[Frames]) -> None:
    videos = read_tracks(args.tracks).videos
    by_sequence(args, report, videos, sequences)
    by_frame(args, report, videos)
    frame_against_sequence(args, report, videos)
    compare_scores(args, report, videos)


def by_sequence(
    args: Any, report: TrackReport, videos: dict[str, Video], sequences: Sequence[Frames]
) -> None:
    """A certificate: the unit is the video."""
    ledger = ledger_beside(args.tracks, args.ledger)
    level, names = PACLevel(args.epsilon, args.delta), np.array(list(videos))
    parts = split(names, tune=args.tune, calibrate=args.calibrate, seed=args.seed)
    max_errors(parts.calibrate.n, level)
    tune, calibrate, test = ([videos[str(name)] for name in part.units] for part in parts)
    score, digest = choose_box_score(tune, level, args.gamma), file_digest(args.tracks)
    made = certify_scores(
        GivenScore(f"{score} score exceeded in at most a share {args.gamma:g} of the frames"),
        lambda: np.array([score.video_score(video, args.gamma) for video in calibrate]),
        level,
        ids=parts.calibrate.units,
        ledger=ledger,
        data=digest,
        parts=parts,
        source=Record("stored tracks", len(names), digest),
        unit="video sequence",
        tune=Record("tune", parts.tune.n, parts.tune.digest),
        test=Record("test", parts.test.n, parts.test.digest),
        model=Record("ensemble of trackers", digest=digest),
        split=SplitRecord(args.seed, ids_digest(names), "ids"),
    )
    threshold = made.certificates[0].predictor.threshold
    write_certificate(made.certificates[0], report.folder / "certificate.json")
    print(f"stored tracks of {len(names)} videos; the unit is the video")
    print(f"  chosen on {len(tune)} tune videos: {score}")
    print(f"  {threshold}")
    print(f"  promise: with probability {1 - level.epsilon:g} a new video drawn like these has at most")
    print(f"  {args.gamma:.0%} of its frames missed; {report.folder / 'certificate.json'}")
    row: dict[str, Any] = {
        "epsilon": level.epsilon,
        "delta": level.delta,
        "gamma": args.gamma,
        "n": threshold.n,
    }
    row |= {"allowed": threshold.errors, "test videos": len(test)}
    if test:
        missed = sum(score.video_score(video, args.gamma) > threshold.value for video in test)
        low, high = error_interval(missed, len(test))
        sizes = [threshold.value * score.spread(video) for video in test]
        row |= {"missed": missed, "98% interval": f"{low:.4f}..{high:.4f}"}
        row |= {"refuted": "yes" if low > level.epsilon else "no"}
        row |= {"median size": float(np.median(sizes)), "mean size": float(np.mean(sizes))}
    else:
        row |= {"refuted": "not tested"}
    report.table("by_sequence", [row], "By video (certificate); size: half-diagonal of a set, pixels")
    shown = [s for s in sequences if s.name in videos and videos[s.name].frames.max() < len(s.frames)]
    if shown:
        part_of = {n: name for name, part in vars(parts).items() if name != "seed" for n in part.units}
        shown = sorted(shown, key=lambda s: part_of[s.name] != "test")[:SHOWN]
        where = ", ".join(f"{s.name} ({part_of[s.name]})" for s in shown)
        title = f"Stored tracks, certified by video at ({level.epsilon:g}, {level.delta:g}); {where}"
        sets = [score.sets(videos[s.name].forecast, threshold) for s in shown]
        drawn = [Overlay.of(args.sequences, s, videos[s.name], of) for s, of in zip(shown, sets, strict=True)]
        report.figure("stored_overlays", overlay_grid(drawn, title))


def by_frame(args: Any, report: TrackReport, videos: dict[str, Video]) -> None:
    """The paper's experiment: the unit is a frame."""
    groups = paper_parts({name: len(video.frames) for name, video in videos.items()}, seed=args.seed)
    options = {"seed": args.seed, "pairs": args.pairs}
    others = split_by_video([[videos[name] for name in group] for group in groups], **options)
    same = split_by_pair(list(videos.values()), **options)
    print(f"\nstored tracks, the unit is a frame: {WHY}")
    print(f"  frames to tune, calibrate, test: {others.sizes}, of {[len(group) for group in groups]} videos")
    paper, rows = PACLevel(args.paper_epsilon, args.paper_delta), []
    for level in (paper, PACLevel(args.few_epsilon, args.few_delta)):
        for name, parts in (("other videos", others), ("the same videos", same)):
            found, sizes = ablation_table(parts, level)
            where = {"epsilon": level.epsilon, "delta": level.delta, "tested on": name}
            rows += [where | row for row in found]
            if level == paper and parts is others:
                title = f"Stored tracks by frame, n = {parts.sizes[1]:,}, {words(level)}\n({NOT})"
                report.figure("ablation", size_boxes(sizes, title))
    report.table("by_frame", rows, "By frame (reproduction, no certificate)")
    draw_levels(args, report, others, "Stored tracks by frame", "")


def draw_levels(args: Any, report: TrackReport, parts: PairParts, title: str, prefix: str) -> None:
    """Sizes against epsilon, and against delta."""
    usual = PACLevel(args.paper_epsilon, args.paper_delta)
    for name, values in (("epsilon", EPSILONS), ("delta", DELTAS)):
        sizes = {}
        for value in values:
            if value >= getattr(usual, name):
                found = measure_pairs(parts, replace(usual, **{name: value}))
                sizes[value] = np.asarray(found[1].size())
        fixed = f"delta {usual.delta:g}" if name == "epsilon" else f"epsilon {usual.epsilon:g}"
        heading = f"{title}, C+D, n = {parts.sizes[1]:,}, {fixed}\n(a reproduction, no certificate)"
        if sizes:
            report.figure(prefix + name, level_lines(sizes, name, heading, log_x=name == "delta"))


def frame_against_sequence(args: Any, report: TrackReport, videos: dict[str, Video]) -> None:
    """The same scores, calibrated on frames and on videos."""
    level, few = PACLevel(args.epsilon, args.delta), args.calibrate
    frames = [BoxScore().frame_scores(video) for video in videos.values()]
    found = compare_units(frames, level, args.gamma, calibrate=few, draws=args.draws, seed=args.seed)
    rows = [
        {
            "calibrated on": f"{unit}s",
            "promise": one.promise,
            "fails, promised": f"<= {one.level.delta:g}",
            "fails": one.breaches / args.draws,
            "frames missed": float(one.frames.mean()),
            f"videos over {args.gamma:.0%}": float(one.videos.mean()),
            "worst split": float(one.videos.max()),
        }
        for unit, one in found.items()
    ]
    report.table("units", rows, f"Frame against video, over {args.draws:,} draws of {few} videos")
    title = f"{args.draws:,} draws of {few} from {len(videos)} videos, which stand for all there are"
    report.figure("units", unit_histograms(found, title))


def compare_scores(args: Any, report: TrackReport, videos: dict[str, Video]) -> None:
    """Error and size by video of several scores, over random splits: what to choose, and no certificate."""
    if args.tune + args.calibrate >= len(videos):
        print("\nscores by video are not compared: no video is left to test")
        return
    level, everything, gamma = PACLevel(args.epsilon, args.delta), list(videos.values()), args.gamma
    drawn, found = np.random.default_rng(args.seed), {}
    scores = np.array([[one.video_score(v, gamma) for v in everything] for one in CANDIDATES])
    spreads = np.array([[one.spread(v) for v in everything] for one in CANDIDATES])
    for _ in range(args.splits):
        order = drawn.permutation(len(everything))
        tune, calibrate, test = np.split(order, [args.tune, args.tune + args.calibrate])
        chosen = smallest(scores[:, tune], spreads[:, tune], level)
        for name, row in (
            ("max, as forecast", CANDIDATES.index(BoxScore())),
            ("max, chosen on tune", chosen),
        ):
            limit = fit_threshold(scores[row][calibrate], level).value
            found.setdefault(name, []).append((scores[row][test] > limit, limit * spreads[row][test]))
        tempered = BoxScore("nll").fitted([everything[i] for i in tune])
        for name, one in (("nll (D)", BoxScore("nll")), ("nll, temperature (C+D)", tempered)):
            of = {i: one.video_score(everything[i], gamma) for i in (*calibrate, *test)}
            limit = fit_threshold([of[i] for i in calibrate], level).value
            sizes = [one.sizes(everything[i].forecast, limit).mean() for i in test]
            found.setdefault(name, []).append(([of[i] > limit for i in test], sizes))
    rows = [
        {
            "score": name,
            "error": float(np.mean([errors for errors, _ in of])),
            "mean size": float(np.mean([sizes for _, sizes in of])),
            "median size": float(np.median([sizes for _, sizes in of])),
        }
        for name, of in found.items()
    ]
    title = f"Scores by video, {words(level)}: test videos of {args.splits} random splits (no certificates)"
    report.table("scores", rows, title)


def words(level: PACLevel) -> str:
    return f"epsilon {level.epsilon:g}, delta {level.delta:g}"
