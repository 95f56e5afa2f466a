"""Workers on Ray: where they are placed, what each has in hand, which one hangs, how it is replaced."""

from __future__ import annotations

import pickle
import re
import socket
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import ray
from ray import cloudpickle

from pac_core import PACError
from pac_core.runs import (
    CODE,
    Arrays,
    Effort,
    Receipt,
    RunFolder,
    Shard,
    Stage,
    find_versions,
    finish_shard,
    is_installed,
    make_scorers,
    run_stages,
)


class WorkerDiffers(PACError):
    """A worker has other versions than the driver, so its results could have other digits."""


class NoWorkers(PACError):
    """The cluster has no room for a single worker, or none came in time."""


if TYPE_CHECKING:  # the twin without Ray reads this too
    from ray.exceptions import RayError


def cause(error: RayError) -> BaseException:
    """What the scorer raised, as it raised it where that can be sent between processes."""
    raised = getattr(error, "cause", None)
    return raised if isinstance(raised, BaseException) else error


def out_of_memory(raised: BaseException) -> bool:
    """Whether memory ran out, on a CPU or on a GPU; torch has errors of its own for it."""
    if isinstance(raised, MemoryError) or type(raised).__name__ == "OutOfMemoryError":
        return True
    return isinstance(raised, RuntimeError) and bool(re.search("(out of|enough) memory", str(raised).lower()))


AT_ONCE = 8
"""Shards that are written at the same time, at most."""
BYTES = 64 << 20
"""No further one is begun above so many bytes: they are the driver's memory."""


class Writes:
    """Writes under way. Leaving it waits for them: what was computed is kept, whatever else failed."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(1 if folder.alone else AT_ONCE)
        self._under_way: dict[Future[None], Receipt] = {}

    def __enter__(self) -> Writes:
        return self

    def __exit__(self, *raised: object) -> None:
        self._threads.shutdown()

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def full(self) -> bool:
        """Whether another has to wait."""
        return len(self) >= AT_ONCE or sum(receipt.size for receipt in self._under_way.values()) >= BYTES

    def begin(self, receipt: Receipt, content: Any) -> None:
        """Writes a shard's file in the background."""
        self._under_way[self._threads.submit(self._folder.keep, receipt, content)] = receipt

    def wait(self, seconds: float | None = None) -> None:
        """Returns when one is finished, or after so many seconds."""
        wait(self._under_way, seconds, FIRST_COMPLETED)

    def finished(self) -> Iterator[Receipt]:
        """Those that are written since this was last asked; raises what a write raised."""
        for write in [write for write in self._under_way if write.done()]:
            receipt = self._under_way.pop(write)
            write.result()
            yield receipt


Given: TypeAlias = tuple[Arrays, Effort]
"""What a pool has of the one before it."""
START: Given = ({}, Effort())
"""What the first is given."""
AHEAD = 2
"""Shards a worker is given at once, so that it never waits for the driver."""


class Worker:
    """One or more stages in a process of their own; it knows nothing of Ray."""

    def prepare(self, device: str, cpus: int, expected: Mapping[str, str], run: str, *stages: Stage) -> str:
        """Makes the scorers, if this machine has the driver's versions; returns the name of the host.

        run: digest of the run, in the last pool; empty in the others
        """
        found = find_versions([name for name in expected if name not in ("python", "pac-sets")])
        host, wanted = socket.gethostname(), expected.items()
        if differing := [f"{n} ({found[n]} there, {want} here)" for n, want in wanted if found[n] != want]:
            raise WorkerDiffers(
                f"the worker on {host} differs from the driver in {', '.join(differing)}: install the same "
                "versions on every machine (docs/cluster.md), then start again; finished shards are kept."
            )
        self.run = run
        self.scorers = make_scorers(stages, device, cpus)
        return host

    def work(self, shard: Shard, given: Given) -> tuple[Receipt | None, Any]:
        """Nothing and what the next pool is given; from the last, a receipt and the shard's file."""
        started, (arrays, earlier) = time.perf_counter(), given
        arrays = run_stages(self.scorers, shard, arrays)
        if self.run:
            return finish_shard(shard, arrays, started, self.run, earlier)
        return None, (arrays, earlier.add_since(started))


