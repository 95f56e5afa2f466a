"""From a robot, a model, limits and a planner to a guard with a promise; from a log; from a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from pac_core import (
    GaussianForecast,
    InvalidInput,
    LinearFeatures,
    PACLevel,
    Trajectories,
    TubeChecker,
    certify,
)
from pac_core.bounds import check_integer, max_errors, share_level
from pac_core.certificates import Certificate, LedgerPath, Record
from pac_core.datasets import file_digest
from pac_core.runs import Engine, RunFolder, Stage, read_certificates, run_here, watch
from pac_core.safety import Limit, number_axes
from pac_core.sets import score_units
from pac_core.tubes import check_shape, fit_shape
from pac_rl.dynamics.ensemble import Ensemble
from pac_rl.dynamics.model import Dynamics
from pac_rl.planning.candidates import CandidateRuns, PutRowsBack, certify_candidates
from pac_rl.planning.controller import PRELIMINARY, ROUND, Controller, digest_of
from pac_rl.planning.episodes import RunToStarts, broken_limits
from pac_rl.planning.guard import Fallback, FittedTubes, Guard, check_fallback
from pac_rl.planning.planners import AroundPolicy, Planner
from pac_rl.policies import SHIPPED, load_policy
from pac_rl.systems.functions import AnySystem, Floats, Rngs, check_system
from pac_rl.systems.mujoco import MujocoSystem
from pac_rl.tasks import NEEDS, unit_seeds

Promise = Literal["any", "drawn"]
GUARD = "guard.json"
"""Of a run folder: the limits and the fallback that `pac guard` was given."""


@dataclass(frozen=True, eq=False, repr=False)
class FittedGuard:
    """What `fit_guard` made: a promise about plans, and the way to one about episodes.

    certificate: of the tubes
    guard: limits, tubes and fallback: what every guarded planner takes
    model: whose forecasts the tubes are of
    base: the controller without tubes; None where there is no simulator
    findings: what it is like, in words
    asked: of `fit_guard`, to fit it again
    """

    certificate: Certificate
    guard: Guard
    model: Dynamics
    base: Controller | None = None
    findings: tuple[str, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)

    def controller(self, scale: float = 1.0) -> Controller:
        """The planner, guarded by tubes of this scale; the promise of the tubes is that of scale 1."""
        if self.base is None:
            raise InvalidInput(
                "a controller needs a system and a planner: this guard was read, or made of a log"
            )
        tubes = FittedTubes(self.guard.predictor.score, self.guard.predictor.threshold, scale)  # type: ignore[attr-defined]
        return replace(self.base, tubes=tubes)

    def refit(self, model: Dynamics, *, engine: Engine | None = None) -> FittedGuard:
        """The guard for a model that was trained again, on fresh units, charged to the same ledger."""
        if self.base is None or not self.asked:
            raise InvalidInput("refit needs what fit_guard was given: this guard was read, or made of a log")
        planner: Any = self.base.planner
        if getattr(planner, "model", None) is self.base.model:
            planner = replace(planner, model=model)
        given = dict(self.asked) | ({} if engine is None else {"engine": engine})
        given["round"] = given.get("round", 0) + 1
        return fit_guard(self.base.system, model, self.base.limits, planner, **given)

    def __repr__(self) -> str:
        remarks = [*self.findings, *self.certificate.predictor.remarks]
        return "\n".join([self.certificate.promise, *(f"- {remark}" for remark in remarks)])


@dataclass(frozen=True, eq=False)
class DrawnCandidate:
    """A planner of which one candidate is drawn: for the promise about drawn plans."""

    planner: Planner

    def propose(self, starts: Floats, rngs: Rngs) -> Floats:
        plans = np.asarray(self.planner.propose(starts, rngs))
        which = [int(rng.integers(plans.shape[1])) for rng in rngs]
        return np.asarray(plans[np.arange(len(plans)), which][:, None])

    def cost(self, forecast: GaussianForecast, plans: Floats) -> Floats:
        return np.zeros(plans.shape[:2])


def fit_guard(
    system: AnySystem,
    model: Dynamics,
    limits: Sequence[Limit | str],
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
    promise: Promise = "any",
    checked: int | None = None,
    reward: Any = None,
    shape: str | None = None,
    ledger: LedgerPath | None = None,
    engine: Engine | None = None,
    round: int = 0,
    **options: Any,
) -> FittedGuard:
    """Tubes for whichever candidate the planner picks, calibrated where a guarded robot goes.

    First a preliminary guard is fitted on starts of unguarded and of fallback episodes, and frozen. Then each
    tune and calibrate unit is a fresh episode under it, stopped at a step drawn from its id, from where all
    candidates are carried out. The promise is about such starts; the final guard visits others, so of its
    episodes only `Controller.certify` speaks.

    limits: such as `KeepOutBall(..., axes=("x", "y"))`, or texts as in "speed <= 3.2"
    steps: of the episodes that lead to starts
    test: units that measure the error, a quarter of the calibrate units by default
    preliminary: units of the preliminary guard
    promise: "any", for whichever candidate is picked; "drawn", for one that is drawn from them: cheaper, and
        for planners whose candidates depend on the guard, but it says nothing about a plan that is picked
    checked, reward: see `Controller`
    shape, options: of `fit_tube`; by default intervals of the numbers that the limits read, narrower than a
        tube of the whole state, where each limit says which it reads
    ledger: `pac-ledger` in the folder by default
    engine: `cluster.connect(...)`'s, or this process
    round: how often it was fitted before with these arguments and another model; see `FittedGuard.refit`
    """
    check_system(system)
    if not isinstance(model, Dynamics):
        raise InvalidInput(f"model must be a Dynamics, got {type(model).__name__}")
    if missing := [name for name in ("propose", "cost") if not callable(getattr(planner, name, None))]:
        raise InvalidInput(f"planner must have {missing[0]}, got {type(planner).__name__}")
    for name, count in (("horizon", horizon), ("preliminary", preliminary)):
        check_integer(name, count, least=1)
    max_errors(calibrate, level)  # refuses here what could prove nothing
    if check_integer("round", round, least=0) and max(tune + calibrate, preliminary) > ROUND:
        raise InvalidInput(f"a round must have at most {ROUND:,} units, got {tune + calibrate:,}")
    if round >= (most := PRELIMINARY // ROUND):
        raise InvalidInput(f"round must be below {most}, got {round}: fit it with another seed")
    if promise not in ("any", "drawn"):
        raise InvalidInput(f"promise must be 'any' or 'drawn', got {promise!r}")
    check_fallback(fallback)
    planner = planner.at(horizon) if hasattr(planner, "at") else planner
    if isinstance(limits, str):
        raise InvalidInput(f"limits must be a list of limits, got the text {limits!r}")
    if shape is not None:
        check_shape(shape)
    bounds = tuple(number_axes(limit, system.names) for limit in limits)
    home, run = Path(folder) / (f"round-{round}" if round else ""), engine or partial(watch, run_here)
    about: dict[str, Any] = {"checked": checked, "reward": reward, "seed": seed, "round": round}
    base = Controller(system, model, planner, bounds, fallback, horizon, **about)
    states = system.see(system.begin([default_rng(0)]))
    for limit in bounds:
        broken_limits([limit], states)  # refuses here what does not fit the state
    base.decide(states, [default_rng(0)])
    if fallback != "stop":
        base.fall_back(states[0], "asked once, before anything runs")
    digest_of(base)
    usual: dict[str, Any] = {"shape": shape, **options} if shape else intervals_of(bounds, system.names)
    proposing = planner if promise == "any" else DrawnCandidate(planner)

    def runs(controller: Controller, alone: bool = False) -> CandidateRuns:
        starts = Stage(RunToStarts, (controller, steps, alone), needs=NEEDS)
        return CandidateRuns(starts, proposing, model, PutRowsBack(system))

    first = unit_seeds(tune=tune, calibrate=calibrate, test=1, seed=seed)[0] + round * ROUND
    ids = range(first + PRELIMINARY, first + PRELIMINARY + preliminary)
    early = runs(base, alone=fallback != "stop")
    found = early.arrays(ids, RunFolder(home / "preliminary"), engine=run, part="preliminary guard")
    forecast = GaussianForecast(found["mean"], found["var"]).mark_failures()
    truth = Trajectories(found["truth"], found["lengths"])
    score: Any = fit_shape(forecast, truth, level, any_of=True, **usual)
    scores = np.asarray(score_units(score, forecast, truth), dtype=np.float64)
    if not np.isfinite(scores).any():
        raise InvalidInput(
            f"none of {preliminary} preliminary episodes reached its start and went on for {horizon} "
            "steps: the system fails, or the model's forecasts are not finite"
        )
    value = float(np.quantile(scores[np.isfinite(scores)], 1 - level.epsilon))
    frozen = replace(base, tubes=FittedTubes(score, value))
    book = ledger if ledger is not None else Path(folder) / "pac-ledger"
    place = RunFolder(home / "plans")
    made, tested = certify_candidates(
        runs(frozen),
        place,
        [level],
        book,
        model=Record("the user's model", digest=digest_of(model)),
        tune=tune,
        calibrate=calibrate,
        test=test or max(1, calibrate // 4),
        seed=seed,
        round=round,
        about={"states": list(system.names)},
        engine=run,
        **usual,
    )
    certificate = made.certificates[0]
    guard = Guard(TubeChecker(bounds), certificate.predictor, fallback, horizon)
    tuned = RunFolder(f"{place}/tune").read_all()
    seen = [_say_test(tested[0].errors), *_say_guard(guard, tuned, system.names, checked)]
    asked: dict[str, Any] = {
        "fallback": fallback,
        "horizon": horizon,
        "tune": tune,
        "calibrate": calibrate,
        "level": level,
    }
    asked |= {"folder": folder, "steps": steps, "test": test, "preliminary": preliminary, "promise": promise}
    asked |= {"ledger": ledger, "shape": shape, **options, **about}
    return FittedGuard(certificate, guard, model, base, tuple(seen), asked)


def intervals_of(limits: Sequence[Limit], names: Sequence[str]) -> dict[str, Any]:
    """Of `fit_tube`: the shape `features` on what the limits read, only the end that a half-space limits; the
    whole state where a limit does not say what it reads.

    >>> intervals_of([number_axes("speed <= 3", ("x", "speed"))], ("x", "speed"))["sides"]
    (1,)
    """
    rows, sides, labels = list[Floats](), list[int](), list[str]()
    for limit in limits:
        normal, axes = getattr(limit, "normal", None), getattr(limit, "axes", None)
        if normal is None and axes is None:
            return {"shape": "box"}
        side, read = 0, [np.eye(len(names))[axis] for axis in axes or ()]
        if normal is not None:
            side, read = 1, [np.asarray(normal, dtype=np.float64) / np.abs(normal).max()]
        for row in read:
            known = [i for i, one in enumerate(rows) if np.array_equal(one, row) or np.array_equal(one, -row)]
            if known:
                kept = np.array_equal(rows[known[0]], row) and sides[known[0]] == side
                sides[known[0]] = side if kept else 0
                continue
            only = np.flatnonzero(row)
            label = names[only[0]] if len(only) == 1 else limit.name
            labels.append(label if label not in labels else f"{label} {len(labels)}")
            rows.append(row)
            sides.append(side)
    features = LinearFeatures(tuple(labels), np.stack(rows))
    return {"shape": "features", "features": features, "sides": tuple(sides)}


def _say_test(errors: tuple[int, int] | None) -> str:
    return "it was not tested" if errors is None else f"{errors[0]} of {errors[1]} test units left their tube"


def _say_guard(
    guard: Guard, tuned: Mapping[str, NDArray[Any]], names: Sequence[str], checked: int | None
) -> list[str]:
    """How wide the tubes of tune units are, whether they use the model's variance, what the guard accepts."""
    mean, var = (tuned[name].reshape(-1, *tuned[name].shape[2:]) for name in ("mean", "var"))
    forecast = GaussianForecast(mean, var).mark_failures()
    sound = np.isfinite(mean).all(axis=(1, 2)) & np.isfinite(var).all(axis=(1, 2))
    tube: Any = guard.predictor.tube(forecast)
    lower, upper = (np.asarray(end, dtype=np.float64)[sound] for end in tube.box())
    middle = np.asarray(tube.region.center)[sound]  # of a tube that is open on one side, the other counts
    half = np.where(np.isfinite(upper - lower), (upper - lower) / 2, np.fmin(upper - middle, middle - lower))
    features = getattr(tube, "features", None)
    shown = features.names if features is not None else names
    wide = half.mean(axis=0)
    words = ", ".join(
        f"{name} {a:.3g} to {b:.3g}" for name, a, b in zip(shown, wide[0], wide[-1], strict=True)
    )
    most = half.max(axis=1)
    varies = float((most.std(axis=0) / np.maximum(most.mean(axis=0), 1e-300)).max())
    uses = "the model's variance sets the widths" if varies > 0.02 else "all plans have tubes of one width"
    margin = np.asarray(guard.check(forecast, np.zeros((*mean.shape[:2], 1))).margin)[:, :checked]
    safe: NDArray[np.bool_] = np.asarray((margin >= 0).all(axis=(1, 2))).reshape(tuned["mean"].shape[:2])
    accepted = f"{safe.mean():.0%} of the candidates; at {safe.any(axis=1).mean():.0%} of the starts some"
    return [
        f"mean half-widths, first to last step: {words}",
        f"{uses} (they vary by {varies:.0%} between plans)",
        f"at scale 1 it accepts {accepted}, of {len(safe)} tune units",
    ]


