"""What one threshold for all units hides: the error of each group, beside a threshold for each (Mondrian).

\b
    python scripts/groups.py images imagenet/efficientnet_lite0_val5k.npz
    python scripts/groups.py rollouts RUN

`images` groups the labels of ImageNet's stored logits by superclass and certifies, in one look. `rollouts`
reads a finished `pac run rl --group NAME=BOUND`. Both compare with one threshold from the same calibration
scores: its errors, and means over new draws of calibrate and test units, are comparisons and no promises.
"""

import sys
from pathlib import Path

import click
import numpy as np
from common import PATH, ResultFolder, interval_text, ledger_option, option, out_option, seed_option, start

from pac_core import (
    Groups,
    InvalidInput,
    PACLevel,
    certify,
    evaluate,
    read_certificate,
    write_certificate,
)
from pac_core.datasets import read_arrays, read_dataset
from pac_core.runs import RunFolder, Task
from pac_core.sets import Predictor, score_units
from pac_core.thresholds import fit_threshold

DRAWS = 200
ANIMALS = {
    "fish, amphibians, reptiles": [(0, 6), (25, 68), (389, 397)],
    "birds": [(7, 24), (80, 100), (127, 146)],
    "insects, spiders, shells": [(69, 79), (107, 126), (300, 329)],
    "dogs 151-209": [(151, 209)],
    "dogs 210-268": [(210, 268)],
    "other mammals": [(101, 106), (147, 150), (269, 299), (330, 388)],
    "food, plants, places": [(923, 999)],
}
OBJECTS, BLOCKS = range(398, 923), 8
"""In the order of their names, cut into blocks."""
main = click.Group(help=__doc__)


def superclasses(coarse=False):
    """`[1000]` the superclass of each of ImageNet's classes, whose indices follow WordNet."""
    names = np.full(1000, "", dtype="U40")
    if coarse:
        names[:398], names[151:269], names[398:] = "other animals", "dogs", "objects, food, plants, places"
        return names
    for name, ranges in ANIMALS.items():
        for first, last in ranges:
            names[first : last + 1] = name
    for block in np.array_split(np.array(OBJECTS), BLOCKS):
        names[block] = f"objects {block[0]}-{block[-1]}"
    return names


@main.command()
@click.argument("logits", type=PATH)
@option("tune", 500, "Images to choose the score on.")
@option("calibrate", 2500, "Images to prove on; the rest tests.")
@option("epsilon", 0.05, "Promised error.")
@option("delta", 0.05, "Probability that the promise of any group fails.")
@click.option("--coarse", is_flag=True, help="Three groups instead of fifteen.")
@seed_option
@ledger_option("the results")
@out_option("groups_output")
def images(logits, tune, calibrate, epsilon, delta, coarse, seed, ledger, out):
    """Label sets of ImageNet by superclass of the true label."""
    units = read_dataset(logits, ids="files")
    if units.truth is None or units.forecast.domain != ("labels", 1000):
        raise InvalidInput(f"{logits} must hold logits of ImageNet's 1000 classes, and labels")
    level, groups = PACLevel(epsilon, delta), Groups(labels=superclasses(coarse), column="superclass")
    about = {"ids": units.ids, "ids_name": "files", "ledger": ledger or out / "pac-ledger", "unit": "image"}
    parts = {"tune": tune, "calibrate": calibrate, "seed": seed}
    made = certify(units.forecast, units.truth, level, groups=groups, **parts, **about)
    test = units.take(made.parts.test.rows)
    [certificate] = made.certificates
    own, names = certificate.predictor, groups.labels[test.truth]
    one = Predictor(made.score, fit_threshold(made.scores, level), own.domain)
    both = [evaluate(p.sets(test.forecast), test.truth, level, groups=groups) for p in (one, own)]
    scores = np.append(made.scores, score_units(made.score, test.forecast, test.truth))
    everybody = np.append(groups.labels[units.truth[made.parts.calibrate.rows]], names)
    draws = redraw(scores, everybody, calibrate, level, seed)
    out.mkdir(parents=True, exist_ok=True)
    name = "images_coarse" if coarse else "images"
    write_certificate(certificate, out / f"{name}.certificate.json")
    show(ResultFolder(out), name, one.threshold, own.threshold, *both, draws)


@main.command()
@click.argument("run", type=PATH)
@seed_option
@out_option("groups_output")
def rollouts(run, seed, out):
    """Tubes of a robot by group of the start."""
    folder = RunFolder(run)
    results = Task.read(folder).results(folder)
    [certificate] = map(read_certificate, run.glob("certificate-*.json"))
    own, level = certificate.predictor, certificate.predictor.threshold.level
    column = own.threshold.column
    known = read_arrays(run / "scores.parquet")["scores"]
    forecast, truth = results.gathered("test", failed=True)
    names, before = results.column("test", column), results.column("calibrate", column)
    one = Predictor(own.score, fit_threshold(known, level), own.domain)
    both = [
        evaluate(sets, truth, level, groups=Groups(names, column=column))
        for sets in (one.sets(forecast), own.sets(forecast, names))
    ]
    scores = np.append(known, score_units(own.score, forecast, truth))
    draws = redraw(scores, np.append(before, names), len(known), level, seed)
    show(ResultFolder(out), "rollouts", one.threshold, own.threshold, *both, draws)


def redraw(scores, names, n, level, seed):
    """The error of each group with one T and with its own, over new draws of n calibrate units of these."""
    rng, found = np.random.default_rng(seed), {name: [] for name in np.unique(names).tolist()}
    for _ in range(DRAWS):
        order = rng.permutation(len(scores))
        cal, test = order[:n], order[n:]
        try:
            own = fit_threshold(scores[cal], level, groups=Groups(names[cal], labels=None)).groups
        except ValueError:  # a group with too few units this time
            continue
        one = fit_threshold(scores[cal], level).value
        for name, kept in found.items():
            mine = scores[test][names[test] == name]
            kept.append(((mine > one).mean(), (mine > own[name].value).mean()))
    return {name: np.mean(kept, axis=0) for name, kept in found.items()}


def show(folder, name, one, own, by_one, by_own, draws):
    rows = []
    for hidden, kept in zip(by_one.rows, by_own.rows, strict=True):
        group = hidden.name.partition("=")[2]
        found = own.groups.get(group)
        row = {"group": group or "all", "n": found.n if found else own.n}
        row |= {"k": found.errors if found else "", "T": found.value if found else "", "test units": hidden.n}
        row |= {"one T: error": hidden.error, "98%": interval_text(hidden.interval), "size": hidden.mean}
        row |= {"own T: error": kept.error, "own 98%": interval_text(kept.interval), "own size": kept.mean}
        if group:
            row |= {"one T: mean over draws": draws[group][0], "own T: mean over draws": draws[group][1]}
        rows.append(row)
    folder.table(name, rows, f"one T = {one.value:.4g} (k = {one.errors} of {one.n}) against one per group")
    print(f"  one T: {by_one.verdict}\n  own T: {by_own.verdict}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    start(main)
