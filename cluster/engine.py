"""A job on Ray: every shard exactly once, whatever happens to the workers.

The driver hands shards to a pool of actors and writes what comes back. A worker that dies is
infrastructure: its shards are computed again elsewhere, with the same bits, because a seed belongs to a
unit. A scorer that raises is the shard's own fault: the run stops and says so.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayError, RayTaskError

from cluster.errors import Incomplete, NoWorkers, ShardFailed, WorkerDiffers
from cluster.faults import cause, out_of_memory, words
from cluster.pools import AHEAD, START, Member, Pool, arrange, staff
from cluster.scoring import Job, Receipt, versions
from cluster.shards import Shard
from cluster.states import State
from cluster.storage import RunFolder
from pac_core import InvalidInput

SLOW = 3.0
"""A shard that takes this many times the median, while others are idle, is begun a second time."""
LATE = 60.0
"""Seconds after which workers without GPUs no longer wait until all those with GPUs have a place."""
PATIENCE = 2.0
"""Seconds below which nothing is slow."""
WAIT = 20 * 60.0
"""Seconds after which a run gives up that nobody works for: machines of a cloud take minutes to come."""


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


def run(
    job: Job,
    folder: RunFolder,
    *,
    workers: tuple[int, int] | None = None,
    gpus: float | None = None,
    retries: int = 4,
    wait: float = WAIT,
    limit: int | None = None,
    progress: Callable[[State], Any] | None = None,
) -> State:
    """Every shard of the job, written to the folder; Ray must be initialised.

    What is there already is kept. The result is the same, bit for bit, for any number of workers of one
    kind, and whatever dies on the way.

    workers: least and most in each pool; by default as many as there is room for
    gpus: per worker, for stages that can use one
    retries: how often one shard may lose its worker before the run stops with `ShardFailed`
    wait: seconds; see `WAIT`
    limit: stop after so many shards
    """
    if workers is not None and not 1 <= workers[0] <= workers[1]:
        raise InvalidInput(f"workers must be at least 1, and no more at least than at most, got {workers}")
    pools = arrange(job.stages, versions(job.needs), workers, gpus)
    run_of_folder = folder.claim(job, pools[-1].device)
    for pool in pools:
        pool.claim(run_of_folder)
    found = folder.receipts(job, mend=True)
    todo = [shard for shard in job.shards if shard.number not in found][:limit]
    engine = _Engine(folder, State.of(job, found), todo, retries, wait, progress or (lambda state: None))
    if todo:
        engine.run(pools)
    if limit is None:
        folder.check(job)
    return engine.state


class _Engine:
    def __init__(
        self,
        folder: RunFolder,
        state: State,
        todo: list[Shard],
        retries: int,
        wait: float,
        progress: Callable[[State], Any],
    ) -> None:
        self.folder, self.retries, self.wait, self.progress = folder, retries, wait, progress
        self.state, self.todo = state, todo
        self.state.pools = ()
        self.goal = state.finished + len(todo)
        self.running: dict[Any, Attempt] = {}
        self.losses: Counter[int] = Counter()
        self.begun = self.moved = time.monotonic()
        self.stillborn = 0
        self.repeated: set[tuple[int, int]] = set()
        """pool and shard: begun a second time"""
        self.passed: set[tuple[int, int]] = set()
        """pool and shard: whose result has been handed on"""
        self.pools: list[Pool] = []

    def run(self, pools: list[Pool]) -> None:
        self.pools = pools
        pools[0].waiting.extend((shard, START) for shard in self.todo)
        self.progress(self.state)
        try:
            while self.state.finished < self.goal:
                self._staff()
                self._hand_out()
                self._begin_again_what_is_slow()
                self._listen()
                self._give_up_waiting()
        finally:
            for pool in pools:
                for member in list(pool.members):
                    pool.drop(member)

    def _staff(self) -> None:
        """As many workers as there is work for, and what is known of them."""
        staff(self.pools, len(self.todo), late=time.monotonic() - self.begun > LATE)
        self.state.pools = tuple(pool.alive for pool in self.pools)
        self.state.missing = next((str(pool.resources) for pool in self.pools if not pool.alive), "")

    def _hand_out(self) -> None:
        for pool, following in zip(self.pools, [*self.pools[1:], None], strict=True):
            # What is done and not yet taken by the next pool waits in the object store: not too much of it.
            room = 10**9 if following is None else AHEAD * following.most - len(following.waiting)
            ahead = AHEAD if len(pool.waiting) >= pool.alive else 1
            while pool.waiting and room > 0 and (member := pool.next_free(ahead)):
                self._give(pool, member, *pool.waiting.popleft())
                room -= 1

    def _give(self, pool: Pool, member: Member, shard: Shard, given: Any) -> None:
        receipt, payload = member.actor.work.options(num_returns=2).remote(shard, given)
        attempt = Attempt(receipt, payload, shard, given, pool, member)
        member.hands.append(attempt)
        self.running[receipt] = attempt

    def _begin_again_what_is_slow(self) -> None:
        """A straggler's shard goes to an idle worker too; the first result counts."""
        now = time.monotonic()
        for pool in self.pools:
            if pool.waiting or not pool.seconds or not (idle := pool.idle()):
                continue
            limit = max(PATIENCE, SLOW * statistics.median(pool.seconds))
            slow = [m.hands for m in pool.members if m.hands and now - m.hands[0].since > limit]
            stuck = [attempt for hands in slow for attempt in hands]
            fresh = (one for one in stuck if self._place(one) not in self.repeated | self.passed)
            if (attempt := next(fresh, None)) is not None:
                self.repeated.add(self._place(attempt))
                self.state.repeats += 1
                self._give(pool, idle, attempt.shard, attempt.given)

    def _place(self, attempt: Attempt) -> tuple[int, int]:
        """Pool and shard."""
        return self.pools.index(attempt.pool), attempt.shard.number

    def _listen(self) -> None:
        starting = {m.ready: (pool, m) for pool in self.pools for m in pool.members if not m.host}
        refs = [*self.running, *starting]
        if not refs:
            raise Incomplete(f"{self.goal - self.state.finished} shards are in nobody's hands; start again")
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        if not ready:
            ready, _ = ray.wait(refs, timeout=0.5, fetch_local=False)
        for ref in ready:
            if ref in starting:
                self._welcome(*starting[ref])
            elif ref in self.running:  # else its worker died meanwhile
                self._take(self.running[ref])
        self.progress(self.state)

    def _give_up_waiting(self) -> None:
        """Stops a run that nobody works for: its machines never come, or hang while they prepare."""
        if self.running:
            self.moved = time.monotonic()
        elif time.monotonic() - self.moved > self.wait:
            raise NoWorkers(
                f"no worker with {self.state.missing or 'anything to do'} was ready within "
                f"{self.wait / 60:.3g} minutes: the cluster gives it no place, or it hangs while it prepares "
                "(its log tells); finished shards are kept, and the same command goes on from there"
            )

    def _welcome(self, pool: Pool, member: Member) -> None:
        try:
            member.host = ray.get(member.ready)
            self.stillborn = 0
        except RayTaskError as error:
            raised = cause(error)
            if isinstance(raised, WorkerDiffers):
                raise raised from None
            if not out_of_memory(raised):
                raise ShardFailed("the start of a worker", words(raised), str(error)) from raised
            self._stillborn(pool, member, error)
        except RayError as error:
            self._stillborn(pool, member, error)

    def _stillborn(self, pool: Pool, member: Member, error: RayError) -> None:
        """A worker died before it was ready: another is tried, unless none ever lives."""
        pool.drop(member)
        self.stillborn += 1
        if self.stillborn > self.retries + pool.most and not pool.alive:
            raise ShardFailed("the start of a worker", words(cause(error))) from error

    def _take(self, attempt: Attempt) -> None:
        try:
            receipt = ray.get(attempt.receipt)
            content = ray.get(attempt.payload) if attempt.pool.last else None
        except RayError as error:
            self._judge(attempt, error)
        else:
            self._release(attempt)
            attempt.pool.seconds.append(time.monotonic() - attempt.since)
            self._pass_on(attempt, receipt, content)

    def _judge(self, attempt: Attempt, error: RayError) -> None:
        """Whose fault was it: a lost node's, a dead worker's, or the shard's own?"""
        raised = cause(error)
        if isinstance(raised, ObjectLostError):  # what it was given, or made, went down with another node
            self._release(attempt)
            self._lose(attempt, error)
        elif isinstance(error, RayTaskError) and not out_of_memory(raised):
            raise ShardFailed(str(attempt.shard), words(raised), str(error)) from raised
        else:
            self._bury(attempt.pool, attempt.member, error)

    def _pass_on(self, attempt: Attempt, receipt: Receipt, content: Any) -> None:
        """To the next pool or, from the last one, into the folder; only the first result counts."""
        place = self._place(attempt)
        if place in self.passed:
            return
        self.passed.add(place)
        if attempt.pool.last:
            self.folder.keep(receipt, content)
            self.state.kept(receipt)
        else:
            self.pools[place[0] + 1].waiting.append((attempt.shard, attempt.payload))
        for other in [one for one in self.running.values() if self._place(one) == place]:
            if (
                other in other.member.hands and other is other.member.hands[0]
            ):  # a straggler that was overtaken
                self._bury(other.pool, other.member)

    def _release(self, attempt: Attempt) -> None:
        del self.running[attempt.receipt]
        attempt.member.hands.remove(attempt)
        if attempt.member.hands:
            attempt.member.hands[0].since = time.monotonic()

    def _bury(self, pool: Pool, member: Member, error: RayError | None = None) -> None:
        """Ends a worker: what it had in hand is computed again; only what it had begun counts as a loss."""
        for place, attempt in enumerate(pool.drop(member)):
            del self.running[attempt.receipt]
            self._lose(attempt, error if place == 0 else None)

    def _lose(self, attempt: Attempt, error: RayError | None) -> None:
        """Back to the first stage with a shard, unless its result is there or on its way."""
        number = attempt.shard.number
        if self._place(attempt) in self.passed:
            return
        everywhere = {(place, number) for place in range(len(self.pools))}
        self.passed -= everywhere
        self.repeated -= everywhere
        if error is not None:
            self._count(attempt, error)
        waiting = any(shard.number == number for pool in self.pools for shard, _ in pool.waiting)
        if not waiting and all(other.shard.number != number for other in self.running.values()):
            self.pools[0].waiting.appendleft((attempt.shard, START))

    def _count(self, attempt: Attempt, error: RayError) -> None:
        """One more loss of a shard; a worker that dies at once may have been dead before it was given it."""
        number, limit = attempt.shard.number, self.retries
        self.state.retries += 1
        self.losses[number] += 1
        if time.monotonic() - attempt.since < PATIENCE:
            limit += attempt.pool.most
        if self.losses[number] > limit:
            raise ShardFailed(
                str(attempt.shard),
                f"its worker died {self.losses[number]} times ({words(cause(error))}); if memory ran out, "
                "try smaller shards or workers with more of it",
            )
