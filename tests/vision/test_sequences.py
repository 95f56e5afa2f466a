"""Boxes of the tracking benchmark are read however they are separated, and doubt is refused with its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pac_core.errors import UnreadableFile
from pac_vision import find_sequences
from pac_vision.tracking import read_boxes


def sequence(root: Path, name: str, frames: int, **truths: str) -> Path:
    folder = root / name / "img"
    folder.mkdir(parents=True)
    for i in range(frames):
        Image.new("L", (8, 6)).save(folder / f"{i + 1:04}.jpg")
    for number, text in truths.items():
        (root / name / f"groundtruth_rect{number.replace('_', '.')}.txt").write_text(text)
    return root


def test_separators_may_change_from_line_to_line(tmp_path: Path) -> None:
    sequence(tmp_path, "Crossing", 4, **{"": "205\t151\t17\t50\n1,2,3,4\n1 2  3 4 \r\n1, 2,\t3,4.5\n\n"})
    (found,) = find_sequences(tmp_path)
    assert found.name == "Crossing"
    assert found.frames[0] == "Crossing/img/0001.jpg"
    assert found.truth.tolist() == [[[205, 151, 222, 201], [1, 2, 4, 6], [1, 2, 4, 6], [1, 2, 4, 6.5]]]


def test_all_targets_belong_to_one_sequence(tmp_path: Path) -> None:
    sequence(tmp_path, "Jogging", 2, _1="1,2,3,4\n5,6,7,8", _2="0,0,1,1\n0,0,2,2", _10="9,9,1,1\n9,9,1,1")
    sequence(tmp_path, "Car4", 1, **{"": "1,2,3,4"})
    car, jogging = find_sequences(tmp_path)
    assert (car.name, jogging.name) == ("Car4", "Jogging")
    assert jogging.truth.shape == (3, 2, 4)
    assert jogging.truth[:, 1, 2].tolist() == [12, 2, 10]


def test_an_empty_file_of_one_target_is_left_out_and_said(tmp_path: Path) -> None:
    """The benchmark's Human4 has one."""
    sequence(tmp_path, "Human4", 2, _1="", _2="1,2,3,4\n5,6,7,8")
    with pytest.warns(UserWarning, match=r"Human4: left out groundtruth_rect\.1\.txt, which holds no boxes"):
        (found,) = find_sequences(tmp_path)
    assert found.truth.tolist() == [[[1, 2, 4, 6], [5, 6, 12, 14]]]
    sequence(tmp_path / "none", "Human4", 2, _1="", _2="\n")
    with pytest.raises(UnreadableFile, match=r"Human4/groundtruth_rect\.1\.txt holds no boxes"):
        find_sequences(tmp_path / "none")


@pytest.mark.parametrize("line", ["NaN,NaN,NaN,NaN", "0,0,0,0", "12 8 0 0", "5,NaN,3,3"])
def test_boxes_may_be_absent(tmp_path: Path, line: str) -> None:
    file = tmp_path / "boxes.txt"
    file.write_text(f"1,2,3,4\n{line}\n")
    boxes = read_boxes(file)
    assert boxes[0].tolist() == [1, 2, 4, 6]
    assert np.isnan(boxes[1]).all()


def test_the_benchmark_has_sequences_with_more_frames_than_boxes(tmp_path: Path) -> None:
    sequence(tmp_path, "Football1", 81, **{"": "1,2,3,4\n" * 74})
    sequence(tmp_path, "David", 770, **{"": "1,2,3,4\n" * 471})
    david, football = find_sequences(tmp_path)
    assert (len(football.frames), football.frames[-1]) == (74, "Football1/img/0074.jpg")
    assert (len(david.frames), david.frames[0]) == (471, "David/img/0300.jpg")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,2,3,4\n1,2,3\n", r"line 2 must be x, y, width, height, got '1,2,3'"),
        ("1,2,3,4\n1,2,3,4,5\n", "line 2 must be x, y, width, height"),
        ("1,2,3,4\n\n1,2,3,4\n", "line 2 must be x, y, width, height, got ''"),
        ("1,2,3,x\n", "line 1 must be x, y, width, height"),
        ("1,,3,4\n", "line 1 must be x, y, width, height"),
        ("1,2,inf,4\n", "line 1 must be x, y, width, height"),
        ("1,2,3,4\n1,2,-3,4\n", "line 2 must have a width and height of at least 0"),
        ("1,2,3,4\n", "must have a box per frame, got 1 for 2 frames"),
        ("\n", "holds no boxes"),
    ],
)
def test_boxes_are_refused_with_path_and_line(tmp_path: Path, text: str, said: str) -> None:
    sequence(tmp_path, "Deer", 2, **{"": text})
    with pytest.raises(UnreadableFile, match=rf"Deer/groundtruth_rect\.txt {said}"):
        find_sequences(tmp_path)


def test_incomplete_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="holds no folders of sequences"):
        find_sequences(tmp_path)
    with pytest.raises(UnreadableFile, match="there is no folder"):
        find_sequences(tmp_path / "nowhere")
    sequence(tmp_path, "Deer", 0, **{"": "1,2,3,4"})
    with pytest.raises(UnreadableFile, match=r"Deer/img holds no frames"):
        find_sequences(tmp_path)
    with pytest.raises(UnreadableFile, match=r"Dog holds no true boxes"):
        find_sequences(sequence(tmp_path / "a", "Dog", 1))
    with pytest.raises(UnreadableFile, match=r"several targets, got both"):
        find_sequences(sequence(tmp_path / "b", "Dog", 1, **{"": "1,2,3,4", "_1": "1,2,3,4"}))
    with pytest.raises(UnreadableFile, match=r"rect.2.txt must have a box per frame, got 1 for 2"):
        find_sequences(sequence(tmp_path / "c", "Dog", 2, _1="1,2,3,4\n1,2,3,4", _2="1,2,3,4"))
    with pytest.raises(UnreadableFile, match=r"none.txt cannot be read as boxes"):
        read_boxes(tmp_path / "none.txt")
