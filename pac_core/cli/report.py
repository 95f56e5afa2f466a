"""The command `pac report`: one page from run folders."""

from __future__ import annotations

from pathlib import Path

import click

from pac_core.cli.options import FILE, refuse_unwritable, say
from pac_core.datasets import read_classes
from pac_core.errors import InvalidInput
from pac_core.safety.limits import parse_limit


@click.command("report")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("report.html"), show_default=True
)
@click.option(
    "--limit",
    "limits",
    metavar="NAME<=NUMBER",
    multiple=True,
    help="Draw this limit into the tubes: 'forward velocity <= 3.2'.",
)
@click.option("--classes", type=FILE, help="Names of the labels: a line each, or ImageNet's class index.")
@click.option("--title", default="", help="Title of the page.")
def report_command(
    runs: tuple[str, ...], out: Path, limits: tuple[str, ...], classes: Path | None, title: str
) -> None:
    """Write one page about finished runs, to open from disk or send to a colleague.

    \b
    pac report run --out report.html
    pac report demo_output --limit 'forward velocity <= 3.2096'
    pac report runs.certificate.json

    RUN is a run folder, a folder with some below it, a certificate, or a file of pac watch. The page says
    what was promised, whether it held and what voids it, and shows what the runs hold. It takes no look at
    calibration units.
    """
    try:
        from pac_core.report import write_report
    except ImportError as error:
        raise InvalidInput(f"pac report needs {error.name}: install pac-sets[cluster]") from None

    refuse_unwritable("--out", out)
    known = read_classes(classes) if classes is not None else None
    names = () if known is None else known.names or known.keys
    write_report(runs, out, limits=[*map(parse_limit, limits)], classes=names, title=title)
    say("wrote", f"{out}: open it in a browser")
