"""Tables are read as they are written, or refused in a sentence; only training rows are learned from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pac_program import run as pac
from scipy.stats import betabinom
from script_runs import run_here, smoke_test, table_in
from tables.networks import encode, forecast_labels, forecast_values
from tables.reading import Table, read_table
from tables.study import TableDesign, ablate, certify_table, forecast_rest, repeat, tempered_if_any

from pac_core import InvalidInput, LogitForecast, PACLevel, read_certificate
from pac_core.errors import UnreadableFile
from pac_core.scores import nll

ARFF = """@relation t
@attribute colour {red, blue}
@attribute 'own weight' real
@attribute class {yes, no, maybe}
@data
red, 1.5, yes
?, 2.5, no
blue, ?, yes
"""


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_arff_keeps_kinds_missing_cells_and_declared_classes(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "t.arff", ARFF))
    assert table.name == "t"
    assert table.text("colour").tolist() == ["red", "", "blue"]
    np.testing.assert_array_equal(table.numbers("own weight"), [1.5, 2.5, np.nan])
    assert table.declared["class"] == ("yes", "no", "maybe")
    assert len(set(table.ids.tolist())) == 3


def test_a_row_is_known_by_its_cells_wherever_it_stands(tmp_path: Path) -> None:
    first = read_table(write(tmp_path, "a.csv", "u;v\n1;2\n01;2\n1;2\n12;\n"))
    assert len(set(first.ids.tolist())) == 4  # equal rows are counted
    other = read_table(write(tmp_path, "b.csv", "u;v\n\n9;9\n1;2\n 12 ;?\n1;2\n1;3\n"))
    assert set(first.ids.tolist()) - set(other.ids.tolist()) == {first.ids[1]}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.csv", "a;b\n1;2\n3\n", "row 2 must have 2 cells, got 1"),
        ("t.csv", "\n", "cannot be read as a table"),
        ("t.csv", f"a;b\n1;{'x' * 140_000}\n", "field larger than field limit"),
        ("t.arff", ARFF.replace("blue,", "green,"), "must hold numbers or declared values, got 'green'"),
        ("t.arff", ARFF.replace("1.5", "one"), "got 'one'"),
        ("t.arff", ARFF.replace(" real", " string"), "got '1.5'"),
        ("t.csv", "\udc80\udcff", "cannot be read as a table"),  # a pickle, say
    ],
)
def test_a_file_is_refused_by_name(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text, errors="surrogateescape")
    with pytest.raises(UnreadableFile, match=said):
        read_table(tmp_path / name)


def small(**columns: list[object]) -> Table:
    """Numbers and text as they are written; NaN is missing."""
    cells = pd.DataFrame({n: ["" if c != c else str(c) for c in column] for n, column in columns.items()})
    return Table("t", np.arange(len(cells)).astype(str), cells)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda t: t.known("y"), "target 'y' must be known in every row, got 1 missing"),
        (lambda t: t.numbers("kind"), "column 'kind' must hold finite numbers, got others"),
        (lambda t: t.numbers("big"), "column 'big' must hold finite numbers"),
        (lambda t: t.known("z"), "column must be one of y, kind, big, got 'z'"),
    ],
)
def test_a_column_is_refused_by_name(ask: Callable[[Table], object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ask(small(y=[1.0, np.nan, 2.0], kind=["a", "b", ""], big=[1.0, np.inf, 2.0]))


def test_preparation_knows_the_training_rows_alone() -> None:
    """Whatever the other rows hold, the training rows come out the same; numbers to check by hand."""
    seen = np.array([0, 1, 2, 3])
    columns = {"x": [1.0, 3.0, np.nan, 4.0], "kind": ["a", "b", "a", ""], "constant": [7.0] * 4, "y": [0] * 4}
    last = (
        {"x": 1000.0, "kind": "new", "constant": 8.0, "y": 1},
        {"x": -5.0, "kind": "b", "constant": 0, "y": 2},
    )
    row, other = (
        encode(small(**{name: [*cells, more[name]] for name, cells in columns.items()}), "y", seen)
        for more in last
    )
    np.testing.assert_array_equal(row[:4], other[:4])
    # the median 3 fills the gap: mean 2.75, deviation sqrt((1.75^2 + 0.25^2 + 0.25^2 + 1.25^2) / 4) = 1.0897
    np.testing.assert_allclose(row[:, 0], [-1.6059, 0.2294, 0.2294, 1.1471, 5.0], atol=1e-4)
    assert row[:, 1].tolist() == [0, 0, 1, 0, 0], "the flag of a missing number"
    assert row[:, 2:].tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]], (
        "'', a, b; none for new"
    )


def world(n: int, target: str) -> Table:
    """y = 3 x + noise that grows with x; kind = whether x is above a half, with one in ten turned round."""
    rng = np.random.default_rng(0)
    x, junk = rng.random(n), rng.normal(size=n)
    turned = rng.random(n) < 0.1
    y = 3 * x + (0.1 + x) * rng.normal(size=n)
    kind = np.where((x > 0.5) ^ turned, "high", "low")
    columns = {"x": x, "junk": junk, target: {"y": y, "kind": kind}[target]}
    declared = {"kind": ("low", "high")} if target == "kind" else {}
    ids = np.array([f"w{i}" for i in range(n)])
    return replace(small(**columns), name="world", ids=ids, declared=declared)


def test_networks_learn_the_likelihood_and_come_out_the_same() -> None:
    table, rows = world(1200, "kind"), np.arange(400)
    inputs = encode(table, "kind", rows)
    labels = (table.text("kind") == "high").astype(int)
    forecast, digest = forecast_labels(inputs, labels, rows, 2, seed=3)
    late = forecast.take(np.arange(400, 1200))
    assert (late.predictions() == labels[400:]).mean() > 0.85  # at best 0.9
    assert nll(late, labels[400:]).mean() < 0.40  # at best 0.325, without knowledge 0.693
    assert digest == forecast_labels(inputs, labels, rows, 2, seed=3)[1]
    table = world(1200, "y")
    values, _ = forecast_values(encode(table, "y", rows), table.numbers("y"), rows, seed=0)
    x, mean, std = table.numbers("x")[400:], values.mean[400:, 0], np.sqrt(values.var[400:, 0])
    assert abs(mean - 3 * x).mean() < 0.15
    assert std[x > 0.9].mean() > 2 * std[x < 0.1].mean()  # true deviations 1.05 and 0.15
    np.testing.assert_allclose(std[x > 0.9].mean(), 1.05, rtol=0.3)


def test_networks_stop_before_they_learn_noise() -> None:
    """Labels that nothing tells: a coin's -log likelihood is 0.693, and learning by heart costs far more."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(400, 60)).astype(np.float32), rng.integers(0, 2, 400)
    forecast, _ = forecast_labels(inputs, labels, np.arange(80), 2, seed=0)
    assert nll(forecast, labels)[80:].mean() < 0.75


