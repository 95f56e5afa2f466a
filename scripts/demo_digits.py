"""From a trained classifier to a certificate, on real handwritten digits, in a few seconds.

Trains a small neural network on 500 digits of scikit-learn's collection (8 x 8 pixels), tunes a
temperature on 150, calibrates on 700 and measures on the other 447. Prints each step and writes
logits, certificate, scores, ledger and a figure into a folder.

    python scripts/demo_digits.py [--out demo_output] [--epsilon 0.02] [--delta 1e-4]

Expect a promised error of 2%, a measured one below it, and sets of about one to two digits.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from pac_core import (
    LabelSets,
    LogitForecast,
    PACError,
    PACLevel,
    Record,
    certify,
    evaluate,
    max_errors,
    verify,
    write_certificate,
)
from pac_core.figures import INK
from pac_core.ledger import score_digest

TRAIN, TUNE, CALIBRATE = 500, 150, 700
WRITES = ("logits.npz", "certificate.json", "certificate.scores.npz", "pac-ledger.json", "sets.png")


@dataclass(frozen=True)
class Args:
    out: Path = Path("demo_output")
    """folder for the results; those of an earlier run are replaced"""
    epsilon: float = 0.02
    """promised share of digits whose set misses the true one"""
    delta: float = 1e-4
    """probability that the promise fails"""
    seed: int = 0
    """seed of the training and of the split"""


def main(args: Args) -> None:
    level = PACLevel(args.epsilon, args.delta)
    max_errors(CALIBRATE, level)  # refuses before any work if so few units cannot prove it
    args.out.mkdir(parents=True, exist_ok=True)
    for name in WRITES:  # what an earlier run left
        (args.out / name).unlink(missing_ok=True)
    shutil.rmtree(args.out / "pac-ledger", ignore_errors=True)

    print("1 train       ", end="", flush=True)
    images, labels = load_digits(return_X_y=True)
    ids = np.array([f"digit-{i}" for i in range(len(images))])
    seen = np.random.default_rng(args.seed).permutation(len(images))[:TRAIN]
    model = MLPClassifier((32,), max_iter=2000, tol=1e-3, random_state=args.seed).fit(
        images[seen] / 16, labels[seen]
    )
    rest = np.setdiff1d(np.arange(len(images)), seen)
    probabilities = model.predict_proba(images[rest] / 16)
    logits = np.log(np.maximum(probabilities, 1e-30)).astype(np.float32)
    np.savez(args.out / "logits.npz", logits=logits, labels=labels[rest], ids=ids[rest])
    accuracy = (logits.argmax(axis=1) == labels[rest]).mean()
    print(f"a network on {TRAIN} digits; it reads {accuracy:.1%} of the others rightly")

    made = certify(
        LogitForecast(logits),
        labels[rest],
        level,
        ids=ids[rest],
        tune=TUNE,
        calibrate=CALIBRATE,
        seed=args.seed,
        ledger=args.out / "pac-ledger",
        unit="digit",
        train_ids=ids[seen],
        train="scikit-learn digits",
        model=Record("MLPClassifier((32,))"),
    )
    certificate = made.certificates[0]
    print(f"2 tune        {made.score}")
    print(f"3 calibrate   {certificate.predictor.threshold}")

    write_certificate(certificate, args.out / "certificate.json")
    tuned, of = ids[rest][made.parts.tune.rows], score_digest(made.score)
    np.savez(args.out / "certificate.scores.npz", scores=made.scores, ids=made.ids, tune_ids=tuned, score=of)
    held = all(check.holds for check in verify(certificate, made.scores, made.ids))
    print(f"4 certify     {'it follows from its scores' if held else 'IT DOES NOT FOLLOW'}")

    rows = made.parts.test.rows
    forecast, truth = LogitForecast(logits[rows]), labels[rest][rows]
    sets = certificate.predictor.sets(forecast)
    right = np.where(forecast.predictions() == truth, "right", "wrong")
    result = evaluate(sets, truth, level, by={"prediction": right})
    print(f"5 test        {result.all.n} digits never looked at before\n\n{result}\n")
    draw(sets, images[rest][rows], truth, args.out / "sets.png")

    print(f"promised error   at most {level.epsilon:.2%}, with confidence 1 - {level.delta:g}")
    print(f"measured error   {result.all.error:.2%} of {result.all.n} digits")
    print(f"mean set size    {result.all.mean:.2f} of 10 digits")
    print(f"\nfigure           {args.out / 'sets.png'}")
    pac = os.path.relpath(Path(sys.executable).with_name("pac"))
    print(f"next             {pac} verify {args.out / 'certificate.json'} {args.out / 'logits.npz'}")


def draw(sets: LabelSets, images: np.ndarray, truth: np.ndarray, path: Path) -> None:
    """Digits from certain to doubtful, each with its set; a miss in red."""
    from matplotlib.figure import Figure

    sizes, inside = sets.size(), sets.contains(truth)
    rows = {"1 digit": (1, 1), "2 digits": (2, 2), "3 or 4": (3, 4), "5 or more": (5, 10)}
    figure = Figure(figsize=(9, 7.6), dpi=130, layout="constrained")
    for axes, (name, (least, most)) in zip(figure.subplots(len(rows), 6), rows.items(), strict=True):
        found = np.flatnonzero((sizes >= least) & (sizes <= most))
        chosen = found[np.argsort(inside[found], kind="stable")][:6]  # misses first
        axes[0].set_ylabel(name, fontsize=11)
        for ax in axes:
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
        for ax, i in zip(axes, chosen, strict=False):
            ax.imshow(images[i].reshape(8, 8), cmap="gray_r")
            held = " ".join(map(str, np.flatnonzero(sets.member[i])))
            colour = "black" if inside[i] else INK[1]
            ax.set_title(f"{{{held}}}\ntruth: {truth[i]}", fontsize=8.5, color=colour)
    figure.suptitle(
        "Test digits and their confidence sets, by size of the set (red: truth missed)", fontsize=11
    )
    figure.savefig(path)


def parse() -> Args:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Args.out)
    parser.add_argument("--epsilon", type=float, default=Args.epsilon)
    parser.add_argument("--delta", type=float, default=Args.delta)
    parser.add_argument("--seed", type=int, default=Args.seed)
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    try:
        main(parse())
    except PACError as error:
        raise SystemExit(f"Error: {error}") from None
