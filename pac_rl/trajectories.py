"""True trajectories: thousands of rollouts in the simulator, each with its own seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pac_core import InvalidInput, Trajectories
from pac_core.arrays import threads as usual_threads
from pac_core.bounds import whole
from pac_rl.environments import Environment, Physics
from pac_rl.policies import Policy, actions, fitting
from pac_rl.simulators import Simulator, observed

BATCH = 512
"""Rollouts that are computed together, part of the configuration. BLAS gives other last digits at other
batch sizes and in other rows, and the simulator makes other trajectories of them; so seed i is always
computed in row i % BATCH, whoever else is there."""
TRAINING_SEEDS = 1_000_000_000
"""Training episodes have seeds from here on, so that none is ever a unit of a run with the same seed."""
MOST_SEED = 2**63 // (2 * TRAINING_SEEDS) - 1
"""Of a run; beyond it, the seeds of its units would not be 64-bit integers."""

Part = TypeVar("Part")


@dataclass(frozen=True, eq=False)
class Rollouts:
    """N rollouts of H steps, in the order of `seeds`.

    seeds: `[N]` each rollout's own; its id
    start: `[N, D]` the state after the burn-in, from which a forecast starts
    physics: `[N, S]` the same for the simulator
    states: `[N, H, D]` the states reached; infinite from the step on at which a simulation diverged
    actions: `[N, H, A]` what was done
    lengths: `[N]` steps until the episode ended, the last one included; H if it did not
    """

    seeds: NDArray[np.int64]
    start: NDArray[np.float64]
    physics: Physics
    states: NDArray[np.float64]
    actions: NDArray[np.float64]
    lengths: NDArray[np.int64]

    @property
    def failed(self) -> NDArray[np.bool_]:
        """`[N]` whether the simulation diverged."""
        return np.asarray(np.isinf(self.states).any(axis=(1, 2)))

    @property
    def truth(self) -> Trajectories:
        """The states, until the episode ended: what tubes are fitted to and tested on."""
        return Trajectories(self.states, self.lengths)

    def take(self, rows: Any) -> Rollouts:
        """Some of the rollouts."""
        return take_rows(self, rows)

    @classmethod
    def join(cls, parts: Sequence[Rollouts]) -> Rollouts:
        """All parts, one after the other."""
        return join_rows(parts)


def simulate(
    environment: Environment,
    policy: Policy,
    seeds: Sequence[int] | NDArray[np.int64],
    *,
    horizon: int,
    burn_in: tuple[int, int] = (0, 200),
    batch: int = BATCH,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Rollouts:
    """Rollouts of the policy, one for each seed: reset, burn in for a drawn number of steps, then H steps.

    Everything random in a rollout comes from its seed, and nothing else does: the result is the same
    for any order of the seeds, any grouping into calls and any number of threads.

    burn_in: least and most steps before the start; an episode that ends within them is reset
    batch: see `BATCH`
    threads: of the simulator; the CPUs by default
    progress: called with the number of rollouts that were finished
    """
    whole("horizon", horizon, least=1)
    whole("batch", batch, least=1)
    limits = burn_in_range(burn_in)
    fitting(environment, policy)

    def work(units: NDArray[np.int64]) -> Rollouts:
        return _simulate(environment, policy, units, horizon, limits, batch)

    return by_seed(work, seeds, batch, threads, progress)


def execute(
    environment: Environment,
    rollouts: Rollouts,
    plans: NDArray[np.float64],
    *,
    threads: int | None = None,
) -> Rollouts:
    """What happens if `plans` `[N, H, A]` are carried out from the starts of `rollouts`, come what may."""
    wanted = (len(rollouts.seeds), len(environment.low))
    if plans.ndim != 3 or (plans.shape[0], plans.shape[2]) != wanted or not plans.shape[1]:
        raise InvalidInput(f"plans must have shape [{wanted[0]}, H, {wanted[1]}], got {plans.shape}")
    if not np.isfinite(plans).all():
        raise InvalidInput("plans must be finite numbers, got NaN or infinity")
    plans = np.clip(plans, environment.low, environment.high)
    simulator = Simulator(environment)

    def work(rows: slice) -> Rollouts:
        part, wanted = rollouts.take(rows), plans[rows]
        track = Track.empty(environment, len(wanted), wanted.shape[1])
        alive, physics = np.arange(len(wanted)), part.physics.copy()
        for t in range(wanted.shape[1]):
            done = wanted[alive, t]
            alive = track.record(t, alive, done, *simulator.step(physics, alive, done))
        return replace(part, states=track.states, actions=track.actions, lengths=track.lengths)

    blocks = [slice(first, first + BATCH) for first in range(0, len(plans), BATCH)]
    return in_threads(work, blocks, threads)


@dataclass(frozen=True, eq=False)
class Track:
    """The record of rollouts under way; the fields are those of `Rollouts`."""

    states: NDArray[np.float64]
    actions: NDArray[np.float64]
    lengths: NDArray[np.int64]

    @classmethod
    def empty(cls, environment: Environment, n: int, horizon: int) -> Track:
        return cls(
            np.zeros((n, horizon, len(environment.names))),
            np.zeros((n, horizon, len(environment.low))),
            np.full(n, horizon),
        )

    def record(
        self,
        t: int,
        rows: NDArray[np.intp],
        done: NDArray[np.float64],
        states: NDArray[np.float64],
        ended: NDArray[np.bool_],
        diverged: NDArray[np.bool_],
    ) -> NDArray[np.intp]:
        """Step t of these rows; returns the rows that go on."""
        self.states[rows, t] = states
        self.actions[rows, t] = done
        self.states[rows[diverged], t:] = np.inf
        self.lengths[rows[ended & ~diverged]] = t + 1
        return rows[~(ended | diverged)]


def by_seed(
    work: Callable[[NDArray[np.int64]], Part],
    seeds: Any,
    batch: int,
    threads: int | None,
    progress: Callable[[int], None] | None,
) -> Part:
    """What `work` makes of the seeds of each compute batch, in the order of the seeds."""
    names = checked_seeds(seeds)
    blocks = [np.sort(names[names // batch == block]) for block in np.unique(names // batch)]
    done = in_threads(work, blocks, threads, progress)
    return take_rows(done, np.searchsorted(np.concatenate(blocks), names))


def in_threads(
    work: Callable[[Any], Part],
    blocks: Sequence[Any],
    threads: int | None,
    progress: Callable[[int], None] | None = None,
) -> Part:
    """The blocks in order, each worked in one thread: while one thinks in Python, the others simulate."""
    count = min(len(blocks), usual_threads() if threads is None else whole("threads", threads, least=1))
    parts: list[Part] = []
    with one_torch_thread(), ThreadPoolExecutor(count) as pool:
        for part in pool.map(work, blocks):
            parts.append(part)
            if progress is not None:
                progress(len(part.seeds))  # type: ignore[attr-defined]
    return join_rows(parts)


def join_rows(parts: Sequence[Part]) -> Part:
    """Dataclasses of arrays, one after the other; what is no array is the same in all."""

    def joined(values: list[Any]) -> Any:
        if isinstance(values[0], np.ndarray):
            return np.concatenate(values)
        return join_rows(values) if is_dataclass(values[0]) else values[0]

    first: Any = parts[0]
    values = {field.name: joined([getattr(part, field.name) for part in parts]) for field in fields(first)}
    together: Part = replace(first, **values)
    return together


def take_rows(every: Part, rows: Any) -> Part:
    """The same dataclass with these rows of its arrays."""

    def taken(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[rows]
        return take_rows(value, rows) if is_dataclass(value) else value

    given: Any = every
    part: Part = replace(given, **{f.name: taken(getattr(given, f.name)) for f in fields(given)})
    return part


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch's threads wait busily for more work, and would take the simulator's CPUs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _simulate(
    environment: Environment,
    policy: Policy,
    seeds: NDArray[np.int64],
    horizon: int,
    burn_in: tuple[int, int],
    batch: int,
) -> Rollouts:
    """One compute batch. All rollouts end at the same time, so each sets out when its burn-in begins."""
    simulator, units = Simulator(environment), (seeds % batch).tolist()
    draws = dict(zip(units, map(np.random.default_rng, seeds.tolist()), strict=True))
    before = np.full(batch, -1)
    for row, draw in draws.items():
        before[row] = draw.integers(burn_in[0], burn_in[1] + 1)
    most = int(before.max())
    noise = np.zeros((most + horizon, batch, len(environment.low)))
    for row, draw in draws.items():
        noise[most - before[row] :, row] = draw.standard_normal((before[row] + horizon, noise.shape[2]))

    def reset(rows: NDArray[np.intp]) -> None:
        for row in rows.tolist():
            physics[row] = environment.reset(int(draws[row].integers(2**31)))
        seen[rows] = observed(environment, physics[rows], physics[rows], np.zeros(len(rows), bool))

    physics = np.zeros((batch, len(environment.reset(0))))
    seen = np.zeros((batch, len(environment.names)))
    track = Track.empty(environment, batch, horizon)
    start, origin, alive = seen, physics, np.array(units)
    for t in range(most + horizon):
        if t <= most:
            reset(np.flatnonzero(before == most - t))
        if t == most:
            start, origin = seen.copy(), physics.copy()
        wanted = actions(environment, policy, torch.from_numpy(seen), torch.from_numpy(noise[t]))
        moving = np.flatnonzero(before >= most - t) if t < most else alive
        done = wanted.numpy()[moving]
        states, ended, diverged = simulator.step(physics, moving, done)
        seen[moving] = states
        if t < most:
            # A robot that falls, or breaks the simulation, before its start is put back.
            reset(moving[ended | diverged])
        else:
            alive = track.record(t - most, moving, done, states, ended, diverged)
    whole = Rollouts(np.arange(batch), start, origin, track.states, track.actions, track.lengths).take(units)
    return replace(whole, seeds=seeds)


def burn_in_range(value: Any) -> tuple[int, int]:
    """`value`, refused unless it is (least, most) steps."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise InvalidInput(f"burn_in must be (least, most) steps, got {value!r}")
    least, most = (whole("burn_in", end, least=0) for end in value)
    if most < least:
        raise InvalidInput(f"burn_in must be (least, most) steps, the least first, got {value!r}")
    return least, most


def checked_seeds(seeds: Any) -> NDArray[np.int64]:
    """`seeds` `[N]`, refused unless they are whole numbers that differ."""
    array = np.asarray(seeds)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
        raise InvalidInput("seeds must be one or more whole numbers, one for each rollout")
    if array.min() < 0 or array.max() >= 2**63:
        raise InvalidInput(f"seeds must lie from 0 to 2**63 - 1, got {array.min()} to {array.max()}")
    if len(np.unique(array)) != len(array):
        raise InvalidInput("seeds must differ: the same seed is the same rollout")
    return array.astype(np.int64)
