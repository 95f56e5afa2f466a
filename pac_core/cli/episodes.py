"""The command `pac certify-episodes`: what a log of episodes proves so far."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pac_core.arrays import round_up
from pac_core.betting import confidence_sequence
from pac_core.bounds import PACLevel
from pac_core.certificates.descent import Descended, write_descent
from pac_core.certificates.ledger import LedgerPath, read_family
from pac_core.certificates.logs import EpisodeLog, certify_groups, certify_log, read_log
from pac_core.cli.options import FILE, LedgerName, ledger_beside, level_options, refuse_unwritable, say
from pac_core.errors import InvalidInput
from pac_core.evaluation import error_interval


@click.command("certify-episodes")
@click.argument("log", type=FILE)
@level_options(multiple=False)
@click.option("--error", help="The column that says whether an episode was an error.  [default: error]")
@click.option("--success", help="Instead, whether it was a success.  [default: success]")
@click.option(
    "--loss",
    "losses",
    multiple=True,
    help="Instead, a column of losses in [0, 1]. Repeat it for settings, from the safest to the boldest.",
)
@click.option("--id", "ids", help="The column that names the episodes.  [default: id, episode, ...]")
@click.option("--group", help="A column: a certificate for each of its values, which share delta.")
@click.option("--groups", help="All values that will ever come, as in flat,rough.  [default: those in LOG]")
@click.option("--task", help="Of a LeRobot file with several tasks: GROUP/ID.")
@click.option("--name", help="Of what is evaluated.  [default: the name of LOG]")
@click.option(
    "--most",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="The largest number of episodes; without a proof by then it has failed.",
)
@click.option("--at-end", is_flag=True, help="For losses: look once, at --most episodes.")
@click.option("--ledger", type=LedgerName(), help="Records the plan.  [default: pac-ledger beside LOG]")
@click.option("--out", type=FILE, help="To write.  [default: LOG with the ending .certificate.json]")
def certify_episodes(
    log: Path,
    levels: list[PACLevel],
    error: str | None,
    success: str | None,
    losses: tuple[str, ...],
    ids: str | None,
    group: str | None,
    groups: str | None,
    task: str | None,
    name: str | None,
    most: int,
    at_end: bool,
    ledger: LedgerPath | None,
    out: Path | None,
) -> None:
    """Certify a controller from its log, and stop as soon as the episodes have shown it.

    LOG has all episodes in the order in which they began, with an id and an outcome: CSV, JSON lines, or
    LeRobot's eval_info.json. It may grow: run the command again. Look as often as you like; delta stays what
    it is. An episode that began counts: one that was lost has the outcome "lost", one that still runs none.

    \b
    pac certify-episodes runs.csv --epsilon 0.05 --delta 0.01
    pac certify-episodes eval_info.json --epsilon 0.2 --delta 0.05
    pac certify-episodes runs.csv --loss violation_share --epsilon 0.02 --delta 0.01

    The exit code is 0 if the level is proved, and 1 if it is not, or not yet.
    """
    (level,) = levels
    title, target = name or log.name, out or log.with_suffix(".certificate.json")
    refuse_unwritable("--out", target)
    found = read_log(log, error=error, success=success, losses=losses, ids=ids, group=group, task=task)
    book = ledger_beside(log, ledger)
    if at_end and not losses:
        raise InvalidInput("--at-end is for --loss; for errors at a fixed number of episodes use `descend`")
    if groups is not None and group is None:
        raise InvalidInput("--groups names the values of --group COLUMN, got no --group")
    say("log", f"{len(found):,} finished episodes" + f", {found.waiting:,} not yet" * bool(found.waiting))
    if found.cut:
        say("note", "the last line has no end and is not read: it counts once it ends in a newline")
    counts = "loss" if losses else "no success" if "success" in (success, *found.losses) else "error"
    about: dict[str, Any] = {"ledger": book, "name": title, "most": most, "early": not at_end}
    about |= {"loss": bool(losses), "error": f"{counts}, by the column {', '.join(found.losses)} of the log"}
    if group is None:
        done = {"": certify_log(found, level, **about)}
    else:
        done = certify_groups(found, level, groups=groups.split(",") if groups else (), **about)
        own = round_up(next(iter(done.values())).plan.level.delta)
        say("groups", f"{', '.join(done)}: each at delta = {own}, so all hold together")
    for kind, shown in done.items():
        _tell(found.of_group(kind) if kind else found, shown, kind)
        path = target.with_name(f"{target.stem}-{kind.replace('/', '_')}.json") if kind else target
        write_descent(shown, path)
        say("wrote", f"{path}; check it with: pac verify {path} --ledger {book}")
    family = read_family(book)
    if family.budget is None and family.attempts > 1:
        say("note", f"{family} pac verify confirms one evaluation in such a ledger: give others their own")
    sys.exit(0 if all(shown.certified is not None for shown in done.values()) else 1)


def _tell(log: EpisodeLog, shown: Descended, group: str) -> None:
    """The certificate, and beside it what else the errors say."""
    if group:
        say("group", group)
    say("certified" if shown.certified is not None else "open" if shown.open else "failed", str(shown))
    if shown.open and (more := shown.plan.more(shown.errors[-1])):
        say("needed", f"{more:,} more episodes without an error would prove it")
    errors, delta = next(iter(log.losses.values()))[: len(log)], shown.plan.level.delta
    if shown.plan.loss or not len(errors):
        return
    low, high = confidence_sequence(errors, delta)[-1]
    count, n = int(errors.sum()), len(errors)
    once = error_interval(count, n, delta / 2)
    sure = f"with confidence 1 - {round_up(delta)}, instead of the certificate, not beside it"
    say("any time", f"{count:,} of {n:,}: an error rate of {low:.4f} to {round_up(high, 4)} {sure}")
    rule = "(Clopper-Pearson): valid only if n was fixed beforehand"
    say("once", f"{once[0]:.4f} to {round_up(once[1], 4)} {rule}")
