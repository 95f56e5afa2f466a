"""Scoring a shard, in plain Python: what every worker does, and what can be done without Ray.

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
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cluster.digests import OURS as OURS
from cluster.digests import Digests, Undigested, content_of_file, source_digests
from cluster.outcomes import Arrays as Arrays
from cluster.outcomes import checked, refuse_unfit
from cluster.packing import pack
from cluster.shards import Ids, Shard, cut, ids_fingerprint
from pac_core import InvalidInput

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of malloc.h
CODE = "code of "
RESERVED = frozenset({"task", "units", "shards", "ids", "versions", "device", "stages", "code"})
"""Names of a run's description that are not the configuration's."""


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
    exempt: names of arguments that change no number of a finished shard, such as a log's; a run may go on
        with others. All the rest is compared by content, and so is the code of `make`; a text or path that
        names a file or folder counts by what is in it, one inside another argument by its name
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
        arguments = self._arguments()
        if unknown := set(self.exempt) - set(arguments):
            raise InvalidInput(f"exempt must name arguments of {name}, got {min(unknown)!r}")

        def told(what: str, value: Any) -> str:
            if type(value) in (bool, int, float):
                return repr(value)
            try:
                return digests(content_of_file(value))[:32]
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

    def _arguments(self) -> dict[str, Any]:
        try:
            arguments = signature(self.make).bind(*self.args, device="cpu").arguments
        except (TypeError, ValueError):  # the worker says what is wrong
            return {f"argument {place}": value for place, value in enumerate(self.args, 1)}
        return {key: value for key, value in arguments.items() if key != "device"}


@dataclass(frozen=True, eq=False)
class Job:
    """Units, cut into shards beforehand, and how each shard is scored.

    name: of the task, in a word
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
        """What a run folder holds against another job: task, configuration, ids, scorers, code and versions.

        Made anew each time it is asked for, because arguments can change in place.
        """
        ids = {"units": self.units, "shards": len(self.shards), "ids": ids_fingerprint(self.shards)}
        homes = (getattr(stage.make, "__module__", None) or "" for stage in self.stages)
        digests = Digests(home.partition(".")[0] for home in homes)
        stages = {str(place): stage.describe(digests) for place, stage in enumerate(self.stages, 1)}
        code = {CODE + module: digest[:32] for module, digest in sorted(digests.code.items())}
        known = {"versions": versions(self.needs), "stages": stages, "code": code}
        return {"task": self.name, **self.configuration, **ids, **known}


def run_digest(description: Mapping[str, Any]) -> str:
    """What tells the files of a run from those of others; the device is compared on its own."""
    known = {name: value for name, value in description.items() if name != "device"}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Effort:
    """What a shard has taken so far.

    seconds: of each worker that had it, one after the other
    memory: the largest of these workers so far, in bytes
    """

    seconds: tuple[float, ...] = ()
    memory: int = 0

    def and_since(self, started: float) -> Effort:
        """With what this process has done since."""
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Effort((*self.seconds, time.perf_counter() - started), max(self.memory, memory))


@dataclass(frozen=True)
class Receipt:
    """What is known of a finished shard: a few bytes, whatever it holds.

    number, n: of the shard, and of its units
    digest: SHA-256 of its file
    size: of its file, in bytes
    effort: what it took; empty if not known
    """

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
        given = checked(shard, scorer(shard, given))
    return given


def finish(
    shard: Shard, arrays: Arrays, started: float, run: str = "", earlier: Effort | None = None
) -> tuple[Receipt, NDArray[np.uint8]]:
    """The file of a shard as bytes, which say of which run they are, with its receipt.

    What no certificate can be made of is refused here, before any of it is stored; see `refuse_unfit`.
    earlier: of the workers that had it before
    """
    refuse_unfit(arrays)
    content = pack(arrays, run)
    digest = hashlib.sha256(content.data).hexdigest()
    effort = (earlier or Effort()).and_since(started)
    return Receipt(shard.number, len(shard), digest, content.nbytes, effort), content


def set_threads(count: int) -> None:
    """As many threads for torch and BLAS as the worker has CPUs; two on one busy core are far slower."""
    from threadpoolctl import threadpool_limits

    os.environ["OMP_NUM_THREADS"] = str(count)
    threadpool_limits(count)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(count)


def keep_freed_memory() -> None:
    """Tells glibc not to return freed memory at once: large arrays come and go with every shard.

    Otherwise each is mapped, filled with zeros page by page, and unmapped: a third of a small model's time.
    """
    try:
        set_option = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another C library
        return
    for option, value in ((_MMAP_THRESHOLD, 32 << 20), (_TRIM_THRESHOLD, 1 << 30), (_TOP_PAD, 64 << 20)):
        set_option(option, value)


def versions(needs: Sequence[str]) -> dict[str, str]:
    """Versions of what decides the digits: Python, our own code, and the packages named.

    ``code of my_module`` names the source of a module.
    """
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "pac-sets": _code()}
    modules = [name.removeprefix(CODE) for name in needs if name.startswith(CODE)]
    sources = source_digests(modules)
    for name in needs:
        try:
            if name.startswith(CODE):
                found[name] = sources.get(name.removeprefix(CODE), "missing")[:32]
            else:
                found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _code() -> str:
    """A fingerprint of our own source: a version number stays the same while code changes."""
    digest = hashlib.sha256()
    for package in OURS:
        spec = find_spec(package)  # finds it without importing it, wherever it was shipped to
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).glob("*.py")):
                digest.update(f"{package}/{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
