"""What a tracker looks at is where it says, to the pixel."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from pac_vision.tracking.tracker import (
    crop,
    fit_into_frame,
    grow_box,
    move_at_random,
    to_absolute,
    to_relative,
)


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
