"""A trained classifier: its weights, how an image goes in, and how logits come out."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError  # what torch raises when it refuses one
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from pac_core import InvalidInput
from pac_core.arrays import check_returned, one_torch_thread
from pac_core.bounds import check_integer
from pac_core.errors import UnreadableFile
from pac_vision.images.decoding import RULES, BrokenImage, Source, first_line
from pac_vision.images.preprocessing import Preprocess, Preprocessing

Logits: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""float32 `[B, 3, H, W]` (or `[B, H, W, 3]`) -> float32 `[B, K]`."""


@dataclass(frozen=True, eq=False)
class Classifier:
    """A trained classifier, ready to be asked.

    name: what it was loaded by
    classes: K, the number of its outputs
    digest: a fingerprint of its weights; from `load_model`, of its preprocessing, too
    preprocess: RGB image -> float32 `[3, H, W]`, a `Preprocessing` or a function of yours
    logits: float32 `[B, 3, H, W]` -> float32 `[B, K]`
    batch: the only B that it computes; None for any
    """

    name: str
    classes: int
    digest: str
    preprocess: Preprocess
    logits: Logits
    batch: int | None = None

    @classmethod
    def of(cls, name: str, module: nn.Module, preprocess: Preprocess, *, device: str = "cpu") -> Classifier:
        """A torch module with the preprocessing that it was trained with.

        module: `[B, 3, H, W]` -> `[B, K]`; it is moved to `device` and put into evaluation mode

        >>> from pac_vision import imagenet
        >>> means = Classifier.of("means", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), imagenet(8))
        >>> means.classes, means.logits(np.ones((2, 3, 8, 8), np.float32)).tolist()
        (3, [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
        """
        module = module.to(device).eval()

        def logits(batch: NDArray[np.float32]) -> NDArray[np.float32]:
            with torch.inference_mode(), one_torch_thread():
                out: Tensor = module(torch.from_numpy(np.ascontiguousarray(batch)).to(device))
                return out.float().cpu().numpy()

        return cls(name, count_classes(name, preprocess, logits), digest_weights(module), preprocess, logits)


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the named tensors of a .pth, .pt or .safetensors file, never unpickled."""
    file = Path(path)
    if not file.is_file():
        raise UnreadableFile(f"there is no file of weights {file}")
    try:
        safe = file.suffix == ".safetensors"
        tensors = load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError:
        raise UnreadableFile(f"{file} holds Python objects, which are never unpickled") from None
    except Exception as error:  # the readers raise a dozen kinds for a damaged file
        raise UnreadableFile(f"{file} cannot be read as weights: {first_line(error)}") from None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise UnreadableFile(f"{file} must hold named tensors (a state_dict), got something else")
    return tensors


def load_weights(name: str, module: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Load the weights of a file into `module`, all of them and no others."""
    try:
        module.load_state_dict(read_weights(path))
    except RuntimeError as error:
        raise UnreadableFile(f"{path} does not fit {name}: {' '.join(str(error).split())[:200]}") from None
    return module


def digest_weights(module: nn.Module) -> str:
    """SHA-256 of the names, kinds, shapes and bytes of a module's weights and buffers."""
    digest = hashlib.sha256()
    for key, tensor in sorted(module.state_dict().items()):
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{key} {array.dtype} {tuple(array.shape)}\n".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def digest_classifier(classifier: Classifier) -> str:
    """A fingerprint of weights, preprocessing and answers: the same weights may be used in another way.

    A picture of coloured noise, wider than high, shows what a model does: its pixels as they go in, and the
    label that comes out (logits differ in their last digits from device to device). Settings that it does
    not tell apart, and the rules by which files are decoded, enter by name.
    """
    seen = np.ascontiguousarray(classifier.preprocess(_noise()))
    answer = int(classifier.logits(seen[None]).argmax())
    settings = str(classifier.preprocess) if isinstance(classifier.preprocess, Preprocessing) else "its own"
    head = f"{classifier.digest} {seen.dtype} {seen.shape} {answer} {settings} {RULES}\n"
    return hashlib.sha256(head.encode() + seen.tobytes()).hexdigest()


def take_logarithms(classifier: Classifier) -> Classifier:
    """Take the logarithms of a model that ends in a softmax.

    Probabilities taken for logits would make all labels nearly equally likely, and sets of nearly all labels.
    """
    pictures = (_noise(), Image.new("RGB", (512, 512)))
    said = np.concatenate([classifier.logits(classifier.preprocess(one)[None]) for one in pictures])
    if (said < 0).any() or not np.allclose(said.sum(axis=1), 1, atol=1e-3):
        return classifier
    ask = classifier.logits

    def logits(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        with np.errstate(divide="ignore"):  # a probability of 0 is a logit of -inf
            return np.log(ask(batch))

    return replace(classifier, logits=logits)


def _noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, size=(300, 420, 3), dtype=np.uint8))


