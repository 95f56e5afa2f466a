"""The command `pac ledger`: what each look was for, and what it cost."""

from __future__ import annotations

import json

import click

from pac_core.arrays import round_up
from pac_core.certificates.ledger import LedgerPath, open_ledger, read_family, read_ledger, read_notes
from pac_core.cli.options import LedgerName, refuse_unwritable


@click.command("ledger")
@click.argument("path", type=LedgerName())
@click.option("--budget", type=float, help="Start a ledger that charges every attempt to this budget.")
def ledger_command(path: LedgerPath, budget: float | None) -> None:
    """Show what each look was for, what it cost, and later notes.

    \b
    pac ledger pac-ledger
    pac ledger new/pac-ledger --budget 0.01

    With a budget, fixed before the first look, no statement ever issued from the ledger is false, with
    confidence 1 - budget: every attempt is charged beforehand, and refused once the budget is spent.
    """
    if budget is not None:
        refuse_unwritable("PATH", path)
        open_ledger(path, budget=budget)
    family = read_family(path)
    click.echo(str(family))
    if family.left is not None:
        click.echo(f"left: {family.left!r}, of which {family.share!r} allows any number of later attempts")
    for opening in read_ledger(path):
        cost = round_up(opening.cost, 4)
        click.echo(f"{opening.n:,} units {opening.calibrate[:12]}: joint failure probability < {cost}")
        for entry in opening.menu:
            click.echo(f"  score {entry.score[:12]}  epsilon={entry.epsilon:g}  delta={entry.delta:g}")
        for name, value in (opening.plan or {}).items():
            click.echo(f"  {name}: {json.dumps(value)}")
    for note in read_notes(path):
        click.echo(f"{note.time} {note.kind}: {json.dumps(note.facts)}")
