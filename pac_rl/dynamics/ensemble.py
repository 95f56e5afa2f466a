"""The probabilistic ensemble of PETS, from mbrl-lib: trained, saved and loaded without pickle.

The only file that meets mbrl-lib.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from pac_core import InvalidInput
from pac_core.bounds import check_integer
from pac_core.certificates import Record
from pac_core.errors import UnreadableFile
from pac_core.files import whole_file
from pac_core.splits import ids_digest, refuse_overlap, unit_names
from pac_rl.systems import require_module

if TYPE_CHECKING:
    from mbrl.models import GaussianMLP, OneDTransitionRewardModel

FORMATS = ("pac-sets ensemble 1", "pac-sets ensemble 2")
"""Those that are read; the last one is written. A reader of the first alone knows SiLU only."""
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "silu": nn.SiLU,
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
"""Between layers, as torch has them by default; the functions of these names are in torch.nn.functional."""
IN_PLACE = ("silu", "relu", "leaky_relu", "elu")
MANY = 700
"""Rows from which on members are computed one after the other, on a CPU: fewer gain nothing by it."""
MOST_ROLLOUTS = 10**7
"""That an ensemble may be trained on: a file that claims more is not believed."""


@dataclass(frozen=True)
class Settings:
    """How an ensemble is built and trained."""

    members: int = 5
    hidden: int = 200
    layers: int = 4
    epochs: int = 7
    """at most; training stops early, see `patience`"""
    patience: int = 5
    """epochs without a better validation score before training stops"""
    batch: int = 512
    rate: float = 2e-3
    """step size of Adam at the start; it falls to 0 over the epochs"""
    held_out: float = 0.05
    """share of the transitions that is kept for the validation score"""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("members", "hidden", "layers", "epochs", "patience", "batch"):
            check_integer(name, getattr(self, name), least=1)
        check_integer("seed", self.seed, least=0)
        if not 0 < self.rate < np.inf or not 0 < self.held_out < 1:
            got = f"{self.rate} and {self.held_out}"
            raise InvalidInput(f"rate must be above 0 and held_out between 0 and 1, got {got}")


@dataclass(frozen=True)
class Epoch:
    """What training reports after each epoch.

    loss: mean negative log likelihood of the training batches
    score: root-mean-square error on the held-out steps, in units of a step's deviation
    best: the least score so far
    """

    number: int
    of: int
    loss: float
    score: float
    best: float

    def __str__(self) -> str:
        mark = "  best so far" if self.score == self.best else ""
        return f"epoch {self.number}/{self.of}  loss {self.loss:.3f}  validation error {self.score:.4f}{mark}"


@dataclass(frozen=True, eq=False)
class Ensemble:
    """E networks that each forecast the next state as a Gaussian.

    network: mbrl-lib's, from normalised states and actions to the change of state in `units`; refused unless
        it is of this kind, see `from_mbrl`
    shift, scale: `[D + A]` of the inputs
    units: `[D]` the deviation of a state's change in one step
    environment: its id
    history: one entry per epoch of training
    trained_on: ids of the rollouts that it has seen in training, their seeds as a rule: nothing can be
        promised about them, so they are refused as units; None if nobody says
    absolute: columns of the state that the network forecasts themselves, instead of their change
    """

    network: GaussianMLP
    shift: Tensor
    scale: Tensor
    units: Tensor
    environment: str
    settings: Settings = field(default_factory=Settings)
    history: tuple[Epoch, ...] = ()
    trained_on: NDArray[Any] | None = None
    absolute: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_network(self.network)
        layers = self.network.hidden_layers
        sizes = (len(self.network), layers[0][0].out_size, len(layers))
        if sizes != (self.settings.members, self.settings.hidden, self.settings.layers):
            raise InvalidInput(f"settings must say the network's members, hidden and layers, {sizes}")
        if (self.network.out_size, self.network.in_size) != (self.dims, len(self.shift)):
            got = f"got {self.dims} and {len(self.shift)}"
            raise InvalidInput(f"units and shift must fit each output and input of the network, {got}")
        normaliser = torch.cat([self.shift, self.scale, self.units])
        if not torch.isfinite(normaliser).all() or not (normaliser[len(self.shift) :] > 0).all():
            raise InvalidInput("shift, scale and units must be finite, and scale and units above 0")
        if not all(check_integer("absolute", column, least=0) < self.dims for column in self.absolute):
            raise InvalidInput(f"absolute must be columns below {self.dims}, got {self.absolute}")
        if self.trained_on is not None:
            object.__setattr__(self, "trained_on", rollout_ids("trained_on", self.trained_on))

    @property
    def dims(self) -> int:
        """D, the numbers of a state."""
        return len(self.units)

    @property
    def action_dims(self) -> int:
        """A, the numbers of an action."""
        return len(self.shift) - self.dims

    @property
    def members(self) -> int:
        """M, or E."""
        return self.settings.members

    @property
    def device(self) -> torch.device:
        return self.units.device

    @cached_property
    def activation(self) -> str:
        """The network's, between its layers; one of `ACTIVATIONS`."""
        return _activation(self.network)

    @cached_property
    def _absolute(self) -> Tensor:
        """`[D]` whether the network forecasts a number itself."""
        return torch.tensor([i in self.absolute for i in range(self.dims)], device=self.device)

    def step(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances `[E, B, D]` of the next state by each member.

        `states` are `[B, D]`, the same for all members, or `[E, B, D]`.
        """
        change, log_var = self._forward(self._normalised(states, actions))
        before = states.masked_fill(self._absolute, 0.0) if self.absolute else states
        return torch.addcmul(before, change, self.units), torch.exp(log_var) * self.units**2

    def _normalised(self, states: Tensor, actions: Tensor) -> Tensor:
        """The network's inputs; mbrl-lib's normalisers are doubles as a rule, its networks never."""
        return ((torch.cat([states, actions], dim=-1) - self.shift) / self.scale).to(self.units.dtype)

    def _forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """`[E, B, D]` change of state in `units`, and the logarithm of its variance."""
        activate = getattr(functional, self.activation)
        if self.activation in IN_PLACE:
            activate = partial(activate, inplace=not torch.is_grad_enabled())
        alone = inputs.shape[-2] >= MANY and inputs.device.type == "cpu" and not torch.is_grad_enabled()
        heads = self._one_by_one(inputs, activate) if alone else self._together(inputs, activate)
        change, log_var = heads.chunk(2, dim=-1)
        log_var = self.network.max_logvar - functional.softplus(self.network.max_logvar - log_var)
        log_var = self.network.min_logvar + functional.softplus(log_var - self.network.min_logvar)
        return change, log_var

    def _together(self, inputs: Tensor, activate: Callable[[Tensor], Tensor]) -> Tensor:
        """`[E, B, 2 D]` what the last layer gives, all members in one product."""
        hidden = inputs if inputs.ndim == 3 else inputs.expand(self.members, -1, -1)
        for block in self.network.hidden_layers:
            hidden = activate(torch.baddbmm(block[0].bias, hidden, block[0].weight))
        last = self.network.mean_and_logvar
        return torch.baddbmm(last.bias, hidden, last.weight)

    def _one_by_one(self, inputs: Tensor, activate: Callable[[Tensor], Tensor]) -> Tensor:
        """The same, one member after the other in the same two buffers, which stay in the cache."""
        layers, last = [block[0] for block in self.network.hidden_layers], self.network.mean_and_logvar
        buffers = inputs.new_empty((2, inputs.shape[-2], self.settings.hidden))
        heads = inputs.new_empty((self.members, inputs.shape[-2], 2 * self.dims))
        for e in range(self.members):
            hidden = inputs if inputs.ndim == 2 else inputs[e]
            for i, layer in enumerate(layers):
                made = torch.addmm(layer.bias[e], hidden, layer.weight[e], out=buffers[i % 2])
                hidden = activate(made)
            torch.addmm(last.bias[e], hidden, last.weight[e], out=heads[e])
        return heads

    def refuse_seen(self, ids: Any, part: str = "tune, calibrate or test") -> None:
        """Raise `OverlappingSplits` if a unit is among the rollouts that the ensemble was trained on.

        One that does not know them is refused: state them, `dataclasses.replace(ensemble, trained_on=ids)`.
        """
        if self.trained_on is None:
            rule = "does not know which rollouts it was trained on: state their ids as its trained_on"
            raise InvalidInput(f"the ensemble {rule}, to tell them from units")
        refuse_overlap({"train": self.trained_on, part: ids})

    @property
    def train_record(self) -> Record:
        """The rollouts it was trained on, for a certificate; "not named" if it does not know them."""
        if self.trained_on is None:
            return Record("not named")
        return Record("training rollouts, by seed or id", len(self.trained_on), ids_digest(self.trained_on))

    @classmethod
    def from_mbrl(
        cls, model: OneDTransitionRewardModel, environment: str, *, trained_on: Any = None
    ) -> Ensemble:
        """What mbrl-lib trained itself: a `GaussianMLP` in its `OneDTransitionRewardModel`.

        Activation, input normaliser, elite members, `target_is_delta` and `no_delta_list` are the model's; a
        learned reward is left out. What cannot be read so is refused: deterministic heads, which say no
        variance, and an `obs_process_fn`. How the model follows its members (`propagation_method`) is
        not taken over: `forecast_closed_loop` and `forecast_plans` have ways of their own.

        environment: whose state the model forecasts, number by number in the order of `Environment.names`
        trained_on: ids of the rollouts that it has seen, as far as they can be units; see `trained_on`
        """
        if type(model) is not require_module("mbrl.models").OneDTransitionRewardModel:
            kind = type(model).__name__
            raise InvalidInput(f"model must be mbrl-lib's OneDTransitionRewardModel, got {kind}")
        if model.obs_process_fn is not None:
            raise InvalidInput(
                "model must see the plain state, got an obs_process_fn, which no file can hold"
            )
        given = model.model
        _check_network(given, elites=True)
        dims = given.out_size - bool(model.learned_rewards)
        if given.in_size <= dims:
            got = f"{given.in_size} inputs and {given.out_size} outputs"
            raise InvalidInput(f"model must have inputs for the state and the action, got {got}")
        everyone = list(range(len(given)))
        elites = [int(i) for i in given.elite_models] if given.elite_models and everyone[1:] else everyone
        itself = [int(i) for i in model.no_delta_list] if model.target_is_delta else range(dims)
        if not {*elites} <= {*everyone} or not all(-dims <= i < dims for i in itself):
            rule = f"elites among its {len(given)} members and a no_delta_list among its {dims} numbers"
            raise InvalidInput(f"model must have {rule} of the state, got {elites} and {[*itself]}")
        shape = given.hidden_layers[0][0].out_size, len(given.hidden_layers)
        settings = Settings(members=len(elites), hidden=shape[0], layers=shape[1])
        columns = [*range(dims), *range(given.out_size, given.out_size + dims)]
        with torch.no_grad():
            weights = {n: t[elites] if t.ndim == 3 else t[:, :dims] for n, t in given.state_dict().items()}
        for part in ("weight", "bias"):
            weights[f"mean_and_logvar.{part}"] = weights[f"mean_and_logvar.{part}"][..., columns]
        network = new_network(settings, dims, given.in_size - dims, given.device, _activation(given))
        network.load_state_dict(weights)
        ones = torch.ones(given.in_size, device=given.device)
        normaliser = model.input_normalizer
        made = cls(
            network.eval(),
            shift=0 * ones if normaliser is None else normaliser.mean.flatten(),
            scale=ones if normaliser is None else normaliser.std.flatten(),
            units=ones[:dims],
            environment=environment,
            settings=settings,
            trained_on=trained_on,
            absolute=tuple(sorted({i % dims for i in itself})),
        )
        made._agrees_with(model, elites)
        return made

    def _agrees_with(self, model: OneDTransitionRewardModel, elites: list[int]) -> None:
        """Refuses a model that computes anything else, whatever the reason."""
        drawn = torch.randn((64, len(self.shift)), generator=torch.Generator().manual_seed(0)).to(self.device)
        states, actions = (drawn * self.scale + self.shift).to(self.units).tensor_split([self.dims], dim=1)
        with torch.no_grad():
            inputs = model._get_model_input(states, actions)
            mean, log_var = model.model.forward(inputs, use_propagation=False)
            theirs = (inputs, mean[elites, :, : self.dims], log_var[elites, :, : self.dims])
            ours = (self._normalised(states, actions), *self._forward(inputs))
        off = max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))
        if not off < 1e-3:
            raise InvalidInput(f"model must compute what its layers say, got numbers off by {off:.2g}")

    def for_mbrl(self) -> OneDTransitionRewardModel:
        """The same ensemble as mbrl-lib's own planners and `ModelEnv` take it, in the state's own units."""
        network = new_network(self.settings, self.dims, self.action_dims, self.device, self.activation)
        weights = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        logs = 2 * torch.log(self.units)
        for part in ("weight", "bias"):
            weights[f"mean_and_logvar.{part}"][..., : self.dims] *= self.units
        weights["mean_and_logvar.bias"][..., self.dims :] += logs
        for end in ("min_logvar", "max_logvar"):
            weights[end] += logs
        network.load_state_dict(weights)
        model = require_module("mbrl.models").OneDTransitionRewardModel(
            network, normalize=True, learned_rewards=False, no_delta_list=list(self.absolute)
        )
        model.input_normalizer.mean, model.input_normalizer.std = self.shift[None], self.scale[None]
        return model

    def to(self, device: str | torch.device) -> Ensemble:
        """The same on another device."""
        return self._copy(self.settings, self.network.state_dict(), device)

    def first(self, members: int) -> Ensemble:
        """The ensemble of the first so many members."""
        if not 1 <= members <= self.settings.members:
            raise InvalidInput(f"members must be 1 to {self.settings.members}, got {members}")
        # The members' weights have an axis for them; what all members share has two dimensions at most.
        weights = {n: t[:members] if t.ndim == 3 else t for n, t in self.network.state_dict().items()}
        return self._copy(replace(self.settings, members=members), weights, self.device)

    def _copy(self, settings: Settings, weights: dict[str, Tensor], device: str | torch.device) -> Ensemble:
        network = new_network(settings, self.dims, self.action_dims, device, self.activation)
        network.load_state_dict(weights)
        parts = {name: getattr(self, name).to(device) for name in ("shift", "scale", "units")}
        return replace(self, network=network.eval(), settings=settings, **parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes weights, normalisers and settings to a safetensors file."""
        write_tensors(path, self.tensors(), self.about())

    def tensors(self) -> dict[str, Tensor]:
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        return tensors | {"shift": self.shift, "scale": self.scale, "units": self.units}

    def about(self) -> dict[str, Any]:
        return {
            "environment": self.environment,
            "settings": asdict(self.settings),
            "history": [asdict(epoch) for epoch in self.history],
            "trained_on": _packed(self.trained_on),
            "activation": self.activation,
            "absolute": list(self.absolute),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Ensemble:
        """The ensemble that `save` wrote."""
        tensors, about = read_tensors(path)
        try:
            settings = Settings(**about["settings"])
            dims, inputs = len(tensors["units"]), len(tensors["shift"])
            network = new_network(settings, dims, inputs - dims, device, about.get("activation", "silu"))
            weights = {n.removeprefix("network."): t for n, t in tensors.items() if n[:8] == "network."}
            network.load_state_dict(weights)
            parts: Any = {name: tensors[name].to(device) for name in ("shift", "scale", "units")}
            return cls(
                network.eval(),
                **parts,
                environment=about["environment"],
                settings=settings,
                history=tuple(Epoch(**epoch) for epoch in about["history"]),
                trained_on=_unpacked(about.get("trained_on")),
                absolute=tuple(about.get("absolute", ())),
            )
        except (KeyError, TypeError, ValueError, RuntimeError, InvalidInput) as error:
            raise UnreadableFile(f"{path}: the ensemble's parts do not fit together: {error}") from None

    def __repr__(self) -> str:
        shape = f"{self.settings.members} members of {self.settings.layers} x {self.settings.hidden}"
        sizes = f"{self.dims} state, {self.action_dims} action numbers"
        return f"Ensemble({shape} for {self.environment}: {sizes})"


def new_network(
    settings: Settings,
    dims: int,
    action_dims: int,
    device: str | torch.device = "cpu",
    activation: str = "silu",
) -> GaussianMLP:
    """mbrl-lib's ensemble of Gaussian networks with fresh weights, drawn from the seed."""
    with torch.random.fork_rng():  # mbrl-lib draws from the global generator
        torch.manual_seed(settings.seed)
        return require_module("mbrl.models").GaussianMLP(
            dims + action_dims,
            dims,
            torch.device(device),
            num_layers=settings.layers,
            ensemble_size=settings.members,
            hid_size=settings.hidden,
            activation_fn_cfg={"_target_": f"torch.nn.{ACTIVATIONS[activation].__name__}"},
        )


def _check_network(network: Any, *, elites: bool = False) -> None:
    """Refuses a network that `Ensemble.step` would run as another."""
    if type(network) is not require_module("mbrl.models").GaussianMLP:
        raise InvalidInput(f"the network must be mbrl-lib's GaussianMLP, got {type(network).__name__}")
    if network.deterministic:
        raise InvalidInput("the network must forecast a variance, got deterministic heads")
    if network.elite_models and not elites:
        raise InvalidInput("the network must have no elite members: Ensemble.from_mbrl reads those alone")
    if not all(w.dtype == torch.float32 and torch.isfinite(w).all() for w in network.parameters()):
        raise InvalidInput("the network's weights must be finite numbers in float32")
    _activation(network)


def _activation(network: GaussianMLP) -> str:
    """The name of the one activation between the layers of a network, refused unless it is known."""
    # Acting in place gives the same numbers; what a module prints are its other options.
    modules = [block[1] for block in network.hidden_layers]
    found = {re.sub("(, )?inplace=True", "", str(module)): type(module) for module in modules}
    names = [name for name, kind in ACTIVATIONS.items() if found == {str(kind()): kind}]
    if not names:
        rule = f"one of {', '.join(ACTIVATIONS)} with torch's default options, the same after every layer"
        raise InvalidInput(f"the network's activation must be {rule}, got {', '.join(found)}")
    return names[0]


def rollout_ids(name: str, ids: Any) -> NDArray[Any]:
    """Ids of rollouts, each once and sorted: whole numbers as they are, anything else as text."""
    names = unit_names(name, ids)
    if len(names) > MOST_ROLLOUTS:
        raise InvalidInput(f"{name} must be at most {MOST_ROLLOUTS:,} ids of rollouts, got {len(names):,}")
    array = np.asarray(ids)
    numbers = array.dtype.kind in "iu" and array.max() < 2**63
    found: NDArray[Any] = np.unique(array.astype(np.int64) if numbers else names)
    return found


def _packed(ids: NDArray[Any] | None) -> list[Any] | None:
    """Names as they are; whole numbers as pairs, the first of a range and the one after its last."""
    if ids is None or ids.dtype.kind != "i":
        return None if ids is None else ids.tolist()
    ranges = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
    return [[int(part[0]), int(part[-1]) + 1] for part in ranges]


def _unpacked(stored: Any) -> NDArray[Any] | None:
    """What `_packed` made; refused before it takes more room than training could."""
    if stored is None or (isinstance(stored, list) and all(isinstance(name, str) for name in stored)):
        return None if stored is None else np.array(stored, dtype=np.str_)
    if sum(check_integer("trained_on", end - first, least=1) for first, end in stored) > MOST_ROLLOUTS:
        raise InvalidInput(f"trained_on must be at most {MOST_ROLLOUTS:,} ids of rollouts")
    return np.concatenate([np.arange(first, end, dtype=np.int64) for first, end in stored])


def write_tensors(path: str | os.PathLike[str], tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """A safetensors file with a description, complete or not there at all."""
    here = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    header = {"format": FORMATS[-1], "about": json.dumps(about)}
    content = require_module("safetensors.torch").save(here, header)
    with whole_file(path) as part:
        part.write_bytes(content)


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote, on the CPU."""
    if not Path(path).is_file():
        raise UnreadableFile(f"there is no ensemble file {path}")
    library = require_module("safetensors")
    try:
        with library.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") not in FORMATS:
                raise UnreadableFile(f"{path} is not a {FORMATS[-1]!r} file")
            return {name: file.get_tensor(name) for name in list(file.keys())}, json.loads(header["about"])
    except (library.SafetensorError, OSError, json.JSONDecodeError, KeyError) as error:
        raise UnreadableFile(f"{path} is cut off or no ensemble: {error}") from None
