"""Small networks for tables, and the numbers they read, both fitted on the training rows alone."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pac_core import GaussianForecast, InvalidInput, LogitForecast
from pac_core.arrays import one_torch_thread

MEMBERS = 5  # each stops on its own fifth of the training rows, so all rows are learned from
HIDDEN = 32
STEPS = 400
PATIENCE = 50  # steps without gain for any member
RATE = 1e-2
DECAY = 3e-2
LEAST_STD = 0.02  # of a value, in units of its deviation over the training rows
FURTHEST = 5.0  # standard deviations; a network is not asked beyond


@dataclass(frozen=True)
class Encoder:
    """From the columns of a table to float32 `[N, F]`, with numbers fitted on training rows.

    fitted: by name, of numbers the median, which fills gaps, mean, scale, and whether a flag says where one
        was missing; of categories those that training saw, missing being one; others are a row of zeros
    """

    fitted: dict[str, tuple]

    def __call__(self, table):
        parts = []
        for name, known in self.fitted.items():
            if isinstance(known[0], str):
                parts.append(table.text(name)[:, None] == np.array(known))
                continue
            (median, mean, scale, flagged), values = known, table.numbers(name)
            gone = np.isnan(values)
            filled = ((np.where(gone, median, values) - mean) / scale).clip(-FURTHEST, FURTHEST)
            parts.append(np.stack([filled, gone], axis=1)[:, : 1 + flagged])
        return np.concatenate(parts, axis=1).astype(np.float32)


def fit_encoder(table, names, rows):
    """The encoder of the columns `names`, fitted on the training `rows` alone.

    A column that says nothing in training (one value, or none) is left out. Means, medians and categories of
    the other rows are never looked at, so those stay fit to calibrate and to test.
    """
    fitted = {}
    for name in names:
        if not table.is_numeric(name):
            kinds = np.unique(table.text(name)[rows]).tolist()
            fitted |= {name: tuple(kinds)} if len(kinds) > 1 else {}
            continue
        seen = table.numbers(name)[rows]
        known = seen[~np.isnan(seen)]
        flagged = 0 < len(known) < len(seen)
        if len(known) and (known.std() > 0 or flagged):
            filled = np.where(np.isnan(seen), np.median(known), seen)
            fitted[name] = float(np.median(known)), float(filled.mean()), float(filled.std()) or 1.0, flagged
    if not fitted:
        raise InvalidInput(f"no column of the {len(rows):,} training rows tells one row from another")
    return Encoder(fitted)


@dataclass(frozen=True, eq=False)
class Networks:
    """M networks of one hidden layer: `[M, F, H]`, `[M, 1, H]`, `[M, H, O]`, `[M, 1, O]`.

    classes: what their outputs are logits of, averaging probabilities; none for a model of values, whose
        mixture's mean and variance are taken
    shift, scale: mean and deviation of the value over the training rows
    """

    weights: tuple[Tensor, ...]
    classes: tuple[str, ...] = ()
    shift: float = 0.0
    scale: float = 1.0

    def forecast(self, inputs):
        """Of inputs `[N, F]`: `[N, K]` logarithms of mean probabilities, or mean and variance `[N, 1]`."""
        with torch.no_grad(), one_torch_thread():
            outputs = _apply(self.weights, torch.as_tensor(inputs)).double()
        if self.classes:
            logs = torch.log_softmax(outputs, dim=-1)
            return LogitForecast((torch.logsumexp(logs, dim=0) - math.log(len(logs))).numpy())
        mean, var = _mean_and_var(outputs)
        spread = var.mean(dim=0) + mean.var(dim=0, unbiased=False)
        center = self.shift + self.scale * mean.mean(dim=0)
        made = GaussianForecast(center[:, None].numpy(), (self.scale**2 * spread)[:, None].numpy())
        return made.mark_failures()

    @property
    def digest(self):
        return hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in self.weights)).hexdigest()


def fit_labels(inputs, labels, classes, *, seed=0):
    """Networks trained on inputs `[N, F]` and labels `[N]`, places in `classes`; the same for one seed."""

    def loss(outputs, targets):
        return functional.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none")

    targets = torch.as_tensor(labels, dtype=torch.int64)
    return Networks(_train(inputs, targets, len(classes), loss, seed), classes)


def fit_values(inputs, values, *, seed=0):
    """Networks trained on inputs `[N, F]` and values `[N]` by maximum likelihood; the same for one seed."""
    shift, scale = float(values.mean()), float(values.std())
    if not scale > 0:
        raise InvalidInput(f"the target must vary over the training rows, got {shift:g} in all of them")

    def loss(outputs, targets):
        mean, var = _mean_and_var(outputs)
        return 0.5 * ((targets - mean) ** 2 / var + torch.log(2 * math.pi * var))

    targets = torch.as_tensor((values - shift) / scale, dtype=torch.float32)
    return Networks(_train(inputs, targets, 2, loss, seed), (), shift, scale)


def _train(inputs, targets, outputs, loss, seed):
    """The weights of each member that did best on rows it held out; `loss` is -log likelihood `[M, N]`."""
    n, features = inputs.shape
    if n < 2 * MEMBERS:
        raise InvalidInput(f"training rows must be at least {2 * MEMBERS}, got {n}")
    data, held, rng = torch.as_tensor(inputs), torch.zeros(MEMBERS, n), torch.Generator().manual_seed(seed)
    for part, rows in enumerate(np.array_split(np.random.default_rng(seed).permutation(n), MEMBERS)):
        held[part, rows] = 1
    weights = [
        ((2 * torch.rand((MEMBERS, rows, after), generator=rng) - 1) / math.sqrt(before)).requires_grad_()
        for before, after in ((features, HIDDEN), (HIDDEN, outputs))
        for rows in (before, 1)
    ]
    adam = torch.optim.AdamW(weights, lr=RATE, weight_decay=DECAY, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS)
    best, least = [weight.detach().clone() for weight in weights], torch.full((MEMBERS,), math.inf)
    last = 0
    with one_torch_thread():
        for step in range(STEPS):
            losses = loss(_apply(weights, data), targets.expand(MEMBERS, n))
            with torch.no_grad():
                now = (losses * held).sum(dim=1) / held.sum(dim=1)
                better = now < least
                least, last = torch.where(better, now, least), step if better.any() else last
                for kept, weight in zip(best, weights, strict=True):
                    kept[better] = weight[better]
            if step - last > PATIENCE:
                break
            adam.zero_grad()
            ((losses * (1 - held)).sum() / (1 - held).sum(dim=1).mean()).backward()
            adam.step()
            schedule.step()
    if not torch.isfinite(least).all():
        raise InvalidInput("training diverged: the loss on the rows held out is no number")
    return tuple(best)


def _apply(weights, data):
    """`[M, N, O]` outputs of all members."""
    first, first_bias, second, second_bias = weights
    hidden = torch.baddbmm(first_bias, data.expand(len(first), *data.shape), first)
    return torch.baddbmm(second_bias, functional.silu(hidden), second)


def _mean_and_var(outputs):
    return outputs[..., 0], LEAST_STD**2 + functional.softplus(outputs[..., 1])
