"""Policies in files: layers in an npz, or a zip of Stable-Baselines3. Nothing is unpickled."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError  # what torch raises when it refuses one
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pac_core import InvalidInput, UnreadableFile
from pac_core.tables import read_arrays
from pac_rl.policies import ACTIVATIONS, Network

SHIPPED = Path(__file__).parent / "halfcheetah_policy.npz"
"""A linear policy for HalfCheetah-v5, made by `scripts/train_policy.py`."""


def load_policy(path: str | os.PathLike[str] = SHIPPED, *, std: float | None = None) -> Network:
    """The policy in a file; by default the half-cheetah's that comes with this package.

    path: an npz of layers (`w0, b0, w1, b1, ..., mu_w, mu_b`, and if present `std`, `shift`, `scale`,
        `activation`, `squash`), or a zip saved by Stable-Baselines3 (SAC, TD3, DDPG, PPO or A2C)
    std: of the noise on each action, instead of the file's; a file without any (TD3, DDPG, an npz that
        has no `std`) is refused unless it is given: 0 for a policy that is followed exactly

    >>> policy = load_policy()
    >>> policy.inputs, policy.outputs, policy.std[0].item()
    (17, 6, 0.1)
    """
    file = Path(path)
    if std is not None and not 0 <= std < float("inf"):
        raise InvalidInput(f"std must be a number of at least 0, got {std}")
    readers = {".npz": _read_npz, ".zip": _read_stable_baselines}
    if file.suffix not in readers:
        raise UnreadableFile(f"a policy must be a .npz of layers or a Stable-Baselines3 .zip, got {file}")
    if not file.is_file():
        raise UnreadableFile(f"there is no policy file {file}")
    try:
        policy = readers[file.suffix](file, std)
    except (InvalidInput, UnreadableFile) as error:
        named = str(file) in str(error)
        raise type(error)(str(error) if named else f"{file}: {error}") from None
    except (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        raise UnreadableFile(f"{file} cannot be read as a policy: {error}") from None
    except UnpicklingError:
        raise UnreadableFile(f"{file} holds Python objects, which are never unpickled") from None
    return policy if std is None else policy.with_noise(std)


def save_policy(policy: Network, path: str | os.PathLike[str]) -> None:
    """Writes the layers to an npz that `load_policy` reads."""
    if isinstance(policy.std, tuple):
        raise InvalidInput("only a policy with a fixed std can be saved, got a layer for it")
    arrays: dict[str, Any] = {"mu_w": policy.weights[-1], "mu_b": policy.biases[-1], "std": policy.std}
    for i, (weight, bias) in enumerate(zip(policy.weights[:-1], policy.biases[:-1], strict=True)):
        arrays |= {f"w{i}": weight, f"b{i}": bias}
    arrays |= {"shift": policy.shift, "scale": policy.scale}
    np.savez(path, **{name: array.numpy() for name, array in arrays.items()},
             activation=policy.activation, squash=policy.squash)  # fmt: skip


def _read_npz(file: Path, std: float | None) -> Network:
    arrays = read_arrays(file)
    hidden = sum(name[0] == "w" and name[1:].isdecimal() for name in arrays)
    names = [*(f"{kind}{i}" for i in range(hidden) for kind in "wb"), "mu_w", "mu_b"]
    if missing := [name for name in names if name not in arrays]:
        raise UnreadableFile(f"the arrays {', '.join(missing)} are missing; there are {', '.join(arrays)}")
    layers = [_numbers(arrays, name) for name in names]
    inputs, outputs = layers[0].shape[1], len(layers[-1])
    return Network(
        weights=tuple(layers[::2]),
        biases=tuple(layers[1::2]),
        std=_numbers(arrays, "std") if "std" in arrays else _same(std, outputs),
        shift=_numbers(arrays, "shift", torch.zeros(inputs, dtype=torch.float64)),
        scale=_numbers(arrays, "scale", torch.ones(inputs, dtype=torch.float64)),
        activation=str(arrays.get("activation", "relu")),
        squash=bool(arrays.get("squash", True)),
    )


def _read_stable_baselines(file: Path, std: float | None) -> Network:
    with zipfile.ZipFile(file) as archive:
        weights = torch.load(io.BytesIO(archive.read("policy.pth")), map_location="cpu", weights_only=True)
        settings = json.loads(archive.read("data")) if "data" in archive.namelist() else {}
    kwargs = settings.get("policy_kwargs", {})
    if settings.get("use_sde") or kwargs.get("use_sde"):
        raise InvalidInput("a policy with state-dependent exploration (use_sde) cannot be read")
    arrays = {name: tensor.double() for name, tensor in weights.items()}
    squash, default = True, "relu"
    spread: Tensor | tuple[Tensor, Tensor] | None
    if "actor.log_std.weight" in arrays:  # SAC
        hidden, last, spread = "actor.latent_pi", "actor.mu", _layer(arrays, "actor.log_std")
    elif any(name.startswith("actor.mu.") for name in arrays):  # TD3, DDPG
        hidden, last, spread = "actor.mu", None, None
    elif "action_net.weight" in arrays and "log_std" in arrays:  # PPO, A2C
        hidden, last, spread = "mlp_extractor.policy_net", "action_net", torch.exp(arrays["log_std"])
        squash, default = False, "tanh"
    else:
        raise UnreadableFile(f"policy.pth is of no known algorithm: it holds {', '.join(list(arrays)[:5])}")
    numbers = sorted(
        int(name.split(".")[-2])
        for name in arrays
        if name.startswith(hidden + ".") and name.endswith("weight")
    )
    layers = [_layer(arrays, f"{hidden}.{number}") for number in numbers]
    layers += [_layer(arrays, last)] if last else []
    inputs, outputs = layers[0][0].shape[1], len(layers[-1][1])
    return Network(
        weights=tuple(weight for weight, _ in layers),
        biases=tuple(bias for _, bias in layers),
        std=_same(std, outputs) if spread is None else spread,
        shift=torch.zeros(inputs, dtype=torch.float64),
        scale=torch.ones(inputs, dtype=torch.float64),
        activation=_activation(kwargs, default),
        squash=squash,
    )


def _same(std: float | None, outputs: int) -> Tensor:
    """`[outputs]` the noise that was given for a file without any."""
    if std is None:
        raise InvalidInput("std must be given for a policy file that has none (0: no noise), got None")
    return torch.full((outputs,), float(std), dtype=torch.float64)


def _activation(kwargs: Mapping[str, Any], default: str) -> str:
    """The data file names a class there, as text such as <class 'torch.nn.modules.activation.ReLU'>."""
    text = str(kwargs.get("activation_fn", default)).strip("<>'").split(".")[-1].lower()
    if text not in ACTIVATIONS:
        raise InvalidInput(f"its activation must be one of {', '.join(ACTIVATIONS)}, got {text}")
    return text


def _layer(arrays: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return arrays[f"{name}.weight"], arrays[f"{name}.bias"]


def _numbers(arrays: Mapping[str, Any], name: str, default: Tensor | None = None) -> Tensor:
    array = arrays.get(name, default)
    if isinstance(array, np.ndarray) and array.dtype.kind not in "fiu":
        raise InvalidInput(f"{name} must hold numbers, got dtype {array.dtype}")
    return torch.as_tensor(array, dtype=torch.float64)
