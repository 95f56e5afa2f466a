"""`pac run rl`: rollouts of a robot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from cluster.commands.launch import (
    check_levels,
    engine_at,
    engine_options,
    launch,
    ledger_for,
    resumable,
    say_findings,
)
from pac_core import InvalidInput
from pac_core.certificates import Record
from pac_core.cli import FILE, say, shape_options
from pac_core.fitting import check_score, name_features
from pac_core.runs import Job, RunFolder
from pac_rl import load_policy, make_environment
from pac_rl.planning import certify_candidates, policy_candidates
from pac_rl.policies import SHIPPED, returns_in_words
from pac_rl.tasks import RobotFiles, rl_task, train_ensemble


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
    std, sees = acting.pop("policy_std"), acting.pop("policy_sees")
    controller = load_policy(policy, std=std, sees=sees, **acting)
    model = train_ensemble(
        folder, env, controller, seed=seed, engine=engine, progress=lambda epoch: tqdm.write(f"  {epoch}")
    )
    home = Path(folder.root) / "model"
    say("ensemble", f"{model} in {home}")
    return home / "ensemble.safetensors"


@click.command("rl")
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
@click.option("--propagation", default="particles", show_default=True, help="one-step or particles.")
@click.option("--members", type=int, multiple=True, help="Also forecast with so few members, for pac tune.")
@click.option(
    "--plans",
    type=click.Choice(["policy", "candidates"]),
    help="Tubes of plans, for a guard: one near the policy's actions from each start, or all of those times "
    "0, 0.05 ... 1, whichever is picked.  [default: of the policy's closed loop]",
)
@click.option("--tune", default=5000, show_default=True, help="Rollouts to choose the tube on.")
@click.option("--calibrate", default=5000, show_default=True, help="Rollouts to prove it on.")
@click.option("--test", default=5000, show_default=True, help="Rollouts to measure it on.")
@shape_options
@click.option(
    "--group",
    metavar="NAME=BOUND,...",
    help="A tube for each group of starts, cut at bounds of one number of the state: 'forward velocity=2'.",
)
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
    plans: str | None,
    tune: int,
    calibrate: int,
    test: int,
    shape: str | None,
    features: tuple[str, ...],
    group: str | None,
    seed: int,
    cpus: int,
    folder: str,
    **engine: Any,
) -> None:
    """Rollouts of a robot (the half-cheetah) and an ensemble's forecasts of them.

    A rollout that the ensemble was trained on is refused as a unit. Units have the seeds from
    2,000,000,000 times --seed on.
    """
    place, chosen = RunFolder(folder), policy or SHIPPED
    acting: dict[str, Any] = {
        "policy_std": policy_std,
        "vecnormalize": vecnormalize,
        "policy_sees": policy_sees,
    }
    check_levels(calibrate, engine["levels"])
    robot = make_environment(env)
    # A number of the state is known by its name alone.
    features = tuple(
        f"{name}={robot.names.index(name)}" if name in robot.names else name for name in features
    )
    check_score(shape or "box", ("trajectories", horizon, len(robot.names)), features)
    controller = load_policy(chosen, std=policy_std, vecnormalize=vecnormalize, sees=policy_sees)
    say("policy", returns_in_words(robot, controller))
    units = {"tune": tune, "calibrate": calibrate, "test": test, "seed": seed}
    with resumable(place), engine_at("none") as here:
        files: dict[str, Any] = {"env": env, "policy": chosen, **acting, "trained_on": trained_on}
        files["ensemble"] = ensemble or partial(
            trained, place, here, env=env, policy=chosen, seed=seed, **acting
        )
        if plans == "candidates":
            usual = {"horizon": horizon, "burn_in": burn_in, "propagation": propagation}
            return run_candidates(place, files, usual, units, shape or "box", features, engine)
        task = rl_task(
            **files,
            horizon=horizon,
            burn_in=burn_in,
            propagation=propagation,
            members=members,
            plans=plans == "policy",
            groups=group,
            cpus=cpus,
            **units,
        )
        launch(task, place, score=shape, features=features, groups=group and "group", **engine)


def run_candidates(
    place: RunFolder,
    files: dict[str, Any],
    usual: dict[str, Any],
    units: dict[str, Any],
    shape: str,
    features: tuple[str, ...],
    engine: dict[str, Any],
) -> None:
    """All candidates around the policy from each start, carried out: a tube for whichever is picked."""
    levels = engine["levels"]
    if not levels:
        raise InvalidInput(
            "--plans candidates needs --epsilon and --delta: T is part of what its workers score"
        )
    found, book = RobotFiles.read(**files), ledger_for(place, engine["ledger"])
    size = len(make_environment(found.env).names)
    more: dict[str, Any] = {"features": name_features(features, size)} if features else {}
    with engine_at(engine["address"], dashboard=engine["dashboard"]) as run:
        made, findings = certify_candidates(
            policy_candidates(found, **usual),
            place,
            levels,
            book,
            model=Record(str(found.ensemble), digest=found.digest),
            train=found.ensemble.train_record,
            names=f"{found.known_by}/",
            about={"env": found.env, **usual, **found.about},
            engine=partial(run, workers=engine["workers"], gpus=engine["gpus"])
            if engine["address"] != "none"
            else run,
            shape=shape,
            **more,
            **units,
        )
    say_findings(made, findings, levels, book, place, "start")
