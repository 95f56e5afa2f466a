"""Whichever candidate is picked: the unit is a start with all K plans of a planner carried out.

A *start* is everything that `propose` reads. Plans are a function of it, of the planner's settings and of its
own noise; what is drawn while they are carried out comes from another stream of the unit's id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from pac_core import GaussianForecast, InvalidInput, PACLevel, Trajectories
from pac_core.arrays import check_returned
from pac_core.certificates import Certified, LedgerPath, Record
from pac_core.runs import Finding, Held, Job, RunFolder, Stage, Task, certify_run, cut, run_here
from pac_core.sets import Score, score_units
from pac_core.splits import ids_digest
from pac_core.thresholds import Threshold
from pac_core.tubes import AnyOf, fit_shape
from pac_rl.dynamics.model import Dynamics
from pac_rl.planning.controller import ROUND
from pac_rl.planning.guard import Forecast
from pac_rl.planning.planners import AroundPolicy, Planner
from pac_rl.rollouts import burn_in_range
from pac_rl.systems import Floats
from pac_rl.systems.functions import AnySystem
from pac_rl.systems.mujoco import MujocoSystem
from pac_rl.tasks import NEEDS, Arrays, Engine, RobotFiles, SimulateRollouts, read_arrays, unit_seeds

UNITS = 64
"""Of a shard."""
PLANNER, EXECUTION, DRAWN = 4, 5, 6
"""Streams of a unit's id: of the planner, of what happens, of the candidate that stands for a drawn plan."""
NO_DECISION = float(np.finfo(np.float64).min)
"""The score of a unit without candidates, because its episode was over: nothing can be missed."""
CarryOut: TypeAlias = Callable[[Arrays, Floats, Sequence[Generator]], tuple[Any, Any]]
"""From what the stage of starts gave, plans `[n, K, H, A]` and a generator for each start to the states
reached `[n, K, H, D]`, infinite from where one diverged on, and lengths `[n, K]`."""


@dataclass(frozen=True, eq=False)
class PutRowsBack:
    """Carries out all candidates from the rows of their starts, or the physics that `SimulateRollouts` gives;
    a `CarryOut`."""

    system: AnySystem

    def __call__(
        self, given: Arrays, plans: Floats, rngs: Sequence[Generator]
    ) -> tuple[Floats, NDArray[np.int64]]:
        n, k, horizon = plans.shape[:3]
        begun = given["rows"] if "rows" in given else np.hstack([given["physics"], given["start"]])
        rows, each = np.repeat(begun, k, axis=0), [one for rng in rngs for one in rng.spawn(k)]
        flat, system = plans.reshape(n * k, horizon, -1), self.system
        states = np.full((n * k, horizon, len(system.names)), np.inf)
        lengths, going = (
            np.full(n * k, horizon),
            np.flatnonzero(np.repeat(given.get("reached", np.ones(n)) == 1, k)),
        )
        for t in range(horizon):
            if not len(going):
                break
            rows[going], ended, failed = system.advance(rows[going], flat[going, t], [each[i] for i in going])
            states[going[~failed], t] = system.see(rows[going[~failed]])
            lengths[going[ended]] = t + 1
            going = going[~(ended | failed)]
        return states.reshape(n, k, horizon, -1), lengths.reshape(n, k)


def at_threshold(thing: Any, value: float) -> Any:
    """A planner with `value` for each threshold in its attributes and in dataclasses below (guards, tubes);
    the same object if there is none. One that hides it elsewhere, in a closure, has `at_threshold(value)`."""
    if isinstance(thing, Threshold):
        return replace(thing, value=value)
    if callable(own := getattr(thing, "at_threshold", None)):
        return own(value)
    new = dict[str, Any]()
    for name, part in getattr(thing, "__dict__", {}).items():
        bare = name == "threshold" and isinstance(part, int | float)
        inside = is_dataclass(part) and not isinstance(part, type)
        new[name] = value if bare else at_threshold(part, value) if inside else part
    if all(part is vars(thing)[name] for name, part in new.items()):
        return thing
    changed = copy(thing)
    vars(changed).update(new)
    return changed


def propose_unguarded(planner: Planner, start: Floats, seed: int, *, again: bool = True) -> Floats:
    """`[K, H, A]` the candidates of one start; refused unless T = 0 and T = inf make the same bytes.

    again: whether to ask a planner twice that holds no threshold, too: it might remember something
    """
    ends = [at_threshold(planner, value) for value in (0.0, np.inf)]
    asked = ends if again or ends[0] is not ends[1] else ends[:1]
    made = [np.asarray(one.propose(start[None], [default_rng((PLANNER, seed))])) for one in asked]
    first = made[0]
    if first.ndim != 4 or len(first) != 1 or not first.size or not np.isfinite(first).all():
        got = f"got {first.shape} of {first.dtype}"
        raise InvalidInput(f"propose must return finite plans [1, K, H, A] for one start, {got}")
    if first.tobytes() != made[-1].tobytes():
        raise InvalidInput(
            "propose must not see the guard, nor keep anything from one call to the next: with T = 0 and "
            "T = inf it made other candidates, so any_of promises nothing of them. Either search with a "
            "preliminary T0 that was fixed on tune data, and choose among the candidates at the end with T; "
            "or certify whole episodes (descend)"
        )
    return np.asarray(first[0], np.float64)


