"""The paper's kind of tracker: a regressor from looks at two frames to the next box, trained on videos."""

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from pac_core import InvalidInput
from pac_core.arrays import one_torch_thread
from pac_core.errors import UnreadableFile
from pac_vision import efficientnet_lite, read_image
from pac_vision.models.classifier import digest_weights
from pac_vision.models.libraries import SIZES, efficientnet_module
from pac_vision.tracking import Floats, Video, box_sides, is_present

COMMAND = "PYTHONPATH=scripts pac run otb --sequences {} --tracker python:otb.regressor:load:{} --calibrate N"
LEAST = 4.0
"""The least width and height of a box to look at, in pixels."""
STRIDE = 16
"""Pixels of a crop per place of an EfficientNet's feature map: deeper, and it no longer tells where."""
LEAST_LOG_VAR, MOST_LOG_VAR = -10.0, 2.0
"""Of a box's sides relative to the last box: deviations from under a hundredth to almost three sides."""
AT_ONCE = 16
"""Pairs computed together: always the same ones of a sequence, so that sums are rounded the same."""
LOOKED_AT_ONCE = {"cpu": 16, "cuda": 256}
"""Crops; on a CPU more of them at once do not fit its caches."""


def grow_box(box, context):
    """Boxes `[..., 4]` grown to `context` times their width and height, with the same centres."""
    centre, sides = _centre_and_sides(box)
    return np.concatenate([centre - context * sides / 2, centre + context * sides / 2], axis=-1)


def crop(image, box, size):
    """The part of an image within a box, `[size, size, 3]`; black beyond the image's edges."""
    left, top = np.floor(box[:2]).astype(int).tolist()
    right, bottom = np.ceil(box[2:]).astype(int).tolist()
    inner = (box - (left, top, left, top)).tolist()
    cut = image.crop((left, top, right, bottom))
    return np.array(cut.resize((size, size), Image.Resampling.BILINEAR, box=tuple(inner)))


def to_relative(box, previous):
    """`[..., 4]` a box in the measure of another: (-1/2, -1/2, 1/2, 1/2) if it is the same."""
    centre, sides = _centre_and_sides(previous)
    return (np.asarray(box, np.float64) - np.tile(centre, 2)) / np.tile(sides, 2)


def to_absolute(mean, var, previous):
    """Means and variances `[..., 4]` in pixels, of a box that was forecast relative to another."""
    centre, sides = _centre_and_sides(previous)
    both = np.tile(sides, 2)
    return np.asarray(mean, np.float64) * both + np.tile(centre, 2), np.asarray(var, np.float64) * both**2


def move_at_random(boxes, drawn, *, shift, stretch):
    """Boxes `[N, 4]` moved at random: many small steps and a few large ones.

    shift: mean step of the centre, in widths and heights of the box; at most a half
    stretch: mean change of width and height; at most two fifths
    """
    centre, sides = _centre_and_sides(boxes)
    steps = drawn.laplace(0, shift, centre.shape).clip(-0.5, 0.5)
    scales = 1 + drawn.laplace(0, stretch, sides.shape).clip(-0.4, 0.4)
    centre, sides = centre + steps * sides, sides * scales
    return np.concatenate([centre - sides / 2, centre + sides / 2], axis=-1)


def fit_into_frame(box, size):
    """A forecast box `[4]` with its centre within the frame, and no larger than it."""
    limits = np.array(size, np.float64)
    centre, sides = _centre_and_sides(box)
    centre, sides = centre.clip(0, limits), np.minimum(sides, limits)
    return np.concatenate([centre - sides / 2, centre + sides / 2])


def _centre_and_sides(box):
    corners = np.asarray(box, np.float64)
    low, high = corners[..., :2], corners[..., 2:]
    return (low + high) / 2, np.maximum(high - low, LEAST)


@dataclass(frozen=True)
class Settings:
    """How a tracker is built and trained."""

    backbone: str = "efficientnet-lite0"
    size: int = 128  # of the crops, in pixels
    context: float = 2.0  # how many times as wide and high as the last box the look is
    channels: int = 32  # to which the features of each place are reduced
    hidden: int = 256
    views: int = 6  # looks at each pair of frames: the true motion, then random ones; their features are kept
    shift: float = 0.1  # mean step of a random motion, in sides of the box
    stretch: float = 0.05  # mean change of width and height of a random motion
    epochs: int = 12
    batch: int = 64
    rate: float = 1e-3  # step size of Adam at the start; it falls to 0 over the epochs
    decay: float = 1e-2  # weight decay
    seed: int = 0


