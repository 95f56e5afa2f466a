"""`pac tune`: a sweep over a finished run with Ray Tune."""

from __future__ import annotations

import click

from cluster.commands.launch import ledger_for, ledger_option, resumable, tune_run
from cluster.session import ADDRESSES, connected
from pac_core import PACLevel
from pac_core.certificates import LedgerPath
from pac_core.cli import level_options, say
from pac_core.runs import RunFolder


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
