"""The paper's object tracking experiment, by video and by frame: tables, figures and pictures.

    python scripts/otb_results.py --tracks tracks.npz --sequences OTB [--out otb_output] [--smoke-test]

--tracks are stored predictions of an ensemble of trackers; --sequences is a folder in OTB's layout. Give one
or both. With stored tracks (`otb_stored.py`): a certificate whose unit is the video, the paper's level by
frame, and how different the two are. With frames (`otb_frames.py`): a regressor like the paper's, trained on
some videos and measured on others, from the true box of the frame before; its boxes are drawn on the
frames (PNG and GIF).

Videos that the certificate was calibrated on are recorded in pac-ledger beside the stored tracks
(--ledger names another; --smoke-test: in --out), and refused for any other certificate, whatever --out is.

Whatever counts frames is a reproduction of the paper and no certificate: frames of one video depend on
each other. One set of test videos may well not refute it; over many draws of calibration videos expect it to
break its promise about ten times as often as it may (table `units`).
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import otb_frames
import otb_stored
import torch

from pac_core import InvalidInput, PACError
from pac_vision import TrackerSettings, find_sequences, load_backbone
from pac_vision.generated import write_sequences
from pac_vision.track_reports import TrackReport


@dataclass(frozen=True)
class Args:
    tracks: Path | None = None
    """stored predictions (npz): sequence, length, truth, members"""
    sequences: Path | None = None
    """a folder in OTB's layout"""
    out: Path = Path("otb_output")
    """folder for the results; those of an earlier run are replaced"""
    ledger: Path | None = None
    """where looks at the stored tracks are recorded; by default pac-ledger beside them"""
    epsilon: float = 0.2
    """of the certificate: the share of videos that may miss more than gamma of their frames"""
    delta: float = 0.05
    """of the certificate: the probability that it fails"""
    gamma: float = 0.1
    """the share of a video's frames that may be missed"""
    tune: int = 16
    """stored videos to choose the score on"""
    calibrate: int = 50
    """stored videos to prove it on; the rest tests"""
    pairs: int = 5000
    """pairs of frames to calibrate on, stored or of the whole benchmark: the paper's figures have 5,000"""
    paper_epsilon: float = 0.01
    """of a frame, as in the paper"""
    paper_delta: float = 1e-5
    """of a frame, as in the paper"""
    few_epsilon: float = 0.1
    """of a frame, where there are few videos"""
    few_delta: float = 0.05
    """of a frame, where there are few videos"""
    draws: int = 1000
    """random splits for the comparison of units"""
    splits: int = 100
    """random splits for the comparison of scores"""
    full: int = 99
    """a folder of so many targets is the whole benchmark, split as in the paper; fewer are cross-trained"""
    backbone: str = TrackerSettings.backbone
    """of the regressor: efficientnet-lite0, -lite1, -lite2, pixels, or python:MODULE:FACTORY"""
    seed: int = 0
    """of the splits and of the training"""


def main(args: Args, settings: TrackerSettings) -> None:
    if args.tracks is None and args.sequences is None:
        raise InvalidInput("--tracks, --sequences or both must be given (--smoke-test makes its own)")
    sequences = find_sequences(args.sequences) if args.sequences else ()
    if len(sequences) == 1:
        raise InvalidInput("--sequences must hold 2 videos or more, some to train on and others, got 1")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Before the look at the stored tracks: a package that is missing must not cost them.
    backbone = load_backbone(settings.backbone, settings.size, device) if sequences else None
    report = TrackReport(args.out)
    if args.tracks is not None:
        otb_stored.main(args, report, sequences)
    if backbone is not None:
        otb_frames.main(args, report, settings, backbone, sequences)
    print(f"\neverything is in {args.out}")


def smoke_test(out: Path) -> None:
    """Everything once, on generated videos and tracks."""
    settings = TrackerSettings("pixels", 48, channels=8, hidden=32, views=4, epochs=10, batch=32, rate=3e-3)
    small = Args(out=out, ledger=out / "pac-ledger", draws=50, splits=8, pairs=2000)
    with tempfile.TemporaryDirectory() as home:
        few = write_sequences(Path(home) / "few", 4, frames=40, targets=2)
        main(replace(small, tracks=write_tracks(Path(home) / "tracks.npz"), sequences=few), settings)
        many = write_sequences(Path(home) / "many", 9, frames=20, targets=2, seed=1)  # of 12 targets
        whole = replace(small, sequences=many, full=12, pairs=50, paper_epsilon=0.1, paper_delta=0.01)
        whole = replace(whole, out=out / "many")
        main(whole, settings)


def write_tracks(path: Path, videos: int = 82) -> Path:
    """Stored tracks of an ensemble that is sure of itself, and wrong by another amount in every video."""
    drawn, lengths = np.random.default_rng(0), np.where(np.arange(videos) < 4, 40, 100)
    corner = drawn.uniform(5, 50, (videos, 2)).repeat(lengths, axis=0)
    truth = np.concatenate([corner, np.full_like(corner, 20.0)], axis=1)
    wrong = drawn.gamma(1.0, 2.0, videos).repeat(lengths)[:, None, None]
    noise = drawn.normal(size=(len(truth), 1, 4)), drawn.normal(0, 2, (len(truth), 5, 4))
    names = np.array([f"Video{i:03}" for i in range(videos)])
    members = truth[:, None] + wrong * noise[0] + noise[1]
    np.savez(path, sequence=names, length=lengths, truth=truth, members=members)
    return path


def parse() -> tuple[Args, bool]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for field in fields(Args):
        kind = Path if field.default is None else type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    parser.add_argument("--smoke-test", action="store_true", help="generated data, under twenty seconds")
    chosen = vars(parser.parse_args())
    smoke = chosen.pop("smoke_test")
    return Args(**chosen), smoke


if __name__ == "__main__":
    try:
        args, smoke = parse()
        smoke_test(args.out) if smoke else main(args, TrackerSettings(args.backbone, seed=args.seed))
    except PACError as error:
        raise SystemExit(f"Error: {error}") from None
