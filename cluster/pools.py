"""Workers on Ray: plain classes made into actors, started where there is room, replaced when they die."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from cluster.errors import NoWorkers, WorkerDiffers
from cluster.scoring import Arrays, Receipt, Stage, finish, make_scorers, run_stages, versions
from cluster.shards import Shard

AHEAD = 2
"""Shards a worker is given at once, so that it never waits for the driver."""


class Worker:
    """One or more stages in a process of their own; it knows nothing of Ray."""

    def prepare(self, device: str, cpus: int, expected: Mapping[str, str], last: bool, *stages: Stage) -> str:
        """Makes the scorers, if this machine has the driver's versions; returns the name of the host."""
        found = versions([name for name in expected if name not in ("python", "pac-sets")])
        differing = [
            f"{n} ({found[n]} there, {want} here)" for n, want in expected.items() if found[n] != want
        ]
        if differing:
            raise WorkerDiffers(socket.gethostname(), ", ".join(differing))
        self.last = last
        self.scorers = make_scorers(stages, device, cpus)
        return socket.gethostname()

    def work(self, shard: Shard, given: Arrays) -> tuple[Receipt | None, Any]:
        """Nothing and the arrays for the next stage; from the last, a receipt and the shard's file."""
        started = time.perf_counter()
        arrays = run_stages(self.scorers, shard, given)
        return finish(shard, arrays, started) if self.last else (None, arrays)


@dataclass(eq=False)
class Member:
    """A worker of a pool: not yet ready, idle, or with shards in hand."""

    actor: Any
    ready: Any
    host: str = ""
    hands: deque[Any] = field(default_factory=deque)


@dataclass(frozen=True)
class Resources:
    """What one worker of a pool occupies."""

    cpus: int
    gpus: float

    def __str__(self) -> str:
        return f"{self.cpus} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")

    def fit_into(self, total: Mapping[str, float]) -> int:
        """How many workers there is room for."""
        room = int(total.get("CPU", 0) // self.cpus) if self.cpus else 10**9
        return min(room, int(total.get("GPU", 0) / self.gpus + 1e-9)) if self.gpus else room


class Pool:
    """Workers that do the same stages; at least `least`, at most `most` of them."""

    def __init__(
        self,
        stages: Sequence[Stage],
        resources: Resources,
        least: int,
        most: int,
        expected: Mapping[str, str],
        last: bool,
    ) -> None:
        self.resources, self.least, self.most, self.last = resources, least, most, last
        self.members: list[Member] = []
        self.waiting: deque[tuple[Shard, Any]] = deque()
        self.seconds: list[float] = []
        self._expected = dict(expected)
        self._stages = [ray.put(stage) for stage in stages]  # once; every worker takes it from the store

    @property
    def alive(self) -> int:
        """Workers that are ready."""
        return sum(bool(member.host) for member in self.members)

    def grow(self, wanted: int) -> None:
        """Starts workers until there are `wanted`, within the limits of the pool."""
        while len(self.members) < min(self.most, max(self.least, wanted)):
            self.members.append(self._start())

    def drop(self, member: Member) -> list[Any]:
        """Ends a worker; returns what it had in hand."""
        self.members.remove(member)
        ray.kill(member.actor)
        return list(member.hands)

    def idle(self) -> Member | None:
        """A ready worker with nothing in hand."""
        return next((m for m in self.members if m.host and not m.hands), None)

    def next_free(self, ahead: int) -> Member | None:
        """The ready worker with the fewest shards in hand, if it may have one more."""
        free = [m for m in self.members if m.host and len(m.hands) < ahead]
        return min(free, key=lambda m: len(m.hands), default=None)

    def _start(self) -> Member:
        device = "cuda" if self.resources.gpus else "cpu"
        options = {
            "num_cpus": self.resources.cpus,
            "num_gpus": self.resources.gpus,
            "max_restarts": 0,  # the engine replaces what dies, wherever there is room
            "scheduling_strategy": "SPREAD",
        }
        actor: Any = ray.remote(Worker).options(**options).remote()
        ready = actor.prepare.remote(device, self.resources.cpus, self._expected, self.last, *self._stages)
        return Member(actor, ready)


def arrange(
    stages: Sequence[Stage], expected: Mapping[str, str], workers: tuple[int, int] | None, gpus: float | None
) -> list[Pool]:
    """Pools for the stages: neighbours with the same needs share workers.

    workers: least and most of each pool; by default as many as the cluster has room for
    gpus: of each worker of the stages that can use one, instead of what they ask for
    """
    total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    groups: list[tuple[Resources, list[Stage]]] = []
    for stage in stages:
        wanted = stage.gpus
        if wanted is None:
            wanted = (1.0 if total.get("GPU", 0) >= 1 else 0.0) if gpus is None else gpus
        needed = Resources(stage.cpus, wanted)
        if groups and groups[-1][0] == needed:
            groups[-1][1].append(stage)
        else:
            groups.append((needed, [stage]))
    pools = []
    for i, (needed, group) in enumerate(groups):
        room = needed.fit_into(total)
        grows = workers is not None and workers[1] > workers[0]
        if not room and not grows:
            raise NoWorkers(
                f"a worker needs {needed}, but the cluster has {total.get('CPU', 0):g} CPU and "
                f"{total.get('GPU', 0):g} GPU: ask for less, or for workers MIN..MAX where it can grow"
            )
        least, most = workers or (room, room)
        pools.append(Pool(group, needed, least, most, expected, i == len(groups) - 1))
    return pools
