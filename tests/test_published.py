"""What docs/planning.md says of the guarded half-cheetah is in the files that are kept beside it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pac_core.arrays import round_up
from pac_core.certificates import read_descent, read_family, read_notes, verify_descent
from pac_core.evaluation import error_interval

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "guard"
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
