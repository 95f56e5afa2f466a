"""Models that other libraries run: ONNX Runtime, torchvision, timm. Imported only when one is named."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pac_core import InvalidInput, UnreadableFile
from pac_core.tables import file_digest
from pac_vision.classifiers import Classifier, count_classes, fill, first_line, library
from pac_vision.preprocessing import Preprocess, imagenet

_PORTED = {"transform_input": True, "init_weights": False}
SETTINGS = {"googlenet": _PORTED, "inception_v3": _PORTED}
"""What torchvision itself sets for its own weights: these two scale their channels in another way."""
INSTEAD = "install one built for your torch, export the model to ONNX, or name your own function with python:"


def load_onnx(name: str, file: str, device: str) -> Classifier:
    """The classifier in an ONNX file; its input `[B, 3, H, H]` says the size of the images."""
    digest = onnx_digest(file)
    runtime = library(name, "onnxruntime", "pip install onnxruntime")
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
    inputs = session.get_inputs()
    shape = inputs[0].shape if len(inputs) == 1 else [None]
    if len(shape) != 4 or shape[1] not in (3, None) or shape[2] != shape[3]:
        raise InvalidInput(f"{file} must have one input [B, 3, H, H], got {[i.shape for i in inputs]}")
    preprocess = imagenet(shape[2] if isinstance(shape[2], int) else 224)

    def logits(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(session.run(None, {inputs[0].name: batch})[0], np.float32)

    return Classifier(name, count_classes(name, preprocess, logits), digest, preprocess, logits)


def onnx_digest(file: str) -> str:
    """A fingerprint of an ONNX file and of the files beside it that it names: large weights lie there."""
    digest, path = hashlib.sha256(file_digest(file).encode()), Path(file)
    content = path.read_bytes()
    if b"location" in content:  # the key under which a tensor names its file
        for other in sorted(one for one in path.parent.rglob("*") if one.is_file() and one != path):
            if other.relative_to(path.parent).as_posix().encode() in content:
                digest.update(file_digest(other).encode())
    return digest.hexdigest()


def load_torchvision(name: str, rest: str, device: str) -> Classifier:
    """An architecture of torchvision with weights from a file, made and preprocessed as torchvision's are."""
    named, file = _with_file(name, rest)
    architecture, _, weights = named.partition("@")
    models = library(name, "torchvision.models", INSTEAD)
    if architecture not in models.list_models():
        raise InvalidInput(f"{name} must name one of torchvision.models.list_models(), got {architecture!r}")
    own = _torchvision_weights(name, models.get_model_weights(architecture), weights, file)
    made = models.get_model(architecture, weights=None, **SETTINGS.get(architecture, {}))
    return Classifier.of(name, fill(name, made, file), _as_array(own.transforms()), device=device)


def _torchvision_weights(name: str, known: Any, asked: str, file: str) -> Any:
    """Which of torchvision's weights say the preprocessing: those named, those in the file, or the only ones.

    The names of its files end in the first digits of their SHA-256, so they are known by their content.
    """
    found = known.__members__  # with the alias DEFAULT
    if asked:
        if asked not in found:
            raise InvalidInput(f"{name} must name one of the weights {', '.join(found)}, got {asked!r}")
        return found[asked]
    digest, several = file_digest(file), list(known)
    official = [one for one in several if one.url.endswith(f"-{digest[:8]}.pth")]
    if not official and len(several) > 1:
        architecture, names = name.split(":")[1], " or ".join(f"@{one.name}" for one in several)
        raise InvalidInput(
            f"{name} must say whose preprocessing its weights need, because {file} is none of torchvision's "
            f"own, got no name: write {names} behind {architecture}"
        )
    return (official or several)[0]


def load_timm(name: str, rest: str, device: str) -> Classifier:
    """An architecture of timm with weights from a file, preprocessed as its own weights are."""
    architecture, file = _with_file(name, rest)
    timm = library(name, "timm", INSTEAD)
    if not timm.is_model(architecture):
        raise InvalidInput(f"{name} must name one of timm.list_models(), got {architecture!r}")
    module = fill(name, timm.create_model(architecture, pretrained=False), file)
    settings = timm.data.resolve_model_data_config(module)
    transform = timm.data.create_transform(**settings, is_training=False)
    return Classifier.of(name, module, _as_array(transform), device=device)


def _with_file(name: str, rest: str) -> tuple[str, str]:
    architecture, _, file = rest.partition(":")
    if not file:
        raise InvalidInput(f"{name} needs its weights in a file, for nothing is downloaded: {name}:FILE")
    return architecture, file


def _as_array(transform: Any) -> Preprocess:
    def preprocess(image: Image.Image) -> NDArray[np.float32]:
        return np.asarray(transform(image), np.float32)

    return preprocess
