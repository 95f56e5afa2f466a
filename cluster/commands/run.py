"""The tasks that ship: rollouts of a robot, images of a folder, tracks of videos."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from tqdm import tqdm

from cluster.commands.launch import check_levels, engine_at, launch, ledger_for, resumable
from cluster.commands.logits import logits, say_broken
from cluster.commands.options import engine_options, ledger_option
from cluster.session import ADDRESSES, connected
from pac_core import InvalidInput, PACLevel
from pac_core.certificates import LedgerPath
from pac_core.cli import (
    FILE,
    batch_option,
    broken_option,
    level_options,
    preprocessing_options,
    say,
    shape_options,
)
from pac_core.cli import main as pac
from pac_core.errors import TooManyFailures
from pac_core.files import real_path
from pac_core.fitting import check_score
from pac_core.runs import Finding, Job, RunFolder, Task
from pac_core.sets import LABEL_SCORES, resolve_score_name
from pac_vision.tasks import box_sizes, image_task, track_task


def rl_task(**options: Any) -> Task:
    """Rollouts of a robot; the options are those of `pac_rl.tasks.rl_task`."""
    from pac_rl.tasks import rl_task

    return rl_task(**options)


def trained(
    folder: RunFolder,
    engine: Callable[[Job, RunFolder], Any],
    *,
    env: str,
    policy: Path,
    seed: int,
    **acting: Any,
) -> Path:
    """The file of an ensemble for this robot and policy, trained on this machine, kept in the run folder."""
    from pac_rl import load_policy
    from pac_rl.tasks import train_ensemble

    std, sees = acting.pop("policy_std"), acting.pop("policy_sees")
    controller = load_policy(policy, std=std, sees=sees, **acting)
    model = train_ensemble(
        folder, env, controller, seed=seed, engine=engine, progress=lambda epoch: tqdm.write(f"  {epoch}")
    )
    home = Path(folder.root) / "model"
    say("ensemble", f"{model} in {home}")
    return home / "ensemble.safetensors"


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
        try:
            launch(task, place, shape=named, data=home, **engine)
        except TooManyFailures:
            say_broken(task, place)
            raise
        if broken == "miss" and not engine["estimate"]:
            say_broken(task, place)


@click.command("otb")
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
    check_levels(calibrate, engine["levels"])
    videos: dict[str, Any] = {"tracks": tracks, "sequences": sequences, "tracker": tracker, "free": free}
    chosen: dict[str, Any] = {"gamma": gamma, "score": score, "power": power}
    place = RunFolder(folder)
    with resumable(place):
        task = track_task(**videos, **chosen, calibrate=calibrate, seed=seed, cpus=cpus)
        if left := task.job.configuration.get("trained_on"):
            say("left out", f"{len(left)} sequences that the tracker was trained on: {', '.join(left)}")
        if findings := launch(task, place, data=tracks or sequences, **engine):
            _say_boxes(task, place, findings)


def _say_boxes(task: Task, place: RunFolder, findings: list[Finding]) -> None:
    spreads = box_sizes(task, place, 1.0)
    if spreads is None:
        return
    for threshold in (finding.certificate.predictor.threshold for finding in findings):
        sizes = threshold.value * spreads
        level = f"epsilon={threshold.level.epsilon:g}, delta={threshold.level.delta:g}"
        middle, mean = np.median(sizes), sizes.mean()
        say(
            "boxes",
            f"{level}: half-diagonal of a test sequence: median {middle:.4g}, mean {mean:.4g} pixels",
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
@click.option(
    "--vecnormalize",
    help="Of such a zip: npz of mean, var, clip, epsilon, or none if it needs no statistics.",
)
@click.option("--policy-sees", type=click.Choice(["observation", "state"]), help="[default: observation]")
@click.option("--ensemble", type=FILE, help="safetensors.  [default: trained first, in a local folder]")
@click.option(
    "--trained-on",
    multiple=True,
    metavar="FIRST..LAST|unknown",
    help="Seeds that the ensemble was trained on, where its file does not say.",
)
@click.option("--horizon", default=20, show_default=True, help="Steps of a tube.")
@click.option("--burn-in", nargs=2, default=(0, 200), show_default=True, help="Least and most steps before.")
@click.option("--propagation", default="particles", show_default=True, help="one-step, particles, jacobian.")
@click.option("--members", type=int, multiple=True, help="Also forecast with so few members, for pac tune.")
@click.option("--tune", default=5000, show_default=True, help="Rollouts to choose the tube on.")
@click.option("--calibrate", default=5000, show_default=True, help="Rollouts to prove it on.")
@click.option("--test", default=5000, show_default=True, help="Rollouts to measure it on.")
@shape_options
@engine_options
def run_rl(
    env: str,
    policy: Path | None,
    policy_std: float | None,
    vecnormalize: str | None,
    policy_sees: str | None,
    ensemble: Path | None,
    trained_on: tuple[str, ...],
    horizon: int,
    burn_in: tuple[int, int],
    propagation: str,
    members: tuple[int, ...],
    tune: int,
    calibrate: int,
    test: int,
    shape: str | None,
    features: tuple[str, ...],
    seed: int,
    cpus: int,
    folder: str,
    **engine: Any,
) -> None:
    """Rollouts of a robot (the half-cheetah) and an ensemble's forecasts of them.

    A rollout that the ensemble was trained on is refused as a unit. Units have the seeds from
    2,000,000,000 times --seed on.
    """
    from pac_rl import make_environment
    from pac_rl.policy_files import SHIPPED

    place, chosen = RunFolder(folder), policy or SHIPPED
    acting: dict[str, Any] = {
        "policy_std": policy_std,
        "vecnormalize": vecnormalize,
        "policy_sees": policy_sees,
    }
    check_levels(calibrate, engine["levels"])
    check_score(shape or "box", ("trajectories", horizon, len(make_environment(env).names)), features)
    with resumable(place), engine_at("none") as here:
        task = rl_task(
            env=env,
            policy=chosen,
            **acting,
            ensemble=ensemble or partial(trained, place, here, env=env, policy=chosen, seed=seed, **acting),
            trained_on=trained_on,
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
        launch(task, place, shape=shape, features=features, **engine)


run.add_command(run_imagenet)
run.add_command(run_otb)


@click.command("tune")
@click.argument("folder")
@level_options(multiple=True)
@ledger_option
@click.option("--shape", "shapes", multiple=True, help="Tube shapes to try.  [default: box, max, joint]")
@click.option("--horizon", "horizons", multiple=True, type=int, help="Steps, once or more.  [default: all]")
@click.option("--members", multiple=True, type=int, help="Ensemble sizes of the run, beside all members.")
@click.option("--same-score", is_flag=True, help="One score for all levels: together they fail less often.")
@click.option("--address", default="local", show_default=True, help=f"Ray: {ADDRESSES}.")
def tune(
    folder: str,
    levels: list[PACLevel],
    ledger: LedgerPath | None,
    shapes: tuple[str, ...],
    horizons: tuple[int, ...],
    members: tuple[int, ...],
    same_score: bool,
    address: str,
) -> None:
    """Sweep epsilon and delta, and what changes the scores, with Ray Tune.

    \b
    pac run rl --folder cheetah                    # forecasts, once
    pac tune cheetah --epsilon 0.01 --epsilon 0.05 --delta 1e-3 --delta 1e-5   # four levels
    pac tune cheetah --level 0.01,1e-3 --level 0.05,1e-5                       # two

    Every choice is made on the tune part. The calibrate part is opened once, for what was chosen: the
    ledger has it all before, and says what the certificates cost together.
    """
    from cluster.commands.launch import tune_run

    place = RunFolder(folder)
    with resumable(place), connected(address) as session:
        say("ray", str(session))
        tune_run(
            place,
            levels,
            ledger_for(place, ledger),
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
    from cluster.commands import submit as submission

    if arguments[0] not in ("run", "tune"):
        raise InvalidInput(f"submit takes the arguments of `pac run` or `pac tune`, got {arguments[0]!r}")
    told = any(word.partition("=")[0] == "--address" for word in arguments)
    command = [*arguments] if told else [*arguments, "--address", "auto"]
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
