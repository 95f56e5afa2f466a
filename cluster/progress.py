"""Progress of a run: a live bar on a terminal, a line now and then elsewhere, gauges for Ray's dashboard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from cluster.engines import State

SECONDS = 10.0
"""Between two lines, where there is no terminal."""


@contextmanager
def shown(
    name: str, unit: str, *, gauges: Callable[[dict[str, float]], Any] | None = None, every: float = SECONDS
) -> Iterator[Callable[[State], None]]:
    """A function to call with the state of a run, as often as one likes."""
    live = sys.stderr.isatty()
    bar: tqdm[Any] | None = None
    start, said, begun = time.monotonic(), -every, False

    def show(state: State) -> None:
        nonlocal bar, said, begun, start
        if not begun:
            begun, start = True, time.monotonic()
            if state.damaged:
                print(f"{state.damaged:,} shards were damaged, and are computed again", flush=True)
            if state.ready:
                print(f"{state.ready:,} of {state.units:,} {unit}s were finished already", flush=True)
        if state.ready == state.units:
            return
        elapsed = max(time.monotonic() - start, 1e-9)
        rate = (state.done - state.ready) / elapsed
        if live:
            if bar is None:
                bar = tqdm(total=state.units, initial=state.ready, desc=name, unit=f" {unit}s", leave=True)
            bar.update(state.done - bar.n)
            bar.set_postfix_str(words(state), refresh=False)
        elif time.monotonic() - said >= every or state.finished == state.shards:
            said = time.monotonic()
            left = (state.units - state.done) / rate if rate else float("nan")
            ahead = f", {duration(left)} left" if rate and left else ""
            done = f"{state.done:,} of {state.units:,} {unit}s, {rate:.3g} a second"
            print(f"{name}: {done}, {words(state)}{ahead}", flush=True)
        if gauges is not None:
            gauges(
                {
                    "pac_units_done": state.done,
                    "pac_units_per_second": rate,
                    "pac_workers": state.workers,
                    "pac_retries": state.retries,
                }
            )

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()


@contextmanager
def counted(name: str, *, every: float = SECONDS) -> Iterator[Callable[[int, int], None]]:
    """A function to call with how many are done and how many there are."""
    bar: tqdm[Any] | None = None
    said = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal bar, said
        if sys.stderr.isatty():
            bar = bar if bar is not None else tqdm(total=total, desc=name)
            bar.update(done - bar.n)
        elif time.monotonic() - said >= every or done == total:
            said = time.monotonic()
            print(f"{name}: {done:,} of {total:,}", flush=True)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()


def words(state: State) -> str:
    """Workers and what went wrong, in words."""
    if state.missing:
        return f"waiting for a worker with {state.missing}"
    parts = [f"{state.workers} worker{'s' * (state.workers != 1)}"]
    parts += [f"{state.retries} retr{'ies' if state.retries != 1 else 'y'}"]
    parts += [f"{state.repeats} begun twice"] * bool(state.repeats)
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(4.2), duration(75), duration(7330)
    ('4 s', '1 min 15 s', '2 h 2 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
