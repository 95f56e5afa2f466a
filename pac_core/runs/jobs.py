"""Jobs: units, cut into shards beforehand, and how each shard is scored, in plain Python without Ray.

A scorer is any class that is made as ``Scorer(*args, device=...)`` once per worker and called once
per shard: ``scorer(shard, given) -> arrays``. A job may chain several (simulate, then forecast); each is
given the arrays of the one before it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from textwrap import shorten
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pac_core.bounds import check_integer
from pac_core.datasets import parse_arrays
from pac_core.errors import InvalidInput
from pac_core.runs.digests import CODE, Digests, Undigested, find_versions, read_path

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Named arrays, each with a row per unit."""
Ids: TypeAlias = Sequence[int] | Sequence[str]
"""Names of units; a `range` takes no memory however long it is."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of malloc.h
RESERVED = frozenset({"task", "units", "shards", "ids", "versions", "device", "stages", "code"})
"""Names of a run's description that are not the configuration's."""


@dataclass(frozen=True)
class Shard:
    """A range of the ids of a run, computed, stored and computed again as one; its number is its place.

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
    check_integer("size", size, least=1)
    check_integer("seed", seed, least=0)
    if not len(ids):
        raise InvalidInput("ids must be one or more, got none")
    if not isinstance(ids, range) and len(set(ids)) != len(ids):
        raise InvalidInput(f"ids must be unique, got {len(ids) - len(set(ids))} repeats")
    shards = []
    for number, first in enumerate(range(0, len(ids), size)):
        drawn = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=7).digest()
        shards.append(Shard(number, ids[first : first + size], int.from_bytes(drawn, "big")))
    return shards


def digest_shards(shards: Sequence[Shard]) -> str:
    """SHA-256 of all ids in their order and of where they are cut."""
    digest = hashlib.sha256()
    for shard in shards:
        text = repr(shard.ids) if isinstance(shard.ids, range) else repr(list(shard.ids))
        digest.update(f"{shard.number}:{shard.seed}:{text}\n".encode())
    return digest.hexdigest()


class Scorer(Protocol):
    """Made once per worker, called once per shard."""

    def __call__(self, shard: Any, given: Any) -> Arrays:
        """Arrays with a row per unit; among them `ids`, those of the shard in their order."""


@dataclass(frozen=True)
class Stage:
    """One scorer of a job, and what it needs.

    make: called as ``make(*args, device="cpu" or "cuda")`` in the worker
    args: shipped once per worker through the object store
    cpus: of a worker; torch and BLAS get as many threads
    gpus: of a worker, fractions allowed; None takes one where the cluster has any, 0 never
    needs: packages whose versions decide the digits of the result
    exempt: names of arguments that change no number of a finished shard, such as a log's. All the rest, and
        the code of `make`, is compared by content; a text or path that names a file or folder counts by what
        is in it, one inside another argument by its name
    """

    make: Callable[..., Scorer]
    args: tuple[Any, ...] = ()
    cpus: int = 1
    gpus: float | None = 0
    needs: tuple[str, ...] = ("numpy",)
    exempt: tuple[str, ...] = ()

    def describe(self, digests: Digests) -> dict[str, Any]:
        """What a run folder holds against another scorer: its code, its arguments by name, its threads."""
        name = getattr(self.make, "__name__", type(self.make).__name__)
        try:
            arguments: dict[str, Any] = signature(self.make).bind(*self.args, device="cpu").arguments
            arguments.pop("device", None)
        except (TypeError, ValueError):  # the worker says what is wrong
            arguments = {f"argument {place}": value for place, value in enumerate(self.args, 1)}
        if unknown := set(self.exempt) - set(arguments):
            raise InvalidInput(f"exempt must name arguments of {name}, got {min(unknown)!r}")

        def told(what: str, value: Any) -> str:
            if type(value) in (bool, int, float):
                return repr(value)
            try:
                return digests(read_path(value))[:32]
            except Undigested as reason:
                raise InvalidInput(
                    f"{what} of {name} must be something whose content tells it from another, got {reason}: "
                    "give the object a `digest`, a text that changes with its content, or hand over what it "
                    "is made of"
                ) from None

        found = {"scorer": f"{name} {told('the code', self.make)}", f"{name}'s cpus": self.cpus}
        return found | {
            f"{name}'s {key}": told(f"the argument {key}", value)
            for key, value in arguments.items()
            if key not in self.exempt
        }


