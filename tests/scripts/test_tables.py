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
from script_runs import run_here, script, table_in
from tables.networks import fit_encoder, fit_labels, fit_values
from tables.reading import Table, read_table
from tables.study import (
    OTHER,
    TableDesign,
    ablate,
    certify_table,
    forecast_rest,
    place_labels,
    repeat,
    sets_of,
    tempered_if_any,
)

from pac_core import (
    GaussianForecast,
    InvalidInput,
    LogitForecast,
    NotEnoughData,
    PACLevel,
    SecondLook,
    read_certificate,
)
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
    assert table.inputs("class") == ["colour", "own weight"]
    assert len(set(table.ids.tolist())) == 3


def test_a_row_is_known_by_its_cells_wherever_it_stands(tmp_path: Path) -> None:
    first = read_table(write(tmp_path, "a.csv", "u,v\n1,2\n01,2\n1,2\n12,\n"))
    assert len(set(first.ids.tolist())) == 4  # equal rows are counted
    other = read_table(write(tmp_path, "b.csv", "u;v\n\n9;9\n1;2\n 12 ;?\n1;2\n1;3\n"))
    assert set(first.ids.tolist()) - set(other.ids.tolist()) == {first.ids[1]}


@pytest.mark.parametrize("mark", [",", ";", "\t", "|", " ", ":"])
def test_any_separator_gives_the_same_columns(tmp_path: Path, mark: str) -> None:
    lines = ["name,x,kind", '"a",1,red', '"b",?,NA', '"c",-2.5e1,"dark blue"']
    path = write(tmp_path, "t.csv", "\n".join(line.replace(",", mark) for line in lines))
    table = read_table(path, separator=mark if mark == ":" else None, id_column="name")
    assert table.ids.tolist() == ["a", "b", "c"]
    assert list(table.cells) == ["x", "kind"]
    np.testing.assert_array_equal(table.numbers("x"), [1, np.nan, -25])
    assert table.text("kind").tolist() == ["red", "", "dark blue"]


