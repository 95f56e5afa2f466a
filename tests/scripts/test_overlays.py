"""Boxes are drawn where they are, in the colours of the paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from otb.generated import write_sequences
from otb.overlays import GREEN, RED, WHITE, YELLOW, Overlay, overlay_grid, some_frames, write_gif
from PIL import Image

from pac_core.sets import gaussian_sets
from pac_vision import BoxScore, find_sequences
from pac_vision.tracking import Sequence, Video


@pytest.fixture
def overlay(tmp_path: Path) -> Overlay:
    """Two frames of 120 x 80: in the second the truth is 20 pixels off."""
    (tmp_path / "Deer" / "img").mkdir(parents=True)
    for name in ("0001.jpg", "0002.jpg", "0003.jpg"):
        Image.new("RGB", (120, 80), (60, 60, 60)).save(tmp_path / "Deer" / "img" / name)
    frames = tuple(f"Deer/img/000{i}.jpg" for i in (1, 2, 3))
    mean = np.array([[40.0, 30, 80, 60], [40.0, 30, 80, 60]])
    truth = mean + np.array([[2.0, 3, 2, 3], [20.0, 0, 20, 0]])
    video = Video("Deer", np.array([1, 2]), np.array([0, 0]), mean, np.full((2, 4), 4.0), truth)
    sequence = Sequence("Deer", frames, np.full((1, 3, 4), 10.0))
    return Overlay.of(tmp_path, sequence, video, BoxScore().sets(video.forecast, 5.0))


def test_the_confidence_box_reaches_outwards(overlay: Overlay) -> None:
    np.testing.assert_allclose(overlay.outer, [[30, 20, 90, 70]] * 2, rtol=1e-8)
    assert overlay.missed.tolist() == [False, True]


def test_boxes_have_their_colours_and_places(overlay: Overlay) -> None:
    image = overlay.draw(1, width=240)  # twice as large
    assert image.size == (240, 160)
    for place, colour in (((120, 41), GREEN), ((61, 100), GREEN), ((110, 61), RED), ((110, 67), WHITE)):
        assert image.getpixel(place) == colour
    assert image.getpixel((0, 80)) != YELLOW
    assert overlay.draw(2, width=240).getpixel((0, 80)) == YELLOW


def test_a_gif_keeps_the_colours_of_the_boxes(overlay: Overlay, tmp_path: Path) -> None:
    write_gif(overlay, tmp_path / "deer.gif", width=240)
    with Image.open(tmp_path / "deer.gif") as gif:
        assert (gif.n_frames, gif.size) == (2, (240, 160))
        gif.seek(1)
        shown = gif.convert("RGB")
    assert shown.getpixel((120, 41)) == GREEN
    assert shown.getpixel((110, 61)) == RED
    assert shown.getpixel((0, 80)) == YELLOW


def test_empty_sets_are_not_drawn(overlay: Overlay) -> None:
    video = overlay.video
    none = gaussian_sets(video.forecast, -100.0)
    empty = Overlay.of(overlay.folder, overlay.frames, video, none)
    assert np.isnan(empty.outer).all()
    assert empty.missed.all()
    assert GREEN not in {colour for _, colour in empty.draw(1).getcolors(1 << 24)}


def test_frames_are_spread_over_the_video(tmp_path: Path, overlay: Overlay) -> None:
    videos = write_sequences(tmp_path / "videos", 1)
    sequence = find_sequences(videos)[0]
    assert some_frames(overlay.video, 5) == [1, 2]
    rows = len(sequence.frames) - 1
    boxes = sequence.truth[0, 1:]
    video = Video(sequence.name, np.arange(1, rows + 1), np.zeros(rows, int), boxes, boxes * 0 + 1, boxes)
    assert some_frames(video, 4) == [1, 7, 13, 19]
    drawn = Overlay.of(videos, sequence, video, BoxScore().sets(video.forecast, 3.0))
    figure = overlay_grid([drawn, drawn], "Two videos", columns=2)
    assert len(figure.axes) == 4
