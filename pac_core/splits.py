"""Disjoint parts by unit id and seed: tune to choose, calibrate to prove, test to measure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core.arrays import check_array, check_list, check_numbers
from pac_core.bounds import check_integer
from pac_core.errors import InvalidInput, OverlappingSplits


@dataclass(frozen=True, eq=False)
class Part:
    """The units of one part.

    units: `[n]` ids of the independent units (of the groups, if there are groups), sorted
    rows, owner: `[m]` their rows in the given arrays, ascending, and which of the units each belongs to
    """

    units: NDArray[np.str_]
    rows: NDArray[np.int64]
    owner: NDArray[np.int64]

    @property
    def n(self) -> int:
        return len(self.units)

    @property
    def digest(self) -> str | None:
        """A digest of the unit ids in any order; None if there are none."""
        return ids_digest(self.units) if self.n else None

    def per_unit(self, row_scores: Any, reduce: Callable[[Any], float] = max) -> Any:
        """`[n]` one score per unit from those of its rows `[m]`: the largest, or what `reduce` returns."""
        scores = check_numbers("row_scores", row_scores, "[N]")
        if len(scores) != (m := len(self.rows)):
            raise InvalidInput(f"row_scores must have one entry per row, got {len(scores)} for {m}")
        order = np.argsort(self.owner, kind="stable")
        groups = np.split(scores[order], np.searchsorted(self.owner[order], np.arange(1, self.n)))
        return check_numbers("reduce(row_scores)", [float(reduce(group)) for group in groups], "[N]")


@dataclass(frozen=True, eq=False)
class Splits:
    """Three disjoint parts; the model's training data must be disjoint from all of them."""

    tune: Part
    calibrate: Part
    test: Part
    seed: int

    def __iter__(self) -> Iterator[Part]:
        return iter((self.tune, self.calibrate, self.test))


def split(
    ids: Any, *, tune: int, calibrate: int, seed: int, groups: Any = None, train: Iterable[Any] = ()
) -> Splits:
    """Draw `tune` and `calibrate` units by `seed`; the rest is the test part.

    Units are ranked by a hash of seed and id, so the order of the rows does not matter. With `groups` `[N]`
    (the video of each frame) the unit is the group, which is never divided. `train` holds the ids that the
    model was trained on; a unit among them is refused.

    >>> tune, calibrate, test = split([f"image-{i}" for i in range(10)], tune=3, calibrate=5, seed=0)
    >>> tune.n, calibrate.n, test.n
    (3, 5, 2)
    """
    names = unique_names("ids", ids)
    unit_of_row = names if groups is None else unit_names("groups", groups)
    if len(unit_of_row) != len(names):
        raise InvalidInput(f"groups must have one entry per id, got {len(unit_of_row)} for {len(names)}")
    tune, calibrate = check_integer("tune", tune, least=0), check_integer("calibrate", calibrate, least=1)
    seed = check_integer("seed", seed, least=0)
    units, position = np.unique(unit_of_row, return_inverse=True)
    if tune + calibrate > len(units):
        raise InvalidInput(f"tune + calibrate must be at most {len(units):,} units, got {tune + calibrate:,}")
    seen = check_list("train", train)
    for known in (units, names):
        refuse_overlap({"train": seen, "tune, calibrate or test": known})
    order = np.argsort([_rank(seed, unit) for unit in units], kind="stable")
    part_of_unit = np.empty(len(units), dtype=np.int8)
    part_of_unit[order] = np.repeat((0, 1, 2), (tune, calibrate, len(units) - tune - calibrate))
    part_of_row = part_of_unit[position]
    made = []
    for part in range(3):
        mine, rows = np.flatnonzero(part_of_unit == part), np.flatnonzero(part_of_row == part)
        made.append(Part(units[mine], rows, np.searchsorted(mine, position[rows])))
    return Splits(made[0], made[1], made[2], seed)


def refuse_overlap(parts: Mapping[str, Any]) -> None:
    """Raise `OverlappingSplits` if any id is in two of the named parts."""
    named = [(name, np.unique(unit_names(name, ids))) for name, ids in parts.items() if len(ids)]
    for i, (first, a) in enumerate(named):
        for second, b in named[i + 1 :]:
            shared = np.intersect1d(a, b, assume_unique=True)
            if len(shared):
                raise OverlappingSplits(first, second, len(shared), str(shared[0]))


def unit_names(name: str, ids: Any) -> NDArray[np.str_]:
    """Ids as text; refuse floats (1 and 1.0 would be two names for one unit) and what UTF-8 cannot encode."""
    array = check_array(name, ids, "[N]")
    if array.dtype.kind not in "iuU":
        raise InvalidInput(f"{name} must be whole numbers or text, got dtype {array.dtype}")
    names = array.astype(str)
    names = names.astype(names.dtype.newbyteorder("="))
    letters = np.ascontiguousarray(names).view(np.uint32).reshape(len(names), -1)
    if (lone := ((letters >= 0xD800) & (letters < 0xE000)).any(axis=1)).any():
        raise InvalidInput(f"{name} must be text that UTF-8 can hold, got {str(names[lone.argmax()])!r}")
    return names


def unique_names(name: str, ids: Any) -> NDArray[np.str_]:
    """Ids as text, none of them twice."""
    names = unit_names(name, ids)
    if repeats := len(names) - len(np.unique(names)):
        raise InvalidInput(f"{name} must be unique, got {repeats:,} repeats")
    return names


def ids_digest(ids: Any) -> str:
    """A digest of a set of ids, whatever their order."""
    return digest_of(name.encode() for name in unit_names("ids", ids).tolist())


def digest_of(items: Iterable[bytes]) -> str:
    """The sum of the SHA-256 of each item, modulo 2^256: any order gives the same, and shards add up."""
    return add_digests(hashlib.sha256(item).hexdigest() for item in items)


def add_digests(digests: Iterable[str]) -> str:
    """The digest of several shards together."""
    return f"{sum(int(digest, 16) for digest in digests) % 2**256:064x}"


def _rank(seed: int, unit: str) -> int:
    keyed = hashlib.blake2b(unit.encode(), digest_size=8, key=seed.to_bytes(8, "big"))
    return int.from_bytes(keyed.digest(), "big")
