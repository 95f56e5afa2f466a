"""The commands of the engine: `pac run`, `pac tune` and `pac submit`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from cluster.folders import RunFolder
from cluster.launching import asked, engine_at, launch, ledger_for, resumable
from cluster.options import engine_options, ledger_option
from cluster.session import ADDRESSES, connected
from cluster.stored_logits import logits
from cluster.tasks import rl_task, trained
from cluster.vision_commands import run_imagenet, run_otb
from pac_core import InvalidInput, PACLevel
from pac_core.cli import main as pac
from pac_core.ledger import LedgerPath
from pac_core.options import FILE, level_options, say, shape_options
from pac_core.score_fits import check_score


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
    asked(calibrate, engine["levels"])
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
    from cluster.launching import tune_run

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
    from cluster import submission

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
