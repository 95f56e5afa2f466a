"""The command `pac fit`: from scores or forecasts to certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from pac_core.bounds import PACLevel, share_level
from pac_core.certificates.certificate import Record, scores_digest, write_certificate
from pac_core.certificates.certify import Certified, certify, certify_scores, train_record
from pac_core.certificates.ledger import LedgerPath, ledger_name, score_digest
from pac_core.cli.options import (
    FILE,
    LEDGER,
    LedgerName,
    ids_option,
    labels_option,
    level_options,
    read_groups,
    read_lines,
    refuse_existing,
    refuse_unwritable,
    say,
    say_cost,
    shape_options,
)
from pac_core.datasets import (
    KEYS,
    ROUNDED,
    ROWS,
    Dataset,
    file_digest,
    label_files,
    read_arrays,
    read_dataset,
    write_arrays,
)
from pac_core.errors import InvalidInput
from pac_core.evaluation import calibration_error, describe_accuracy
from pac_core.exchangeability import describe_world
from pac_core.files import real_path
from pac_core.fitting import command_fitter, resolve_score
from pac_core.forecasts import LogitForecast, check_forecast, drop_failed
from pac_core.sets.label_scores import LABEL_SCORES, RankedScore
from pac_core.sets.predictor import GivenScore, Likelihood
from pac_core.splits import refuse_overlap

NOT_NAMED = "not named"


@click.command(epilog=f"\b\n{KEYS}")
@click.argument("data", type=FILE)
@level_options(multiple=True)
@click.option("--tune", type=int, help="Units for choosing temperature, score or shape; forecasts only.")
@click.option("--calibrate", type=int, help="Units in the calibration set; the rest is for testing.")
@click.option("--seed", default=0, show_default=True, help="Seed of the split.")
@ids_option
@labels_option
@click.option(
    "--score",
    type=click.Choice(LABEL_SCORES),
    help="For labels: the score with the smallest sets on the tune units, the paper's -log f with a fitted "
    "temperature, or plain -log f.  [default: smallest]",
)
@click.option("--temperature/--no-temperature", default=None, help="The same as --score paper, or plain.")
@shape_options
@click.option(
    "--group",
    metavar="COLUMN|label|label:FILE",
    help="A threshold for each group: of units, known when a set is made, by an array of DATA; or of labels, "
    "each its own, or by a file with the group of each label on a line.",
)
@click.option("--merge-small", is_flag=True, help="Make one group, other, of those with too few units.")
@click.option("--any-of", is_flag=True, help="Arrays [N, K, H, D]: for whichever of K candidates is picked.")
@click.option("--drawn-of", type=int, help="With --any-of: [N, H, D], one of so many, drawn uniformly.")
@click.option("--score-name", default=NOT_NAMED, help="For a file of scores: what they are, in words.")
@click.option("--unit", default="unit", show_default=True, help="What is drawn independently, in one word.")
@click.option("--model", default=NOT_NAMED, help="The model, in words.  [default: what DATA states, if any]")
@click.option("--model-file", type=FILE, help="The model's weights; the certificate records their digest.")
@click.option("--train", default=NOT_NAMED, help="What the model was trained on, in words.")
@click.option("--train-ids", type=FILE, help="Ids it was trained on, one per line; refused as units.")
@click.option("--order", help="The array of DATA that says when units were collected.  [default: by row]")
@click.option("--held-out", type=FILE, help="Units of another collection, none fitted on, to compare with.")
@click.option("--out", type=FILE, default=Path("certificate.json"), show_default=True, help="To write.")
@click.option("--ledger", type=LedgerName(), help="The record of looks.  [default: pac-ledger beside DATA]")
@click.option("--force", is_flag=True, help="Replace existing files.")
def fit(
    data: Path,
    levels: list[PACLevel],
    tune: int | None,
    calibrate: int | None,
    seed: int,
    ids: str | None,
    logits: str | None,
    labels: str | None,
    score: str | None,
    temperature: bool | None,
    shape: str | None,
    features: tuple[str, ...],
    group: str | None,
    merge_small: bool,
    any_of: bool,
    drawn_of: int | None,
    score_name: str,
    unit: str,
    model: str,
    model_file: Path | None,
    train: str,
    train_ids: Path | None,
    order: str | None,
    held_out: Path | None,
    out: Path,
    ledger: LedgerPath | None,
    force: bool,
) -> None:
    """Calibrate: from scores or forecasts to a certificate.

    \b
    pac fit scores.npz --epsilon 0.01 --delta 1e-5
    pac fit logits.npz --epsilon 0.05 --delta 1e-5 --tune 1000 --calibrate 2000
    pac fit mine.npz --logits z --labels y --level 0.05,1e-5 --level 0.02,1e-3 ...

    Each row must be an independent unit; frames of one video are not. The calibration units are recorded in a
    ledger beside the data before they are used, and no later certificate may use them: ask for every epsilon
    and delta at once. In the same look their scores are compared with the order of collection and with
    --held-out, for you to read: T does not depend on it.
    """
    several = [f"{out.stem}-{level.epsilon!r}-{level.delta!r}{out.suffix}" for level in levels]
    targets = [out] if len(levels) == 1 else [out.with_name(name) for name in several]
    if drawn_of is not None:
        levels = [share_level(level, drawn_of) for level in levels]
    if out.suffix != ".json":
        raise InvalidInput(f"--out must end in .json, got {out}")
    book = ledger or real_path(data).parent / LEDGER
    written = {real_path(path) for path in (*targets, scores_path(out))}
    read: list[Any] = [data, f"{ledger_name(book)}.json", model_file, train_ids]
    read += [] if labels is None else label_files(labels)
    if written & {real_path(path) for path in read if path}:
        raise InvalidInput(f"--out must not be a file that is read, nor the ledger, got {out}")
    refuse_existing(force, *targets, scores_path(out))
    refuse_unwritable("--out", out)
    refuse_unwritable("--ledger", book)
    units = read_dataset(data, ids=ids, labels=labels, logits=logits)
    say("read", f"{len(units.ids):,} units from {data}")
    if not units.named:
        say("note", "the file has no ids: its units are known only as rows of this very file")
    if units.model is not None and model_file is not None:
        raise InvalidInput(f"--model-file must not be given: {data} states its model, {units.model[0]}")
    made_by = units.model or (model, None)
    rounded = isinstance(units.forecast, LogitForecast) and units.forecast.logits.dtype == np.float16
    digest = made_by[1] if model_file is None else f"{ROUNDED * rounded}{file_digest(model_file)}"
    record = Record(made_by[0] if model == NOT_NAMED else model, digest=digest)
    about: dict[str, Any] = {"unit": unit, "model": record, "ids": units.ids, "ledger": book}
    if rounded:
        say("note", "the logits are float16: the promise is about sets from logits rounded to float16")
    domain = None if units.forecast is None else units.forecast.domain
    groups = about["groups"] = read_groups(data, group, domain, merge_small)
    source = Record(data.name, len(units.ids), file_digest(data))
    seen = [] if train_ids is None else read_lines(train_ids)
    if order is not None and order not in (arrays := read_arrays(data)):
        raise InvalidInput(f"--order must name an array of {data}, got {order!r}")
    about["order"] = None if order is None else arrays[order]
    others = None if held_out is None else read_dataset(held_out, ids=ids, labels=labels, logits=logits)
    if others is not None:
        refuse_overlap({"held-out": others.ids, "tune, calibrate or test": units.ids})
        if (others.scores is None) != (units.scores is None) or others.scores is others.truth is None:
            raise InvalidInput(f"--held-out must hold what {data} does: scores, or forecasts and their truth")
    if units.forecast is None:
        if tune is not None or calibrate is not None:
            raise InvalidInput("--tune and --calibrate split forecasts, but the file holds scores")
        refuse_overlap({"train": seen, "calibrate": units.ids})
        scores = units.scores
        about |= {"data": scores_digest(scores), "train": train_record(train, seen), "source": source}
        about["held_out"] = others and others.scores
        made = certify_scores(GivenScore(score_name), lambda: scores, levels, **about)
    else:
        if units.truth is None:
            raise InvalidInput(f"{data} must hold the truth: an array 'labels' or 'truth', or give --labels")
        kind = resolve_score(units.forecast, score, temperature)
        if calibrate is None or (not tune and kind != "plain"):
            raise InvalidInput("--tune and --calibrate must both be above 0: units to choose, units to prove")
        chosen: Any = {"any_of": any_of, "drawn_of": drawn_of} if any_of or drawn_of is not None else {}
        choose = command_fitter(units.forecast, kind, shape, features, levels, calibrate, **chosen)
        made = certify(
            units.forecast,
            units.truth,
            levels,
            ids_name=(ids or "ids") if units.named else ROWS,
            tune=tune or 0,
            calibrate=calibrate,
            seed=seed,
            fit=choose if tune and kind != "plain" else None,
            score="plain" if kind == "plain" else None,
            held_out=None if others is None else (others.forecast, others.truth),
            train=train,
            train_ids=seen,
            data=source,
            **about,
        )
        _say_tuned(made, units)
    say_cost(len(levels), made.look.cost, book, made.refused)
    for text in describe_world(made.certificates[0].world):
        say("world", text)
    where = dict(zip(levels, targets, strict=True))
    for certificate in made.certificates:
        target = where[certificate.predictor.threshold.level]
        write_certificate(certificate, target)
        say("calibrate", str(certificate.predictor.threshold))
        for remark in certificate.predictor.remarks:
            say("note", remark)
        say("wrote", str(target))
    tuned = units.ids[made.parts.tune.rows] if made.parts else np.array([], dtype=str)
    stored = {"scores": made.scores, "ids": made.ids, "tune_ids": tuned, "score": score_digest(made.score)}
    if groups is not None:
        of = groups.names if groups.labels is None else groups.labels[units.truth]
        stored["group"] = of if made.parts is None else of[made.parts.calibrate.rows]
    write_arrays(scores_path(out), **stored)
    say("wrote", f"{scores_path(out)}, for pac verify" + ("" if made.parts is None else " and pac evaluate"))


def _say_tuned(made: Certified, units: Dataset) -> None:
    parts = made.parts
    assert parts is not None
    say("split", f"{parts.tune.n:,} to tune, {parts.calibrate.n:,} to calibrate, {parts.test.n:,} to test")
    failed = check_forecast(units.forecast).failed
    if failed is not None:
        tune_failed, failures = (failed[part.rows].sum() for part in (parts.tune, parts.calibrate))
        unused = f"{tune_failed:,} tune units have no forecast and are not used"
        say("failed", f"{unused}; {failures:,} calibration units have none and count as errors")
    tune = units.take(parts.tune.rows) if parts.tune.n else None
    if not isinstance(made.score, Likelihood | RankedScore):
        say("tune", f"shape {made.score.kind}")
    elif tune is not None and isinstance(tune.forecast, LogitForecast):
        forecast, truth = drop_failed(tune.forecast, tune.truth)
        say("top-1", describe_accuracy(forecast.predictions() == truth, truth, forecast.logits.shape[1]))
        if isinstance(made.score, RankedScore):
            return say("tune", f"smallest sets: {made.score}")
        errors = (calibration_error(f, truth) for f in (forecast, made.score.prepared(forecast)))
        gain = "calibration error (ECE) {:.4f} -> {:.4f}".format(*errors)
        say("tune", f"{made.score}; {gain}")
    else:
        say("tune", str(made.score))


def scores_path(out: Path) -> Path:
    """Where the calibration scores and the ids go, beside the certificate."""
    return out.with_name(out.stem + ".scores.npz")
