"""The policy changed: a threshold for the new one from units of the old one, or a refusal with the numbers.

The old certificate is void. If both policies are stochastic and run under the same dynamics from the same
resets, rejection sampling turns the old units into units of the new policy: with w the ratio of the two
densities of a unit, the product of pi'(a|s) / pi(a|s) over every step at which the policy acted, burn-in
included, and w <= b, proved from the two policies, unit i is kept if a uniform number of its own is below
w_i / b: about one unit in b. The new policy and the seed must not be chosen by looking at these units, and
the deltas of several policies served from them add up. Deterministic policies have no density, and an
unbounded ratio (a wider policy, say) keeps nothing: then calibrate on fresh units.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import Floats, check_number, check_numbers
from pac_core.bounds import Entry, Family, PACLevel, check_integer, check_level, max_errors, min_samples
from pac_core.certificates.ledger import Opening, open_split, read_family
from pac_core.errors import InvalidInput, NotEnoughData, TooFewAccepted
from pac_core.splits import digest_of, unit_names
from pac_core.thresholds import Threshold, fit_threshold

_MOST = np.finfo(np.float64).max
_ROUNDING = 1e-9  # relative; weights and bound are products of many factors, in another order


@dataclass(frozen=True, eq=False, repr=False)
class Reweighted:
    """A threshold for the new policy, with the evidence for it.

    threshold, rows: fitted on the accepted units alone, which are these `[M]`
    units, bound: N, all of them, and b, the proved bound of the weights
    family: everything in the ledger when it was fitted; None without a ledger
    """

    threshold: Threshold
    rows: NDArray[np.intp]
    units: int
    bound: float
    family: Family | None = None

    def __repr__(self) -> str:
        return (
            f"{self.threshold} These are what rejection left of {self.units:,} units of the old policy, at "
            f"the weight bound {self.bound:g}; the promise is about the new policy under the same dynamics "
            "and resets." + (f" {self.family}" if self.family else "")
        )


def fit_reweighted(
    ids: Any,
    scores: Any,
    weights: Any,
    bound: float,
    level: PACLevel,
    *,
    seed: int,
    ledger: str | os.PathLike[str] | None = None,
) -> Reweighted:
    """The threshold for the new policy, from units `[N]` of the old one with their scores and weights.

    The head of this file says what `weights` and `bound` must be, and `reweigh` how units are drawn. If too
    few units remain, `TooFewAccepted` says how many there are, and how many are needed.

    ledger: a folder in which the look is recorded before any score is read. Another policy, seed or level on
        these units, or units that were calibrated on before, raise `SecondLook`

    >>> fit_reweighted(range(400), range(400), [1.0] * 400, 2.0, PACLevel(0.1, 0.1), seed=0).threshold.n
    217
    """
    values = check_numbers("scores", scores, "[N]")
    rows = reweigh(ids, weights, bound, seed=seed)
    units = len(check_numbers("weights", weights, "[N]"))
    if len(values) != units:
        raise InvalidInput(f"scores must have one entry per unit, got {len(values)} for {units}")
    try:
        if not len(rows):
            raise NotEnoughData(0, min_samples(check_level(level)), level)
        max_errors(len(rows), check_level(level))
    except NotEnoughData as error:
        raise TooFewAccepted(len(rows), error.needed, level, units, float(bound)) from None
    if ledger is not None:
        policy = _digest(ids, check_numbers("weights", weights, "[N]"), f"{float(bound)!r} {seed}")
        open_split(ledger, Opening.of(ids, [Entry(policy, level.epsilon, level.delta)], _digest(ids, values)))
    family = None if ledger is None else read_family(ledger)
    return Reweighted(fit_threshold(values[rows], level), rows, units, float(bound), family)


def reweigh(ids: Any, weights: Any, bound: float, *, seed: int) -> NDArray[np.intp]:
    """`[M]` the rows of the accepted units: those with U_i b < w_i.

    ids: `[N]` of the units, each once; U_i depends on `seed` and the id alone
    weights: `[N]` the density ratio of each unit, new over old
    bound: b; a weight above it is refused, because then it is not a bound

    >>> reweigh(["a", "b", "c", "d", "e"], [0.0, 2.0, 1.0, 1.0, 2.0], 2.0, seed=0).tolist()
    [1, 4]
    """
    names = unit_names("ids", ids)
    ratios = check_numbers("weights", weights, "[N]", finite=True)
    if len(np.unique(names)) != len(names) or len(names) != len(ratios):
        raise InvalidInput(
            f"ids must be unique and one for each weight, got {len(np.unique(names)):,} different ids among "
            f"{len(names):,} for {len(ratios):,} weights"
        )
    if isinstance(bound, bool) or not isinstance(bound, int | float | np.floating) or not 1 <= bound <= _MOST:
        raise InvalidInput(f"bound must be a finite number of at least 1, got {bound!r}")
    if ratios.min() < 0:
        raise InvalidInput(f"weights must be at least 0, got {ratios.min()}")
    if ratios.max() > bound:
        worst = int(ratios.argmax())
        raise InvalidInput(
            f"bound must hold for every weight, got {float(bound):g} and a weight of {ratios.max():g} (unit "
            f"{str(names[worst])!r}): it is not a bound, and raising it to the largest weight seen does not "
            "make it one"
        )
    seed = check_integer("seed", seed, least=0)
    uniforms = np.array([_uniform(seed, name) for name in names.tolist()])
    return np.flatnonzero(uniforms * float(bound) < ratios)


def gaussian_weights(noise: Any, old: Any, new: Any, shift: Any = None) -> Floats:
    """`[N]` the density ratios of units whose actions are Gaussian around a mean, from the noise drawn.

    noise: `[N, T, A]` standard normal; the action of each step was mean + old * noise before any squashing or
        clipping, of which the weight is independent; steps after an early end may be left in
    old, new: `[A]` standard deviations of the two policies
    shift: `[N, T, A]` new mean minus old mean along the unit; None if the means are the same

    >>> gaussian_weights([[[0.0]], [[2.0]]], [0.5], [0.25]).round(4).tolist()
    [2.0, 0.005]
    """
    drawn = check_numbers("noise", noise, "[N, T, A]", finite=True).astype(np.float64)
    before, after = _deviations(old, new, drawn.shape[2])
    moved = np.zeros(1) if shift is None else check_numbers("shift", shift, "[N, T, A]", finite=True)
    if shift is not None and moved.shape != drawn.shape:
        raise InvalidInput(f"shift must have the shape of noise, {drawn.shape}, got {moved.shape}")
    there = (before * drawn - moved) / after
    logs = np.log(before / after) + (drawn**2 - there**2) / 2
    ratios: Floats = np.exp(logs.sum(axis=(1, 2)))
    return ratios


def gaussian_bound(old: Any, new: Any, *, steps: int, shift: Any = 0.0) -> float:
    """b, which no ratio of `steps` Gaussian actions exceeds; refused if there is none.

    old, new: `[A]` standard deviations; new must not be larger, and must be smaller where the means differ
    steps: T, the largest number of steps at which the policy acts in a unit, burn-in included
    shift: a proved bound, or `[A]` bounds, of the distance between the means at any state

    For one action the ratio is at most (old / new) * exp(shift^2 / (2 (old^2 - new^2))). The product is
    enlarged by a billionth, because the weights are rounded.

    >>> round(gaussian_bound([0.5], [0.4], steps=3), 6)
    1.953125
    """
    before, after = _deviations(old, new, None)
    several = isinstance(shift, list | tuple) or getattr(shift, "ndim", 0) > 0
    apart = check_numbers("shift", shift if several else [check_number("shift", shift)], "[A]", finite=True)
    if len(apart) not in (1, len(before)):
        raise InvalidInput(f"shift must be one number, or one for each action, got {len(apart)}")
    apart = np.broadcast_to(apart, before.shape)
    steps = check_integer("steps", steps, least=1)
    if (after > before).any():
        raise InvalidInput(
            f"the new policy must not be wider than the old one, got {after.tolist()} after "
            f"{before.tolist()}: the density ratio has no bound in the tails; calibrate on fresh units"
        )
    if apart.min() < 0 or ((apart > 0) & (after == before)).any():
        raise InvalidInput(
            f"shift must be 0 where the new policy is as wide as the old one, got {apart.tolist()} at "
            f"{after.tolist()}: the density ratio has no bound in the tails; calibrate on fresh units"
        )
    room = np.where(apart > 0, before**2 - after**2, 1.0)
    logs = np.log(before / after) + apart**2 / (2 * room)
    total = steps * float(logs.sum())
    if total > 600:
        raise InvalidInput(
            f"the weights are bounded by exp({total:.4g}) over {steps:,} steps, which keeps no unit at all: "
            "calibrate on fresh units of the new policy"
        )
    return float(np.exp(total) * (1 + _ROUNDING))


def _deviations(old: Any, new: Any, actions: int | None) -> tuple[Floats, Floats]:
    before, after = (check_numbers(n, v, "[A]", finite=True) for n, v in (("old", old), ("new", new)))
    if before.shape != after.shape or actions not in (None, len(before)):
        raise InvalidInput(
            f"old and new must have a deviation for each action, got {before.shape} and {after.shape}"
            + ("" if actions is None else f" for {actions} actions")
        )
    if min(before.min(), after.min()) <= 0:
        raise InvalidInput(
            "both policies must be stochastic, with deviations above 0: a deterministic policy has no "
            f"density, so no weight; got {before.tolist()} and {after.tolist()}"
        )
    return before.astype(np.float64), after.astype(np.float64)


def _uniform(seed: int, name: str) -> float:
    """In [0, 1), from seed and id alone, independent of the draw of splits by the same seed."""
    keyed = hashlib.blake2b(name.encode(), digest_size=8, key=seed.to_bytes(8, "big"), person=b"reweigh")
    return (int.from_bytes(keyed.digest(), "big") >> 11) * 2.0**-53


def _digest(ids: Any, values: Floats, of: str = "") -> str:
    """A digest of one number per unit, whatever their order."""
    pairs = zip(unit_names("ids", ids).tolist(), values.tolist(), strict=True)
    return digest_of(f"{name} {value!r} {of}".encode() for name, value in pairs)
