"""The commands of the engine: `pac run`, `pac tune` and `pac submit`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from cluster.launching import asked, launch, ledger_of, resumable
from cluster.session import ADDRESSES, connected
from cluster.storage import RunFolder
from cluster.stored_logits import logits, say_broken
from cluster.tasks import box_sizes, image_task, rl_task, track_task, trained
from pac_core import InvalidInput, TooManyFailures
from pac_core.cli import main as pac
from pac_core.label_scores import LABEL_SCORES, score_named
from pac_core.options import FILE, broken_option, say

Function = TypeVar("Function", bound=Callable[..., Any])
WORKERS = "how many, or MIN..MAX where the cluster can grow"
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
MODELS = "efficientnet-lite0, torchvision:NAME:FILE, timm:NAME:FILE, onnx:FILE, python:MODULE:FACTORY."


class Workers(click.ParamType[tuple[int, int]]):
    """`4`, or `1..16`."""

    name = "N|MIN..MAX"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        ends = str(value).split("..")
        if len(ends) > 2 or not all(end.isdecimal() for end in ends):
            self.fail(f"must be {WORKERS}, got {value!r}")
        least, most = int(ends[0]), int(ends[-1])
        if not 1 <= least <= most:
            self.fail(f"must be at least 1, and MIN at most MAX, got {value!r}")
        return least, most


def options(*chosen: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several options at once, in this order."""

    def add(function: Function) -> Function:
        for option in reversed(chosen):
            function = option(function)
        return function

    return add


level_options = options(
    click.option("--epsilon", type=float, multiple=True, help="Promised share of misses, once or more."),
    click.option("--delta", type=float, multiple=True, help="1 - confidence, once or more."),
    click.option("--ledger", type=FILE, help="[default: pac-ledger.json beside a local run folder]"),
)
address_option = click.option(
    "--address", default="local", show_default=True, help=f"Ray: {ADDRESSES}; none goes without Ray."
)
engine_options = options(
    click.option("--folder", required=True, help="Run folder: a path or a URL such as s3://bucket/run."),
    address_option,
    click.option("--workers", type=Workers(), help=f"Of each kind: {WORKERS}.  [default: all]"),
    click.option("--cpus", default=1, show_default=True, help="CPUs, and threads, of a worker."),
    click.option("--gpus", type=float, help="GPUs of a model worker, as 0.5.  [default: 1 if any]"),
    click.option("--seed", default=0, show_default=True, help="Of the units and of the split."),
    level_options,
    click.option("--dashboard", is_flag=True, help="Start Ray's dashboard with a local engine."),
    click.option("--estimate", is_flag=True, help="Compute one shard, say what all take, stop."),
)


@click.group("run")
def run() -> None:
    """Score units in parallel on Ray, and certify.

    \b
    pac run rl --folder cheetah --epsilon 0.01 --delta 1e-5
    pac run rl --folder s3://bucket/cheetah --address auto --workers 1..32
    pac run imagenet --folder val --images imagenet/val --model efficientnet-lite0 \\
        --tune 10000 --calibrate 20000 --epsilon 0.01 --delta 1e-5
    pac run otb --folder otb --tracks tracks.npz --calibrate 50 --epsilon 0.2 --delta 0.05
    pac run otb --folder otb --sequences OTB --tracker tracker.safetensors --calibrate 50 ...

    Finished shards are kept: the same command goes on where it was stopped. Without --epsilon and
    --delta only forecasts are computed, for pac tune.
    """