def fit_guard_from_log(
    model: Dynamics,
    limits: Sequence[Limit | str],
    starts: Any,
    plans: Any,
    states: Any,
    *,
    fallback: Fallback,
    level: PACLevel,
    tune: int,
    ledger: str | PathLike[str],
    calibrate: int | None = None,
    names: Sequence[str] | None = None,
    lengths: Any = None,
    ids: Sequence[Any] | None = None,
    drawn_of: int | None = None,
    seed: int = 0,
    shape: str = "box",
    **options: Any,
) -> FittedGuard:
    """A guard from logged plans and what came of them, for a robot that nobody can put back into a state.

    The promise is about a plan drawn like the logged ones; with `drawn_of=K`, each logged plan being drawn
    uniformly from the planner's K candidates, about whichever is picked, at K times epsilon. Of guarded
    episodes a log of them speaks: `pac certify-episodes`.

    starts: `[N, D]` where each plan began; one plan of each episode, drawn beforehand, because the plans of
        an episode depend on each other
    plans, states: `[N, H, A]` and `[N, H, D]` what was carried out, and what came of it
    lengths: `[N]` steps until it ended, H by default
    names: of the state's numbers, for limits that name their axes
    ids: of the episodes, for the ledger; by default their places in the log
    tune, calibrate: plans to fit the tubes on, and to prove them on; by default all the others
    shape, options: of `fit_tube`
    """
    origin, given, truth = (np.asarray(x, dtype=np.float64) for x in (starts, plans, states))
    if origin.ndim != 2 or given.ndim != 3 or truth.shape != (*given.shape[:2], origin.shape[1]):
        shapes = f"{origin.shape}, {given.shape} and {truth.shape}"
        raise InvalidInput(f"starts, plans and states must be [N, D], [N, H, A] and [N, H, D], got {shapes}")
    bounds = tuple(number_axes(limit, names or ()) for limit in limits)
    ends = np.full(len(given), given.shape[1]) if lengths is None else np.asarray(lengths)
    chosen: dict[str, Any] = {} if drawn_of is None else {"any_of": True, "drawn_of": drawn_of}
    made = certify(
        model(origin, given),
        Trajectories(truth, ends),
        level if drawn_of is None else share_level(level, drawn_of),
        ids=[f"plan {i}" for i in range(len(given))] if ids is None else list(ids),
        tune=tune,
        calibrate=len(given) - tune if calibrate is None else calibrate,
        ledger=ledger,
        seed=seed,
        fit=partial(fit_shape, shape=shape, **chosen, **options),
        unit="plan",
        model=Record("the user's model", digest=digest_of(model)),
    )
    certificate = made.certificates[0]
    guard = Guard(TubeChecker(bounds), certificate.predictor, check_fallback(fallback), given.shape[1])
    return FittedGuard(certificate, guard, model)


