"""A small tracker that is really trained follows rectangles it has never seen; its file holds all of it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pac_core import InvalidInput
from pac_core.errors import UnreadableFile
from pac_vision import BoxScore, Tracker, TrackerSettings, find_sequences, track, train_tracker
from pac_vision.tasks import TrackSequences
from pac_vision.tracking import Backbone, Sequence, find_pairs, load_backbone, predict_no_motion
from pac_vision.tracking.tracker import to_relative
from pac_vision.tracking.training import compute_looks


def test_it_follows_what_it_was_not_trained_on(tracker: Tracker, videos: Path) -> None:
    for sequence in find_sequences(videos)[4:]:
        found, still = track(tracker, videos, sequence), predict_no_motion(sequence)
        assert abs(found.truth - found.mean).mean() < 0.5 * abs(still.truth - still.mean).mean()
        assert 0.05 < ((found.truth - found.mean) ** 2 / found.var).mean() < 5  # and knows how well
        np.testing.assert_array_equal(found.truth, still.truth)


@pytest.mark.parametrize("free", [False, True])
def test_the_truth_of_a_frame_does_not_decide_its_forecast(
    tracker: Tracker, videos: Path, free: bool
) -> None:
    sequence = find_sequences(videos)[4]
    other = sequence.truth.copy()
    other[:, -1] += 6
    found, moved = (
        track(tracker, videos, replace(sequence, truth=truth), free=free) for truth in (sequence.truth, other)
    )
    np.testing.assert_array_equal(found.mean, moved.mean)
    np.testing.assert_array_equal(found.var, moved.var)
    assert (moved.truth[-1] == found.truth[-1] + 6).all()


def test_every_look_shows_the_target_where_its_box_says(videos: Path) -> None:
    pairs = find_pairs(find_sequences(videos)[:1])
    settings = TrackerSettings("pixels", 64, views=5, shift=0.15)
    _, now, found = compute_looks(load_backbone("pixels", 64), videos, pairs, settings)
    bright = (now[:, :, 0].float() > 0.4).double()  # red of the rectangle, on 16 x 16 places
    places = (torch.arange(16) + 0.5) / 16 - 0.5
    x, y = ((bright.sum(dim=axis) * places).sum(-1) / bright.sum((-2, -1)) for axis in (-2, -1))
    boxes = found.double()
    for seen, low, high in ((x, 0, 2), (y, 1, 3)):
        centre = (boxes[..., low] + boxes[..., high]) / 2
        assert abs(settings.context * seen - centre).max() < 0.2
    truly = to_relative(pairs.current, pairs.previous)
    np.testing.assert_allclose(found[:, 0], truly, rtol=1e-5, atol=1e-6)
    steps = abs(boxes[:, 1:, :2] + boxes[:, 1:, 2:]).mean() / 2
    assert 0.1 < steps < 0.2  # the random motions of the others
    assert (boxes.std(dim=1).amax(dim=-1) > 0.02).all()  # which differ from look to look


def test_running_freely_stays_on_the_target(tracker: Tracker, videos: Path) -> None:
    sequence = find_sequences(videos)[4]
    found = track(tracker, videos, sequence, free=True)
    assert found.frames.tolist() == list(range(1, 20))
    assert abs(found.truth - found.mean).mean() < 4  # of sides of 14 to 26
    assert abs(found.mean - track(tracker, videos, sequence).mean)[1:].max() > 0.01


def test_the_same_seed_is_the_same_tracker(tracker: Tracker, videos: Path, tmp_path: Path) -> None:
    quick = replace(tracker.settings, epochs=2)
    one, same = (train_tracker(videos, find_sequences(videos)[:2], quick) for _ in range(2))
    other = train_tracker(videos, find_sequences(videos)[:2], replace(quick, seed=1))
    assert one.digest == same.digest != other.digest


def test_its_file_holds_all_of_it(tracker: Tracker, videos: Path, tmp_path: Path) -> None:
    tracker.save(tmp_path / "t.safetensors")
    back = Tracker.load(tmp_path / "t.safetensors")
    assert (back.settings, back.digest) == (tracker.settings, tracker.digest)
    assert back.trained_on == ("Video000", "Video001", "Video002", "Video003")
    sequence = find_sequences(videos)[5]
    np.testing.assert_array_equal(track(back, videos, sequence).mean, track(tracker, videos, sequence).mean)


def test_other_files_are_refused(tracker: Tracker, tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    with pytest.raises(UnreadableFile, match=r"t\.safetensors cannot be read"):
        Tracker.load(path)
    torch.save(tracker.head.state_dict(), path)
    with pytest.raises(UnreadableFile, match=r"t\.safetensors cannot be read as safetensors"):
        Tracker.load(path)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(UnreadableFile, match="is no tracker of ours"):
        Tracker.load(path)
    tracker.save(path)
    other = Backbone.of("pixels", nn.Sequential(nn.AdaptiveAvgPool2d(16), nn.Conv2d(3, 3, 1)), 48)
    with pytest.raises(
        UnreadableFile, match="the backbone pixels has other weights than the one trained with"
    ):
        Tracker.load(path, backbone=other)


def test_any_module_may_be_the_backbone(videos: Path, tracker: Tracker, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 6, 5, 4, 2), nn.ReLU())
    before = [weight.clone() for weight in module.parameters()]
    backbone = Backbone.of("mine", module, 32)
    assert backbone.shape == (6, 8, 8)
    quick = replace(tracker.settings, epochs=1, views=2)
    made = train_tracker(videos, find_sequences(videos)[:2], quick, backbone=backbone)
    assert (made.settings.backbone, made.settings.size) == ("mine", 32)
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    made.save(tmp_path / "t.safetensors")
    assert Tracker.load(tmp_path / "t.safetensors", backbone=backbone).digest == made.digest
    with pytest.raises(UnreadableFile, match="a backbone must be named as one of"):
        Tracker.load(tmp_path / "t.safetensors")


def test_backbones_are_refused_by_name(networks: str) -> None:
    with pytest.raises(InvalidInput, match="a backbone must be named as one of efficientnet-lite0"):
        load_backbone("resnet", 64)
    with pytest.raises(InvalidInput, match=r"must take crops \[B, 3, 20, 20\], but it failed"):
        Backbone.of("rigid", nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), 20)
    assert load_backbone(f"python:{networks}:module", 64).shape == (7, 1, 1)
    with pytest.raises(InvalidInput, match="must return a torch module or a Backbone, got object"):
        load_backbone(f"python:{networks}:nothing", 64)


def test_pairs_need_the_target_in_both_frames() -> None:
    truth = np.tile([10.0, 10, 30, 30], (2, 5, 1))
    truth[0, 2] = np.nan
    truth[1, 3:] = np.nan
    pairs = find_pairs([Sequence("Deer", tuple("abcde"), truth)])
    found = list(zip(pairs.target, pairs.frame, pairs.before, pairs.now, strict=True))
    assert found == [(0, 1, "a", "b"), (0, 4, "d", "e"), (1, 1, "a", "b"), (1, 2, "b", "c")]
    lost = Sequence("Deer", tuple("ab"), np.full((1, 2, 4), np.nan))
    with pytest.raises(InvalidInput, match="sequences must have a pair of frames to train on, got none in 1"):
        train_tracker(".", [lost], TrackerSettings("pixels", 48))


def test_absent_targets_are_tracked_on_but_do_not_count(tracker: Tracker, videos: Path) -> None:
    sequence = find_sequences(videos)[5]
    assert len(sequence.truth) == 2
    truth = sequence.truth.copy()
    truth[0, 7:9] = np.nan
    truth[1] = np.nan
    gone = replace(sequence, truth=truth)
    free = track(tracker, videos, gone, free=True)
    assert free.frames.tolist() == [*range(1, 7), *range(9, 20)]
    whole = track(tracker, videos, replace(sequence, truth=sequence.truth[:1]), free=True)
    np.testing.assert_array_equal(free.mean, np.delete(whole.mean, [6, 7], axis=0))
    assert track(tracker, videos, gone).frames.tolist() == [*range(1, 7), *range(10, 20)]
    nobody = replace(sequence, truth=np.full_like(truth, np.nan))
    for free_running in (False, True):
        with pytest.raises(InvalidInput, match="Video005 must have a frame to predict a target in, got none"):
            track(tracker, videos, nobody, free=free_running)


def score(scorer: TrackSequences, *ids: str) -> dict[str, Any]:
    return scorer(SimpleNamespace(ids=ids), {})


def test_shards_and_threads_change_no_bit(tracker: Tracker, videos: Path) -> None:
    units = {one.name: one for one in find_sequences(videos)[4:]}
    scorer = TrackSequences(str(videos), units, tracker, 0.1, BoxScore())
    together = score(scorer, *units)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    for place, name in enumerate(units):
        alone = score(TrackSequences(str(videos), units, tracker, 0.1), name)
        for key in ("scores", "frames", "spreads"):
            assert alone[key][0] == together[key][place]
    torch.set_num_threads(before)
    assert together["frames"].tolist() == [19, 19]
    with pytest.raises(InvalidInput, match="got 'Video000'"):
        score(scorer, "Video000")


def test_a_broken_frame_is_an_error_with_its_path(tracker: Tracker, videos: Path, tmp_path: Path) -> None:
    shutil.copytree(videos, tmp_path / "copy")
    file = tmp_path / "copy" / "Video004" / "img" / "0007.jpg"
    file.write_bytes(file.read_bytes()[:200])
    (one,) = [s for s in find_sequences(tmp_path / "copy") if s.name == "Video004"]
    for free in (False, True):
        with pytest.raises(UnreadableFile, match=r"Video004/img/0007\.jpg cannot be read as an image"):
            track(tracker, tmp_path / "copy", one, free=free)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"views": 0}, "views must be a whole number from 1"),
        ({"context": 0.5}, "context must be a finite number of at least 1, got 0.5"),
        ({"rate": np.inf}, "rate must be a finite number of at least 0, got inf"),
    ],
)
def test_settings_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        TrackerSettings(**options)