def test_a_file_without_names_is_told_them(tmp_path: Path) -> None:
    path = write(tmp_path, "car.data", "vhigh,2,unacc\nlow,4,acc\n")
    table = read_table(path, names=["price", "doors", "class"])
    assert table.known("class").tolist() == ["unacc", "acc"]
    assert table.known("doors").tolist() == ["2", "4"]


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        ("t.csv", "a,b\n1,2\n3\n", {}, "row 2 must have 2 cells, got 1"),
        ("t.csv", "a,a\n1,2\n", {}, "a name of its own for each column"),
        ("t.csv", "1,2\n3,4\n", {}, "the first line must name its columns"),
        ("t.csv", "a,b\n", {}, "must have rows"),
        ("t.csv", "\n", {}, "must have rows"),
        ("t.csv", "a,b\n1,2\n", {"separator": ",,"}, "1-character string"),
        ("t.csv", "a,b\n1,2\n1,3\n", {"id_column": "a"}, "must name each row once, got 1 repeats"),
        ("t.csv", "a,b\nx,2\n?,3\n", {"id_column": "a"}, "must name each row once, got a missing one"),
        ("t.csv", "a,b\n1,2\n", {"id_column": "c"}, "id column must be one of a, b, got 'c'"),
        ("t.arff", ARFF.replace("blue,", "green,"), {}, "must hold numbers or declared values, got 'green'"),
        ("t.arff", ARFF.replace("1.5", "one"), {}, "got 'one'"),
        ("t.arff", ARFF.replace(" real", " string"), {}, "got '1.5'"),
        ("t.arff", ARFF, {"separator": ";"}, "separator and names are for text files"),
    ],
)
def test_a_file_is_refused_by_name(
    tmp_path: Path, name: str, text: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises((UnreadableFile, InvalidInput), match=said):
        read_table(write(tmp_path, name, text), **options)


def test_a_cell_without_end_is_refused(tmp_path: Path) -> None:
    read_table(write(tmp_path, "t.arff", ARFF))  # whatever was read before
    endless = "x" * 140_000  # the reader of the standard library stops at 131,072
    for text in (f"a,b\n1,{endless}\n", f"a,{endless}\n1,2\n"):
        with pytest.raises(UnreadableFile, match="field larger than field limit"):
            read_table(write(tmp_path, "t.csv", text))


def test_a_row_keeps_its_name_whatever_the_others_are_called(tmp_path: Path) -> None:
    """Else one more row, named by a letter, renames all others and the ledger takes them for new ones."""
    rows = "id,x\n00012,1\n7.0,2\n1e3,3\n"
    assert read_table(write(tmp_path, "t.csv", rows), id_column="id").ids.tolist() == ["00012", "7.0", "1e3"]
    more = read_table(write(tmp_path, "t.csv", rows + "X1,4\n"), id_column="id")
    assert more.ids.tolist() == ["00012", "7.0", "1e3", "X1"]
    head = "@relation r\n@attribute id real\n@attribute x real\n@data\n"
    arff = read_table(write(tmp_path, "t.arff", head + rows.partition("\n")[2]), id_column="id")
    assert arff.ids.tolist() == ["00012", "7.0", "1e3"]
    assert list(arff.cells) == ["x"]


def test_a_pickle_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\x80\x04\x95\x0f\xff\xfe.")
    with pytest.raises(UnreadableFile, match="cannot be read as a table"):
        read_table(tmp_path / "t.csv")
    with pytest.raises(UnreadableFile, match="cannot be read as a table"):
        read_table(tmp_path / "none.csv")


def small(**columns: list[object]) -> Table:
    """Numbers and text as they are written; NaN is missing."""
    cells = pd.DataFrame({n: ["" if c != c else str(c) for c in column] for n, column in columns.items()})
    return Table("t", np.arange(len(cells)).astype(str), cells)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda t: t.known("y"), "target 'y' must be known in every row, got 1 missing, the first in row 2"),
        (lambda t: t.numbers("kind"), "column 'kind' must hold numbers, got text"),
        (lambda t: t.numbers("big"), "column 'big' must hold finite numbers"),
        (lambda t: t.inputs("z"), "column must be one of y, kind, big, got 'z'"),
        (lambda t: t.inputs("y", leave_out=["kind", "big"]), "must have a column beside the target"),
    ],
)
def test_a_column_is_refused_by_name(ask: Callable[[Table], object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ask(small(y=[1.0, np.nan, 2.0], kind=["a", "b", ""], big=[1.0, np.inf, 2.0]))


def test_names_are_no_categories() -> None:
    table = small(name=[f"n{i}" for i in range(60)], x=[1.0] * 60, y=[2.0] * 60)
    with pytest.raises(
        InvalidInput, match="column 'name' must hold numbers or at most 50 categories, got 60"
    ):
        table.inputs("y")
    assert table.inputs("y", leave_out=["name"]) == ["x"]


def test_preparation_knows_the_training_rows_alone() -> None:
    """Whatever the other rows hold, the encoder is the same; numbers to check by hand."""
    seen = np.array([0, 1, 2, 3])
    table = small(
        x=[1.0, 3.0, np.nan, 4.0, 1000.0],
        kind=["a", "b", "a", "", "new"],
        constant=[7.0, 7.0, 7.0, 7.0, 8.0],
    )
    other = small(
        x=[1.0, 3.0, np.nan, 4.0, -5.0], kind=["a", "b", "a", "", "b"], constant=[7.0, 7.0, 7.0, 7.0, 0.0]
    )
    encoder = fit_encoder(table, ["x", "kind", "constant"], seen)
    assert encoder == fit_encoder(other, ["x", "kind", "constant"], seen)
    # the median 3 fills the gap: mean 2.75, deviation sqrt((1.75^2 + 0.25^2 + 0.25^2 + 1.25^2) / 4) = 1.0897
    row = encoder(table)
    np.testing.assert_allclose(row[:, 0], [-1.6059, 0.2294, 0.2294, 1.1471, 5.0], atol=1e-4)
    assert row[:, 1].tolist() == [0, 0, 1, 0, 0], "the flag of a missing number"
    assert row[:, 2:].tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]], (
        "'', a, b; none for new"
    )


def test_a_new_table_must_have_the_same_kinds() -> None:
    encoder = fit_encoder(small(x=[1.0, 2.0]), ["x"], np.array([0, 1]))
    with pytest.raises(InvalidInput, match="column 'x' must hold numbers, got text"):
        encoder(small(x=["1", "two"]))
    with pytest.raises(InvalidInput, match="column must be one of z, got 'x'"):
        encoder(small(z=[1.0]))


