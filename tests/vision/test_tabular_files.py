"""Tables are read as they are written, or refused in a sentence; what prepares them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pac_core import (
    InvalidInput,
    UnreadableFile,
)
from pac_vision import Table, fit_encoder, read_table
from pac_vision.tabular_forecasts import OTHER, places

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
    assert table.columns["colour"].tolist() == ["red", "", "blue"]
    np.testing.assert_array_equal(table.columns["own weight"], [1.5, 2.5, np.nan])
    assert table.declared["class"] == ("yes", "no", "maybe")
    assert table.inputs("class") == ("colour", "own weight")
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
    assert list(table.columns) == ["x", "kind"]
    np.testing.assert_array_equal(table.columns["x"], [1, np.nan, -25])
    assert table.columns["kind"].tolist() == ["red", "", "dark blue"]


def test_a_file_without_names_is_told_them(tmp_path: Path) -> None:
    path = write(tmp_path, "car.data", "vhigh,2,unacc\nlow,4,acc\n")
    table = read_table(path, names=["price", "doors", "class"])
    assert table.labels("class").tolist() == ["unacc", "acc"]
    assert table.labels("doors").tolist() == ["2", "4"]  # numbers as labels lose their point


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        ("t.csv", "a,b\n1,2\n3\n", {}, "row 2 must have 2 cells, got 1"),
        ("t.csv", "a,a\n1,2\n", {}, "must give each column a name of its own"),
        ("t.csv", "1,2\n3,4\n", {}, "must name its columns in the first line"),
        ("t.csv", "a,b\n", {}, "holds no rows"),
        ("t.csv", "\n", {}, "holds no rows"),
        ("t.csv", "a,b\n1,inf\n", {}, "column 'b' must hold finite numbers"),
        ("t.csv", "a,b\n1,2\n", {"separator": ",,"}, "separator must be one character"),
        ("t.csv", "a,b\n1,2\n1,3\n", {"id_column": "a"}, "must name each row once, got 1 repeats"),
        ("t.csv", "a,b\nx,2\n?,3\n", {"id_column": "a"}, "must name each row once, got a missing one"),
        ("t.csv", "a,b\n1,2\n", {"id_column": "c"}, "id column must be one of a, b, got 'c'"),
        ("t.arff", ARFF.replace("blue,", "green,"), {}, "cannot be read as arff"),
        ("t.arff", ARFF.replace("1.5", "one"), {}, "cannot be read as arff"),
        ("t.arff", ARFF.replace(" real", " string"), {}, "cannot be read as arff"),
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
        with pytest.raises(UnreadableFile, match="cannot be cut into cells: field larger than field limit"):
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
    assert list(arff.columns) == ["x"]


def test_a_pickle_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\x80\x04\x95\x0f\xff\xfe.")
    with pytest.raises(UnreadableFile, match="cannot be read as text"):
        read_table(tmp_path / "t.csv")
    with pytest.raises(UnreadableFile, match="does not exist"):
        read_table(tmp_path / "none.csv")


def small(**columns: list[object]) -> Table:
    n = len(next(iter(columns.values())))
    return Table("t", np.arange(n).astype(str), {name: np.array(cells) for name, cells in columns.items()})


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda t: t.values("y"), "target 'y' must be known in every row, got 1 missing, the first in row 2"),
        (
            lambda t: t.labels("kind"),
            "target 'kind' must be known in every row, got 1 missing, the first in row 3",
        ),
        (lambda t: t.values("kind"), "target 'kind' must hold numbers"),
        (lambda t: t.inputs("z"), "column must be one of y, kind, got 'z'"),
        (lambda t: t.inputs("y", leave_out=["kind"]), "must have a column beside the target"),
    ],
)
def test_a_column_is_refused_by_name(ask: Callable[[Table], object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ask(small(y=[1.0, np.nan, 2.0], kind=["a", "b", ""]))


def test_names_are_no_categories() -> None:
    table = small(name=[f"n{i}" for i in range(60)], x=[1.0] * 60, y=[2.0] * 60)
    with pytest.raises(
        InvalidInput, match="column 'name' must hold numbers or at most 50 categories, got 60"
    ):
        table.inputs("y")
    assert table.inputs("y", leave_out=["name"]) == ("x",)


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
    with pytest.raises(InvalidInput, match="column 'x' must hold numbers, as it did in training"):
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
    with pytest.raises(InvalidInput, match="column 'code' must hold text, as it did in training"):
        encoder(small(code=[1.0], x=[1.5]))
    with pytest.raises(InvalidInput, match="column 'x' must hold numbers, as it did in training"):
        encoder(read_table(write(tmp_path, "new.csv", "code,x\n01,two\n")))


def test_arff_is_cut_into_the_cells_that_its_numbers_come_from(tmp_path: Path) -> None:
    for quote in "'\"":
        name = f"{quote}dark, red{quote}"
        quoted = ARFF.replace("{red, blue}", f"{{{name}, blue}}").replace("red, 1.5", f"{name}, 01.50")
        table = read_table(write(tmp_path, "t.arff", quoted))
        assert table.written["own weight"].tolist() == ["01.50", "2.5", ""]
        assert table.written["colour"].tolist() == ["dark, red", "", "blue"]


def test_classes_come_from_the_file_or_from_the_training_rows() -> None:
    labels = ["a", "b", "c", "a"]
    known, classes = places(small(y=labels), "y", np.array([0, 1]))
    assert classes == ("a", "b", OTHER)
    assert known.tolist() == [0, 1, 2, 0]
    table = Table("t", np.arange(4).astype(str), {"y": np.array(labels)}, {"y": ("c", "b", "a", "d")})
    assert places(table, "y", np.array([0, 1]))[1] == ("c", "b", "a", "d")
    with pytest.raises(InvalidInput, match="two classes or more in the training rows"):
        places(table, "y", np.array([0, 3]))
    with pytest.raises(InvalidInput, match="must hold declared classes only, got 'c'"):
        places(Table("t", table.ids, table.columns, {"y": ("a", "b")}), "y", np.array([0, 1]))
