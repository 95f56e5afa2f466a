"""The paper's object tracking experiment, by video and by frame: tables, figures and pictures.

\b
    python scripts/otb tracks otb/siamfc_ensemble_tracks.npz [--sequences OTB]
    python scripts/otb losses otb/siamfc_ensemble_tracks.npz
    python scripts/otb frames OTB
    python scripts/otb train OTB --train 25

Whatever counts frames is a reproduction of the paper and no certificate: frames of one video depend on
each other. One set of test videos may well not refute it; over many draws of calibration videos expect it to
break its promise about ten times as often as it may (table `units`).
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import click
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import PATH, ResultFolder, ledger_option, option, out_option, seed_option, smoke_option, start
from otb.generated import write_sequences, write_tracks
from otb.pairs import study_frames
from otb.regressor import COMMAND, Settings
from otb.regressor import train as train_regressor
from otb.stored import by_frame, by_loss, by_sequence, compare_scores, frame_against_sequence

from pac_core import InvalidInput, split
from pac_vision import find_sequences, read_tracks

SMALL = Settings("pixels", 48, channels=8, hidden=32, views=4, epochs=10, batch=32, rate=3e-3)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKBONES = "efficientnet-lite0, -lite1, -lite2 or pixels."


pairs_option = option("pairs", 5000, "Pairs of frames to calibrate on: the paper's figures have 5,000.")
backbone_option = option("backbone", Settings.backbone, BACKBONES)
main = click.Group(help=__doc__)


@main.command()
@click.argument("tracks", type=PATH, required=False)
@click.option("--sequences", type=PATH, help="Their frames in OTB's layout, to draw the boxes on.")
@option("epsilon", 0.2, "Share of videos that may miss more than gamma of their frames.")
@option("delta", 0.05, "Probability that the certificate fails.")
@option("gamma", 0.1, "Share of a video's frames that may be missed.")
@option("tune", 16, "Videos to choose the score on.")
@option("calibrate", 50, "Videos to prove it on; the rest tests.")
@pairs_option
@option("draws", 1000, "Random draws for the comparison of units.")
@option("splits", 100, "Random splits for the comparison of scores.")
@seed_option
@ledger_option("the tracks")
@out_option("otb_output")
@smoke_option
def tracks(smoke_test, **given):
    """Stored predictions (npz: sequence, length, truth, members): certified by video, and as in the paper."""
    args = SimpleNamespace(**given)
    if smoke_test:
        args.tracks, args.ledger = write_tracks(args.out / "tracks.npz"), args.out / "pac-ledger"
        args.sequences = write_sequences(args.out / "videos", 4, frames=40, targets=2)
        args.draws, args.splits, args.pairs = 50, 8, 2000
    if args.tracks is None:
        raise InvalidInput("a file of stored tracks must be given (--smoke-test makes its own)")
    sequences = find_sequences(args.sequences) if args.sequences else ()
    videos, folder = read_tracks(args.tracks).videos, ResultFolder(args.out)
    by_sequence(args, folder, videos, sequences)
    by_frame(args, folder, videos)
    frame_against_sequence(args, folder, videos)
    compare_scores(args, folder, videos)
    print(f"\neverything is in {args.out}")


@main.command()
@click.argument("tracks", type=PATH, required=False)
@option("epsilon", 0.2, "Expected share of a video's frames that are missed.")
@option("delta", 0.05, "Probability that the certificate fails.")
@option("tune", 16, "Videos to choose the score and the thresholds on.")
@option("calibrate", 50, "Videos to prove it on; the rest tests.")
@seed_option
@ledger_option("the tracks")
@out_option("otb_output")
@smoke_option
def losses(smoke_test, **given):
    """Stored predictions, certified by the expected share of a video's frames that are missed."""
    args = SimpleNamespace(**given)
    if smoke_test:
        args.tracks, args.ledger = write_tracks(args.out / "tracks.npz"), args.out / "losses-ledger"
    if args.tracks is None:
        raise InvalidInput("a file of stored tracks must be given (--smoke-test makes its own)")
    by_loss(args, ResultFolder(args.out), read_tracks(args.tracks).videos)


@main.command()
@click.argument("sequences", type=PATH, required=False)
@pairs_option
@option("epsilon", 0.01, "Of a pair of the whole benchmark, as in the paper.")
@option("delta", 1e-5, "Of a pair of the whole benchmark, as in the paper.")
@backbone_option
@seed_option
@out_option("otb_output")
@smoke_option
def frames(smoke_test, **given):
    """A regressor like the paper's, trained on some videos of a folder in OTB's layout, tried on others.

    A folder of 99 targets or more is taken for the whole benchmark, and split as in the paper.
    """
    args, settings = given | {"full": 99}, Settings(given["backbone"], seed=given["seed"])
    if smoke_test:
        settings, args["sequences"] = SMALL, write_sequences(args["out"] / "videos", 4, frames=40, targets=2)
        many = write_sequences(args["out"] / "many" / "videos", 9, frames=20, targets=2, seed=1)
        own = {"sequences": many, "out": args["out"] / "many", "full": 12, "pairs": 50}
        study_frames(SimpleNamespace(**args | own | {"epsilon": 0.1, "delta": 0.01}), settings, DEVICE)
    study_frames(SimpleNamespace(**args), settings, DEVICE)


@main.command()
@click.argument("sequences", type=PATH, required=False)
@option("train", 25, "Sequences to train on, drawn by the seed; their names go into the file.")
@backbone_option
@option("epochs", Settings.epochs, "Passes over the pairs of frames.")
@seed_option
@out_option("tracker.safetensors")
@smoke_option
def train(sequences, train, backbone, epochs, seed, out, smoke_test):
    """A tracker trained on some videos, for `pac run otb`, which certifies on the others.

    Only a small head is trained, on features of a pretrained backbone that are computed once: about ten pairs
    of frames a second on one CPU core.
    """
    settings = Settings(backbone, epochs=epochs, seed=seed)
    if smoke_test:
        sequences, train, settings = write_sequences(out.parent / "videos", 4, frames=10), 3, SMALL
    if sequences is None:
        raise InvalidInput("a folder in OTB's layout must be given (--smoke-test makes its own)")
    found = {one.name: one for one in find_sequences(sequences)}
    chosen = [found[str(name)] for name in split(list(found), tune=train, calibrate=1, seed=seed).tune.units]
    tracker = train_regressor(sequences, chosen, settings, device=DEVICE, progress=print)
    tracker.save(out)
    print(f"wrote {out}, trained on {', '.join(tracker.trained_on)}")
    left = len(found) - len(chosen)
    print(f"next  {COMMAND.format(sequences, out)}  (of {left})")


if __name__ == "__main__":
    start(main)
