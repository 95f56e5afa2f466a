"""Generated images of three kinds of stripes, and a small network that is really trained on them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from otb.generated import write_sequences
from PIL import Image
from torch import nn

from pac_vision import find_images, read_image
from pac_vision.images import Images

KINDS = ("across", "down", "slanted")
NETWORK = """
from pathlib import Path
import numpy as np
import torch
from torch import nn
from pac_vision import Classifier

def build():
    return nn.Sequential(
        nn.Conv2d(3, 13, 5, 2, 1), nn.ReLU(), nn.Conv2d(13, 29, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(29, 3),
    )

def preprocess(image):
    pixels = np.asarray(image.resize((24, 24)), np.float32).transpose(2, 0, 1)
    return pixels / np.float32(255) - np.float32(0.5)

def stripes(device):
    network = build()
    network.load_state_dict(torch.load(Path(__file__).with_name("stripes.pth"), weights_only=True))
    return Classifier.of("stripes", network, preprocess, device=device)

def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 7, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 7))

class Three:
    classes, digest, preprocess = 3, "three", staticmethod(preprocess)
    def logits(self, batch):
        return batch.mean(axis=(2, 3))

class Four(Three):
    classes = 4

def draw_of(seed):
    return seed

def nothing():
    return object()

def vector():
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(0))
"""


def draw(kind: str, seed: int) -> Image.Image:
    """Stripes of one kind, with noise, of a size of their own."""
    drawn = np.random.default_rng(seed)
    height, width = drawn.integers(28, 44, 2)
    y, x = np.mgrid[:height, :width]
    along = {"across": y, "down": x, "slanted": x + y}[kind]
    bright = 128 + 60 * np.sin(along * drawn.uniform(0.9, 1.3) + drawn.uniform(0, 6))
    noisy = bright[..., None] + drawn.normal(0, 40, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def fill_folder(root: Path, count: int, seed: int) -> Path:
    """A folder per kind, with images in several formats."""
    for number, kind in enumerate(KINDS):
        (root / kind).mkdir(parents=True)
        for i in range(count):
            ending = ("png", "jpg", "JPEG")[i % 3]
            draw(kind, seed + 1000 * number + i).save(root / kind / f"{i:03}.{ending}")
    return root


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return find_images(fill_folder(tmp_path_factory.mktemp("images"), 20, seed=10**6))


@pytest.fixture(scope="session")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a module with factories, one of them of the trained network."""
    folder = tmp_path_factory.mktemp("networks")
    (folder / "stripe_networks.py").write_text(NETWORK)
    sys.path.insert(0, str(folder))
    import stripe_networks  # type: ignore[import-not-found]

    train = find_images(fill_folder(folder / "train", 40, seed=0))
    x = np.stack([stripe_networks.preprocess(read_image(f"{train.folder}/{name}")) for name in train.ids])
    torch.manual_seed(0)
    network = stripe_networks.build()
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    for _ in range(60):
        loss = nn.functional.cross_entropy(network(torch.from_numpy(x)), torch.from_numpy(train.labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(network.state_dict(), folder / "stripes.pth")
    yield "stripe_networks"
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six generated sequences in OTB's layout, two of them with two targets."""
    return write_sequences(tmp_path_factory.mktemp("videos"), 6, frames=20, targets=2)
