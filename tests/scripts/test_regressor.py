"""The paper's regressor looks where it says, to the pixel, and follows rectangles it has never seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from otb.generated import write_sequences
from otb.regressor import (
    Backbone,
    Regressor,
    Settings,
    compute_looks,
    crop,
    find_pairs,
    fit_into_frame,
    grow_box,
    load,
    move_at_random,
    predict_no_motion,
    to_absolute,
    to_relative,
    track_pairs,
    train,
)
from PIL import Image
from safetensors.torch import save_file

from pac_core import InvalidInput
from pac_core.errors import UnreadableFile
from pac_vision import find_sequences, track
from pac_vision.tracking import Sequence


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six generated sequences in OTB's layout, two of them with two targets."""
    return write_sequences(tmp_path_factory.mktemp("videos"), 6, frames=20, targets=2)


@pytest.fixture(scope="module")
def tracker(videos: Path) -> Regressor:
    """A small one that is really trained, on the first four of them."""
    settings = Settings("pixels", 48, channels=8, hidden=32, views=4, epochs=15, batch=16, rate=3e-3)
    return train(videos, find_sequences(videos)[:4], settings)


def test_it_follows_what_it_was_not_trained_on(tracker: Regressor, videos: Path) -> None:
    for sequence in find_sequences(videos)[4:]:
        found, still = track_pairs(tracker, videos, sequence), predict_no_motion(sequence)
        assert abs(found.truth - found.mean).mean() < 0.5 * abs(still.truth - still.mean).mean()
        assert 0.05 < ((found.truth - found.mean) ** 2 / found.var).mean() < 5  # and knows how well
        np.testing.assert_array_equal(found.truth, still.truth)


def test_every_look_shows_the_target_where_its_box_says(videos: Path) -> None:
    pairs = find_pairs(find_sequences(videos)[:1])
    settings = Settings("pixels", 64, views=5, shift=0.15)
    _, now, found = compute_looks(Backbone("pixels", 64), videos, pairs, settings)
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


def test_running_freely_stays_on_the_target(tracker: Regressor, videos: Path) -> None:
    sequence = find_sequences(videos)[4]
    found = track(tracker, videos, sequence)
    assert found.frames.tolist() == list(range(1, 20))
    assert abs(found.truth - found.mean).mean() < 4  # of sides of 14 to 26
    assert abs(found.mean - track_pairs(tracker, videos, sequence).mean)[1:].max() > 0.01


def test_the_same_seed_is_the_same_tracker(tracker: Regressor, videos: Path, tmp_path: Path) -> None:
    quick = replace(tracker.settings, epochs=2)
    one, same = (train(videos, find_sequences(videos)[:2], quick) for _ in range(2))
    other = train(videos, find_sequences(videos)[:2], replace(quick, seed=1))
    assert one.digest == same.digest != other.digest


def test_its_file_holds_all_of_it(tracker: Regressor, videos: Path, tmp_path: Path) -> None:
    tracker.save(tmp_path / "t.safetensors")
    back = load(tmp_path / "t.safetensors")
    assert (back.settings, back.digest) == (tracker.settings, tracker.digest)
    assert back.trained_on == ("Video000", "Video001", "Video002", "Video003")
    sequence = find_sequences(videos)[5]
    np.testing.assert_array_equal(
        track_pairs(back, videos, sequence).mean, track_pairs(tracker, videos, sequence).mean
    )


def test_pairs_need_the_target_in_both_frames() -> None:
    truth = np.tile([10.0, 10, 30, 30], (2, 5, 1))
    truth[0, 2] = np.nan
    truth[1, 3:] = np.nan
    pairs = find_pairs([Sequence("Deer", tuple("abcde"), truth)])
    found = list(zip(pairs.target, pairs.frame, pairs.before, pairs.now, strict=True))
    assert found == [(0, 1, "a", "b"), (0, 4, "d", "e"), (1, 1, "a", "b"), (1, 2, "b", "c")]
    lost = Sequence("Deer", tuple("ab"), np.full((1, 2, 4), np.nan))
    with pytest.raises(InvalidInput, match="sequences must have a pair of frames to train on, got none in 1"):
        train(".", [lost], Settings("pixels", 48))


