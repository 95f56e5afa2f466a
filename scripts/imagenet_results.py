"""The paper's ImageNet experiment: ablation, levels, baselines, architectures, pictures; and ours beside it.

    python scripts/imagenet_results.py --logits imagenet/efficientnet_lite0_val5k.npz \\
        --images imagenet/val300 --classes imagenet/imagenet_class_index.json --out imagenet_output
    python scripts/imagenet_results.py --images imagenet/val300 --model efficientnet-lite0 \\
        --model efficientnet-lite1 --classes imagenet/imagenet_class_index.json --out lite_output
    python scripts/imagenet_results.py --smoke-test

Takes stored logits, or scores the images of a folder with one or more models on Ray. A fifth of the images
tunes, two fifths calibrate, the rest tests. Everything is in the output folder: tables (csv), figures (PNG),
certificates, and the logits that were computed.

Expect errors below epsilon, sets far smaller than those of the baselines that trust the forecast, and larger
sets where the classifier is wrong. The certificates come from one look at the calibrate part; its menu is in
the ledger before anything is read. All else is measured on the test part: a comparison, not a promise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import numpy as np

from pac_core import InvalidInput, PACError, write_certificate
from pac_core.class_names import ClassNames, read_classes
from pac_core.failures import unit_scores
from pac_core.ledger import score_digest
from pac_core.options import (
    batch_option,
    broken_option,
    ledger_beside,
    preprocessing_options,
    refuse_unwritable,
)
from pac_core.texts import at_least
from pac_vision import Images, find_images
from pac_vision.class_reports import show_results, summary
from pac_vision.class_results import OURS, ClassResults, compare_sets
from pac_vision.levels import DELTAS, Levels, fit_levels
from pac_vision.models import STATED
from pac_vision.predictions import Predictions, read_predictions
from pac_vision.result_folders import ResultFolder

PATH = click.Path(path_type=Path)
LEDGER = "ledger.txt"
"""Beside logits that were kept: where the ledger of their images lies."""
HELP = {
    "logits": "Stored logits, labels and ids (npz, parquet), as FILE or NAME=FILE; repeat it for other "
    "classifiers of the same images.",
    "images": "Folder of images: to score with --model, or to draw beside --logits.",
    "labels": "Label file, where the images lie side by side.",
    "model": "Model to score the images with, such as efficientnet-lite0; repeat it.",
    "classes": "Names of the classes: ImageNet's class index, or a line for each.",
    "out": "Folder for everything.",
    "tune": "Images to tune on.  [default: a fifth]",
    "n": "Images to calibrate on; the rest tests.  [default: two fifths]",
    "epsilon": "Promised error.  [default: the least of 0.01, 0.02, 0.05, 0.1, ... of which n images may "
    "show 20 errors]",
    "delta": "Probability that the promise fails.",
    "epsilons": "Of the tables; repeat it.  [default: five steps up to 0.05, or to a larger epsilon]",
    "deltas": "Of the tables; repeat it.",
    "seed": "Of the split.",
    "address": "Ray to score on: local, auto, HOST:PORT; none scores in this process.  [default: local]",
    "ledger": "Where looks are recorded.  [default: pac-ledger beside the logits or the images]",
    "workers": "Of Ray: how many, or MIN..MAX where the cluster can grow.  [default: all]",
    "gpus": "GPUs of a worker, as 0.5.  [default: 1 if any]",
    "smoke-test": "Generated images and two small networks, in seconds.",
}


def option(name: str, **settings: Any) -> Callable[..., Any]:
    return click.option(f"--{name}", help=HELP[name], **settings)


@click.command(epilog="See the head of this file for examples.")
@option("logits", multiple=True, metavar="FILE")
@option("images", type=PATH, metavar="FOLDER|TAR|PARQUET")
@option("labels", type=PATH, metavar="FILE")
@option("model", multiple=True, metavar="NAME")
@option("classes", type=PATH, metavar="FILE")
@option("out", type=PATH, metavar="FOLDER", default=Path("imagenet_output"), show_default=True)
@option("tune", type=int)
@option("n", type=int)
@option("epsilon", type=float)
@option("delta", default=1e-5, show_default=True)
@option("epsilons", type=float, multiple=True)
@option("deltas", type=float, multiple=True, default=DELTAS, show_default=True)
@option("seed", default=0, show_default=True)
@option("address")
@option("workers", metavar="N|MIN..MAX")
@option("gpus", type=float)
@batch_option
@preprocessing_options
@broken_option("error")
@option("ledger", type=PATH, metavar="FILE")
@option("smoke-test", is_flag=True)
def main(
    logits: tuple[str, ...],
    images: Path | None,
    labels: Path | None,
    model: tuple[str, ...],
    classes: Path | None,
    out: Path,
    tune: int | None,
    n: int | None,
    epsilon: float | None,
    delta: float,
    epsilons: tuple[float, ...],
    deltas: tuple[float, ...],
    seed: int,
    address: str | None,
    workers: str | None,
    gpus: float | None,
    batch: int | None,
    preprocessing: dict[str, str],
    broken: str,
    ledger: Path | None,
    smoke_test: bool,
) -> None:
    """Results, tables, figures and pictures of image classification, in one folder."""
    if smoke_test:
        images, classes, model = generated(out)
        epsilon, delta, ledger = epsilon or 0.1, 1e-3, ledger or out / "pac-ledger"
        address = address or "none"
    if bool(logits) == bool(model) or (model and images is None):
        raise InvalidInput("either --logits, or --images with --model, must be given, got none or both")
    names = None if classes is None else read_classes(classes)
    pictures = None if images is None else find_images(images, labels=labels, classes=classes)
    classified = [read_predictions(path, name=name) for name, path in map(named_file, logits)]
    units = len(classified[0].ids) if classified else len(pictures.ids)
    parts = {"tune": units // 5 if tune is None else tune, "calibrate": 2 * units // 5 if n is None else n}
    levels = fit_levels(parts["calibrate"], epsilon=epsilon, delta=delta, epsilons=epsilons, deltas=deltas)
    data = named_file(logits[0])[1] if logits else images if images.is_dir() else images.absolute().parent
    book = ledger or ledger_of(data)
    refuse_unwritable("--ledger", book)
    if model:  # the work, after all that can be refused without it
        asked = {"images": images, "labels": labels, "classes": classes, "batch": batch, "broken": broken}
        asked |= {"preprocessing": preprocessing}
        classified = score(model, out, address or "local", asked, workers, gpus)
        (out / "logits" / LEDGER).write_text(str(book.resolve()))
    called = name_classes(names, pictures, classified[0])
    report(classified, levels, ResultFolder(out), called, pictures, book, seed=seed, **parts)


def ledger_of(data: Path) -> Path:
    """Where `pac fit` and `pac run` have theirs: beside the logits, or the folder of the images.

    Logits that this script kept were made of images, and have the images' ledger.
    """
    noted = data.resolve().parent / LEDGER
    if noted.is_file():
        return Path(noted.read_text())
    return ledger_beside(data)


def report(
    classified: Sequence[Predictions],
    levels: Levels,
    folder: ResultFolder,
    names: Sequence[str],
    pictures: Images | None,
    book: Path,
    **parts: int,
) -> None:
    """Certify, show everything, and sum it up."""
    results = compare_sets(classified, levels, ledger=book, images=pictures, **parts)
    print(
        f"{len(classified[0].ids):,} images of {classified[0].classes:,} classes: {results.parts.tune.n:,} "
        f"to tune, {results.parts.calibrate.n:,} to calibrate, {results.parts.test.n:,} to test"
    )
    for model in classified:
        if model.forecast.failed is not None:
            print(f"  {model.forecast.failed.sum():,} are broken for {model.name}: errors, and not tuned on")
    keep_certificates(results, folder.folder)
    print(
        f"one look at the calibrate part (ledger {book}): {len(results.entries)} certificates asked for,\n"
        f"  any of which fails with probability below {at_least(results.look.cost, 3)}; ours at epsilon = "
        f"{levels.main.epsilon:g} with less than {levels.main.delta:g}: {results.main().predictor.threshold}"
    )
    show_results(results, folder, names, pictures)
    print(summary(results, folder))


def named_file(text: str) -> tuple[str | None, Path]:
    """A name and a file, of FILE or NAME=FILE."""
    name, _, rest = text.rpartition("=")
    return (name, Path(rest)) if name and not Path(text).exists() else (None, Path(text))


def score(
    models: Sequence[str],
    out: Path,
    address: str,
    asked: dict[str, Any],
    workers: str | None,
    gpus: float | None,
) -> list[Predictions]:
    """What the models say of the images, in shards on Ray; what was scored before is kept.

    asked: what `image_task` is told of the images; the preprocessing, only of models that may not bring their
        own, and where there are none it is refused
    """
    from cluster import RunFolder, connected, run_here, run_on_ray
    from cluster.options import Workers
    from cluster.progress import shown
    from cluster.stored_logits import write_logits
    from cluster.tasks import image_task

    found, many = [], workers and Workers().convert(workers, None, None)
    silent = [name for name in models if name.partition(":")[0] in STATED] or models
    with nullcontext() if address == "none" else connected(address):
        for name, label in zip(models, short_names(models), strict=True):
            # The parts are drawn later, once for all models: with another --n nothing is scored again.
            placeholder = {"tune": 0, "calibrate": 1, "seed": 0}
            told = asked if name in silent else asked | {"preprocessing": {}}
            task = image_task(model=name, **told, **placeholder)
            run = RunFolder(out / "runs" / label)
            task.write(run)
            with shown(label, "image") as show:
                if address == "none":
                    run_here(task.job, run, progress=show)
                else:
                    run_on_ray(task.job, run, progress=show, workers=many, gpus=gpus)
            file = out / "logits" / f"{label}.npz"
            write_logits(run, file)
            found.append(read_predictions(file, model=task.model))
    return found


def short_names(models: Sequence[str]) -> list[str]:
    """What people call them: the function, the architecture or the file; the whole where that is shared."""

    def short(name: str) -> str:
        kind, *rest = name.split(":")
        named = {"python": rest[-1:], "onnx": [Path(part).stem for part in rest]}
        return (named.get(kind, rest[:1]) or [name])[0]

    names = [short(name) for name in models]
    whole = [name.replace(":", "-").replace("/", "-") for name in models]
    return names if len(set(names)) == len(names) else whole


def name_classes(names: ClassNames | None, images: Images | None, first: Predictions) -> Sequence[str]:
    """What the labels are called: as the file says, or the folders, or by their numbers."""
    if names is not None and len(names.names) != first.classes:
        raise InvalidInput(
            f"--classes must name the {first.classes:,} classes of {first.name}, got {len(names.names):,}"
        )
    if names is None and images is not None and len(images.classes or ()) == first.classes:
        names = ClassNames.of(images.classes)
    shown = names.names if names else [f"class {label}" for label in range(first.classes)]
    return [name.replace("_", " ") for name in shown]


def keep_certificates(results: ClassResults, folder: Path) -> None:
    """Our certificates as files: the main one with its scores, and beside it those of the other levels."""
    first, parts = results.models[0], results.parts
    for (model, sets, level), found in results.measured.items():
        if sets == OURS and (model, level) != (first.name, results.levels.main):
            path = folder / "certificates" / f"{model}-{level.epsilon!r}-{level.delta!r}.json"
            path.parent.mkdir(exist_ok=True)
            write_certificate(found.certificate, path)
    write_certificate(results.main().certificate, folder / "certificate.json")
    own = results.main().predictor.score
    np.savez_compressed(
        folder / "certificate.scores.npz",
        scores=unit_scores(own, *first.take(parts.calibrate.rows)),
        ids=first.ids[parts.calibrate.rows],
        tune_ids=first.ids[parts.tune.rows],
        score=score_digest(own),
    )


def generated(out: Path) -> tuple[Path, Path, tuple[str, ...]]:
    """Images, names of classes and models for a smoke test."""
    from stripes import NAMES, fill_folder

    images, classes = fill_folder(out / "images", 60), out / "classes.txt"
    classes.write_text("\n".join(NAMES) + "\n")
    return images, classes, ("python:stripes:narrow", "python:stripes:wide")


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except (PACError, click.ClickException) as error:
        sys.exit(f"Error: {error if isinstance(error, PACError) else error.format_message()}")
    except (KeyboardInterrupt, click.Abort):
        sys.exit("stopped; what is scored is kept, and the same command goes on from there")