@dataclass(frozen=True, eq=False)
class Job:
    """Units, cut into shards beforehand, and how each shard is scored.

    configuration: everything that decides the result beside the ids; a run folder belongs to one
    """

    name: str
    shards: tuple[Shard, ...]
    stages: tuple[Stage, ...]
    configuration: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, name: str, ids: Ids, stages: Sequence[Stage], *, size: int, seed: int = 0, **configuration: Any
    ) -> Job:
        """A job over `ids` in shards of `size` units."""
        if not stages:
            raise InvalidInput("stages must be one or more, got none")
        if taken := RESERVED & set(configuration):
            raise InvalidInput(f"configuration must leave {min(taken)!r} to the engine: choose another name")
        try:
            json.dumps(configuration, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"configuration must be what JSON can hold: {error}") from None
        whole = {"size": size, "seed": seed, **configuration}
        return cls(name, tuple(cut(ids, size, seed=seed)), tuple(stages), whole)

    @property
    def units(self) -> int:
        return sum(map(len, self.shards))

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for stage in self.stages for name in stage.needs))

    def describe(self) -> dict[str, Any]:
        """What a run folder holds against another job: configuration, ids, scorers, code and versions.

        Found anew whenever it is asked for: between two runs a model may have been trained on.
        """
        ids = {"units": self.units, "shards": len(self.shards), "ids": digest_shards(self.shards)}
        homes = (getattr(stage.make, "__module__", None) or "" for stage in self.stages)
        digests = Digests(home.partition(".")[0] for home in homes)
        stages = {str(place): stage.describe(digests) for place, stage in enumerate(self.stages, 1)}
        code = {CODE + module: digest[:32] for module, digest in sorted(digests.code.items())}
        known = {"versions": find_versions(self.needs), "stages": stages, "code": code}
        return {"task": self.name, **self.configuration, **ids, **known}


def digest_run(description: Mapping[str, Any]) -> str:
    """What tells the files of a run from those of others; the device is compared on its own."""
    known = {name: value for name, value in description.items() if name != "device"}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Effort:
    """What a shard has taken so far: seconds of each worker that had it, and the most bytes of memory."""

    seconds: tuple[float, ...] = ()
    memory: int = 0

    def add_since(self, started: float) -> Effort:
        """With what this process has done since."""
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Effort((*self.seconds, time.perf_counter() - started), max(self.memory, memory))


@dataclass(frozen=True)
class Receipt:
    """What is known of a finished shard: number, n units, SHA-256 and bytes of its file, and its effort."""

    number: int
    n: int
    digest: str
    size: int
    effort: Effort = field(default_factory=Effort)


def make_scorers(stages: Sequence[Stage], device: str, cpus: int) -> list[Scorer]:
    """The scorers of a worker, which get as many threads as it has CPUs."""
    set_threads(cpus)
    keep_freed_memory()
    scorers = [stage.make(*stage.args, device=device) for stage in stages]
    set_threads(cpus)  # for the libraries that were loaded only now
    return scorers


def run_stages(scorers: Sequence[Scorer], shard: Shard, given: Arrays) -> Arrays:
    """The arrays of the last of these scorers, refused unless they are of just these units."""
    for scorer in scorers:
        given = check_rows(shard, scorer(shard, given))
    return given


def finish_shard(
    shard: Shard, arrays: Arrays, started: float, run: str = "", earlier: Effort | None = None
) -> tuple[Receipt, NDArray[np.uint8]]:
    """The file of a shard as bytes, which say of which run they are, with its receipt; see `refuse_unfit`."""
    refuse_unfit(arrays)
    content = pack(arrays, run)
    digest = hashlib.sha256(content.data).hexdigest()
    effort = (earlier or Effort()).add_since(started)
    return Receipt(shard.number, len(shard), digest, content.nbytes, effort), content


