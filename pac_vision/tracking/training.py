"""Training a tracker by maximum likelihood, and tracking with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pac_core import InvalidInput
from pac_core.arrays import one_torch_thread
from pac_vision.images.decoding import read_image
from pac_vision.tracking.sequences import Floats, Video, box_sides, is_present
from pac_vision.tracking.sequences import Sequence as Frames
from pac_vision.tracking.tracker import (
    Backbone,
    Tracker,
    TrackerSettings,
    crop,
    fit_into_frame,
    grow_box,
    load_backbone,
    move_at_random,
    new_head,
    to_absolute,
    to_relative,
)

LOOKED_AT_ONCE = {"cpu": 16, "cuda": 256}
"""Crops; on a CPU more of them at once do not fit its caches."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs of adjacent frames, with a target that is present in both.

    before, now: paths of the frames, below the folder of all sequences
    sequence, frame, target: `[P]` the sequence's place, the number of the frame `now`, and the target's
    previous, current: `[P, 4]` the true boxes
    """

    before: tuple[str, ...]
    now: tuple[str, ...]
    sequence: NDArray[np.int64]
    frame: NDArray[np.int64]
    target: NDArray[np.int64]
    previous: Floats
    current: Floats

    def __len__(self) -> int:
        return len(self.now)


def find_pairs(sequences: Sequence[Frames]) -> Pairs:
    """Find all pairs of some sequences, target by target and frame by frame."""
    rows = []
    for number, sequence in enumerate(sequences):
        there = is_present(sequence.truth)
        for target, frame in np.argwhere(there[:, :-1] & there[:, 1:]):
            rows.append((number, frame + 1, target))
    where = np.array(rows, np.int64).reshape(-1, 3)
    before, now = (tuple(sequences[s].frames[f - back] for s, f, _ in where) for back in (1, 0))
    boxes = [[sequences[s].truth[t, f - back] for s, f, t in where] for back in (1, 0)]
    return Pairs(before, now, *where.T, *np.array(boxes, np.float64).reshape(2, -1, 4))


def compute_looks(
    backbone: Backbone, folder: str | os.PathLike[str], pairs: Pairs, settings: TrackerSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Features of the looks at P pairs, V at each, in half precision; random motions are drawn from the seed.

    They are kept, because the backbone is most of the work: `[P, C, h, w]` the target in the last frame,
    `[P, V, C, h, w]` this frame, seen from where the target seems to have been, and `[P, V, 4]` the true box
    relative to that place.
    """
    drawn = np.random.default_rng(settings.seed)
    count, views, motion = len(pairs), settings.views, {"shift": settings.shift, "stretch": settings.stretch}
    motions = [move_at_random(pairs.current, drawn, **motion) for _ in range(views)]
    seen = np.stack([pairs.previous, *motions[1:]], axis=1)
    before = torch.empty((count, *backbone.shape), dtype=torch.float16)
    now = torch.empty((count, views, *backbone.shape), dtype=torch.float16)
    read = frame_reader(folder)
    at_once = max(1, LOOKED_AT_ONCE.get(backbone.device.split(":")[0], 16) // (views + 1))
    for first in range(0, count, at_once):
        group = range(first, min(first + at_once, count))
        crops = []
        for i in group:
            parts = grow_box(np.stack([pairs.previous[i], *seen[i]]), settings.context)
            images = [read(pairs.before[i])] + views * [read(pairs.now[i])]
            crops += [crop(image, part, backbone.size) for image, part in zip(images, parts, strict=True)]
        found = backbone(np.stack(crops)).half().cpu().reshape(len(group), views + 1, *backbone.shape)
        before[first : group.stop], now[first : group.stop] = found[:, 0], found[:, 1:]
    boxes = to_relative(pairs.current[:, None].repeat(views, axis=1), seen)
    return before, now, torch.from_numpy(boxes).float()


def train_tracker(
    folder: str | os.PathLike[str],
    sequences: Sequence[Frames],
    settings: TrackerSettings | None = None,
    *,
    backbone: Backbone | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] | None = None,
) -> Tracker:
    """Train the head of a tracker on these sequences; the backbone stays as it is.

    folder: of the sequences
    backbone: in place of the one that the settings name
    progress: called with a line per epoch

    The same settings and sequences give the same tracker, bit for bit, on the same machine's CPU.
    """
    settings = settings or TrackerSettings()
    if backbone is not None:
        settings = replace(settings, backbone=backbone.name, size=backbone.size)
    backbone = backbone or load_backbone(settings.backbone, settings.size, device)
    pairs = find_pairs(sequences)
    if not len(pairs):
        raise InvalidInput(f"sequences must have a pair of frames to train on, got none in {len(sequences)}")
    targets, looks, boxes = compute_looks(backbone, folder, pairs, settings)
    tell = progress or (lambda line: None)
    tell(f"{len(pairs):,} pairs of {len(sequences)} sequences, {settings.views} looks at each")
    head = new_head(backbone, settings).to(device)
    steps = settings.epochs * -(-len(pairs) // settings.batch)
    optimizer = torch.optim.AdamW(head.parameters(), settings.rate, weight_decay=settings.decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    drawn = torch.Generator().manual_seed(settings.seed)
    with one_torch_thread():
        for epoch in range(1, settings.epochs + 1):
            total = 0.0
            # Every pair once per epoch, each time by another of its looks.
            views = torch.randint(settings.views, (len(pairs),), generator=drawn)
            for rows in torch.split(torch.randperm(len(pairs), generator=drawn), settings.batch):
                if len(rows) < 2 <= len(pairs):
                    continue  # a batch of one has no spread to normalise by
                before, now = targets[rows], looks[rows, views[rows]]
                truth = boxes[rows, views[rows]].to(device)
                mean, log_var = head(before.to(device).float(), now.to(device).float())
                loss = ((truth - mean) ** 2 * torch.exp(-log_var) + log_var).mean() / 2
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total += float(loss.detach()) * len(rows)
            tell(f"epoch {epoch}/{settings.epochs}  loss {total / len(pairs):.3f}")
    return Tracker(backbone, head.eval(), settings, tuple(sequence.name for sequence in sequences))


def frame_reader(folder: str | os.PathLike[str]) -> Callable[[str], Image.Image]:
    """A function that reads frames below a folder and keeps the last few, as each is looked at repeatedly."""
    return lru_cache(maxsize=4)(lambda name: read_image(Path(folder) / name))


AT_ONCE = 16
"""Pairs computed together: always the same ones of a sequence, so that sums are rounded the same."""


def track(tracker: Tracker, folder: str | os.PathLike[str], sequence: Frames, *, free: bool = False) -> Video:
    """Forecast the boxes of a sequence, beside the truth.

    folder: of all sequences; a frame that cannot be read is refused with its path
    free: run freely from the first true box, each look from where the tracker thinks the target was; else,
        as in the paper, each look is from the true box of the frame before

    A frame counts where the target is present (and was in the frame before, unless it runs freely).
    """
    return (_run_freely if free else _step_by_step)(tracker, frame_reader(folder), sequence)


def predict_no_motion(sequence: Frames) -> Video:
    """What one gets without looking: a box stays where it was, with a deviation of a twentieth of its side.

    The baseline for `track` from true boxes, which is easier than it seems: targets move little in a frame.
    """
    pairs = find_pairs([sequence])
    var = (box_sides(pairs.previous) / 20) ** 2
    return Video(sequence.name, pairs.frame, pairs.target, pairs.previous, var, pairs.current)


def _step_by_step(tracker: Tracker, read: Callable[[str], Image.Image], sequence: Frames) -> Video:
    pairs, size = find_pairs([sequence]), tracker.settings.size
    parts = grow_box(pairs.previous, tracker.settings.context)
    means, variances = np.empty((2, len(pairs), 4))
    for first in range(0, len(pairs), AT_ONCE):
        rows = range(first, min(first + AT_ONCE, len(pairs)))
        before = np.stack([crop(read(pairs.before[i]), parts[i], size) for i in rows])
        now = np.stack([crop(read(pairs.now[i]), parts[i], size) for i in rows])
        means[rows], variances[rows] = tracker(before, now)
    mean, var = to_absolute(means, variances, pairs.previous)
    return Video(sequence.name, pairs.frame, pairs.target, mean, var, pairs.current)


def _run_freely(tracker: Tracker, read: Callable[[str], Image.Image], sequence: Frames) -> Video:
    size, context = tracker.settings.size, tracker.settings.context
    places, boxes = [], []
    for target, truth in enumerate(sequence.truth):
        there = is_present(truth)
        start = int(there.argmax()) if there.any() else len(truth) - 1
        box = truth[start]
        for frame in range(start + 1, len(truth)):
            part, image = grow_box(box, context), read(sequence.frames[frame])
            looks = (crop(read(sequence.frames[frame - 1]), part, size), crop(image, part, size))
            mean, var = to_absolute(*tracker(*(look[None] for look in looks)), box)
            if there[frame]:
                places.append((frame, target))
                boxes.append((mean[0], var[0], truth[frame]))
            box = fit_into_frame(mean[0], image.size)
    frames, targets = np.array(places, np.int64).reshape(-1, 2).T
    return Video(sequence.name, frames, targets, *np.array(boxes).reshape(-1, 3, 4).transpose(1, 0, 2))
