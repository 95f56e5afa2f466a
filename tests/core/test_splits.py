"""Parts are disjoint, whole by group, and drawn by id and seed rather than by position."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pac_core import InvalidInput, split
from pac_core.errors import OverlappingSplits
from pac_core.splits import ids_digest, refuse_overlap

IDS = [f"u{i}" for i in range(50)]


def test_parts_cover_all_units_once() -> None:
    parts = split(IDS, tune=10, calibrate=25, seed=3)
    together = np.concatenate([parts.tune.units, parts.calibrate.units, parts.test.units])
    assert sorted(together) == sorted(IDS)
    assert [parts.tune.n, parts.calibrate.n, parts.test.n] == [10, 25, 15]
    assert [IDS[row] for row in parts.tune.rows] == sorted(parts.tune.units, key=IDS.index)


@given(st.permutations(IDS))
def test_order_of_the_file_does_not_matter(order: list[str]) -> None:
    one, other = (split(ids, tune=10, calibrate=25, seed=3) for ids in (IDS, order))
    assert one.calibrate.digest == other.calibrate.digest
    assert {order[row] for row in other.tune.rows} == {IDS[row] for row in one.tune.rows}


def test_seeds_draw_different_parts_and_each_unit_equally_often() -> None:
    counts = np.zeros(len(IDS))
    for seed in range(400):
        counts[split(IDS, tune=0, calibrate=25, seed=seed).calibrate.rows] += 1
    # Binomial(400, 1/2) has a deviation of 10; 50 units stay within 4.5 deviations.
    assert abs(counts - 200).max() < 45
    assert counts.sum() == 400 * 25


def test_groups_stay_whole_and_are_the_units() -> None:
    videos = [f"video{i // 10}" for i in range(50)]
    parts = split(IDS, tune=1, calibrate=3, seed=0, groups=videos)
    assert [part.n for part in (parts.tune, parts.calibrate, parts.test)] == [1, 3, 1]
    assert len(parts.calibrate.rows) == 30
    assert {videos[row] for row in parts.calibrate.rows} == set(parts.calibrate.units)


def test_what_the_model_saw_is_refused() -> None:
    with pytest.raises(OverlappingSplits, match=r"'train' and .* share 2 units .*'u1'"):
        split(IDS, tune=1, calibrate=2, seed=0, train=["u1", "u7", "other"])
    with pytest.raises(OverlappingSplits):
        split(IDS, tune=1, calibrate=1, seed=0, groups=["a"] * 25 + ["b"] * 25, train=["a"])
    with pytest.raises(
        OverlappingSplits, match=r"share 1 units .*'u1'"
    ):  # a frame of a video, by its own name
        split(IDS, tune=1, calibrate=1, seed=0, groups=["a"] * 25 + ["b"] * 25, train=["u1"])


def test_overlap_between_named_parts_is_refused() -> None:
    refuse_overlap({"tune": [1, 2], "calibrate": [3], "test": [4]})
    with pytest.raises(OverlappingSplits, match="'tune' and 'test' share 1 units"):
        refuse_overlap({"tune": [1, 2], "calibrate": [3], "test": [2]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": ["a", "a"], "tune": 0, "calibrate": 1}, "ids must be unique"),
        ({"ids": ["a", "b"], "tune": 1, "calibrate": 2}, "at most 2 units, got 3"),
        ({"ids": ["a", "b"], "tune": -1, "calibrate": 1}, "tune must be a whole number"),
        ({"ids": ["a", "b"], "tune": 0, "calibrate": 0}, "calibrate must be a whole number from 1"),
        (
            {"ids": ["a", "b"], "tune": 0, "calibrate": 1, "groups": ["g"]},
            "groups must have one entry per id",
        ),
        ({"ids": [], "tune": 0, "calibrate": 1}, "ids must not be empty"),
        ({"ids": [1.0, 2.0], "tune": 0, "calibrate": 1}, "ids must be whole numbers or text"),
        ({"ids": [1, 2], "tune": 0, "calibrate": 1, "train": [1.0]}, "train must be whole numbers or text"),
    ],
)
def test_bad_splits_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        split(**arguments, seed=0)  # type: ignore[arg-type]


def test_one_score_per_unit_however_many_rows() -> None:
    parts = split(range(6), tune=0, calibrate=2, seed=0, groups=["a", "b", "a", "c", "b", "a"])
    scores = {"a": [3.0, 9.0, 1.0], "b": [5.0, 2.0], "c": [4.0]}
    rows = np.array([3.0, 5.0, 9.0, 4.0, 2.0, 1.0])[parts.calibrate.rows]
    assert parts.calibrate.per_unit(rows).tolist() == [max(scores[unit]) for unit in parts.calibrate.units]
    means = parts.calibrate.per_unit(rows, np.mean)
    assert means.tolist() == [np.mean(scores[unit]) for unit in parts.calibrate.units]
    with pytest.raises(InvalidInput, match="row_scores must have one entry per row"):
        parts.calibrate.per_unit(rows[:-1])


def test_digest_tells_sets_of_ids_apart() -> None:
    assert ids_digest(["a", "b"]) == ids_digest(["b", "a"])
    assert ids_digest(["ab"]) != ids_digest(["a", "b"])
    together = sum(int(ids_digest(part), 16) for part in (["a", "b"], ["c"])) % 2**256
    assert int(ids_digest(["c", "b", "a"]), 16) == together  # shards add up


@pytest.mark.parametrize("train", [None, 3, "u1", {"u1": 1}], ids=str)
def test_training_ids_are_a_list(train: object) -> None:
    with pytest.raises(InvalidInput, match="train must be a list"):
        split(IDS, tune=10, calibrate=25, seed=3, train=train)  # type: ignore[arg-type]


def test_ids_that_no_file_can_hold_are_refused() -> None:
    """The name of a file whose bytes are not UTF-8 has lone surrogates."""
    strange = os.fsdecode(b"caf\xe9.jpg")
    for work in (
        lambda: split([*IDS, strange], tune=10, calibrate=25, seed=3),
        lambda: split(IDS, tune=10, calibrate=25, seed=3, train=[strange]),
        lambda: ids_digest([strange]),
        lambda: ids_digest(np.array([strange], dtype=">U9")),
    ):
        with pytest.raises(InvalidInput, match=r"must be text that UTF-8 can hold, got 'caf\\udce9.jpg'"):
            work()
    assert split(["caf\u00e9", "\U0001f600", "\ue000"], tune=1, calibrate=2, seed=0).calibrate.n == 2
