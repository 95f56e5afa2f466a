"""Files of every kind give the same units; damaged ones are refused with a reason."""

from __future__ import annotations

import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pac_core import InvalidInput, LogitForecast
from pac_core import datasets as tables
from pac_core.datasets import read_arrays, read_dataset
from pac_core.errors import UnreadableFile

LOGITS = np.array([[0.5, 1.5], [2.0, -1.0], [0.0, 0.25]])
LABELS = np.array([1, 0, 1])
IDS = np.array(["a", "b", "c"])


def write(path: Path) -> Path:
    if path.suffix == ".npz":
        np.savez(path, logits=LOGITS, labels=LABELS, ids=IDS)
    elif path.suffix == ".csv":
        rows = [f"{i},{y},{z[0]},{z[1]}" for i, y, z in zip(IDS, LABELS, LOGITS, strict=True)]
        path.write_text("\n".join(["id,label,logit_0,logit_1", *rows]) + "\n")
    elif path.stem == "wide":
        columns = {"id": IDS, "label": LABELS, "logit_0": LOGITS[:, 0], "logit_1": LOGITS[:, 1]}
        pq.write_table(pa.table(columns), path)
    else:
        pq.write_table(pa.table({"id": IDS, "label": LABELS, "logits": list(LOGITS)}), path)
    return path


@pytest.mark.parametrize("name", ["d.npz", "d.csv", "wide.parquet", "nested.parquet"])
def test_all_kinds_give_the_same_units(tmp_path: Path, name: str) -> None:
    data = read_dataset(write(tmp_path / name))
    assert data.ids.tolist() == IDS.tolist()
    assert data.forecast.logits.tolist() == LOGITS.tolist()  # type: ignore[union-attr]
    assert data.truth.tolist() == LABELS.tolist()
    assert data.take([2]).ids.tolist() == ["c"]


def test_scores_in_every_kind(tmp_path: Path) -> None:
    scores = np.array([1.0, np.inf, 3.0])
    np.save(tmp_path / "s.npy", scores)
    np.savez(tmp_path / "s.npz", scores=scores)
    (tmp_path / "s.csv").write_text("score\n1\ninf\n3\n")
    pq.write_table(pa.table({"score": scores}), tmp_path / "s.parquet")
    for kind in ("npy", "npz", "csv", "parquet"):
        assert read_dataset(tmp_path / f"s.{kind}").scores.tolist() == scores.tolist()


def test_gaussian_forecasts_with_and_without_truth(tmp_path: Path) -> None:
    mean = np.zeros((3, 4, 2))
    np.savez(tmp_path / "g.npz", mean=mean, var=mean + 1, truth=mean)
    np.savez(tmp_path / "new.npz", mean=mean, var=mean + 1)
    assert read_dataset(tmp_path / "g.npz").truth.shape == (3, 4, 2)
    assert read_dataset(tmp_path / "new.npz").truth is None


def test_without_ids_a_row_is_a_row_of_this_very_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", scores=np.arange(3.0))
    np.savez(tmp_path / "b.npz", scores=np.arange(3.0) + 1)
    first, second = (read_dataset(tmp_path / name).ids for name in ("a.npz", "b.npz"))
    assert len(set(first) | set(second)) == 6
    assert first.tolist() == read_dataset(tmp_path / "a.npz").ids.tolist()


def test_ids_may_have_another_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", scores=np.arange(3.0), files=IDS)
    assert read_dataset(tmp_path / "a.npz", ids="files").ids.tolist() == ["a", "b", "c"]
    with pytest.raises(UnreadableFile, match="has no array 'names', but files, scores"):
        read_dataset(tmp_path / "a.npz", ids="names")


