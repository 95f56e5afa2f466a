"""Stored tracks of an ensemble of trackers: by video, by frame, and one against the other."""

from itertools import zip_longest
from types import SimpleNamespace

import numpy as np
from common import interval_text, say_level
from otb import pairs
from otb.overlays import Overlay, overlay_grid

import pac_core as pac
from pac_core.bounds import max_errors
from pac_core.certificates import Record, SplitRecord, certify_scores, write_descent
from pac_core.cli import ledger_beside
from pac_core.datasets import file_digest
from pac_core.evaluation import error_interval
from pac_core.risks import certify_losses
from pac_core.scores import nll
from pac_core.sets import GivenScore, gaussian_sets
from pac_core.splits import ids_digest
from pac_core.thresholds import fit_threshold
from pac_vision import BoxScore
from pac_vision.tracking import check_share, share_score

PAPER = pac.PACLevel(0.01, 1e-5)
CANDIDATES = tuple(BoxScore(floor, power / 4) for power in range(5) for floor in (1.0, 25.0))


def score_candidates(videos, gamma):
    """Scores and spreads `[C, n]` of n videos by the C candidates."""
    scores = [[one.video_score(video, gamma) for video in videos] for one in CANDIDATES]
    return np.array(scores), np.array([[one.spread(video) for video in videos] for one in CANDIDATES])


def choose_smallest(scores, spreads, level):
    """Which of C candidates has the smallest boxes, from scores and spreads `[C, n]` of n tune videos.

    The size is the mean over videos of the mean half-diagonal in pixels, averaged over the thresholds at
    epsilon n errors, one fewer and one more: with few videos one threshold is mostly chance.
    """
    n = scores.shape[1]
    middle = int(level.epsilon * n)
    errors = sorted({min(max(middle + step, 0), n - 1) for step in (-1, 0, 1)})
    thresholds = np.sort(scores, axis=1)[:, ::-1][:, errors].mean(axis=1)
    return int((thresholds * spreads.mean(axis=1)).argmin())


def fit_temperature(videos):
    """The temperature under which the true boxes are most likely (C)."""
    squares = [((v.truth - v.mean) ** 2 / BoxScore().prepared(v.forecast).var).mean(axis=1) for v in videos]
    return 1 / float(np.maximum(np.concatenate(squares).mean(), 1e-12))


