"""A job on Ray: every shard exactly once, whatever happens to the workers.

The driver hands shards to a pool of actors and writes what comes back. A worker that dies is
infrastructure: its shards are computed again elsewhere, with the same bits, because a seed belongs to a
unit. A scorer that raises is the shard's own fault: the run stops and says so.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayError, RayTaskError

from cluster.workers import (
    AHEAD,
    PATIENCE,
    START,
    Attempt,
    Member,
    NoWorkers,
    Pool,
    WorkerDiffers,
    Writes,
    arrange,
    cause,
    hung,
    out_of_memory,
    slow,
    staff,
)
from pac_core import InvalidInput, PACError
from pac_core.errors import Incomplete, ShardFailed
from pac_core.runs import Job, Receipt, RunFolder, Shard, State, describe_error, find_versions

LATE = 60.0
"""Seconds after which workers without GPUs no longer wait until all those with GPUs have a place."""
WAIT = 20 * 60.0
"""Seconds after which a run gives up that nobody works for, because machines of a cloud take minutes to come;
and the least after which a worker counts as dead that does not come back from a shard."""


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
    """Every shard of the job, written to the folder, which keeps what it has; Ray must be initialised.

    The result is the same, bit for bit, for any number of workers of one kind, and whatever dies on the way.

    workers: least and most in each pool; by default as many as there is room for
    gpus: per worker, for stages that can use one
    retries: how often one shard may lose its worker before the run stops with `ShardFailed`
    wait: seconds; see `WAIT`
    limit: stop after so many shards
    """
    if workers is not None and not 1 <= workers[0] <= workers[1]:
        raise InvalidInput(f"workers must be at least 1, and no more at least than at most, got {workers}")
    pools = arrange(job.stages, find_versions(job.needs), workers, gpus)
    run_of_folder = folder.claim(job, pools[-1].device)
    code = (folder.configuration() or {}).get("code", {})
    for pool in pools:
        pool.claim(run_of_folder, code)
    found, damaged = folder.mend(job)
    todo = [shard for shard in job.shards if shard.number not in found][:limit]
    state = State.of(job, found, damaged)
    _Engine(folder, state, todo, pools, retries, wait, progress or (lambda state: None)).run()
    if limit is None:
        folder.check(job)
    return state


class _Engine:
    def __init__(
        self,
        folder: RunFolder,
        state: State,
        todo: list[Shard],
        pools: list[Pool],
        retries: int,
        wait: float,
        progress: Callable[[State], Any],
    ) -> None:
        self.writes, self.retries, self.wait, self.progress = Writes(folder), retries, wait, progress
        self.state, self.todo, self.pools, self.state.pools = state, todo, pools, ()
        self.goal = state.finished + len(todo)
        self.running: dict[Any, Attempt] = {}
        self.losses = Counter[int]()
        """how often each shard lost its worker"""
        self.begun = self.moved = time.monotonic()
        self.failed_starts = 0
        self.repeated: set[tuple[int, int]] = set()
        """pool and shard: begun a second time"""
        self.passed: set[tuple[int, int]] = set()
        """pool and shard: whose result has been handed on"""
        self.done: deque[tuple[Attempt, Receipt]] = deque()
        """what the last pool made and the folder has not yet taken; it waits in the object store"""

    def run(self) -> None:
        pools = self.pools
        self.state.most = tuple(pool.most for pool in pools)
        pools[0].waiting.extend((shard, START) for shard in self.todo)
        self.progress(self.state)
        with self.writes:
            try:
                while self.state.finished < self.goal:
                    self._replace_hung_workers()
                    staff(pools, len(self.todo), late=time.monotonic() - self.begun > LATE)
                    self.state.pools = tuple(pool.alive for pool in pools)
                    missing = (str(pool.resources) for pool in pools if not pool.alive)
                    self.state.missing = next(missing, "")
                    self._hand_out()
                    self._begin_again_what_is_slow()
                    self._listen()
                    self._give_up_waiting()
            finally:
                for pool in pools:
                    for member in list(pool.members):
                        pool.drop(member)

    def _hand_out(self) -> None:
        for pool, following in zip(self.pools, [*self.pools[1:], None], strict=True):
            # Not too much may wait in the object store for the next pool, or for the folder.
            taker, taken = (pool, self.done) if following is None else (following, following.waiting)
            room = AHEAD * taker.most - len(taken)
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
        for pool in self.pools:
            if pool.waiting or not (idle := pool.next_free()):
                continue
            fresh = (one for one in slow(pool) if self._place(one) not in self.repeated | self.passed)
            if (attempt := next(fresh, None)) is not None:
                self.repeated.add(self._place(attempt))
                self.state.repeats += 1
                self._give(pool, idle, attempt.shard, attempt.given)

    def _replace_hung_workers(self) -> None:
        """A worker that takes far too long is as good as dead, also where nobody else is idle."""
        for pool in self.pools:
            members, limit = hung(pool, self.wait)
            for member in members:
                self._replace_worker(pool, member, f"it did not come back within {limit / 60:.3g} minutes")

    def _place(self, attempt: Attempt) -> tuple[int, int]:
        """Pool and shard."""
        return self.pools.index(attempt.pool), attempt.shard.number

    def _listen(self) -> None:
        starting = {m.ready: (pool, m) for pool in self.pools for m in pool.members if not m.host}
        refs = [*self.running, *starting]
        left = self.goal - self.state.finished
        if not refs and not self.writes:
            raise Incomplete(f"{left} shards are in nobody's hands; start again")
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False) if refs else ([], [])
        if not ready and (self.done or not refs or len(self.writes) == left):
            self.writes.wait(0.5)
        elif not ready:
            ready, _ = ray.wait(refs, timeout=0.5, fetch_local=False)
        failures: list[PACError] = []
        for ref in ready:
            try:
                if ref in starting:
                    self._welcome(*starting[ref])
                elif ref in self.running:  # else its worker died meanwhile
                    self._take(self.running[ref])
            except PACError as failure:  # what else is ready comes first
                failures.append(failure)
        self._keep(everything=bool(failures))
        self.progress(self.state)
        if failures:
            raise failures[0]

    def _keep(self, *, everything: bool) -> None:
        """Writes what is done, as far as the folder takes it at once; only what is written is kept."""
        while True:
            for receipt in self.writes.finished():
                self.state.add(receipt)
            while self.done and not self.writes.full:
                self._write(*self.done.popleft())
            if not (everything and self.done):
                return
            self.writes.wait()

    def _give_up_waiting(self) -> None:
        """Stops a run that nobody works for: its machines never come, or hang while they prepare."""
        if self.running or self.writes:
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
            self.failed_starts = 0
        except RayTaskError as error:
            raised = cause(error)
            if isinstance(raised, WorkerDiffers):
                raise raised from None
            if not out_of_memory(raised):
                raise ShardFailed("the start of a worker", describe_error(raised), str(error)) from raised
            self._refuse_failed_start(pool, member, error)
        except RayError as error:
            self._refuse_failed_start(pool, member, error)

    def _refuse_failed_start(self, pool: Pool, member: Member, error: RayError) -> None:
        """A worker died before it was ready: another is tried, unless none ever lives."""
        pool.drop(member)
        self.failed_starts += 1
        if self.failed_starts > self.retries + pool.most and not pool.alive:
            raise ShardFailed("the start of a worker", describe_error(cause(error))) from error

    def _take(self, attempt: Attempt) -> None:
        try:
            receipt = ray.get(attempt.receipt)
        except RayError as error:
            self._judge(attempt, error)
            return
        self._release(attempt)
        attempt.pool.seconds.append(time.monotonic() - attempt.since)
        if attempt.pool.last:
            self.done.append((attempt, receipt))
        elif self._is_first(attempt):
            following = self.pools[self.pools.index(attempt.pool) + 1]
            following.waiting.append((attempt.shard, attempt.payload))

    def _judge(self, attempt: Attempt, error: RayError) -> None:
        """Whose fault was it: a lost node's, a dead worker's, or the shard's own?"""
        raised = cause(error)
        if isinstance(raised, ObjectLostError):  # what it was given, or made, went down with another node
            self._release(attempt)
            self._lose(attempt, describe_error(raised))
        elif isinstance(error, RayTaskError) and not out_of_memory(raised):
            raise ShardFailed(str(attempt.shard), describe_error(raised), str(error)) from raised
        else:
            self._replace_worker(attempt.pool, attempt.member, describe_error(raised))

    def _write(self, attempt: Attempt, receipt: Receipt) -> None:
        try:
            content = ray.get(attempt.payload)
        except RayError as error:  # it went down with its node
            self._lose(attempt, describe_error(cause(error)))
            return
        if self._is_first(attempt):
            self.writes.begin(receipt, content)

    def _is_first(self, attempt: Attempt) -> bool:
        """Whether this is the first result of a shard in its pool, the one that counts; others are ended."""
        if (place := self._place(attempt)) in self.passed:
            return False
        self.passed.add(place)
        for other in [one for one in self.running.values() if self._place(one) == place]:
            if other in other.member.hands and other is other.member.hands[0]:  # a straggler, overtaken
                self._replace_worker(other.pool, other.member)
        return True

    def _release(self, attempt: Attempt) -> None:
        del self.running[attempt.receipt]
        attempt.member.hands.remove(attempt)
        if attempt.member.hands:
            attempt.member.hands[0].since = time.monotonic()

    def _replace_worker(self, pool: Pool, member: Member, why: str = "") -> None:
        """Ends a worker: what it had in hand is computed again; only what it had begun counts as a loss."""
        for place, attempt in enumerate(pool.drop(member)):
            del self.running[attempt.receipt]
            self._lose(attempt, why if place == 0 else "")

    def _lose(self, attempt: Attempt, why: str) -> None:
        """Back to the first stage with a shard, unless its result is there or on its way."""
        number = attempt.shard.number
        if {self._place(attempt), (len(self.pools) - 1, number)} & self.passed:
            return
        everywhere = {(place, number) for place in range(len(self.pools))}
        self.passed -= everywhere
        self.repeated -= everywhere
        if why:
            self.state.retries += 1
            self._count_loss(attempt, why)
        elsewhere = [shard for pool in self.pools for shard, _ in pool.waiting]
        elsewhere += [one.shard for one in (*self.running.values(), *(done for done, _ in self.done))]
        if all(shard.number != number for shard in elsewhere):
            self.pools[0].waiting.appendleft((attempt.shard, START))

    def _count_loss(self, attempt: Attempt, why: str) -> None:
        """Too many are the shard's own fault; a worker that dies at once may have been dead before it was
        given the shard, so then one more is allowed for every worker of its pool."""
        self.losses[attempt.shard.number] += 1
        lost, allowed = self.losses[attempt.shard.number], self.retries
        if time.monotonic() - attempt.since < PATIENCE:
            allowed += attempt.pool.most
        if lost > allowed:
            mend = "if memory ran out, try smaller shards or workers with more of it"
            raise ShardFailed(str(attempt.shard), f"its worker was lost {lost} times ({why}); {mend}")
