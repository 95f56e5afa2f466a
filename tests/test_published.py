"""The numbers that docs/ quotes are those of the files in benchmarks/ that they come from."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from pac_core.arrays import round_up
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


def test_the_table_of_guards_is_the_one_that_was_made() -> None:
    with (KEPT / "guard_speed.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    for row in rows:
        whole, spread, kept = (float(row[name]) for name in ("return", "sd", "return before a violation"))
        told = f"| {whole:.0f} ({spread:.2g}) | {kept:.0f} | {row['violated']} ("
        assert told in SAID.replace("**", ""), told


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
                assert abs(float(told[2].split(",")[0]) - float(ratio)) < 0.005
    with (KEPT / "pets.csv").open() as file:
        for row in csv.DictReader(file):
            told = said[row["guard"]]
            assert told[0] == f"{abs(round(float(row['return'])))}"
            assert told[1] == f"{row['violated']} ({float(row['low']):.2f} to {float(row['high']):.2f})"
            assert told[2:] == [
                f"{float(row['fastest']):.2f} m/s",
                f"{100 * float(row['fallback rate']):.1f}%",
            ]


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


def numbers(text: str) -> list[str]:
    return re.findall(r"(?<![\d.])\d[\d,]*\.?\d*(?:e-?\d+)?", text)


@pytest.mark.parametrize(
    ("head", "files"),
    [
        ("| sets | error (exact 98% interval)", ("imagenet/ablation", "imagenet/baselines")),
        ("| C+D | 0.1 | 0.001 | 1e-5 |", ("imagenet/grid_paper", "imagenet/grid_ours")),
        ("| calibrated on | promise | draws", ("otb/units",)),
        ("| score of a frame | error |", ("otb/scores",)),
        ("| table | train, tune, n, test |", ("tables/tables",)),
        ("| table | draws with measured error", ("tables/repeats",)),
    ],
)
def test_every_number_of_a_table_stands_in_the_file_it_comes_from(head: str, files: tuple[str, ...]) -> None:
    """As it is, in percent, or rounded to the digits that are shown, probabilities upwards."""
    lines = (ROOT / "docs" / "results.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(head))
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    kept = " ".join((ROOT / "benchmarks" / "published" / f"{name}.csv").read_text() for name in files)
    known = [
        float(number.replace(",", ""))
        for number in numbers(kept.replace("..", " ")) + numbers(kept.replace("..", " ").replace(",", " "))
    ]
    known += [100 * value for value in known] + [16.0, 20.0, 4.0]  # labels, points
    shown = [number for line in lines[start + 2 : end] for number in numbers(line.replace("*", ""))]
    assert len(shown) > 6
    for number in shown:
        value, digits = float(number.replace(",", "")), len(number.partition(".")[2])
        near = 10.0**-digits if "e" not in number else 0.01 * value
        assert any(abs(value - other) <= near for other in known), number
