"""A tracker of the user's gets frames and a first box, and no truth; what it returns is checked."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from doc_pages import DOCS, blocks
from toy_tracker import ByColour

from pac_core import InvalidInput
from pac_core.errors import UnreadableFile
from pac_vision import BoxScore, find_sequences, track
from pac_vision.tasks import TrackSequences, load_tracker

NAME = "python:toy_tracker:make"


def test_targets_are_followed_from_their_first_box(videos: Path) -> None:
    sequence = find_sequences(videos)[5]
    found = track(ByColour(), videos, sequence)
    assert found.frames.tolist() == 2 * [*range(1, 20)]
    assert found.targets.tolist() == 19 * [0] + 19 * [1]
    np.testing.assert_array_equal(found.truth, sequence.truth[:, 1:].reshape(-1, 4))
    assert np.median(abs(found.truth - found.mean)) <= 1
    assert (found.var == 4).all()


def test_no_truth_but_the_first_box_is_seen(videos: Path) -> None:
    sequence = find_sequences(videos)[4]
    other = sequence.truth.copy()
    other[:, 1:] += 6
    found, moved = (track(ByColour(), videos, replace(sequence, truth=t)) for t in (sequence.truth, other))
    np.testing.assert_array_equal(found.mean, moved.mean)
    assert (moved.truth == found.truth + 6).all()

    def greedy(images: Any, box: Any) -> Any:
        box[:] = 0  # a box of its own
        return ByColour()(images, sequence.truth[0, 0])

    before = sequence.truth.copy()
    track(greedy, videos, sequence)
    np.testing.assert_array_equal(sequence.truth, before)


def test_absent_targets_are_tracked_on_but_do_not_count(videos: Path) -> None:
    sequence = find_sequences(videos)[5]
    truth = sequence.truth.copy()
    truth[0, :3], truth[0, 7:9], truth[1] = np.nan, np.nan, np.nan
    found = track(ByColour(), videos, replace(sequence, truth=truth))
    assert found.frames.tolist() == [4, 5, 6, *range(9, 20)]
    late = replace(sequence, frames=sequence.frames[3:], truth=sequence.truth[:1, 3:])
    whole = track(ByColour(), videos, late)
    np.testing.assert_array_equal(found.mean, np.delete(whole.mean, [3, 4], axis=0))
    nobody = replace(sequence, truth=np.full_like(truth, np.nan))
    with pytest.raises(InvalidInput, match="Video005 must have a frame to predict a target in, got none"):
        track(ByColour(), videos, nobody)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "a tracker must return means and variances, got NoneType"),
        ((np.ones((20, 4)),) * 3, "a tracker must return means and variances, got tuple"),
        ((np.ones((19, 4)), np.ones((20, 4))), r"means of the tracker .* Video004 must be .*\(20, 4\)"),
        ((np.ones((20, 4)), np.ones(20)), r"variances of the tracker .* must be numbers of shape \(20, 4\)"),
        ((np.full((20, 4), np.nan), np.ones((20, 4))), "mean of the sequence Video004 must be finite"),
        (
            (np.ones((20, 4)), np.full((20, 4), -1.0)),
            "var of the sequence Video004 must be at least 0, got -1",
        ),
    ],
)
def test_what_it_returns_is_checked(videos: Path, said: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        BoxScore().frame_scores(track(lambda images, box: said, videos, find_sequences(videos)[4]))


def test_the_tracker_of_the_docs_is_one(videos: Path) -> None:
    (code,) = (block.code for block in blocks(DOCS / "vision.md") if block.kind == "python")
    names: dict[str, Any] = {}
    exec(code, names)
    found = track(names["Still"](), videos, find_sequences(videos)[4])
    np.testing.assert_array_equal(found.mean, np.tile(find_sequences(videos)[4].truth[0, 0], (19, 1)))
    np.testing.assert_array_equal(np.sqrt(found.var[:, 0]), 3 + 2 * np.arange(19.0))


def score(scorer: TrackSequences, *ids: str) -> dict[str, Any]:
    return scorer(SimpleNamespace(ids=ids), {})


def test_shards_change_no_bit(videos: Path) -> None:
    units = {one.name: one for one in find_sequences(videos)[4:]}
    scorer = TrackSequences(str(videos), units, NAME, "by colour", 0.1, BoxScore())
    together = score(scorer, *units)
    for place, name in enumerate(units):
        alone = score(scorer, name)
        for key in ("scores", "frames", "spreads"):
            assert alone[key][0] == together[key][place]
    assert together["frames"].tolist() == [19, 19]
    with pytest.raises(InvalidInput, match="got 'Video000'"):
        score(scorer, "Video000")


def test_a_broken_frame_is_an_error_with_its_path(videos: Path, tmp_path: Path) -> None:
    shutil.copytree(videos, tmp_path / "copy")
    file = tmp_path / "copy" / "Video004" / "img" / "0007.jpg"
    file.write_bytes(file.read_bytes()[:200])
    (one,) = [s for s in find_sequences(tmp_path / "copy") if s.name == "Video004"]
    with pytest.raises(UnreadableFile, match=r"Video004/img/0007\.jpg cannot be read as an image"):
        track(ByColour(), tmp_path / "copy", one)


def test_trackers_are_named_by_their_factory(videos: Path, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("other weights")
    other = f"{NAME}:{tmp_path / 'weights'}"
    assert (load_tracker(NAME).digest, load_tracker(other).digest) == ("by colour", "other weights")
    with pytest.raises(
        InvalidInput, match="must be the same model on every machine, but its digest is other"
    ):
        TrackSequences(str(videos), {}, other, "by colour", 0.1)
    with pytest.raises(InvalidInput, match="a tracker must be named as python:MODULE:FACTORY, got 'resnet'"):
        load_tracker("resnet")
    with pytest.raises(InvalidInput, match="must return a function of images and a box with a text digest"):
        load_tracker("python:toy_tracker:without_digest")
    with pytest.raises(InvalidInput, match=r"failed: FileNotFoundError"):
        load_tracker(f"{NAME}:{tmp_path / 'none'}")
