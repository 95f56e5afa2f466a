"""The paper's split and ablations of pairs of frames, and what they say of another video."""

from __future__ import annotations

import numpy as np
import pytest

from pac_core import InvalidInput, PACLevel
from pac_vision import PAPER_PAIRS, Video, split_by_pair, split_by_video
from pac_vision.frame_pairs import ablation_table, measure_pairs, paper_parts, split_across


def video(name: str, rows: int, wrong: float, seed: int = 0) -> Video:
    rng = np.random.default_rng([seed, rows])
    truth = np.array([50.0, 50, 90, 70]) + rng.uniform(0, 30, (rows, 1))
    mean = truth + rng.normal(0, wrong, (rows, 4))
    return Video(name, np.arange(rows), np.zeros(rows, int), mean, np.full((rows, 4), 4.0), truth)


def test_whole_videos_go_to_one_part_in_the_papers_proportions() -> None:
    rng = np.random.default_rng(0)
    counts = {f"video{i}": int(rng.integers(70, 2000)) for i in range(99)}
    groups = paper_parts(counts, seed=3)
    assert sorted(name for group in groups for name in group) == sorted(counts)
    sizes = [sum(counts[name] for name in group) for group in groups]
    shares = np.array(sizes) / sum(sizes)
    np.testing.assert_allclose(shares, np.array(PAPER_PAIRS) / 66_404, atol=0.015)
    assert groups != paper_parts(counts, seed=4)
    assert groups == paper_parts(dict(sorted(counts.items(), reverse=True)), seed=3)


def test_each_part_has_a_video_however_unequal_they_are() -> None:
    assert all(paper_parts({"a": 10_000, "b": 1, "c": 1}, seed=seed) for seed in range(20))
    for seed in range(20):
        assert [len(g) for g in paper_parts({"a": 10_000, "b": 1, "c": 1}, seed=seed)] == [1, 1, 1]
    with pytest.raises(InvalidInput, match="videos must be 3 or more to tune, calibrate and test, got 2"):
        paper_parts({"a": 1, "b": 1})


def test_pairs_are_split_without_a_pair_in_two_parts() -> None:
    videos = [video("Deer", 300, 3), video("Dog", 200, 3)]
    parts = split_by_pair(videos, shares=(1, 2, 2))
    assert parts.sizes == (100, 200, 200)
    seen = np.concatenate([parts.tune[1], parts.calibrate[1], parts.test[1]])
    assert len(np.unique(seen, axis=0)) == 500
    few = split_by_pair(videos, shares=(1, 2, 2), pairs=60)
    assert few.sizes == (100, 60, 200)


def test_a_harder_video_refutes_what_held_on_the_same_ones() -> None:
    easy, hard, level = video("Deer", 900, 2), video("Dog", 300, 8), PACLevel(0.1, 0.05)
    across = split_across(easy, hard)
    assert (across.sizes, across.names) == ((300, 600, 300), (("Deer",), ("Deer",), ("Dog",)))
    assert measure_pairs(across, level)[0].refuted
    assert not measure_pairs(split_by_pair([easy, hard]), level)[0].refuted


def test_the_vc_bound_says_what_it_would_need() -> None:
    videos = [video(f"video{i}", 700, 3, seed=i) for i in range(9)]
    parts = split_by_video([videos[:3], videos[3:6], videos[6:]])
    rows, sizes = ablation_table(parts, PACLevel(0.1, 0.05))
    assert [row["ablation"] for row in rows] == ["D", "C+D", "C"]
    assert all(row["refuted"] == "no" and row["n"] == 2100 for row in rows)
    assert rows[2]["median size"] > 1.1 * rows[1]["median size"]  # it is feasible here, and loose
    assert set(sizes) == {"D", "C+D", "C"}
    rows, sizes = ablation_table(parts, PACLevel(0.01, 1e-5))
    assert (rows[2]["error"], rows[2]["why"]) == ("-", "needs 271,024 pairs")
    assert set(sizes) == {"D", "C+D"}
