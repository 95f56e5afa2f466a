"""Video sequences in the layout of the object tracking benchmark (OTB): frames and true boxes."""

from __future__ import annotations

import math
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import UnreadableFile

TRUTH = re.compile(r"groundtruth_rect(?:\.(\d+))?\.txt")

ANNOTATED = {
    ("David", 770, 471): 299,
    ("Diving", 231, 215): 0,
    ("Football1", 81, 74): 0,
    ("Freeman3", 474, 460): 0,
    ("Freeman4", 297, 283): 0,
}
"""OTB's five sequences with more frames than boxes: (name, frames, boxes) -> frames before the first box."""


@dataclass(frozen=True, eq=False)
class Sequence:
    """A video; it is one unit, with all its targets.

    name: of its folder
    frames: F paths of its frames, below the folder of all sequences
    truth: `[targets, F, 4]` true boxes (xmin, ymin, xmax, ymax); NaN where the target is absent
    """

    name: str
    frames: tuple[str, ...]
    truth: NDArray[np.float64]


def find_sequences(folder: str | os.PathLike[str]) -> tuple[Sequence, ...]:
    """Find the sequences of a folder, sorted by name.

    folder: one folder per sequence, with the frames ``img/*.jpg`` and the boxes ``groundtruth_rect.txt``, or
        ``groundtruth_rect.1.txt``, ``groundtruth_rect.2.txt`` for several targets; a line per frame
        holds x, y, width and height, separated by commas, tabs or blanks

    An empty file of one of several targets is left out with a warning: OTB's Human4 has one.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UnreadableFile(f"there is no folder {root}")
    names = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise UnreadableFile(f"{root} holds no folders of sequences")
    return tuple(_read_sequence(root, name) for name in names)


def read_boxes(path: str | os.PathLike[str]) -> NDArray[np.float64]:
    """Read `[F, 4]` boxes (xmin, ymin, xmax, ymax) from a text with a line per frame; NaN where absent."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"{path} cannot be read as boxes: {error}") from None
    if not lines:
        raise UnreadableFile(f"{path} holds no boxes")
    return true_corners(np.array([_box(f"{path} line {i}", line) for i, line in enumerate(lines, start=1)]))


def _box(where: str, line: str) -> list[float]:
    try:
        box = [float(text) for text in re.split(r"\s*,\s*|\s+", line.strip())]
    except ValueError:
        box = []
    if len(box) != 4 or any(map(math.isinf, box)):
        raise UnreadableFile(f"{where} must be x, y, width, height, got {line.strip()!r}")
    if box[2] < 0 or box[3] < 0:
        raise UnreadableFile(f"{where} must have a width and height of at least 0, got {line.strip()!r}")
    return box


def corners(boxes: NDArray[Any]) -> NDArray[np.float64]:
    """Boxes `[..., 4]` (x, y, width, height) as (xmin, ymin, xmax, ymax), in float64.

    >>> corners(np.array([[2.0, 3.0, 10.0, 20.0]])).tolist()
    [[2.0, 3.0, 12.0, 23.0]]
    """
    wide = np.asarray(boxes, np.float64)
    return np.concatenate([wide[..., :2], wide[..., :2] + wide[..., 2:]], axis=-1)


def true_corners(boxes: NDArray[Any]) -> NDArray[np.float64]:
    """The `corners` of true boxes `[F, 4]`; NaN where a target is absent: a NaN, or no width or height."""
    absent = np.isnan(boxes).any(axis=1) | (boxes[:, 2:] == 0).any(axis=1)
    return np.where(absent[:, None], np.nan, corners(boxes))


def is_present(truth: NDArray[np.float64]) -> NDArray[np.bool_]:
    """`[...]` whether a target is there, from its true boxes `[..., 4]`."""
    return np.asarray(~np.isnan(truth).any(axis=-1))


def _read_sequence(root: Path, name: str) -> Sequence:
    images = root / name / "img"
    frames = sorted(path.name for path in images.glob("*.jpg") if not path.name.startswith("."))
    if not frames:
        raise UnreadableFile(f"{images} holds no frames (*.jpg)")
    numbers = {path: match[1] for path in (root / name).iterdir() if (match := TRUTH.fullmatch(path.name))}
    if not numbers:
        raise UnreadableFile(f"{root / name} holds no true boxes (groundtruth_rect.txt)")
    if len(numbers) > 1 and None in numbers.values():
        raise UnreadableFile(
            f"{root / name} must have groundtruth_rect.txt or numbered files of several targets, got both"
        )
    files = sorted(numbers, key=lambda path: int(numbers[path] or 0))
    empty = [path for path in files if not path.read_bytes().strip()]
    if empty and len(empty) < len(files):
        listed = ", ".join(path.name for path in empty)
        warnings.warn(f"{root / name}: left out {listed}, which holds no boxes", stacklevel=4)
        files = [path for path in files if path not in empty]
    targets = [read_boxes(path) for path in files]
    start = ANNOTATED.get((name, len(frames), len(targets[0])))
    if start is not None:
        frames = frames[start : start + len(targets[0])]
    for file, boxes in zip(files, targets, strict=True):
        if len(boxes) != len(frames):
            raise UnreadableFile(
                f"{file} must have a box per frame, got {len(boxes):,} for {len(frames):,} frames"
            )
    return Sequence(name, tuple(f"{name}/img/{frame}" for frame in frames), np.stack(targets))
