"""`pac guard`: a planner guarded with the tubes of a finished run, certified by whole episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from cluster.commands.launch import address_option, engine_at, ledger_for, ledger_option, resumable
from pac_core import PACLevel
from pac_core.cli import FILE, level_options, say
from pac_core.runs import RunFolder
from pac_rl import load_guard


@click.command("guard")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--limit",
    "limits",
    multiple=True,
    required=True,
    metavar="NAME<=NUMBER",
    help="What must hold at every step: 'forward velocity <= 3.2096'.",
)
@level_options(multiple=False)
@click.option(
    "--fallback",
    type=click.Choice(["hold", "stop"]),
    required=True,
    help="Where no plan is safe: the action 0, or the end of the episode.",
)
@click.option("--steps", default=200, show_default=True, help="Of an episode.")
@click.option("--checked", type=int, help="Steps of a plan that must keep the limits.  [default: all]")
@click.option("--explore", default=64, show_default=True, help="Episodes on which scales are tried.")
@click.option("--episodes", default=400, show_default=True, help="Of each scale, at most.")
@click.option("--scale", "scales", type=float, multiple=True, help="Test these, and explore none.")
@click.option("--policy", type=FILE, help="The run's.  [default: the one that ships]")
@click.option("--ensemble", type=FILE, help="The run's.  [default: the one that was trained in it]")
@click.option("--tube", nargs=2, type=float, help="EPSILON DELTA of its certificate, where it has several.")
@address_option
@ledger_option
def guard(
    run: Path,
    limits: tuple[str, ...],
    levels: list[PACLevel],
    fallback: Any,
    steps: int,
    checked: int | None,
    explore: int,
    episodes: int,
    scales: tuple[float, ...],
    policy: Path | None,
    ensemble: Path | None,
    tube: tuple[float, float] | None,
    address: str,
    ledger: Any,
) -> None:
    """Guard a planner with the tubes of RUN, and certify its episodes.

    \b
    pac run rl --plans candidates --shape features --feature 'forward velocity' --horizon 6 --folder run ...
    pac guard run --limit 'forward velocity <= 3.2096' --fallback hold --epsilon 0.05 --delta 0.01

    RUN is a folder of `pac run rl --plans`. At each step the policy's actions, times 0, 0.05 ... 1, are
    weighed: the boldest whose tube keeps the limits acts, or the fallback. What is certified is P(a limit is
    broken in an episode), of exactly this controller. In Python, pac_rl.load_guard("RUN") is the checker.
    """
    place = RunFolder(str(run))
    chosen: dict[str, Any] = {"model": ensemble, "policy": policy, "fallback": fallback, "checked": checked}
    made = load_guard(run, limits, level=PACLevel(*tube) if tube else None, **chosen)
    say("tubes", made.certificate.promise)
    with resumable(place), engine_at(address) as engine:
        done = made.controller().certify(
            levels[0],
            steps=steps,
            folder=run,
            explore=explore,
            max_episodes=episodes,
            scales=sorted(scales, reverse=True) or None,
            ledger=ledger_for(place, ledger),
            engine=engine,
        )
    kept = {"limits": limits, "fallback": fallback, "scale": done.certified}
    place.put_text("guard.json", json.dumps(kept, indent=2))
    say("episodes", str(done))
    say("wrote", f"{run}/controller-{steps}.json, for pac verify and pac report")
