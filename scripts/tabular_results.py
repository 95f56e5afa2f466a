"""The paper's experiments on small tables: Arrhythmia, car evaluation, Auto MPG and student grade.

    python scripts/tabular_results.py --data FOLDER [--out tabular_output]
    python scripts/tabular_results.py --file mine.csv --target price [--epsilon 0.1] [--new rows.csv]

FOLDER holds those of arrhythmia.arff, car.arff, autompg.arff and student-por.csv that you have. For each,
five small networks are trained on some rows, a temperature is fitted on others (C), and a threshold on the
paper's n rows at its epsilon and delta (D); the rest tests. Preparation is fitted on the training rows
alone. The certificate of C+D, with the ledger of the look, is written beside tables and figures; D is an
ablation. Then the whole is repeated on other draws of the rows, which is a comparison and certifies
nothing. The ledger is pac-ledger beside each table, whatever --out is; it refuses to calibrate on the
same rows again at another level or seed, as long as it is this ledger (--ledger names another, for data in a
folder that cannot be written). With --new, the rows of another file get their sets.

Expect errors below epsilon on most; at delta = 0.05 a miss is a fair outcome. Takes about a minute.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pac_core import InvalidInput, LogitForecast, PACError, PACLevel, verify, write_certificate
from pac_core.ledger import score_digest
from pac_core.options import ledger_beside
from pac_vision.tabular import Table, read_table
from pac_vision.tabular_designs import PAPER, TableDesign, design_for
from pac_vision.tabular_figures import errors_of_all, interval_sizes, label_sizes
from pac_vision.tabular_reports import (
    add_table_options,
    new_table_of,
    save_figure,
    table_of,
    write_csv,
    write_rows,
)
from pac_vision.tabular_studies import Repeats, ablate, certify_table, repeat, sets_of


def main(args: argparse.Namespace) -> None:
    asked = list_asked(args)
    for table, design, _ in asked:  # refuses before any work
        design.test_rows(table)
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    found, repeats = {}, {}
    for table, design, ledger in asked:
        print(f"\n== {design.title}: {len(table):,} rows, {len(table.columns) - 1} columns to read")
        made, certified = certify_table(table, design, ledger=ledger, seed=args.seed)
        certificate, parts = certified.certificates[0], certified.parts
        print(f"score      {certified.score}")
        print(f"threshold  {certificate.predictor.threshold}")
        stem = args.out / table.name
        write_certificate(certificate, stem.with_name(f"{table.name}.certificate.json"))
        scores = {"scores": certified.scores, "ids": certified.ids, "score": score_digest(certified.score)}
        tuned = made.ids[parts.tune.rows]
        np.savez(stem.with_name(f"{table.name}.certificate.scores.npz"), **scores, tune_ids=tuned)
        held = all(check.holds for check in verify(certificate, certified.scores, certified.ids))
        print(f"certify    {'it follows from its scores' if held else 'IT DOES NOT FOLLOW'}")
        ablated = ablate(made, design, seed=args.seed)
        print(ablated[-1].found)
        rows.extend(row_of(design, one) for one in ablated)
        if isinstance(made.forecast, LogitForecast):
            test = parts.test.rows
            wrong = made.forecast.take(test).predictions() != made.truth[test]
            figure = label_sizes(ablated, wrong, design)
        else:
            figure = interval_sizes(ablated, made, parts.test.rows, design)
        save_figure(stem.with_name(f"{table.name}_sizes.png"), figure)
        found[design.title] = ablated[-1].found.all, design
        if args.new is not None:
            new = new_table_of(args)
            write_csv(args.out / "new_sets.csv", sets_of(certificate.predictor, made.model, new))
            print(f"sets of {len(new):,} new rows in {args.out / 'new_sets.csv'}")
            if known := int(np.isin(new.ids, table.ids).sum()):
                print(
                    f"NOTE: {known:,} of these are rows of {args.file}; the promise is about rows never used"
                )
    write_rows(args.out / "tables.csv", rows, title="Small tables: one certified split of each")
    if args.repeats:
        for table, design, _ in asked:
            seeds = range(args.seed + 1, args.seed + 1 + args.repeats)
            repeats[design.title] = repeat(table, design, seeds)
        title = (
            f"{args.repeats} other splits of each table: a comparison of overlapping draws, NO certificates"
        )
        write_rows(args.out / "repeats.csv", [repeat_row(*item) for item in repeats.items()], title=title)
    save_figure(args.out / "errors.png", errors_of_all(found, repeats))


def list_asked(args: argparse.Namespace) -> list[tuple[Table, TableDesign, Path]]:
    """The tables to go through, each with its design and its ledger."""
    if (args.file is None) == (args.data is None):
        raise InvalidInput("give either --data FOLDER or --file TABLE with --target COLUMN, and not both")
    if args.new is not None and args.file is None:
        raise InvalidInput("--new is for rows like those of --file, got no --file")
    if args.file is not None:
        table, ledger = table_of(args), ledger_beside(args.file, args.ledger)
        design = at_level(design_for(table, args.target, level=PACLevel(0.1, 0.05), task=args.task), args)
        if args.new is not None:  # refused before the look
            there = set(new_table_of(args).columns)
            needed = [name for name in table.columns if name not in (args.target, *args.leave_out)]
            if missing := [name for name in needed if name not in there]:
                raise InvalidInput(f"--new must have the columns of --file, got none named {missing[0]!r}")
        given = {name: getattr(args, name) for name in ("train", "tune", "calibrate")}
        sizes = {name: value for name, value in given.items() if value is not None}
        return [(table, replace(design, leave_out=tuple(args.leave_out), **sizes), ledger)]
    files = {path.stem: path for path in sorted(args.data.glob("*.*")) if path.suffix in (".arff", ".csv")}
    here = [name for name in PAPER if name in files]
    if not here:
        names = "arrhythmia.arff, car.arff, autompg.arff, student-por.csv"
        raise InvalidInput(f"--data must be a folder with some of {names}, got {args.data}")
    for name in PAPER:
        if name not in here:
            print(f"not there: {name}")
    ledgers = {name: ledger_beside(files[name], args.ledger) for name in here}
    return [(read_table(files[name]), at_level(PAPER[name], args), ledgers[name]) for name in here]


def at_level(design: TableDesign, args: argparse.Namespace) -> TableDesign:
    """The design at the level asked for, or its own."""
    asked = {name: getattr(args, name) for name in ("epsilon", "delta") if getattr(args, name) is not None}
    return replace(design, level=replace(design.level, **asked))


def row_of(design: TableDesign, one: Any) -> dict[str, Any]:
    all_rows = one.found.all
    verdict = "not refuted"
    if one.found.refuted:
        verdict = f"refuted: fair in {design.level.delta:g} of all draws, or rows not alike"
    return {
        "table": design.title,
        "train, tune, n, test": f"{design.train}, {design.tune}, {design.calibrate}, {all_rows.n}",
        "epsilon": design.level.epsilon,
        "delta": design.level.delta,
        "sets": "C+D, certified" if one.name == "C+D" else "D, ablation",
        "error": all_rows.error,
        "98% interval": "{:.4f}..{:.4f}".format(*all_rows.interval),
        "promise": verdict,
        "mean size": all_rows.mean,
        "in": "labels" if design.task == "labels" else design.unit,
        "empty": all_rows.empty,
        "paper's": design.published if one.name == "C+D" else None,
    }


def repeat_row(title: str, found: Repeats) -> dict[str, Any]:
    count = len(found.errors)
    return {
        "table": title,
        "epsilon": found.level.epsilon,
        "delta": found.level.delta,
        "splits": count,
        "test rows": found.n,
        "mean error": float(np.mean(found.errors)) / found.n,
        "largest": max(found.errors) / found.n,
        "above epsilon": found.above,
        "expected": found.expected * count,
        "P(true error above)": found.breach,
        "mean size": float(np.mean(found.sizes)),
        "of D": float(np.mean(found.plain_sizes)),
    }


def generate(folder: Path) -> None:
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


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, help="folder with the paper's tables, those you have")
    add_table_options(parser)
    add("--new", type=Path, help="rows like those of --file, to be given their sets")
    add("--task", choices=["labels", "values"], help="of --file (values for a column of numbers)")
    for part in ("train", "tune", "calibrate"):
        add(f"--{part}", type=int, help=f"rows of --file to {part} on")
    add("--epsilon", type=float, help="promised error (the paper's; 0.1 for --file)")
    add("--delta", type=float, help="probability that the promise fails (the paper's; 0.05 for --file)")
    add("--repeats", type=int, default=20, help="other splits to compare with (%(default)s)")
    add("--seed", type=int, default=0, help="of splits and training (%(default)s)")
    add("--out", type=Path, default=Path("tabular_output"), help="folder for the results (%(default)s)")
    add(
        "--smoke-test",
        action="store_true",
        help="two generated tables and one repeat, in seconds; ledger in --out",
    )
    args = parser.parse_args()
    if args.smoke_test:
        print("generated tables under the paper's names, for a try-out: their numbers mean nothing")
        args.data, args.file, args.repeats = args.out / "generated", None, 1
        args.ledger = args.ledger or args.out / "pac-ledger"
        generate(args.data)
    return args


if __name__ == "__main__":
    try:
        main(parse())
    except PACError as error:
        raise SystemExit(f"Error: {error}") from None
