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
import common
from tables.reading import read_own, read_table, table_options
from tables.study import PAPER, SMALL, TableDesign, study

from pac_core import InvalidInput
from pac_core.cli import ledger_beside
from pac_core.errors import UnreadableFile

repeat_options = common.options(
    common.option("repeats", 20, "Other splits to compare with."), common.seed_option
)
main = click.Group(help=__doc__)


@main.command()
@click.argument("folder", type=common.PATH, required=False)
@repeat_options
@common.ledger_option("each table")
@common.out_option("tables_output")
@common.smoke_option
def paper(folder, repeats, seed, ledger, out, smoke_test):
    """The paper's four tables, those you have."""
    if smoke_test:
        print("generated tables under the paper's names, for a try-out: their numbers mean nothing")
        folder, repeats, ledger = generate(out / "generated"), 1, ledger or out / "pac-ledger"
    found = [path for path in folder.glob("*.*") if path.suffix in (".arff", ".csv")] if folder else []
    files = {path.stem: path for path in found if path.stem in PAPER}
    if not files:
        names = "arrhythmia.arff, car.arff, autompg.arff, student-por.csv"
        raise InvalidInput(f"FOLDER must hold some of {names}, got {folder}")
    for name in PAPER:
        if name not in files:
            print(f"not there: {name}")
    here = [(files[name], design) for name, design in PAPER.items() if name in files]
    asked = [(read_table(file), design, ledger_beside(file, ledger)) for file, design in here]
    study(asked, out, repeats, seed)


@main.command()
@table_options
@click.option("--new", type=common.PATH, help="Rows like those of the table, to be given their sets.")
@click.option("--task", type=click.Choice(["labels", "values"]), help="[default: values for numbers]")
@click.option("--train", type=int, help="Rows to train on.  [default: 45%]")
@click.option("--tune", type=int, help="Rows to tune on.  [default: 10%]")
@click.option("--calibrate", type=int, help="Rows to calibrate on; the rest tests.  [default: 25%]")
@common.option("epsilon", SMALL.epsilon, "Promised error.")
@common.option("delta", SMALL.delta, "Probability that the promise fails.")
@repeat_options
@common.out_option("tables_output")
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
    common.start(main)
