"""The commands `pac verify` and `pac ledger`, and how a certificate and its data are read together."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import click
import numpy as np

from pac_core.arrays import round_up
from pac_core.certificates.certificate import (
    Certificate,
    Check,
    read_certificate,
    read_json,
    scores_digest,
    verify,
)
from pac_core.certificates.descent import FORMAT as DESCENT
from pac_core.certificates.descent import read_descent, verify_descent
from pac_core.certificates.ledger import (
    LedgerPath,
    open_ledger,
    read_family,
    read_ledger,
    read_notes,
    score_digest,
)
from pac_core.cli.options import FILE, LedgerName, ids_option, labels_option, refuse_unwritable
from pac_core.datasets import ROWS, Dataset, read_arrays, read_dataset
from pac_core.errors import InvalidInput, PACError
from pac_core.forecasts import EXACT_TO, LogitForecast, drop_failed
from pac_core.sets.label_scores import RankedScore, choose_label_score
from pac_core.sets.predictor import Likelihood, score_units
from pac_core.splits import Splits, ids_digest, split
from pac_core.thresholds import GroupThreshold, group_names


@click.command("verify")
@click.argument("certificate", type=FILE)
@click.argument("data", type=click.Path(path_type=Path), required=False)
@ids_option
@labels_option
@click.option("--ledger", type=LedgerName(), help="The ledger that records it; required for a descent.")
def verify_command(
    certificate: Path,
    data: Path | None,
    ids: str | None,
    logits: str | None,
    labels: str | None,
    ledger: LedgerPath | None,
) -> None:
    """Check that a certificate follows from its scores or forecasts.

    From scores: recompute n, k*, T and the digests. From forecasts: recompute also the split, the temperature
    or the choice of the score, and the scores; tube shapes are not fitted again. With the ledger: check that
    it records the look, and show what else it holds. A descent is compared with its ledger: the plan, the
    counts, and the number of attempts, whatever their names. The exit code is 1 if anything differs.

    \b
    pac verify certificate.json scores.npz
    pac verify descent.json --ledger pac-ledger
    """
    if _is_descent(certificate):
        _verify_descent(certificate, ledger or data)
    if data is None:
        raise InvalidInput("DATA must be given: the scores or forecasts that the certificate was made from")
    document, units = read_both(certificate, data, ids, labels, logits)
    groups = groups_in(document, data, units)
    if groups is None:
        groups = document.predictor.threshold.names_of(None, units.truth)
    known = {} if groups is None else dict(zip(units.ids.tolist(), groups.tolist(), strict=True))
    if not (stored := units.scores is not None):
        units, checks = _scores_again(document, units, certificate)
    else:
        checks = [_same_score(document, data)]
    mine = [known[name] for name in units.ids.tolist()] if known else None
    checks += verify(document, units.scores, units.ids, mine, ordered=stored)
    if ledger is not None:
        checks.append(_in_ledger(document, ledger))
    _answer(checks, "the certificate follows from these scores", "the certificate does NOT follow")


def _answer(checks: list[Check], yes: str, no: str) -> NoReturn:
    for check in checks:
        click.echo(f"{ {True: 'ok', False: 'NO', None: '--'}[check.holds]:4}{check.name:13}{check.text}")
    holds = all(check.holds is not False for check in checks)
    click.echo(yes if holds else no)
    sys.exit(0 if holds else 1)


def _is_descent(path: Path) -> bool:
    with contextlib.suppress(PACError):
        return read_json(path).get("format") == DESCENT
    return False


def _verify_descent(path: Path, ledger: LedgerPath | None) -> NoReturn:
    if ledger is None:
        raise InvalidInput(f"--ledger must be given: the ledger that records {path}")
    descended = read_descent(path)
    click.echo(str(descended))
    checks = verify_descent(descended, ledger)
    _answer(checks, "the ledger confirms it", "the ledger does NOT confirm it as it stands")


def _in_ledger(document: Certificate, ledger: LedgerPath) -> Check:
    """Whether the ledger records a look at these units for this score and level, and what else it holds."""
    predictor, units = document.predictor, document.parts["calibrate"].digest
    looks = [one for one in read_ledger(ledger) if one.calibrate == units]
    members = document.memberships
    looks = [one for one in looks if (one.plan or {}).get("groups", {}).get("memberships") == members]
    known = any(
        (entry.score, entry.level) == (score_digest(predictor.score, of), predictor.threshold.level)
        for look in looks
        for of in ("", document.model.name, *(look.plan or {}).get("of", ()))
        for entry in look.menu
    )
    return Check("ledger", known, str(read_family(ledger)) if known else f"{ledger} holds no such look")


def read_both(
    certificate: Path, data: Path, ids: str | None, labels: str | None = None, logits: str | None = None
) -> tuple[Certificate, Dataset]:
    """Read both files; ids have the name they had when the certificate was made, if the data has it."""
    if certificate.suffix in (".npz", ".npy", ".csv", ".parquet"):
        raise InvalidInput(f"the certificate (JSON) comes first and the data second, got {certificate} first")
    document = read_certificate(certificate)
    name = document.split.ids if document.split else "ids"
    if ids is None and name not in ("ids", ROWS) and name in read_arrays(data):
        ids = name
    units = read_dataset(data, ids=ids, labels=labels, logits=logits)
    refuse_other_model(document, units, data)
    return document, units


def groups_in(document: Certificate, data: Path, units: Dataset, group: str | None = None) -> Any:
    """`[N]` the group of each unit of a file, where sets or scores need it; else None."""
    threshold = document.predictor.threshold
    known = isinstance(threshold, GroupThreshold) and threshold.labels is None
    if group is not None and not known:
        raise InvalidInput("--group is for a threshold per group of units, which this certificate has not")
    if not isinstance(threshold, GroupThreshold) or not (known or units.scores is not None):
        return None
    arrays = read_arrays(data)
    column = next((name for name in (group or threshold.column, "group") if name in arrays), None)
    if column is None or (group is not None and column != group):
        raise InvalidInput(
            f"{data} must hold the group of each unit as {group or threshold.column!r}; or --group"
        )
    return group_names(arrays[column])


def refuse_other_model(document: Certificate, units: Dataset, data: Path) -> None:
    """Refuse forecasts of another model, or rounded differently, than those calibrated."""
    if units.model is None or document.model.digest in (None, units.model[1]):
        return
    (name, digest), stated = units.model, str(document.model.digest)
    raise InvalidInput(
        f"{data} is of the model {name} with digest {digest[:20]}, the certificate of {document.model.name} "
        f"with digest {stated[:20]}"
    )


def scores_beside(certificate: Path) -> Iterator[dict[str, Any]]:
    """The readable scores files in the folder of a certificate."""
    for path in sorted(certificate.parent.glob("*.scores.npz")):
        with contextlib.suppress(PACError):
            arrays = read_arrays(path)
            if {"scores", "ids", "tune_ids"} <= set(arrays):
                yield {name: arrays[name] for name in ("scores", "ids", "tune_ids")}


def same_split(document: Certificate, units: Dataset) -> Splits | None:
    """The split as it was made, if these are the units it was drawn from."""
    made, parts = document.split, document.parts
    if made is None or ids_digest(units.ids) != made.pool:
        return None
    tuned = parts["tune"].n or 0
    again = split(units.ids, tune=tuned, calibrate=document.predictor.threshold.n, seed=made.seed)
    if parts["calibrate"].digest != again.calibrate.digest:
        raise InvalidInput("the certificate's split cannot be drawn again from these ids")
    return again


def _scores_again(document: Certificate, units: Dataset, certificate: Path) -> tuple[Dataset, list[Check]]:
    """The calibration scores, recomputed from forecasts, and a check of the temperature.

    If they differ from those beside the certificate by rounding alone, T must follow from the latter.
    """
    parts = same_split(document, units)
    if parts is None or units.truth is None:
        raise InvalidInput("the data must be the calibration scores, or all units of the split (check --ids)")
    score = document.predictor.score
    checks = []
    if isinstance(score, Likelihood) and (stated := score.temperature) is not None:
        tune = units.take(parts.tune.rows)
        try:
            again = Likelihood.fit(tune.forecast, tune.truth, accumulate=score.accumulate).temperature
        except PACError as error:
            checks.append(Check("temperature", False, str(error)))
        else:
            tau: Any = getattr(again, "tau", None)
            same = np.shape(stated.tau) == np.shape(tau) and np.allclose(stated.tau, tau, rtol=1e-6)
            checks.append(Check("temperature", bool(same), f"found {again}, stated {stated}"))
    if isinstance(score, RankedScore):
        checks.append(_choice_again(document, score, units.take(parts.tune.rows)))
    elif not isinstance(score, Likelihood):
        checks.append(Check("shape", None, f"the shape {score.kind} was not fitted again"))
    chosen = units.take(parts.calibrate.rows)
    anew = Dataset(chosen.ids, chosen.named, scores=score_units(score, chosen.forecast, chosen.truth))
    stored, check = _compared(document, anew, rounding(score, chosen.forecast), certificate)
    return stored, [*checks, check]


def rounding(score: Any, forecast: Any) -> float:
    """How far scores of about 1 may differ if computed on two CPUs or by two libraries."""
    if not isinstance(forecast, LogitForecast) or forecast.logits.dtype == np.float64:
        return 1e-9
    return 1e-9 + 2 * EXACT_TO * (score.moves if isinstance(score, RankedScore) else 1)


def _choice_again(document: Certificate, stated: RankedScore, tune: Dataset) -> Check:
    """Whether the tune units lead to the stated score; not checked if it was chosen for several levels."""
    levels = document.menu.asked if document.menu else 0
    if not stated.n or levels != 1 or not isinstance(tune.forecast, LogitForecast):
        return Check("choice", None, f"the score was not chosen again: {stated}")
    level, n = document.predictor.threshold.level, document.predictor.threshold.n
    try:
        chosen = choose_label_score(*drop_failed(tune.forecast, tune.truth), level, calibrate=n)
    except PACError as error:
        return Check("choice", False, str(error))
    same = isinstance(chosen, RankedScore) and chosen.close_to(stated)
    return Check("choice", same, f"found {chosen}, stated {stated}")


def _compared(
    document: Certificate, units: Dataset, within: float, certificate: Path
) -> tuple[Dataset, Check]:
    """The certificate's own scores, if the recomputed ones differ from them by rounding alone."""
    if scores_digest(units.scores) == document.scores:
        return units, Check("forecasts", True, "the recomputed scores are the same")
    for known in scores_beside(certificate):
        ids, scores = known["ids"].astype(str), known["scores"]
        if scores_digest(scores) == document.scores and len(scores) == len(ids) == len(units.ids):
            stored = Dataset(ids, units.named, scores=scores)
            order, theirs = np.argsort(units.ids), np.argsort(ids)
            same = np.array_equal(units.ids[order], ids[theirs])
            if same and np.allclose(scores[theirs], units.scores[order], rtol=1e-9, atol=within):
                text = f"the recomputed scores are the same up to rounding (at most {within:.2g})"
                return stored, Check("forecasts", True, text)
            return units, Check("forecasts", False, "the recomputed scores differ")
    text = "the recomputed scores differ, and no scores file beside the certificate shows by how much"
    return units, Check("forecasts", False, text)


def _same_score(document: Certificate, data: Path) -> Check:
    """Whether the file says that its numbers are of the certificate's score."""
    stated = read_arrays(data).get("score")
    if stated is None or stated.ndim:
        return Check("score", None, "the file does not say of which score its numbers are")
    same = str(stated) == score_digest(document.predictor.score)
    return Check("score", same, f"the numbers are of {'this' if same else 'another'} score")


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
        for other in opening.compared or ():
            click.echo(f"  compared with the {other}")
        for name, value in (opening.plan or {}).items():
            click.echo(f"  {name}: {json.dumps(value)}")
    for note in read_notes(path):
        click.echo(f"{note.time} {note.kind}: {json.dumps(note.facts)}")
