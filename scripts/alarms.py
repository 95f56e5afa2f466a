"""The paper's alarm experiment: which alarms may be suppressed, and what is really promised of them.

    python scripts/alarms.py [--data FOLDER] [--out alarms_output] [--epsilon 0.1] [--delta 0.05]
    python scripts/alarms.py --file mine.csv --target alarm --positive yes

The paper suppresses an alarm whose confidence set is {false}, and says that it is then false with
probability 1 - epsilon. That does not follow: what follows is epsilon / P(suppressed). The better way
calibrates on true alarms alone, which bounds the share of true alarms that are suppressed. Both run on a
simulated stream whose truth is known in closed form and, where FOLDER has them, on arrhythmia.arff (true:
any arrhythmia) and car.arff (true: acceptable or better). Tables, figures and the certificate of the better
rule at the level asked for go into the folder; rows at other levels compare, and certify nothing. Each row
of a table must be an alarm of its own: several of one patient depend on each other. Looks are recorded in
pac-ledger beside each table (--ledger names another), and for the simulated stream in the folder of the
results; rows that calibrated anything else before, by `tabular_results.py` say, are refused.

Expect the paper's claim to be false in every calibration of the simulated stream at epsilon 0.02, and what
does follow to be kept. Takes about twenty seconds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from pac_core import (
    InvalidInput,
    LogitForecast,
    NotEnoughData,
    PACError,
    PACLevel,
    Record,
    max_errors,
    write_certificate,
)
from pac_core.options import ledger_beside
from pac_vision.alarm_studies import (
    OURS,
    PAPERS,
    Alarms,
    RuleResult,
    alarms_in,
    by_the_paper,
    by_true_alarms,
    certify_rule,
    sets_row,
)
from pac_vision.tabular import read_table
from pac_vision.tabular_figures import set_kinds, shares_suppressed
from pac_vision.tabular_reports import add_table_options, save_figure, table_of, write_rows

EPSILONS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
# Much as in the paper's stream, which had 187 true alarms of 817 and suppressed 7% of those.
SHARE_TRUE, EVIDENCE = 0.23, 0.5
PAPERS_SIZE = (1000, 817)  # alarms to calibrate and to test
PAPERS_LEVEL = PACLevel(0.02, 1e-5)


def main(args: argparse.Namespace) -> None:
    level = PACLevel(args.epsilon, args.delta)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, (alarms, ledger) in streams(args).items():
        study(name, alarms, level, args, ledger=ledger)
    if args.file is None:
        rows = []
        for epsilon in EPSILONS[:3]:
            try:
                rows += claims(PACLevel(epsilon, level.delta), args.calibrations, args.seed)
            except NotEnoughData as error:
                print(f"simulated  epsilon {epsilon:g} left out: {error}")
        if rows:
            title = (
                f"{args.calibrations:,} calibrations on {PAPERS_SIZE[0]:,} simulated alarms each, truth in "
            )
            title += f"closed form, delta {level.delta:g}"
            write_rows(args.out / "simulated_claims.csv", rows, title=title)


def streams(args: argparse.Namespace) -> dict[str, tuple[Alarms, Path]]:
    """By name, with the ledger: the user's table, or the simulated stream and the tables that are there."""
    if args.file is not None:
        asked: dict[str, Any] = {"positive": args.positive, "negative": args.negative, "seed": args.seed}
        table, ledger = table_of(args), ledger_beside(args.file, args.ledger)
        return {table.name: (alarms_in(table, args.target, leave_out=args.leave_out, **asked), ledger)}
    stream = simulated(sum(PAPERS_SIZE), args.seed)
    found = {"simulated": (stream, ledger_beside(args.out / "simulated.csv", args.ledger))}
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "arrhythmia": ("Arrhythmia (true: any)", {"negative": ["1"], "train": 212, "calibrate": 150}),
        "car": ("Car (true: acceptable)", {"negative": ["unacc"], "train": 863, "calibrate": 520}),
    }
    here = {name: args.data / f"{name}.arff" for name in cases} if args.data is not None else {}
    here = {name: file for name, file in here.items() if file.exists()}
    if args.data is not None and not here:
        raise InvalidInput(f"--data must be a folder with arrhythmia.arff, car.arff or both, got {args.data}")
    for name, file in here.items():
        title, how = cases[name]
        ledger = ledger_beside(file, args.ledger)
        alarms = alarms_in(read_table(file), "class", seed=args.seed, **how)
        found[name] = replace(alarms, title=title), ledger
    return found


