"""Training of the dynamics ensemble, one epoch after the other, each of which can be resumed from."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator, default_rng
from numpy.typing import NDArray
from torch import Tensor

from pac_core import InvalidInput
from pac_core.arrays import check_returned
from pac_core.bounds import check_integer
from pac_core.errors import UnreadableFile
from pac_rl.dynamics.ensemble import (
    Ensemble,
    Epoch,
    Settings,
    new_network,
    read_tensors,
    rollout_ids,
    write_tensors,
)
from pac_rl.dynamics.model import Dynamics
from pac_rl.rollouts import Rollouts, join_rows
from pac_rl.systems.functions import AnySystem, Floats, Rngs, check_system, require_module

COLLECT = 10
"""The stream of what `fit_dynamics` draws, of which none is a unit's."""
HOLD = 4
"""Steps for which it holds an action, on average."""


@dataclass(frozen=True, eq=False)
class Transitions:
    """M steps: `states` `[M, D]`, `actions` `[M, A]` and what followed, `[M, D]`.

    ids: of the rollouts that the steps are taken from, each once: their seeds, or names of recordings; None
        if nobody says, see `Ensemble.trained_on`
    """

    states: Floats
    actions: Floats
    following: Floats
    ids: NDArray[Any] | None = None

    @classmethod
    def of(cls, rollouts: Rollouts) -> Transitions:
        """Every step of the rollouts that was taken and did not diverge."""
        taken = rollouts.acted & np.isfinite(rollouts.states).all(axis=2)
        return cls(rollouts.before[taken], rollouts.actions[taken], rollouts.states[taken], rollouts.seeds)

    @classmethod
    def join(cls, parts: list[Transitions]) -> Transitions:
        """All steps; of which rollouts is known only if it is of every part."""
        known = [part.ids for part in parts if part.ids is not None]
        ids = np.unique(np.concatenate(known)) if len(known) == len(parts) else None
        return replace(join_rows([replace(part, ids=None) for part in parts]), ids=ids)


def train(
    transitions: Transitions,
    environment: str,
    settings: Settings | None = None,
    *,
    device: str | torch.device = "cpu",
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[Epoch], None] | None = None,
) -> Ensemble:
    """An ensemble trained on the transitions, with the weights of the best validation score.

    transitions: its `ids` are kept with the ensemble, which refuses them as units from then on
    environment: the id, kept with the ensemble
    checkpoint: a file written after each epoch, from which an interrupted training goes on; it comes
        to the same weights as one that was not interrupted, on the same kind of device
    progress: called after each epoch
    """
    parts = {name: getattr(transitions, name) for name in ("states", "actions", "following")}
    sizes = {len(part) for part in parts.values()}
    if len(sizes) != 1 or min(sizes) < 100:
        raise InvalidInput(f"transitions must be at least 100 steps, all parts as many, got {sorted(sizes)}")
    for name, part in parts.items():
        if not np.isfinite(part).all():
            raise InvalidInput(f"{name} of the transitions must be finite, got NaN or infinity")
    if transitions.ids is not None:
        rollout_ids("ids of the transitions", transitions.ids)
    training = Training(transitions, environment, settings or Settings(), device)
    if checkpoint is not None and Path(checkpoint).exists():
        training.restore(checkpoint)
    while not training.finished:
        training.run_epoch()
        if checkpoint is not None:
            training.keep(checkpoint)
        if progress is not None:
            progress(training.ensemble.history[-1])
    training.network.eval().load_state_dict(training.best)
    return training.ensemble


