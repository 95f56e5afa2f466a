"""The commands `pac min-n` and `pac plot bounds`: how many calibration units a level needs."""

from __future__ import annotations

from pathlib import Path

import click

from pac_core.bounds import PACLevel, max_errors, min_samples
from pac_core.cli.options import FOLDER, level_options, say
from pac_core.plots import plot_bounds


@click.command("min-n")
@level_options(multiple=False)
@click.option("--errors", default=0, show_default=True, help="Errors to allow among the units.")
@click.option("--n", type=int, help="Instead, print how many errors this many units allow.")
def min_n(levels: list[PACLevel], errors: int, n: int | None) -> None:
    """Print how many calibration units a level needs.

    \b
    pac min-n --epsilon 0.01 --delta 1e-5
    pac min-n --epsilon 0.01 --delta 1e-5 --n 20000
    """
    (level,) = levels
    if n is None:
        click.echo(
            f"{min_samples(level, errors):,} calibration units prove epsilon={level.epsilon:g}, "
            f"delta={level.delta:g} if at most {errors:,} of them may lie outside their set"
        )
    else:
        click.echo(f"{n:,} calibration units prove it with up to {max_errors(n, level):,} outside their set")


@click.group("plot")
def plot() -> None:
    """Draw figures."""


@plot.command("bounds")
@click.option("--delta", default=1e-5, show_default=True, help="Probability that the promise fails.")
@click.option("--errors", multiple=True, default=(0, 1, 10, 50), show_default=True, help="Values of k.")
@click.option(
    "--out", type=FOLDER, default=Path("figures"), show_default=True, help="Folder for the figures."
)
def plot_bounds_command(delta: float, errors: tuple[int, ...], out: Path) -> None:
    """Plot the units needed against epsilon: VC against direct bound, and the latter for several k."""
    PACLevel(0.1, delta)
    for path in plot_bounds(out, delta=delta, errors=errors):
        say("wrote", str(path))
