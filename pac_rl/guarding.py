"""From a robot, a model, limits and a planner to a guard with a promise, and to a certified controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from pac_core import GaussianForecast, InvalidInput, PACLevel, Trajectories, TubeChecker
from pac_core.arrays import check_returned
from pac_core.bounds import check_integer
from pac_core.certificates import Certificate, Descended, Descent, LedgerPath, Record, descend, write_descent
from pac_core.runs import (
    Digests,
    Engine,
    RunFolder,
    Stage,
    Undigested,
    episodes_through,
    run_here,
)
from pac_core.safety import Limit, number_axes
from pac_core.sets import score_units
from pac_core.tubes import fit_shape
from pac_rl.candidates import CandidateRuns, Planner, certify_candidates
from pac_rl.planning.episodes import broken_limits
from pac_rl.planning.guard import (
    UNKNOWN,
    Fallback,
    FittedTubes,
    Guard,
    MemberForecast,
    NoSafePlan,
    TubeMaker,
    check_fallback,
)
from pac_rl.robot import AnySystem, Dynamics, Rngs, check_system
from pac_rl.systems import Floats, at_every_step
from pac_rl.tasks import Arrays, unit_seeds

DRIVE, HAPPEN, ACT = 7, 8, 9
"""Streams of a unit's id: of the planner on the way to a start and in an episode, of what happens there, and
of a controller that acts for a robot."""
SHARD = 16
"""Episodes of a shard."""
SCALES = (2.0, 1.5, 1.2, 1.0, 0.8, 0.65, 0.5, 0.4)
"""Of the tubes, tried from wide to narrow on episodes of their own before a certificate."""
_PRELIMINARY, _EPISODES, _EXPLORE = 10**8, 2 * 10**8, 3 * 10**8  # behind the first unit of a seed


@dataclass(frozen=True, eq=False)
class Decided:
    """What is done in E states.

    actions: `[E, A]`
    chosen: `[E]` which candidate the action begins; -1 where none was safe, and the fallback acts
    margin: `[E]` of its tube; that of the least unsafe candidate where none is safe, NaN if nothing is known
    stopped: `[E]` where the fallback is to stop
    reasons: E texts
    """

    actions: Floats
    chosen: NDArray[np.int64]
    margin: Floats
    stopped: NDArray[np.bool_]
    reasons: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class RobotController:
    """Plans anew at every step: the cheapest candidate whose tube keeps the limits, else the fallback.

    tubes: how candidates get their tubes; None for no guard at all
    """

    system: AnySystem
    model: Dynamics
    planner: Planner
    limits: tuple[Limit, ...]
    fallback: Fallback
    horizon: int
    tubes: TubeMaker | None = None
    seed: int = 0

    @cached_property
    def guard(self) -> Guard:
        """The check of plans, with the fallback."""
        return Guard(TubeChecker(self.limits), self.tubes, self.fallback, self.horizon)  # type: ignore[arg-type]

    @cached_property
    def _rng(self) -> Generator:
        return default_rng((ACT, self.seed))

    def act(self, state: Any) -> Floats:
        """`[A]` what a robot does in this state `[D]`; raises `NoSafePlan` where it is to stop."""
        decided = self.decide(np.asarray(state, dtype=np.float64)[None], [self._rng])
        if decided.stopped[0]:
            raise NoSafePlan(decided.reasons[0])
        return np.asarray(decided.actions[0])

    def decide(self, states: Floats, rngs: Rngs) -> Decided:
        """What is done in states `[E, D]`, which go through the model together; planners draw from `rngs`."""
        known = np.asarray(np.isfinite(states).all(axis=1))
        sound = np.where(known[:, None], states, 0.0)
        plans = propose(self.planner, self.system, sound, rngs)
        (e, k), rows = plans.shape[:2], np.arange(len(states))
        flat, starts = plans.reshape(e * k, *plans.shape[2:]), np.repeat(sound, k, axis=0)
        forecast = self.model(starts, flat)
        whole = GaussianForecast(
            *(part.reshape(e, k, *part.shape[1:]) for part in (forecast.mean, forecast.var))
        )
        cost = np.asarray(check_returned("cost", self.planner.cost(whole, plans), (e, k), plans))
        able, margins, reasons = np.isfinite(cost) & known[:, None], np.full((e, k), np.nan), [UNKNOWN] * e
        if self.tubes is not None:
            checked = self.guard.check(self._with_members(forecast, starts, flat), flat)
            margins = np.asarray(checked.worst, dtype=np.float64).reshape(e, k)
            able &= np.asarray(checked.safe).reshape(e, k)
        some, least = able.any(axis=1), np.where(np.isnan(margins), -np.inf, margins).argmax(axis=1)
        best = np.where(able, cost, np.inf).argmin(axis=1)
        actions, stopped = plans[rows, best, 0], np.zeros(e, bool)
        for i in np.flatnonzero(~some):
            if self.tubes is not None and known[i]:
                reasons[i] = checked.reason(int(i * k + least[i]))
            stopped[i] = self.fallback == "stop"
            if not stopped[i]:
                actions[i] = self.guard.act(states[i], self.system.low, self.system.high, reasons[i])
        told = np.where(some, best, least)
        reasons = ["safe" if good else why for good, why in zip(some, reasons, strict=True)]
        margin = np.where(known, margins[rows, told], np.nan)
        return Decided(actions, np.where(some, best, -1), margin, stopped, tuple(reasons))

    def _with_members(self, forecast: GaussianForecast, starts: Floats, plans: Floats) -> GaussianForecast:
        if not getattr(self.tubes, "members", False):
            return forecast
        if self.model.members is None:
            raise InvalidInput("the model must have members for tubes of its worst member, got one without")
        ways = np.asarray(self.model.members(starts, plans), dtype=np.float64)
        return MemberForecast(forecast.mean, forecast.var, members=ways)


def propose(planner: Planner, system: AnySystem, states: Floats, rngs: Rngs) -> Floats:
    """`[E, K, H, A]` the candidates from states `[E, D]`; refused outside the range of actions."""
    plans = np.asarray(planner.propose(states, rngs), dtype=np.float64)
    if plans.ndim != 4 or len(plans) != len(states) or plans.shape[3] != len(system.low):
        wanted = f"[{len(states)}, K, H, {len(system.low)}]"
        raise InvalidInput(f"propose must return plans {wanted}, got {plans.shape}")
    if not (inside := (plans >= system.low) & (plans <= system.high)).all():
        rule = f"within low {system.low} and high {system.high}"
        raise InvalidInput(f"plans must stay {rule}, got {plans[~inside][0]}")
    return plans


class Drive:
    """A batch of episodes under way, each in the row of its id, whoever else is there: bits do not depend on
    who shares a shard. What is over is still computed with."""

    def __init__(self, system: AnySystem, seeds: NDArray[Any]) -> None:
        self.system, self.places = system, np.asarray(seeds) % SHARD
        ids = np.zeros(SHARD, dtype=np.int64)
        ids[self.places] = seeds
        self.planned, self.happens = ([default_rng((s, i)) for i in ids.tolist()] for s in (DRIVE, HAPPEN))
        self.rows = system.begin(self.happens)
        self.alive, self.failed = np.zeros(SHARD, bool), np.zeros(SHARD, bool)
        self.alive[self.places] = True

    @property
    def states(self) -> Floats:
        return self.system.see(self.rows)

    def decide(self, controller: RobotController) -> Decided:
        """What each does; those that stop are over."""
        decided = controller.decide(np.where(self.alive[:, None], self.states, 0.0), self.planned)
        self.alive &= ~decided.stopped
        return decided

    def step(self, actions: Floats) -> NDArray[np.intp]:
        """Moves on those that are alive; which they were."""
        going = np.flatnonzero(self.alive)
        if len(going):
            happens = [self.happens[i] for i in going]
            self.rows[going], ended, failed = self.system.advance(self.rows[going], actions[going], happens)
            self.failed[going[failed]] = True
            self.alive[going] = ~(ended | failed)
        return going


class DriveToStarts:
    """Where one episode of each unit stands at a step drawn beforehand: `start`, `rows` and `reached`.

    alone: whether every second episode is driven by the fallback alone
    """

    def __init__(self, controller: RobotController, alone: bool, steps: int, *, device: str = "cpu") -> None:
        self.controller, self.alone, self.steps = controller, alone, steps

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        system, fallback = self.controller.system, self.controller.guard.act
        run, due = Drive(system, shard.array), np.full(SHARD, -1)
        due[run.places] = [int(run.happens[i].integers(self.steps)) for i in run.places]
        start, rows = np.zeros_like(run.states), np.zeros_like(run.rows)
        reached, odd = np.zeros(SHARD, np.int64), np.zeros(SHARD, bool)
        odd[run.places] = self.alone & (shard.array % 2 == 1)
        for t in range(int(due.max()) + 1):
            ready = np.flatnonzero(run.alive & (due == t))
            start[ready], rows[ready], reached[ready] = run.states[ready], run.rows[ready], 1
            run.alive[ready] = False
            if not run.alive.any():
                break
            actions = run.decide(self.controller).actions
            for i in np.flatnonzero(run.alive & odd):
                actions[i] = fallback(run.states[i], system.low, system.high, "driven by the fallback")
            run.step(actions)
        reached[run.failed] = -1
        mine = run.places
        return {"ids": shard.array, "start": start[mine], "rows": rows[mine], "reached": reached[mine]}


@dataclass(frozen=True, eq=False)
class PutRowsBack:
    """Carries out all candidates from the rows of their starts; see `pac_rl.candidates.CarryOut`."""

    system: AnySystem

    def __call__(self, given: Arrays, plans: Floats, rngs: Rngs) -> tuple[Floats, NDArray[np.int64]]:
        n, k, horizon = plans.shape[:3]
        rows, each = np.repeat(given["rows"], k, axis=0), [one for rng in rngs for one in rng.spawn(k)]
        flat, system = plans.reshape(n * k, horizon, -1), self.system
        states = np.full((n * k, horizon, len(system.names)), np.inf)
        lengths, going = np.full(n * k, horizon), np.flatnonzero(np.repeat(given["reached"] == 1, k))
        for t in range(horizon):
            if not len(going):
                break
            rows[going], ended, failed = system.advance(rows[going], flat[going, t], [each[i] for i in going])
            states[going[~failed], t] = system.see(rows[going[~failed]])
            lengths[going[ended]] = t + 1
            going = going[~(ended | failed)]
        return states.reshape(n, k, horizon, -1), lengths.reshape(n, k)


class RunRobotEpisodes:
    """Whole episodes of a controller: `errors` `[n]`, whether any limit was broken or the robot failed, with
    `violation_steps`, `fallbacks`, `decisions`, and the last state as `final`."""

    def __init__(self, controller: RobotController, steps: int, *, device: str = "cpu") -> None:
        self.controller, self.steps = controller, steps

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        run, (broken, fallbacks, decisions) = (
            Drive(self.controller.system, shard.array),
            np.zeros((3, SHARD), int),
        )
        final = run.states.copy()
        for t in range(self.steps):
            if not run.alive.any():
                break
            asked = run.alive.copy()
            decided = run.decide(self.controller)
            decisions += asked
            fallbacks += asked & (decided.chosen < 0)
            going = run.step(decided.actions)
            went = going[~run.failed[going]]
            final[went] = run.states[went]
            broken[went] += broken_limits(self.controller.limits, final[went]).any(axis=1)
            broken[going[run.failed[going]]] += self.steps - t
        counts = {"violation_steps": broken, "fallbacks": fallbacks, "decisions": decisions, "final": final}
        made = {"errors": (broken > 0) | run.failed, **counts}
        return {"ids": shard.array} | {name: array[run.places] for name, array in made.items()}


Scales: TypeAlias = Sequence[float]


@dataclass(frozen=True, eq=False, repr=False)
class RobotGuard:
    """What `fit_guard` made: a promise about plans, and the way to one about episodes.

    certificate: of the tubes, for whichever candidate is picked, from starts of the preliminary guard
    base: the controller without tubes
    """

    certificate: Certificate
    base: RobotController
    folder: str
    ledger: LedgerPath
    seed: int
    engine: Engine = run_here

    @property
    def tubes(self) -> FittedTubes:
        """The tubes as they were calibrated."""
        predictor = self.certificate.predictor
        return FittedTubes(predictor.score, predictor.threshold)

    def controller(self, scale: float = 1.0) -> RobotController:
        """The planner, guarded by tubes of this scale; the promise of the tubes is that of scale 1."""
        return replace(self.base, tubes=self.tubes.scaled(scale))

    def __repr__(self) -> str:
        predictor = self.certificate.predictor
        return "\n".join([self.certificate.promise, *(f"- {remark}" for remark in predictor.remarks)])

    def certify(
        self,
        level: PACLevel,
        *,
        steps: int,
        explore: int = 64,
        max_episodes: int = 400,
        scales: Scales | None = None,
        folder: str | Path | None = None,
        engine: Engine | None = None,
    ) -> Descended:
        """A certificate of the acting controller: P(a limit is broken in an episode of `steps`) <= epsilon.

        explore: episodes on which scales of the tubes are tried, from the widest down to the first with an
            error; the two narrowest without one are then tested, unless `scales` says which
        max_episodes: of each scale; it stops as soon as they have shown it
        """
        check_integer("steps", steps, least=1)
        engine, home = engine or self.engine, Path(folder or self.folder)
        first = unit_seeds(tune=1, calibrate=1, test=1, seed=self.seed)[0]
        usual: dict[str, Any] = {"size": SHARD, "controller": self.digest, "unit": "episode", "steps": steps}

        def stage(scale: float) -> Stage:
            return Stage(RunRobotEpisodes, (self.controller(scale), steps))

        def runs(name: str, **more: Any) -> Callable[[Any, Any], Any]:
            return episodes_through(engine, stage, str(home / name), **usual, **more)

        if scales is None:
            scales, ids = [], first + _EXPLORE + np.arange(explore)
            for scale in SCALES:
                if runs(f"explore-{steps}")(scale, ids).any():
                    break
                scales.append(scale)
            if not scales:
                raise InvalidInput(
                    f"no scale of the tubes kept {explore} episodes without an error, not even "
                    f"{SCALES[0]:g}: the fallback or the model is not good enough for these limits"
                )
        chosen = tuple(float(scale) for scale in scales[-2:])
        count = len(chosen) * max_episodes
        plan = Descent(
            scales=chosen,
            n=max_episodes,
            level=level,
            episodes=(first + _EPISODES + np.arange(count)).reshape(len(chosen), -1),
            error=f"a limit is broken, or the robot fails, within {steps} steps",
            tested={"controller": self.digest, "steps": steps},
        )
        done = descend(plan, runs(f"episodes-{steps}", plan=plan), ledger=self.ledger)
        write_descent(done, home / f"controller-{steps}.json")
        return done

    @property
    def digest(self) -> str:
        """Of all that acts: system, model, planner, limits, fallback and tubes."""
        return digest_of((self.base, self.tubes))


def digest_of(thing: Any) -> str:
    """A digest of objects: their tensors, settings and code; refused where their code cannot be told."""
    try:
        return Digests()(thing)
    except Undigested as error:
        raise InvalidInput(f"its code cannot be told, so nothing would notice a change: {error}") from None


def fit_guard(
    system: AnySystem,
    model: Dynamics,
    limits: Sequence[Limit],
    planner: Any,
    *,
    fallback: Fallback,
    horizon: int,
    tune: int,
    calibrate: int,
    level: PACLevel,
    folder: str | Path,
    seed: int = 0,
    steps: int = 60,
    test: int | None = None,
    preliminary: int = 100,
    shape: str = "box",
    ledger: LedgerPath | None = None,
    engine: Engine | None = None,
    **options: Any,
) -> RobotGuard:
    """Tubes for whichever candidate the planner picks, calibrated where a guarded robot goes.

    First a preliminary guard is fitted on starts of unguarded and of fallback episodes, and frozen. Then each
    tune and calibrate unit is a fresh episode under it, stopped at a step drawn from its id, from where all
    candidates are carried out. The promise is about such starts; the final guard visits others, so of its
    episodes only `certify` speaks.

    steps: of the episodes that lead to starts
    test: units that measure the error, a quarter of the calibrate units by default
    preliminary: units of the preliminary guard
    shape, options: of `fit_tube`
    ledger: `pac-ledger` in the folder by default
    engine: `cluster.connect(...)`'s, or this process
    """
    check_system(system)
    check_integer("horizon", horizon, least=1)
    check_fallback(fallback)
    planner = planner.at(horizon) if hasattr(planner, "at") else planner
    bounds = at_every_step(tuple(number_axes(limit, system.names) for limit in limits))
    home, run = Path(folder), engine or run_here
    base = RobotController(system, model, planner, bounds, fallback, horizon, seed=seed)
    states = system.see(system.begin([default_rng(0)]))
    for limit in bounds:
        broken_limits([limit], states)  # refuses here what does not fit the state
    base.decide(states, [default_rng(0)])
    if fallback != "stop":
        base.guard.act(states[0], system.low, system.high, "asked once, before anything runs")
    digest = digest_of(base)
    carry_out, usual = PutRowsBack(system), {"shape": shape, **options}

    def runs(controller: RobotController, alone: bool = False) -> CandidateRuns:
        starts = Stage(DriveToStarts, (controller, alone, steps))
        return CandidateRuns(starts, planner, model, carry_out)

    first = unit_seeds(tune=tune, calibrate=calibrate, test=1, seed=seed)[0]
    ids = range(first + _PRELIMINARY, first + _PRELIMINARY + preliminary)
    found = runs(base, alone=fallback != "stop").arrays(ids, RunFolder(home / "preliminary"), engine=run)
    forecast = GaussianForecast(found["mean"], found["var"]).mark_failures()
    truth = Trajectories(found["truth"], found["lengths"])
    score: Any = fit_shape(forecast, truth, level, any_of=True, **usual)
    scores = np.asarray(score_units(score, forecast, truth), dtype=np.float64)
    value = float(np.quantile(scores[np.isfinite(scores)], 1 - level.epsilon))
    frozen = replace(base, tubes=FittedTubes(score, value))
    book = ledger if ledger is not None else home / "pac-ledger"
    made, _ = certify_candidates(
        runs(frozen),
        RunFolder(home / "plans"),
        [level],
        book,
        model=Record("the user's model, planner and system", digest=digest),
        tune=tune,
        calibrate=calibrate,
        test=test or max(1, calibrate // 4),
        seed=seed,
        engine=run,
        **usual,
    )
    return RobotGuard(made.certificates[0], base, str(home), book, seed, run)