@pytest.mark.parametrize(("target", "unit"), [("kind", "labels"), ("y", "metres")])
def test_a_table_is_certified_on_disjoint_rows(tmp_path: Path, target: str, unit: str) -> None:
    design = TableDesign("World", target, 250, 60, 150, PACLevel(0.1, 0.05), unit)
    made, found = certify_table(world(700, target), design, ledger=tmp_path / "ledger.json", seed=5)
    parts = found.parts
    assert parts is not None
    ids = [made.train_ids, *(made.ids[part.rows] for part in parts)]
    assert [len(part) for part in ids] == [250, 60, 150, 240]
    assert len(np.unique(np.concatenate(ids))) == 700
    threshold = found.certificates[0].predictor.threshold
    assert (threshold.n, threshold.errors) == (150, 8)  # P[Binomial(150, 0.1) <= 8] = 0.030, <= 9: 0.058
    rows = ablate(made, design, seed=5)
    assert [row.name for row in rows] == ["D", "C+D"]
    assert rows[1].predictor.threshold.value == threshold.value, "the table speaks of what was certified"
    assert rows[1].found.all.n == 240
    assert not rows[1].found.refuted
    if target == "y":
        lower, upper = rows[1].sets.box()
        np.testing.assert_allclose(rows[1].size, (upper - lower)[:, 0])