def simulated(n: int, seed: int) -> Alarms:
    """Alarms with one number of evidence, normal around 0.5 if true, -0.5 if false, forecast exactly."""
    rng = np.random.default_rng(seed)
    true = rng.random(n) < SHARE_TRUE
    forecast = LogitForecast(np.stack([np.zeros(n), log_odds(rng, true)], axis=1))
    ids = np.array([f"simulated-{seed}-{i}" for i in range(n)])
    rows, model = np.arange(n), Record("the true probabilities")
    calibrate, test = rows[: PAPERS_SIZE[0]], rows[PAPERS_SIZE[0] :]
    return Alarms("Simulated stream", ids, forecast, true, calibrate, test, model, Record("simulated", n))


def log_odds(rng: np.random.Generator, true: np.ndarray) -> np.ndarray:
    evidence = rng.normal(size=true.shape) + np.where(true, EVIDENCE, -EVIDENCE)
    return 2 * EVIDENCE * evidence + np.log(SHARE_TRUE / (1 - SHARE_TRUE))


def study(name: str, alarms: Alarms, level: PACLevel, args: argparse.Namespace, *, ledger: Path) -> None:
    """One stream: the certificate at the level asked for, both ways at all levels, table and figure."""
    real = alarms.true[alarms.test]
    proved = int(alarms.true[alarms.calibrate].sum())
    print(
        f"\n== {alarms.title}: {len(alarms.calibrate):,} alarms to calibrate, {proved:,} of them true; ",
        end="",
    )
    print(f"{len(real):,} to test, {int(real.sum()):,} of them true")
    try:
        certificate = certify_rule(alarms, level, ledger=ledger).certificates[0]
        write_certificate(certificate, args.out / f"{name}.certificate.json")
        print(
            f"certified  P(suppressed given true alarm) <= {level.epsilon:g}, confidence 1 - {level.delta:g}"
        )
    except NotEnoughData as error:
        print(f"refused    true alarms: {error}")
    epsilons = sorted({*EPSILONS, level.epsilon})
    results = [
        way(alarms, PACLevel(e, level.delta)) for e in epsilons for way in (by_the_paper, by_true_alarms)
    ]
    chosen = [result for result in results if result.level == level]
    for result in chosen:
        if result.given is not None:
            print(f"compared   '{PAPERS}' (no certificate, its look is not in the ledger)  {result.given}")
    title = f"{alarms.title}: what each rule suppressed of the test alarms (delta = {level.delta:g})"
    write_rows(args.out / f"{name}.csv", [row_of(result) for result in results], title=title)
    save_figure(args.out / f"{name}_suppressed.png", shares_suppressed(results, alarms.title, len(real)))
    papers = [by_the_paper(alarms, PAPERS_LEVEL), *(one for one in results if one.way == PAPERS)]
    rows = [sets_row(alarms, one) for one in papers]
    title = f"{alarms.title}: sets from all alarms, the paper's level first (comparison, no certificates)"
    write_rows(args.out / f"{name}_sets.csv", rows, title=title)
    save_figure(args.out / f"{name}_sets.png", set_kinds(rows, alarms.title, len(real)))