CODES = "01,1.5\n02,2\n03,?\n"


def test_new_rows_are_read_as_the_training_rows_were(tmp_path: Path) -> None:
    """Without the one row that makes its column text, a file of codes looks like numbers."""
    table = read_table(write(tmp_path, "train.csv", "code,x\n" + CODES + "0A,3\n"))
    encoder = fit_encoder(table, ["code", "x"], np.arange(4))
    new = read_table(write(tmp_path, "new.csv", "code,x\n" + CODES))
    assert new.is_numeric("code")
    assert encoder(new)[:, :4].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    np.testing.assert_array_equal(encoder(new), encoder(table)[:3])
    for kind in ("real", "{01, 02, 03}"):
        head = f"@relation r\n@attribute code {kind}\n@attribute x {{1.5, 2}}\n@data\n% new ones\n"
        new = read_table(write(tmp_path, "new.arff", head + CODES))
        np.testing.assert_array_equal(encoder(new), encoder(table)[:3], err_msg=kind)
    with pytest.raises(InvalidInput, match="column 'x' must hold numbers, got text"):
        encoder(read_table(write(tmp_path, "new.csv", "code,x\n01,two\n")))


def test_arff_is_cut_into_the_cells_that_its_numbers_come_from(tmp_path: Path) -> None:
    for quote in "'\"":
        name = f"{quote}dark, red{quote}"
        quoted = ARFF.replace("{red, blue}", f"{{{name}, blue}}").replace("red, 1.5", f"{name}, 01.50")
        table = read_table(write(tmp_path, "t.arff", quoted))
        assert table.text("own weight").tolist() == ["01.50", "2.5", ""]
        assert table.text("colour").tolist() == ["dark, red", "", "blue"]


def test_classes_come_from_the_file_or_from_the_training_rows() -> None:
    labels = ["a", "b", "c", "a"]
    known, classes = place_labels(small(y=labels), "y", np.array([0, 1]))
    assert classes == ("a", "b", OTHER)
    assert known.tolist() == [0, 1, 2, 0]
    table = replace(small(y=labels), declared={"y": ("c", "b", "a", "d")})
    assert place_labels(table, "y", np.array([0, 1]))[1] == ("c", "b", "a", "d")
    with pytest.raises(InvalidInput, match="two classes or more in the training rows"):
        place_labels(table, "y", np.array([0, 3]))
    with pytest.raises(InvalidInput, match="must hold declared classes only, got 'c'"):
        place_labels(replace(table, declared={"y": ("a", "b")}), "y", np.array([0, 1]))


def world(n: int, seed: int = 0) -> Table:
    """y = 3 x + noise that grows with x; kind = whether x is above a half, with one in ten turned round."""
    rng = np.random.default_rng(seed)
    x, junk = rng.random(n), rng.normal(size=n)
    turned = rng.random(n) < 0.1
    y = 3 * x + (0.1 + x) * rng.normal(size=n)
    kind = np.where((x > 0.5) ^ turned, "high", "low")
    return replace(
        small(x=x, junk=junk, y=y, kind=kind), name="world", ids=np.array([f"w{i}" for i in range(n)])
    )


def test_networks_learn_the_likelihood_and_come_out_the_same() -> None:
    table, rows = world(1200), np.arange(400)
    inputs = fit_encoder(table, ["x", "junk"], rows)(table)
    labels = (table.text("kind") == "high").astype(int)
    model = fit_labels(inputs[rows], labels[rows], ("low", "high"), seed=3)
    forecast = model.forecast(inputs[400:])
    assert (forecast.predictions() == labels[400:]).mean() > 0.85  # at best 0.9
    assert nll(forecast, labels[400:]).mean() < 0.40  # at best 0.325, without knowledge 0.693
    assert model.digest == fit_labels(inputs[rows], labels[rows], ("low", "high"), seed=3).digest
    assert model.digest != fit_labels(inputs[rows], labels[rows], ("low", "high"), seed=4).digest
    y, x = table.numbers("y"), table.numbers("x")[400:]
    values = fit_values(inputs[rows], y[rows]).forecast(inputs[400:])
    assert abs(values.mean[:, 0] - 3 * x).mean() < 0.15
    std = np.sqrt(values.var[:, 0])
    assert std[x > 0.9].mean() > 2 * std[x < 0.1].mean()  # true deviations 1.05 and 0.15
    np.testing.assert_allclose(std[x > 0.9].mean(), 1.05, rtol=0.3)


