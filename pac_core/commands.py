"""The smaller commands of `pac`: all but `pac fit`, `pac sets` and `pac verify`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from pac_core.bounds import PACLevel, max_errors, min_samples
from pac_core.certificates import Certificate
from pac_core.datasets import ROWS, Dataset
from pac_core.errors import InvalidInput
from pac_core.evaluation import calibration_error, evaluate
from pac_core.failures import failed_units, to_tune_on
from pac_core.figures import plot_bounds
from pac_core.forecasts import LogitForecast
from pac_core.ledger import LedgerPath, open_ledger, read_family, read_ledger, read_notes
from pac_core.options import (
    FILE,
    FOLDER,
    LedgerName,
    ids_option,
    labels_option,
    level_options,
    refuse_unwritable,
    say,
)
from pac_core.predictors import GivenScore, Likelihood
from pac_core.serving import sets_command
from pac_core.splits import ids_digest
from pac_core.tables import read_arrays
from pac_core.texts import at_least
from pac_core.verifying import read_both, same_split, scores_beside


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


@click.command("evaluate")
@click.argument("certificate", type=FILE)
@click.argument("data", type=FILE)
@ids_option
@labels_option
@click.option("--by", multiple=True, help="An array of DATA; each of its values gets a row.")
def evaluate_command(
    certificate: Path,
    data: Path,
    ids: str | None,
    logits: str | None,
    labels: str | None,
    by: tuple[str, ...],
) -> None:
    """Measure error and set sizes on test units.

    The exit code is 1 if the promise is refuted. Units that were tuned or calibrated on are left out: those
    of the file that was split, and those named in the scores file beside the certificate.
    """
    document, units = read_both(certificate, data, ids, labels, logits)
    if isinstance(document.predictor.score, GivenScore):
        raise InvalidInput(f"{certificate} was made from bare scores, so there are no sets to evaluate")
    if units.forecast is None or units.truth is None:
        raise InvalidInput(f"{data} must hold forecasts and truths to evaluate sets")
    unknown = ~np.isin(units.ids, _looked_at(certificate, document, units))
    if not unknown.any():
        raise InvalidInput("no units are left to test: all were tuned or calibrated on")
    left_out = f"; {(~unknown).sum():,} tuned or calibrated on are left out" if not unknown.all() else ""
    groups = _groups(data, by, unknown)
    units = units.take(np.flatnonzero(unknown))
    say("test", f"{len(units.ids):,} units{left_out}")
    failed = failed_units(units.forecast)
    if failed is not None:
        say("failed", f"{failed.sum():,} units have no forecast: their sets are empty and count as errors")
    if isinstance(units.forecast, LogitForecast):
        right = np.where(units.forecast.predictions() == units.truth, "right", "wrong")
        groups["prediction"] = right if failed is None else np.where(failed, "none, failed", right)
    sets = document.predictor.sets(units.forecast)
    result = evaluate(sets, units.truth, document.predictor.threshold.level, by=groups)
    click.echo(str(result))
    score = document.predictor.score
    some = failed is None or not failed.all()
    if isinstance(units.forecast, LogitForecast) and isinstance(score, Likelihood) and some:
        forecast, truth = to_tune_on(units.forecast, units.truth)
        errors = (calibration_error(f, truth) for f in (forecast, score.prepared(forecast)))
        click.echo("calibration error (ECE) {:.4f} before, {:.4f} after the temperature".format(*errors))
    sys.exit(1 if result.refuted else 0)


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
        cost = at_least(opening.cost, 4)
        click.echo(f"{opening.n:,} units {opening.calibrate[:12]}: joint failure probability < {cost}")
        for entry in opening.menu:
            click.echo(f"  score {entry.score[:12]}  epsilon={entry.epsilon:g}  delta={entry.delta:g}")
        for name, value in (opening.plan or {}).items():
            click.echo(f"  {name}: {json.dumps(value)}")
    for note in read_notes(path):
        click.echo(f"{note.time} {note.kind}: {json.dumps(note.facts)}")


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


ALL = (min_n, sets_command, evaluate_command, ledger_command, plot)


def _looked_at(certificate: Path, document: Certificate, units: Dataset) -> Any:
    """Ids of the units that were tuned or calibrated on, as far as they are known."""
    parts = same_split(document, units)
    if parts is not None:
        return units.ids[np.concatenate([parts.tune.rows, parts.calibrate.rows])]
    digests = [document.parts[name].digest for name in ("calibrate", "tune")]
    for known in scores_beside(certificate):
        both = [known["ids"], known["tune_ids"]]
        if [ids_digest(ids) if len(ids) else None for ids in both] == digests:
            if not units.named or (document.split and document.split.ids == ROWS):
                say("note", "units without ids cannot be compared: make sure that the data is new")
            return np.concatenate(both)
    say("note", "which units were tuned or calibrated on is not known: make sure that the data has none")
    return np.array([], dtype=str)


def _groups(data: Path, names: tuple[str, ...], rows: Any) -> dict[str, Any]:
    """The named arrays of the file, restricted to the test rows."""
    arrays = read_arrays(data) if names else {}
    for name in names:
        if name not in arrays or arrays[name].shape != rows.shape or (arrays[name] != arrays[name]).any():
            raise InvalidInput(f"--by must name an array of {data} with a value for each unit, got {name!r}")
    return {name: arrays[name][rows] for name in names}
