"""The command `pac watch`: are new units still drawn as the calibration units were?"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click
import numpy as np

from pac_core.arrays import check_numbers
from pac_core.certificates.certificate import scores_digest
from pac_core.cli.options import FILE, ids_option, labels_option
from pac_core.cli.verify import read_both
from pac_core.datasets import Dataset, read_dataset
from pac_core.errors import InvalidInput, PACError
from pac_core.safety.monitor import ScoreMonitor
from pac_core.sets.predictor import score_units
from pac_core.splits import refuse_overlap


@click.command("watch")
@click.argument("certificate", type=FILE)
@click.argument("data", type=FILE)
@click.option("--alpha", default=0.01, show_default=True, help="Probability of a false alarm, ever.")
@click.option("--state", type=FILE, help="What was seen so far.  [default: CERTIFICATE.watch.json]")
@ids_option
@labels_option
def watch_command(
    certificate: Path,
    data: Path,
    alpha: float,
    state: Path | None,
    ids: str | None,
    logits: str | None,
    labels: str | None,
) -> None:
    """Watch the scores of new units, and raise an alarm if they are of another source.

    DATA holds all units since the certificate, in the order in which they began: scores, or forecasts with
    their truth. It may grow: each call goes on after the units that it has seen, which must stay as they are.
    The exit code is 1 while the alarm stands. A failed or lost unit scores inf; none may be left out.

    \b
    pac watch certificate.json new-scores.csv --alpha 0.01
    """
    document, units = read_both(certificate, data, ids, labels, logits)
    if units.scores is None and units.truth is None:
        raise InvalidInput(f"{data} must hold scores, or forecasts with their truth")
    folder, known = certificate.parent, Dataset(units.ids[:0], True)
    for path in sorted([*folder.glob("*.scores.npz"), *folder.glob("scores*.parquet")]):
        with contextlib.suppress(PACError):
            beside = read_dataset(path)
            if beside.scores is not None and scores_digest(beside.scores) == document.scores:
                known = beside
    if known.scores is None:
        raise InvalidInput(f"the scores that {certificate} was made from must lie beside it: put them there")
    refuse_overlap({"calibrate": known.ids, "new units": units.ids})
    scores = units.scores
    if scores is None:
        scores = score_units(document.predictor.score, units.forecast, units.truth)
    scores = check_numbers("scores", scores, "[N]").astype(np.float64)
    monitor = ScoreMonitor(known.scores, alpha, state or certificate.with_suffix(".watch.json"))
    seen = len(monitor.scores)
    if scores[:seen].tolist() != monitor.scores:
        raise InvalidInput(
            f"{data} must begin with the {seen:,} units that were seen, as they were: units are added at the "
            "end, and none is changed or left out"
        )
    if len(scores) > seen:
        monitor.observe(scores[seen:])
    click.echo(repr(monitor))
    sys.exit(1 if monitor.alarm else 0)