def row_of(result: RuleResult) -> dict[str, Any]:
    found, given = result.found, result.given
    if found is None:
        return dict.fromkeys(HEADS, None) | {
            "rule": result.way,
            "epsilon": result.level.epsilon,
            "verdict": result.refused,
        }
    low, high = found.true_interval
    return {
        "rule": result.way,
        "epsilon": result.level.epsilon,
        "n": result.threshold.n if result.threshold else None,
        "true suppressed": f"{found.true_suppressed} of {found.true}",
        "share": found.share_of_true,
        "98%": f"{low:.3f}..{high:.3f}",
        "promised": result.promised,
        "false suppressed": f"{found.false_suppressed} of {found.false}",
        "share of false": found.share_of_false,
        "true among suppressed": found.true_suppressed / found.suppressed if found.suppressed else None,
        "implied limit": given.limit if given else None,
        "verdict": "refuted" if result.refuted else "not refuted",
    }


HEADS = (
    *("rule", "epsilon", "n", "true suppressed", "share", "98%", "promised", "false suppressed"),
    *("share of false", "true among suppressed", "implied limit", "verdict"),
)


def claims(level: PACLevel, repeats: int, seed: int) -> list[dict[str, Any]]:
    """How often each claim is false over many calibrations, where its true value is known."""
    rng = np.random.default_rng([seed, 1])
    n, allowed = PAPERS_SIZE[0], max_errors(PAPERS_SIZE[0], level)
    broken = {"claimed": 0, "implied": 0, "direct": 0}
    expected = 0.0
    for _ in range(repeats):
        true = rng.random(n) < SHARE_TRUE
        odds = log_odds(rng, true)
        margin = np.sort(np.where(true, odds, -odds))[allowed]  # of the worst that the sets must hold
        real, wrong, quiet = known(min(margin, -margin))
        broken["claimed"] += wrong / quiet > level.epsilon
        broken["implied"] += wrong / quiet > level.epsilon / quiet
        count = int(true.sum())
        most = max_errors(count, level)
        real, _, _ = known(np.sort(odds[true])[most])
        broken["direct"] += real > level.epsilon
        expected += float(binom.cdf(most, count, level.epsilon))
    said = {
        "claimed": (PAPERS, "P(true alarm | suppressed) <= epsilon, as the paper says", "not proved"),
        "implied": (PAPERS, "P(true alarm | suppressed) <= epsilon / P(suppressed)", level.delta * repeats),
        "direct": (OURS, "P(suppressed | true alarm) <= epsilon", level.delta * repeats),
    }
    return [
        {
            "rule": way,
            "epsilon": level.epsilon,
            "claim": claim,
            "false in": broken[key],
            "of": repeats,
            "allowed by delta": bound,
            "expected": expected if key == "direct" else None,
        }
        for key, (way, claim, bound) in said.items()
    ]


def known(odds: float) -> tuple[float, float, float]:
    """P(suppressed | true), P(suppressed and true), P(suppressed), if lower log-odds are suppressed."""
    evidence = (odds - np.log(SHARE_TRUE / (1 - SHARE_TRUE))) / (2 * EVIDENCE)
    real, other = float(ndtr(evidence - EVIDENCE)), float(ndtr(evidence + EVIDENCE))
    return real, SHARE_TRUE * real, SHARE_TRUE * real + (1 - SHARE_TRUE) * other


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, help="folder with arrhythmia.arff and car.arff, those you have")
    add_table_options(parser)
    add("--positive", action="append", default=[], help="target's value of a true alarm; may be repeated")
    add("--negative", action="append", default=[], help="or that of a false one, all others being true")
    add("--epsilon", type=float, default=0.1, help="promised, of true alarms suppressed (%(default)s)")
    add("--delta", type=float, default=0.05, help="probability that the promise fails (%(default)s)")
    add("--calibrations", type=int, default=2000, help="of the simulated stream (%(default)s)")
    add("--seed", type=int, default=0, help="of splits, training and simulation (%(default)s)")
    add("--out", type=Path, default=Path("alarms_output"), help="folder for the results (%(default)s)")
    add("--smoke-test", action="store_true", help="the simulated stream alone, 200 calibrations")
    args = parser.parse_args()
    if args.smoke_test:
        args.data, args.file, args.calibrations = None, None, 200
    return args


if __name__ == "__main__":
    try:
        main(parse())
    except PACError as error:
        raise SystemExit(f"Error: {error}") from None
