"""Train a tracker on some sequences of a folder, for `pac run otb --tracker`, which certifies on the others.

    python scripts/train_tracker.py --sequences OTB --train 25 [--out tracker.safetensors] [--smoke-test]

The sequences to train on are drawn by the seed, and their names go into the file. Only a small head is
trained, on features of a pretrained backbone that are computed once: about ten pairs of frames a second on
one CPU core, most of it the backbone; on a GPU, where there is one.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from pac_core import InvalidInput, PACError, split
from pac_vision import TrackerSettings, find_sequences, train_tracker
from pac_vision.generated import write_sequences


@dataclass(frozen=True)
class Args:
    sequences: Path | None = None
    """a folder in OTB's layout"""
    train: int = 25
    """how many of its sequences to train on"""
    out: Path = Path("tracker.safetensors")
    """the tracker's file"""
    backbone: str = TrackerSettings.backbone
    """efficientnet-lite0, -lite1, -lite2, pixels, or python:MODULE:FACTORY"""
    size: int = TrackerSettings.size
    """of the crops, in pixels"""
    views: int = TrackerSettings.views
    """looks at each pair of frames, all but one with a random motion"""
    epochs: int = TrackerSettings.epochs
    """passes over the pairs"""
    seed: int = 0
    """of the draw of sequences, of the motions and of the training"""


def main(args: Args) -> None:
    if args.sequences is None:
        raise InvalidInput("--sequences must be a folder in OTB's layout (--smoke-test makes its own)")
    sequences = {one.name: one for one in find_sequences(args.sequences)}
    drawn = split(list(sequences), tune=args.train, calibrate=1, seed=args.seed).tune.units
    settings = TrackerSettings(args.backbone, args.size, views=args.views, epochs=args.epochs, seed=args.seed)
    chosen = [sequences[str(name)] for name in drawn]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tracker = train_tracker(
        args.sequences, chosen, settings, device=device, progress=lambda line: print(line, flush=True)
    )
    tracker.save(args.out)
    print(f"wrote {args.out}, trained on {', '.join(tracker.trained_on)}")
    left = len(sequences) - len(chosen)
    print(f"next  pac run otb --sequences {args.sequences} --tracker {args.out} --calibrate N  (of {left})")


def parse() -> tuple[Args, bool]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for field in fields(Args):
        kind = Path if field.default is None else type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default)
    parser.add_argument("--smoke-test", action="store_true", help="generated sequences, a few seconds")
    chosen = vars(parser.parse_args())
    smoke = chosen.pop("smoke_test")
    return Args(**chosen), smoke


if __name__ == "__main__":
    try:
        args, smoke = parse()
        if smoke:
            with tempfile.TemporaryDirectory() as home:
                made = write_sequences(Path(home) / "videos", 4, frames=10)
                main(replace(args, sequences=made, train=3, backbone="pixels", size=48, epochs=10))
        else:
            main(args)
    except PACError as error:
        raise SystemExit(f"Error: {error}") from None
