"""The paper's ImageNet experiment: ablation, levels, baselines, architectures, pictures; and ours beside it.

\b
    python scripts/imagenet results imagenet/efficientnet_lite0_val5k.npz \\
        --images imagenet/val300 --classes imagenet/imagenet_class_index.json
    python scripts/imagenet score imagenet/val300 --model efficientnet-lite0 --model efficientnet-lite1
    python scripts/imagenet results --smoke-test

A fifth of the images tunes, two fifths calibrate, the rest tests. The certificates come from one look at the
calibrate part; its menu is in the ledger before anything is read. All else is measured on the test part: a
comparison, not a promise. Expect errors below epsilon, sets far smaller than those of the baselines that
trust the forecast, and larger sets where the classifier is wrong.
"""

import re
import sys
from pathlib import Path

import click
import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import PATH, ResultFolder, ledger_option, option, out_option, seed_option, smoke_option, start
from imagenet.report import show_results
from imagenet.sets import OURS, compare_sets, fit_levels, read_predictions

from pac_core import InvalidInput, write_certificate
from pac_core.arrays import round_up
from pac_core.certificates import score_digest
from pac_core.cli import ledger_beside
from pac_core.cli import main as pac
from pac_core.datasets import ClassNames, read_classes
from pac_core.sets import score_units
from pac_vision import find_images

LEDGER = "ledger.txt"
"""Beside logits that were scored here: where the ledger of their images lies."""
main = click.Group(help=__doc__)


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("images", type=PATH)
@click.option("--model", multiple=True, required=True, help="Such as efficientnet-lite0; repeat it.")
@out_option("imagenet_output")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF pac run imagenet]")
def score(images, model, out, options):
    """Logits of images by one or more models, in OUT/logits; stopped, the same command goes on."""
    for name in model:
        label = re.sub("[:/]", "-", name)
        run, logits = out / "runs" / label, out / "logits" / f"{label}.npz"
        asked = ("--images", images, "--model", name, "--folder", run, "--tune", 0, "--calibrate", 1)
        pac([str(word) for word in ("run", "imagenet", *asked, *options)], standalone_mode=False)
        pac(["logits", str(run), "--out", str(logits), "--force"], standalone_mode=False)
    book = ledger_beside(images if images.is_dir() else images.absolute().parent)
    (out / "logits" / LEDGER).write_text(str(book.resolve()))


@main.command()
@click.argument("logits", nargs=-1, type=PATH, metavar="FILE...")
@click.option("--images", type=PATH, help="Images to draw, found by id or file name.")
@click.option("--labels", type=PATH, help="Label file, where the images lie side by side.")
@click.option("--classes", type=PATH, help="Names: ImageNet's class index, or a line for each class.")
@click.option("--tune", type=int, help="Images to tune on.  [default: a fifth]")
@click.option("--n", type=int, help="Images to calibrate on; the rest tests.  [default: two fifths]")
@click.option("--epsilon", type=float, help="Promised error.  [default: the least that allows 20 errors]")
@option("delta", 1e-5, "Probability that the promise fails.")
@seed_option
@ledger_option("the logits, or the images that were scored here")
@out_option("imagenet_output")
@smoke_option
def results(logits, images, labels, classes, tune, n, epsilon, delta, seed, ledger, out, smoke_test):
    """Every table and figure from stored logits, labels and ids (npz, parquet) of the same images."""
    if smoke_test:
        images, logits = make_logits(out)
        epsilon, delta, ledger = epsilon or 0.1, 1e-3, ledger or out / "pac-ledger"
    if not logits:
        raise InvalidInput("files of logits must be given, got none (--smoke-test makes its own)")
    pictures = None if images is None else find_images(images, labels=labels, classes=classes)
    classified = [read_predictions(path) for path in logits]
    names = name_classes(classes and read_classes(classes), pictures, classified[0])
    units = len(classified[0].ids)
    tune, calibrate = units // 5 if tune is None else tune, 2 * units // 5 if n is None else n
    levels, noted = fit_levels(calibrate, epsilon=epsilon, delta=delta), logits[0].resolve().parent / LEDGER
    book = ledger_beside(logits[0], ledger or (Path(noted.read_text()) if noted.is_file() else None))
    parts = {"tune": tune, "calibrate": calibrate, "seed": seed}
    found = compare_sets(classified, levels, ledger=book, images=pictures, **parts)
    folder = ResultFolder(out)
    print(
        f"{units:,} images of {classified[0].classes:,} classes: {found.parts.tune.n:,} to tune, "
        f"{found.parts.calibrate.n:,} to calibrate, {found.parts.test.n:,} to test"
    )
    for model in classified:
        if model.forecast.failed is not None:
            print(f"  {model.forecast.failed.sum():,} are broken for {model.name}: errors, and not tuned on")
    keep_certificates(found, out)
    print(
        f"one look at the calibrate part (ledger {book}): {len(found.entries)} certificates asked for,\n"
        f"  any of which fails with probability below {round_up(found.look.cost, 3)}; ours at epsilon = "
        f"{levels.main.epsilon:g} with less than {levels.main.delta:g}: {found.at().predictor.threshold}"
    )
    show_results(found, folder, names, pictures)
    print(f"\n{found.at().evaluation.verdict}\neverything is in {out}, the certificate in certificate.json")


