"""Progress of long work: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

SECONDS = 10
"""Between two lines, where there is no terminal."""


@contextmanager
def bar(name: str, total: int, ready: int = 0, *, quiet: bool = False) -> Iterator[Callable[[int], Any]]:
    """A function to call with the number of units that were finished."""
    if quiet or sys.stderr.isatty():
        with tqdm(total=total, initial=ready, desc=name, disable=quiet) as shown:
            yield shown.update
        return
    start = said = time.monotonic()
    done = ready

    def tick(n: int) -> None:
        nonlocal said, done
        done += n
        if time.monotonic() - said > SECONDS:
            said = time.monotonic()
            print(f"{name}: {done:,} of {total:,} after {said - start:.0f} s", flush=True)

    print(f"{name}: {total - ready:,} to do", flush=True)
    yield tick
    print(f"{name}: done in {time.monotonic() - start:.1f} s", flush=True)
