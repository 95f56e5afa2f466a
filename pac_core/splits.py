"""Disjoint parts by unit id and seed: tune chooses, calibrate proves, test measures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import plain
from pac_core.bounds import whole
from pac_core.errors import InvalidInput, OverlappingSplits


@dataclass(frozen=True, eq=False)
class Part:
    """The units of one part.

    units: `[n]` ids of the independent units (groups, where there are groups), sorted
    rows: `[m]` their rows in the arrays handed over, ascending; a group has several
    """

    units: NDArray[np.str_]
    rows: NDArray[np.int64]

    @property
    def n(self) -> int:
        return len(self.units)

    @property
    def digest(self) -> str:
        """A fingerprint of the set of unit ids, whatever their order in the file."""
        return ids_digest(self.units)


@dataclass(frozen=True, eq=False)
class Splits:
    """Three disjoint parts; what the model was trained on is a fourth, checked against them."""

    tune: Part
    calibrate: Part
    test: Part
    seed: int


def split(
    ids: Any,
    *,
    tune: int,
    calibrate: int,
    seed: int,
    groups: Any = None,
    train: Iterable[Any] = (),
) -> Splits:
    """`tune` and `calibrate` units drawn by `seed`; the rest is the test part.

    The draw ranks the ids by a hash of seed and id, so it does not depend on the order of the
    rows. With `groups` `[N]` (the video of each frame, the rollout of each step) the unit is the
    group and stays whole. `train` holds the ids the model has seen; a unit among them is refused.

    >>> parts = split([f"image-{i}" for i in range(10)], tune=3, calibrate=5, seed=0)
    >>> parts.tune.n, parts.calibrate.n, parts.test.n
    (3, 5, 2)
    """
    names = plain("ids", ids, "[N]").astype(str)
    if len(np.unique(names)) != len(names):
        raise InvalidInput(f"ids must be unique, got {len(names) - len(np.unique(names))} repeats")
    unit_of_row = names if groups is None else plain("groups", groups, "[N]").astype(str)
    if len(unit_of_row) != len(names):
        raise InvalidInput(f"groups must have one entry per id, got {len(unit_of_row)} for {len(names)}")
    tune, calibrate = whole("tune", tune, least=0), whole("calibrate", calibrate, least=1)
    seed = whole("seed", seed, least=0)
    units, position = np.unique(unit_of_row, return_inverse=True)
    if tune + calibrate > len(units):
        raise InvalidInput(
            f"tune + calibrate must be at most the {len(units):,} units, got {tune + calibrate:,}"
        )
    seen = np.asarray(list(train)).astype(str)
    for known in (units, names):
        refuse_overlap({"train": seen, "tune, calibrate or test": known})
    order = np.argsort([_rank(seed, unit) for unit in units], kind="stable")
    part_of_unit = np.empty(len(units), dtype=np.int8)
    part_of_unit[order] = np.repeat((0, 1, 2), (tune, calibrate, len(units) - tune - calibrate))
    part_of_row = part_of_unit[position]
    first, second, third = (
        Part(units[part_of_unit == part], np.flatnonzero(part_of_row == part)) for part in range(3)
    )
    return Splits(first, second, third, seed)


def refuse_overlap(parts: Mapping[str, Any]) -> None:
    """Raise `OverlappingSplits` unless no id stands in two of the named parts."""
    named = [(name, np.unique(np.asarray(ids).astype(str))) for name, ids in parts.items()]
    for i, (first, a) in enumerate(named):
        for second, b in named[i + 1 :]:
            shared = np.intersect1d(a, b, assume_unique=True)
            if len(shared):
                raise OverlappingSplits(first, second, len(shared), str(shared[0]))


def ids_digest(ids: Any) -> str:
    """SHA-256 of the sorted ids, each with its length, so that no two sets of ids collide."""
    digest = hashlib.sha256()
    for name in sorted(np.asarray(ids).astype(str).tolist()):
        encoded = name.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def _rank(seed: int, unit: str) -> int:
    keyed = hashlib.blake2b(unit.encode(), digest_size=8, key=seed.to_bytes(8, "big"))
    return int.from_bytes(keyed.digest(), "big")
