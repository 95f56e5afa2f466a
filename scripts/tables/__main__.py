"""The paper's experiments on small tables: Arrhythmia, car evaluation, Auto MPG and student grade.

\b
    python scripts/tables paper FOLDER
    python scripts/tables own mine.csv --target price [--epsilon 0.1] [--new rows.csv]

FOLDER holds those of arrhythmia.arff, car.arff, autompg.arff and student-por.csv that you have. For each,
five small networks are trained on some rows, a temperature is fitted on others (C), and a threshold on the
paper's n rows at its epsilon and delta (D); the rest tests. Preparation is fitted on the training rows
alone. The certificate of C+D, with the ledger of the look, is written beside tables and figures; D is an
ablation. Then the whole is repeated on other draws of the rows, which is a comparison and certifies nothing.

The ledger is pac-ledger beside each table, whatever --out is; it refuses to calibrate on the same rows
again at another level or seed, as long as it is this ledger (--ledger names another, for data in a folder
that cannot be written).

Expect errors below epsilon on most; at delta = 0.05 a miss is a fair outcome. Takes about a minute.
"""

import sys
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import (
    PATH,
    ResultFolder,
    interval_text,
    ledger_option,
    out_option,
    seed_option,
    smoke_option,
    start,
)
from tables.figures import draw_errors, draw_sizes
from tables.reading import Table, read_own, read_table, table_options
from tables.study import PAPER, SMALL, TableDesign, ablate, certify_table, repeat, sets_of

from pac_core import InvalidInput, LogitForecast, verify, write_certificate
from pac_core.certificates import score_digest
from pac_core.cli import ledger_beside
from pac_core.errors import UnreadableFile

Asked = tuple[Table, TableDesign, Path]
"""A table, what is asked of it, and its ledger."""
repeats_option = click.option(
    "--repeats", default=20, show_default=True, help="Other splits to compare with."
)


@click.group(help=__doc__)
def main():
    pass


@main.command()
@click.argument("folder", type=PATH, required=False)
@repeats_option
@seed_option
@ledger_option("each table")
@out_option("tables_output")
@smoke_option
def paper(folder, repeats, seed, ledger, out, smoke_test):
    """The paper's four tables, those you have."""
    if smoke_test:
        print("generated tables under the paper's names, for a try-out: their numbers mean nothing")
        folder, repeats, ledger = generate(out / "generated"), 1, ledger or out / "pac-ledger"
    files = (
        {path.stem: path for path in folder.glob("*.*") if path.suffix in (".arff", ".csv")} if folder else {}
    )
    here = [name for name in PAPER if name in files]
    if not here:
        names = "arrhythmia.arff, car.arff, autompg.arff, student-por.csv"
        raise InvalidInput(f"FOLDER must hold some of {names}, got {folder}")
    for name in PAPER:
        if name not in here:
            print(f"not there: {name}")
    asked = [(read_table(files[n]), PAPER[n], ledger_beside(files[n], ledger)) for n in here]
    study(asked, out, repeats, seed)


@main.command()
@table_options
@click.option("--new", type=PATH, help="Rows like those of the table, to be given their sets.")
@click.option(
    "--task", type=click.Choice(["labels", "values"]), help="[default: values for a column of numbers]"
)
@click.option("--train", type=int, help="Rows to train on.  [default: 45%]")
@click.option("--tune", type=int, help="Rows to tune on.  [default: 10%]")
@click.option("--calibrate", type=int, help="Rows to calibrate on; the rest tests.  [default: 25%]")
@click.option("--epsilon", default=SMALL.epsilon, show_default=True, help="Promised error.")
@click.option("--delta", default=SMALL.delta, show_default=True, help="Probability that the promise fails.")
@repeats_option
@seed_option
@out_option("tables_output")
def own(file, target, repeats, seed, out, new, **given):
    """A table of your own, arff or text; nothing is unpickled."""
    table, book = read_own(given, file), ledger_beside(file, given["ledger"])
    task = given["task"] or ("values" if table.is_numeric(target) else "labels")
    shares = {"train": 0.45, "tune": 0.1, "calibrate": 0.25}
    sizes = {p: int(s * len(table)) if given[p] is None else given[p] for p, s in shares.items()}
    level, leave_out = replace(SMALL, epsilon=given["epsilon"], delta=given["delta"]), given["leave_out"]
    design = TableDesign(table.name, target, task, **sizes, level=level, leave_out=leave_out)
    rows = None if new is None else read_new(given, new, target)
    if rows is not None:  # refused before the look
        for name in table.inputs(target, leave_out=leave_out):
            if name not in rows.cells:
                raise InvalidInput(f"--new must have the columns of {file.name}, got none named {name!r}")
    study([(table, design, book)], out, repeats, seed, rows)