def ship(stages: Sequence[Stage], modules: Sequence[str]) -> tuple[list[Any], set[str]]:
    """Stages in the object store, and which of these modules are in there with them: those beside the user's
    script, which no worker could import. Where they cannot be taken along, workers must have them."""
    own = [home for name in modules if (home := sys.modules.get(name)) and not is_installed(home.__file__)]
    for home in own:
        cloudpickle.register_pickle_by_value(home)  # type: ignore[no-untyped-call]
    try:
        return [ray.put(stage) for stage in stages], {home.__name__ for home in own}
    except (TypeError, ValueError, AttributeError, pickle.PicklingError):  # a lock, an open file
        pass
    finally:
        for home in own:
            cloudpickle.unregister_pickle_by_value(home)  # type: ignore[no-untyped-call]
    return [ray.put(stage) for stage in stages], set()


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
        self.seconds: deque[float] = deque(maxlen=101)
        """what the latest shards took"""
        self._expected, self._run = dict(expected), ""
        self._given, self._stages = stages, list[Any]()

    @property
    def device(self) -> str:
        return "cuda" if self.resources.gpus else "cpu"

    @property
    def alive(self) -> int:
        """Workers that are ready."""
        return sum(bool(member.host) for member in self.members)

    def claim(self, run: str, code: Mapping[str, str]) -> None:
        """Of which run its files are, if it is the last pool, and which code its workers must have.

        Modules of the user's own travel with the stages, which every worker takes from the object store.
        """
        self._run = run if self.last else ""
        self._stages, shipped = ship(self._given, [name.removeprefix(CODE) for name in code])
        self._expected |= {
            name: digest for name, digest in code.items() if name.removeprefix(CODE) not in shipped
        }

    def grow(self, wanted: int) -> None:
        """Starts workers until there are `wanted`, or as many as there may be."""
        options = {
            "num_cpus": self.resources.cpus,
            "num_gpus": self.resources.gpus,
            "max_restarts": 0,  # the engine replaces what dies, wherever there is room
            "scheduling_strategy": "SPREAD",
        }
        about = self.device, self.resources.cpus, self._expected, self._run
        while len(self.members) < min(self.most, wanted):
            actor: Any = ray.remote(Worker).options(**options).remote()
            self.members.append(Member(actor, actor.prepare.remote(*about, *self._stages)))

    def shrink(self) -> None:
        """Ends idle workers that nothing waits for, so that machines can go; one stays for stragglers."""
        idle = [m for m in self.members if m.host and not m.hands]
        for member in idle[1:] if not self.waiting else []:
            if len(self.members) > self.least:
                self.drop(member)

    def drop(self, member: Member) -> list[Any]:
        """Ends a worker; returns what it had in hand."""
        self.members.remove(member)
        ray.kill(member.actor)
        return list(member.hands)

    def next_free(self, ahead: int = 1) -> Member | None:
        """The ready worker with the fewest shards in hand, if it has fewer than `ahead`."""
        free = [m for m in self.members if m.host and len(m.hands) < ahead]
        return min(free, key=lambda m: len(m.hands), default=None)


def arrange(
    stages: Sequence[Stage], expected: Mapping[str, str], workers: tuple[int, int] | None, gpus: float | None
) -> list[Pool]:
    """Pools for the stages: neighbours with the same needs share workers; see `cluster.engine.run`."""
    total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    groups: list[tuple[Resources, list[Stage]]] = []
    for stage in stages:
        free = float(total.get("GPU", 0) >= 1) if gpus is None else gpus
        needed = Resources(stage.cpus, free if stage.gpus is None else stage.gpus)
        if groups and groups[-1][0] == needed:
            groups[-1][1].append(stage)
        else:
            groups.append((needed, [stage]))
    needs = [needed for needed, _ in groups]
    if workers is None or workers[0] == workers[1]:
        refuse_crowd(workers[0] if workers else 1, needs, total)
    sizes = [workers or (count, count) for count in share_out(needs, total)]
    last = len(groups) - 1
    return [Pool(group, needed, *sizes[i], expected, i == last) for i, (needed, group) in enumerate(groups)]


