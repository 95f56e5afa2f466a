"""`pac run imagenet` and `pac run otb`: images of a folder, tracks of videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from cluster.commands.launch import check_levels, engine_options, launch, resumable
from pac_core import Groups, InvalidInput
from pac_core.cli import FILE, batch_option, broken_option, preprocessing_options, read_lines, say
from pac_core.files import real_path
from pac_core.runs import Finding, RunFolder, Task
from pac_core.sets import LABEL_SCORES, resolve_score_name
from pac_vision.tasks import box_spreads, image_task, track_task

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
MODELS = (
    "efficientnet-lite0, torchvision:NAME[@WEIGHTS]:FILE, timm:NAME:FILE, onnx:FILE, python:MODULE:FACTORY."
)


@click.command("imagenet")
@click.option("--images", required=True, help="Folder per class, one folder, .tar or .parquet (or many).")
@click.option("--labels", type=FILE, help="For images without labels of their own: a line for each.")
@click.option("--classes", type=FILE, help="The model's classes: a line each, or ImageNet's class index.")
@click.option("--model", required=True, help=MODELS)
@preprocessing_options
@broken_option("error")
@batch_option
@click.option("--score", type=click.Choice(LABEL_SCORES), help="See pac fit.  [default: smallest]")
@click.option("--temperature/--no-temperature", default=None, help="Of the paper's score; see pac fit.")
@click.option("--tune", required=True, type=int, help="Images to choose the score on.")
@click.option("--calibrate", required=True, type=int, help="Images to prove on; the rest tests.")
@click.option(
    "--group", metavar="label|label:FILE", help="A threshold for each group of labels; see pac fit."
)
@engine_options
def run_imagenet(
    images: str,
    labels: Path | None,
    classes: Path | None,
    model: str,
    preprocessing: dict[str, str],
    broken: str,
    batch: int | None,
    score: str | None,
    temperature: bool | None,
    tune: int,
    calibrate: int,
    group: str | None,
    seed: int,
    cpus: int,
    folder: str,
    **engine: Any,
) -> None:
    """Images, classified by a model, to certificates of label sets; every worker must see the images.

    \b
    pac run imagenet --images imagenet/val --model torchvision:resnet152:resnet152.pth --folder run \\
        --tune 10000 --calibrate 20000 --epsilon 0.01 --delta 1e-5

    --images is a folder with a folder per class (index or wnid); or a folder of images with --labels; or a
    plain tar or a folder of them (key.jpg with key.cls, as webdataset writes them); or a parquet file, a
    folder of them, or a pattern like 'data/validation-*.parquet' (columns image and label, as Hugging Face
    stores ImageNet). Without a label, or with one that is no class, an image is refused with its path.

    An ONNX file or a torch module does not say how images go in: --preset, or --size to --resampling, must.

    \b
    pac run imagenet --model onnx:net.onnx --preset imagenet --crop 0.9 --resampling bicubic ...

    A broken image is refused with its path, or with --broken miss counts as an error everywhere: it is never
    left out. The logits can be had with pac logits, sets for new images with pac sets --images.
    """
    check_levels(calibrate, engine["levels"])
    word, _, file = (group or "label").partition(":")
    if word != "label":
        raise InvalidInput(f"--group must be label or label:FILE, got {group!r}")
    groups = Groups(labels=read_lines(Path(file)), column="label") if file else group
    place, named = RunFolder(folder), resolve_score_name(score, temperature)
    if not tune and named != "plain" and engine["levels"]:
        raise InvalidInput(f"--tune must be above 0 to fit --score {named}, got 0; plain needs none")
    if place.local and Path(images).is_dir() and real_path(folder).is_relative_to(real_path(images)):
        raise InvalidInput(
            f"--folder must lie outside --images, or its files would be among them, got {folder}"
        )
    with resumable(place):
        task = image_task(
            images=images,
            labels=labels,
            classes=classes,
            model=model,
            broken=broken,
            batch=batch,
            preprocessing=preprocessing,
            tune=tune,
            calibrate=calibrate,
            seed=seed,
            cpus=cpus,
        )
        home = Path(images) if Path(images).is_dir() else Path(images).absolute().parent
        launch(task, place, score=named, data=home, groups=groups, **engine)


@click.command("otb")
@click.option("--tracks", type=FILE, help="Stored predictions, npz: sequence, length, truth, members.")
@click.option("--sequences", type=FOLDER, help="Or: OTB's folders of frames and boxes, to be tracked.")
@click.option("--tracker", metavar="NAME", help="With them: python:MODULE:FACTORY, a tracker of yours.")
@click.option("--gamma", default=0.1, show_default=True, help="Share of a video's frames that may be missed.")
@click.option("--power", default=1.0, show_default=True, help="Trust in the forecast's spread, from 0 to 1.")
@click.option("--calibrate", required=True, type=int, help="Sequences to prove on; the rest tests.")
@engine_options
def run_otb(
    tracks: Path | None,
    sequences: Path | None,
    tracker: str | None,
    gamma: float,
    power: float,
    calibrate: int,
    seed: int,
    cpus: int,
    folder: str,
    **engine: Any,
) -> None:
    """Tracks of videos: stored ones, or by a tracker that reads the frames; the unit is a whole sequence."""
    check_levels(calibrate, engine["levels"])
    videos: dict[str, Any] = {"tracks": tracks, "sequences": sequences, "tracker": tracker}
    chosen: dict[str, Any] = {"gamma": gamma, "power": power}
    place = RunFolder(folder)
    with resumable(place):
        task = track_task(**videos, **chosen, calibrate=calibrate, seed=seed, cpus=cpus)
        if left := task.job.configuration.get("trained_on"):
            say("left out", f"{len(left)} sequences that the tracker was trained on: {', '.join(left)}")
        if findings := launch(task, place, data=tracks or sequences, **engine):
            _say_boxes(task, place, findings)


def _say_boxes(task: Task, place: RunFolder, findings: list[Finding]) -> None:
    spreads = box_spreads(task, place)
    if not len(spreads):
        return
    for threshold in (finding.certificate.predictor.threshold for finding in findings):
        sizes = threshold.value * spreads
        level = f"epsilon={threshold.level.epsilon:g}, delta={threshold.level.delta:g}"
        middle, mean = np.median(sizes), sizes.mean()
        say(
            "boxes",
            f"{level}: half-diagonal of a test sequence: median {middle:.4g}, mean {mean:.4g} pixels",
        )
