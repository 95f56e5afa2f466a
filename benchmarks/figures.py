"""One figure of a benchmark, and how contenders take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Figure:
    """What was measured, against whom or what, and whether the goal is reached.

    ratio: peer / ours where the peer must be beaten, ours / limit where a limit must be kept
    goal: in words, such as ">= 2" or "<= 8", or "" for information only
    """

    name: str
    ours: float
    peer: float
    unit: str
    ratio: float
    goal: str
    note: str = ""

    @property
    def reached(self) -> bool | None:
        if not self.goal:
            return None
        sign, number = self.goal.split()
        return self.ratio >= float(number) if sign == ">=" else self.ratio <= float(number)

    def __str__(self) -> str:
        word = {True: "reached", False: "NOT REACHED", None: ""}[self.reached]
        goal = f"goal {self.goal}: {word}" if self.goal else "no goal"
        values = f"ours {self.ours:.4g} {self.unit}, other {self.peer:.4g} {self.unit}"
        return f"{self.name:42} ratio {self.ratio:8.3g}  {goal:22} ({values})" + f"  {self.note}".rstrip()


def faster(name: str, ours: float, peer: float, goal: str, note: str = "") -> Figure:
    """How many times faster than the peer."""
    return Figure(name, ours, peer, "s", peer / ours, goal, note)


def within(name: str, ours: float, limit: float, unit: str, goal: str, note: str = "") -> Figure:
    """How many times the limit."""
    return Figure(name, ours, limit, unit, ours / limit, goal, note)


def take_turns(
    contenders: Mapping[str, Callable[[], Any]], rounds: int, in_a_row: int = 1
) -> dict[str, float]:
    """Seconds of each contender's best run: rounds interleaved, a few runs in a row at each turn."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, work in contenders.items():
            time.sleep(0.5)  # OpenMP threads of the one before spin for up to 0.2 s
            for _ in range(in_a_row):
                start = time.perf_counter()
                work()
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def peak() -> int:
    """The most memory this program had, in bytes; getrusage would count its parent's at the fork."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
