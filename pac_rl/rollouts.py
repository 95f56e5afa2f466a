"""True rollouts by MuJoCo's batched stepping, closed loop or of given plans, and how much likelier they are
under another policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pac_core import InvalidInput, Trajectories
from pac_core.arrays import count_threads as usual_threads
from pac_core.arrays import one_torch_thread
from pac_core.bounds import check_integer
from pac_core.certificates import gaussian_bound, gaussian_weights
from pac_rl.policies import Function, Network, NoisyPolicy, Policy, actions, check_policy
from pac_rl.systems.functions import Floats
from pac_rl.systems.mujoco import Environment, Physics, Simulator, observed

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
    start: Floats
    physics: Physics
    states: Floats
    actions: Floats
    lengths: NDArray[np.int64]

    @property
    def failed(self) -> NDArray[np.bool_]:
        """`[N]` whether the simulation diverged."""
        return np.asarray(np.isinf(self.states).any(axis=(1, 2)))

    @property
    def truth(self) -> Trajectories:
        """The states, until the episode ended: what tubes are fitted to and tested on."""
        return Trajectories(self.states, self.lengths)

    @property
    def before(self) -> Floats:
        """`[N, H, D]` the state before each step."""
        return np.concatenate([self.start[:, None], self.states[:, :-1]], axis=1)

    @property
    def acted(self) -> NDArray[np.bool_]:
        """`[N, H]` whether the step was taken: the episode had not ended."""
        return np.asarray(np.arange(self.states.shape[1]) < self.lengths[:, None])

    @classmethod
    def begin(
        cls, environment: Environment, seeds: NDArray[np.int64], start: Floats, physics: Physics, horizon: int
    ) -> Rollouts:
        """Rollouts whose steps are to be recorded."""
        states, done = (np.zeros((len(seeds), horizon, len(x))) for x in (environment.names, environment.low))
        return cls(seeds, start, physics, states, done, np.full(len(seeds), horizon))

    def record(
        self,
        t: int,
        rows: NDArray[np.intp],
        done: Floats,
        states: Floats,
        ended: NDArray[np.bool_],
        diverged: NDArray[np.bool_],
    ) -> NDArray[np.intp]:
        """Keeps step t of these rows, and returns the rows that go on."""
        self.states[rows, t] = states
        self.actions[rows, t] = done
        self.states[rows[diverged], t:] = np.inf
        self.lengths[rows[ended & ~diverged]] = t + 1
        return rows[~(ended | diverged)]

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
) -> Rollouts:
    """Rollouts of the policy, one for each seed: reset, burn in for a drawn number of steps, then H steps.

    Everything random in a rollout comes from its seed, and nothing else does: the result is the same
    for any order of the seeds, any grouping into calls and any number of threads.

    burn_in: least and most steps before the start; an episode that ends within them is reset
    batch: see `BATCH`
    threads: of the simulator; the CPUs by default
    """
    check_integer("horizon", horizon, least=1)
    check_integer("batch", batch, least=1)
    limits = burn_in_range(burn_in)
    check_policy(environment, policy)
    work = partial(_simulate, environment, policy, horizon, limits, batch)
    return by_seed(work, seeds, batch, threads)


def execute(environment: Environment, rollouts: Rollouts, plans: Floats) -> Rollouts:
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
        made = Rollouts.begin(environment, part.seeds, part.start, part.physics, wanted.shape[1])
        alive, physics = np.arange(len(wanted)), part.physics.copy()
        for t in range(wanted.shape[1]):
            done = wanted[alive, t]
            alive = made.record(t, alive, done, *simulator.step(physics, alive, done))
        return made

    return in_threads(work, [slice(first, first + BATCH) for first in range(0, len(plans), BATCH)])


def by_seed(work: Callable[[Any], Part], seeds: Any, batch: int, threads: int | None = None) -> Part:
    """What `work` makes of the seeds of each compute batch, in the order of the seeds."""
    names = check_seeds(seeds)
    blocks = [np.sort(names[names // batch == block]) for block in np.unique(names // batch)]
    done = in_threads(work, blocks, threads)
    return take_rows(done, np.searchsorted(np.concatenate(blocks), names))


def in_threads(work: Callable[[Any], Part], blocks: Sequence[Any], threads: int | None = None) -> Part:
    """The blocks in order, each worked in one thread: while one thinks in Python, the others simulate."""
    most = usual_threads() if threads is None else check_integer("threads", threads, least=1)
    with one_torch_thread(), ThreadPoolExecutor(min(len(blocks), most)) as pool:
        return join_rows(list(pool.map(work, blocks)))


def join_rows(parts: Sequence[Part]) -> Part:
    """Dataclasses of arrays, one after the other; what is no array is the same in all."""
    return _map_arrays(np.concatenate, parts)


def take_rows(every: Part, rows: Any) -> Part:
    """The same dataclass with these rows of its arrays."""
    return _map_arrays(lambda values: values[0][rows], [every])


def _map_arrays(work: Callable[[list[Any]], Any], parts: Sequence[Part]) -> Part:
    """The first of some dataclasses, with what `work` makes of the arrays of all in the place of its own."""

    def made(values: list[Any]) -> Any:
        if isinstance(values[0], np.ndarray):
            return work(values)
        return _map_arrays(work, values) if is_dataclass(values[0]) else values[0]

    first: Any = parts[0]
    values = {field.name: made([getattr(part, field.name) for part in parts]) for field in fields(first)}
    mapped: Part = replace(first, **values)
    return mapped


def _simulate(
    environment: Environment,
    policy: Policy,
    horizon: int,
    burn_in: tuple[int, int],
    batch: int,
    seeds: NDArray[np.int64],
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
    blank, alive = (np.zeros_like(seen), np.zeros_like(physics)), np.array(units)
    made = Rollouts.begin(environment, np.arange(batch), *blank, horizon)
    for t in range(most + horizon):
        if t <= most:
            reset(np.flatnonzero(before == most - t))
        if t == most:
            made.start[:], made.physics[:] = seen, physics
        wanted = actions(environment, policy, torch.from_numpy(seen), torch.from_numpy(noise[t]))
        moving = np.flatnonzero(before >= most - t) if t < most else alive
        done = wanted.numpy()[moving]
        states, ended, diverged = simulator.step(physics, moving, done)
        seen[moving] = states
        if t < most:
            # A robot that falls, or breaks the simulation, before its start is put back.
            reset(moving[ended | diverged])
        else:
            alive = made.record(t - most, moving, done, states, ended, diverged)
    return replace(made.take(units), seeds=seeds)


def burn_in_range(value: Any) -> tuple[int, int]:
    """`value`, refused unless it is (least, most) steps."""
    steps = value if isinstance(value, tuple | list) else ()
    ends = [check_integer("burn_in", end, least=0) for end in steps]
    if len(ends) != 2 or ends[1] < ends[0]:
        raise InvalidInput(f"burn_in must be (least, most) steps, the least first, got {value!r}")
    return ends[0], ends[1]


def check_seeds(seeds: Any) -> NDArray[np.int64]:
    """`seeds` `[N]`, refused unless they are whole numbers that differ."""
    array = np.asarray(seeds)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu":
        raise InvalidInput("seeds must be one or more whole numbers, one for each rollout")
    if array.min() < 0 or array.max() >= 2**63:
        raise InvalidInput(f"seeds must lie from 0 to 2**63 - 1, got {array.min()} to {array.max()}")
    if len(np.unique(array)) != len(array):
        raise InvalidInput("seeds must differ: the same seed is the same rollout")
    return array.astype(np.int64)


@dataclass(frozen=True, eq=False)
class PolicyRatios:
    """Weights for `pac_core.fit_reweighted`, with the bound that was proved.

    seeds: `[N]` of the rollouts, their ids
    weights: `[N]` density of each rollout under the new policy over that under the old one
    bound: b, which no rollout's weight exceeds
    """

    seeds: NDArray[np.int64]
    weights: Floats
    bound: float


def policy_ratios(
    environment: Environment,
    old: Policy,
    new: Policy,
    rollouts: Rollouts,
    *,
    burn_in: tuple[int, int] = (0, 200),
) -> PolicyRatios:
    """Weights of the rollouts that `simulate` made of the old policy, and their bound; or a refusal.

    burn_in: as it was given to `simulate`; the policy acts in the burn-in too, so it counts. Rollouts whose
        actions are not those that seeds, old policy and burn-in make are refused

    About one rollout in `bound` will be accepted, and the bound grows with every step and every action:
    deviations 1% smaller, 6 actions and 20 steps make 3.3; with 200 steps of burn-in, half a million.

    >>> from pac_rl import make_environment, simulate
    >>> robot, still = make_environment(), lambda seen: np.zeros((len(seen), 6))
    >>> old, new = (Function(still, 17, 6, std=std) for std in (0.5, 0.4))
    >>> rollouts = simulate(robot, old, [0, 1], horizon=2, burn_in=(0, 1))
    >>> round(policy_ratios(robot, old, new, rollouts, burn_in=(0, 1)).bound, 4)  # (0.5 / 0.4) ** (6 * 3)
    55.5112
    """
    names, horizon = check_seeds(rollouts.seeds), rollouts.actions.shape[1]
    least, most = burn_in_range(burn_in)
    (mean, before), (other, after) = _taken_apart(old), _taken_apart(new)
    if not _same(mean, other):
        rule = "both policies must have the same mean action in every state"
        raise InvalidInput(f"{rule}, got two that may differ: calibrate on fresh rollouts of the new policy")
    bound = gaussian_bound(before, after, steps=most + horizon)
    check_policy(environment, old)
    weights, drawn = np.empty(len(names)), np.empty(rollouts.actions.shape)
    for i, seed in enumerate(names.tolist()):
        draw = np.random.default_rng(seed)  # as `simulate` draws for a rollout, burn-in first
        noise = draw.standard_normal((int(draw.integers(least, most + 1)) + horizon, len(before)))
        weights[i], drawn[i] = gaussian_weights(noise[None], before, after)[0], noise[-horizon:]
    seen = rollouts.before
    acted = rollouts.acted & np.isfinite(seen).all(axis=2)  # a simulation that diverged goes no further
    again = actions(environment, old, torch.from_numpy(seen[acted]), torch.from_numpy(drawn[acted]))
    off = ~np.isclose(again.numpy(), rollouts.actions[acted], rtol=1e-5, atol=1e-5).all(axis=1)
    if off.any():
        got = f"got other actions at {int(off.sum()):,} of {len(off):,} steps"
        raise InvalidInput(f"rollouts must be of the old policy, with burn_in={(least, most)}, {got}")
    return PolicyRatios(names, weights, bound)


def _taken_apart(policy: Policy) -> tuple[list[Any], Floats]:
    """What the mean action depends on, and `[A]` the deviations around it."""
    if isinstance(policy, NoisyPolicy) and not policy.squash:
        mean, deviations = _taken_apart(policy.policy)
        return mean, deviations + policy.extra
    if not isinstance(policy, Network | Function) or isinstance(policy.std, tuple):
        rule = "a policy must be Gaussian with fixed deviations before it is squashed or clipped"
        raise InvalidInput(f"{rule}, got {type(policy).__name__}: no bound of the ratio is known")
    mean = [type(policy), *(value for name, value in vars(policy).items() if name != "std")]
    return mean, np.broadcast_to(np.asarray(policy.std, dtype=np.float64), policy.outputs)


def _same(one: Any, other: Any) -> bool:
    """Whether two means are computed from the very same numbers by the same function."""
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Tensor):
        return one.shape == other.shape and bool(torch.equal(one.double(), other.double()))
    return one is other or (isinstance(one, str | float | int) and one == other)
