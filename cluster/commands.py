"""The commands of the engine: `pac run`, `pac submit` and `pac tune`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cluster.driver import Finding, Task, certify_run, rl_task
from cluster.estimates import estimate
from cluster.inprocess import run_here
from cluster.progress import shown
from cluster.results import levels_of
from cluster.session import ADDRESSES, connected, gauges
from cluster.states import State
from cluster.storage import RunFolder
from pac_core import InvalidInput, PACLevel
from pac_core.options import FILE, say

Function = TypeVar("Function", bound=Callable[..., Any])
WORKERS = "how many, or MIN..MAX where the cluster can grow"


class Workers(click.ParamType[tuple[int, int]]):
    """`4`, or `1..16`."""

    name = "N|MIN..MAX"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        ends = str(value).split("..")
        if (
            len(ends) > 2
            or not all(end.isdecimal() for end in ends)
            or not 1 <= int(ends[0]) <= int(ends[-1])
        ):
            self.fail(f"must be {WORKERS}, got {value!r}")
        return int(ends[0]), int(ends[-1])


def engine_options(function: Function) -> Function:
    """What every task of `pac run` understands."""
    for option in reversed(
        [
            click.option(
                "--folder", required=True, help="Run folder: a path or a URL such as s3://bucket/run."
            ),
            click.option(
                "--address", default="local", show_default=True, help=f"Ray: {ADDRESSES}; none: without Ray."
            ),
            click.option("--workers", type=Workers(), help=f"Of each kind: {WORKERS}.  [default: all]"),
            click.option("--cpus", default=1, show_default=True, help="CPUs, and threads, of a worker."),
            click.option("--gpus", type=float, help="GPUs of a model worker, as 0.5.  [default: 1 if any]"),
            click.option(
                "--epsilon", type=float, multiple=True, help="Promised share of misses, once or more."
            ),
            click.option("--delta", type=float, multiple=True, help="1 - confidence, once or more."),
            click.option("--shape", default="box", show_default=True, help="Tube shape: joint, max, box."),
            click.option("--seed", default=0, show_default=True, help="Seed of units and split."),
            click.option("--ledger", type=FILE, help="[default: pac-ledger.json beside the run folder]"),
            click.option("--estimate", is_flag=True, help="Compute one shard, say what all take, stop."),
        ]
    ):
        function = option(function)
    return function


@click.group("run")
def run() -> None:
    """Score units in parallel on Ray, and certify.

    \b
    pac run rl --folder cheetah --epsilon 0.01 --delta 1e-5
    pac run rl --folder s3://bucket/cheetah --address auto --workers 1..32

    Finished shards are kept: the same command goes on where it was stopped. Without --epsilon and
    --delta only forecasts are computed, for pac tune.
    """


@run.command("rl")
@click.option("--env", default="HalfCheetah-v5", show_default=True)
@click.option("--policy", type=FILE, help="npz, or a Stable-Baselines3 zip.  [default: the one that ships]")
@click.option("--ensemble", type=FILE, help="safetensors.  [default: trained first, in a local folder]")
@click.option("--horizon", default=20, show_default=True, help="Steps of a tube.")
@click.option("--burn-in", nargs=2, default=(0, 200), show_default=True, help="Least and most steps before.")
@click.option("--propagation", default="particles", show_default=True)
@click.option("--members", type=int, multiple=True, help="Also forecast with so few members; repeatable.")
@click.option("--tune", default=5000, show_default=True)
@click.option("--calibrate", default=5000, show_default=True)
@click.option("--test", default=5000, show_default=True)
@engine_options
def run_rl(
    env: str,
    policy: Path | None,
    ensemble: Path | None,
    horizon: int,
    burn_in: tuple[int, int],
    propagation: str,
    members: tuple[int, ...],
    tune: int,
    calibrate: int,
    test: int,
    seed: int,
    shape: str,
    cpus: int,
    folder: str,
    **engine: Any,
) -> None:
    """Half-cheetah rollouts (or another MuJoCo robot's) and an ensemble's forecasts of them."""
    from cluster.driver import trained
    from pac_rl.policy_files import SHIPPED

    place = RunFolder(folder)
    chosen = policy or SHIPPED
    task = rl_task(
        env=env,
        policy=chosen,
        ensemble=ensemble or trained(place, env, chosen, seed),
        horizon=horizon,
        burn_in=burn_in,
        propagation=propagation,
        members=members,
        tune=tune,
        calibrate=calibrate,
        test=test,
        seed=seed,
        shape=shape,
        cpus=cpus,
    )
    launch(task, place, **engine)


def launch(
    task: Task,
    folder: RunFolder,
    *,
    address: str,
    workers: tuple[int, int] | None,
    gpus: float | None,
    epsilon: tuple[float, ...],
    delta: tuple[float, ...],
    ledger: Path | None,
    estimate: bool,
) -> None:
    """Runs a task where the user wants it, and certifies what was asked for."""
    if bool(epsilon) != bool(delta):
        raise InvalidInput("--epsilon and --delta go together, got only one of them")
    levels = levels_of(epsilon, delta)
    task.check(levels)
    say("units", f"{task.job.units:,} {task.unit}s in {len(task.job.shards):,} shards, kept in {folder}")
    try:
        _compute(task, folder, address, workers, gpus, estimate)
    except KeyboardInterrupt:
        say("stopped", f"finished shards are kept in {folder}; the same command goes on from there")
        sys.exit(130)
    if levels and not estimate:
        _certify(task, folder, levels, ledger)


def _compute(
    task: Task,
    folder: RunFolder,
    address: str,
    workers: tuple[int, int] | None,
    gpus: float | None,
    only_estimate: bool,
) -> None:
    job, limit = task.job, 1 if only_estimate else None
    if address == "none":
        with shown(job.name, task.unit) as show:
            return _say_what_it_takes(run_here(job, folder, limit=limit, progress=show), 1)
    with connected(address) as session:
        say("ray", str(session))
        from cluster.engine import run as run_on_ray

        told = False
        with shown(job.name, task.unit, gauges=gauges(str(folder))) as show:

            def progress(state: State) -> None:
                nonlocal told
                if state.last and not told:
                    told = True
                    _say_what_it_takes(state, state.workers)
                show(state)

            run_on_ray(job, folder, workers=workers, gpus=gpus, limit=limit, progress=progress)
    return None


def _say_what_it_takes(state: State, workers: int) -> None:
    if state.last and state.finished < state.shards:
        say("estimate", estimate(state, state.last, workers))


def _certify(task: Task, folder: RunFolder, levels: list[PACLevel], ledger: Path | None) -> None:
    book = ledger or (Path(folder.root).parent if folder.local else Path()) / "pac-ledger.json"
    made, findings = certify_run(task, folder, levels, book)
    say("tune", f"{made.score.kind} from {made.parts.tune.n if made.parts else 0:,} {task.unit}s")
    many = "it fails" if len(levels) == 1 else "any of them fails"
    say("ledger", f"{len(levels)} asked for; {many} with probability below {made.look.cost:.3g} ({book})")
    for level in made.refused:
        say("refused", f"epsilon={level.epsilon:g}, delta={level.delta:g}: too many {task.unit}s failed")
    for finding in findings:
        _say_finding(finding, folder)


def _say_finding(finding: Finding, folder: RunFolder) -> None:
    say("calibrate", str(finding.certificate.predictor.threshold))
    if finding.evaluation is not None:
        say("test", f"{finding.evaluation.verdict}; mean size {finding.evaluation.all.mean:.4g}")
    say("wrote", f"{folder}/{finding.file}")