@run.command("rl")
@click.option("--env", default="HalfCheetah-v5", show_default=True)
@click.option("--policy", type=FILE, help="npz, or a Stable-Baselines3 zip.  [default: the one that ships]")
@click.option("--policy-std", type=float, help="Noise on each action, for a policy file that has none.")
@click.option("--ensemble", type=FILE, help="safetensors.  [default: trained first, in a local folder]")
@click.option("--horizon", default=20, show_default=True, help="Steps of a tube.")
@click.option("--burn-in", nargs=2, default=(0, 200), show_default=True, help="Least and most steps before.")
@click.option("--propagation", default="particles", show_default=True, help="one-step, particles, jacobian.")
@click.option("--members", type=int, multiple=True, help="Also forecast with so few members, for pac tune.")
@click.option("--tune", default=5000, show_default=True, help="Rollouts to choose the tube on.")
@click.option("--calibrate", default=5000, show_default=True, help="Rollouts to prove it on.")
@click.option("--test", default=5000, show_default=True, help="Rollouts to measure it on.")
@click.option("--shape", default="box", show_default=True, help="Tube shape: joint, max or box.")
@engine_options
def run_rl(
    env: str,
    policy: Path | None,
    policy_std: float | None,
    ensemble: Path | None,
    horizon: int,
    burn_in: tuple[int, int],
    propagation: str,
    members: tuple[int, ...],
    tune: int,
    calibrate: int,
    test: int,
    shape: str,
    seed: int,
    cpus: int,
    folder: str,
    **engine: Any,
) -> None:
    """Rollouts of a robot (the half-cheetah) and an ensemble's forecasts of them."""
    from pac_rl.policy_files import SHIPPED

    place, chosen = RunFolder(folder), policy or SHIPPED
    asked(calibrate, engine["epsilon"], engine["delta"], shape)
    with resumable(place):
        task = rl_task(
            env=env,
            policy=chosen,
            policy_std=policy_std,
            ensemble=ensemble or partial(trained, place, env, chosen, policy_std, seed),
            horizon=horizon,
            burn_in=burn_in,
            propagation=propagation,
            members=members,
            tune=tune,
            calibrate=calibrate,
            test=test,
            seed=seed,
            cpus=cpus,
        )
    launch(task, place, shape=shape, **engine)


