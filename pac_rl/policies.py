"""Policies: from observations and noise to actions; and their files, of which nothing is unpickled.

A policy is anything with `inputs`, `outputs` and a call `policy(observations, noise)`; noise is
standard normal, and zero noise gives the mean action, which is what a forecast follows. It sees Gymnasium's
observation, unless it says `sees = "state"`.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError  # what torch raises when it refuses one
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pac_core import InvalidInput
from pac_core.datasets import read_arrays
from pac_core.errors import UnreadableFile
from pac_rl.systems.functions import Floats
from pac_rl.systems.mujoco import Environment, read_physics

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "elu": torch.nn.functional.elu}


class Policy(Protocol):
    """What a rollout asks of a policy."""

    @property
    def inputs(self) -> int:
        """I, the numbers of an observation."""

    @property
    def outputs(self) -> int:
        """A, the numbers of an action."""

    @property
    def squash(self) -> bool:
        """Whether actions lie in [-1, 1] and are stretched to the range, instead of cut off at it."""

    def __call__(self, observations: Tensor, noise: Tensor) -> Tensor:
        """`[..., outputs]` actions for `[..., inputs]` observations and `[..., outputs]` normal noise.

        Particles bring several leading axes; rows must not touch each other.
        """


@dataclass(frozen=True, eq=False)
class Network:
    """A policy of dense layers: Gaussian around the last one, squashed (SAC) or not (PPO).

    weights, biases: of each layer, `[out, in]` and `[out]`; the last gives the mean
    std: `[A]` of the noise, or another last layer `(weight, bias)` for its logarithm
    shift, scale: `[I]` observations are normalised to (o - shift) / scale
    activation: between layers
    squash: tanh after the noise (SAC)
    clip: normalised observations are cut off at this number (VecNormalize)
    sees: "observation", the environment's own, or "state"
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    std: Tensor | tuple[Tensor, Tensor]
    shift: Tensor
    scale: Tensor
    activation: str = "relu"
    squash: bool = True
    clip: float = float("inf")
    sees: str = "observation"

    def __post_init__(self) -> None:
        _check_sees(self.sees)
        if self.activation not in ACTIVATIONS:
            raise InvalidInput(f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        if any(part.ndim != 1 or part.is_complex() for part in (self.shift, self.scale)):
            raise InvalidInput("shift and scale must have one real number per input")
        before = (self.shift, *self.biases)
        layers = [*zip(self.weights, self.biases, before[:-1], strict=True)]
        if isinstance(self.std, tuple):
            layers.append((*self.std, before[-2]))
        for weight, bias, numbers in layers:
            if weight.ndim != 2 or bias.ndim != 1 or not weight.numel():
                raise InvalidInput(
                    "layers must be weights [out, in] and biases [out], at least 1 number each"
                )
            if weight.shape != (shape := (len(bias), len(numbers))):
                raise InvalidInput(f"a layer must have weights {list(shape)}, got {list(weight.shape)}")
        spread = self.std if isinstance(self.std, tuple) else (self.std,)
        for part in (*self.weights, *self.biases, *spread, self.shift, self.scale):
            if part.is_complex() or not torch.isfinite(part).all():
                raise InvalidInput("a policy's numbers must be real and finite, got NaN, infinity or others")
        sized = spread[-1].shape == (self.outputs,) and len(self.scale) == self.inputs
        if not sized or not (self.scale > 0).all():
            raise InvalidInput("std must have one number per action and scale be above 0 for each input")
        if not isinstance(self.std, tuple) and not (self.std >= 0).all():
            raise InvalidInput(f"std must be at least 0 for each action, got {float(self.std.min()):g}")
        if not self.clip > 0:
            raise InvalidInput(f"clip must be above 0, got {self.clip}")

    @property
    def inputs(self) -> int:
        return len(self.shift)

    @property
    def outputs(self) -> int:
        return len(self.biases[-1])

    def __call__(self, observations: Tensor, noise: Tensor) -> Tensor:
        hidden = (observations - self.shift.to(observations)) / self.scale.to(observations)
        if self.clip < float("inf"):
            hidden = hidden.clamp(-self.clip, self.clip)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = ACTIVATIONS[self.activation](_dense(hidden, weight, bias))
        mean = _dense(hidden, self.weights[-1], self.biases[-1])
        if isinstance(self.std, tuple):
            std = torch.exp(_dense(hidden, *self.std).clamp(-20, 2))  # the range of SAC's authors
        else:
            std = self.std.to(mean)
        action = mean + std * noise
        return torch.tanh(action) if self.squash else action

    def with_noise(self, std: float) -> Network:
        """The same policy with this much noise on every action."""
        return replace(self, std=torch.full((self.outputs,), float(std), dtype=torch.float64))


@dataclass(frozen=True, eq=False)
class Function:
    """Any callable as a policy: from observations `[B, inputs]` (numpy) to mean actions `[B, outputs]`.

    Noise of `std` is added.
    sees: "observation", the environment's own, or "state"
    """

    function: Callable[[NDArray[np.float64]], Any]
    inputs: int
    outputs: int
    std: float = 0.0
    squash: bool = False
    sees: str = "observation"

    def __post_init__(self) -> None:
        _check_sees(self.sees)

    def __call__(self, observations: Tensor, noise: Tensor) -> Tensor:
        rows = observations.detach().cpu().numpy().astype(np.float64).reshape(-1, self.inputs)
        mean, wanted = np.asarray(self.function(rows)), (len(rows), self.outputs)
        if mean.shape != wanted:
            raise InvalidInput(f"the policy must return actions of shape {wanted}, got {mean.shape}")
        return torch.as_tensor(mean).to(noise).reshape(noise.shape) + self.std * noise


class NoisyPolicy:
    """Another policy with more noise on its actions, to see what lies off its path."""

    def __init__(self, policy: Policy, extra: float) -> None:
        self.policy, self.extra, self.sees = policy, extra, policy_input(policy)
        self.inputs, self.outputs, self.squash = policy.inputs, policy.outputs, policy.squash

    def __call__(self, observations: Tensor, noise: Tensor) -> Tensor:
        wanted = self.policy(observations, noise) + self.extra * noise
        return wanted.clamp(-1, 1) if self.squash else wanted


def actions(environment: Environment, policy: Policy, states: Tensor, noise: Tensor) -> Tensor:
    """`[..., A]` what the policy does in `states` `[..., D]`, in the environment's action range."""
    seen = states if policy_input(policy) == "state" else environment.view(states)
    low, high = (torch.from_numpy(end).to(states) for end in (environment.low, environment.high))
    wanted = policy(seen, noise)
    if wanted.shape != (shape := (*states.shape[:-1], len(low))):
        raise InvalidInput(f"the policy must return actions of shape {shape}, got {tuple(wanted.shape)}")
    if policy.squash:
        return (low + high) / 2 + (high - low) / 2 * wanted
    return torch.clamp(wanted, low, high)


@dataclass(frozen=True, eq=False)
class ActionsBy:
    """From states `[N, D]` to a policy's mean actions `[N, A]`, numpy; see `actions_by`."""

    system: Any
    policy: Any

    def __call__(self, states: NDArray[Any]) -> NDArray[Any]:
        environment: Any = getattr(self.system, "environment", None)
        if callable(predict := getattr(self.policy, "predict", None)):
            seen = states if environment is None else environment.view(states)
            return np.asarray(predict(np.asarray(seen, dtype=np.float32), deterministic=True)[0])
        given = torch.from_numpy(np.ascontiguousarray(states))
        still = torch.zeros(len(states), self.policy.outputs).to(given)
        with torch.no_grad():
            return actions(environment, self.policy, given, still).numpy()


def actions_by(system: Any, policy: Any) -> Callable[[NDArray[Any]], Any]:
    """From states `[N, D]` of a system to the mean actions `[N, A]` of a policy of any kind.

    policy: of a file (`load_policy`), of Stable-Baselines3 (anything with its `predict`, which sees what
        Gymnasium shows of a MuJoCo system, the state of another), or a function of states `[N, D]`
    """
    if callable(getattr(policy, "predict", None)):
        return ActionsBy(system, policy)
    if not hasattr(policy, "outputs"):
        if not callable(policy):
            raise InvalidInput(
                f"policy must be a policy or a function of states, got {type(policy).__name__}"
            )
        return policy  # type: ignore[no-any-return]
    if (environment := getattr(system, "environment", None)) is None:
        raise InvalidInput("a policy of a file is for a MujocoSystem; give a function of states [N, D]")
    check_policy(environment, policy)
    return ActionsBy(system, policy)


def check_policy(environment: Environment, policy: Policy) -> Policy:
    """`policy`, after refusing one of other dimensions than the environment's."""
    full, sees = len(environment.names), policy_input(policy)
    own = environment.view(np.zeros((1, full))).shape[1]
    seen = full if sees == "state" else own
    if (policy.inputs, policy.outputs) != (seen, len(environment.low)):
        more = ""
        if sees != "state" and policy.inputs == own + 1:
            more = "; one with a time feature cannot be followed, because the time is no part of the state"
        if sees != "state" and policy.inputs == full:
            more += "; one that sees the state must say so"
        rule = f"that sees the {sees} must have {seen} inputs and {len(environment.low)} outputs"
        got = f"got {policy.inputs} and {policy.outputs}{more}"
        raise InvalidInput(f"a policy for {environment.id} {rule}, {got}")
    return policy


def policy_input(policy: Policy) -> str:
    """What a policy sees: "observation", the environment's own, unless it says "state". Sizes say nothing."""
    return _check_sees(getattr(policy, "sees", "observation"))


def _check_sees(sees: Any) -> str:
    if sees not in ("observation", "state"):
        raise InvalidInput(f"sees must be 'observation' or 'state', got {sees!r}")
    return str(sees)


def policy_returns(
    environment: Environment, policy: Policy, *, episodes: int = 3, steps: int = 1000
) -> Floats:
    """`[episodes]` what the policy earns by Gymnasium's own reward, with its noise, from resets of their own.

    By it one sees whether a file was read as it was meant: on other observations than it was trained on, a
    good policy earns nothing.
    """
    check_policy(environment, policy)
    gym, rng, found = environment.gym, np.random.default_rng(0), np.zeros(episodes)
    for i in range(episodes):
        before = physics = environment.reset(int(rng.integers(2**31)))[None]
        for _ in range(steps):
            states = torch.from_numpy(environment.observe(gym, before, physics))
            noise = torch.from_numpy(rng.standard_normal((1, policy.outputs)))
            done = actions(environment, policy, states, noise)[0].numpy()
            _, reward, ended, _, _ = gym.step(done)
            before, physics = physics, read_physics(gym)[None]
            found[i] += float(reward)
            if ended or not np.isfinite(physics).all():
                break
    return found


def returns_in_words(environment: Environment, policy: Policy, **options: Any) -> str:
    """`policy_returns` for a person."""
    found = policy_returns(environment, policy, **options)
    return (
        f"mean return {found.mean():,.0f} ({found.min():,.0f} to {found.max():,.0f}) in {len(found)} "
        f"episodes of {environment.id}; if it should earn more, it sees other things than in training"
    )


def _dense(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.linear(values, weight.to(values), bias.to(values))


SHIPPED = Path(__file__).parent / "halfcheetah_policy.npz"
"""A linear policy for HalfCheetah-v5, made by `scripts/halfcheetah train-policy`."""
MOST_BYTES = 128 * 2**20
"""Of what a policy file may hold when it is expanded: a file of 2 MB can hold a thousand times as much."""
NOT_NORMALISED = "none"
"""Said of a policy that was trained without VecNormalize's observations."""
FLATTEN = "<class 'stable_baselines3.common.torch_layers.FlattenExtractor'>"
"""The only feature extractor that hands an observation on as it is."""


def load_policy(
    path: str | os.PathLike[str] = SHIPPED,
    *,
    std: float | None = None,
    vecnormalize: str | os.PathLike[str] | None = None,
    sees: str | None = None,
) -> Network:
    """The policy in a file; by default the half-cheetah's that comes with this package.

    path: an npz of layers (`w0, b0, w1, b1, ..., mu_w, mu_b`, and if present `std`, `shift`, `scale`, `clip`,
        `activation`, `squash`, `sees`), or a zip saved by Stable-Baselines3 (SAC, TQC, TD3, DDPG, PPO, TRPO
        or A2C)
    std: of the noise on each action, instead of the file's; a file without any (TD3, DDPG, an npz that
        has no `std`) is refused unless it is given: 0 for a policy that is followed exactly
    vecnormalize: for a zip, an npz of VecNormalize's statistics (`mean`, `var`, `clip`, `epsilon`), or "none"
        for a policy that was trained on plain observations. A zip does not hold the statistics, and without
        them a policy is another one: so it must be said, unless the zip shows that there are none
    sees: "observation", the environment's own (the default), or "state"; instead of the file's

    A `vecnormalize.pkl` is a pickle, which is never read here. Where Stable-Baselines3 is installed:

        python -c "import pickle, numpy; v = pickle.load(open('vecnormalize.pkl', 'rb')); numpy.savez(
        'vecnormalize.npz', mean=v.obs_rms.mean, var=v.obs_rms.var, clip=v.clip_obs, epsilon=v.epsilon)"

    >>> policy = load_policy()
    >>> policy.inputs, policy.outputs, policy.std[0].item()
    (17, 6, 0.1)
    """
    file = Path(path)
    if std is not None and not 0 <= std < float("inf"):
        raise InvalidInput(f"std must be a number of at least 0, got {std}")
    if file.suffix not in (".npz", ".zip"):
        raise UnreadableFile(f"a policy must be a .npz of layers or a Stable-Baselines3 .zip, got {file}")
    if not file.is_file():
        raise UnreadableFile(f"there is no policy file {file}")
    if file.suffix == ".npz" and vecnormalize is not None:
        raise InvalidInput(f"vecnormalize is for a Stable-Baselines3 zip; {file} has shift, scale and clip")
    with _named(file):
        npz = file.suffix == ".npz"
        policy = _read_npz(file, std) if npz else _read_stable_baselines(file, std, vecnormalize)
        policy = policy if sees is None else replace(policy, sees=sees)
    return policy if std is None else policy.with_noise(std)


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Whatever is wrong with a file is one sentence that names it."""
    try:
        yield
    except (InvalidInput, UnreadableFile) as error:
        named = str(file) in str(error)
        raise type(error)(str(error) if named else f"{file}: {error}") from None
    except UnpicklingError:
        raise UnreadableFile(f"{file} holds Python objects, which are never unpickled") from None
    except Exception as error:  # the readers raise a dozen kinds for a file that is not what it seems
        raise UnreadableFile(f"{file} cannot be read as a policy: {error}") from None


def save_policy(policy: Network, path: str | os.PathLike[str]) -> None:
    """Writes the layers to an npz that `load_policy` reads."""
    if isinstance(policy.std, tuple):
        raise InvalidInput("only a policy with a fixed std can be saved, got a layer for it")
    arrays: dict[str, Any] = {"mu_w": policy.weights[-1], "mu_b": policy.biases[-1], "std": policy.std}
    for i, (weight, bias) in enumerate(zip(policy.weights[:-1], policy.biases[:-1], strict=True)):
        arrays |= {f"w{i}": weight, f"b{i}": bias}
    others = ("shift", "scale", "activation", "squash", "clip", "sees")
    np.savez(path, **arrays | {name: getattr(policy, name) for name in others})


def _read_npz(file: Path, std: float | None) -> Network:
    _bounded(file)
    arrays = read_arrays(file)
    hidden = sum(name[:1] == "w" and name[1:].isdecimal() for name in arrays)
    layers = _take(arrays, *(f"{kind}{i}" for i in range(hidden) for kind in "wb"), "mu_w", "mu_b")
    spread, *_ = _take(arrays, "std") if "std" in arrays else [None]
    others: dict[str, Any] = {name: _take(arrays, name)[0] for name in ("shift", "scale") if name in arrays}
    kinds = {"activation": str, "squash": bool, "clip": float, "sees": str}
    others |= {name: kind(arrays[name]) for name, kind in kinds.items() if name in arrays}
    return _network(layers, spread, std, **others)


def _read_stable_baselines(
    file: Path, std: float | None, vecnormalize: str | os.PathLike[str] | None
) -> Network:
    _bounded(file, "data", "policy.pth")
    with zipfile.ZipFile(file) as archive:
        if missing := {"data", "policy.pth"} - {*archive.namelist()}:
            raise UnreadableFile(f"it is cut off or no Stable-Baselines3 zip, which must hold {min(missing)}")
        data, content = archive.read("data"), archive.read("policy.pth")
    arrays, settings = _weights(content), _settings(data)
    squash, default = True, "relu"
    spread: Any = None
    if "actor.log_std.weight" in arrays:  # SAC, TQC
        hidden, last = "actor.latent_pi", ["actor.mu"]
        spread = tuple(_take(arrays, "actor.log_std.weight", "actor.log_std.bias"))
    elif any(name.startswith("actor.mu.") for name in arrays):  # TD3, DDPG
        hidden, last = "actor.mu", []
    elif "action_net.weight" in arrays and "log_std" in arrays:  # PPO, TRPO, A2C
        hidden, last = "mlp_extractor.policy_net", ["action_net"]
        spread, squash, default = torch.exp(*_take(arrays, "log_std")), False, "tanh"
    else:
        kind = "of ARS, which is not read" if "action_net.0.weight" in arrays else "of no known algorithm"
        raise UnreadableFile(f"policy.pth is {kind}: it holds {', '.join(list(arrays)[:5]) or 'nothing'}")
    parts = [name for name in arrays if name.startswith(f"{hidden}.")]
    numbers = sorted({int(name.split(".")[-2]) for name in parts if name.endswith(".weight")})
    plain = [f"{hidden}.{number}.{part}" for number in numbers for part in ("weight", "bias")]
    strange = ("features_extractor", "lstm", "shared_net")
    odd = sorted({*parts} - {*plain}) + [name for name in arrays if any(part in name for part in strange)]
    if odd or numbers != list(range(0, 2 * len(numbers), 2)):
        got = ", ".join(odd[:3]) or f"layers {numbers}"
        raise InvalidInput(f"only policies of dense layers with an activation each are read, got {got}")
    layers = _take(arrays, *plain, *(f"{name}.{part}" for name in last for part in ("weight", "bias")))
    # A class, as text such as <class 'torch.nn.modules.activation.ReLU'>.
    named = str(settings["policy_kwargs"].get("activation_fn", default)).strip("<>'").split(".")[-1]
    made = _network(layers, spread, std, activation=named.lower(), squash=squash)
    if vecnormalize is not None and str(vecnormalize) != NOT_NORMALISED:
        return _normalised(made, Path(vecnormalize))
    if vecnormalize is None and (doubt := _may_be_normalised(file, settings, on_policy=not squash)):
        raise InvalidInput(
            f"{doubt}, and without VecNormalize's statistics it would be another policy: give an npz of them "
            f"as vecnormalize (`load_policy` says how), or {NOT_NORMALISED!r} if it saw plain observations"
        )
    return made


def _settings(content: bytes) -> dict[str, Any]:
    """The member `data` of a zip: settings and attributes of the algorithm, as JSON.

    What a user's own class computes cannot be told from its weights, so it is refused.
    """
    try:
        settings = json.loads(content)
    except (ValueError, RecursionError):
        raise UnreadableFile("its member data is not JSON, as Stable-Baselines3 writes it") from None
    if not isinstance(settings, dict) or not isinstance(settings.setdefault("policy_kwargs", {}), dict):
        raise UnreadableFile("its member data must be a JSON object, with another as its policy_kwargs")
    space = settings.get("observation_space")
    kind = str(space.get(":type:", "Box") if isinstance(space, dict) else "Box")
    if "Box" not in kind:
        raise InvalidInput(f"only policies that see one row of numbers (a Box) can be read, got {kind}")
    if settings.get("use_sde") or settings["policy_kwargs"].get("use_sde"):
        raise InvalidInput("a policy with state-dependent exploration (use_sde) cannot be read")
    extractor = settings["policy_kwargs"].get("features_extractor_class")
    if extractor not in (None, FLATTEN):
        raise InvalidInput(f"only policies that see plain observations are read, got {extractor}")
    own = settings.get("policy_class")
    module = own.get("__module__") if isinstance(own, dict) else own
    if own is not None and str(module).split(".")[0] not in ("stable_baselines3", "sb3_contrib"):
        rule = "only policies of a class of stable_baselines3 or sb3_contrib can be read"
        raise InvalidInput(f"{rule}, got a policy_class of the module {module}")
    return settings


def _weights(content: bytes) -> dict[str, Tensor]:
    """The tensors of policy.pth by name; it is a zip itself, and a stride of 0 repeats a number at will."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        _bounded(io.BytesIO(content))
    arrays = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if not isinstance(arrays, dict) or not all(isinstance(name, str) for name in arrays):
        raise UnreadableFile("policy.pth must hold tensors by their names")
    tensors = {name: value for name, value in arrays.items() if isinstance(value, Tensor)}
    if sum(value.numel() * value.element_size() for value in tensors.values()) > MOST_BYTES:
        raise UnreadableFile(f"policy.pth must hold at most {MOST_BYTES >> 20} MB")
    return tensors


def _bounded(file: Path | io.BytesIO, *names: str) -> None:
    """Refuses a zip whose members (those of these names, or all) are too large, before they are expanded."""
    with zipfile.ZipFile(file) as archive:
        members = [one for one in archive.infolist() if not names or one.filename in names]
    total = sum(one.file_size for one in members if one.compress_size < one.file_size)
    if total > MOST_BYTES:
        raise UnreadableFile(f"it must expand to at most {MOST_BYTES >> 20} MB, got {total >> 20:,} MB")


def _may_be_normalised(file: Path, settings: Mapping[str, Any], *, on_policy: bool) -> str | None:
    """Why a policy may have seen VecNormalize's observations; None if it has not.

    An on-policy algorithm keeps the original of the last observation only where VecNormalize changed it; the
    others always keep it. Before the first step neither keeps any.
    """
    beside = [file.with_name("vecnormalize.pkl"), file.with_suffix("") / "vecnormalize.pkl"]
    if found := [path for path in beside if path.exists()]:
        return f"there is {found[0]}"
    if settings.get("_last_original_obs") is not None and on_policy:
        return "it was trained with VecNormalize"
    if not on_policy or settings.get("_last_obs") is None:
        return "it may have been trained with VecNormalize, which its file does not say"
    return None


def _normalised(policy: Network, file: Path) -> Network:
    """The policy on observations as VecNormalize makes them, by the statistics in an npz."""
    if file.suffix != ".npz":
        known = f"an npz of mean, var, clip and epsilon, or {NOT_NORMALISED!r}"
        raise InvalidInput(f"vecnormalize must be {known}, got {file}")
    if not file.is_file():
        raise UnreadableFile(f"there is no file {file} of VecNormalize's statistics")
    with _named(file):
        _bounded(file)
        mean, var, clip, epsilon = _take(read_arrays(file), "mean", "var", "clip", "epsilon")
        single = clip.numel() == epsilon.numel() == 1
        if mean.shape != policy.shift.shape or var.shape != mean.shape or not single:
            rule = f"mean and var must have a number for each of {policy.inputs} inputs, clip and epsilon one"
            got = [list(part.shape) for part in (mean, var, clip, epsilon)]
            raise InvalidInput(f"{rule}, got shapes {got}")
        if not (var >= 0).all() or not epsilon >= 0:
            raise InvalidInput("var and epsilon must be at least 0")
        return replace(policy, shift=mean, scale=torch.sqrt(var + epsilon), clip=float(clip))


def _network(
    layers: list[Tensor], spread: Tensor | tuple[Tensor, Tensor] | None, std: float | None, **others: Any
) -> Network:
    """The policy of weights and biases in turn; its noise is the file's, or else what was given."""
    if spread is None and std is None:
        raise InvalidInput("std must be given for a policy file that has none (0: no noise), got None")
    if spread is None:
        spread = torch.full((len(layers[-1]),), float(std or 0), dtype=torch.float64)
    zeros = torch.zeros(layers[0].shape[-1], dtype=torch.float64)
    plain = {"shift": zeros, "scale": zeros + 1}
    return Network(tuple(layers[::2]), tuple(layers[1::2]), spread, **plain | others)


def _take(arrays: Mapping[str, Any], *names: str) -> list[Tensor]:
    """The arrays of these names in float64, refused unless they are there and hold real numbers."""
    if missing := [name for name in names if name not in arrays]:
        raise UnreadableFile(f"it must hold {', '.join(missing)}; there are {', '.join(arrays)}")
    for name in names:
        array = arrays[name]
        tensor = isinstance(array, Tensor)
        if not (array.is_floating_point() and not array.is_sparse if tensor else array.dtype.kind in "fiu"):
            raise InvalidInput(f"{name} must hold real numbers, got {array.dtype}")
    return [torch.as_tensor(arrays[name], dtype=torch.float64) for name in names]
