"""Small networks for tables, and the numbers they read, both fitted on the training rows alone."""

import hashlib
import math

import numpy as np
import torch
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


def encode(table, target, seen):
    """Float32 `[N, F]` of all columns but the target, with numbers fitted on the training rows `seen`.

    Numbers are standardised; the median fills gaps, and a flag says where. Categories are those that
    training saw, missing being one; others are a row of zeros. A column that says nothing in training is
    left out. Means, medians and categories of the other rows are never looked at, so those stay fit to
    calibrate and to test.
    """
    parts = []
    for name in table.cells.columns.drop(target):
        if not table.is_numeric(name):
            kinds = np.unique(table.text(name)[seen])
            parts += [table.text(name)[:, None] == kinds] if len(kinds) > 1 else []
            continue
        values = table.numbers(name)
        gone = np.isnan(values)
        known = values[seen][~gone[seen]]
        flagged = 0 < len(known) < len(seen)
        if len(known) and (known.std() > 0 or flagged):
            filled = np.where(gone, np.median(known), values)
            mean, scale = filled[seen].mean(), filled[seen].std() or 1.0
            scaled = ((filled - mean) / scale).clip(-FURTHEST, FURTHEST)
            parts.append(np.stack([scaled, gone], axis=1)[:, : 1 + flagged])
    if not parts:
        raise InvalidInput(f"no column of the {len(seen):,} training rows tells one row from another")
    return np.concatenate(parts, axis=1).astype(np.float32)


def forecast_labels(inputs, labels, seen, classes, *, seed):
    """Mean probabilities of networks trained on the rows `seen`, for all rows; and a digest of the networks.

    inputs: `[N, F]`; labels: `[N]`, below `classes`
    """

    def loss(outputs, targets):
        return functional.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none")

    targets = torch.as_tensor(labels[seen], dtype=torch.int64)
    outputs, digest = _train(inputs, seen, targets, classes, loss, seed)
    logs = torch.log_softmax(outputs, dim=-1)
    return LogitForecast((torch.logsumexp(logs, dim=0) - math.log(len(logs))).numpy()), digest


def forecast_values(inputs, values, seen, *, seed):
    """The same for values `[N]`: mean and variance `[N, 1]` of the mixture, by maximum likelihood."""
    shift, scale = float(values[seen].mean()), float(values[seen].std())
    if not scale > 0:
        raise InvalidInput(f"the target must vary over the training rows, got {shift:g} in all of them")

    def loss(outputs, targets):
        mean, var = _mean_and_var(outputs)
        return 0.5 * ((targets - mean) ** 2 / var + torch.log(2 * math.pi * var))

    targets = torch.as_tensor((values[seen] - shift) / scale, dtype=torch.float32)
    outputs, digest = _train(inputs, seen, targets, 2, loss, seed)
    mean, var = _mean_and_var(outputs)
    spread = var.mean(dim=0) + mean.var(dim=0, unbiased=False)
    center = shift + scale * mean.mean(dim=0)
    made = GaussianForecast(center[:, None].numpy(), (scale**2 * spread)[:, None].numpy())
    return made.mark_failures(), digest


def _train(inputs, seen, targets, outputs, loss, seed):
    """`[M, N, O]` outputs of each member, as it did best on rows it held out; and a digest of the weights.

    loss: of outputs and targets, -log likelihood `[M, n]`
    """
    n, features = len(seen), inputs.shape[1]
    if n < 2 * MEMBERS:
        raise InvalidInput(f"training rows must be at least {2 * MEMBERS}, got {n}")
    data, held, rng = (
        torch.as_tensor(inputs[seen]),
        torch.zeros(MEMBERS, n),
        torch.Generator().manual_seed(seed),
    )
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
    with torch.no_grad(), one_torch_thread():
        made = _apply(best, torch.as_tensor(inputs)).double()
    return made, hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in best)).hexdigest()


def _apply(weights, data):
    """`[M, N, O]` outputs of all members."""
    first, first_bias, second, second_bias = weights
    hidden = torch.baddbmm(first_bias, data.expand(len(first), *data.shape), first)
    return torch.baddbmm(second_bias, functional.silu(hidden), second)


def _mean_and_var(outputs):
    return outputs[..., 0], LEAST_STD**2 + functional.softplus(outputs[..., 1])
