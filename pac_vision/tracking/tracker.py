"""The paper's kind of tracker: what it sees of a frame, its backbone, its forecast of the next box."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from pac_core import InvalidInput
from pac_core.arrays import one_torch_thread
from pac_core.bounds import check_integer
from pac_core.errors import UnreadableFile
from pac_core.files import whole_file
from pac_vision.images.decoding import first_line
from pac_vision.images.preprocessing import Preprocessing, efficientnet_lite, imagenet
from pac_vision.models.classifier import digest_weights
from pac_vision.models.libraries import SIZES, call_factory, efficientnet_module
from pac_vision.tracking.sequences import Floats

LEAST = 4.0
"""The least width and height of a box to look at, in pixels."""


def grow_box(box: Any, context: float) -> Floats:
    """Boxes `[..., 4]` grown to `context` times their width and height, with the same centres.

    >>> grow_box([10.0, 20, 30, 60], 2.0).tolist()
    [0.0, 0.0, 40.0, 80.0]
    """
    centre, sides = _centre_and_sides(box)
    return np.concatenate([centre - context * sides / 2, centre + context * sides / 2], axis=-1)


def crop(image: Image.Image, box: Floats, size: int) -> NDArray[np.uint8]:
    """Cut the part of an image within a box, `[size, size, 3]`; black beyond the image's edges."""
    left, top = np.floor(box[:2]).astype(int).tolist()
    right, bottom = np.ceil(box[2:]).astype(int).tolist()
    inner = (box - (left, top, left, top)).tolist()
    cut = image.crop((left, top, right, bottom))
    return np.array(cut.resize((size, size), Image.Resampling.BILINEAR, box=tuple(inner)))


def to_relative(box: Any, previous: Any) -> Floats:
    """`[..., 4]` a box in the measure of another: (-1/2, -1/2, 1/2, 1/2) if it is the same.

    >>> to_relative([10.0, 20, 30, 60], [10.0, 20, 30, 60]).tolist()
    [-0.5, -0.5, 0.5, 0.5]
    """
    centre, sides = _centre_and_sides(previous)
    return (np.asarray(box, np.float64) - np.tile(centre, 2)) / np.tile(sides, 2)


def to_absolute(mean: Any, var: Any, previous: Any) -> tuple[Floats, Floats]:
    """Means and variances `[..., 4]` in pixels, of a box that was forecast relative to another."""
    centre, sides = _centre_and_sides(previous)
    both = np.tile(sides, 2)
    return np.asarray(mean, np.float64) * both + np.tile(centre, 2), np.asarray(var, np.float64) * both**2


def move_at_random(boxes: Floats, drawn: np.random.Generator, *, shift: float, stretch: float) -> Floats:
    """Move boxes `[N, 4]` at random: many small steps and a few large ones.

    shift: mean step of the centre, in widths and heights of the box; at most a half
    stretch: mean change of width and height; at most two fifths
    """
    centre, sides = _centre_and_sides(boxes)
    steps = drawn.laplace(0, shift, centre.shape).clip(-0.5, 0.5)
    scales = 1 + drawn.laplace(0, stretch, sides.shape).clip(-0.4, 0.4)
    centre, sides = centre + steps * sides, sides * scales
    return np.concatenate([centre - sides / 2, centre + sides / 2], axis=-1)


def fit_into_frame(box: Floats, size: tuple[int, int]) -> Floats:
    """Fit a forecast box `[4]` into the frame: its centre within it, and no larger than it.

    >>> fit_into_frame(np.array([90.0, 50, 130, 40]), (100, 80)).tolist()
    [80.0, 43.0, 120.0, 47.0]
    """
    limits = np.array(size, np.float64)
    centre, sides = _centre_and_sides(box)
    centre, sides = centre.clip(0, limits), np.minimum(sides, limits)
    return np.concatenate([centre - sides / 2, centre + sides / 2])


def _centre_and_sides(box: Any) -> tuple[Floats, Floats]:
    corners = np.asarray(box, np.float64)
    low, high = corners[..., :2], corners[..., 2:]
    return (low + high) / 2, np.maximum(high - low, LEAST)


