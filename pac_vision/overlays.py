"""Boxes drawn on frames, as in the paper: truth white, prediction red, confidence box green."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pac_core import ConfidenceSets, InvalidInput
from pac_vision.decoding import read_image
from pac_vision.sequences import Sequence as Frames
from pac_vision.videos import Video

WHITE, RED, GREEN, YELLOW = (255, 255, 255), (235, 40, 40), (40, 220, 60), (255, 220, 0)
BLACK = (0, 0, 0)
KEY = "white: truth   red: predicted   green: confidence box   yellow edge: the truth was missed"


@dataclass(frozen=True, eq=False)
class Overlay:
    """A video with the boxes that contain every box of each confidence set.

    frames: the sequence's frames
    outer: `[R, 4]` lower ends of xmin and ymin, upper ends of xmax and ymax, for each row of the video
    missed: `[R]` whether the set does not contain the truth
    """

    folder: str
    frames: Frames
    video: Video
    outer: NDArray[np.float64]
    missed: NDArray[np.bool_]

    @classmethod
    def of(
        cls, folder: str | os.PathLike[str], frames: Frames, video: Video, sets: ConfidenceSets
    ) -> Overlay:
        """The confidence sets of a video's rows."""
        return cls(str(folder), frames, video, outer_boxes(sets), ~np.asarray(sets.contains(video.truth)))

    def draw(self, frame: int, *, width: int = 360) -> Image.Image:
        """A frame with its boxes, `width` pixels wide."""
        image = read_image(Path(self.folder) / self.frames.frames[frame])
        scale = width / image.width
        image = image.resize((width, round(image.height * scale)), Image.Resampling.BICUBIC)
        pen = ImageDraw.Draw(image)
        rows = np.flatnonzero(self.video.frames == frame)
        for row in rows:
            for box, colour in (
                (self.outer[row], GREEN),
                (self.video.truth[row], WHITE),
                (self.video.mean[row], RED),
            ):
                draw_box(pen, box * scale, colour)
        if self.missed[rows].any():
            pen.rectangle((0, 0, image.width - 1, image.height - 1), outline=YELLOW, width=4)
        name = f"{self.frames.name} {Path(self.frames.frames[frame]).stem}"
        pen.text((6, 4), name, WHITE, ImageFont.load_default(15), stroke_width=2, stroke_fill=BLACK)
        return image


def outer_boxes(sets: ConfidenceSets) -> NDArray[np.float64]:
    """`[R, 4]` the box around every box of a set: lower ends of the mins, upper ends of the maxes."""
    lower, upper = sets.box()
    return np.concatenate([np.asarray(lower)[:, :2], np.asarray(upper)[:, 2:]], axis=1)


def draw_box(pen: Any, box: NDArray[np.float64], colour: tuple[int, int, int]) -> None:
    """The outline of a box; nothing where its set is empty (NaN)."""
    if not np.isfinite(box).all():
        return
    left, right = sorted((box[0], box[2]))
    top, bottom = sorted((box[1], box[3]))
    # A box far outside would be drawn with coordinates that the library cannot hold.
    edges = np.array([left, top, right, bottom]).clip(-10_000, 10_000).round().tolist()
    pen.rectangle(edges, outline=colour, width=2)


def overlay_grid(overlays: Sequence[Overlay], title: str, *, columns: int = 5) -> Any:
    """A figure with a row of frames per video, evenly spaced over it."""
    from matplotlib.figure import Figure

    if not overlays:
        raise InvalidInput("overlays must be one or more, got none")
    rows = [[overlay.draw(f) for f in some_frames(overlay.video, columns)] for overlay in overlays]
    heights = [row[0].height / row[0].width for row in rows]
    high = 2.6 * sum(heights) + 0.04 * len(rows) + 0.6
    figure = Figure(figsize=(2.6 * columns, high), dpi=140)
    # Margins by hand: so many pictures would keep the layout engine busy for seconds.
    margins = {"left": 0.003, "right": 0.997, "bottom": 0.02 / high, "top": 1 - 0.56 / high}
    margins |= {"wspace": 0.02, "hspace": 0.02}
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights, gridspec_kw=margins)
    for images, line in zip(rows, grid, strict=True):
        for axes in line:
            axes.set_axis_off()
        for image, axes in zip(images, line, strict=False):
            axes.imshow(np.asarray(image))
    figure.suptitle(f"{title}\n{KEY}", fontsize=10, y=1 - 0.06 / high, va="top")
    return figure


def write_gif(overlay: Overlay, path: str | os.PathLike[str], *, most: int = 60, width: int = 400) -> None:
    """The video with its boxes as a GIF of at most so many frames, evenly spaced."""
    images = [overlay.draw(frame, width=width) for frame in some_frames(overlay.video, most)]
    # One palette for all frames: boxes keep their colours, and the picture does not flicker.
    palette = _palette(images[len(images) // 2])
    shown = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    shown[0].save(path, save_all=True, append_images=shown[1:], duration=100, loop=0)


def some_frames(video: Video, most: int) -> list[int]:
    """At most so many of the frames that count, evenly spaced, the first and the last among them."""
    frames = np.unique(video.frames)
    places = np.linspace(0, len(frames) - 1, min(most, len(frames))).round().astype(int)
    return [int(frame) for frame in frames[places]]


def _palette(image: Image.Image) -> Image.Image:
    """251 colours of an image, and those of the boxes."""
    colours = image.quantize(251, method=Image.Quantize.MEDIANCUT)
    found = (colours.getpalette() or [])[: 251 * 3]
    found += [0] * (251 * 3 - len(found))
    made = Image.new("P", (1, 1))
    made.putpalette([*found, *WHITE, *RED, *GREEN, *YELLOW, *BLACK])
    return made
