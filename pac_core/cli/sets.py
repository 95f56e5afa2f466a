"""The command `pac sets`: prediction sets for new units, from stored forecasts or from images."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import click
import numpy as np

from pac_core import plugins
from pac_core.arrays import round_up
from pac_core.certificates.certificate import Certificate, read_certificate
from pac_core.cli.options import (
    FILE,
    batch_option,
    broken_option,
    group_option,
    ids_option,
    logits_option,
    preprocessing_options,
    refuse_existing,
    say,
)
from pac_core.cli.verify import groups_in, read_both
from pac_core.datasets import read_classes, write_arrays
from pac_core.errors import InvalidInput
from pac_core.files import whole_file
from pac_core.forecasts import LogitForecast
from pac_core.sets.kinds import LabelSets
from pac_core.tubes import FeatureTube

SHOWN = 10
"""The number of failures whose reasons are shown."""
Chunk: TypeAlias = tuple[Any, LogitForecast, LabelSets]
"""Ids, forecasts and sets of some units."""


class Forecasts(Protocol):
    """What a plugin of the kind `forecasters` returns: forecasts of n new units by a model with this digest
    and so many classes. Notes say what to know beforehand, failures why units have no forecast."""

    digest: str
    classes: int
    n: int
    notes: tuple[str, ...]

    @property
    def failures(self) -> list[str]: ...

    def __iter__(self) -> Iterator[tuple[Any, LogitForecast]]:
        """Ids `[m]` and their forecast, some units at a time."""


@click.command("sets")
@click.argument("certificate", type=FILE)
@click.argument("data", type=FILE, required=False)
@click.option("--images", help="Instead of DATA: a folder (may be nested), tar or parquet file of images.")
@click.option("--model", help="For --images: the calibrated model, as in pac run imagenet.")
@click.option("--classes", type=FILE, help="Names of the labels: one per line, or ImageNet's class index.")
@preprocessing_options
@broken_option("miss")
@batch_option
@click.option("--device", default="cpu", show_default=True, help="Where the model runs: cpu or cuda.")
@ids_option
@logits_option
@group_option
@click.option("--out", type=FILE, help="Write to this csv or npz instead of the terminal.")
@click.option("--force", is_flag=True, help="Replace --out if it exists.")
def sets_command(
    certificate: Path,
    data: Path | None,
    images: str | None,
    model: str | None,
    classes: Path | None,
    preprocessing: dict[str, str],
    broken: str,
    batch: int | None,
    device: str,
    ids: str | None,
    logits: str | None,
    group: str | None,
    out: Path | None,
    force: bool,
) -> None:
    """Make prediction sets for new units.

    \b
    pac sets certificate.json new.npz
    pac sets certificate.json --images photos --model efficientnet-lite0 --classes imagenet_class_index.json

    Each unit gets a line with its size and its labels or box; tubes are written with --out x.npz. The most
    likely label comes first; ends of intervals have all digits. The certificate's promise holds for
    units that are drawn like the calibration units and forecast by the same model, whose digest is checked
    for --images. Preprocessing is read from the certificate unless given here. A broken image gets an empty
    set and is named; the others get theirs.
    """
    if (data is None) is (images is None):
        raise InvalidInput(f"give DATA or --images, got {'neither' if data is None else 'both'}")
    if out is not None:
        if out.suffix not in (".csv", ".npz"):
            raise InvalidInput(f"--out must end in .csv or .npz, got {out}")
        refuse_existing(force, out)
    if (preprocessing and images is None) or (logits and images is not None):
        raise InvalidInput("--logits is for DATA, --preset to --resampling are for --images, got the other")
    names = None if classes is None else read_classes(classes).names
    if images is not None:
        if not model:
            raise InvalidInput("--images needs --model, the name of the calibrated model")
        options: dict[str, Any] = {"model": model, "batch": batch, "device": device, "broken": broken}
        options["preprocessing"] = preprocessing
        _serve(read_certificate(certificate), images, names, out, options)
        return
    assert data is not None
    document, units = read_both(certificate, data, ids, logits=logits)
    if units.forecast is None:
        raise InvalidInput(f"{data} must hold forecasts (logits, probabilities, or mean and var)")
    if names is not None and units.forecast.domain != ("labels", len(names)):
        raise InvalidInput(f"{classes} names {len(names):,} labels, which are not those of {data}")
    sets = document.predictor.sets(units.forecast, groups_in(document, data, units, group))
    if isinstance(sets, LabelSets) and isinstance(units.forecast, LogitForecast):
        _write_labels([(units.ids, units.forecast, sets)], names, out)
    else:
        write_regions(units.ids, sets, out)
        if (failed := units.forecast.failed) is not None:
            text = f"units without a forecast: {failed.sum():,}; their sets are empty and count as misses"
            click.echo(f"{'failed':10}{text}", err=True)
    if out is not None:
        mean = f"mean size {np.mean(sets.size()):.4g} {sets.size_in}"
        say("wrote", f"{len(units.ids):,} sets, {mean}, to {out}")


def _serve(document: Certificate, images: str, names: Any, out: Path | None, options: dict[str, Any]) -> None:
    """Sets for images, some at a time; refuse a model other than the calibrated one."""
    kind, *known = document.predictor.domain or ("nothing that is known",)
    if kind != "labels":
        raise InvalidInput(f"the certificate must be for labels to make sets for images, got one for {kind}")
    if document.model.digest is None:
        raise InvalidInput("the certificate does not record the digest of the calibrated model")
    load = plugins.load("forecasters", "images")
    served: Forecasts = load(images, certified=document.model.name, **options)
    if document.model.digest != served.digest:
        raise InvalidInput(
            f"the certificate is for {document.model.name} with digest {document.model.digest[:19]}, "
            f"got {options['model']} with digest {served.digest[:12]}: it says nothing about another model"
        )
    if served.classes != known[0]:
        raise InvalidInput(f"the certificate is for {known[0]:,} labels; the model has {served.classes:,}")
    if names is not None and len(names) != served.classes:
        raise InvalidInput(f"--classes must name {served.classes:,} labels, got {len(names):,}")
    for note in served.notes:
        click.echo(f"{'note':10}{note}", err=True)
    sizes: list[Any] = []
    failures: list[int] = []

    def chunks() -> Iterator[Chunk]:
        about: Any = {"length": served.n, "label": "sets", "file": sys.stderr, "show_pos": True}
        with click.progressbar(**about, hidden=out is None) as bar:
            for ids, forecast in served:
                sets = document.predictor.sets(forecast)
                sizes.append(sets.size())
                failures.append(0 if forecast.failed is None else int(forecast.failed.sum()))
                yield ids, forecast, sets
                bar.update(len(ids))

    _write_labels(chunks(), names, out)
    if failed := sum(failures):
        more = [f"and {len(served.failures) - SHOWN:,} more"] if len(served.failures) > SHOWN else []
        text = f"images without a forecast: {failed:,}; their sets are empty and count as misses"
        for line in (*served.failures[:SHOWN], *more, text):
            click.echo(f"{'broken':10}{line}", err=True)
    if out is not None:
        level, n = document.predictor.threshold.level, document.predictor.threshold.n
        mean = np.mean(np.concatenate(sizes))
        say("wrote", f"{served.n:,} sets, mean size {mean:.4g} labels, to {out}")
        promise = f"a set misses its label with probability at most {round_up(level.epsilon)}"
        given = f"with confidence 1 - {round_up(level.delta)}, for images drawn like the {n:,} calibrated on"
        say("promise", f"{promise}, {given}")


def _write_labels(chunks: Iterable[Chunk], names: Any, out: Path | None) -> None:
    """Write label sets as they come."""
    if out is None or out.suffix == ".csv":
        return _write_rows(_label_rows(chunks, names), out)
    parts = [(ids, sets.member, np.isnan(forecast.logits).any(axis=1)) for ids, forecast, sets in chunks]
    ids, member, failed = (np.concatenate(part) for part in zip(*parts, strict=True))
    named = {} if names is None else {"names": np.array(names)}
    write_arrays(out, ids=ids, member=member, failed=failed, **named)


def _write_rows(rows: Iterable[list[Any]], out: Path | None) -> None:
    """Write csv to a file, or to the terminal."""
    if out is None:
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
        return
    with whole_file(out) as part, part.open("w", newline="", encoding="utf-8") as lines:
        csv.writer(lines).writerows(rows)


def _label_rows(chunks: Iterable[Chunk], names: Any) -> Iterator[list[Any]]:
    """A row for each unit: its id, the number of labels, and the labels, the most likely first."""
    yield ["id", "size", "labels"]
    for ids, forecast, sets in chunks:
        for name, logits, member in zip(ids, forecast.logits, sets.member, strict=True):
            inside = np.flatnonzero(member)
            ranked = inside[np.argsort(-logits[inside], kind="stable")]
            words = map(str, ranked) if names is None else (names[label] for label in ranked)
            yield [name, len(ranked), (" " if names is None else "; ").join(words)]


def write_regions(ids: Any, sets: Any, out: Path | None) -> None:
    """Write the boxes of regressors, and tubes, with every digit: a rounded box is another set."""
    lower, upper = sets.box()
    if out is not None and out.suffix == ".npz":
        named: dict[str, Any] = {"names": list(sets.features.names)} if isinstance(sets, FeatureTube) else {}
        return write_arrays(out, ids=ids, lower=lower, upper=upper, empty=sets.empty, **named)
    if lower.ndim == 3:
        raise InvalidInput("tubes have one box per step: write them with --out file.npz")
    ends = [f"{end}_{i}" for end in ("lower", "upper") for i in range(lower.shape[-1])]
    rows = [["id", "size", *ends]]
    for name, size, low, high in zip(ids, sets.size(), lower, upper, strict=True):
        rows.append([name, round_up(size), *map(repr, (*low.tolist(), *high.tolist()))])
    _write_rows(rows, out)