STRIDE = 16
"""Pixels of a crop per place of an EfficientNet's feature map: deeper, and it no longer tells where."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """A network that turns crops into feature maps.

    name: what it was loaded by
    module: float32 `[B, 3, size, size]` -> `[B, C, h, w]`, in evaluation mode
    size: of the crops, in pixels
    shape: (C, h, w)
    digest: a fingerprint of its weights
    normalise: pixels 0 to 255 `[B, 3, size, size]` -> what the module was trained on
    """

    name: str
    module: nn.Module
    size: int
    shape: tuple[int, int, int]
    digest: str
    normalise: Callable[[Tensor], Tensor]
    device: str = "cpu"

    @classmethod
    def of(
        cls,
        name: str,
        module: nn.Module,
        size: int,
        normalise: Callable[[Tensor], Tensor] | None = None,
        *,
        device: str = "cpu",
    ) -> Backbone:
        """Any torch module `[B, 3, size, size]` -> `[B, C, h, w]` or `[B, C]`.

        normalise: by default the channels get the mean 0 and deviation 1 of ImageNet

        >>> pooled = Backbone.of("pool", nn.AvgPool2d(8), 32)
        >>> pooled.shape, pooled(np.zeros((2, 32, 32, 3), np.uint8)).shape
        ((3, 4, 4), torch.Size([2, 3, 4, 4]))
        """
        module = module.to(device).eval()
        module.requires_grad_(False)
        normalise = normalise or partial(_normalise, imagenet())
        found = cls(name, module, size, (1, 1, 1), digest_weights(module), normalise, device)
        try:
            _, features, height, width = found(np.zeros((1, size, size, 3), np.uint8)).shape
        except Exception as error:  # whatever a network raises at a shape that is not its own
            rule = f"the backbone {name} must take crops [B, 3, {size}, {size}]"
            raise InvalidInput(f"{rule}, but it failed: {first_line(error)}") from None
        return replace(found, shape=(features, height, width))

    def __call__(self, crops: NDArray[np.uint8]) -> Tensor:
        """`[B, C, h, w]` the features of crops `[B, size, size, 3]`."""
        with torch.inference_mode(), one_torch_thread():
            pixels = torch.from_numpy(np.ascontiguousarray(crops)).to(self.device)
            found: Tensor = self.module(self.normalise(pixels.permute(0, 3, 1, 2).float()))
            if found.ndim == 2:
                found = found[:, :, None, None]
            if found.ndim != 4 or not bool(torch.isfinite(found).all()):
                raise InvalidInput(f"the backbone {self.name} must give finite features [B, C, h, w]")
            return found

    def to(self, device: str) -> Backbone:
        """Move it to another device."""
        return replace(self, module=self.module.to(device), device=device)


def load_backbone(name: str, size: int, device: str = "cpu") -> Backbone:
    """Load a backbone for crops of `size` pixels.

    name: ``efficientnet-lite0``, ``-lite1`` or ``-lite2`` with ImageNet weights, up to the last feature map
        with a place for every 16 pixels; ``pixels``: the crop itself, 16 x 16, which needs no weights; or
        ``python:MODULE:FACTORY``: your function, called without
        arguments, that returns a torch module `[B, 3, size, size]` -> `[B, C, h, w]` or a `Backbone`
    """
    if name in SIZES or name == "pixels":
        module = _Features(efficientnet_module(name), size) if name in SIZES else nn.AdaptiveAvgPool2d(16)
        return Backbone.of(name, module, size, partial(_normalise, efficientnet_lite(size)), device=device)
    if not name.startswith("python:"):
        forms = [*SIZES, "pixels", "python:MODULE:FACTORY"]
        raise InvalidInput(f"a backbone must be named as one of {', '.join(forms)}, got {name!r}")
    made = call_factory(name, name.removeprefix("python:"), device)
    if isinstance(made, Backbone):
        return made
    if not isinstance(made, nn.Module):
        raise InvalidInput(f"{name} must return a torch module or a Backbone, got {type(made).__name__}")
    return Backbone.of(name, made, size, device=device)


class _Features(nn.Module):
    """The first blocks of an EfficientNet."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(network._conv_stem, network._bn0, network._swish)  # type: ignore[arg-type]
        self.blocks = nn.ModuleList()
        with torch.inference_mode():
            x = self.stem.eval()(torch.zeros(1, 3, size, size))
            for block in network._blocks:  # type: ignore[union-attr]
                x = block.eval()(x)
                if x.shape[-1] * STRIDE < size:
                    break
                self.blocks.append(block)

    def forward(self, crops: Tensor) -> Tensor:
        x: Tensor = self.stem(crops)
        for block in self.blocks:
            x = block(x)
        return x


def _normalise(like: Preprocessing, pixels: Tensor) -> Tensor:
    both = torch.tensor([like.mean, like.deviation], device=pixels.device)
    mean, deviation = both[..., None, None].unbind()
    return (pixels / (255 / like.range) - mean) / deviation


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
            check_integer(name, getattr(self, name), least=1)
        check_integer("seed", self.seed, least=0)
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

    def __call__(self, before: NDArray[np.uint8], now: NDArray[np.uint8]) -> tuple[Floats, Floats]:
        """Means and variances `[B, 4]` relative to the last box, from crops `[B, size, size, 3]`."""
        with torch.inference_mode(), one_torch_thread():
            mean, log_var = self.head(self.backbone(before), self.backbone(now))
        if not bool(torch.isfinite(mean + log_var).all()):
            raise InvalidInput("the tracker must give finite numbers, got others: its training went astray")
        return mean.double().cpu().numpy(), log_var.double().exp().cpu().numpy()

    @property
    def digest(self) -> str:
        """A fingerprint of backbone and head."""
        return digest_weights(nn.ModuleList([self.backbone.module, self.head]))

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