def find_picked(plan: Any, plans: Floats) -> int:
    """Which of the candidates `[K, H, A]` a plan `[H, A]` is, to the last bit; refused if it is none."""
    if not (same := (plans == np.asarray(plan)).all(axis=(1, 2))).any():
        rule = "a mean of them (CEM, MPPI) is covered only if it is proposed as one"
        raise InvalidInput(f"pick must return one of the candidates, got another plan: {rule}")
    return int(same.argmax())


class CarryOutCandidates:
    """All K candidates of each start, forecast and carried out; a unit's numbers depend on its id alone.

    Without a score their arrays, to tune on: `mean`, `var`, `truth` `[n, K, H, D]`, `lengths` `[n, K]`. With
    one, `scores` `[n]`, the largest of a unit, and those of the `picked` and of one `drawn` candidate; of
    shapes to compare with (`also`) the same under their names, such as `picked_plain`.
    """

    def __init__(
        self,
        planner: Planner,
        forecast: Forecast,
        carry_out: CarryOut,
        score: AnyOf | None = None,
        also: Mapping[str, Score] | None = None,
        *,
        device: str = "cpu",
    ) -> None:
        self.planner, self.forecast, self.carry_out, self.score = planner, forecast, carry_out, score
        self.shapes = {} if score is None else {"": score.shape, **(also or {})}

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        seeds = shard.array.tolist()
        starts = zip(given["start"], seeds, strict=True)
        found = [self._plan(start, seed, seed == seeds[0]) for start, seed in starts]
        plans, rows = np.stack([one[0] for one in found]), np.arange(len(found))
        n, k, horizon = plans.shape[:3]
        if self.score is not None and k != self.score.candidates:
            rule = f"as many plans as the tune units had, {self.score.candidates}"
            raise InvalidInput(f"propose must return {rule}, got {k}")
        mean, var = (np.concatenate([getattr(one[1], name) for one in found]) for name in ("mean", "var"))
        shape = (n, k, horizon, mean.shape[-1])
        states, lengths = self.carry_out(given, plans, [default_rng((EXECUTION, seed)) for seed in seeds])
        truth = np.array(check_returned("states of carry_out", states, shape, plans))
        lengths = np.array(check_returned("lengths of carry_out", lengths, (n, k), plans)).astype(np.int64)
        reached = np.asarray(given.get("reached", np.ones(n, np.int64)))
        truth[reached != 1], lengths[reached != 1] = np.inf, horizon  # nothing to tune on
        if self.score is None:
            arrays = {"mean": mean.reshape(shape), "var": var.reshape(shape), "truth": truth}
            return {"ids": shard.array, "lengths": lengths, **arrays}
        forecast = GaussianForecast(mean, var).mark_failures()
        came = Trajectories(truth.reshape(-1, *shape[2:]), lengths.reshape(-1))
        made: Arrays = {"ids": shard.array, "pick": np.array([one[2] for one in found])}
        drawn = np.array([default_rng((DRAWN, seed)).integers(k) for seed in seeds])
        for name, one in self.shapes.items():
            each = np.asarray(score_units(one, forecast, came), np.float64).reshape(n, k)
            each[reached == 0] = NO_DECISION
            parts = {
                "scores": each.max(axis=1),
                "picked": each[rows, made["pick"]],
                "drawn": each[rows, drawn],
            }
            made |= {f"{part}_{name}" if name else part: array for part, array in parts.items()}
        return made

    def _plan(self, start: Floats, seed: int, again: bool) -> tuple[Floats, GaussianForecast, int]:
        """Candidates of a start, their forecast `[K, H, D]`, and which of them is picked."""
        plans = propose_unguarded(self.planner, start, seed, again=again)
        made = self.forecast(np.repeat(start[None], len(plans), axis=0), plans)
        if not isinstance(made, GaussianForecast) or made.mean.shape[:2] != plans.shape[:2] or made.full:
            raise InvalidInput(f"forecast must be Gaussian with variances, of {len(plans)} plans, got {made}")
        whole = GaussianForecast(made.mean[None], made.var[None])
        if callable(pick := getattr(self.planner, "pick", None)):
            return plans, made, find_picked(pick(whole, plans[None])[0], plans)
        cost = check_returned("cost", self.planner.cost(whole, plans[None]), (1, len(plans)), plans)
        return plans, made, int(np.where(np.isnan(cost[0]), np.inf, cost[0]).argmin())


