"""Figures for users: images with their label sets, boxes on frames, reliability of a classifier.

matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from pac_core import InvalidInput, LogitForecast
from pac_core.evaluation import error_interval
from pac_core.plots import INK, canvas
from pac_core.sets import ConfidenceSets, Likelihood
from pac_vision.images.decoding import read_image
from pac_vision.tracking import Sequence as Frames
from pac_vision.tracking import Video

MISSED = "#d0021b"
WHITE, RED, GREEN, YELLOW = (255, 255, 255), (235, 40, 40), (40, 220, 60), (255, 220, 0)
BLACK = (0, 0, 0)
Reader = Callable[[], Image.Image]
KEY = "white: truth   red: predicted   green: confidence box   yellow edge: the truth was missed"


@dataclass(frozen=True, eq=False)
class Picture:
    """An image, which a function reads, with a caption; framed in red or not."""

    image: Reader
    caption: str
    framed: bool = False

    @classmethod
    def of_set(
        cls, image: Reader, members: Sequence[int], names: Sequence[str], *, label: int | None = None
    ) -> Picture:
        """An image with its label set; framed if the set misses the true label.

        >>> grey = lambda: Image.new("RGB", (40, 30), "grey")
        >>> names = ["church", "kite", "plunger"]
        >>> missed = Picture.of_set(grey, [0, 2], names, label=1)
        >>> missed.caption, missed.framed
        ('{church, plunger}\\nmissed: kite', True)
        >>> figure = picture_grid([[Picture.of_set(grey, [1], names, label=1), missed]], title="Two images")
        >>> figure.savefig("sets.png")                                    # doctest: +SKIP
        """
        text = textwrap.fill("{" + ", ".join(names[place] for place in members) + "}", 32)
        if label is None or label in members:
            return cls(image, text)
        return cls(image, f"{text}\nmissed: {names[label]}", True)

    def draw(self, axes: Any) -> None:
        """The centre of the image on axes, framed or not."""
        whole = self.image()
        square = min(whole.size)
        x, y = ((length - square) // 2 for length in whole.size)
        shown = whole.resize((224, 224), Image.Resampling.BICUBIC, box=(x, y, x + square, y + square))
        axes.imshow(np.asarray(shown.convert("RGB")))
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(visible=self.framed, color=MISSED, linewidth=3)


def picture_grid(
    rows: Sequence[Sequence[Picture | None]],
    *,
    title: str = "",
    heads: Sequence[str] = (),
    row_names: Sequence[str] = (),
) -> Any:
    """A figure with rows of pictures and their captions; None is an empty place. See `Picture.of_set`."""
    from matplotlib.figure import Figure

    if not any(cell for row in rows for cell in row):
        raise InvalidInput("rows must hold a picture, got none")
    captions = max(cell.caption.count("\n") + 1 for row in rows for cell in row if cell)
    side, gap, left, top = 1.55, 0.2 + 0.14 * captions, 0.42, 0.45 + 0.17 * (title.count("\n") + 1)
    columns = max(map(len, rows))
    wide, high = left + max(3, columns) * (side + 0.12) + 0.08, top + len(rows) * (side + gap)
    figure = Figure(figsize=(wide, high), dpi=150)
    for j, head in enumerate(heads):
        x = (left + j * (side + 0.12) + side / 2) / wide
        figure.text(x, 1 - (top - 0.1) / high, head, ha="center", va="bottom", fontsize=11)
    for i, row in enumerate(rows):
        bottom = high - top - i * (side + gap) - side
        if i < len(row_names):
            y = (bottom + side / 2) / high
            figure.text(0.14 / wide, y, row_names[i], rotation=90, ha="left", va="center", fontsize=10)
        for j, cell in enumerate(row):
            x = left + j * (side + 0.12)
            axes = figure.add_axes((x / wide, bottom / high, side / wide, side / high))
            if cell is None:
                axes.axis("off")
                axes.text(0.5, 0.5, "none", ha="center", va="center", color="#888888", fontsize=9)
                continue
            cell.draw(axes)
            axes.set_xlabel(cell.caption, fontsize=7.5, labelpad=2.5)
    figure.text(0.1 / wide, 1 - 0.1 / high, title, ha="left", va="top", fontsize=9.5)
    return figure


def reliability_bins(forecast: LogitForecast, labels: Any, *, bins: int = 15) -> list[dict[str, float]]:
    """Confidence and accuracy of the most likely label in equal bins of confidence, with exact 98% intervals.

    >>> forecast = LogitForecast.from_probabilities([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> [(row["images"], row["accuracy"]) for row in reliability_bins(forecast, [0, 1, 1], bins=2)]
    [(0, nan), (3, 0.6666666666666666)]
    >>> figure = reliability_diagram({"as it is": reliability_bins(forecast, [0, 1, 1])}, "Three images")
    """
    confidence = np.exp(-Likelihood().scores(forecast, forecast.predictions()))
    hit = forecast.predictions() == np.asarray(labels)
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    rows = []
    for i in range(bins):
        n, hits = int((which == i).sum()), int(hit[which == i].sum())
        row = {"from": i / bins, "to": (i + 1) / bins, "images": n}
        low, high = error_interval(hits, n) if n else (np.nan, np.nan)
        row |= {"confidence": float(confidence[which == i].mean()) if n else np.nan}
        row |= {"accuracy": hits / n if n else np.nan, "accuracy, low": low, "accuracy, high": high}
        rows.append(row)
    return rows


def reliability_diagram(found: Mapping[str, Sequence[Mapping[str, float]]], title: str) -> Any:
    """Accuracy against confidence: a panel for each forecast, by its title, from `reliability_bins`."""
    figure, axes = canvas(3.7 * len(found) + 0.4, 3.9)
    axes.remove()
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (name, rows) in zip(panels, found.items(), strict=True):
        some = [row for row in rows if row["images"]]
        middle, accuracy, said, low, high = (
            np.array([row[key] for row in some])
            for key in ("from", "accuracy", "confidence", "accuracy, low", "accuracy, high")
        )
        width = rows[0]["to"] - rows[0]["from"]
        middle = middle + width / 2
        axes.plot([0, 1], [0, 1], color="black", linestyle=":", linewidth=1.2)
        axes.bar(middle, accuracy, width=0.92 * width, color=INK[0], alpha=0.55, label="accuracy")
        whiskers = [accuracy - low, high - accuracy]
        axes.errorbar(middle, accuracy, whiskers, color=INK[0], linestyle="none", linewidth=1, capsize=2)
        axes.plot(middle, said, "_", color=INK[1], markersize=11, label="confidence")
        for x, row in zip(middle, some, strict=True):
            axes.text(x, 0.02, f"{row['images']:,}", rotation=90, ha="center", va="bottom", fontsize=6.5)
        axes.set(xlim=(0, 1), ylim=(0, 1.03), xlabel="confidence of the prediction (in a bar: images)")
        axes.set_title(name, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("share predicted correctly\n(whisker: exact 98% interval)", fontsize=9)
    figure.axes[0].legend(frameon=False, loc="upper left", fontsize=9)
    figure.suptitle(title, fontsize=10.5, x=0.01, ha="left")
    return figure


@dataclass(frozen=True, eq=False)
class Overlay:
    """A video with the boxes that contain every box of each confidence set.

    frames: the sequence's frames
    outer: `[R, 4]` lower ends of xmin and ymin, upper ends of xmax and ymax, for each row of the video
    missed: `[R]` whether the set does not contain the truth

    >>> from pac_vision import BoxScore, find_sequences, track
    >>> sequence = find_sequences("OTB")[0]                                                # doctest: +SKIP
    >>> video = track(tracker, "OTB", sequence)                                            # doctest: +SKIP
    >>> overlay = Overlay.of("OTB", sequence, video, BoxScore().sets(video.forecast, 5.0)) # doctest: +SKIP
    >>> overlay_grid([overlay], "A video").savefig("boxes.png")                            # doctest: +SKIP
    >>> write_gif(overlay, "boxes.gif")                                                    # doctest: +SKIP
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
        lower, upper = map(np.asarray, sets.box())
        outer = np.concatenate([lower[:, :2], upper[:, 2:]], axis=1)
        return cls(str(folder), frames, video, outer, ~np.asarray(sets.contains(video.truth)))

    def draw(self, frame: int, *, width: int = 360) -> Image.Image:
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


def overlay_grid(overlays: Sequence[Overlay], title: str, *, columns: int = 5) -> Any:
    """A figure with a row of frames per video, evenly spaced over it. See `Overlay`."""
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
    for axes in grid.flat:
        axes.set_axis_off()
    for images, line in zip(rows, grid, strict=True):
        for image, axes in zip(images, line, strict=False):
            axes.imshow(np.asarray(image))
    figure.suptitle(f"{title}\n{KEY}", fontsize=10, y=1 - 0.06 / high, va="top")
    return figure


def write_gif(overlay: Overlay, path: str | os.PathLike[str], *, most: int = 60, width: int = 400) -> None:
    """The video with its boxes as a GIF of at most so many frames, evenly spaced. See `Overlay`."""
    images = [overlay.draw(frame, width=width) for frame in some_frames(overlay.video, most)]
    # One palette for all frames: boxes keep their colours, and the picture does not flicker.
    colours = images[len(images) // 2].quantize(251, method=Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*(colours + [0] * 753)[:753], *WHITE, *RED, *GREEN, *YELLOW, *BLACK])
    shown = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    shown[0].save(path, save_all=True, append_images=shown[1:], duration=100, loop=0)


def some_frames(video: Video, most: int) -> list[int]:
    """At most so many of the frames that count, evenly spaced, the first and the last among them."""
    frames = np.unique(video.frames)
    places = np.linspace(0, len(frames) - 1, min(most, len(frames))).round().astype(int)
    return [int(frame) for frame in frames[places]]
