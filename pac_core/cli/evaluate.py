"""The commands `pac evaluate`, error and sizes on test units, and `pac watch`, is it still the same world?"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np

from pac_core.arrays import check_numbers
from pac_core.certificates.certificate import Certificate, scores_digest
from pac_core.cli.options import FILE, group_option, ids_option, labels_option, say
from pac_core.cli.verify import groups_in, read_both, same_split, scores_beside
from pac_core.datasets import ROWS, Dataset, read_arrays, read_dataset
from pac_core.errors import InvalidInput, PACError
from pac_core.evaluation import calibration_error, evaluate
from pac_core.forecasts import LogitForecast, check_forecast, drop_failed, flatten_candidates
from pac_core.safety.monitor import ScoreMonitor
from pac_core.sets.predictor import GivenScore, Likelihood, Predictor, score_units
from pac_core.splits import ids_digest, refuse_overlap
from pac_core.thresholds import Groups


@click.command("evaluate")
@click.argument("certificate", type=FILE)
@click.argument("data", type=FILE)
@ids_option
@labels_option
@click.option("--by", multiple=True, help="An array of DATA; each of its values gets a row.")
@group_option
def evaluate_command(
    certificate: Path,
    data: Path,
    ids: str | None,
    logits: str | None,
    labels: str | None,
    by: tuple[str, ...],
    group: str | None,
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
    groups, own = _groups(data, by, unknown), groups_in(document, data, units, group)
    own = None if own is None else own[unknown]
    units = units.take(np.flatnonzero(unknown))
    say("test", f"{len(units.ids):,} units{left_out}")
    failed = check_forecast(units.forecast).failed
    if failed is not None:
        say("failed", f"{failed.sum():,} units have no forecast: their sets are empty and count as errors")
    if isinstance(units.forecast, LogitForecast):
        right = np.where(units.forecast.predictions() == units.truth, "right", "wrong")
        groups["prediction"] = right if failed is None else np.where(failed, "none, failed", right)
    threshold = document.predictor.threshold
    names = threshold.names_of(own, units.truth)
    promised = None if names is None else Groups(names, column=getattr(threshold, "column", ""))
    several = np.ndim(getattr(units.forecast, "mean", 0)) == 4
    sets = (_candidate_sets if several else Predictor.sets)(document.predictor, units.forecast, own)
    result = evaluate(sets, units.truth, threshold.level, by=groups, groups=promised)
    click.echo(str(result))
    score = document.predictor.score
    some = failed is None or not failed.all()
    if isinstance(units.forecast, LogitForecast) and isinstance(score, Likelihood) and some:
        forecast, truth = drop_failed(units.forecast, units.truth)
        errors = (calibration_error(f, truth) for f in (forecast, score.prepared(forecast)))
        click.echo("calibration error (ECE) {:.4f} before, {:.4f} after the temperature".format(*errors))
    sys.exit(1 if result.refuted else 0)


def _candidate_sets(predictor: Predictor, forecast: Any, groups: Any) -> Any:
    """Of units with K candidates each `[N, K, H, D]`: missed if one of them is; sizes are means over them."""
    k = forecast.mean.shape[1]
    plans, _ = flatten_candidates(forecast, forecast.mean)
    each = predictor.sets(plans, None if groups is None else np.repeat(groups, k))

    def inside(truth: Any) -> Any:
        return each.contains(flatten_candidates(forecast, truth)[1]).reshape(-1, k).all(axis=1)

    size, empty = each.size().reshape(-1, k).mean(axis=1), each.empty.reshape(-1, k).any(axis=1)
    words = f"{each.size_in}, mean over candidates"
    return SimpleNamespace(contains=inside, size=lambda: size, empty=empty, size_in=words)


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
