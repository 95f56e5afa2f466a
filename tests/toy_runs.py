"""A small job for the tests of the engine, and what its run folder holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toy_scorers import Draw

from pac_core.runs import Job, Stage
from pac_core.runs.jobs import pack, unpack

UNITS, SIZE = 200, 10


def job(make: Callable[..., Any] = Draw, *args: Any, units: int = UNITS, size: int = SIZE) -> Job:
    """Twenty shards of ten units each, unless told otherwise."""
    return Job.of("toy", range(units), [Stage(make, args)], size=size)


def files(folder: Path) -> list[str]:
    """Names of the shards' files; they hold the checksums, so equal names are equal bytes of one run."""
    return sorted(path.name for path in (folder / "shards").iterdir())


def contents(folder: Path) -> list[str]:
    """What is in the shards' files, whichever run they are of: their names with checksums of the arrays."""
    found = []
    for name in files(folder):
        arrays = pack(unpack((folder / "shards" / name).read_bytes()))
        found.append(f"{name.rpartition('-')[0]}-{hashlib.sha256(arrays.data).hexdigest()}")
    return found
