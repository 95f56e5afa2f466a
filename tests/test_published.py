"""The numbers that docs/ quotes are those of the files in benchmarks/ that they come from."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from scipy.stats import binom

from pac_core import PACLevel
from pac_core.arrays import round_up
from pac_core.bounds import Entry, joint_failure_probability, max_errors, min_samples, share_level
from pac_core.certificates import read_descent, read_family, read_notes, verify_descent
from pac_core.evaluation import error_interval

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "guard"
FIGURES = json.loads((ROOT / "benchmarks" / "results.json").read_text())["figures"]
SAID = " ".join((ROOT / "docs" / "planning.md").read_text().replace("\n> ", " ").split())


@pytest.mark.parametrize(("kind", "scale"), [("episode", 0.6), ("tube", 1.4)])
def test_the_certificates_follow_from_their_ledger(kind: str, scale: float) -> None:
    found = read_descent(KEPT / f"guard_speed_{kind}_certificate.json")
    checks = verify_descent(found, KEPT / "pac-ledger.json")
    assert all(check.holds for check in checks), checks
    assert found.certified == scale
    assert str(found).split(" Controller ")[0] in SAID


def test_one_budget_covers_all_that_is_claimed() -> None:
    family = read_family(KEPT / "pac-ledger.json")
    assert (family.attempts, family.cost, family.budget) == (3, 0.01, 0.01)
    [stated] = (note.facts for note in read_notes(KEPT / "pac-ledger.json") if note.kind == "accepted risk")
    limit = error_interval(stated["unsafe"], stated["accepted"], 0.002 / 3)[1]
    assert f"{stated['unsafe']} of {stated['accepted']} accepted decisions" in SAID
    assert f"P(unsafe given accepted) <= {round_up(limit, 4)} with confidence 0.998" in SAID


def cells(page: str) -> dict[str, list[str]]:
    """The rows of all tables of a page by their first cell; bold and italics do not count."""
    lines = (ROOT / "docs" / page).read_text().replace("**", "").splitlines()
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| "))
    return {row[0]: row[1:] for row in rows}


def shorten(value: float) -> str:
    """Three digits that count, without an exponent for large numbers."""
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def test_the_benchmarks_are_those_of_the_file() -> None:
    said = cells("benchmarks.md")
    figures = [figure for figure in FIGURES if not figure["name"].startswith("label sizes")]
    assert len(figures) > 40
    for figure in figures:
        values = [f"{shorten(figure[name])} {figure['unit']}" for name in ("ours", "peer")]
        assert said[figure["name"]] == [*values, shorten(figure["ratio"]), figure["goal"]]


def test_words_about_benchmarks_are_those_of_the_file() -> None:
    said = " ".join((ROOT / "docs" / "benchmarks.md").read_text().split())
    figures = {figure["name"]: figure for figure in FIGURES}
    times = []
    for name in ("over the tube's particles", "on the tube's mean", "by mbrl-lib as before"):
        found = re.findall(r"(\S+) ms", figures[f"planning: guarded, returns {name}"]["note"])
        times.append([f"{float(number) / 1000:.3g} s" for number in found])
    (ours, most, bare, bare_most), mean, before = times
    check = re.findall(r"\S+ ms", figures["check: box"]["note"])
    starts = re.findall(r"\d+\.\d", figures["engine: start to the first shard"]["note"])
    alarms, lives = re.findall(r"[\d,]+", figures["monitor: false alarms over a life"]["note"])[:2]
    for sentence in (
        f"Median {ours}, 99% {most} a plan (unguarded: {bare}, {bare_most}).",
        f"*On the tube's mean*: {mean[0]}, {mean[1]}.",
        f"for the tube beside it: {before[0]}, {before[1]}.",
        f"The check with two limits takes {check[0]}, 99% {check[1]}.",
        f"{alarms} of {lives} lives of 5,000 episodes with exits at epsilon had an alarm;",
        f"gives p = {figures['monitor: alpha not refuted at 1%']['ours']:.2f}.",
        f"{', '.join(starts[:-1])} and {starts[-1]} s in five starts.",
    ):
        assert sentence in said
    data = figures["engine: Ray Data"]
    told = f"Ray Data took {data['peer']:.1f} s against {data['ours']:.1f} s"
    assert told in (ROOT / "docs" / "architecture.md").read_text()


def test_what_misses_its_goal_is_named() -> None:
    holds = {"<=": float.__le__, ">=": float.__ge__}
    missed = set()
    for figure in FIGURES:
        if figure["goal"]:
            sign, bound = figure["goal"].split()
            if not holds[sign](float(figure["ratio"]), float(bound)):
                missed.add(figure["name"])
    sizes = {f"label sizes: texts, {n} tune units" for n in ("200", "1,000")}
    assert missed == {"rollouts: raw MuJoCo stepping", *sizes}
    assert "**Not reached: raw MuJoCo stepping**" in (ROOT / "docs" / "benchmarks.md").read_text()
    assert "**missed on `texts`" in (ROOT / "docs" / "results.md").read_text()


def test_the_sizes_of_label_sets_are_those_of_the_file() -> None:
    said = cells("results.md")
    found = [figure for figure in FIGURES if figure["name"].startswith("label sizes: ")]
    assert len(found) == 12
    for figure in found:
        told = re.findall(r"k\* = \d+: (\S+ \([^)]+\)), .*?at most ([\d.]+)", figure["note"])
        name = figure["name"].removeprefix("label sizes: ").removesuffix(" tune units")
        assert said[name] == [", ".join(pair) for pair in told]
    text = (ROOT / "docs" / "results.md").read_text()
    texts = [figure for figure in found if "texts" in figure["name"]]
    held = " ".join(figure["note"] for figure in found if figure not in texts)
    notes = " ".join(figure["note"] for figure in found)
    upper = max(re.findall(r"to ([\d.]+)\)", held), key=float)
    often = max(re.findall(r"by over 5% in (\d+)%", notes), key=int)
    above = [f"{100 * (figure['ratio'] - 1):.1f}%" for figure in texts]
    assert f"at most at {upper})" in text
    assert f"{above[0]} above with 200 tune units, {above[1]} with 1,000." in text
    assert f"by more than 5% in up to {often}% of splits." in text


def test_the_table_of_guards_is_the_one_that_was_made() -> None:
    said = cells("planning.md")
    labels = {
        "no guard": "none: the policy itself",
        "mean": "predicted mean (CCE style)",
        "worst member": "worst member (RCE style)",
        "paper's tube": "the paper's tube",
        "ours, scale 0.6": "ours, intervals of the speed, scale 0.6",
    }
    with (KEPT / "guard_speed.csv").open() as file:
        rows = {row.pop("guard"): row for row in csv.DictReader(file)}
    assert rows.keys() == labels.keys()
    found = {}
    for guard, row in rows.items():
        violated = row.pop("violated")
        if guard == "mean":
            assert f"and, in {violated} episodes, over it;" in SAID
        of = found[guard] = {name: float(cell) for name, cell in row.items()}
        steps = of["steps in violation"]
        assert said[labels[guard]] == [
            f"{of['return']:.0f} ({of['sd']:.2g})",
            f"{of['return before a violation']:.0f}",
            f"{violated} ({of['low']:.3f} to {of['high']:.3f})",
            f"{steps:.0f}" if steps >= 10 else f"{steps:.2g}",
            "" if guard == "no guard" else f"{100 * of['fallback rate']:.2f}%",
            f"{of['median ms']:.1f}, {of['99% ms']:.1f} ms",
        ]
    ours, mean = found["ours, scale 0.6"], found["mean"]
    assert f"Our return is {100 * ours['return'] / mean['return']:.1f}% of the mean constraint's" in SAID
    assert f"In a batch of 32 robots a guarded plan takes {ours['batched ms a plan']:.1f} ms." in SAID


def test_the_other_tables_of_the_guard_are_those_of_the_files() -> None:
    said = cells("planning.md")
    with (KEPT / "guard_speed_settings.csv").open() as file:
        for row in csv.reader(file):
            if row[0].isdigit():
                horizon, checked, choice, mean, violated, scale, ours, violations, ratio = row
                start = f"{horizon}, {checked}, {choice}"
                told = next(row for name, row in said.items() if name.startswith(start))
                assert told[:2] == [
                    f"{float(mean):.0f}, {violated}",
                    f"{float(scale):.1f}, {float(ours):.0f}, {violations}",
                ]
                assert told[2].split(",")[0] == f"{float(ratio):#.3g}"


def test_the_table_of_guarded_starts_is_the_one_that_was_made() -> None:
    page = (ROOT / "docs" / "planning.md").read_text()
    with (ROOT / "benchmarks" / "published" / "any_of" / "any_of_guarded.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        wide = f"{float(row['half-width, m/s']):.3f} " if row["half-width, m/s"] else ""
        left = f"{row['missed']} of {row['test']} ({row['98%'].replace('..', ' to ')})"
        told = f"| {row['starts']} | {row['calibrated on']} | {float(row['T']):.2f} | {wide}| {left} |"
        assert told in page
    drawn, every = (float(row["half-width, m/s"]) for row in rows[:2])
    assert f"{every / drawn:.2f} times that of a drawn plan" in page


def test_the_tables_of_robots_are_those_that_were_printed() -> None:
    page = (ROOT / "docs" / "planning.md").read_text()
    printed = (ROOT / "benchmarks" / "published" / "robots" / "printed.txt").read_text().splitlines()
    rows = [re.split(r" {2,}", line.strip()) for line in printed if " of " in line and line.count("  ") > 4]
    assert len(rows) == 4 * 4 + 2 * 2
    for row in rows:
        assert f"| {' | '.join(row)} |" in page
    certified = [line for line in printed if line.startswith("Certified at scale")]
    assert len(certified) == 4
    for line in certified:
        assert line.split(", for episodes drawn")[0] in page


def test_the_readme_quotes_its_pages() -> None:
    """Every measured number of its table stands in the row, or the file, that it is taken from."""
    said = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| ")]
    rows = {line.strip("| ").split(" | ")[0]: line for line in said}
    tubes = (ROOT / "docs" / "halfcheetah.md").read_text().splitlines()
    closed, plans = (line.split(" | ") for line in tubes if line.startswith("| `box` | 0.00"))
    for row, name in ((closed, "closed loop"), (plans, "given plans")):
        error, size, smaller = row[1].split()[0], row[2], f"{float(row[3]):.0f} times"
        for number in (error, size, smaller):
            assert number in rows[f"half-cheetah, 20 steps, {name}"]
    with (KEPT / "guard_speed.csv").open() as file:
        guards = {row["guard"].split(",")[0]: row for row in csv.DictReader(file)}
    ours, free = guards["ours"], guards["no guard"]
    told = f"{ours['violated']} (policy alone {free['violated'].split()[0]}) | "
    told += f"return {float(ours['return']):.0f} (policy alone {float(free['return']):.0f})"
    assert told in rows["half-cheetah, speed limit, guard"]
    images = [line for line in said if line.startswith("| ImageNet")]
    for epsilon, line in zip(("0.02", "0.10"), images, strict=True):
        _, error, _, size, *_ = cells("results.md")[epsilon]
        assert f"≤ {epsilon} | {error} | " in line
        assert set(re.findall(r"[\d.]+", size)) <= set(re.findall(r"[\d.,]*\d", line)) | {"1", "000"}
    faster = next(
        figure["ratio"] for figure in FIGURES if "TorchCP" in figure["name"] and "sets" in figure["name"]
    )
    assert f"{faster:.2g} times faster than TorchCP" in rows["label sets, 20,000 \u00d7 1,000"]


def test_sums_of_the_guarantees_page_are_right() -> None:
    said = " ".join((ROOT / "docs" / "guarantees.md").read_text().split())
    deltas = [0.1, 1e-3, 1e-5]
    levels = [(epsilon, delta) for epsilon in (0.01, 0.02, 0.03, 0.04, 0.05) for delta in deltas]
    together = joint_failure_probability(5000, [Entry("one", *level) for level in levels])
    fewest = [str(min_samples(PACLevel(0.05, 0.01), errors)) for errors in range(7)]
    passes = float(binom.cdf(max_errors(300, PACLevel(0.05, 0.01)), 300, 0.05))
    weights = [(1 / 0.99) ** (6 * steps) for steps in (20, 220)]
    for sentence in (
        f"{round(together, 3)}, where adding up would give {5 * sum(deltas):.3f})",
        f"n = {', '.join(fewest)} episodes are the fewest for 0 to 6 errors.",
        f"300 episodes each: with probability {1 - (1 - passes) ** 25:.2f})",
        f"b = {weights[0]:.1f} after 20 steps and {round(weights[1], -3):,.0f} after 220.",
    ):
        assert sentence in said
    few, many = (f"{min_samples(share_level(PACLevel(0.05, 1e-3), k)):,}" for k in (21, 400))
    larger = next(one for one in FIGURES if one["name"] == "score monitor: half a deviation larger")
    for sentence in (
        f"at (0.05, 1e-3) at least {few} for K = 21, {many} for K = 400.",
        f"a median of {larger['ours']:.0f} units at a shift of half a deviation;",
        f"a fixed plan of {fewest[0]} is shorter.",
    ):
        assert sentence in said
    results = " ".join((ROOT / "docs" / "results.md").read_text().split())
    needed = [min_samples(PACLevel(*level)) for level in ((0.1, 0.05), (0.02, 1e-5))]
    assert f"({needed[0]} at (0.1, 0.05); {needed[1]} at (0.02, 1e-5)," in results