def read_new(given, new, target):
    """The rows of --new, read like the table; where names are given, the target's column may be missing."""
    try:
        return read_own(given, new)
    except UnreadableFile:
        return read_own(given, new, without=target)


def study(asked, out, repeats, seed, new=None):
    """Certify each table, show the ablation and the figures, then repeat on other draws."""
    for table, design, _ in asked:  # refuses before any work
        design.test_rows(table)
    folder, found = ResultFolder(out), {}
    rows = []
    for table, design, ledger in asked:
        print(f"\n== {design.title}: {len(table):,} rows, {table.cells.shape[1] - 1} columns to read")
        made, certified = certify_table(table, design, ledger=ledger, seed=seed)
        certificate, parts = certified.certificates[0], certified.parts
        print(f"score      {certified.score}\nthreshold  {certificate.predictor.threshold}")
        write_certificate(certificate, folder.folder / f"{table.name}.certificate.json")
        known = {"scores": certified.scores, "ids": certified.ids, "score": score_digest(certified.score)}
        path = folder.folder / f"{table.name}.certificate.scores.npz"
        np.savez(path, **known, tune_ids=made.ids[parts.tune.rows])
        held = all(check.holds for check in verify(certificate, certified.scores, certified.ids))
        print(f"certify    {'it follows from its scores' if held else 'IT DOES NOT FOLLOW'}")
        ablated, test = ablate(made, design, seed=seed), parts.test.rows
        print(ablated[-1].found)
        rows += [ablation_row(design, one) for one in ablated]
        truth, wrong = made.truth[test], None
        if isinstance(made.forecast, LogitForecast):
            wrong = made.forecast.take(test).predictions() != truth
        folder.figure(f"{table.name}_sizes", draw_sizes(ablated, design, truth.reshape(len(test)), wrong))
        found[design.title] = ablated[-1].found.all, design
        if new is not None:
            folder.table("new_sets", sets_of(certificate.predictor, made, new))
            print(f"sets of {len(new):,} new rows in {folder.folder / 'new_sets.csv'}")
            if seen := int(np.isin(new.ids, table.ids).sum()):
                print(f"NOTE: {seen:,} of these are rows of {table.name}; the promise is about others")
    folder.table("tables", rows, "Small tables: one certified split of each")
    seeds = range(seed + 1, seed + 1 + repeats)
    others = {design.title: repeat(table, design, seeds) for table, design, _ in asked if repeats}
    if others:
        title = f"{repeats} other splits of each table: a comparison of overlapping draws, NO certificates"
        folder.table("repeats", [row for row, _ in others.values()], title)
    folder.figure("errors", draw_errors(found, {title: errors for title, (_, errors) in others.items()}))


def ablation_row(design, one):
    row, level, certified = one.found.all, design.level, one.name == "C+D"
    verdict = f"refuted: fair in {level.delta:g} of all draws, or rows not alike"
    return {
        "table": design.title,
        "train, tune, n, test": f"{design.train}, {design.tune}, {design.calibrate}, {row.n}",
        "epsilon": level.epsilon,
        "delta": level.delta,
        "sets": "C+D, certified" if certified else "D, ablation",
        "error": row.error,
        "98% interval": interval_text(row.interval),
        "promise": verdict if one.found.refuted else "not refuted",
        "mean size": row.mean,
        "in": "labels" if design.task == "labels" else design.unit,
        "empty": row.empty,
        "paper's": design.published if certified else None,
    }


def generate(folder):
    """Small tables of known kinds under the paper's names, for a try-out without any data."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {"safety": ["low", "med", "high"], "doors": ["2", "4"], "class": ["unacc", "acc", "good"]}
    lines = ["@relation car", *(f"@attribute {name} {{{','.join(v)}}}" for name, v in kinds.items())]
    lines += ["@attribute price real", "@data"]
    for _ in range(1500):
        safety, doors, price = rng.integers(3), rng.integers(2), rng.normal()
        label = int(np.clip(round(safety - price / 2 + rng.normal() / 3), 0, 2))
        cells = [kinds["safety"][safety], kinds["doors"][doors], kinds["class"][label], f"{price:.4f}"]
        lines.append(",".join(cells if rng.random() > 0.02 else [*cells[:3], "?"]))
    (folder / "car.arff").write_text("\n".join(lines) + "\n")
    lines = ["school;hours;G3"]
    for _ in range(649):
        hours, school = 10 * rng.random(), rng.choice(["GP", "MS"])
        grade = 4 + hours + 2 * (school == "GP") + (0.5 + hours / 8) * rng.normal()
        lines.append(f'"{school}";{hours:.2f};{grade:.2f}')
    (folder / "student-por.csv").write_text("\n".join(lines) + "\n")
    return folder


if __name__ == "__main__":
    start(main)