class Backbone(nn.Module):
    """Crops `[B, size, size, 3]` to feature maps `[B, C, h, w]`; it is not trained.

    name: an EfficientNet-Lite with ImageNet weights, up to the last feature map with a place for every 16
        pixels; or ``pixels``, the crop itself, 16 x 16, which needs no weights
    """

    def __init__(self, name, size, device="cpu"):
        super().__init__()
        if name not in SIZES and name != "pixels":
            raise InvalidInput(f"a backbone must be one of {', '.join(SIZES)}, pixels, got {name!r}")
        self.name, self.size, self.device, like = name, size, device, efficientnet_lite(size)
        self.scale = 255 / like.range
        numbers = torch.tensor([like.mean, like.deviation], device=device)
        self.mean, self.deviation = numbers[..., None, None].unbind()
        self.module = _first_blocks(efficientnet_module(name), size) if name in SIZES else None
        self.module = (self.module or nn.AdaptiveAvgPool2d(16)).to(device).eval()
        self.requires_grad_(False)
        self.shape = tuple(self(np.zeros((1, size, size, 3), np.uint8)).shape[1:])

    def forward(self, crops):
        with torch.inference_mode(), one_torch_thread():
            pixels = torch.from_numpy(np.ascontiguousarray(crops)).to(self.device)
            pixels = pixels.permute(0, 3, 1, 2).float() / self.scale
            return self.module((pixels - self.mean) / self.deviation)


def _first_blocks(network, size):
    """The blocks of an EfficientNet that still tell where, one after the other."""
    found = nn.Sequential(nn.Sequential(network._conv_stem, network._bn0, network._swish))
    with torch.inference_mode():
        x = found.eval()(torch.zeros(1, 3, size, size))
        for block in network._blocks:
            x = block.eval()(x)
            if x.shape[-1] * STRIDE < size:
                break
            found.append(block)
    return found


class BoxHead(nn.Module):
    """From the features of both looks `[B, C, h, w]` to means and log variances `[B, 4]`.

    Relative to the last box; drawn by the seed, and untrained it says that the box stays where it was.
    """

    def __init__(self, shape, settings):
        super().__init__()
        (features, height, width), few = shape, settings.channels
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.reduce = nn.Sequential(nn.BatchNorm2d(features), nn.Conv2d(features, few, 1), nn.ReLU())
            self.compare = nn.Sequential(nn.Conv2d(2 * few, 2 * few, 3, padding=1), nn.ReLU(), nn.Flatten())
            self.decide = nn.Sequential(nn.Linear(2 * few * height * width, settings.hidden), nn.ReLU())
            self.last = nn.Linear(settings.hidden, 8)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, before, now):
        both = torch.cat([self.reduce(before), self.reduce(now)], dim=1)
        change, spread = self.last(self.decide(self.compare(both))).chunk(2, dim=1)
        still = torch.tensor([-0.5, -0.5, 0.5, 0.5], device=change.device)
        middle = (MOST_LOG_VAR + LEAST_LOG_VAR) / 2
        return still + change, middle + (MOST_LOG_VAR - middle) * torch.tanh(spread / 4)


@dataclass(frozen=True, eq=False)
class Regressor:
    """A trained tracker; a promise about the sequences that it was trained on would be none."""

    backbone: Backbone
    head: BoxHead
    settings: Settings
    trained_on: tuple = ()

    def look(self, before, now):
        """Means and variances `[B, 4]` relative to the last box, from crops `[B, size, size, 3]`."""
        with torch.inference_mode(), one_torch_thread():
            mean, log_var = self.head(self.backbone(before), self.backbone(now))
        if not bool(torch.isfinite(mean + log_var).all()):
            raise InvalidInput("the tracker must give finite numbers, got others: its training went astray")
        return mean.double().cpu().numpy(), log_var.double().exp().cpu().numpy()

    def __call__(self, images, box):
        """Runs freely, each look from where it thinks the target was; see `pac_vision.track`."""
        size, before, found = self.settings.size, next(images), [(box, np.ones(4))]
        for now in images:
            part = grow_box(box, self.settings.context)
            looks = (crop(image, part, size)[None] for image in (before, now))
            mean, var = to_absolute(*self.look(*looks), box)
            found.append((mean[0], var[0]))
            before, box = now, fit_into_frame(mean[0], now.size)
        return np.array(found).transpose(1, 0, 2)

    @property
    def digest(self):
        return digest_weights(nn.ModuleList([self.backbone.module, self.head]))

    def save(self, path):
        """Writes the head, the settings and the names of the sequences it has seen, as safetensors."""
        about = {"settings": asdict(self.settings), "trained_on": self.trained_on, "digest": self.digest}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.cpu().contiguous() for name, tensor in self.head.state_dict().items()}
        save_file(tensors, path, {"regressor": json.dumps(about)})


