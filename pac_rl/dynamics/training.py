"""Training of the dynamics ensemble, one epoch after the other, each of which can be resumed from."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pac_core import InvalidInput
from pac_core.errors import UnreadableFile
from pac_rl.dynamics.ensemble import (
    Ensemble,
    Epoch,
    Settings,
    Transitions,
    new_network,
    read_tensors,
    rollout_ids,
    write_tensors,
)


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
            progress(training.latest.history[-1])
    return training.best


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
        network = new_network(settings, changes.shape[1], transitions.actions.shape[1], device)
        parts = (network, here(shift), here(scale), here(units), environment, settings)
        self.latest = Ensemble(*parts, trained_on=transitions.ids)
        self.best = self.latest.to(device)
        self._adam = torch.optim.Adam(network.parameters(), lr=settings.rate, fused=True)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or the last few brought nothing."""
        history, settings = self.latest.history, self.latest.settings
        if not history:
            return False
        since = len(history) - max(i for i, epoch in enumerate(history, 1) if epoch.score == epoch.best)
        return len(history) >= settings.epochs or since >= settings.patience

    def run_epoch(self) -> None:
        """Goes over the training steps once, each member in its own order."""
        settings, history = self.latest.settings, self.latest.history
        inputs, targets = self._train
        rng = torch.Generator().manual_seed(settings.seed * 10_007 + len(history))
        orders = torch.stack([torch.randperm(len(inputs), generator=rng) for _ in range(settings.members)])
        batches = torch.split(orders.to(inputs.device), settings.batch, dim=1)
        losses = []
        for done, rows in enumerate(batches):
            passed = (len(history) + done / len(batches)) / settings.epochs
            for group in self._adam.param_groups:
                group["lr"] = settings.rate * 0.5 * (1 + math.cos(math.pi * passed))
            loss, _ = self.latest.network.update(inputs[rows], self._adam, target=targets[rows])
            losses.append(loss / settings.members)
        score = self._validate()
        best = min([score, *(epoch.score for epoch in history)])
        epoch = Epoch(len(history) + 1, settings.epochs, float(np.mean(losses)), score, best)
        self.latest = replace(self.latest, history=(*history, epoch))
        copy = self.latest.to(self.latest.device) if score == best else self.best
        self.best = replace(copy, history=self.latest.history)

    def _validate(self) -> float:
        """Root-mean-square error of the members' mean on the held-out steps."""
        self.latest.network.eval()
        squares = 0.0
        with torch.no_grad():
            for inputs, targets in zip(*(torch.split(part, 4096) for part in self._held_out), strict=True):
                mean, _ = self.latest.network.forward(inputs, use_propagation=False)
                squares += float(((mean.mean(dim=0) - targets) ** 2).mean(dim=1).sum())
        return math.sqrt(squares / len(self._held_out[0]))

    def keep(self, path: str | os.PathLike[str]) -> None:
        """Writes everything that the next epoch needs."""
        adam = self._adam.state_dict()["state"]
        tensors = {f"latest.{name}": tensor for name, tensor in self.latest.tensors().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.tensors().items()}
        tensors |= {f"adam.{i}.{name}": part for i, parts in adam.items() for name, part in parts.items()}
        write_tensors(path, tensors, self.latest.about() | {"data": self._digest})

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Goes on from what `keep` wrote; refused if it belongs to other data or settings."""
        tensors, about = read_tensors(path)
        settings, device = self.latest.settings, self.latest.device
        if about.get("data") != self._digest or about.get("settings") != asdict(settings):
            raise UnreadableFile(f"{path} is of other data or settings; remove it to start anew")

        def part(name: str) -> dict[str, Tensor]:
            return {key.removeprefix(name): t for key, t in tensors.items() if key.startswith(name)}

        best = Ensemble.of(part("best."), about, device)
        self.best = replace(best, trained_on=self.latest.trained_on)  # of the same steps
        stored = Ensemble.of(part("latest."), about, device)
        self.latest.network.load_state_dict(stored.network.state_dict())
        self.latest = replace(self.latest, history=stored.history)
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in part("adam.").items():
            number, name = key.split(".")
            state.setdefault(int(number), {})[name] = tensor
        groups = self._adam.state_dict()["param_groups"]
        self._adam.load_state_dict({"state": state, "param_groups": groups})

    @cached_property
    def _digest(self) -> str:
        """SHA-256 of the steps, those held out included, which tells them from others."""
        hashed = hashlib.sha256()
        for part in (*self._train, *self._held_out):
            hashed.update(part.cpu().numpy().tobytes())
        return hashed.hexdigest()