def load_guard(
    folder: str | PathLike[str],
    limits: Sequence[Limit | str] | None = None,
    *,
    model: Dynamics | str | PathLike[str] | None = None,
    policy: str | PathLike[str] | None = None,
    fallback: Fallback | None = None,
    checked: int | None = None,
    names: Sequence[str] | None = None,
    level: PACLevel | None = None,
) -> FittedGuard:
    """The checker of a run of plans, for a planner: its certified tubes, these limits, and the model.

    folder: of `pac run rl --plans`, whose guard has a controller, too: candidates around the policy, the
        boldest safe one first; or of `fit_guard`
    limits: by default those that `pac guard` was given
    model: which is about to be guarded, refused unless it is the certified one; by default the ensemble that
        was trained in the run
    policy: a file, refused unless it is the run's; by default the one that ships
    names: of the state's numbers, for limits that name them, where the run does not know them
    level: which certificate, where the run has several
    """
    home = Path(folder)
    place = RunFolder(home / "plans" if (home / "plans").exists() else home)
    about, found = place.configuration() or {}, list(read_certificates(place).values())
    if about.get("task") == "rl":
        raise InvalidInput(
            f"{place} holds tubes of the closed loop, which never guard plans: run it with --plans"
        )
    if level is not None:
        found = [one for one in found if one.predictor.threshold.level == level]
    if len(found) != 1:
        raise InvalidInput(
            f"{place} must have one certificate{' of this level' * bool(level)}, got {len(found)}"
        )
    certificate, file = found[0], home / "model" / "ensemble.safetensors"
    system = MujocoSystem(str(about["env"])) if "env" in about else None
    known: Any = names or about.get("states") or getattr(system, "names", ())
    stored = json.loads(place.get(GUARD)) if place.has(GUARD) else {}
    if (asked := limits if limits is not None else stored.get("limits")) is None:
        raise InvalidInput("limits must be given, because the run has none: see `pac guard`")
    bounds = tuple(number_axes(limit, known) for limit in asked)
    ready, digest = _read_model(file if model is None else model, about.get("propagation", "particles"))
    if (proved := str(certificate.model.digest)) != digest:
        raise InvalidInput(f"the model must be the certified one, {proved[:12]}, got {digest[:12]}")
    fallback = fallback if fallback is not None else stored.get("fallback")
    guard = Guard(TubeChecker(bounds), certificate.predictor, fallback)
    base = None
    if system is not None and fallback is not None:
        acting = _read_policy(policy or SHIPPED, about)
        planner = AroundPolicy.of(system, ready, acting, horizon=int(about["horizon"]))
        more: dict[str, Any] = {"checked": checked, "seed": int(about["seed"])}
        base = Controller(system, ready, planner, bounds, fallback, planner.horizon, **more)
    return FittedGuard(certificate, guard, ready, base)


def _read_model(model: Any, propagation: str) -> tuple[Dynamics, str]:
    """A model, or that of a file, and its digest."""
    if isinstance(model, Dynamics):
        return model, digest_of(model)
    if not isinstance(model, str | PathLike):
        raise InvalidInput(f"model must be a Dynamics or a file, got {type(model).__name__}")
    if not Path(model).exists():
        raise InvalidInput(f"model must be given: there is no {model}")
    return Dynamics.of(Ensemble.load(model), propagation=propagation), file_digest(model)


def _read_policy(file: str | PathLike[str], about: Mapping[str, Any]) -> Any:
    """The policy of a run, read as the run read it."""
    if (digest := file_digest(file)) != about.get("policy"):
        raise InvalidInput(f"policy must be the run's, {str(about.get('policy'))[:12]}, got {digest[:12]}")
    if "vecnormalize" in about:
        raise InvalidInput("a policy that needs statistics cannot be read from a run folder: use fit_guard")
    return load_policy(file, std=about.get("policy_std"), sees=about.get("policy_sees"))