def count_classes(name: str, preprocess: Preprocess, logits: Logits) -> int:
    """K, seen on a black image."""
    black = preprocess(Image.new("RGB", (512, 512)))
    try:
        shape = tuple(logits(black[None]).shape)
    except Exception as error:  # whatever the network raises at a shape that is not its own
        reason = first_line(error)
        raise InvalidInput(f"{name} must take images {black.shape}, but it failed: {reason}") from None
    if len(shape) != 2 or shape[0] != 1 or shape[1] < 2:
        rule = "must return logits [B, K] for two or more classes"
        raise InvalidInput(f"{name} {rule}, got {shape} for one image")
    return int(shape[1])


def import_library(name: str, module: str, advice: str) -> Any:
    """Import a module because a model's name asks for it, or say how to get it."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # torchvision raises RuntimeError beside a torch of another build
        why = first_line(error)
        raise UnreadableFile(f"{name} needs {module}, which cannot be imported ({why}): {advice}") from None


BROKEN = ("error", "miss")


class ImageLogits:
    """Logits of images by their ids, and which of the images are broken.

    source: of the images
    model: the classifier
    batch: images computed together; by default as many as the model is fixed to, or 1
    broken: an image that cannot be decoded or preprocessed, or whose logits are no numbers: ``error`` refuses
        it with its path, ``miss`` marks it as failed
    unreadable: whether ``miss`` counts a file that cannot be read at all, too: not where sets are calibrated
        or tested, because a share that is down says nothing of its images

    `reasons` says of each image that was marked as failed why it was.

    Sums are rounded differently in batches of other sizes, and even in other rows of one batch. So each
    image has its own row, its place among the sorted ids modulo `batch`, and empty rows are padded.
    On a CPU a batch of one takes a tenth longer than the best; a GPU wants more.
    """

    def __init__(
        self,
        source: Source,
        model: Classifier,
        batch: int | None = None,
        broken: str = "error",
        *,
        unreadable: bool = False,
    ) -> None:
        if broken not in BROKEN:
            raise InvalidInput(f"broken must be one of {', '.join(BROKEN)}, got {broken!r}")
        self.source, self.model, self.broken, self.unreadable = source, model, broken, unreadable
        self.batch = check_integer("batch", (model.batch or 1) if batch is None else batch, least=1)
        if model.batch not in (None, self.batch):
            raise InvalidInput(f"batch must be {model.batch}, which {model.name} is fixed to, got {batch}")
        self.reasons: list[str] = []
        self.rows = {name: place % self.batch for place, name in enumerate(sorted(source.ids.tolist()))}

    def __call__(self, names: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """`[n, K]` logits of ids of the source, NaN for a broken image, and `[n]` which are broken."""
        ids = list(names)
        logits = np.full((len(ids), self.model.classes), np.nan, np.float32)
        failed = np.zeros(len(ids), bool)
        for group in group_by_row([self.rows[name] for name in ids], self.batch):
            images = {row: self.read(ids[place]) for row, place in group.items()}
            sound = {row: image for row, image in images.items() if image is not None}
            failed[[group[row] for row in images if row not in sound]] = True
            if not sound:
                continue
            rows, shape = list(sound), next(iter(sound.values())).shape
            stack = np.zeros((self.batch, *shape), np.float32)
            for row, image in sound.items():
                if image.shape != shape:
                    got = f"{shape} and {image.shape} for {ids[group[row]]}: take a batch of 1"
                    raise InvalidInput(f"images computed together must have one shape, got {got}")
                stack[row] = image
            said, expected = self.model.logits(stack), (self.batch, self.model.classes)
            found = check_returned(f"the logits of {self.model.name}", said, expected, stack)
            logits[[group[row] for row in rows]] = found[rows]
        numbers = np.asarray((logits < np.inf).all(axis=1) & (logits > -np.inf).any(axis=1))
        for place in np.flatnonzero(~numbers & ~failed).tolist():
            rule = "must give logits that are numbers, got NaN or infinity for"
            if self.broken == "error":
                raise InvalidInput(f"{self.model.name} {rule} {ids[place]}")
            self.reasons.append(f"{self.model.name} {rule} {ids[place]}")
        logits[~numbers] = np.nan
        return logits, ~numbers

    def read(self, name: str) -> NDArray[np.float32] | None:
        """Read and preprocess an image, `[3, H, W]`; None if it is broken and that is allowed."""
        try:
            image = self.source.image(name)
            try:
                return self.model.preprocess(image)
            except MemoryError:  # the machine's failure, not the image's
                raise
            except Exception as error:  # one pixel has no centre; and the function may be a user's
                where = f"{self.source.folder}/{name}"
                raise BrokenImage(f"{where} cannot be used: {first_line(error)}") from error
        except UnreadableFile as error:
            if self.broken == "error" or not (self.unreadable or isinstance(error, BrokenImage)):
                raise
            self.reasons.append(str(error))
            return None


def group_by_row(rows: Sequence[int], batch: int) -> Iterator[dict[int, int]]:
    """Groups {row: place in `rows`} that hold each place once, and each row at most once.

    >>> list(group_by_row([2, 0, 1, 2], batch=3))
    [{0: 1, 1: 2, 2: 0}, {2: 3}]
    """
    places = [[place for place, own in enumerate(rows) if own == row] for row in range(batch)]
    for turn in range(max(map(len, places))):
        yield {row: queue[turn] for row, queue in enumerate(places) if turn < len(queue)}