def refuse_crowd(count: int, needs: Sequence[Resources], total: Mapping[str, float]) -> None:
    """Refuse so many workers of each kind where they have no room together: one kind would wait for ever."""
    cpus, gpus = (count * sum(getattr(each, kind) for each in needs) for kind in ("cpus", "gpus"))
    if cpus > total.get("CPU", 0) or gpus > total.get("GPU", 0) + 1e-9:
        many = "a worker of each kind needs" if count == 1 else f"{count} workers of each kind need"
        raise NoWorkers(
            f"{many} {Resources(cpus, gpus)}, but the cluster has {total.get('CPU', 0):g} CPU and "
            f"{total.get('GPU', 0):g} GPU: ask for less, or for workers MIN..MAX where it can grow"
        )


def staff(pools: Sequence[Pool], shards: int, *, late: bool) -> None:
    """Starts workers where there is work for so many shards. Those with GPUs come first, before others fill
    their CPUs; if it is `late`, the others no longer wait until all of those have a place."""
    scarce = [pool for pool in pools if pool.resources.gpus]
    there = all(pool.alive for pool in scarce)
    placed = (late and there) or all(pool.alive >= min(pool.least, shards) for pool in scarce)
    everywhere = all(pool.alive for pool in pools)
    if not there:  # they need the CPUs that others wait for
        for pool in (pool for pool in pools if pool not in scarce):
            for member in [member for member in pool.members if not member.host]:
                pool.drop(member)
    for pool in pools:
        first = pool is pools[0]
        wanted = len(pool.waiting) + sum(len(m.hands) for m in pool.members) if first else shards
        if len(pools) > 1 and not everywhere:  # room for one of each kind comes first
            wanted = min(wanted, pool.least if pool in scarce else int(placed))
        pool.grow(wanted)
        if first:
            pool.shrink()


def share_out(needs: Sequence[Resources], total: Mapping[str, float]) -> list[int]:
    """How many workers of each kind there is room for: one of each, then GPUs, then the rest in turns.

    >>> share_out([Resources(1, 0), Resources(1, 1)], {"CPU": 5, "GPU": 2})
    [3, 2]
    >>> share_out([Resources(1, 0), Resources(1, 1)], {"CPU": 1, "GPU": 2})
    [0, 1]
    """
    left = {kind: float(total.get(kind, 0)) for kind in ("CPU", "GPU")}
    counts = [0] * len(needs)
    scarce = sorted(range(len(needs)), key=lambda i: -needs[i].gpus)
    turns = [scarce, *([[i] for i in scarce if needs[i].gpus]), [i for i in scarce if not needs[i].gpus]]
    for turn, kinds in enumerate(turns):
        placed = True
        while placed:
            placed = False
            for i in kinds:
                if needs[i].cpus <= left["CPU"] and needs[i].gpus <= left["GPU"] + 1e-9:
                    left["CPU"] -= needs[i].cpus
                    left["GPU"] -= needs[i].gpus
                    counts[i] += 1
                    placed = turn > 0
    return counts


SLOW = 3.0
"""A shard that takes this many times the median, while others are idle, is begun a second time."""
PATIENCE = 2.0
"""Seconds below which nothing is slow."""
HUNG = 20.0
"""A worker that takes this many times the median for a shard counts as dead, if nothing else ends it."""


@dataclass(eq=False)
class Attempt:
    """A shard in the hands of a worker."""

    receipt: Any
    payload: Any
    shard: Shard
    given: Any
    pool: Pool
    member: Member
    since: float = field(default_factory=time.monotonic)


def slow(pool: Pool) -> list[Attempt]:
    """What workers have in hand that take far longer than others did."""
    if not pool.seconds:
        return []
    limit = max(PATIENCE, SLOW * statistics.median(pool.seconds))
    return [attempt for member in _busy_for(pool, limit) for attempt in member.hands]


def hung(pool: Pool, least: float) -> tuple[list[Member], float]:
    """Workers that will not come back, and the seconds after which that is said: never below `least`."""
    limit = max(least, HUNG * statistics.median(pool.seconds or [least]))
    return _busy_for(pool, limit), limit


def _busy_for(pool: Pool, seconds: float) -> list[Member]:
    now = time.monotonic()
    return [member for member in pool.members if member.hands and now - member.hands[0].since > seconds]
