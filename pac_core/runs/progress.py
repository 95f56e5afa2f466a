"""Progress of a run: a live bar on a terminal, a line now and then elsewhere, gauges for Ray's dashboard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from pac_core.runs.engines import State
from pac_core.runs.jobs import Receipt

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
            values = {"pac_units_done": state.done, "pac_units_per_second": rate}
            gauges(values | {"pac_workers": state.workers, "pac_retries": state.retries})

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


def estimate(state: State, receipt: Receipt) -> str:
    """Time, memory and storage of what is left, in a sentence; the slowest pool sets the pace.

    >>> from pac_core.runs import Effort
    >>> shard = Receipt(0, n=500, digest="", size=4_000_000, effort=Effort((5.0,), 600_000_000))
    >>> estimate(State(units=15_000, shards=30, done=500, finished=1, most=(2,)), shard)
    'a shard takes 5.0 s and 600 MB of memory: 29 left, about 1 min 12 s on 2 workers; 120 MB to store'
    >>> shard = Receipt(0, n=500, digest="", size=4_000_000, effort=Effort((5.0, 4.0), 600_000_000))
    >>> estimate(State(units=15_000, shards=30, done=500, finished=1, most=(4, 1)), shard)[:60]
    'a shard takes 5.0 + 4.0 s and 600 MB of memory: 29 left, abo'
    >>> estimate(State(units=15_000, shards=30, done=500, finished=1, most=(4, 1)), shard)[56:]
    ' about 1 min 56 s on 4 + 1 workers; 120 MB to store'
    """
    left = state.shards - state.finished
    many = [max(1, min(count, left)) for count in state.most]
    pace = max(seconds / workers for seconds, workers in zip(receipt.effort.seconds, many, strict=True))
    took = " + ".join(f"{seconds:.1f}" for seconds in receipt.effort.seconds)
    stored = receipt.size / receipt.n * state.units
    return (
        f"a shard takes {took} s and {size(receipt.effort.memory)} of memory: {left:,} left, about "
        f"{duration(left * pace)} on {' + '.join(map(str, many))} worker{'s' * (many != [1])}; "
        f"{size(stored)} to store"
    )


def size(count: float) -> str:
    """Bytes in words.

    >>> size(950), size(5e6), size(2.5e9)
    ('1 kB', '5 MB', '2.5 GB')
    """
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{max(1, round(count / 1e3))} kB"
