"""Small networks for tables: logits of a class, or mean and variance of a value, by maximum likelihood."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pac_core import GaussianForecast, InvalidInput, LogitForecast

MEMBERS = 5  # each stops on its own fifth of the training rows, so all rows are learned from
HIDDEN = 32
STEPS = 400
PATIENCE = 50  # steps without gain for any member
RATE = 1e-2
DECAY = 3e-2
_LEAST_STD = 0.02  # of a value, in units of its deviation over the training rows

Weights: TypeAlias = tuple[Tensor, ...]
"""Of M networks of one hidden layer: `[M, F, H]`, `[M, 1, H]`, `[M, H, O]`, `[M, 1, O]`."""

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From outputs `[M, N, O]` and targets `[M, N]` to -log likelihoods `[M, N]`."""


@dataclass(frozen=True, eq=False)
class LabelModel:
    """Networks that forecast one of `classes`; their probabilities are averaged."""

    classes: tuple[str, ...]
    weights: Weights

    def forecast(self, inputs: NDArray[np.float32]) -> LogitForecast:
        """Of inputs `[N, F]`: the logarithms of the mean probabilities, `[N, K]` float64."""
        logs = torch.log_softmax(_outputs(self.weights, inputs), dim=-1)
        return LogitForecast((torch.logsumexp(logs, dim=0) - math.log(len(logs))).numpy())

    @property
    def digest(self) -> str:
        return _digest(self.weights)


@dataclass(frozen=True, eq=False)
class ValueModel:
    """Networks that forecast a value; the mixture's mean and variance are taken.

    shift, scale: mean and deviation of the value over the training rows
    """

    shift: float
    scale: float
    weights: Weights

    def forecast(self, inputs: NDArray[np.float32]) -> GaussianForecast:
        """Of inputs `[N, F]`: mean and variance `[N, 1]`, in units of the value."""
        mean, var = _mean_and_var(_outputs(self.weights, inputs))
        spread = var.mean(dim=0) + mean.var(dim=0, unbiased=False)
        center = self.shift + self.scale * mean.mean(dim=0)
        made = GaussianForecast(center[:, None].numpy(), (self.scale**2 * spread)[:, None].numpy())
        return made.mark_failures()

    @property
    def digest(self) -> str:
        return _digest(self.weights)


def fit_labels(
    inputs: NDArray[np.float32], labels: NDArray[np.int64], classes: tuple[str, ...], *, seed: int = 0
) -> LabelModel:
    """Networks trained on inputs `[N, F]` and labels `[N]`, places in `classes`; the same for one seed."""
    targets = torch.as_tensor(labels, dtype=torch.int64)
    return LabelModel(classes, _train(inputs, targets, len(classes), _label_loss, seed))


def fit_values(inputs: NDArray[np.float32], values: NDArray[np.float64], *, seed: int = 0) -> ValueModel:
    """Networks trained on inputs `[N, F]` and values `[N]`; the same for one seed."""
    shift, scale = float(values.mean()), float(values.std())
    if not scale > 0:
        raise InvalidInput(f"the target must vary over the training rows, got {shift:g} in all of them")
    targets = torch.as_tensor((values - shift) / scale, dtype=torch.float32)
    return ValueModel(shift, scale, _train(inputs, targets, 2, _value_loss, seed))


def _train(inputs: NDArray[np.float32], targets: Tensor, outputs: int, loss: Loss, seed: int) -> Weights:
    """The weights of each member that did best on the rows it held out."""
    n, features = inputs.shape
    if n < 2 * MEMBERS:
        raise InvalidInput(f"training rows must be at least {2 * MEMBERS}, got {n}")
    data = torch.as_tensor(inputs, dtype=torch.float32)
    held = torch.zeros(MEMBERS, n)
    for part, rows in enumerate(np.array_split(np.random.default_rng(seed).permutation(n), MEMBERS)):
        held[part, rows] = 1
    weights = _fresh(features, outputs, seed)
    adam = torch.optim.AdamW(weights, lr=RATE, weight_decay=DECAY, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS)
    best, least = [weight.detach().clone() for weight in weights], torch.full((MEMBERS,), math.inf)
    last = 0
    with _one_thread():
        for step in range(STEPS):
            losses = loss(_apply(weights, data), targets.expand(MEMBERS, n))
            with torch.no_grad():
                now = (losses * held).sum(dim=1) / held.sum(dim=1)
                better = now < least
                least = torch.where(better, now, least)
                if better.any():
                    last = step
                    for kept, weight in zip(best, weights, strict=True):
                        kept[better] = weight[better]
            if step - last > PATIENCE:
                break
            adam.zero_grad()
            ((losses * (1 - held)).sum() / (1 - held).sum(dim=1).mean()).backward()  # type: ignore[no-untyped-call]
            adam.step()
            schedule.step()
    if not torch.isfinite(least).all():
        raise InvalidInput("training diverged: the loss on the rows held out is no number")
    return tuple(best)


def _fresh(inputs: int, outputs: int, seed: int) -> list[Tensor]:
    rng, weights = torch.Generator().manual_seed(seed), []
    for before, after in ((inputs, HIDDEN), (HIDDEN, outputs)):
        for rows in (before, 1):
            drawn = (2 * torch.rand((MEMBERS, rows, after), generator=rng) - 1) / math.sqrt(before)
            weights.append(drawn.requires_grad_())
    return weights


def _apply(weights: Sequence[Tensor], data: Tensor) -> Tensor:
    """`[M, N, O]` outputs of all members."""
    first, first_bias, second, second_bias = weights
    hidden = torch.baddbmm(first_bias, data.expand(len(first), *data.shape), first)
    return torch.baddbmm(second_bias, nn.functional.silu(hidden), second)


def _label_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none")


def _mean_and_var(outputs: Tensor) -> tuple[Tensor, Tensor]:
    return outputs[..., 0], _LEAST_STD**2 + nn.functional.softplus(outputs[..., 1])


def _value_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    mean, var = _mean_and_var(outputs)
    return 0.5 * ((targets - mean) ** 2 / var + torch.log(2 * math.pi * var))


def _outputs(weights: Weights, inputs: NDArray[np.float32]) -> Tensor:
    """`[M, N, O]` float64."""
    with torch.no_grad(), _one_thread():
        return _apply(weights, torch.as_tensor(inputs, dtype=torch.float32)).double()


def _digest(weights: Weights) -> str:
    return hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in weights)).hexdigest()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Networks this small are slower on more, and sums keep their order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