def test_a_crop_is_the_region_and_black_beyond_the_image() -> None:
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[10:20, 20:40] = (255, 0, 0)
    image = Image.fromarray(pixels)
    exact = crop(image, np.array([20.0, 10, 40, 20]), 8)
    assert exact.shape == (8, 8, 3)
    assert (exact == (255, 0, 0)).all()
    twice = crop(image, grow_box([20.0, 10, 40, 20], 2.0), 16)
    assert (twice[4:12, 4:12, 0] > 200).mean() > 0.9
    assert twice[:3].max() == 0
    white = Image.new("RGB", (10, 10), "white")
    half = crop(white, np.array([-10.0, 0, 10, 10]), 20)
    assert half[:, :9].max() == 0
    assert half[:, 11:].min() == 255


def test_fractions_of_a_pixel_count() -> None:
    ramp = np.repeat(np.arange(0, 240, 4, dtype=np.uint8)[None, :, None], 20, axis=0).repeat(3, axis=2)
    image = Image.fromarray(ramp)
    at, later = (crop(image, np.array([x, 2.0, x + 16, 18]), 16).astype(float) for x in (10.0, 10.5))
    assert np.median(later - at) == pytest.approx(2, abs=1)  # half a pixel of four levels each


def test_relative_boxes_come_back() -> None:
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 50, (2, 30, 2))
    previous, current = np.concatenate([low, low + rng.uniform(5, 40, (2, 30, 2))], axis=-1)
    mean, var = to_absolute(to_relative(current, previous), np.ones((30, 4)), previous)
    np.testing.assert_allclose(mean, current)
    sides = previous[:, 2:] - previous[:, :2]
    np.testing.assert_allclose(var, np.concatenate([sides, sides], axis=1) ** 2)
    assert to_relative([10.0, 10, 20, 30], [0.0, 10, 10, 30]).tolist() == [0.5, -0.5, 1.5, 0.5]


def test_random_motions_are_as_large_as_asked() -> None:
    boxes = np.tile([100.0, 100, 140, 120], (20_000, 1))
    found = move_at_random(boxes, np.random.default_rng(0), shift=0.1, stretch=0.05)
    sides, centre = found[:, 2:] - found[:, :2], (found[:, 2:] + found[:, :2]) / 2
    steps = abs(centre - (120, 110)) / (40, 20)
    assert steps.mean(axis=0) == pytest.approx([0.1, 0.1], rel=0.05)
    assert steps.max() <= 0.5
    assert abs(sides / (40, 20) - 1).mean(axis=0) == pytest.approx([0.05, 0.05], rel=0.05)
    still = move_at_random(boxes[:3], np.random.default_rng(0), shift=0, stretch=0)
    np.testing.assert_array_equal(still, boxes[:3])


def test_a_lost_box_stays_in_the_frame() -> None:
    for box in ([1e6, 5, 1e6 + 10, 15], [-500.0, -500, 900, 900], [50.0, 50, 50, 50]):
        found = fit_into_frame(np.array(box), (100, 80))
        centre, sides = (found[:2] + found[2:]) / 2, found[2:] - found[:2]
        assert ((centre >= 0) & (centre <= (100, 80))).all()
        assert ((sides >= 4) & (sides <= (100, 80))).all()


def test_other_files_and_backbones_are_refused(tracker: Regressor, tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    with pytest.raises(UnreadableFile, match=r"t\.safetensors cannot be read as a regressor"):
        load(path)
    torch.save(tracker.head.state_dict(), path)
    with pytest.raises(UnreadableFile, match="cannot be read as a regressor"):
        load(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(UnreadableFile, match="cannot be read as a regressor"):
        load(path)
    with pytest.raises(InvalidInput, match=r"a backbone must be one of efficientnet-lite0, .*, got 'resnet'"):
        Backbone("resnet", 64)
