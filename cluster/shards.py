"""Shards: the units of a run, cut into ranges of ids before anything runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput
from pac_core.bounds import whole

Ids: TypeAlias = Sequence[int] | Sequence[str]
"""Names of units; a `range` takes no memory however long it is."""


@dataclass(frozen=True)
class Shard:
    """A range of the ids of a run; the piece of work that is computed, stored and computed again.

    number: its place among the shards of the run
    ids: its units
    seed: its own, for a scorer that draws anything; it belongs to the shard, never to a worker
    """

    number: int
    ids: Ids
    seed: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def array(self) -> NDArray[Any]:
        """`[n]` the ids."""
        ids = self.ids
        return np.arange(ids.start, ids.stop, ids.step) if isinstance(ids, range) else np.asarray(ids)

    def __str__(self) -> str:
        return f"shard {self.number} ({len(self):,} units, {self.ids[0]!r} to {self.ids[-1]!r})"


def cut(ids: Ids, size: int, *, seed: int = 0) -> list[Shard]:
    """The shards of these ids, in their order, of `size` units each; the last may have fewer.

    >>> [str(shard) for shard in cut(range(5), 2)]
    ['shard 0 (2 units, 0 to 1)', 'shard 1 (2 units, 2 to 3)', 'shard 2 (1 units, 4 to 4)']
    """
    whole("size", size, least=1)
    whole("seed", seed, least=0)
    if not len(ids):
        raise InvalidInput("ids must be one or more, got none")
    if not isinstance(ids, range) and len(set(ids)) != len(ids):
        raise InvalidInput(f"ids must be unique, got {len(ids) - len(set(ids))} repeats")
    firsts = range(0, len(ids), size)
    return [Shard(n, ids[i : i + size], _seed(seed, n)) for n, i in enumerate(firsts)]


def ids_fingerprint(shards: Sequence[Shard]) -> str:
    """SHA-256 of all ids in their order and of where they are cut."""
    digest = hashlib.sha256()
    for shard in shards:
        text = repr(shard.ids) if isinstance(shard.ids, range) else repr(list(shard.ids))
        digest.update(f"{shard.number}:{shard.seed}:{text}\n".encode())
    return digest.hexdigest()


def _seed(seed: int, number: int) -> int:
    drawn = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=7).digest()
    return int.from_bytes(drawn, "big")