@run.command("imagenet")
@click.option("--images", required=True, help="Folder per class, one folder, .tar or .parquet (or many).")
@click.option("--labels", type=FILE, help="For images without labels of their own: a line for each.")
@click.option("--classes", type=FILE, help="The model's classes: a line each, or ImageNet's class index.")
@click.option("--model", required=True, help=MODELS)
@broken_option
@click.option("--batch", default=1, show_default=True, help="Images computed together; more on a GPU.")
@click.option("--score", type=click.Choice(LABEL_SCORES), help="See pac fit.  [default: smallest]")
@click.option("--temperature/--no-temperature", default=None, help="Of the paper's score; see pac fit.")
@click.option("--tune", required=True, type=int, help="Images to choose the score on.")
@click.option("--calibrate", required=True, type=int, help="Images to prove on; the rest tests.")
@engine_options
def run_imagenet(
    images: str,
    labels: Path | None,
    classes: Path | None,
    model: str,
    broken: str,
    batch: int,
    score: str | None,
    temperature: bool | None,
    tune: int,
    calibrate: int,
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

    A broken image is refused with its path, or with --broken miss counts as an error everywhere: it is never
    left out. The logits can be had with pac logits, sets for new images with pac sets --images.
    """
    asked(calibrate, engine["epsilon"], engine["delta"], "box")
    place = RunFolder(folder)
    task = image_task(
        images=images,
        labels=labels,
        classes=classes,
        model=model,
        broken=broken,
        batch=batch,
        tune=tune,
        calibrate=calibrate,
        seed=seed,
        cpus=cpus,
    )
    try:
        launch(task, place, shape=score_named(score, temperature), **engine)
    except TooManyFailures:
        say_broken(task, place)
        raise
    if broken == "miss" and not engine["estimate"]:
        say_broken(task, place)


@run.command("otb")
@click.option("--tracks", type=FILE, help="Stored predictions, npz: sequence, length, truth, members.")
@click.option("--sequences", type=FOLDER, help="Or: OTB's folders of frames and boxes, to be tracked.")
@click.option("--tracker", type=FILE, help="safetensors; the sequences it was trained on are left out.")
@click.option("--free", is_flag=True, help="Track freely from the first box, not from each true box before.")
@click.option("--gamma", default=0.1, show_default=True, help="Share of a video's frames that may be missed.")
@click.option("--score", default="max", show_default=True, help="Of a frame: nll or max.")
@click.option("--power", default=1.0, show_default=True, help="Trust in the forecast's spread, from 0 to 1.")
@click.option("--calibrate", required=True, type=int, help="Sequences to prove on; the rest tests.")
@engine_options
def run_otb(
    tracks: Path | None,
    sequences: Path | None,
    tracker: Path | None,
    free: bool,
    gamma: float,
    score: str,
    power: float,
    calibrate: int,
    seed: int,
    cpus: int,
    folder: str,
    **engine: Any,
) -> None:
    """Tracks of videos: stored ones, or by a tracker that reads the frames; the unit is a whole sequence."""
    asked(calibrate, engine["epsilon"], engine["delta"], "plain")
    videos: dict[str, Any] = {"tracks": tracks, "sequences": sequences, "tracker": tracker, "free": free}
    chosen: dict[str, Any] = {"gamma": gamma, "score": score, "power": power}
    task = track_task(**videos, **chosen, calibrate=calibrate, seed=seed, cpus=cpus)
    if left := task.job.configuration.get("trained_on"):
        say("left out", f"{len(left)} sequences that the tracker was trained on: {', '.join(left)}")
    place = RunFolder(folder)
    for finding in launch(task, place, **engine):
        threshold = finding.certificate.predictor.threshold
        sizes = box_sizes(task, place, threshold.value)
        if sizes is not None:
            level = f"epsilon={threshold.level.epsilon:g}, delta={threshold.level.delta:g}"
            middle, mean = np.median(sizes), sizes.mean()
            say(
                "boxes",
                f"{level}: half-diagonal of a test sequence: median {middle:.4g}, mean {mean:.4g} pixels",
            )


@click.command("tune")
@click.argument("folder")
@level_options
@click.option("--shape", "shapes", multiple=True, help="Tube shapes to try.  [default: box, max, joint]")
@click.option("--horizon", "horizons", multiple=True, type=int, help="Steps, once or more.  [default: all]")
@click.option("--members", multiple=True, type=int, help="Ensemble sizes of the run, beside all members.")
@click.option("--same-score", is_flag=True, help="One score for all levels: together they fail less often.")
@click.option("--address", default="local", show_default=True, help=f"Ray: {ADDRESSES}.")
def tune(
    folder: str,
    epsilon: tuple[float, ...],
    delta: tuple[float, ...],
    ledger: Path | None,
    shapes: tuple[str, ...],
    horizons: tuple[int, ...],
    members: tuple[int, ...],
    same_score: bool,
    address: str,
) -> None:
    """Sweep epsilon and delta, and what changes the scores, with Ray Tune.

    \b
    pac run rl --folder cheetah                    # forecasts, once
    pac tune cheetah --epsilon 0.01 --epsilon 0.05 --delta 1e-3 --delta 1e-5

    Every choice is made on the tune part. The calibrate part is opened once, for what was chosen: the
    ledger has it all before, and says what the certificates cost together.
    """
    from cluster.launching import tune_run

    if not epsilon or not delta:
        raise InvalidInput("--epsilon and --delta must each be given once or more")
    place = RunFolder(folder)
    with connected(address) as session:
        say("ray", str(session))
        tune_run(
            place,
            epsilon,
            delta,
            ledger or ledger_of(place),
            shapes=shapes,
            horizons=horizons or (None,),
            members=(None, *members),
            same=same_score,
        )


@click.command("submit", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--address", required=True, help="The cluster's dashboard: http://HOST:8265.")
@click.option("--requirements", type=FILE, help="Fully pinned list to install; not needed with our image.")
@click.option("--wait/--no-wait", default=True, help="Show what the job prints until it ends.")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
def submit(address: str, requirements: Path | None, wait: bool, arguments: tuple[str, ...]) -> None:
    """Start a run as a job of a Ray cluster, with our packages as they are here.

    \b
    pac submit --address http://head:8265 run rl --folder s3://bucket/cheetah --ensemble /data/e.safetensors

    The run joins the cluster it is submitted to (--address auto). Paths are those of the cluster.
    """
    from cluster import submission

    if arguments[0] not in ("run", "tune"):
        raise InvalidInput(f"submit takes the arguments of `pac run` or `pac tune`, got {arguments[0]!r}")
    command = [*arguments] if "--address" in arguments else [*arguments, "--address", "auto"]
    job = submission.submit(command, address=address, requirements=requirements)
    say("submitted", f"job {job}; stop it with: ray job stop {job} --address {address}")
    if wait:
        status = submission.follow(job, address=address, show=lambda text: click.echo(text, nl=False))
        say("job", f"{job} {status.lower()}")
        sys.exit(0 if status == "SUCCEEDED" else 1)


def main() -> None:
    """The whole program, where its entry points are not installed."""
    for command in (run, tune, submit, logits):
        pac.add_command(command)
    pac()
