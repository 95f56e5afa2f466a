"""Smaller label sets with the same promise: the chosen score against the paper's, level by level.

    python scripts/label_scores.py --logits logits.npz [--tune 1000] [--calibrate 2000] [--splits 12]
    python scripts/label_scores.py --smoke-test

Reads logits `[N, K]` and labels `[N]`, draws several splits (the units left over test), and at each level
calibrates and measures the paper's score without (D) and with its temperature (C+D), ours as
`choose_label_score` picks it on the tune units, and RAPS and SAPS without their random part, at the
paper's temperature, their penalty picked on the tune units in the same way. LAC (1 - p) needs no row of
its own: its sets are those of D, and tempered those of C+D.

Prints mean size and error with standard errors over the splits, and writes label_scores.csv and
label_scores.png. The splits share units: the standard errors tell how much the draw of the split matters,
not how other data would fare. Nothing here is a certificate: every split looks at the same units again.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pac_core import (
    Likelihood,
    LogitForecast,
    NotEnoughData,
    PACError,
    PACLevel,
    RankedScore,
    calibrate,
    choose_label_score,
    evaluate,
    max_errors,
    split,
    tempered,
)
from pac_core.datasets import read_dataset
from pac_core.figures import INK, canvas
from pac_core.label_scores import Units, choose_among

LEVELS = (
    *((epsilon, 1e-5) for epsilon in (0.02, 0.03, 0.05, 0.1, 0.2)),
    *((0.01, 0.1), (0.05, 1e-3), (0.1, 0.05)),
)
RAPS = (0.001, 0.01, 0.1, 0.2, 0.5)
SAPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True)
class Args:
    logits: Path | None = None
    """npz or parquet with logits [N, K] and labels [N]"""
    out: Path = Path("label_scores_output")
    """folder for the table and the figure"""
    tune: int = 1000
    """units to choose the score on"""
    calibrate: int = 2000
    """units to prove it on"""
    splits: int = 12
    """random splits to average over"""
    levels: tuple[tuple[float, float], ...] = LEVELS
    """(epsilon, delta)"""
    rows: bool = False
    """one score for all deltas of an epsilon, as in imagenet_results.py"""


def main(args: Args) -> None:
    logits, labels = toy() if args.logits is None else read(args.logits)
    levels = [PACLevel(*level) for level in args.levels]
    found: dict[tuple[PACLevel, str], list[tuple[float, float]]] = {}
    kept = dict.fromkeys(levels, 0)
    for level in [level for level in levels if not provable(level, args.calibrate)]:
        print(f"epsilon={level.epsilon:g}, delta={level.delta:g}: {args.calibrate:,} units cannot prove it")
        levels.remove(level)
    if not levels:
        raise SystemExit("Error: no level is left")
    for seed in range(args.splits):
        parts = split(range(len(labels)), tune=args.tune, calibrate=args.calibrate, seed=seed)
        tune, cal, test = (
            (LogitForecast(logits[part.rows]), labels[part.rows])
            for part in (parts.tune, parts.calibrate, parts.test)
        )
        units = Units.of(*tune)
        for level in levels:
            served = [one for one in levels if args.rows and one != level and one.epsilon == level.epsilon]
            for name, fit in contenders(units, args.calibrate, served).items():
                score = fit(*tune, level)
                kept[level] += name == "ours" and isinstance(score, Likelihood)
                row = evaluate(calibrate(score, *cal, level).sets(test[0]), test[1], level).all
                found.setdefault((level, name), []).append((row.mean, row.error))
        print(f"split {seed + 1} of {args.splits}", flush=True)
    rows = [summary(level, name, found) for level, name in found]
    for level in levels:
        say(level, [row for row in rows if (row["epsilon"], row["delta"]) == (level.epsilon, level.delta)])
        print(f"  ours is the paper's in {kept[level]} of {args.splits} splits\n")
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "label_scores.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    what = "toy data" if args.logits is None else args.logits.stem
    draw(
        rows, args.out / "label_scores.png", f"{what}, {args.calibrate:,} to calibrate, {args.splits} splits"
    )
    print(f"wrote {args.out / 'label_scores.csv'} and {args.out / 'label_scores.png'}")


def contenders(
    units: Units, n: int, served: Sequence[PACLevel]
) -> dict[str, Callable[[Any, Any, PACLevel], Any]]:
    """Name to how the score is fitted on the tune units; ours also for the other levels that it serves."""

    def penalised(base: str, weights: tuple[float, ...]) -> Callable[[Any, Any, PACLevel], Any]:
        scores = [RankedScore(base, units.tau, weight, power=1.0) for weight in weights]
        return lambda forecast, truth, level: choose_among(scores, units, [level], calibrate=n, always=True)

    return {
        "D": lambda forecast, truth, level: Likelihood(),
        "C+D": tempered,
        "ours": partial(choose_label_score, calibrate=n, others=served),
        "RAPS": penalised("mass", RAPS),
        "SAPS": penalised("top", SAPS),
    }


def provable(level: PACLevel, n: int) -> bool:
    try:
        return max_errors(n, level) >= 0
    except NotEnoughData:
        return False


def summary(level: PACLevel, name: str, found: dict[Any, list[tuple[float, float]]]) -> dict[str, Any]:
    """Means over the splits; the size relative to C+D is the mean of the splits' ratios."""
    sizes, errors = np.array(found[level, name]).T
    ratios = sizes / np.array(found[level, "C+D"])[:, 0]
    deviation = math.sqrt(len(sizes) - 1) if len(sizes) > 1 else math.nan
    return {
        "epsilon": level.epsilon,
        "delta": level.delta,
        "score": name,
        "size": float(sizes.mean()),
        "size_se": float(sizes.std() / deviation),
        "of_paper": float(ratios.mean()),
        "of_paper_se": float(ratios.std() / deviation),
        "error": float(errors.mean()),
        "largest_error": float(errors.max()),
    }