def test_networks_stop_before_they_learn_noise() -> None:
    """Labels that nothing tells: a coin's -log likelihood is 0.693, and learning by heart costs far more."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(400, 60)).astype(np.float32), rng.integers(0, 2, 400)
    forecast = fit_labels(inputs[:80], labels[:80], ("heads", "tails")).forecast(inputs[80:])
    assert nll(forecast, labels[80:]).mean() < 0.75


@pytest.mark.parametrize(("target", "task"), [("kind", "labels"), ("y", "values")])
def test_a_table_is_certified_once_on_disjoint_rows(tmp_path: Path, target: str, task: str) -> None:
    table = world(700)
    design = TableDesign("World", target, task, 250, 60, 150, PACLevel(0.1, 0.05), leave_out=("junk",))
    made, found = certify_table(table, design, ledger=tmp_path / "ledger.json", seed=5)
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
    if task == "values":
        lower, upper = rows[1].sets.box()
        np.testing.assert_allclose(rows[1].size, (upper - lower)[:, 0])
    inside = made.ids[parts.test.rows].tolist()
    new = {row["id"]: row for row in sets_of(found.certificates[0].predictor, made, table)}
    truths = dict(
        zip(
            table.ids.tolist(),
            (table.numbers(target) if task == "values" else table.text(target)).tolist(),
            strict=True,
        )
    )
    if task == "values":
        missed = sum(not new[i]["lower"] <= truths[i] <= new[i]["upper"] for i in inside)
    else:
        missed = sum(truths[i] not in new[i]["set"].split(" or ") for i in inside)
    assert missed == rows[1].found.all.errors, "new rows get the very sets that were measured"
    assert certify_table(table, design, ledger=tmp_path / "ledger.json", seed=5)[1].look == found.look
    with pytest.raises(SecondLook):
        certify_table(table, design, ledger=tmp_path / "ledger.json", seed=6)


def test_the_model_never_sees_other_rows() -> None:
    """Other truths in the rows that calibrate and test, or wild cells in one of them, leave the forecasts."""
    table = world(300)
    design = TableDesign("World", "y", "values", 120, 30, 100, PACLevel(0.1, 0.05))
    made = forecast_rest(table, design, seed=1)
    seen = np.isin(table.ids, made.train_ids)
    x = table.numbers("x").copy()
    x[np.flatnonzero(~seen)[0]] = 1e6
    changed = table.cells.assign(x=x.astype(str), y=np.where(seen, table.cells["y"], "-99.0"))
    again = forecast_rest(replace(table, cells=changed), design, seed=1)
    assert isinstance(made.forecast, GaussianForecast)
    assert isinstance(again.forecast, GaussianForecast)
    np.testing.assert_array_equal(made.forecast.mean[1:], again.forecast.mean[1:])
    np.testing.assert_array_equal(made.forecast.var[1:], again.forecast.var[1:])
    assert (again.truth == -99).all()


def test_too_few_rows_are_refused_before_training() -> None:
    level = PACLevel(0.1, 0.05)
    with pytest.raises(NotEnoughData):
        forecast_rest(world(60), TableDesign("World", "y", "values", 27, 6, 15, level), seed=0)
    with pytest.raises(InvalidInput, match=r"must leave a row to test, got 100 \+ 30 \+ 100 of 230 rows"):
        forecast_rest(world(230), TableDesign("World", "y", "values", 100, 30, 100, level), seed=0)


def test_a_model_that_is_always_right_goes_without_a_temperature() -> None:
    logits = np.array([[3.0, 0.0], [0.0, 3.0]])
    assert str(tempered_if_any(LogitForecast(logits), [0, 1], PACLevel(0.1, 0.05))) == "as it is"
    logits = np.array([[3.0, 0.0]] * 3)
    assert "tau" in str(tempered_if_any(LogitForecast(logits), [0, 0, 1], PACLevel(0.1, 0.05)))


def test_repeats_say_what_to_expect() -> None:
    """P(measured above epsilon) by simulating calibrations, against the closed form that is printed."""
    design = TableDesign("World", "y", "values", 60, 20, 60, PACLevel(0.1, 0.05))
    row, measured = repeat(world(180), design, [0, 1])
    assert (row["splits"], row["test rows"]) == (2, 40)
    assert row["above epsilon"] == (measured > 0.1).sum()
    assert row["P(true error above)"] < 0.05
    expected = row["expected"] / 2
    rng = np.random.default_rng(0)
    drawn = rng.random((20_000, 100))
    limit = np.sort(drawn[:, :60], axis=1)[
        :, 59 - 1
    ]  # k* = 1: P[Binomial(60, 0.1) <= 1] = 0.0138, <= 2: 0.053
    errors = (drawn[:, 60:] > limit[:, None]).sum(axis=1)
    assert abs((errors > 4).mean() - expected) < 0.006
    assert expected == pytest.approx(betabinom.sf(4, 40, 2, 59))


def test_the_tables_of_the_paper_from_one_command(tmp_path: Path) -> None:
    done = script("tables", "paper", "--smoke-test", "--out", tmp_path)
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
            for i, x, k in zip(table.ids, table.numbers("x"), table.text("kind"), strict=True)
        ),
    ]
    file = write(tmp_path, "mine.csv", "\n".join(lines))
    mine = ("tables", "own", file, "--target", "kind", "--id", "id", "--repeats", 0)
    new = write(tmp_path, "new.csv", "id;x\nfirst;0.02\nsecond;0.97\nw7;0.5\n")
    assert run_here(monkeypatch, *mine, "--out", tmp_path / "out", "--new", new) == ""
    assert "NOTE: 1 of these are rows of" in capsys.readouterr().out
    sets = {row["id"]: row["set"] for row in table_in(tmp_path / "out" / "new_sets.csv")}
    assert "low" in sets["first"]
    assert "high" in sets["second"]
    assert table_in(tmp_path / "out" / "tables.csv")[1]["train, tune, n, test"] == "180, 40, 100, 80"
    assert list(tmp_path.glob("pac-ledger*"))
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
    own = ("--ledger", tmp_path / "own" / "ledger.json")
    assert run_here(monkeypatch, *mine, *own, "--out", tmp_path / "own") == ""
    assert "never calibrated on" in run_here(monkeypatch, *mine, *own, "--seed", 1, "--out", tmp_path / "own")


def test_another_row_does_not_reset_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"{i % 97},{i % 7},{i % 5}" for i in range(400)]
    mine = ("tables", "own", tmp_path / "mine.csv", "--target", "y", "--repeats", 0)
    write(tmp_path, "mine.csv", "\n".join(["u,v,y", *rows]))
    assert run_here(monkeypatch, *mine, "--out", tmp_path / "out") == ""
    write(tmp_path, "mine.csv", "\n".join(["u,v,y", "8,8,8", "", *rows]))
    again = run_here(monkeypatch, *mine, "--out", tmp_path / "out", "--seed", 1)
    assert "a new certificate needs units never calibrated on" in again


def test_rows_without_a_first_line_of_names_get_their_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "\n".join(f"{i % 97},{i % 7},{i % 97 / 10}" for i in range(400))
    mine = ("own", write(tmp_path, "mine.csv", rows), "--names", "u,v,y", "--target", "y", "--repeats", 0)
    for place, new in enumerate(("3,4\n90,1", "3,4,0.3\n90,1,9")):
        out = tmp_path / str(place)
        out.mkdir()
        given = ("--ledger", out / "ledger.json", "--new", write(tmp_path, "new.csv", new), "--out", out)
        assert run_here(monkeypatch, "tables", *mine, *given) == ""
        assert len(table_in(out / "new_sets.csv")) == 2


def test_rows_that_cannot_get_sets_are_refused_before_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"{i},{i % 7},{i}\n" for i in range(400))
    given = [
        "own",
        write(tmp_path, "mine.csv", "u,v,y\n" + rows),
        "--target",
        "y",
        "--out",
        tmp_path / "out",
    ]
    refusal = run_here(monkeypatch, "tables", *given, "--new", write(tmp_path, "new.csv", "u\n1\n"))
    assert "--new must have the columns of mine.csv, got none named 'v'" in refusal
    assert not list(tmp_path.glob("pac-ledger*"))
