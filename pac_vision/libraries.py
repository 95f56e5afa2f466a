"""Models that other libraries run: ONNX Runtime, torchvision, timm. Imported only when one is named."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, UnreadableFile
from pac_core.tables import file_digest
from pac_vision.classifiers import Classifier, Logits, count_classes, fill, library
from pac_vision.decoding import first_line
from pac_vision.preprocessing import Preprocess, complete, with_settings

SETTINGS = {key: {"transform_input": True, "init_weights": False} for key in ("googlenet", "inception_v3")}
"""What torchvision itself sets for its own weights: these two scale their channels in another way."""
INSTEAD = "install one built for your torch, export the model to ONNX, or name your own function with python:"
_PLACES = {"NCHW": (1, 2, 3), "NHWC": (3, 1, 2)}
"""Of channels, height and width in the shape of an input."""
_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


def load_onnx(name: str, file: str, device: str, stated: Mapping[str, Any]) -> Classifier:
    """Load an ONNX file; layout, size and batch are read from its input where they are fixed.

    stated: the rest of its preprocessing, see `complete`
    """
    digest = onnx_digest(file)
    runtime = library(name, "onnxruntime", "install pac-sets[onnx]")
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
        raise InvalidInput(
            f"{file} must have one input of floats and one output, the logits, got "
            f"{', '.join(f'{one.name} {one.type}' for one in (port, *more))} -> "
            f"{', '.join(one.name for one in outputs)}"
        )
    preprocess = complete(name, stated, **_input_format(file, port.shape, stated))
    fixed = port.shape[0] if isinstance(port.shape[0], int) else None

    def run(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        said = session.run(None, {port.name: batch.astype(_FLOATS[port.type], copy=False)})[0]
        return np.asarray(said, np.float32)

    logits = filled_up(run, fixed)
    classes, called = count_classes(name, preprocess, logits), with_settings(name, preprocess)
    return Classifier(called, classes, digest, preprocess, logits, fixed)


def filled_up(logits: Logits, fixed: int | None) -> Logits:
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


def onnx_digest(file: str) -> str:
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
    models = library(name, "torchvision.models", INSTEAD)
    if architecture not in models.list_models():
        raise InvalidInput(f"{name} must name one of torchvision.models.list_models(), got {architecture!r}")
    own = _torchvision_weights(name, models.get_model_weights(architecture), weights, file)
    made = models.get_model(architecture, weights=None, **SETTINGS.get(architecture, {}))
    return Classifier.of(name, fill(name, made, file), _as_array(own.transforms()), device=device)


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
        raise InvalidInput(
            f"{name} must say whose preprocessing its weights need, because {file} is none of torchvision's "
            f"own, got no name: write {names} behind {architecture}"
        )
    return candidates[0]


def load_timm(name: str, rest: str, device: str, stated: Mapping[str, Any]) -> Classifier:
    """Load an architecture of timm with weights from a file, preprocessed as its own weights are."""
    architecture, file = _split(name, rest)
    timm = library(name, "timm", INSTEAD)
    if not timm.is_model(architecture):
        raise InvalidInput(f"{name} must name one of timm.list_models(), got {architecture!r}")
    module = fill(name, timm.create_model(architecture, pretrained=False), file)
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
