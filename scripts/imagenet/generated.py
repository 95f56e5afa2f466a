"""Images of stripes at twelve angles, and two small networks that are really trained on such, for a try-out.

The models are named ``python:imagenet.generated:narrow`` and ``:wide``; each trains when first asked for.
"""

from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import nn

from pac_vision import Classifier

ANGLES = tuple(range(0, 180, 15))
SIDE = 20


def draw(angle, seed):
    """Stripes at an angle that is a little off, under noise of a strength of its own."""
    drawn = np.random.default_rng(seed)
    height, width = drawn.integers(24, 34, 2)
    y, x = np.mgrid[:height, :width]
    turn = np.deg2rad(angle + drawn.normal(0, 4))
    along = x * np.sin(turn) + y * np.cos(turn)
    bright = 128 + 70 * np.sin(along * drawn.uniform(1.0, 1.4) + drawn.uniform(0, 6))
    noisy = bright[..., None] + drawn.normal(0, drawn.uniform(10, 160), (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def fill_folder(root, count):
    """A folder per class, each with `count` images."""
    for label, angle in enumerate(ANGLES):
        (root / f"{label:02}").mkdir(parents=True, exist_ok=True)
        for i in range(count):
            draw(angle, 10**6 + 10**4 * label + i).save(root / f"{label:02}" / f"{label:02}_{i:04}.png")
    return root


def preprocess(image):
    pixels = np.asarray(image.resize((SIDE, SIDE)), np.float32).transpose(2, 0, 1)
    return pixels / np.float32(255) - np.float32(0.5)


@cache
def train(width):
    """The network, trained on images that nobody else draws; the same bits every time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, width, 5, 2), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, len(ANGLES)),
    )  # fmt: skip
    drawn = [preprocess(draw(angle, 10**4 * k + i)) for k, angle in enumerate(ANGLES) for i in range(60)]
    x, y = torch.from_numpy(np.stack(drawn)), torch.arange(len(ANGLES)).repeat_interleave(60)
    steps = torch.optim.SGD(network.parameters(), 0.2, momentum=0.9)
    for _ in range(80):
        steps.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        steps.step()
    torch.set_num_threads(before)
    return network


def narrow(device):
    return Classifier.of("narrow", train(8), preprocess, device=device)


def wide(device):
    return Classifier.of("wide", train(16), preprocess, device=device)
