"""The guarded controller: plans anew at every step, lets safe plans pass, is certified by its episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from pac_core import GaussianForecast, InvalidInput, PACLevel, TubeChecker
from pac_core.arrays import check_numbers, check_returned
from pac_core.bounds import check_integer
from pac_core.certificates import Descended, Descent, LedgerPath, descend, write_descent
from pac_core.runs import Digests, Engine, Stage, Undigested, episodes_through, run_here, watch
from pac_core.safety import Limit
from pac_rl.dynamics.model import Dynamics
from pac_rl.planning.guard import (
    UNKNOWN,
    Fallback,
    FittedTubes,
    Guard,
    MemberForecast,
    NoSafePlan,
    Reward,
    TubeMaker,
    check_fallback,
)
from pac_rl.planning.planners import Planner, check_plans
from pac_rl.systems.functions import AnySystem, Floats, Rngs
from pac_rl.systems.mujoco import at_every_step
from pac_rl.tasks import NEEDS, unit_seeds

ACT = 9
"""The stream of a controller that acts for a robot; see `episodes` for the others."""
DESCENT = "descent.json"
"""Beside the episodes of the certified scale: what their page reads."""
SCALES = (2.0, 1.5, 1.2, 1.0, 0.8, 0.65, 0.5, 0.4)
"""Of the tubes, tried from wide to narrow on episodes of their own before a certificate."""
PRELIMINARY, EPISODES, EXPLORE = 10**8, 2 * 10**8, 3 * 10**8
"""Behind the first unit of a seed: those of a preliminary guard, of a certificate, and to explore on."""
ROUND = 10**6
"""Units of a round: a guard that is fitted again has others."""


@dataclass(frozen=True, eq=False)
class Decision:
    """What is done in E states.

    actions: `[E, A]`
    chosen: `[E]` which candidate the action begins; -1 where none was safe, and the fallback acts
    margin: `[E]` of its tube; that of the least unsafe candidate where none is safe, NaN if nothing is known
    stopped: `[E]` where the fallback is to stop
    reasons: E texts
    plans: `[E, K, H, A]` the candidates, and their forecast `[E * K, H, D]`
    safe: `[E, K]` which of them are safe
    """

    actions: Floats
    chosen: NDArray[np.int64]
    margin: Floats
    stopped: NDArray[np.bool_]
    reasons: tuple[str, ...]
    plans: Floats
    forecast: GaussianForecast
    safe: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Controller:
    """Plans anew at every step: the cheapest candidate whose tube keeps the limits, else the fallback.

    limits: what must hold
    fallback: where no candidate is safe, see `Fallback`
    horizon: H, steps of a plan
    tubes: how candidates get their tubes, such as `FittedTubes`; None for no guard at all
    checked: how many steps of a plan must keep the limits; all H by default. Fewer leave the later ones to
        later plans, which are made before they are reached
    reward: what its episodes earn
    seed: of what a planner draws where `act` is called, and of the episodes of `certify`

    A guard is no promise by itself. What is promised of a guarded controller is proved by running it, on
    fresh episodes, at a scale of its tubes that was written down before: `certify`.
    """

    system: AnySystem
    model: Dynamics
    planner: Planner
    limits: tuple[Limit, ...]
    fallback: Fallback
    horizon: int
    tubes: TubeMaker | None = None
    checked: int | None = None
    reward: Reward | None = None
    seed: int = 0
    round: int = 0

    def __post_init__(self) -> None:
        check_integer("horizon", self.horizon, least=1)
        check_fallback(self.fallback)
        if self.checked is not None and check_integer("checked", self.checked, least=1) > self.horizon:
            raise InvalidInput(f"checked must be at most the horizon {self.horizon}, got {self.checked}")
        object.__setattr__(self, "limits", at_every_step(tuple(self.limits)))
        if self.limits:
            TubeChecker(self.limits)  # refuses what is no limit

    @cached_property
    def guard(self) -> Guard:
        """The check of plans, with the fallback."""
        if self.tubes is None:
            raise InvalidInput("tubes must be given to check plans, got None")
        return Guard(TubeChecker(self.limits), self.tubes, self.fallback, self.horizon)

    @cached_property
    def _rng(self) -> Generator:
        return default_rng((ACT, self.seed))

    def scaled(self, scale: float) -> Controller:
        """The same controller with tubes of another scale."""
        if not isinstance(self.tubes, FittedTubes):
            raise InvalidInput(f"tubes must be FittedTubes to be scaled, got {type(self.tubes).__name__}")
        return replace(self, tubes=self.tubes.scaled(scale))

    def act(self, state: Any) -> Floats:
        """`[A]` what a robot does in this state `[D]`; raises `NoSafePlan` where it is to stop."""
        known = check_returned("state", state, (len(self.system.names),), np.zeros(0))
        decided = self.decide(np.asarray(known)[None], [self._rng])
        if decided.stopped[0]:
            raise NoSafePlan(decided.reasons[0])
        return np.asarray(decided.actions[0])

    def fall_back(self, state: Floats, reason: str) -> Floats:
        """`[A]` the fallback's action in a state `[D]`, in its range."""
        guard = Guard(TubeChecker(self.limits), self.tubes, self.fallback)  # type: ignore[arg-type]
        return guard.act(state, self.system.low, self.system.high, reason)

    def decide(self, states: Floats, rngs: Rngs) -> Decision:
        """What is done in states `[E, D]`, which go through the model together; planners draw from `rngs`."""
        known = _known(states)
        sound = np.where(known[:, None], states, 0.0)
        plans, forecast = self._propose(sound, rngs)
        (e, k), rows = plans.shape[:2], np.arange(len(states))
        flat = plans.reshape(e * k, *plans.shape[2:])
        parts = (part.reshape(e, k, *part.shape[1:]) for part in (forecast.mean, forecast.var))
        cost = self.planner.cost(GaussianForecast(*parts), plans)
        cost = np.asarray(check_returned("cost", cost, (e, k), plans))
        able, margins, reasons = np.isfinite(cost) & known[:, None], np.full((e, k), np.nan), [UNKNOWN] * e
        if self.tubes is not None:
            checked = self.guard.check(self._with_members(forecast, sound, flat), flat)
            each = np.asarray(checked.margin, dtype=np.float64)[:, : self.checked].reshape(e, k, -1)
            margins = each.min(axis=2)
            able &= (each >= 0).all(axis=2)
        some: NDArray[np.bool_] = np.asarray(able.any(axis=1))
        least = np.where(np.isnan(margins), -np.inf, margins).argmax(axis=1)
        best = np.where(able, cost, np.inf).argmin(axis=1)
        actions, stopped = plans[rows, best, 0], np.zeros(e, bool)
        for i in np.flatnonzero(~some):
            if self.tubes is not None and known[i]:
                reasons[i] = checked.reason(int(i * k + least[i]))
            stopped[i] = self.fallback == "stop"
            if not stopped[i]:
                actions[i] = self.fall_back(states[i], reasons[i])
        told = np.where(some, best, least)
        reasons = ["safe" if good else why for good, why in zip(some, reasons, strict=True)]
        margin = np.where(known, margins[rows, told], np.nan)
        chosen = np.where(some, best, -1)
        return Decision(actions, chosen, margin, stopped, tuple(reasons), plans, forecast, able)

    def acting(self, states: Floats, decided: Decision) -> tuple[Floats, GaussianForecast]:
        """Plans `[E, H, A]` that act if nobody plans again, with their forecast: the chosen candidate, or the
        fallback along the predicted mean; to hold still where that is to stop."""
        k, rows, lost = decided.plans.shape[1], np.arange(len(states)), decided.chosen < 0
        which = np.where(lost, 0, decided.chosen)
        plans = decided.plans[rows, which].copy()
        forecast = decided.forecast.take(rows * k + which)
        known = _known(states)[:, None]
        sound = np.where(known, states, 0.0)
        if lost.any():
            hold = replace(self, fallback="hold") if self.fallback == "stop" else self

            def act(t: int, seen: Any) -> Any:
                return np.stack([hold.fall_back(state, "asked for a plan") for state in seen]).astype(
                    seen.dtype
                )

            instead, other = self.model.follow(sound, act, plans.shape[1])
            plans[lost] = instead[lost]
            parts = [
                np.where(lost[:, None, None], getattr(other, name), getattr(forecast, name))
                for name in ("mean", "var")
            ]
            parts[0] = np.where(known[:, None], parts[0], np.nan)
            forecast = GaussianForecast(*parts).mark_failures()
        return plans, self._with_members(forecast, sound, plans)

    def _propose(self, starts: Floats, rngs: Rngs) -> tuple[Floats, GaussianForecast]:
        """Candidates `[E, K, H, A]` and their forecast `[E * K, H, D]`."""
        planner: Any = self.planner
        if getattr(planner, "model", None) is self.model and hasattr(planner, "propose_with_forecast"):
            plans, forecast = planner.propose_with_forecast(starts, rngs)
            return check_plans(plans, self.system, len(starts)), forecast
        plans = check_plans(planner.propose(starts, rngs), self.system, len(starts))
        k = plans.shape[1]
        return plans, self.model(np.repeat(starts, k, axis=0), plans.reshape(-1, *plans.shape[2:]))

    def _with_members(self, forecast: GaussianForecast, states: Floats, plans: Floats) -> GaussianForecast:
        if not getattr(self.tubes, "members", False):
            return forecast
        if self.model.members is None:
            raise InvalidInput("the model must have members for tubes of its worst member, got one without")
        starts = np.repeat(states, len(plans) // len(states), axis=0)
        ways = np.array(self.model.members(starts, plans), dtype=np.float64)
        ways[:, np.isnan(forecast.mean).any(axis=(1, 2))] = np.nan  # nothing is known of these
        return MemberForecast(forecast.mean, forecast.var, members=ways)

    @property
    def digest(self) -> str:
        """Of all that acts: system, model, planner, limits, fallback and tubes at scale 1."""
        return digest_of(self.scaled(1.0) if isinstance(self.tubes, FittedTubes) else self)

    def certify(
        self,
        level: PACLevel,
        *,
        steps: int,
        folder: str | Path,
        explore: int = 64,
        max_episodes: int = 400,
        scales: Sequence[float] | None = None,
        allowed: int | None = None,
        ledger: LedgerPath | None = None,
        engine: Engine | None = None,
    ) -> Descended:
        """A certificate of the acting controller: P(a limit is broken in an episode of `steps`) <= epsilon.

        explore: episodes on which scales of the tubes are tried, from the widest down to the first with an
            error; the two narrowest without one are then tested, unless `scales` says which
        max_episodes: of each scale; it stops as soon as they have shown it
        allowed: errors of exactly `max_episodes`, as a fixed plan; by default it bets, and stops when it can
        ledger: `pac-ledger` in the folder by default

        A controller has one set of episodes for its certificate: another one with other `steps` would look at
        them again, and is refused; `replace(controller, seed=...)` has others.
        """
        from pac_rl.planning.episodes import BATCH, RunEpisodes, describe_episodes  # which run controllers

        check_integer("steps", steps, least=1)
        run, home = engine or partial(watch, run_here), Path(folder)
        first = unit_seeds(tune=1, calibrate=1, test=1, seed=self.seed)[0] + self.round * ROUND
        usual: dict[str, Any] = {"size": BATCH, "steps": steps}

        def stage(scale: float) -> Stage:
            return Stage(RunEpisodes, (self.scaled(scale), steps), needs=NEEDS)

        def runs(name: str, **more: Any) -> Callable[[Any, Any], Any]:
            return episodes_through(run, stage, str(home / name), **usual, **more)

        def lay_down(chosen: Sequence[float]) -> Descent:
            return Descent(
                scales=tuple(chosen),
                n=max_episodes,
                allowed=allowed,
                level=level,
                episodes=first + EPISODES + np.arange(len(chosen) * max_episodes).reshape(len(chosen), -1),
                error=f"a limit is broken, or the robot fails, within {steps} steps",
                tested={"controller": self.digest, "steps": steps},
            )

        check_integer("max_episodes", max_episodes, least=1)
        suffix = f"{steps}" if not self.round else f"{steps}-round-{self.round}"
        if scales is None:
            lay_down(SCALES[:1])  # refuses here what could prove nothing
            scales = []
            ids = first + EXPLORE + np.arange(check_integer("explore", explore, least=1))
            for scale in SCALES:
                errors = runs(f"explore-{suffix}", part="explore", unit="episode")(scale, ids)
                if errors.any():
                    break
                scales.append(scale)
            if not scales:
                checks = "" if self.checked is None else f", more than {self.checked} checked steps"
                raise InvalidInput(
                    f"even with tubes of scale {SCALES[0]:g}, {int(errors.sum())} of {explore} episodes "
                    "broke a limit or failed, so nothing narrower was tried: it takes a fallback that brings "
                    f"the robot to rest in time{checks}, plans that do, or a better model"
                )
            scales = scales[-2:]
        plan = lay_down(check_numbers("scales", scales, "[S]", finite=True).tolist())
        book = ledger if ledger is not None else home / "pac-ledger"
        about = {"plan": plan if allowed is None else None, **describe_episodes(self, "with the guard")}
        done = descend(plan, runs(name := f"episodes-{suffix}", **about), ledger=book)
        write_descent(done, home / f"controller-{suffix}.json")
        last = done.trials[-1].scale if done.certified is None else done.certified
        write_descent(done, home / name / f"scale-{last!r}" / DESCENT)  # for the page of these episodes
        return done


def _known(states: Floats) -> NDArray[np.bool_]:
    """`[E]` which states `[E, D]` are numbers, also in the single precision of a model."""
    return np.asarray((np.abs(states) <= np.finfo(np.float32).max).all(axis=1))


def digest_of(thing: Any) -> str:
    """A digest of objects: their tensors, settings and code; refused where their code cannot be told."""
    try:
        return Digests()(thing)
    except Undigested as error:
        raise InvalidInput(f"its code cannot be told, so nothing would notice a change: {error}") from None
