"""A regressor like the paper's, trained on the frames of some videos and measured on others.

A part of `otb_results.py`, which says how to run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from otb_stored import NOT, SHOWN, draw_levels, words

from pac_core import NotEnoughData, PACLevel, max_errors
from pac_vision import (
    PAPER_PAIRS,
    Backbone,
    BoxScore,
    Overlay,
    Tracker,
    TrackerSettings,
    Video,
    overlay_grid,
    split_by_pair,
    split_by_video,
    track,
    train_tracker,
    write_gif,
)
from pac_vision import Sequence as Frames
from pac_vision.frame_pairs import WHY, PairParts, ablation_table, fit_pairs, paper_parts, split_across
from pac_vision.track_figures import size_boxes
from pac_vision.track_reports import TrackReport
from pac_vision.tracker_training import find_pairs
from pac_vision.tracking import stay

Trained = Callable[[Sequence[Frames], str], Tracker]
"""From videos and the name of a file to a tracker, saved there."""


def main(
    args: Any,
    report: TrackReport,
    settings: TrackerSettings,
    backbone: Backbone,
    sequences: Sequence[Frames],
) -> None:
    targets = sum(len(one.truth) for one in sequences)
    print(f"\n{len(sequences)} videos with frames of {targets} targets; the unit is a pair of frames: {WHY}")

    def trained(train: Sequence[Frames], name: str) -> Tracker:
        print(f"  training on {', '.join(one.name for one in train)}")
        tracker = train_tracker(
            args.sequences,
            train,
            settings,
            backbone=backbone,
            device=backbone.device,
            progress=lambda line: print(f"    {line}", flush=True),
        )
        tracker.save(report.folder / name)
        return tracker

    study = whole_benchmark if targets >= args.full else few_videos
    study(args, report, trained, sequences)


def few_videos(args: Any, report: TrackReport, trained: Trained, sequences: Sequence[Frames]) -> None:
    """Two regressors, each trained on one half of the videos and measured on the other."""
    level = PACLevel(args.few_epsilon, args.few_delta)
    try:
        max_errors(len(sequences), level)
    except NotEnoughData as refusal:
        print(f"  by video, a certificate is refused: {refusal}")
    print("  tested on the same videos, a result is about further pairs of these very videos; the rows")
    print("  tested on another video show what that says about a new one")
    ranked = sorted(sequences, key=lambda one: -one.truth.size)
    halves = [*ranked[0::4], *ranked[3::4]], [*ranked[1::4], *ranked[2::4]]
    rows: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    overlays: list[Overlay] = []
    for number, (train, held) in enumerate((halves, halves[::-1]), start=1):
        tracker = trained(train, f"tracker{number}.safetensors")
        videos, still = [track(tracker, args.sequences, one) for one in held], [stay(one) for one in held]
        for kind, known, new, parts in cases({"regressor": videos, "box stays": still}, args.seed):
            found, sizes = ablation_table(parts, level)
            rows += [{"forecast": kind, "calibrated on": known, "tested on": new} | row for row in found]
            if kind == "regressor" and known == new and sizes:
                title = f"Pairs of {known}, n = {parts.sizes[1]:,}, {words(level)}\n({NOT})"
                report.figure(f"frames_ablation{number}", size_boxes(sizes, title))
                overlays += drawn(args, held, videos, parts, level)[: SHOWN // 2]
        for one, video, same in zip(held, videos, still, strict=True):
            free = track(tracker, args.sequences, one, free=True)
            of = {"regressor": video, "box stays": same, "regressor, running freely": free}
            errors.append(
                {"video": one.name, "pairs": len(video.frames)} | {k: off(v) for k, v in of.items()}
            )
    report.table("frame_errors", errors, "Mean error of a side, pixels (from the true box before, or freely)")
    report.table("frames", rows, f"Pairs of frames, {words(level)} (reproduction, no certificate)")
    title = "A regressor that was trained on other videos"
    if overlays:
        draw(report, overlays, f"{title}; {words(level)} by pair: a reproduction, no certificate")


def cases(kinds: dict[str, list[Video]], seed: int) -> list[tuple[str, str, str, PairParts]]:
    """Forecast, what it is calibrated on, what it is tested on, and the parts."""
    found = []
    for kind, videos in kinds.items():
        both = " + ".join(video.name for video in videos) if len(videos) < SHOWN else f"{len(videos)} videos"
        found.append((kind, both, both, split_by_pair(videos, seed=seed, shares=(1, 2, 2))))
        pairs = [(a, b) for a in videos[:SHOWN] for b in videos[:SHOWN] if a is not b]
        found += [(kind, a.name, b.name, split_across(a, b, seed=seed)) for a, b in pairs]
    return found


def whole_benchmark(args: Any, report: TrackReport, trained: Trained, sequences: Sequence[Frames]) -> None:
    """The paper's split; three quarters of its first part train, the rest fits the temperature."""
    by_name = {one.name: one for one in sequences}
    counts = {one.name: len(find_pairs([one])) for one in sequences}
    groups = paper_parts(counts, seed=args.seed)
    pairs = [sum(counts[name] for name in group) for group in groups]
    print(f"  pairs of the three parts: {pairs}; the paper's: {list(PAPER_PAIRS)}")
    cut = max(1, min(len(groups[0]) - 1, len(groups[0]) * 3 // 4))
    train = [by_name[name] for name in groups[0][:cut]]
    tracker = trained(train, "tracker.safetensors")
    forecast = [
        [track(tracker, args.sequences, by_name[name]) for name in group]
        for group in (groups[0][cut:], *groups[1:])
    ]
    parts, rows = split_by_video(forecast, seed=args.seed, pairs=args.pairs), []
    print(f"  pairs to tune, calibrate (of the second part, --pairs) and test: {list(parts.sizes)}")
    paper = PACLevel(args.paper_epsilon, args.paper_delta)
    for level in (paper, PACLevel(args.few_epsilon, args.few_delta)):
        found, sizes = ablation_table(parts, level)
        rows += [{"epsilon": level.epsilon, "delta": level.delta} | row for row in found]
        if sizes:
            title = f"All videos by pair, n = {parts.sizes[1]:,}, {words(level)}\n({NOT})"
            report.figure(f"full_ablation_{level.epsilon:g}", size_boxes(sizes, title))
    report.table("full_frames", rows, "All videos by pair (reproduction, no certificate)")
    draw_levels(args, report, parts, "All videos by pair", "full_")
    chosen = forecast[2][:SHOWN]
    overlays = drawn(args, [by_name[video.name] for video in chosen], chosen, parts, paper)
    draw(report, overlays, f"Test videos; {words(paper)} by pair: a reproduction, no certificate")
    print(
        f"  by video, with a certificate: pac run otb --tracker {report.folder / 'tracker.safetensors'} ..."
    )


def drawn(
    args: Any, sequences: Sequence[Frames], videos: Sequence[Video], parts: PairParts, level: PACLevel
) -> list[Overlay]:
    """The videos with their boxes at this level (C+D)."""
    predictor, floored = fit_pairs(parts, level), BoxScore("nll")
    sets = [predictor.sets(floored.prepared(video.forecast)) for video in videos]
    return [
        Overlay.of(args.sequences, one, video, of)
        for one, video, of in zip(sequences, videos, sets, strict=True)
    ]


def draw(report: TrackReport, overlays: Sequence[Overlay], title: str) -> None:
    report.figure("overlays", overlay_grid(overlays, title))
    for overlay in overlays:
        path = report.folder / f"overlay_{overlay.frames.name}.gif"
        write_gif(overlay, path)
        print(f"gif {path}", flush=True)


def off(video: Video) -> float:
    """The mean error of a side, in pixels."""
    return float(abs(video.truth - video.mean).mean())