@dataclass(frozen=True, eq=False)
class CandidateRuns:
    """What makes a unit: how starts come about, who plans, what is forecast, and what happens.

    starts: a stage that returns `start` `[n, D]` and what `carry_out` needs: `SimulateRollouts`, or along
        episodes `RunToStarts`, of a guard that was frozen before
    """

    starts: Stage
    planner: Planner
    forecast: Forecast
    carry_out: CarryOut

    def stages(self, score: AnyOf | None = None, also: Mapping[str, Score] | None = None) -> list[Stage]:
        parts = (self.planner, self.forecast, self.carry_out, score, dict(also or {}))
        return [self.starts, Stage(CarryOutCandidates, parts, needs=NEEDS)]

    def arrays(
        self,
        ids: Any,
        folder: RunFolder,
        score: AnyOf | None = None,
        *,
        engine: Engine = run_here,
        **about: Any,
    ) -> Arrays:
        """Of units that are not calibrated on, such as those to tune on: see `CarryOutCandidates`."""
        given: Arrays = {}
        for stage in self.stages(score):  # refuses here, on one unit, what would be refused there
            given = dict(stage.make(*stage.args, device="cpu")(cut(ids[:1], 1)[0], given))
        job = Job.of("candidates", ids, self.stages(score), size=UNITS, unit="start", **about)
        engine(job, folder)
        return read_arrays(job, folder)

    def errors(
        self, drive: Callable[[float], Stage], score: AnyOf, folder: Path, *, engine: Engine = run_here
    ) -> Callable[[float, Any], NDArray[np.bool_]]:
        """For `descend` with thresholds as scales: from T and ids of episodes to whether any candidate, at
        the drawn step of an episode that is driven with T, scores above T. `drive`: from T to the starts."""

        def run(value: float, ids: Any) -> NDArray[np.bool_]:
            runs, place = replace(self, starts=drive(value)), RunFolder(folder / f"T-{value!r}")
            found = runs.arrays(np.asarray(ids).tolist(), place, score, engine=engine, T=value)
            return np.asarray(found["scores"] > value)

        run.repeatable = True  # type: ignore[attr-defined]
        return run


def policy_candidates(
    files: RobotFiles, *, horizon: int, burn_in: tuple[int, int], propagation: str = "particles"
) -> CandidateRuns:
    """The policy's actions along the predicted mean, times 0, 0.05 ... 1, from starts of its own rollouts."""
    system, model = MujocoSystem(files.env), Dynamics.of(files.ensemble, propagation=propagation)
    starts = Stage(SimulateRollouts, (files.env, files.policy, 1, burn_in_range(burn_in)), needs=NEEDS)
    planner = AroundPolicy.of(system, model, files.policy, horizon=horizon)
    return CandidateRuns(starts, planner, model, PutRowsBack(system))


def certify_candidates(
    runs: CandidateRuns,
    folder: RunFolder,
    levels: Sequence[PACLevel],
    ledger: LedgerPath,
    *,
    model: Record,
    tune: int,
    calibrate: int,
    test: int,
    seed: int = 0,
    also: Callable[[GaussianForecast, Trajectories], Mapping[str, Score]] | None = None,
    engine: Engine = run_here,
    train: Record | None = None,
    round: int = 0,
    names: str = "",
    about: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Certified, list[Finding]]:
    """A promise for whichever candidate is picked, in a run folder; its tune units are in `tune` below it.

    Tune units come back as arrays, and a score is fitted to them. It enters the ledger; then, as an argument
    of their scorer, calibrate and test units return one score each, never K trajectories.

    also: from tune forecast and truth to shapes that are scored beside it, see `CarryOutCandidates`
    options: of `fit_tube`: shape, features, sides, units
    round: takes other units of the same seed
    names: what comes before a unit's seed in its name
    about: what else the run's configuration says
    """
    first = unit_seeds(tune=tune, calibrate=calibrate, test=test, seed=seed)[0] + round * ROUND
    ids = range(first, first + tune + calibrate + test)
    if isinstance(runs.forecast, Dynamics):
        runs.forecast.refuse_seen(ids)
    found = runs.arrays(ids[:tune], RunFolder(f"{folder}/tune"), engine=engine, part="tune")
    forecast = GaussianForecast(found["mean"], found["var"]).mark_failures()
    truth = Trajectories(found["truth"], found["lengths"])
    score: Any = fit_shape(forecast, truth, levels[0], any_of=True, **options)
    words = f"{score.shape.kind}, the largest over {score.candidates} candidates"
    task = Task.of(
        "candidates",
        ids[tune:],
        runs.stages(score, None if also is None else also(forecast, truth)),
        size=UNITS,
        names=[f"{names}{unit}" for unit in ids[tune:]],
        unit="start",
        model=model,
        train=train,
        score=words,
        tune=0,
        calibrate=calibrate,
        seed=seed,
        part="calibrate and test",
        **(about or {}),
    )
    task.write(folder)
    tuned = Record("tune", tune, ids_digest([f"{names}{unit}" for unit in ids[:tune]]))
    held = Held(score, forecast.domain, tuned, lambda: engine(task.job, folder))
    return certify_run(task, folder, levels, ledger, held=held)
