"""The command `pac fit`: from scores or forecasts to certificates."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from pac_core.bounds import PACLevel
from pac_core.certificates import Record
from pac_core.certification import Certified, FitScore, certify, certify_scores, tempered, train_record
from pac_core.datasets import KEYS, Dataset, file_digest, read_dataset
from pac_core.documents import write_certificate
from pac_core.errors import InvalidInput, UnreadableFile
from pac_core.evaluation import calibration_error
from pac_core.features import LinearFeatures
from pac_core.forecasts import LogitForecast
from pac_core.options import FILE, ids_option, level_options, say
from pac_core.predictors import GivenScore, Likelihood
from pac_core.splits import refuse_overlap
from pac_core.temperatures import Temperature
from pac_core.tubes import SHAPES, fit_shape


@click.command(epilog=f"\b\n{KEYS}")
@click.argument("data", type=FILE)
@level_options(multiple=True)
@click.option("--tune", type=int, help="Units to tune on (temperatures, shapes); forecasts only.")
@click.option("--calibrate", type=int, help="Units to calibrate on; the rest is left to test.")
@click.option("--seed", default=0, show_default=True, help="Seed of the split.")
@ids_option
@click.option("--temperature/--no-temperature", default=True, help="Fit temperatures on the tune units.")
@click.option("--shape", default="box", show_default=True, help=f"Tube shape: {', '.join(SHAPES)}.")
@click.option(
    "--feature", "features", multiple=True, help="For --shape features: NAME=DIMENSION, such as speed=0."
)
@click.option("--score-name", default="not named", help="For a file of scores: what they are, in words.")
@click.option("--unit", default="unit", show_default=True, help="What is drawn independently, in a word.")
@click.option("--model", default="not named", help="The model, in words, for the certificate.")
@click.option("--model-file", type=FILE, help="Its weights: their digest goes into the certificate.")
@click.option("--train", default="not named", help="What the model was trained on, in words.")
@click.option("--train-ids", type=FILE, help="Ids it was trained on, one a line; they are refused.")
@click.option("--out", type=FILE, default=Path("certificate.json"), show_default=True)
@click.option("--ledger", type=FILE, help="Where looks are recorded.  [default: ledger.json beside --out]")
@click.option("--force", is_flag=True, help="Replace files that exist.")
def fit(
    data: Path,
    epsilon: tuple[float, ...],
    delta: tuple[float, ...],
    tune: int | None,
    calibrate: int | None,
    seed: int,
    ids: str,
    temperature: bool,
    shape: str,
    features: tuple[str, ...],
    score_name: str,
    unit: str,
    model: str,
    model_file: Path | None,
    train: str,
    train_ids: Path | None,
    out: Path,
    ledger: Path | None,
    force: bool,
) -> None:
    """Calibrate: from scores or forecasts to a certificate.

    \b
    pac fit scores.npz --epsilon 0.01 --delta 1e-5
    pac fit logits.npz --epsilon 0.05 --delta 1e-5 --tune 1000 --calibrate 2000
    """
    levels = [PACLevel(e, d) for e in sorted(set(epsilon)) for d in sorted(set(delta))]
    targets = _targets(out, levels)
    if not force:
        for path in (*targets, _scores_path(out)):
            if path.exists():
                raise InvalidInput(f"--out must be new, but {path} exists; --force replaces it")
    units = read_dataset(data, ids=ids)
    say("read", f"{len(units.ids):,} units from {data}")
    book = ledger or out.parent / "ledger.json"
    source = Record(data.name, len(units.ids), file_digest(data))
    which = Record(model, digest=None if model_file is None else file_digest(model_file))
    seen = [] if train_ids is None else _lines(train_ids)
    if units.forecast is None:
        if tune is not None or calibrate is not None:
            raise InvalidInput("--tune and --calibrate split forecasts, but the file holds scores")
        scores = units.scores
        refuse_overlap({"train": seen, "calibrate": units.ids})
        made = certify_scores(
            GivenScore(score_name),
            lambda: scores,
            levels,
            ids=units.ids,
            ledger=book,
            unit=unit,
            train=train_record(train, seen),
            model=which,
            data=source,
        )
    else:
        if units.truth is None:
            raise InvalidInput("the file must hold the truth (labels or truth) to calibrate on")
        if calibrate is None or (tune is None and temperature):
            raise InvalidInput("--tune and --calibrate must be given: units for choices, units for the proof")
        made = certify(
            units.forecast,
            units.truth,
            levels,
            ids=units.ids,
            tune=tune or 0,
            calibrate=calibrate,
            seed=seed,
            ledger=book,
            fit=_score_fit(units.forecast, temperature, shape, features),
            unit=unit,
            train=train,
            train_ids=seen,
            model=which,
            data=source,
        )
        _say_tuned(made, units)
    say("ledger", f"{len(levels)} on the menu; any fails with probability < {made.look.cost:.3g} ({book})")
    for certificate, target in zip(made.certificates, targets, strict=True):
        write_certificate(certificate, target)
        say("calibrate", str(certificate.predictor.threshold))
        say("wrote", str(target))
    np.savez_compressed(_scores_path(out), scores=made.scores, ids=made.ids)
    say("wrote", f"{_scores_path(out)}, for pac verify")


def _score_fit(forecast: Any, temperature: bool, shape: str, features: tuple[str, ...]) -> FitScore:
    """What to fit on the tune units: a tube shape for a horizon, else the likelihood."""
    if isinstance(forecast, LogitForecast) or forecast.mean.ndim == 2:
        return tempered if temperature else lambda forecast, truth, level: Likelihood()
    options: dict[str, Any] = {"features": _features(features, forecast.mean.shape[-1])} if features else {}
    return partial(fit_shape, shape=shape, **options)


def _say_tuned(made: Certified, units: Dataset) -> None:
    parts = made.parts
    assert parts is not None
    say(
        "split",
        f"{parts.tune.n:,} to tune, {parts.calibrate.n:,} to calibrate, {parts.test.n:,} left to test",
    )
    if not isinstance(made.score, Likelihood):
        say("tune", f"shape {made.score.kind}")
        return
    for step in made.score.preparations:
        if isinstance(step, Temperature):
            gain, tune = "", units.take(parts.tune.rows)
            if isinstance(tune.forecast, LogitForecast):
                errors = (calibration_error(f, tune.truth) for f in (tune.forecast, step(tune.forecast)))
                gain = ", ECE {:.4f} -> {:.4f}".format(*errors)
            say("tune", f"tau = {np.round(step.tau, 6).tolist()}{gain}")


def _features(texts: tuple[str, ...], dims: int) -> LinearFeatures:
    """NAME=DIMENSION pairs as features that are single coordinates."""
    pairs = [text.partition("=") for text in texts]
    for (_, _, index), text in zip(pairs, texts, strict=True):
        if not index.isdecimal() or int(index) >= dims:
            raise InvalidInput(
                f"--feature must be NAME=DIMENSION with a dimension below {dims}, got {text!r}"
            )
    return LinearFeatures(tuple(name for name, _, _ in pairs), np.eye(dims)[[int(i) for _, _, i in pairs]])


def _lines(path: Path) -> list[str]:
    """The ids in a text file, one a line."""
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"--train-ids {path} cannot be read as lines of text: {error}") from None


def _targets(out: Path, levels: list[PACLevel]) -> list[Path]:
    if len(levels) == 1:
        return [out]
    return [out.with_name(f"{out.stem}-{level.epsilon:g}-{level.delta:g}{out.suffix}") for level in levels]


def _scores_path(out: Path) -> Path:
    return out.with_name(out.stem + ".scores.npz")
