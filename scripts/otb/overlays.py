"""Boxes on the frames of a video, in the colours of the paper: a grid of frames, and a GIF."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pac_vision import read_image
from pac_vision.tracking import Sequence, Video

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
    frames: Sequence
    video: Video
    outer: np.ndarray
    missed: np.ndarray

    @classmethod
    def of(cls, folder, frames, video, sets):
        """The confidence sets of a video's rows."""
        lower, upper = map(np.asarray, sets.box())
        outer = np.concatenate([lower[:, :2], upper[:, 2:]], axis=1)
        return cls(str(folder), frames, video, outer, ~np.asarray(sets.contains(video.truth)))

    def draw(self, frame, *, width=360):
        """A frame with its boxes, `width` pixels wide."""
        image = read_image(Path(self.folder) / self.frames.frames[frame])
        scale = width / image.width
        image = image.resize((width, round(image.height * scale)), Image.Resampling.BICUBIC)
        pen, rows = ImageDraw.Draw(image), np.flatnonzero(self.video.frames == frame)
        boxes = ((self.outer, GREEN), (self.video.truth, WHITE), (self.video.mean, RED))
        for row in rows:
            for box, colour in ((boxes_of[row] * scale, colour) for boxes_of, colour in boxes):
                if np.isfinite(box).all():  # else the set is empty
                    corners = np.sort(box.reshape(2, 2), axis=0).ravel()
                    # A box far outside would be drawn with coordinates that the library cannot hold.
                    pen.rectangle(corners.clip(-10_000, 10_000).round().tolist(), outline=colour, width=2)
        if self.missed[rows].any():
            pen.rectangle((0, 0, image.width - 1, image.height - 1), outline=YELLOW, width=4)
        name = f"{self.frames.name} {Path(self.frames.frames[frame]).stem}"
        pen.text((6, 4), name, WHITE, ImageFont.load_default(15), stroke_width=2, stroke_fill=BLACK)
        return image


def overlay_grid(overlays, title, *, columns=5):
    """A figure with a row of frames per video, evenly spaced over it. See `Overlay`."""
    from matplotlib.figure import Figure

    rows = [[overlay.draw(f) for f in some_frames(overlay.video, columns)] for overlay in overlays]
    heights = [row[0].height / row[0].width for row in rows]
    high = 2.6 * sum(heights) + 0.04 * len(rows) + 0.6
    figure = Figure(figsize=(2.6 * columns, high), dpi=140)
    # Margins by hand: so many pictures would keep the layout engine busy for seconds.
    margins = {"left": 0.003, "right": 0.997, "bottom": 0.02 / high, "top": 1 - 0.56 / high}
    margins |= {"wspace": 0.02, "hspace": 0.02}
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights, gridspec_kw=margins)
    for axes in grid.flat:
        axes.set_axis_off()
    for images, line in zip(rows, grid, strict=True):
        for image, axes in zip(images, line, strict=False):
            axes.imshow(np.asarray(image))
    figure.suptitle(f"{title}\n{KEY}", fontsize=10, y=1 - 0.06 / high, va="top")
    return figure


def write_gif(overlay, path, *, most=60, width=400):
    """The video with its boxes as a GIF of at most so many frames, evenly spaced. See `Overlay`."""
    images = [overlay.draw(frame, width=width) for frame in some_frames(overlay.video, most)]
    # One palette for all frames: boxes keep their colours, and the picture does not flicker.
    colours = images[len(images) // 2].quantize(251, method=Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*(colours + [0] * 753)[:753], *WHITE, *RED, *GREEN, *YELLOW, *BLACK])
    shown = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    shown[0].save(path, save_all=True, append_images=shown[1:], duration=100, loop=0)


def some_frames(video, most):
    """At most so many of the frames that count, evenly spaced, the first and the last among them."""
    frames = np.unique(video.frames)
    places = np.linspace(0, len(frames) - 1, min(most, len(frames))).round().astype(int)
    return [int(frame) for frame in frames[places]]