def say(level: PACLevel, rows: list[dict[str, Any]]) -> None:
    print(f"\nepsilon={level.epsilon:g}, delta={level.delta:g}")
    print("  score  mean size (se)     of C+D (se)      error   largest")
    for row in rows:
        print(
            f"  {row['score']:5}  {row['size']:8.2f} ({row['size_se']:.2f})  {row['of_paper']:6.3f} "
            f"({row['of_paper_se']:.3f})   {row['error']:.4f}  {row['largest_error']:.4f}"
        )


def draw(rows: list[dict[str, Any]], path: Path, what: str) -> None:
    """Mean size against epsilon, at the delta that has most of the levels."""
    deltas = [row["delta"] for row in rows]
    delta = max(set(deltas), key=deltas.count)
    figure, axes = canvas(7.0, 4.6)
    marks = {"D": "s", "C+D": "o", "ours": "D", "RAPS": "^", "SAPS": "v"}
    words = {"D": "D (plain NLL; LAC)", "C+D": "C+D (the paper)", "ours": "chosen on the tune units"}
    for (name, mark), ink in zip(marks.items(), INK, strict=True):
        mine = sorted(
            (r["epsilon"], r["size"], r["size_se"])
            for r in rows
            if r["score"] == name and r["delta"] == delta
        )
        epsilons, sizes, errors = np.array(mine).T
        width = 2.2 if name == "ours" else 1.2
        axes.errorbar(epsilons, sizes, errors, color=ink, marker=mark, lw=width, label=words.get(name, name))
    axes.set(xscale="log", yscale="log", xlabel="promised error, epsilon", ylabel="mean set size, labels")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    low, high = axes.get_ylim()
    ticks = [
        tick
        for power in range(-1, 4)
        for tick in np.array([1, 1.5, 2, 3, 5, 7]) * 10.0**power
        if low < tick < high
    ]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_title(f"Mean set size at delta = {delta:g}: {what}", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path)


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    units = read_dataset(path)
    if not isinstance(units.forecast, LogitForecast) or units.truth is None:
        raise SystemExit(f"Error: {path} must hold logits and labels")
    return units.forecast.logits, units.truth


def toy() -> tuple[np.ndarray, np.ndarray]:
    """A forecaster that is right but for one label in eight, which is anywhere among its first thirty."""
    rng = np.random.default_rng(0)
    logits = 2.5 * rng.standard_normal((1500, 80))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    order = np.argsort(-logits, axis=1)
    astray = rng.random(len(labels)) < 1 / 8
    labels[astray] = order[astray, rng.integers(0, 30, size=astray.sum())]
    return logits.astype(np.float32), labels


def parse() -> Args:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--logits", type=Path)
    parser.add_argument("--out", type=Path, default=Args.out)
    for name in ("tune", "calibrate", "splits"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Args, name))
    parser.add_argument("--level", nargs=2, type=float, action="append", metavar=("EPSILON", "DELTA"))
    parser.add_argument("--rows", action="store_true", help="one score for all deltas of an epsilon")
    parser.add_argument("--smoke-test", action="store_true", help="toy data, three splits")
    given = vars(parser.parse_args())
    levels, smoke = given.pop("level"), given.pop("smoke_test")
    if smoke:
        given |= {"logits": None, "tune": 300, "calibrate": 600, "splits": 3}
        levels = levels or [(0.05, 1e-3), (0.1, 1e-3), (0.2, 1e-3)]
    elif given["logits"] is None:
        parser.error("--logits must name a file, or give --smoke-test")
    return Args(**given, levels=tuple(tuple(level) for level in levels or LEVELS))


if __name__ == "__main__":
    try:
        main(parse())
    except PACError as error:
        raise SystemExit(f"Error: {error}") from None
