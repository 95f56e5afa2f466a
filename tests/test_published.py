"""What docs/planning.md says of the guarded half-cheetah is in the files that are kept beside it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pac_core import read_descent, read_family, verify_descent

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "guard"
SAID = " ".join((ROOT / "docs" / "planning.md").read_text().replace("\n> ", " ").split())


@pytest.mark.parametrize(("kind", "scale"), [("episode", 0.6), ("tube", 1.4)])
def test_the_certificates_follow_from_their_ledger(kind: str, scale: float) -> None:
    found = read_descent(KEPT / f"guard_speed_{kind}_certificate.json")
    *others, attempts = verify_descent(found, KEPT / "pac-ledger.json")
    assert all(check.holds for check in others)
    budget = read_family(KEPT / "pac-ledger.json").budget
    assert attempts.holds is (budget is not None), "both are covered by one budget, or neither stands"
    assert found.certified == scale
    assert str(found).split(" Controller ")[0] in SAID


def test_the_table_of_guards_is_the_one_that_was_made() -> None:
    with (KEPT / "guard_speed.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    for row in rows:
        whole, spread, kept = (float(row[name]) for name in ("return", "sd", "return before a violation"))
        told = f"| {whole:.0f} ({spread:.2g}) | {kept:.0f} | {row['violated']} ("
        assert told in SAID.replace("**", ""), told
