"""Tables from one command: the paper's, and a user's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pac_program import run as pac
from script_runs import run_here, script, table_in
from toy_tables import world

from pac_core import (
    PACLevel,
    read_certificate,
)


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_the_tables_of_the_paper_from_one_command(tmp_path: Path) -> None:
    done = script("tabular_results.py", "--smoke-test", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = table_in(tmp_path / "tables.csv")
    assert [(row["table"], row["sets"]) for row in rows] == [
        ("Car", "D, ablation"),
        ("Car", "C+D, certified"),
        ("Student grade", "D, ablation"),
        ("Student grade", "C+D, certified"),
    ]
    assert rows[1]["train, tune, n, test"].startswith("863, 175, 345, ")
    assert "NO certificates" in done.stdout
    assert len(table_in(tmp_path / "repeats.csv")) == 2
    for name in ("car_sizes", "student-por_sizes", "errors"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    certificate = read_certificate(tmp_path / "car.certificate.json")
    assert certificate.predictor.threshold.level == PACLevel(0.05, 1e-5)
    assert (
        pac("verify", tmp_path / "car.certificate.json", tmp_path / "car.certificate.scores.npz").exit_code
        == 0
    )


def test_a_table_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = world(400)
    lines = [
        "id;x;kind",
        *(
            f"{i};{x:.4f};{k}"
            for i, x, k in zip(table.ids, table.columns["x"], table.columns["kind"], strict=True)
        ),
    ]
    file = write(tmp_path, "mine.csv", "\n".join(lines))
    mine = ("tabular_results.py", "--file", file, "--target", "kind", "--id", "id", "--repeats", 0)
    new = write(tmp_path, "new.csv", "id;x\nfirst;0.02\nsecond;0.97\nw7;0.5\n")
    assert run_here(monkeypatch, *mine, "--out", tmp_path / "out", "--new", new) == ""
    assert "NOTE: 1 of these are rows of" in capsys.readouterr().out
    sets = {row["id"]: row["set"] for row in table_in(tmp_path / "out" / "new_sets.csv")}
    assert "low" in sets["first"]
    assert "high" in sets["second"]
    assert table_in(tmp_path / "out" / "tables.csv")[1]["train, tune, n, test"] == "180, 40, 100, 80"
    assert (tmp_path / "pac-ledger").exists()
    again = run_here(monkeypatch, *mine, "--out", tmp_path / "elsewhere", "--seed", 1)
    assert "a new certificate needs units never calibrated on" in again
    less = run_here(monkeypatch, *mine, "--out", tmp_path / "none", "--epsilon", 0.01)
    assert less.startswith("Error: 100 calibration units cannot prove epsilon=0.01")
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path.resolve())
    shut = run_here(monkeypatch, *mine, "--out", tmp_path / "none")
    assert shut.endswith("cannot be written; give --ledger, the same one for every look at this data")
    assert not (tmp_path / "none").exists()
    (tmp_path / "own").mkdir()
    own = ("--ledger", tmp_path / "own" / "ledger")
    assert run_here(monkeypatch, *mine, *own, "--out", tmp_path / "own") == ""
    assert "never calibrated on" in run_here(monkeypatch, *mine, *own, "--seed", 1, "--out", tmp_path / "own")


def test_another_row_does_not_reset_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"{i % 97},{i % 7},{i % 5}" for i in range(400)]
    mine = ("tabular_results.py", "--file", tmp_path / "mine.csv", "--target", "y", "--repeats", 0)
    write(tmp_path, "mine.csv", "\n".join(["u,v,y", *rows]))
    assert run_here(monkeypatch, *mine, "--out", tmp_path / "out") == ""
    write(tmp_path, "mine.csv", "\n".join(["u,v,y", "8,8,8", "", *rows]))
    again = run_here(monkeypatch, *mine, "--out", tmp_path / "out", "--seed", 1)
    assert "a new certificate needs units never calibrated on" in again


def test_rows_without_a_first_line_of_names_get_their_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "\n".join(f"{i % 97},{i % 7},{i % 97 / 10}" for i in range(400))
    mine = ("--file", write(tmp_path, "mine.csv", rows), "--names", "u,v,y", "--target", "y", "--repeats", 0)
    for place, new in enumerate(("3,4\n90,1", "3,4,0.3\n90,1,9")):
        out = tmp_path / str(place)
        out.mkdir()
        given = ("--ledger", out / "ledger", "--new", write(tmp_path, "new.csv", new), "--out", out)
        assert run_here(monkeypatch, "tabular_results.py", *mine, *given) == ""
        assert len(table_in(out / "new_sets.csv")) == 2


def test_rows_that_cannot_get_sets_are_refused_before_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"{i},{i % 7},{i}\n" for i in range(400))
    given = [
        "--file",
        write(tmp_path, "mine.csv", "u,v,y\n" + rows),
        "--target",
        "y",
        "--out",
        tmp_path / "out",
    ]
    refusal = run_here(
        monkeypatch, "tabular_results.py", *given, "--new", write(tmp_path, "new.csv", "u\n1\n")
    )
    assert "--new must have the columns of --file, got none named 'v'" in refusal
    assert not (tmp_path / "pac-ledger").exists()
