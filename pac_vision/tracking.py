"""Following the targets of a sequence with a trained tracker."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from PIL import Image

from pac_vision.crops import absolute, crop, inside, region
from pac_vision.sequences import Sequence, is_present
from pac_vision.tracker_training import find_pairs, frame_reader
from pac_vision.trackers import Tracker
from pac_vision.videos import Video, box_sides

AT_ONCE = 16
"""Pairs computed together: always the same ones of a sequence, so that sums are rounded the same."""


def track(
    tracker: Tracker, folder: str | os.PathLike[str], sequence: Sequence, *, free: bool = False
) -> Video:
    """Forecast the boxes of a sequence, beside the truth.

    folder: of all sequences; a frame that cannot be read is refused with its path
    free: run freely from the first true box, each look from where the tracker thinks the target was; else,
        as in the paper, each look is from the true box of the frame before

    A frame counts where the target is present (and was in the frame before, unless it runs freely).
    """
    return (_run_freely if free else _step_by_step)(tracker, frame_reader(folder), sequence)


def stay(sequence: Sequence) -> Video:
    """What one gets without looking: a box stays where it was, with a deviation of a twentieth of its side.

    The baseline for `track` from true boxes, which is easier than it seems: targets move little in a frame.
    """
    pairs = find_pairs([sequence])
    var = (box_sides(pairs.previous) / 20) ** 2
    return Video(sequence.name, pairs.frame, pairs.target, pairs.previous, var, pairs.current)


def _step_by_step(tracker: Tracker, read: Callable[[str], Image.Image], sequence: Sequence) -> Video:
    pairs, size = find_pairs([sequence]), tracker.settings.size
    parts = region(pairs.previous, tracker.settings.context)
    means, variances = np.empty((2, len(pairs), 4))
    for first in range(0, len(pairs), AT_ONCE):
        rows = range(first, min(first + AT_ONCE, len(pairs)))
        looks = (
            np.stack([crop(read(names[i]), parts[i], size) for i in rows])
            for names in (pairs.before, pairs.now)
        )
        means[rows], variances[rows] = tracker(*looks)
    mean, var = absolute(means, variances, pairs.previous)
    return Video(sequence.name, pairs.frame, pairs.target, mean, var, pairs.current)


def _run_freely(tracker: Tracker, read: Callable[[str], Image.Image], sequence: Sequence) -> Video:
    size, context = tracker.settings.size, tracker.settings.context
    places, boxes = [], []
    for target, truth in enumerate(sequence.truth):
        there = is_present(truth)
        start = int(there.argmax()) if there.any() else len(truth) - 1
        box = truth[start]
        for frame in range(start + 1, len(truth)):
            part, image = region(box, context), read(sequence.frames[frame])
            looks = (crop(read(sequence.frames[frame - 1]), part, size), crop(image, part, size))
            mean, var = absolute(*tracker(*(look[None] for look in looks)), box)
            if there[frame]:
                places.append((frame, target))
                boxes.append((mean[0], var[0], truth[frame]))
            box = inside(mean[0], image.size)
    frames, targets = np.array(places, np.int64).reshape(-1, 2).T
    return Video(sequence.name, frames, targets, *np.array(boxes).reshape(-1, 3, 4).transpose(1, 0, 2))