def make_logits(out):
    """Digits of scikit-learn as images, and the logits of two small networks that were trained on others."""
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier

    digits, labels = load_digits(return_X_y=True)
    (train, x), (known, y) = np.split(digits / 16, [597]), np.split(labels, [597])
    ids = [f"{label}/{i:04}.png" for i, label in enumerate(y)]
    for folder in ("logits", *(f"images/{label}" for label in range(10))):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for name, image in zip(ids, x, strict=True):
        Image.fromarray(np.uint8(255 - 255 * image.reshape(8, 8))).save(out / "images" / name)
    for name, width in (("narrow", 4), ("wide", 12)):
        model = MLPClassifier((width,), max_iter=3000, tol=1e-3, random_state=0).fit(train, known)
        logits = np.log(np.maximum(model.predict_proba(x), 1e-30))
        np.savez(out / "logits" / f"{name}.npz", logits=logits, labels=y, ids=ids)
    return out / "images", [out / "logits" / f"{name}.npz" for name in ("narrow", "wide")]


def name_classes(names, images, first):
    """What the labels are called: as the file says, or the folders, or by their numbers."""
    if names is not None and len(names.names) != (n := first.classes):
        raise InvalidInput(f"--classes must name the {n:,} classes of {first.name}, got {len(names.names):,}")
    if names is None and images is not None and len(images.classes or ()) == first.classes:
        names = ClassNames.of(images.classes)
    shown = names.names if names else [f"class {label}" for label in range(first.classes)]
    return [name.replace("_", " ") for name in shown]


def keep_certificates(found, folder):
    """Our certificates as files: the main one with its scores, and beside it those of the other levels."""
    first, parts, main = found.models[0], found.parts, found.at()
    for (model, sets, level), one in found.measured.items():
        if sets == OURS and one is not main:
            path = folder / "certificates" / f"{model}-{level.epsilon!r}-{level.delta!r}.json"
            path.parent.mkdir(exist_ok=True)
            write_certificate(one.certificate, path)
    write_certificate(main.certificate, folder / "certificate.json")
    own, rows = main.predictor.score, parts.calibrate.rows
    known = {"scores": score_units(own, *first.take(rows)), "score": score_digest(own)}
    ids = {"ids": first.ids[rows], "tune_ids": first.ids[parts.tune.rows]}
    np.savez_compressed(folder / "certificate.scores.npz", **known, **ids)


if __name__ == "__main__":
    start(main)
