"""Best of many plans on the half-cheetah: the command runs, and the table of the page is the one it made."""

from __future__ import annotations

from pathlib import Path

from pac_program import run as pac
from script_runs import ROOT, script, table_in

KEPT = ROOT / "benchmarks" / "published" / "any_of" / "any_of.csv"


def test_the_command_makes_the_table_and_its_certificates(tmp_path: Path) -> None:
    done = script("halfcheetah", "any-of", "--smoke-test", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = table_in(tmp_path / "results" / "any_of.csv")
    assert [row["K"] for row in rows] == ["21"] * 4 + ["12"] * 2
    assert list(rows[0]) == list(table_in(KEPT)[0])
    for drawn, every in zip(rows[::2], rows[1::2], strict=True):
        assert int(every["any missed"]) <= int(drawn["any missed"])
    for planner, k in (("around", 21), ("shooting", 12)):
        assert f"whichever of the {k} candidates of a new start is picked" in done.stdout
        folder = tmp_path / "any_of" / planner
        ledger = ("--ledger", tmp_path / "any_of" / "pac-ledger")
        checked = pac("verify", folder / "certificate-0.1-0.001.json", folder / "scores.parquet", *ledger)
        assert checked.exit_code == 0, checked.output


def test_the_page_shows_the_table_that_was_made() -> None:
    page, rows = (ROOT / "docs" / "planning.md").read_text(), table_in(KEPT)
    assert len(rows) == 6
    other = table_in(KEPT.with_name("any_of_model.csv"))
    for row in rows + other:
        shares = (
            f"{row[f'{name} missed']} ({row[f'{name}, 98%'].replace('..', ' to ')})"
            for name in ("picked", "any")
        )
        told = f"| {row['planner']}, {row['K']} | {row['of the speed']} | {row['calibrated on']} "
        told += f"| {float(row['T']):.3g} | {float(row['half-width, m/s']):.3f} | {' | '.join(shares)} |"
        assert told in page, told
    widths = [float(row["half-width, m/s"]) for row in rows + other]
    for every, drawn in zip(widths[1::2], widths[::2], strict=True):
        assert f"{every / drawn:.2f}" in page
    # Where the tube of drawn plans breaks its promise for the picked plan, that of all keeps it.
    drawn, every = rows[4:]
    assert float(drawn["picked, 98%"].split("..")[0]) > 0.05 > float(every["picked, 98%"].split("..")[1])
