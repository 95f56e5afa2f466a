"""Names of classes from the files people have, different from each other, in the order of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pac_core import InvalidInput
from pac_core.datasets import read_classes
from pac_core.errors import UnreadableFile


def test_a_class_index_has_keys_and_names(tmp_path: Path) -> None:
    file = tmp_path / "index.json"
    index = {"1": ["n02", "crane"], "0": ["n01", "tench"], "2": ["n03", "crane"]}
    file.write_text(json.dumps(index))
    classes = read_classes(file)
    assert classes.keys == ("n01", "n02", "n03")
    assert classes.names == ("tench", "crane (n02)", "crane (n03)")
    assert (classes.index["n03"], classes.index["tench"]) == (2, 0)
    assert "crane" not in classes.index


@pytest.mark.parametrize(
    ("name", "text", "keys", "names"),
    [
        ("a.txt", "cat\ndog\n", ("cat", "dog"), ("cat", "dog")),
        ("a.txt", "maillot\nmaillot\n", ("maillot (0)", "maillot (1)"), ("maillot (0)", "maillot (1)")),
        (
            "a.txt",
            "n01440764 tench, Tinca tinca\nn01443537 goldfish\n",
            ("n01440764", "n01443537"),
            ("tench, Tinca tinca", "goldfish"),
        ),
        ("a.json", '["cat", "dog"]', ("cat", "dog"), ("cat", "dog")),
        ("a.json", '{"0": "cat", "1": "dog"}', ("cat", "dog"), ("cat", "dog")),
    ],
)
def test_lists_of_names(
    tmp_path: Path, name: str, text: str, keys: tuple[str, ...], names: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(text)
    classes = read_classes(tmp_path / name)
    assert (classes.keys, classes.names) == (keys, names)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", '{"0": "cat", "2": "dog"}', "its keys must be 0 to 1, got no '1'"),
        ("a.json", '{"0": "cat", "1": 7}', "class 1 must be a name, or a key and a name, got"),
        ("a.json", "3", "it must hold an object or a list, got int"),
        ("a.json", "{", "cannot be read as names of classes"),
        ("a.json", '[["n01", "cat"], ["n01", "dog"]]', "classes must be unique, got 1 repeats"),
        ("a.txt", "cat\n\ndog\n", "each line must name a class, got an empty line 2"),
        ("a.txt", "", "cannot be read as names of classes"),
    ],
)
def test_files_that_name_no_classes_are_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UnreadableFile, match=said):
        read_classes(tmp_path / name)


def test_missing_files_and_repeats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match=r"none\.txt cannot be read as names of classes"):
        read_classes(tmp_path / "none.txt")
    with pytest.raises(InvalidInput, match="unique, got 1 repeats"):
        read_classes(["cat", "cat"])
