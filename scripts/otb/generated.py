"""Sequences in OTB's layout (a bright rectangle wanders over texture) and stored tracks, for a try-out."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_sequences(folder, count, *, frames=20, targets=1, size=(96, 72), seed=0):
    """Writes sequences below a folder, by the seed and their numbers; every third has so many targets."""
    root = Path(folder)
    for number in range(count):
        drawn = np.random.default_rng([seed, number])
        home = root / f"Video{number:03}"
        (home / "img").mkdir(parents=True, exist_ok=True)
        many = targets if number % 3 == 2 else 1
        paths = [_wander(drawn, frames, size) for _ in range(many)]
        texture = drawn.normal(90, 25, (size[1], size[0], 3))
        for frame in range(frames):
            pixels = texture + drawn.normal(0, 4, texture.shape)
            for target, boxes in enumerate(paths):
                x, y, width, height = boxes[frame].round().astype(int)
                pixels[y : y + height, x : x + width] = (230, 200 - 90 * target, 60 + 90 * target)
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(home / "img" / f"{frame + 1:04}.jpg", quality=92)
        for target, boxes in enumerate(paths):
            name = "groundtruth_rect.txt" if many == 1 else f"groundtruth_rect.{target + 1}.txt"
            separator = (",", "\t", " ")[number % 3]
            lines = [separator.join(str(round(value)) for value in box) for box in boxes]
            (home / name).write_text("\n".join(lines) + "\n")
    return root


def _wander(drawn, frames, size):
    """`[frames, 4]` x, y, width, height of a rectangle that moves, turns back at the edges, and breathes."""
    limits = np.array(size, np.float64)
    sides = drawn.uniform(14, 26, 2)
    place = drawn.uniform(2, limits - sides - 2)
    pace = drawn.normal(0, drawn.uniform(0.5, 3), 2)
    boxes = np.empty((frames, 4))
    for frame in range(frames):
        boxes[frame] = *place, *sides
        sides = (sides * (1 + drawn.normal(0, 0.01, 2))).clip(12, 30)
        pace = np.where((place + pace < 1) | (place + pace > limits - sides - 1), -pace, pace)
        place = (place + pace + drawn.normal(0, 0.3, 2)).clip(1, limits - sides - 1)
    return boxes


def write_tracks(path, videos=82):
    """Stored tracks of an ensemble that is sure of itself, and wrong by another amount in every video."""
    drawn, lengths = np.random.default_rng(0), np.where(np.arange(videos) < 4, 40, 100)
    corner = drawn.uniform(5, 50, (videos, 2)).repeat(lengths, axis=0)
    truth = np.concatenate([corner, np.full_like(corner, 20.0)], axis=1)
    wrong = drawn.gamma(1.0, 2.0, videos).repeat(lengths)[:, None, None]
    noise = drawn.normal(size=(len(truth), 1, 4)), drawn.normal(0, 2, (len(truth), 5, 4))
    names = np.array([f"Video{i:03}" for i in range(videos)])
    members = truth[:, None] + wrong * noise[0] + noise[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, sequence=names, length=lengths, truth=truth, members=members)
    return path