class Training:
    """A training under way: the latest weights, the best ones, and the optimizer between two epochs."""

    def __init__(
        self, transitions: Transitions, environment: str, settings: Settings, device: str | torch.device
    ) -> None:
        changes = transitions.following - transitions.states
        inputs = np.concatenate([transitions.states, transitions.actions], axis=1)
        shift, scale, units = inputs.mean(axis=0), inputs.std(axis=0), changes.std(axis=0)
        scale[scale < 1e-8] = 1.0
        units[units < 1e-8] = 1.0
        order = np.random.default_rng(settings.seed).permutation(len(inputs))
        kept = max(1, int(settings.held_out * len(order)))

        def here(values: np.ndarray) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float32, device=device)

        all_inputs, targets = here((inputs - shift) / scale), here(changes / units)
        self._train = all_inputs[order[kept:]], targets[order[kept:]]
        self._held_out = all_inputs[order[:kept]], targets[order[:kept]]
        self.network = new_network(settings, changes.shape[1], transitions.actions.shape[1], device)
        parts = (self.network, here(shift), here(scale), here(units), environment, settings)
        self.ensemble = Ensemble(*parts, trained_on=transitions.ids)
        self.best: dict[str, Tensor] = {}
        self._adam = torch.optim.Adam(self.network.parameters(), lr=settings.rate, fused=True)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or the last few brought nothing."""
        history, settings = self.ensemble.history, self.ensemble.settings
        if not history:
            return False
        since = len(history) - max(i for i, epoch in enumerate(history, 1) if epoch.score == epoch.best)
        return len(history) >= settings.epochs or since >= settings.patience

    def run_epoch(self) -> None:
        """Goes over the training steps once, each member in its own order."""
        settings, history = self.ensemble.settings, self.ensemble.history
        inputs, targets = self._train
        rng = torch.Generator().manual_seed(settings.seed * 10_007 + len(history))
        orders = torch.stack([torch.randperm(len(inputs), generator=rng) for _ in range(settings.members)])
        batches = torch.split(orders.to(inputs.device), settings.batch, dim=1)
        losses = []
        for done, rows in enumerate(batches):
            passed = (len(history) + done / len(batches)) / settings.epochs
            for group in self._adam.param_groups:
                group["lr"] = settings.rate * 0.5 * (1 + math.cos(math.pi * passed))
            loss, _ = self.network.update(inputs[rows], self._adam, target=targets[rows])
            losses.append(loss / settings.members)
        score = self.validate()
        best = min([score, *(epoch.score for epoch in history)])
        epoch = Epoch(len(history) + 1, settings.epochs, float(np.mean(losses)), score, best)
        self.ensemble = replace(self.ensemble, history=(*history, epoch))
        if score == best:
            self.best = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}

    def validate(self) -> float:
        """Root-mean-square error of the members' mean on the held-out steps."""
        self.network.eval()
        squares = 0.0
        with torch.no_grad():
            for inputs, targets in zip(*(torch.split(part, 4096) for part in self._held_out), strict=True):
                mean, _ = self.network.forward(inputs, use_propagation=False)
                squares += float(((mean.mean(dim=0) - targets) ** 2).mean(dim=1).sum())
        return math.sqrt(squares / len(self._held_out[0]))

    def keep(self, path: str | os.PathLike[str]) -> None:
        """Writes everything that the next epoch needs."""
        parts = {"latest": self.network.state_dict(), "best": self.best}
        parts |= {f"adam.{i}": part for i, part in self._adam.state_dict()["state"].items()}
        tensors = {f"{part}.{name}": tensor for part, some in parts.items() for name, tensor in some.items()}
        write_tensors(path, tensors, self.ensemble.about() | {"data": self._digest})

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Goes on from what `keep` wrote; refused if it belongs to other data or settings."""
        tensors, about = read_tensors(path)
        if about.get("data") != self._digest or about.get("settings") != asdict(self.ensemble.settings):
            raise UnreadableFile(f"{path} is of other data or settings; remove it to start anew")

        def part(name: str) -> dict[str, Tensor]:
            return {key.removeprefix(name): t for key, t in tensors.items() if key.startswith(name)}

        adam = self._adam.state_dict()
        adam["state"] = {i: part(f"adam.{i}.") for i in adam["param_groups"][0]["params"]}
        try:
            self.network.load_state_dict(part("latest."))
            self._adam.load_state_dict(adam)
            self.best = part("best.")
            history = tuple(Epoch(**epoch) for epoch in about["history"])
        except (KeyError, TypeError, RuntimeError) as error:
            raise UnreadableFile(f"{path} holds no checkpoint of this training: {error}") from None
        self.ensemble = replace(self.ensemble, history=history)

    @cached_property
    def _digest(self) -> str:
        """SHA-256 of the steps, those held out included, which tells them from others."""
        hashed = hashlib.sha256()
        for part in (*self._train, *self._held_out):
            hashed.update(part.cpu().numpy().tobytes())
        return hashed.hexdigest()


def fit_dynamics(
    system: AnySystem,
    *,
    episodes: int,
    steps: int,
    act: Callable[[Floats, Rngs], Any] | None = None,
    settings: Settings | None = None,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> Dynamics:
    """A model for people who have none: our ensemble, trained on episodes of the system.

    episodes, steps: how many, and how long they are at most
    act: from states `[B, D]` and a generator each to actions `[B, A]`, which are cut off at their range; by
        default drawn from all of it, and held for a few steps
    folder: where `ensemble.safetensors` is left, for `Ensemble.load`, and an interrupted training goes on
    """
    require_module("mbrl.models")
    check_system(system)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    id = str(getattr(getattr(system, "environment", system), "id", type(system).__name__))
    checkpoint = None if folder is None else Path(folder) / "checkpoint.safetensors"
    made = collect(system, episodes=episodes, steps=steps, act=act, seed=seed)
    ensemble = train(made, id, settings, checkpoint=checkpoint)
    if folder is not None:
        ensemble.save(Path(folder) / "ensemble.safetensors")
    return Dynamics.of(ensemble)


def collect(
    system: AnySystem, *, episodes: int, steps: int, act: Callable[[Floats, Rngs], Any] | None, seed: int
) -> Transitions:
    """Every step that succeeded in episodes of their own; see `fit_dynamics`."""
    for name, value, least in (("episodes", episodes, 1), ("steps", steps, 1), ("seed", seed, 0)):
        check_integer(name, value, least=least)
    low, high = system.low, system.high
    if act is None and not np.isfinite([low, high]).all():
        raise InvalidInput(f"act must be given where actions have no range to draw from, got {low} to {high}")
    rngs: list[Generator] = default_rng((COLLECT, seed)).spawn(episodes)
    rows, held, parts = system.begin(rngs), np.zeros((episodes, len(low))), list[Transitions]()
    for t in range(steps):
        states = system.see(rows)
        drawn = [i for i, rng in enumerate(rngs) if act is None and (rng.random() < 1 / HOLD or t == 0)]
        held[drawn] = np.array([rngs[i].uniform(low, high) for i in drawn]).reshape(-1, len(low))
        asked = held if act is None else check_returned("actions of act", act(states, rngs), held.shape, held)
        done = np.clip(asked, low, high)
        rows, ended, failed = system.advance(rows, done, rngs)
        parts.append(Transitions(states[~failed], done[~failed], system.see(rows[~failed])))
        going = np.flatnonzero(~(ended | failed))
        rows, held, rngs = rows[going], held[going], [rngs[i] for i in going]
        if not rngs:
            break
    ids = np.array([f"fit_dynamics {seed}-{i}" for i in range(episodes)])
    return replace(Transitions.join(parts), ids=ids)
