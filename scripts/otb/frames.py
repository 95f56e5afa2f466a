"""A regressor like the paper's, trained on the frames of some videos and measured on others."""

from otb import pairs
from otb.stored import SHOWN

import pac_vision as vision
from pac_core import NotEnoughData, PACLevel
from pac_core.bounds import max_errors
from pac_vision.plots import Overlay, overlay_grid, write_gif
from pac_vision.tracking import find_pairs, predict_no_motion


def study_frames(args, folder, settings, backbone, sequences):
    targets = sum(len(one.truth) for one in sequences)
    print(f"\n{len(sequences)} videos with frames of {targets} targets; the unit is a pair: {pairs.WHY}")

    def train(videos, name):
        """A tracker trained on some videos, saved under this name."""
        print(f"  training on {', '.join(one.name for one in videos)}")
        options = {"backbone": backbone, "device": backbone.device, "progress": print}
        tracker = vision.train_tracker(args.sequences, videos, settings, **options)
        tracker.save(folder.folder / name)
        return tracker

    study = whole_benchmark if targets >= args.full else few_videos
    study(args, folder, train, sequences)


def few_videos(args, folder, train, sequences):
    """Two regressors, each trained on one half of the videos and measured on the other."""
    try:
        max_errors(len(sequences), pairs.FEW)
    except NotEnoughData as refusal:
        print(f"  by video, a certificate is refused: {refusal}")
    print("  tested on the same videos, a result is about further pairs of these very videos; the rows")
    print("  tested on another video show what that says about a new one")
    ranked = sorted(sequences, key=lambda one: -one.truth.size)
    halves = [*ranked[0::4], *ranked[3::4]], [*ranked[1::4], *ranked[2::4]]
    rows = []
    errors = []
    overlays = []
    for number, (seen, held) in enumerate((halves, halves[::-1]), start=1):
        tracker = train(seen, f"tracker{number}.safetensors")
        videos, still = (
            [vision.track(tracker, args.sequences, one) for one in held],
            [predict_no_motion(one) for one in held],
        )
        for kind, known, new, parts in list_cases({"regressor": videos, "box stays": still}, args.seed):
            found, sizes = pairs.ablation_table(parts, pairs.FEW)
            rows += [{"forecast": kind, "calibrated on": known, "tested on": new} | row for row in found]
            if kind == "regressor" and known == new and sizes:
                title = (
                    f"Pairs of {known}, n = {parts.sizes[1]:,}, {pairs.say_level(pairs.FEW)}\n({pairs.NOT})"
                )
                folder.figure(f"frames_ablation{number}", pairs.size_boxes(sizes, title))
                overlays += draw_sets(args, held, videos, parts, pairs.FEW)[: SHOWN // 2]
        for one, video, same in zip(held, videos, still, strict=True):
            free = vision.track(tracker, args.sequences, one, free=True)
            of = {"regressor": video, "box stays": same, "regressor, running freely": free}
            off = {kind: float(abs(v.truth - v.mean).mean()) for kind, v in of.items()}
            errors.append({"video": one.name, "pairs": len(video.frames)} | off)
    folder.table("frame_errors", errors, "Mean error of a side, pixels (from the true box before, or freely)")
    folder.table(
        "frames", rows, f"Pairs of frames, {pairs.say_level(pairs.FEW)} (reproduction, no certificate)"
    )
    if overlays:
        words = f"{pairs.say_level(pairs.FEW)} by pair: a reproduction, no certificate"
        write_overlays(folder, overlays, f"A regressor that was trained on other videos; {words}")


def list_cases(kinds, seed):
    """Forecast, what it is calibrated on, what it is tested on, and the parts."""
    found = []
    for kind, videos in kinds.items():
        both = " + ".join(video.name for video in videos) if len(videos) < SHOWN else f"{len(videos)} videos"
        found.append((kind, both, both, pairs.split_by_pair(videos, seed=seed, shares=(1, 2, 2))))
        ways = [(a, b) for a in videos[:SHOWN] for b in videos[:SHOWN] if a is not b]
        found += [(kind, a.name, b.name, pairs.split_across(a, b, seed=seed)) for a, b in ways]
    return found


def whole_benchmark(args, folder, train, sequences):
    """The paper's split; three quarters of its first part train, the rest fits the temperature."""
    by_name = {one.name: one for one in sequences}
    counts = {one.name: len(find_pairs([one])) for one in sequences}
    groups = pairs.paper_parts(counts, seed=args.seed)
    sizes = [sum(counts[name] for name in group) for group in groups]
    print(f"  pairs of the three parts: {sizes}; the paper's: {list(pairs.PAPER_PAIRS)}")
    cut = max(1, min(len(groups[0]) - 1, len(groups[0]) * 3 // 4))
    tracker = train([by_name[name] for name in groups[0][:cut]], "tracker.safetensors")
    forecast = [
        [vision.track(tracker, args.sequences, by_name[name]) for name in group]
        for group in (groups[0][cut:], *groups[1:])
    ]
    parts, rows = pairs.split_by_video(forecast).draw(args.pairs, args.seed), []
    print(f"  pairs to tune, calibrate (of the second part, --pairs) and test: {list(parts.sizes)}")
    paper = PACLevel(args.epsilon, args.delta)
    for level in (paper, pairs.FEW):
        found, sizes = pairs.ablation_table(parts, level)
        rows += [{"epsilon": level.epsilon, "delta": level.delta} | row for row in found]
        if sizes:
            title = f"All videos by pair, n = {parts.sizes[1]:,}, {pairs.say_level(level)}\n({pairs.NOT})"
            folder.figure(f"full_ablation_{level.epsilon:g}", pairs.size_boxes(sizes, title))
    folder.table("full_frames", rows, "All videos by pair (reproduction, no certificate)")
    pairs.draw_levels(folder, parts, paper, "All videos by pair", "full_")
    shown = forecast[2][:SHOWN]
    overlays = draw_sets(args, [by_name[video.name] for video in shown], shown, parts, paper)
    words = f"{pairs.say_level(paper)} by pair: a reproduction, no certificate"
    write_overlays(folder, overlays, f"Test videos; {words}")
    path = folder.folder / "tracker.safetensors"
    print(f"  by video, with a certificate: pac run otb --tracker {path} ...")


def draw_sets(args, sequences, videos, parts, level):
    """The videos with their boxes at this level (C+D)."""
    predictor, floored = pairs.fit_pairs(parts, level), vision.BoxScore("nll")
    sets = [predictor.sets(floored.prepared(video.forecast)) for video in videos]
    return [Overlay.of(args.sequences, *known) for known in zip(sequences, videos, sets, strict=True)]


def write_overlays(folder, overlays, title):
    folder.figure("overlays", overlay_grid(overlays, title))
    for overlay in overlays:
        write_gif(overlay, folder.folder / f"overlay_{overlay.frames.name}.gif")