def load(path, device="cpu"):
    """The regressor that was saved there; another backbone than it was trained with is refused."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["regressor"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise UnreadableFile(f"{path} cannot be read as a regressor: {error!r}") from None
    settings = Settings(**about["settings"])
    backbone = Backbone(settings.backbone, settings.size, device)
    head = BoxHead(backbone.shape, settings)
    head.load_state_dict(tensors)
    found = Regressor(backbone, head.to(device).eval(), settings, tuple(about["trained_on"]))
    if found.digest != about["digest"]:
        raise InvalidInput(f"{path}: {backbone.name} has other weights than the backbone trained with")
    return found


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs of adjacent frames, with a target that is present in both.

    before, now: paths of the frames, below the folder of all sequences
    frame, target: `[P]` the number of the frame `now`, and the target's
    previous, current: `[P, 4]` the true boxes
    """

    before: tuple
    now: tuple
    frame: np.ndarray
    target: np.ndarray
    previous: Floats
    current: Floats

    def __len__(self):
        return len(self.now)


def find_pairs(sequences):
    """All pairs of some sequences, target by target and frame by frame."""
    rows = []
    for sequence in sequences:
        there = is_present(sequence.truth)
        rows += [(sequence, f + 1, t) for t, f in np.argwhere(there[:, :-1] & there[:, 1:]).tolist()]
    before, now = (tuple(one.frames[f - back] for one, f, _ in rows) for back in (1, 0))
    places = np.array([row[1:] for row in rows], np.int64).reshape(-1, 2)
    boxes = [[one.truth[t, f - back] for one, f, t in rows] for back in (1, 0)]
    return Pairs(before, now, *places.T, *np.array(boxes, np.float64).reshape(2, -1, 4))


def compute_looks(backbone, folder, pairs, settings):
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


def train(folder, sequences, settings, *, backbone=None, device="cpu", progress=lambda line: None):
    """A regressor whose head is trained on sequences by maximum likelihood; the backbone stays as it is.

    The same settings and sequences give the same one, bit for bit, on the same machine's CPU.
    """
    backbone, pairs = backbone or Backbone(settings.backbone, settings.size, device), find_pairs(sequences)
    if not len(pairs):
        raise InvalidInput(f"sequences must have a pair of frames to train on, got none in {len(sequences)}")
    targets, looks, boxes = compute_looks(backbone, folder, pairs, settings)
    progress(f"{len(pairs):,} pairs of {len(sequences)} sequences, {settings.views} looks at each")
    head = BoxHead(backbone.shape, settings).to(device)
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
            progress(f"epoch {epoch}/{settings.epochs}  loss {total / len(pairs):.3f}")
    return Regressor(backbone, head.eval(), settings, tuple(sequence.name for sequence in sequences))


def frame_reader(folder):
    """A function that reads frames below a folder and keeps the last few, as each is looked at repeatedly."""
    return lru_cache(maxsize=4)(lambda name: read_image(Path(folder) / name))


def track_pairs(tracker, folder, sequence):
    """As in the paper, each look is from the true box of the frame before; where a target is in both."""
    read, pairs, size = frame_reader(folder), find_pairs([sequence]), tracker.settings.size
    parts = grow_box(pairs.previous, tracker.settings.context)
    means, variances = np.empty((2, len(pairs), 4))
    for first in range(0, len(pairs), AT_ONCE):
        rows = range(first, min(first + AT_ONCE, len(pairs)))
        before = np.stack([crop(read(pairs.before[i]), parts[i], size) for i in rows])
        now = np.stack([crop(read(pairs.now[i]), parts[i], size) for i in rows])
        means[rows], variances[rows] = tracker.look(before, now)
    mean, var = to_absolute(means, variances, pairs.previous)
    return Video(sequence.name, pairs.frame, pairs.target, mean, var, pairs.current)


def predict_no_motion(sequence):
    """What one gets without looking: a box stays, with a deviation of a twentieth of its side."""
    pairs = find_pairs([sequence])
    var = (box_sides(pairs.previous) / 20) ** 2
    return Video(sequence.name, pairs.frame, pairs.target, pairs.previous, var, pairs.current)