def set_threads(count: int) -> None:
    """As many threads for torch and BLAS as the worker has CPUs; two on one busy core are far slower."""
    from threadpoolctl import threadpool_limits

    os.environ["OMP_NUM_THREADS"] = str(count)
    threadpool_limits(count)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(count)


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory: mapping it anew took a third of a small model's time."""
    try:
        set_option = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return
    for option, value in ((_MMAP_THRESHOLD, 32 << 20), (_TRIM_THRESHOLD, 1 << 30), (_TOP_PAD, 64 << 20)):
        set_option(option, value)


def check_rows(shard: Shard, arrays: Arrays) -> Arrays:
    """The arrays, refused unless they have a row for each unit of the shard, in its order."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.ndim < 1 or len(array) != len(shard):
            shape = getattr(array, "shape", type(array).__name__)
            raise InvalidInput(f"{name} must have a row for each of the {len(shard)} units, got {shape}")
    if "ids" not in arrays or not np.array_equal(arrays["ids"], shard.array):
        raise InvalidInput("a scorer must return `ids`: the ids of the shard, in their order")
    return arrays


def refuse_unfit(arrays: Arrays) -> None:
    """Refuse scores or logits that no certificate can be made of, such as NaN, with the first such unit.

    A simulation that diverges has an infinite truth, and a Gaussian that is none counts as an error.
    """
    smaller = [name.removeprefix("mean") for name in arrays if name.startswith("mean_")]  # ensembles
    for suffix in ["", *smaller]:
        chosen = arrays | {name: arrays[name + suffix] for name in ("mean", "var") if name + suffix in arrays}
        if not ({"scores", "logits", "probabilities"} & set(chosen) or {"mean", "var"} <= set(chosen)):
            continue
        if (error := _refusal(chosen)) is None:
            continue
        for row, unit in enumerate(chosen["ids"].tolist()):
            if alone := _refusal({name: array[row : row + 1] for name, array in chosen.items()}):
                raise InvalidInput(shorten(f"unit {unit!r}: {alone}", 240))  # a row of logits can be long
        raise error


def _refusal(arrays: Arrays) -> InvalidInput | None:
    try:
        parse_arrays("the scorer's result", arrays, own=True)
    except InvalidInput as error:
        return error
    return None


def pack(arrays: dict[str, NDArray[Any]], label: str = "") -> NDArray[np.uint8]:
    """An Arrow file: a column for each array, the same bytes for the same arrays and label.

    >>> sorted(unpack(pack({"ids": np.array(["a", "b"]), "scores": np.array([1.0, 2.0])})))
    ['ids', 'scores']
    """
    table = pa.table({name: _column(name, array) for name, array in arrays.items()})
    table = table.replace_schema_metadata({"label": label})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), dtype=np.uint8)


def unpack(content: Any) -> dict[str, NDArray[Any]]:
    """The arrays of an Arrow file made by `pack`; numbers are not copied."""
    table = pa.ipc.open_file(pa.py_buffer(content)).read_all()
    return {name: _array(table.column(name).combine_chunks()) for name in table.column_names}


def read_label(content: Any) -> str:
    """The label that was packed with the arrays."""
    metadata = pa.ipc.open_file(pa.py_buffer(content)).schema.metadata or {}
    return str(metadata.get(b"label", b"").decode())


def _column(name: str, array: NDArray[Any]) -> Any:
    if array.dtype.kind == "U":
        return pa.array(array.tolist(), pa.string())
    if array.dtype.kind not in "bfiu" or (array.dtype.kind == "b" and array.ndim > 2):
        raise InvalidInput(
            f"{name} must hold numbers, text or at most two axes of booleans, got {array.dtype}"
        )
    if array.ndim == 1:
        return pa.array(array)
    if array.dtype.kind == "b":  # Arrow has no tensors of bits: a list for each row
        return pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array))


def _array(column: Any) -> NDArray[Any]:
    if isinstance(column, pa.FixedShapeTensorArray):
        tensor: NDArray[Any] = column.to_numpy_ndarray()
        return tensor
    if pa.types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=np.str_)
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.flatten()).reshape(len(column), column.type.list_size)
    return np.asarray(column)
