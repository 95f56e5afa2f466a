"""A tracker by regression: from two looks, at the last frame and at this one, to a Gaussian of the box."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from pac_core import InvalidInput, UnreadableFile
from pac_core.bounds import whole
from pac_core.files import whole_file
from pac_vision.backbones import Backbone, load_backbone
from pac_vision.classifiers import one_thread, weights_digest

FORMAT = "pac-sets tracker 1"
LEAST_LOG_VAR, MOST_LOG_VAR = -10.0, 2.0
"""Of a box's sides relative to the last box: deviations from under a hundredth to almost three sides."""


@dataclass(frozen=True)
class TrackerSettings:
    """How a tracker is built and trained."""

    backbone: str = "efficientnet-lite0"
    """see `load_backbone`"""
    size: int = 128
    """of the crops, in pixels"""
    context: float = 2.0
    """how many times as wide and high as the last box the look is"""
    channels: int = 32
    """to which the features of each place are reduced"""
    hidden: int = 256
    views: int = 6
    """looks at each pair of frames: the true motion, then random ones; drawn once, and their features kept"""
    shift: float = 0.1
    """mean step of a random motion, in sides of the box"""
    stretch: float = 0.05
    """mean change of width and height of a random motion"""
    epochs: int = 12
    batch: int = 64
    rate: float = 1e-3
    """step size of Adam at the start; it falls to 0 over the epochs"""
    decay: float = 1e-2
    """weight decay"""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("size", "channels", "hidden", "views", "epochs", "batch"):
            whole(name, getattr(self, name), least=1)
        whole("seed", self.seed, least=0)
        for name in ("context", "shift", "stretch", "rate", "decay"):
            value, least = getattr(self, name), int(name == "context")
            if not least <= value < np.inf:
                raise InvalidInput(f"{name} must be a finite number of at least {least}, got {value!r}")


class BoxHead(nn.Module):
    """From the features of both looks `[B, C, h, w]` to means and log variances `[B, 4]`.

    Relative to the last box; untrained it says that the box stays where it was.
    """

    def __init__(self, shape: tuple[int, int, int], settings: TrackerSettings) -> None:
        super().__init__()
        features, height, width = shape
        few = settings.channels
        self.reduce = nn.Sequential(nn.BatchNorm2d(features), nn.Conv2d(features, few, 1), nn.ReLU())
        self.compare = nn.Sequential(nn.Conv2d(2 * few, 2 * few, 3, padding=1), nn.ReLU(), nn.Flatten())
        self.decide = nn.Sequential(nn.Linear(2 * few * height * width, settings.hidden), nn.ReLU())
        self.last = nn.Linear(settings.hidden, 8)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, before: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([self.reduce(before), self.reduce(now)], dim=1)
        change, spread = self.last(self.decide(self.compare(both))).chunk(2, dim=1)
        still = torch.tensor([-0.5, -0.5, 0.5, 0.5], device=change.device)
        middle = (MOST_LOG_VAR + LEAST_LOG_VAR) / 2
        return still + change, middle + (MOST_LOG_VAR - middle) * torch.tanh(spread / 4)


@dataclass(frozen=True, eq=False)
class Tracker:
    """A trained tracker.

    trained_on: names of the sequences it has seen; a promise about them would be none
    """

    backbone: Backbone
    head: BoxHead
    settings: TrackerSettings
    trained_on: tuple[str, ...] = ()

    def __call__(
        self, before: NDArray[np.uint8], now: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means and variances `[B, 4]` relative to the last box, from crops `[B, size, size, 3]`."""
        with torch.inference_mode(), one_thread():
            mean, log_var = self.head(self.backbone(before), self.backbone(now))
        if not bool(torch.isfinite(mean + log_var).all()):
            raise InvalidInput("the tracker must give finite numbers, got others: its training went astray")
        return mean.double().cpu().numpy(), log_var.double().exp().cpu().numpy()

    @property
    def digest(self) -> str:
        """A fingerprint of backbone and head."""
        return weights_digest(nn.ModuleList([self.backbone.module, self.head]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the head, its settings and the backbone's fingerprint to a safetensors file."""
        about = {"settings": asdict(self.settings), "backbone": self.backbone.digest}
        about |= {"trained_on": list(self.trained_on)}
        tensors = {name: t.detach().cpu().clone().contiguous() for name, t in self.head.state_dict().items()}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with whole_file(Path(path)) as part:
            part.write_bytes(save(tensors, {"format": FORMAT, "about": json.dumps(about, sort_keys=True)}))

    def to(self, device: str) -> Tracker:
        """Move it to another device."""
        return replace(self, backbone=self.backbone.to(device), head=self.head.to(device))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, backbone: Backbone | None = None, device: str = "cpu"
    ) -> Tracker:
        """Read the tracker that `save` wrote; never unpickled.

        backbone: where it cannot be loaded by its name; it must be the one that was trained with
        """
        try:
            with safe_open(path, "pt", device="cpu") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UnreadableFile(f"{path} cannot be read as safetensors: {error}") from None
        if header.get("format") != FORMAT:
            raise UnreadableFile(f"{path} is no tracker of ours: its format is {header.get('format')!r}")
        try:
            about = json.loads(header["about"])
            settings = TrackerSettings(**about["settings"])
            named = backbone or load_backbone(settings.backbone, settings.size, device)
            if named.digest != about["backbone"]:
                raise InvalidInput(f"the backbone {named.name} has other weights than the one trained with")
            head = new_head(named, settings)
            head.load_state_dict(tensors)
            return cls(named, head.to(device).eval(), settings, tuple(map(str, about["trained_on"])))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UnreadableFile(f"{path}: the tracker's parts do not fit together: {error}") from None

    def __str__(self) -> str:
        return f"tracker on {self.settings.backbone}, trained on {len(self.trained_on)} sequences"


def new_head(backbone: Backbone, settings: TrackerSettings) -> BoxHead:
    """Draw the weights of an untrained head from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return BoxHead(backbone.shape, settings)
