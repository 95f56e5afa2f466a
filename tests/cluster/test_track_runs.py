"""`pac run otb` reads and tracks frames in workers: the same bits with Ray and without, by video."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from otb.generated import write_sequences
from pac_program import refused
from pac_program import run as pac

from pac_core import read_certificate
from pac_core.runs import RunFolder
from pac_vision.tasks import box_spreads, track_task

TRACKER = "python:toy_tracker:make"
LEVEL = ["--epsilon", 0.3, "--delta", 0.1, "--calibrate", 8]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 14 generated sequences; the tracker was trained on the first three."""
    home = tmp_path_factory.mktemp("tracked")
    write_sequences(home / "videos", 14, frames=8, targets=2)
    return home


@pytest.mark.usefixtures("no_engine")
def test_frames_are_tracked_in_workers_with_the_same_bits(home: Path, tmp_path: Path) -> None:
    given = ["--sequences", home / "videos", "--tracker", TRACKER, *LEVEL]
    for how in ("none", "local"):
        folder = tmp_path / how / "run"
        answer = pac("run", "otb", *given, "--folder", folder, "--address", how)
        assert answer.exit_code == 0, answer.output
        assert "3 sequences that the tracker was trained on: Video000, Video001, Video002" in answer.output
        assert "11 sequences in 11 shards" in answer.output
        assert re.search(r"boxes +epsilon=0.3, delta=0.1: half-diagonal of a test sequence", answer.output)
    here, there = (
        read_certificate(tmp_path / how / "run" / "certificate-0.3-0.1.json") for how in ("none", "local")
    )
    assert here.scores == there.scores
    assert here.predictor.threshold == there.predictor.threshold
    assert (here.unit, here.predictor.threshold.n) == ("sequence", 8)
    assert "in at most a share 0.1 of the frames" in here.predictor.score.name  # type: ignore[attr-defined]


def test_replaced_frames_are_noticed(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "videos", tmp_path / "videos")
    asked = ["--sequences", tmp_path / "videos", "--tracker", TRACKER, *LEVEL]
    once = ["run", "otb", *asked, "--folder", tmp_path / "run", "--address", "none"]
    assert pac(*once, "--estimate").exit_code == 0  # the first shard is Video003
    frame = tmp_path / "videos" / "Video003" / "img" / "0004.jpg"
    before = frame.read_bytes()
    frame.write_bytes(before + b" ")
    refused(pac(*once), "holds results of another Video003 than there is now")
    frame.write_bytes(before)
    (tmp_path / "videos" / "Video004" / "img" / "0004.jpg").write_bytes(before)  # not scored yet
    assert pac(*once).exit_code == 0


def test_boxes_are_as_large_as_their_deviations(home: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"sequences": home / "videos", "tracker": TRACKER, "gamma": 0.1}
    task = track_task(**given, calibrate=8, seed=0)
    answer = pac(
        "run", "otb", "--sequences", home / "videos", "--tracker", TRACKER, *LEVEL,
        "--folder", tmp_path / "run", "--address", "none",
    )  # fmt: skip
    assert answer.exit_code == 0, answer.output
    spreads = box_spreads(task, RunFolder(str(tmp_path / "run")))
    np.testing.assert_allclose(spreads, 3 * [4])  # each of four sides has a deviation of two pixels


def test_runs_are_refused_in_one_sentence(home: Path, tmp_path: Path) -> None:
    folder, tracker = ["--folder", tmp_path / "run"], ["--tracker", TRACKER]
    videos = ["--sequences", home / "videos"]
    refused(pac("run", "otb", *folder, *LEVEL, *videos), "either --tracks, or --sequences and --tracker")
    refused(
        pac("run", "otb", *folder, *videos, *tracker, "--epsilon", 0.1, "--delta", 0.05, "--calibrate", 4),
        "4 calibration units cannot prove epsilon=0.1 at delta=0.05: at least 29 are needed",
    )
    refused(
        pac("run", "otb", *folder, *videos, *tracker, *LEVEL, "--tracks", home / "x.npz"),
        "--tracks are predictions already",
    )
    file = home / "videos" / "Video005" / "img" / "0003.jpg"
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    answer = pac("run", "otb", *folder, *videos, *tracker, *LEVEL, "--address", "none")
    file.write_bytes(whole)
    refused(answer, "Video005/img/0003.jpg cannot be read as an image")
    seen = home / "seen"
    write_sequences(seen, 3, frames=2)
    refused(
        pac("run", "otb", *folder, "--sequences", seen, *tracker, *LEVEL),
        "must have sequences that",
        "was not trained on, got none",
    )
