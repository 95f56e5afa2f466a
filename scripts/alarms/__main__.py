"""The paper's alarm experiment: which alarms may be suppressed, and what is really promised of them.

\b
    python scripts/alarms paper [FOLDER]

The paper suppresses an alarm whose confidence set is {false}, and says that it is then false with
probability 1 - epsilon. That does not follow: what follows is epsilon / P(suppressed). The better way
calibrates on true alarms alone, which bounds the share of true alarms that are suppressed. Both run on a
simulated stream whose truth is known in closed form and, where FOLDER has them, on arrhythmia.arff (true:
any arrhythmia) and car.arff (true: acceptable or better). The better rule is certified at the level asked
for; rows at other levels compare, and certify nothing.

Looks are recorded in pac-ledger beside each table (--ledger names another), and for the simulated stream
in the folder of the results; rows that calibrated anything else before, by `scripts/tables` say, are refused.
"""

import sys
from pathlib import Path

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import common
from alarms import rules
from alarms.rules import OURS, PAPERS, PAPERS_SIZE
from common import INK
from tables.reading import read_table

from pac_core import InvalidInput, NotEnoughData, PACLevel, write_certificate
from pac_core.cli import ledger_beside

EPSILONS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
PAPERS_LEVEL = PACLevel(0.02, 1e-5)
CASES = {
    "arrhythmia": {"title": "Arrhythmia (true: any)", "false": "1", "train": 212, "calibrate": 150},
    "car": {"title": "Car (true: acceptable)", "false": "unacc", "train": 863, "calibrate": 520},
}
main = click.Group(help=__doc__)


@main.command()
@click.argument("data", type=common.PATH, required=False, metavar="[FOLDER]")
@common.option("epsilon", 0.1, "Promised, of true alarms suppressed.")
@common.option("delta", 0.05, "Probability that it fails.")
@common.option("calibrations", 2000, "Of the simulated stream.")
@common.seed_option
@common.ledger_option("each table")
@common.out_option("alarms_output")
@common.smoke_option
def paper(data, epsilon, delta, calibrations, seed, ledger, out, smoke_test):
    """The simulated stream, and the paper's tables that FOLDER has."""
    if smoke_test:
        data, calibrations = None, 200
    here = {name: file for name in CASES if data and (file := data / f"{name}.arff").exists()}
    if data is not None and not here:
        raise InvalidInput(f"FOLDER must hold arrhythmia.arff, car.arff or both, got {data}")
    level, folder = PACLevel(epsilon, delta), common.ResultFolder(out)
    stream, book = rules.simulate(sum(PAPERS_SIZE), seed), ledger_beside(out / "simulated.csv", ledger)
    study("simulated", stream, level, folder, book)
    for name, file in here.items():
        alarms = rules.alarms_in(read_table(file), seed=seed, **CASES[name])
        study(name, alarms, level, folder, ledger_beside(file, ledger))
    rows = []
    for one in EPSILONS[:3]:
        try:
            rows += rules.claim_rows(PACLevel(one, delta), calibrations, seed)
        except NotEnoughData as error:
            print(f"simulated  epsilon {one:g} left out: {error}")
    if rows:
        title = f"{calibrations:,} calibrations on {PAPERS_SIZE[0]:,} simulated alarms each, delta {delta:g}"
        folder.table("simulated_claims", rows, title, note="The truth is known in closed form.")


def study(name, alarms, level, folder, ledger):
    """One stream: the certificate at the level asked for, both ways at all levels, tables and figures."""
    real, proved = alarms.true[alarms.test], alarms.true[alarms.calibrate]
    print(f"\n== {alarms.title}")
    for part, true in (("calibrate", proved), ("test", real)):
        print(f"{len(true):,} alarms to {part}, {true.sum():,} of them true")
    try:
        certificate = rules.certify_rule(alarms, level, ledger=ledger).certificates[0]
        write_certificate(certificate, folder.folder / f"{name}.certificate.json")
        print(
            f"certified  P(suppressed given true alarm) <= {level.epsilon:g}, confidence 1 - {level.delta:g}"
        )
    except NotEnoughData as error:
        print(f"refused    true alarms: {error}")
    both = (rules.suppress_by_the_paper, rules.suppress_by_true_alarms)
    epsilons = sorted({*EPSILONS, level.epsilon})
    results = [way(alarms, PACLevel(epsilon, level.delta)) for epsilon in epsilons for way in both]
    print(f"compared   '{PAPERS}' (no certificate, its look is not in the ledger)")
    title = f"{alarms.title}: what each rule suppressed of the test alarms (delta = {level.delta:g})"
    folder.table(name, [rules.rule_row(result) for result in results], title)
    title = f"{alarms.title}: suppressed shares of {len(real)} test alarms, delta {level.delta:g}"
    folder.figure(f"{name}_suppressed", draw_shares(results, title))
    papers = [both[0](alarms, PAPERS_LEVEL), *(one for one in results if one.way == PAPERS)]
    rows = [rules.sets_row(alarms, one) for one in papers]
    title = f"{alarms.title}: sets from all alarms, the paper's level first (comparison, no certificates)"
    folder.table(f"{name}_sets", rows, title)
    title = f"{alarms.title}: sets of {len(real)} test alarms (comparison, no certificates)"
    folder.figure(f"{name}_sets", draw_sizes(papers, title))


def draw_shares(results, title):
    """Shares of true and of false alarms suppressed against epsilon, with what both rules promise."""
    figure, ((left, right),) = common.panels(1, 2, (9.0, 4.0), sharey=True)
    for way, ink, promise in ((PAPERS, INK[1], "epsilon / P(true alarm)"), (OURS, INK[0], "epsilon")):
        had = [one for one in results if one.way == way and one.promised is not None]
        at = [one.level.epsilon for one in had]
        left.plot(at, [one.promised for one in had], color=ink, linestyle="--", label=f"promised: {promise}")
        for axes, kind in ((left, "true"), (right, "false")):
            shares = np.array([getattr(one.found, f"share_of_{kind}") for one in had])
            ends = np.array([getattr(one.found, f"{kind}_interval") for one in had]).reshape(-1, 2).T
            axes.errorbar(at, shares, abs(ends - shares), color=ink, marker="o", capsize=3, label=way)
            axes.set_title(f"{kind} alarms suppressed", loc="left", fontsize=9.5)
    figure.supxlabel(f"epsilon (of all alarms for '{PAPERS}', of true alarms for '{OURS}')", fontsize=9.5)
    left.set(ylabel="share of test alarms (whisker: exact 98%)", ylim=(-0.02, 1.02))
    left.legend(frameon=False, fontsize=8.5)
    figure.suptitle(title, fontsize=10.5)
    return figure


def draw_sizes(results, title):
    """The paper's plot of set sizes, a box for each level."""
    figure, axes = common.new_panel(title, "labels in the set of an alarm", (8.4, 4.4))
    names = {f"{one.level.epsilon:g}, {one.level.delta:g}": one for one in results if one.sets is not None}
    common.draw_boxes(axes, {name: one.sets.size() for name, one in names.items()}, 2 * INK)
    axes.set_xlabel("epsilon, delta (diamond: mean)")
    return figure


if __name__ == "__main__":
    common.start(main)
