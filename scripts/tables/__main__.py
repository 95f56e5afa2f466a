"""The paper's experiments on small tables: Arrhythmia, car evaluation, Auto MPG and student grade.

\b
    python scripts/tables paper FOLDER

FOLDER holds those of arrhythmia.arff, car.arff, autompg.arff and student-por.csv that you have. For each,
five small networks are trained on some rows, a temperature is fitted on others (C), and a threshold on the
paper's n rows at its epsilon and delta (D); the rest tests. C+D is certified, D is an ablation. Then the
whole is repeated on other draws of the rows, which is a comparison and certifies nothing.

Looks are recorded in pac-ledger beside each table, whatever --out is (--ledger names another).

Expect errors below epsilon on most; at delta = 0.05 a miss is a fair outcome. Takes about a minute.
"""

import sys
from pathlib import Path

import click
import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))
import common
from tables.reading import read_table
from tables.study import PAPER, study

from pac_core import InvalidInput
from pac_core.cli import ledger_beside

main = click.Group(help=__doc__)


@main.command()
@click.argument("folder", type=common.PATH, required=False)
@common.option("repeats", 20, "Other splits to compare with.")
@common.seed_option
@common.ledger_option("each table")
@common.out_option("tables_output")
@common.smoke_option
def paper(folder, repeats, seed, ledger, out, smoke_test):
    """The paper's four tables, those you have."""
    if smoke_test:
        print("generated tables under the paper's names, for a try-out: their numbers mean nothing")
        folder, repeats, ledger = generate(out / "generated"), 1, ledger or out / "pac-ledger"
    here = {name: folder / name for name in PAPER if folder and (folder / name).exists()}
    if not here:
        raise InvalidInput(f"FOLDER must hold some of {', '.join(PAPER)}, got {folder}")
    if gone := PAPER.keys() - here:
        print(f"not there: {', '.join(sorted(gone))}")
    asked = [(read_table(file), PAPER[name], ledger_beside(file, ledger)) for name, file in here.items()]
    study(asked, out, repeats, seed)


def generate(folder):
    """Small tables of known kinds under the paper's names, for a try-out without any data."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    sex, pulse = rng.integers(2, size=450), rng.normal(size=450)
    label = (2 - sex + pulse + rng.normal(size=450) / 3).round().clip(1, 3).astype(int)
    known = np.where(rng.random(450) < 0.02, "?", pulse.round(4).astype(str))
    cells = pd.DataFrame({"sex": sex, "pulse": known, "class": label})
    head = (
        "@relation arrhythmia\n@attribute sex {0,1}\n@attribute pulse real\n@attribute class {1,2,3}\n@data\n"
    )
    (folder / "arrhythmia.arff").write_text(head + cells.to_csv(header=False, index=False))
    hours, school = 10 * rng.random(649), rng.choice(["GP", "MS"], 649)
    grade = 4 + hours + 2 * (school == "GP") + (0.5 + hours / 8) * rng.normal(size=649)
    cells = pd.DataFrame({"school": school, "hours": hours, "G3": grade}).round(2)
    cells.to_csv(folder / "student-por.csv", sep=";", index=False)
    return folder


if __name__ == "__main__":
    common.start(main)
