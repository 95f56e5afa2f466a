"""Episodes of a controller in batches: whole ones, up to a decision drawn beforehand, and up to a start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from pac_core import InvalidInput, Trajectories
from pac_core.arrays import check_returned
from pac_core.bounds import check_integer
from pac_core.runs import Job, RunFolder
from pac_core.safety import Limit
from pac_rl.planning.controller import Controller, Decision
from pac_rl.rollouts import by_seed, take_rows
from pac_rl.systems.functions import Floats, check_bools, check_system
from pac_rl.systems.mujoco import MujocoSystem
from pac_rl.tasks import Arrays, read_arrays

BATCH = 32
"""Episodes that are computed together, part of the configuration: seed i is always computed in row
i % BATCH, whoever else is there, see `rollouts.BATCH`."""
STEP, DRIVE = 3, 7
"""Streams of an episode's id, beside the id alone, from which comes what happens: of the step that is drawn
beforehand, and of the planner."""


class Drive:
    """A batch of episodes under way, each in the row of its id, whoever else is there: bits do not depend on
    who shares a shard. What is over is still computed with.

    Where the fallback is "stop" and nothing is safe, an episode ends at that decision, before it acts.
    """

    def __init__(self, controller: Controller, seeds: NDArray[Any]) -> None:
        model: Any = controller.model
        if getattr(model, "refuse_seen", None) is not None:
            model.refuse_seen(seeds, "episodes")
        self.controller, self.system, self.places = controller, controller.system, np.asarray(seeds) % BATCH
        ids = np.zeros(BATCH, dtype=np.int64)
        ids[self.places] = seeds
        self.planned = [default_rng((DRIVE, i)) for i in ids.tolist()]
        self.happens = [default_rng(i) for i in ids.tolist()]
        begun = self.system.begin([self.happens[i] for i in self.places])
        self.rows = np.zeros((BATCH, begun.shape[1]))
        self.rows[self.places] = begun
        self.states = np.zeros((BATCH, len(self.system.names)))
        self.states[self.places] = self.system.see(begun)
        self.alive, self.failed = np.zeros(BATCH, bool), np.zeros(BATCH, bool)
        self.alive[self.places] = True

    def decide(self) -> Decision:
        """What each does; those that stop are over."""
        decided = self.controller.decide(self.states, self.planned)
        self.alive &= ~decided.stopped
        return decided

    def step(self, moving: NDArray[np.intp], actions: Floats) -> Floats:
        """Moves these rows on; the states they reach, infinite where the robot failed."""
        if not len(moving):
            return np.zeros((0, self.states.shape[1]))
        happens = [self.happens[i] for i in moving]
        self.rows[moving], ended, failed = self.system.advance(self.rows[moving], actions, happens)
        states = np.where(failed[:, None], np.inf, self.system.see(self.rows[moving]))
        over = ended | failed
        self.states[moving] = np.where(over[:, None], 0.0, states)
        self.alive[moving[over]] = False
        self.failed[moving[failed]] = True
        return states


def broken_limits(limits: Sequence[Limit], states: Floats) -> NDArray[np.bool_]:
    """`[n, C]` which limits each state `[n, D]` breaks; a state that is not finite breaks all."""
    found = np.ones((len(states), len(limits)), bool)
    went = np.isfinite(states).all(axis=1)
    for i, limit in enumerate(limits):
        violated, count = limit.violated(states[went, None]), int(went.sum())
        name, what = f"violated of {limit.name!r}", f"{count} states x 1 step"
        found[went, i] = check_bools(name, violated, (count, 1), what)[:, 0]
    return found


@dataclass(frozen=True, eq=False)
class Traces:
    """What happened at each of T steps of N episodes; NaN after an episode's end.

    states: `[N, T, D]` reached
    actions: `[N, T, A]` done
    chosen: `[N, T]` the candidate that was chosen, -1 for the fallback, -2 after the end
    margin: `[N, T]` of its tube, see `Decision`
    lower, upper: `[N, T, H]` ends of the acting plan's tube along the direction asked for
    """

    states: Floats
    actions: Floats
    chosen: NDArray[np.int64]
    margin: Floats
    lower: Floats
    upper: Floats

    @classmethod
    def empty(cls, controller: Controller, steps: int) -> Traces:
        dims, width = len(controller.system.names), len(controller.system.low)

        def unknown(*shape: int) -> Floats:
            return np.full((BATCH, steps, *shape), np.nan)

        ends = unknown(controller.horizon), unknown(controller.horizon)
        return cls(unknown(dims), unknown(width), np.full((BATCH, steps), -2), unknown(), *ends)


@dataclass(frozen=True, eq=False)
class Episodes:
    """N episodes, in the order of `seeds`.

    seeds: `[N]` each episode's own; its id
    returns: `[N]` sum of the rewards; 0 where the controller has none
    unbroken: `[N]` sum of the rewards before a limit is first broken: all that counts where that ends it
    violated: `[N, C]` whether each limit was broken at any step; a robot that failed broke all
    violation_steps: `[N]` steps at which some limit was broken; those lost by failing count
    fallbacks: `[N]` decisions at which the fallback acted
    decisions: `[N]` decisions made; where the fallback is "stop", its decision is the last one, and what
        the robot would do after it is not in the count of violations
    final: `[N, D]` the last state
    names: C names of the limits
    traces: of each step, if they were asked for
    """

    seeds: NDArray[np.int64]
    returns: Floats
    unbroken: Floats
    violated: NDArray[np.bool_]
    violation_steps: NDArray[np.int64]
    fallbacks: NDArray[np.int64]
    decisions: NDArray[np.int64]
    final: Floats
    names: tuple[str, ...]
    traces: Traces | None = None

    @property
    def errors(self) -> NDArray[np.bool_]:
        """`[N]` whether any limit was broken: the error of the certificate of episodes."""
        return np.asarray(self.violated.any(axis=1))

    def __repr__(self) -> str:
        return (
            f"Episodes({len(self.seeds)}: {int(self.errors.sum())} with a violation, "
            f"mean return {self.returns.mean():.1f})"
        )


COUNTED = ("returns", "unbroken", "violated", "violation_steps", "fallbacks", "decisions", "final")
"""Arrays of an episode, beside whether it is an error."""


def run_episodes(
    controller: Controller,
    seeds: Sequence[int] | NDArray[np.int64],
    *,
    steps: int = 200,
    along: Any = None,
    threads: int | None = None,
) -> Episodes:
    """Episodes of the controller from a reset, one for each seed, fallback included; bits as in `simulate`.

    steps: of an episode, unless the system ends it
    along: `[D]` keeps the traces, with the ends of the chosen tubes along this direction
    threads: the CPUs by default
    """
    check_integer("steps", steps, least=1)
    dims = len(controller.system.names)
    direction = None if along is None else np.asarray(along, dtype=np.float64)
    if direction is not None and direction.shape != (dims,):
        raise InvalidInput(f"along must have shape [{dims}], got {direction.shape}")
    most = threads if isinstance(controller.system, MujocoSystem) else 1  # others may share what they step
    return by_seed(lambda block: _run(controller, block, steps, direction), seeds, BATCH, most)


def _run(controller: Controller, seeds: NDArray[np.int64], steps: int, along: Floats | None) -> Episodes:
    run, limits = Drive(controller, seeds), controller.limits
    kept = Traces.empty(controller, steps) if along is not None else None
    (returns, unbroken), (broken, fallbacks, decisions) = np.zeros((2, BATCH)), np.zeros((3, BATCH), np.int64)
    violated, each, final = np.zeros((BATCH, len(limits)), bool), np.arange(BATCH), run.states.copy()
    names = tuple(limit.name for limit in limits)
    made = Episodes(each, returns, unbroken, violated, broken, fallbacks, decisions, final, names, kept)
    for t in range(steps):
        moving = np.flatnonzero(run.alive)
        if not len(moving):
            break
        before, decided = run.states.copy(), run.decide()
        made.decisions[moving] += 1
        made.fallbacks[moving] += decided.chosen[moving] < 0
        if kept is not None:
            kept.chosen[moving, t], kept.margin[moving, t] = decided.chosen[moving], decided.margin[moving]
        moving = moving[run.alive[moving]]  # without those that stop here
        states = run.step(moving, decided.actions[moving])
        went, earned = np.isfinite(states).all(axis=1), np.zeros(len(moving))
        if controller.reward is not None:
            rewards = controller.reward(states[went], decided.actions[moving][went])
            earned[went] = check_returned("reward", rewards, (int(went.sum()),), states)
        now = broken_limits(limits, states)
        made.violated[moving] |= now
        made.returns[moving] += earned
        made.unbroken[moving] += np.where(made.violated[moving].any(axis=1), 0.0, earned)
        made.violation_steps[moving] += np.where(went, now.any(axis=1), steps - t)
        made.final[moving[went]] = states[went]
        if kept is not None and along is not None:
            kept.states[moving, t], kept.actions[moving, t] = states, decided.actions[moving]
            if controller.tubes is not None:
                tube = controller.tubes.tube(controller.acting(before, decided)[1])
                for ends, sign in ((kept.upper, 1), (kept.lower, -1)):
                    given = tube.support(sign * along)
                    reach = check_returned("support", given, (BATCH, controller.horizon), states)
                    ends[moving, t] = sign * reach[moving]
    return replace(take_rows(made, run.places), seeds=seeds)


@dataclass(frozen=True, eq=False)
class Selections:
    """One decision of each of N episodes, drawn before the episode began, and what came of its plan.

    seeds: `[N]`
    steps: `[N]` at which the decision fell
    errors: `[N]` whether the plan, carried out open-loop for H steps, left its tube
    accepted: `[N]` whether the guard accepted a candidate there
    unsafe: `[N]` whether the plan broke a limit within the steps that were checked, all H unless the
        controller checks fewer: of the later ones, acceptance says nothing

    Where no candidate was safe, the fallback's plan is carried out and its own tube is checked, so every
    episode counts towards the promise of the tube, and `accepted` is False. An episode that failed
    before its decision counts against everything (left its tube, accepted, unsafe); one that ended by the
    system's rule made no decision: no error, and not accepted; so does one whose fallback is to stop,
    from the decision on at which it stopped.
    """

    seeds: NDArray[np.int64]
    steps: NDArray[np.int64]
    errors: NDArray[np.bool_]
    accepted: NDArray[np.bool_]
    unsafe: NDArray[np.bool_]


def run_to_selection(
    controller: Controller, seeds: Sequence[int] | NDArray[np.int64], *, steps: int = 200
) -> Selections:
    """What came of one decision in each episode: the unit of the tube under selection.

    The step of the decision is drawn from the seed, evenly from the `steps` of an episode, before it
    begins. The guarded controller runs to that step; the plan that it chooses there is carried out
    open-loop, whatever happens.
    """
    check_integer("steps", steps, least=1)
    if controller.tubes is None:
        raise InvalidInput("tubes must be given, for a plan to leave its own, got None")
    most = None if isinstance(controller.system, MujocoSystem) else 1
    return by_seed(lambda block: _select(controller, block, steps), seeds, BATCH, most)


def _draw_steps(seeds: NDArray[np.int64], steps: int) -> NDArray[np.int64]:
    return np.array([default_rng((STEP, seed)).integers(steps) for seed in seeds.tolist()])


def _select(controller: Controller, seeds: NDArray[np.int64], steps: int) -> Selections:
    run, horizon = Drive(controller, seeds), controller.horizon
    drawn = _draw_steps(seeds, steps)
    due = np.full(BATCH, -1)
    due[run.places] = drawn
    dims = len(controller.system.names)
    error, accepted, unsafe = (np.zeros(BATCH, bool) for _ in range(3))
    for t in range(int(due.max()) + 1):
        if not run.alive.any():
            break
        before, decided = run.states.copy(), run.decide()
        ready = np.flatnonzero(run.alive & (due == t))
        if len(ready):
            plans, forecast = controller.acting(before, decided)
            tube = controller.tubes.tube(forecast)  # type: ignore[union-attr]
            states, lengths = np.full((BATCH, horizon, dims), np.inf), np.full(BATCH, horizon)
            going = ready
            for s in range(horizon):
                states[going, s] = run.step(going, plans[going, s])
                lengths[going[~run.alive[going] & ~run.failed[going]]] = s + 1
                going = going[run.alive[going]]
            holds = np.asarray(tube.contains(Trajectories(states, lengths)))  # one that failed is in no tube
            inside = check_bools("contains", holds, lengths.shape, f"{BATCH} trajectories")
            lived = np.arange(horizon) < np.minimum(lengths[ready, None], controller.checked or horizon)
            broken = broken_limits(controller.limits, states[ready].reshape(-1, dims)).any(axis=1)
            error[ready], accepted[ready] = ~inside[ready], decided.chosen[ready] >= 0
            unsafe[ready] = (broken.reshape(-1, horizon) & lived).any(axis=1)
            run.alive[ready] = False
        moving = np.flatnonzero(run.alive)
        run.step(moving, decided.actions[moving])
        broke = moving[run.failed[moving]]
        error[broke] = accepted[broke] = unsafe[broke] = True
    rows = run.places
    return Selections(seeds, drawn, error[rows], accepted[rows], unsafe[rows])


class RunEpisodes:
    """Whole episodes of a controller: the arrays of `Episodes`, as a scorer.

    traced: `[D]` keeps what happened at each step, too: the `Traces` along this direction, as float32
    """

    def __init__(
        self, controller: Controller, steps: int, traced: Floats | None = None, *, device: str = "cpu"
    ) -> None:
        check_system(controller.system)  # a worker on which every step fails says why
        self.controller, self.steps, self.traced = controller, check_integer("steps", steps, least=1), traced

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        done = run_episodes(self.controller, shard.array, steps=self.steps, along=self.traced)
        found = {"ids": done.seeds, "errors": done.errors} | {name: getattr(done, name) for name in COUNTED}
        if done.traces is not None:
            found |= {name: array.astype(np.float32) for name, array in vars(done.traces).items()}
        return found


class RunSelections:
    """One decision of each episode and what came of it: the arrays of `Selections`, as a scorer."""

    def __init__(self, controller: Controller, steps: int, *, device: str = "cpu") -> None:
        self.controller, self.steps = controller, steps

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        found = dict(vars(run_to_selection(self.controller, shard.array, steps=self.steps)))
        return {"ids": found.pop("seeds"), **found}


class RunToStarts:
    """Where one episode of each unit stands at a step drawn beforehand, as a scorer.

    `start` `[n, D]` and `rows` `[n, S]` there, 0 where it was not reached; `reached` `[n]` is 1, or 0 if the
    episode was over by then, and there is no decision, or -1 if the robot failed.

    alone: whether every second episode is driven by the fallback alone
    """

    def __init__(
        self, controller: Controller, steps: int, alone: bool = False, *, device: str = "cpu"
    ) -> None:
        check_system(controller.system)
        self.controller, self.steps, self.alone = controller, check_integer("steps", steps, least=1), alone

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        parts = [self._run(block) for block in _blocks(shard.array)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _run(self, seeds: NDArray[Any]) -> Arrays:
        run, due = Drive(self.controller, seeds), np.full(BATCH, -1)
        due[run.places] = _draw_steps(seeds, self.steps)
        start, rows = np.zeros_like(run.states), np.zeros_like(run.rows)
        reached, odd = np.zeros(BATCH, np.int64), np.zeros(BATCH, bool)
        odd[run.places] = self.alone & (seeds % 2 == 1)
        for t in range(int(due.max()) + 1):
            ready = np.flatnonzero(run.alive & (due == t))
            start[ready], rows[ready], reached[ready] = run.states[ready], run.rows[ready], 1
            run.alive[ready] = False
            if not run.alive.any():
                break
            before = run.states.copy()
            actions = run.decide().actions
            for i in np.flatnonzero(run.alive & odd):
                actions[i] = self.controller.fall_back(before[i], "driven by the fallback")
            moving = np.flatnonzero(run.alive)
            run.step(moving, actions[moving])
        reached[run.failed] = -1
        made = {"start": start, "rows": rows, "reached": reached}
        return {"ids": seeds} | {name: array[run.places] for name, array in made.items()}


def _blocks(seeds: NDArray[Any]) -> list[NDArray[Any]]:
    """Seeds in their order, in blocks that do not share a row of a batch."""
    cuts = [0]
    taken = set[int]()
    for place, row in enumerate((seeds % BATCH).tolist()):
        if row in taken:
            cuts.append(place)
            taken = set()
        taken.add(row)
    return np.split(seeds, cuts[1:])


def describe_episodes(controller: Controller, name: str) -> dict[str, Any]:
    """What the page of a run of episodes says of them, for the job's configuration: the robot, what guards it
    in words, the names of all limits, and of each upper one on a single number of the state that number's
    name and the bound."""
    names, limits = controller.system.names, []
    for limit in controller.limits:
        normal = getattr(limit, "normal", None)
        if normal is not None and np.count_nonzero(normal) == 1 and normal.max() > 0:
            bound = float(limit.bound / normal.max())  # type: ignore[attr-defined]
            limits.append([limit.name, names[int(normal.argmax())], bound])
    env = str(getattr(controller.system, "id", "the robot"))
    every = [limit.name for limit in controller.limits]
    return {"unit": "episode", "guard": name, "env": env, "limits": limits, "every_limit": every}


def read_episodes(job: Job, folder: RunFolder, controller: Controller) -> Episodes:
    """The episodes of a finished job of `RunEpisodes`."""
    found = read_arrays(job, folder)
    limits = tuple(limit.name for limit in controller.limits)
    known: Any = {name: found[name] for name in COUNTED}
    return Episodes(seeds=found["ids"], names=limits, **known)