def by_sequence(args, folder, videos, sequences):
    """A certificate: the unit is the video."""
    ledger = ledger_beside(args.tracks, args.ledger)
    level, names, gamma = pac.PACLevel(args.epsilon, args.delta), np.array(list(videos)), args.gamma
    parts = pac.split(names, tune=args.tune, calibrate=args.calibrate, seed=args.seed)
    max_errors(parts.calibrate.n, level)
    tune, calibrate, test = ([videos[str(name)] for name in part.units] for part in parts)
    score = CANDIDATES[choose_smallest(*score_candidates(tune, gamma), level)]
    digest = file_digest(args.tracks)
    made = certify_scores(
        GivenScore(f"{score} score exceeded in at most a share {gamma:g} of the frames"),
        lambda: np.array([score.video_score(video, gamma) for video in calibrate]),
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
    pac.write_certificate(made.certificates[0], folder.folder / "certificate.json")
    print(f"stored tracks of {len(names)} videos; the unit is the video")
    print(f"  chosen on {len(tune)} tune videos: {score}\n  {threshold}")
    print(f"  with probability {1 - level.epsilon:g} a new video misses at most {gamma:.0%} of its frames")
    row = {"epsilon": level.epsilon, "delta": level.delta, "gamma": gamma, "n": threshold.n}
    row |= {"allowed": threshold.errors, "test videos": len(test), "refuted": "not tested"}
    if test:
        missed = sum(score.video_score(video, gamma) > threshold.value for video in test)
        low, high = error_interval(missed, len(test))
        sizes = [threshold.value * score.spread(video) for video in test]
        row |= {"missed": missed, "98% interval": interval_text((low, high))}
        row |= {"refuted": "yes" if low > level.epsilon else "no"}
        row |= {"median size": float(np.median(sizes)), "mean size": float(np.mean(sizes))}
    folder.table("by_sequence", [row], "By video (certificate); size: half-diagonal of a set, pixels")
    shown = [s for s in sequences if s.name in videos and videos[s.name].frames.max() < len(s.frames)]
    if shown:
        part_of = {n: part for part in ("tune", "calibrate", "test") for n in getattr(parts, part).units}
        shown = sorted(shown, key=lambda s: part_of[s.name] != "test")[: pairs.SHOWN]
        where = ", ".join(f"{s.name} ({part_of[s.name]})" for s in shown)
        title = f"Stored tracks, certified by video at ({level.epsilon:g}, {level.delta:g}); {where}"
        sets = [score.sets(videos[s.name].forecast, threshold) for s in shown]
        drawn = [Overlay.of(args.sequences, s, videos[s.name], of) for s, of in zip(shown, sets, strict=True)]
        folder.figure("stored_overlays", overlay_grid(drawn, title))


STEPS = 0.8 ** np.arange(18)
"""Thresholds that are tried, from the safest down, in parts of the largest score of a tune video's frame."""


def by_loss(args, folder, videos):
    """A certificate: the expected share of a video's frames that are missed (learn-then-test)."""
    level, names = pac.PACLevel(args.epsilon, args.delta), np.array(list(videos))
    parts = pac.split(names, tune=args.tune, calibrate=args.calibrate, seed=args.seed)
    tune, calibrate, test = ([videos[str(name)] for name in part.units] for part in parts)
    score = CANDIDATES[choose_smallest(*score_candidates(tune, level.epsilon), level)]
    frames = np.concatenate([score.frame_scores(video) for video in tune])
    thresholds = (frames.max() * STEPS).tolist()

    def losses(some, value):
        return np.array([(score.frame_scores(video) > value).mean() for video in some])

    done = certify_losses(
        {value: losses(calibrate, value) for value in thresholds},
        level,
        ids=parts.calibrate.units,
        loss="share of a video's frames whose box is missed",
        tested={"tracks": file_digest(args.tracks), "score": str(score)},
        ledger=ledger_beside(args.tracks, args.ledger),
        unit="video",
    )
    print(done)
    write_descent(done, folder.folder / "losses.json")
    rows = [
        {
            "T": value,
            "loss, calibrate": trial.errors / trial.n if trial else float("nan"),
            "passed": {True: "yes", False: "no", None: "not tried"}[trial and trial.passed],
            "loss, test": float(losses(test, value).mean()),
            "median size": float(np.median([value * score.spread(video) for video in test])),
        }
        for value, trial in zip_longest(thresholds, done.trials)
    ]
    folder.table("losses", rows, f"Expected share of frames missed, at most {say_level(level)}")


def by_frame(args, folder, videos):
    """The paper's experiment: the unit is a frame."""
    groups = pairs.paper_parts({name: len(video.frames) for name, video in videos.items()}, seed=args.seed)
    others = pairs.PairParts(*(pairs.gather([videos[name] for name in group]) for group in groups))
    same = pairs.split_by_pair(list(videos.values()), seed=args.seed)
    others, same = (parts.draw(args.pairs, args.seed) for parts in (others, same))
    print(f"\nstored tracks, the unit is a frame: {pairs.WHY}")
    print(f"  frames to tune, calibrate, test: {others.sizes}, of {[len(group) for group in groups]} videos")
    rows = []
    for level in (PAPER, pairs.FEW):
        for name, parts in (("other videos", others), ("the same videos", same)):
            found, sizes = pairs.ablation_table(parts, level)
            where = {"epsilon": level.epsilon, "delta": level.delta, "tested on": name}
            rows += [where | row for row in found]
            if level == PAPER and parts is others:
                folder.figure("ablation", pairs.size_boxes(sizes, "Stored tracks by frame", parts, level))
    folder.table("by_frame", rows, "By frame (reproduction, no certificate)")
    pairs.draw_levels(folder, others, PAPER, "Stored tracks by frame", "")


def frame_against_sequence(args, folder, videos):
    """The same scores, calibrated on frames and on videos."""
    level, few, draws = pac.PACLevel(args.epsilon, args.delta), args.calibrate, args.draws
    frames = [BoxScore().frame_scores(video) for video in videos.values()]
    found = compare_units(frames, level, args.gamma, calibrate=few, draws=draws, seed=args.seed)
    rows = []
    for unit, one in found.items():
        row = {"calibrated on": f"{unit}s", "promise": one.promise, "fails, promised": f"<= {level.delta:g}"}
        row |= {"fails": one.breaches / draws, "frames missed": one.frames.mean()}
        row |= {f"videos over {args.gamma:.0%}": one.videos.mean(), "worst split": one.videos.max()}
        rows.append(row)
    folder.table("units", rows, f"Frame against video, over {draws:,} draws of {few} videos")


def compare_units(frame_scores, level, gamma, *, calibrate, draws, seed=0):
    """Errors of thresholds from `calibrate` random videos, by what was taken for the unit.

    frame_scores: of each video `[F]`
    level: of a video; a frame's is that with epsilon = gamma

    Of each unit, by draw: the shares of `frames` missed and of `videos` that miss over gamma, of the videos
    left over; and in how many draws the promise fails (`breaches`), if all videos at hand are the whole
    world, from which those calibrated on are drawn with replacement.
    """
    gamma, everything = check_share("gamma", gamma), np.arange(len(frame_scores))
    if not 0 < calibrate < len(everything):
        raise pac.InvalidInput(f"calibrate must be 1 to {len(everything) - 1} videos, got {calibrate}")
    levels = {"frame": pac.PACLevel(gamma, level.delta), "sequence": level}
    scores = np.array([share_score(frames, gamma) for frames in frame_scores])
    lengths, drawn = np.array([len(frames) for frames in frame_scores]), np.random.default_rng(seed)

    def errors(rows, tested, unit):
        """The shares of frames missed and of videos over gamma, with the threshold of `rows`."""
        chosen = scores[rows] if unit == "sequence" else np.concatenate([frame_scores[r] for r in rows])
        threshold = fit_threshold(chosen, levels[unit]).value
        missed = sum(int((frame_scores[row] > threshold).sum()) for row in tested)
        return missed / lengths[tested].sum(), float((scores[tested] > threshold).mean())

    found = {unit: [] for unit in levels}
    for _ in range(draws):
        order, world = drawn.permutation(everything), drawn.integers(len(everything), size=calibrate)
        for place, unit in enumerate(levels):
            left = errors(order[:calibrate], order[calibrate:], unit)
            found[unit].append((*left, errors(world, everything, unit)[place]))
    promises = {"frame": "a frame", "sequence": f"more than {gamma:.0%} of a video's frames"}
    made = {}
    for unit, level in levels.items():
        frames, videos, true = np.array(found[unit]).T
        known = {"promise": f"P(miss {promises[unit]}) <= {level.epsilon:g}", "frames": frames}
        made[unit] = SimpleNamespace(**known, videos=videos, breaches=int((true > level.epsilon).sum()))
    return made


def compare_scores(args, folder, videos):
    """Error and size by video of several scores, over random splits: what to choose, and no certificate."""
    if args.tune + args.calibrate >= len(videos):
        print("\nscores by video are not compared: no video is left to test")
        return
    level, everything, gamma = pac.PACLevel(args.epsilon, args.delta), list(videos.values()), args.gamma
    drawn, found = np.random.default_rng(args.seed), {}
    scores, spreads = score_candidates(everything, gamma)
    plain = CANDIDATES.index(BoxScore())
    for _ in range(args.splits):
        order = drawn.permutation(len(everything))
        tune, calibrate, test = np.split(order, [args.tune, args.tune + args.calibrate])
        chosen = choose_smallest(scores[:, tune], spreads[:, tune], level)
        for name, row in (("max, as forecast", plain), ("max, chosen on tune", chosen)):
            limit = fit_threshold(scores[row][calibrate], level).value
            found.setdefault(name, []).append((scores[row][test] > limit, limit * spreads[row][test]))
        tau = fit_temperature([everything[i] for i in tune])
        for name, factor in (("nll (D)", 1.0), ("nll, temperature (C+D)", tau)):
            ready = [BoxScore().prepared(video.forecast).tempered(factor) for video in everything]
            rows = {i: nll(ready[i], everything[i].truth) for i in (*calibrate, *test)}
            of = {i: share_score(everything[i].per_frame(row), gamma) for i, row in rows.items()}
            limit = fit_threshold([of[i] for i in calibrate], level).value
            sizes = [gaussian_sets(ready[i], limit).size().mean() for i in test]
            found.setdefault(name, []).append(([of[i] > limit for i in test], sizes))
    rows = []
    for name, of in found.items():
        errors, sizes = (np.array(one) for one in zip(*of, strict=True))
        row = {"score": name, "error": float(errors.mean()), "mean size": float(sizes.mean())}
        rows.append(row | {"median size": float(np.median(sizes))})
    words = f"test videos of {args.splits} random splits (no certificates)"
    folder.table("scores", rows, f"Scores by video, {say_level(level)}: {words}")