@pytest.mark.parametrize("name", ["d.npz", "d.csv", "wide.parquet", "s.npy"])
def test_every_cut_is_refused_or_complete(tmp_path: Path, name: str) -> None:
    """A file cut off anywhere is refused; a csv may end early only at the end of a line."""
    path = tmp_path / name
    if name == "s.npy":
        np.save(path, np.arange(50.0))
    else:
        write(path)
    whole = path.read_bytes()
    for end in range(0, len(whole) - 1, max(1, len(whole) // 60)):
        path.write_bytes(whole[:end])
        try:
            data = read_dataset(path)
        except (UnreadableFile, InvalidInput):
            continue
        assert name == "d.csv"
        assert len(data.ids) < len(IDS) or whole[:end].count(b"\n") >= len(IDS)


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_nothing_is_ever_unpickled(tmp_path: Path, name: str) -> None:
    class Trap:
        def __reduce__(self) -> object:
            return (Path.touch, (tmp_path / "sprung",))

    path = tmp_path / name
    if name == "x.npy":
        np.save(path, np.array([Trap()], dtype=object), allow_pickle=True)
    else:
        np.savez(path, scores=np.array([Trap()], dtype=object))
    with pytest.raises(UnreadableFile, match="Python objects, which are never unpickled"):
        read_dataset(path)
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UnreadableFile):
        read_dataset(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no rows"),
        ("score\n", "holds no rows"),
        ("score\n1,2\n", "line 2 must have 1 fields, got 2"),
        ("score\nhigh\n", "column 'scores' must hold numbers, got 'high' in data row 1"),
        ("label,logit_0,logit_1\n0.5,1,2\n", "column 'label' must hold whole numbers"),
        ("label,logit_0,logit_2\n0,1,2\n", r"no gaps, got \[0, 2\]"),
        ("colour\n1\n", "has the arrays colour"),
        ("label,logit_0,logit_1\n7,1,2\n", r"labels must lie in 0\.\.1, got 7"),
        ("score\nnan\n", "must not contain NaN"),
        ('score\n1\n""\n', "column 'scores' must hold numbers, got '' in data row 2"),
        ("label;logit_0\n0;1\n", "separated by commas"),
        ("score,score\n1,2\n", "must name each column once, got 'score' twice"),
        ("score,scores\n1,2\n", "must name each column once"),
        ("label,logit_0,logit_00\n0,1,2\n", "must name each column once"),
        ("id,score\na,1\na,2\n", "ids must be unique, got 1 repeats"),
    ],
)
def test_bad_csv_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises((UnreadableFile, InvalidInput), match=message):
        read_dataset(tmp_path / "d.csv")


@pytest.mark.parametrize(
    "text",
    [
        "id,label,logit_0,logit_1,camera\na,1,0.5,1.5,front\nb,0,2,-1,back\n",
        "\ufeffid,label,logit_0,logit_1\na,1,0.5,1.5\nb,0,2,-1\n",
        ",id,label,logit_0,logit_1\nx,a,1.0,0.5,1.5\ny,b,0.0,2,-1\n",
        "ids,labels,logit_1,logit_0\r\na,1,1.5,0.5\r\nb,0,-1,2\r\n",
    ],
    ids=["another column", "byte order mark", "index column, labels as floats", "plurals, order, line ends"],
)
def test_csv_as_other_programs_write_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "d.csv").write_text(text, newline="")
    data = read_dataset(tmp_path / "d.csv")
    assert data.ids.tolist() == ["a", "b"]
    assert data.forecast.logits.tolist() == LOGITS[:2].tolist()  # type: ignore[union-attr]
    assert data.truth.tolist() == [1, 0]


def test_columns_beyond_ten_keep_their_order(tmp_path: Path) -> None:
    header = ",".join(f"logit_{i}" for i in range(12))
    (tmp_path / "d.csv").write_text(f"label,{header}\n3,{','.join(map(str, range(12)))}\n")
    assert read_dataset(tmp_path / "d.csv").forecast.logits.tolist() == [list(range(12))]  # type: ignore[union-attr]


def test_an_empty_cell_in_parquet_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", None], "score": [1.0, 2.0]}), tmp_path / "d.parquet")
    with pytest.raises(UnreadableFile, match="column 'id' must have no empty cells, got 1"):
        read_dataset(tmp_path / "d.parquet")


def test_logits_and_labels_in_two_npy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "z.npy", LOGITS)
    np.save(tmp_path / "y.npy", LABELS)
    data = read_dataset(tmp_path / "z.npy", labels=tmp_path / "y.npy")
    assert data.truth.tolist() == LABELS.tolist()


