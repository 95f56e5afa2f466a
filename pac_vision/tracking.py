"""Following the targets of a sequence with a trained tracker."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_vision.crops import absolute, crop, inside, region
from pac_vision.sequences import Sequence
from pac_vision.tracker_training import find_pairs, frame_reader
from pac_vision.trackers import Tracker
from pac_vision.videos import Video, box_sides

AT_ONCE = 16
"""Pairs computed together: always the same ones of a sequence, so that sums are rounded the same."""


def track(
    tracker: Tracker, folder: str | os.PathLike[str], sequence: Sequence, *, free: bool = False
) -> Video:
    """The forecast boxes of a sequence, beside the truth.

    folder: of all sequences; a frame that cannot be read is refused with its path
    free: run freely from the first true box, each look from where the tracker thinks the target was; else,
        as in the paper, each look is from the true box of the frame before

    A frame counts where the target is present (and was in the frame before, unless it runs freely).
    """
    rows = _run_freely(tracker, folder, sequence) if free else _step_by_step(tracker, folder, sequence)
    frames, targets, mean, var, truth = rows
    return Video(sequence.name, frames, targets, mean, var, truth)


def stay(sequence: Sequence) -> Video:
    """What one gets without looking: a box stays where it was, with a deviation of a twentieth of its side.

    The baseline for `track` from true boxes, which is easier than it seems: targets move little in a frame.
    """
    pairs = find_pairs([sequence])
    var = (box_sides(pairs.previous) / 20) ** 2
    return Video(sequence.name, pairs.frame, pairs.target, pairs.previous, var, pairs.current)


def _step_by_step(
    tracker: Tracker, folder: str | os.PathLike[str], sequence: Sequence
) -> tuple[NDArray[Any], ...]:
    pairs, read, size = find_pairs([sequence]), frame_reader(folder), tracker.settings.size
    parts = region(pairs.previous, tracker.settings.context)
    means, variances = np.empty((2, len(pairs), 4))
    for first in range(0, len(pairs), AT_ONCE):
        rows = slice(first, min(first + AT_ONCE, len(pairs)))
        before, now = (
            np.stack([crop(read(names[i]), parts[i], size) for i in range(rows.start, rows.stop)])
            for names in (pairs.before, pairs.now)
        )
        means[rows], variances[rows] = tracker(before, now)
    mean, var = absolute(means, variances, pairs.previous)
    return pairs.frame, pairs.target, mean, var, pairs.current


def _run_freely(
    tracker: Tracker, folder: str | os.PathLike[str], sequence: Sequence
) -> tuple[NDArray[Any], ...]:
    read, size, context = frame_reader(folder), tracker.settings.size, tracker.settings.context
    rows = []
    for target, truth in enumerate(sequence.truth):
        there = ~np.isnan(truth).any(axis=1)
        start = int(there.argmax()) if there.any() else len(truth) - 1
        box = truth[start]
        for frame in range(start + 1, len(truth)):
            part, image = region(box, context), read(sequence.frames[frame])
            looks = (crop(read(sequence.frames[frame - 1]), part, size), crop(image, part, size))
            mean, var = absolute(*tracker(*(look[None] for look in looks)), box)
            if there[frame]:
                rows.append((frame, target, mean[0], var[0], truth[frame]))
            box = inside(mean[0], image.size)
    columns = (
        zip(*rows, strict=True) if rows else ((), (), np.empty((0, 4)), np.empty((0, 4)), np.empty((0, 4)))
    )
    return tuple(np.array(column) for column in columns)