def test_the_model_never_sees_other_rows() -> None:
    """Other truths in the rows that calibrate and test, or wild cells in one of them, leave the forecasts."""
    table = world(300, "y")
    design = TableDesign("World", "y", 120, 30, 100, PACLevel(0.1, 0.05), "metres")
    made = forecast_rest(table, design, seed=1)
    seen = np.isin(table.ids, made.train_ids)
    x = table.numbers("x").copy()
    x[np.flatnonzero(~seen)[0]] = 1e6
    changed = table.cells.assign(x=x.astype(str), y=np.where(seen, table.cells["y"], "-99.0"))
    again = forecast_rest(replace(table, cells=changed), design, seed=1)
    np.testing.assert_array_equal(made.forecast.mean[1:], again.forecast.mean[1:])
    np.testing.assert_array_equal(made.forecast.var[1:], again.forecast.var[1:])
    assert (again.truth == -99).all()
    with pytest.raises(InvalidInput, match="world must have over 300 rows, got 300"):
        forecast_rest(table, replace(design, tune=80), seed=1)


def test_a_model_that_is_always_right_goes_without_a_temperature() -> None:
    logits = np.array([[3.0, 0.0], [0.0, 3.0]])
    assert str(tempered_if_any(LogitForecast(logits), [0, 1], PACLevel(0.1, 0.05))) == "as it is"
    logits = np.array([[3.0, 0.0]] * 3)
    assert "tau" in str(tempered_if_any(LogitForecast(logits), [0, 0, 1], PACLevel(0.1, 0.05)))


def test_repeats_say_what_to_expect() -> None:
    """P(measured above epsilon) by simulating calibrations, against the closed form that is printed."""
    design = TableDesign("World", "y", 60, 20, 60, PACLevel(0.1, 0.05), "metres")
    row = repeat(world(180, "y"), design, [0, 1])
    assert (row["splits"], row["test rows"]) == (2, 40)
    assert (row["above epsilon"] > 0) is (row["largest"] > 0.1)
    assert row["P(true error above)"] < 0.05
    expected = row["expected"] / 2
    drawn = np.random.default_rng(0).random((20_000, 100))
    # k* = 1: P[Binomial(60, 0.1) <= 1] = 0.0138, <= 2: 0.053
    limit = np.sort(drawn[:, :60], axis=1)[:, 59 - 1]
    errors = (drawn[:, 60:] > limit[:, None]).sum(axis=1)
    assert abs((errors > 4).mean() - expected) < 0.006
    assert expected == pytest.approx(betabinom.sf(4, 40, 2, 59))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("tables")
    return out, smoke_test("tables", "paper", out)


def test_the_tables_of_the_paper_from_one_command(done: tuple[Path, str]) -> None:
    out, said = done
    rows = table_in(out / "tables.csv")
    assert [(row["table"], row["sets"]) for row in rows] == [
        ("Arrhythmia", "D, ablation"),
        ("Arrhythmia", "C+D, certified"),
        ("Student grade", "D, ablation"),
        ("Student grade", "C+D, certified"),
    ]
    assert rows[1]["train, tune, n, test"] == "212, 60, 90, 88"
    assert "NO certificates" in said
    assert len(table_in(out / "repeats.csv")) == 2
    for name in ("arrhythmia_sizes", "student-por_sizes"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    certificate = out / "student-por.certificate.json"
    assert read_certificate(certificate).predictor.threshold.level == PACLevel(0.1, 0.05)
    assert pac("verify", certificate, out / "student-por.certificate.scores.npz").exit_code == 0


def test_a_second_look_at_the_same_rows_is_refused(
    done: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = done
    paper = ("tables", "paper", out / "generated", "--repeats", 0, "--out", tmp_path / "out", "--seed", 1)
    again = run_here(monkeypatch, *paper, "--ledger", out / "pac-ledger")
    assert "a new certificate needs units never calibrated on" in again
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
    shut = run_here(monkeypatch, *paper)
    assert shut.endswith("cannot be written; give --ledger, the same one for every look at this data")
    said = run_here(monkeypatch, "tables", "paper", tmp_path)
    assert said.startswith("Error: FOLDER must hold some of arrhythmia.arff, car.arff")