def test_labels_by_the_name_of_an_array_or_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", z=LOGITS, y=LABELS, scores=np.zeros(3))
    np.savez("several.npz", other=LABELS, y=1 - LABELS)
    np.savez("usual.npz", other=LABELS, labels=1 - LABELS)
    assert read_dataset("d.npz", logits="z", labels="y").truth.tolist() == LABELS.tolist()
    for labels in ("several.npz:y", "usual.npz", Path("usual.npz")):
        assert read_dataset("d.npz", logits="z", labels=labels).truth.tolist() == (1 - LABELS).tolist()
    with pytest.raises(
        InvalidInput, match=r"which array of several\.npz holds them, as in several\.npz:other"
    ):
        read_dataset("d.npz", logits="z", labels="several.npz")
    with pytest.raises(UnreadableFile, match=r"an array of several\.npz, which has other, y, got 'w'"):
        read_dataset("d.npz", logits="z", labels="several.npz:w")
    np.save("y.npy", LABELS)
    Path("y.npy").rename("y")
    with pytest.raises(InvalidInput, match=r"'y' is an array of d\.npz and a file: write \./y for the file"):
        read_dataset("d.npz", logits="z", labels="y")


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    rows = [f"{y},{','.join(map(repr, z.tolist()))}" for y, z in zip(LABELS, LOGITS, strict=True)]
    header = ",".join(["kind", *(f"z_{i}" for i in range(LOGITS.shape[1]))])
    (tmp_path / "d.csv").write_text("\n".join([header, *rows]))
    data = read_dataset(tmp_path / "d.csv", logits="z", labels="kind")
    assert isinstance(data.forecast, LogitForecast)
    assert np.array_equal(data.forecast.logits, LOGITS)
    assert data.truth.tolist() == LABELS.tolist()
    (tmp_path / "e.csv").write_text((tmp_path / "d.csv").read_text().replace("\n0,", "\ncat,"))
    with pytest.raises(UnreadableFile, match="--labels must name an array of numbers, got 'kind'"):
        read_dataset(tmp_path / "e.csv", logits="z", labels="kind")


def test_arrays_of_other_lengths_do_no_harm(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", class_names=["cat", "dog"], logits=LOGITS, labels=LABELS)
    assert len(read_dataset(tmp_path / "d.npz").ids) == 3


def test_a_list_of_means_is_a_regressor_of_one_dimension(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", mean=np.zeros(5), var=np.ones(5), truth=np.zeros(5))
    assert read_dataset(tmp_path / "d.npz").forecast.mean.shape == (5, 1)  # type: ignore[union-attr]


def test_a_bad_row_is_named_on_reading(tmp_path: Path) -> None:
    logits = LOGITS.copy()
    logits[2, 0] = np.nan
    np.savez(tmp_path / "d.npz", logits=logits, labels=LABELS)
    with pytest.raises(InvalidInput, match="in row 2"):
        read_dataset(tmp_path / "d.npz")


def test_bad_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="does not exist or is not a file"):
        read_dataset(tmp_path / "none.npz")
    with pytest.raises(UnreadableFile, match=r"must end in \.npz"):
        read_dataset(tmp_path / "d.pkl")


def test_lengths_that_differ_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS[:2])
    with pytest.raises(InvalidInput, match="labels must have one entry per row, got 2 for 3"):
        read_dataset(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", logits=LOGITS, labels=LABELS, ids=IDS[:2])
    with pytest.raises(InvalidInput, match="ids must have one entry per unit, got 2 for 3"):
        read_dataset(tmp_path / "b.npz")


def test_only_the_members_that_are_needed_are_read(tmp_path: Path) -> None:
    """Beside what is asked for an npz may hold what cannot be read, or would fill the memory."""
    file = tmp_path / "d.npz"
    np.savez(file, scores=np.arange(5.0), ids=np.arange(5), notes=np.array([{}, None], dtype=object))
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("frames.npy", b"no array at all")
    assert read_dataset(file).scores.tolist() == [0, 1, 2, 3, 4]
    arrays = read_arrays(file)
    assert sorted(arrays) == ["frames", "ids", "notes", "scores"]
    for name, said in (("notes", "never unpickled"), ("frames", "cannot be read as npz")):
        with pytest.raises(UnreadableFile, match=said):
            arrays[name]
    more = arrays | {"frames": np.ones(1)}
    assert more["frames"].tolist() == [1]
    assert more.pop("ids").tolist() == [0, 1, 2, 3, 4]
    assert "ids" in arrays
    assert len(more) == 3


def test_a_member_is_bounded_before_it_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LARGEST", 1 << 16)
    file, many = tmp_path / "d.npz", np.zeros(1 << 20)
    tracemalloc.start()
    try:
        np.savez_compressed(file, scores=many)
        tracemalloc.reset_peak()
        with pytest.raises(
            UnreadableFile, match=r"scores.npy would take 8,388,736 bytes from .* uncompressed"
        ):
            read_dataset(file)
        assert tracemalloc.get_traced_memory()[1] < 2 * many.nbytes  # the array itself, and none beside it
    finally:
        tracemalloc.stop()
    np.savez(file, scores=many)
    assert len(read_dataset(file).scores) == len(many)
    monkeypatch.setattr(tables, "LARGEST", 1 << 28)
    np.savez_compressed(file, scores=many)  # small enough, however well it is packed
    assert len(read_dataset(file).scores) == len(many)
