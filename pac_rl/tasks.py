"""The robot's tasks for an engine: rollouts of a policy, plans, training of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from pac_core import GaussianForecast, InvalidInput
from pac_core.bounds import check_integer
from pac_core.certificates import Record
from pac_core.datasets import file_digest
from pac_core.runs import Job, RunFolder, Stage, Task, run_here
from pac_rl.dynamics.ensemble import MOST_ROLLOUTS, Ensemble, Epoch, Settings
from pac_rl.dynamics.forecasts import check_propagation, forecast_closed_loop, forecast_plans, propose_plans
from pac_rl.dynamics.training import Transitions, train
from pac_rl.policies import NOT_NORMALISED, NoisyPolicy, Policy, check_policy, load_policy
from pac_rl.rollouts import BATCH, MOST_SEED, TRAINING_SEEDS, Rollouts, burn_in_range, execute, simulate
from pac_rl.systems import Environment, make_environment

UNITS = BATCH
"""Rollouts of a shard: those that are computed together."""
NEEDS = ("numpy", "torch", "gymnasium", "mujoco", "mbrl")
"""Packages whose versions decide the digits."""
EXTRA_NOISE = (0.0, 0.0, 0.2, 0.5)
"""On the actions of each quarter of the training episodes, so that plans off the policy are covered."""

Arrays: TypeAlias = dict[str, NDArray[Any]]
Engine: TypeAlias = Callable[[Job, RunFolder], Any]
Robot: TypeAlias = str | Callable[[], Environment]
"""A known environment's id, or a function that makes one; workers call it."""


def make_robot(env: Robot) -> Environment:
    """The environment of a robot."""
    return make_environment(env) if isinstance(env, str) else env()


@dataclass(frozen=True)
class StartGroups:
    """Groups of rollouts by a number of their start `[n, D]`: below a bound, between two, or from the last.

    >>> StartGroups("forward velocity", 0, (2.0,))(np.array([[1.0, 9.0], [2.0, 0.0]])).tolist()
    ['forward velocity below 2', 'forward velocity from 2']
    """

    name: str
    number: int
    bounds: tuple[float, ...]

    @classmethod
    def parse(cls, environment: Environment, text: str) -> StartGroups:
        """Of NAME=BOUND,BOUND, where NAME is one of the state's numbers."""
        name, _, ends = text.partition("=")
        with suppress(ValueError):
            bounds = tuple(float(end) for end in ends.split(","))
            if name in environment.names and all(a < b for a, b in pairwise((*bounds, np.inf))):
                return cls(name, environment.names.index(name), bounds)
        rule = f"one of {', '.join(environment.names)}, and rising bounds, as in NAME=1,2"
        raise InvalidInput(f"--group must be {rule}, got {text!r}")

    def __call__(self, start: NDArray[np.float64]) -> NDArray[np.str_]:
        inner = [f"{low:g} to {high:g}" for low, high in pairwise(self.bounds)]
        names = [f"below {self.bounds[0]:g}", *inner, f"from {self.bounds[-1]:g}"]
        place = np.searchsorted(self.bounds, start[:, self.number], side="right")
        return np.array([f"{self.name} {name}" for name in names])[place]


class SimulateRollouts:
    """True rollouts of a policy: `start` `[n, D]`, its `physics`, `truth` `[n, H, D]`, `lengths` `[n]`.

    groups: from starts `[n, D]` to the name of the group of each, `group` `[n]`
    """

    def __init__(
        self,
        env: Robot,
        policy: Policy,
        horizon: int,
        burn_in: tuple[int, int],
        groups: Callable[[Any], Any] | None = None,
        *,
        device: str = "cpu",
    ) -> None:
        self.environment = make_robot(env)
        self.policy = check_policy(self.environment, policy)
        self.horizon, self.burn_in, self.groups = horizon, burn_in, groups

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        seeds = np.asarray(shard.ids)
        done = simulate(self.environment, self.policy, seeds, horizon=self.horizon, burn_in=self.burn_in)
        found = {"ids": done.seeds, "start": done.start, "physics": done.physics}
        if self.groups is not None:
            found["group"] = np.asarray(self.groups(done.start))
        return found | {"truth": done.states, "lengths": done.lengths}


class CarryOutPlans:
    """A plan from each start, fixed before its first step (`propose_plans`): `plans` and what came of it."""

    def __init__(self, env: Robot, policy: Policy, ensemble: Ensemble, *, device: str = "cpu") -> None:
        self.environment = make_robot(env)
        self.policy, self.ensemble = check_policy(self.environment, policy), ensemble.to(device)

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        start, truth, horizon = given["start"], given["truth"], given["truth"].shape[1]
        seeds = np.asarray(shard.ids)
        plans = propose_plans(self.ensemble, self.environment, self.policy, start, seeds, horizon=horizon)
        before = Rollouts(seeds, start, given["physics"], truth, plans, given["lengths"])
        done = execute(self.environment, before, plans)
        return given | {"plans": plans, "truth": done.states, "lengths": done.lengths}


class ForecastRollouts:
    """Adds what the ensemble forecasts of the policy, or of `plans`: `mean` and `var` `[n, H, D]`.

    members: sizes of smaller ensembles, of the first so many members, whose forecasts are added as
        `mean_3` and `var_3` for a size of 3
    also: other propagations, whose forecasts are added as `mean_one-step` and `var_one-step`
    """

    def __init__(
        self,
        env: Robot,
        policy: Policy,
        ensemble: Ensemble,
        propagation: str,
        members: Sequence[int] = (),
        also: Sequence[str] = (),
        *,
        device: str = "cpu",
    ) -> None:
        self.environment = make_robot(env)
        self.policy = check_policy(self.environment, policy)
        for name in (propagation, *also):
            check_propagation(name)
        whole = ensemble.to(device)
        self.kinds: dict[str, tuple[Ensemble, str]] = {"": (whole, propagation)}
        self.kinds |= {f"_{size}": (whole.first(size), propagation) for size in members}
        self.kinds |= {f"_{name}": (whole, name) for name in also}

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        if self.kinds[""][0].trained_on is not None:
            self.kinds[""][0].refuse_seen(shard.ids)
        kept = {"ids", "truth", "lengths", "group"}
        found = {name: array for name, array in given.items() if name in kept}
        for suffix, kind in self.kinds.items():
            forecast = self.forecast(given, *kind)
            found |= {f"mean{suffix}": forecast.mean, f"var{suffix}": forecast.var}
        return found

    def forecast(self, given: Arrays, ensemble: Ensemble, propagation: str) -> GaussianForecast:
        """Where the plans will take the robot, or where there are none, the policy."""
        if "plans" in given:
            return forecast_plans(ensemble, given["start"], given["plans"], propagation=propagation)
        parts = (ensemble, self.environment, self.policy, given["start"])
        return forecast_closed_loop(*parts, horizon=given["truth"].shape[1], propagation=propagation)


class SimulateEpisodes:
    """Episodes from rest to train on: the arrays of `Rollouts`, which `read_rollouts` reads.

    policies, firsts: a group of episodes has the seeds from its first on, and a policy of its own
    """

    def __init__(
        self,
        env: Robot,
        policies: tuple[Policy, ...],
        firsts: tuple[int, ...],
        steps: int,
        batch: int = BATCH,
        *,
        device: str = "cpu",
    ) -> None:
        self.environment, self.steps, self.firsts, self.batch = make_robot(env), steps, firsts, batch
        self.policies = [check_policy(self.environment, policy) for policy in policies]

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        seeds = np.asarray(shard.ids)
        group = np.searchsorted(self.firsts, seeds, side="right") - 1
        usual: Any = {"horizon": self.steps, "burn_in": (0, 0), "batch": self.batch}
        groups = [(self.policies[i], seeds[group == i]) for i in np.unique(group)]
        parts = [simulate(self.environment, *one, **usual) for one in groups]
        found = dict(vars(Rollouts.join(parts)))
        return {"ids": found.pop("seeds"), **found}


@dataclass(frozen=True, eq=False)
class RobotFiles:
    """A policy and an ensemble of files, read as the user says.

    digest: of the ensemble's file
    about: digests of all that acts, for the run's configuration
    known_by: names what acts in the names of units
    """

    env: str
    policy: Policy
    ensemble: Ensemble
    digest: str
    about: dict[str, Any]
    known_by: str

    @classmethod
    def read(
        cls,
        *,
        env: str,
        policy: Path,
        policy_std: float | None = None,
        vecnormalize: str | None = None,
        policy_sees: str | None = None,
        ensemble: Path | Callable[[], Path],
        trained_on: Sequence[str] = (),
    ) -> RobotFiles:
        """ensemble: a file, or what makes it; it is made last, because that may take long
        trained_on: see `_with_training`; a unit that the ensemble was trained on is refused
        """
        acting = load_policy(policy, std=policy_std, vecnormalize=vecnormalize, sees=policy_sees)
        check_policy(make_environment(env), acting)
        file = ensemble() if callable(ensemble) else ensemble
        model = _with_training(Ensemble.load(file), file, trained_on)
        about: dict[str, Any] = {"policy": file_digest(policy), "policy_std": policy_std}
        # Units are named by what acts: what a file says by itself, or is not applied, makes no other units.
        alone = load_policy(policy, std=policy_std, vecnormalize=vecnormalize)
        statistics = None if vecnormalize == NOT_NORMALISED else vecnormalize
        changed = {
            "vecnormalize": None if statistics is None else file_digest(statistics),
            "policy_sees": None if acting.sees == alone.sees else acting.sees,
        }
        about |= {name: value for name, value in changed.items() if value is not None}
        told = hashlib.sha256("/".join(map(str, changed.values())).encode()).hexdigest()
        known_by = about["policy"][:6] + told if any(changed.values()) else about["policy"]
        return cls(env, acting, model, file_digest(file), about, f"{env}/{known_by[:12]}")


def rl_task(
    *,
    horizon: int,
    burn_in: tuple[int, int],
    propagation: str,
    members: Sequence[int],
    plans: bool = False,
    groups: str | None = None,
    cpus: int = 1,
    tune: int,
    calibrate: int,
    test: int,
    seed: int = 0,
    **files: Any,
) -> Task:
    """Rollouts of a policy in a file, or plans near it, forecast by an ensemble in a file: `rollout_task`.

    groups: of the starts, as NAME=BOUND,BOUND, see `StartGroups`
    files: see `RobotFiles.read`
    """
    units: dict[str, Any] = {"tune": tune, "calibrate": calibrate, "test": test, "seed": seed}
    seeds = unit_seeds(**units)
    by = groups and StartGroups.parse(make_environment(files["env"]), groups)
    check_integer("horizon", horizon, least=1)
    burn_in_range(burn_in)
    check_propagation(propagation)
    found = RobotFiles.read(**files)
    return rollout_task(
        found.env,
        found.policy,
        found.ensemble,
        ensemble=found.digest,
        names=[f"{found.known_by}/{unit}" for unit in seeds],
        plans=plans,
        horizon=horizon,
        burn_in=burn_in,
        propagation=propagation,
        members=members,
        groups=by or None,
        cpus=cpus,
        **units,
        **found.about,
    )


def rollout_task(
    env: Robot,
    policy: Policy,
    model: Ensemble,
    /,
    *,
    ensemble: str,
    names: Sequence[str] | None = None,
    plans: bool = False,
    horizon: int = 20,
    burn_in: tuple[int, int] = (0, 200),
    propagation: str = "particles",
    members: Sequence[int] = (),
    also: Sequence[str] = (),
    groups: Callable[[Any], Any] | None = None,
    tune: int,
    calibrate: int,
    test: int,
    seed: int = 0,
    cpus: int = 1,
    **about: Any,
) -> Task:
    """Rollouts of a policy, forecast by an ensemble; the unit is a rollout from its own reset.

    ensemble: the digest of its file, for the certificate
    names: of the units, for ledger and certificate; their seeds by default
    plans: whether what is forecast is a plan that is carried out whatever happens, see `CarryOutPlans`;
        otherwise the policy acts at each step
    members, also: see `ForecastRollouts`
    groups: from starts `[n, D]` to names of groups `[n]`, kept as "group": for `certify_run(groups="group")`
    about: what else decides the result, as JSON can hold it
    """
    seeds = unit_seeds(tune=tune, calibrate=calibrate, test=test, seed=seed)
    if model.trained_on is not None:
        model.refuse_seen(seeds)
    usual: Any = (env, policy, check_integer("horizon", horizon, least=1), burn_in_range(burn_in))
    usual += () if groups is None else (groups,)
    forecasting = (env, policy, model, propagation, tuple(members), tuple(also))
    ForecastRollouts(*forecasting)  # refuses here what would not do there
    planning = [Stage(CarryOutPlans, (env, policy, model), cpus, None, NEEDS)] if plans else []
    simulating = Stage(SimulateRollouts, usual, cpus, 0, NEEDS)
    if also:
        about["also"] = list(also)
    return Task.of(
        "plans" if plans else "rl",
        seeds,
        [simulating, *planning, Stage(ForecastRollouts, forecasting, cpus, None, NEEDS)],
        size=UNITS,
        names=[str(unit) for unit in seeds] if names is None else names,
        unit="rollout",
        model=Record(str(model), digest=ensemble),
        train=model.train_record,
        tune=tune,
        calibrate=calibrate,
        seed=seed,
        env=env if isinstance(env, str) else make_robot(env).id,
        horizon=horizon,
        burn_in=list(burn_in),
        propagation=propagation,
        members=list(members),
        ensemble=ensemble,
        cpus=cpus,
        **about,
    )


def unit_seeds(*, tune: int, calibrate: int, test: int, seed: int) -> range:
    """The seeds of all units of a run, which are also their ids; refused where there are too many."""
    for name, count in (("tune", tune), ("calibrate", calibrate), ("test", test)):
        check_integer(name, count, least=1)
    if check_integer("seed", seed, least=0) > MOST_SEED:
        raise InvalidInput(f"seed must be at most {MOST_SEED:,}, so that units have seeds, got {seed}")
    if (units := tune + calibrate + test) >= TRAINING_SEEDS:
        raise InvalidInput(f"units must be fewer than {TRAINING_SEEDS:,}, got {units:,}")
    return range(2 * TRAINING_SEEDS * seed, 2 * TRAINING_SEEDS * seed + units)


def _with_training(model: Ensemble, file: Path, stated: Sequence[str]) -> Ensemble:
    """The ensemble with the rollouts it was trained on: what its file says, or else what is stated.

    stated: seeds, as "7" or "1000..1999", or the one word "unknown"
    """
    if model.trained_on is not None:
        if stated:
            raise InvalidInput(f"--trained-on must not be given: {file} says what it was trained on")
        return model
    if not stated:
        hint = "give their seeds as --trained-on FIRST..LAST, or unknown, as the certificate then says"
        raise InvalidInput(f"{file} does not say which rollouts the ensemble was trained on: {hint}")
    if [*stated] == ["unknown"]:
        return model
    ends = [text.split("..") for text in stated]
    if not all(len(pair) <= 2 and all(end.isdecimal() for end in pair) for pair in ends):
        raise InvalidInput(f"--trained-on must be a seed, FIRST..LAST or unknown, got {', '.join(stated)}")
    parts = [range(int(pair[0]), int(pair[-1]) + 1) for pair in ends]
    if not all(parts) or max(part[-1] for part in parts) >= 2**63 or sum(map(len, parts)) > MOST_ROLLOUTS:
        rule = f"1 to {MOST_ROLLOUTS:,} seeds below 2**63, the first one first"
        raise InvalidInput(f"--trained-on must be {rule}, got {', '.join(stated)}")
    return replace(model, trained_on=np.concatenate([np.array(part, dtype=np.int64) for part in parts]))


def training_job(env: Robot, policy: Policy, *, episodes: int = 1600, steps: int = 200, seed: int = 0) -> Job:
    """The training episodes: half by the policy itself, the rest with more noise on its actions."""
    check_integer("steps", steps, least=1)
    if check_integer("episodes", episodes, least=1) >= TRAINING_SEEDS:
        raise InvalidInput(f"episodes must be fewer than {TRAINING_SEEDS:,}, got {episodes:,}")
    first = unit_seeds(tune=1, calibrate=1, test=1, seed=seed)[0] + TRAINING_SEEDS
    groups = np.array_split(first + np.arange(episodes), len(EXTRA_NOISE))
    policies = tuple(NoisyPolicy(policy, extra) for extra in EXTRA_NOISE)
    firsts = tuple(int(part[0]) if len(part) else first + episodes for part in groups)
    stage = Stage(SimulateEpisodes, (env, policies, firsts, steps), needs=NEEDS)
    return Job.of("episodes", range(first, first + episodes), [stage], size=UNITS, unit="episode")


def read_rollouts(job: Job, folder: RunFolder) -> Rollouts:
    """The rollouts of a finished job of `SimulateEpisodes`."""
    found = read_arrays(job, folder)
    return Rollouts(seeds=found.pop("ids"), **found)


def train_ensemble(
    folder: RunFolder | str | Path,
    env: Robot,
    policy: Policy,
    settings: Settings | None = None,
    *,
    episodes: int = 1600,
    steps: int = 200,
    seed: int = 0,
    engine: Engine = run_here,
    device: str | torch.device = "cpu",
    progress: Callable[[Epoch], Any] | None = None,
) -> Ensemble:
    """The dynamics model of a run, trained on episodes of its policy; kept in `model/` of the run folder.

    Its episodes are a job of their own; training goes on from the epoch at which it was interrupted, and
    what is finished is read again.

    device: what trains
    """
    place = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    if not place.local:
        raise InvalidInput("--ensemble must be given where the run folder is a URL: train it first")
    home, robot = Path(place.root) / "model", make_robot(env)
    job = training_job(env, check_policy(robot, policy), episodes=episodes, steps=steps, seed=seed)
    data = RunFolder(home / "episodes")
    engine(job, data)
    parts = (home / "ensemble.safetensors", lambda: Transitions.of(read_rollouts(job, data)), robot.id)
    return fit_ensemble(*parts, settings or Settings(), device=device, progress=progress)


def fit_ensemble(
    file: Path,
    transitions: Callable[[], Transitions],
    env: str,
    settings: Settings,
    *,
    device: str | torch.device = "cpu",
    progress: Callable[[Epoch], Any] | None = None,
) -> Ensemble:
    """The ensemble of a file, or one that is trained, with a checkpoint beside the file, and written to it.

    Refuses a file that was trained with other settings, or that does not say what it was trained on.
    """
    if file.exists():
        known = Ensemble.load(file, device)
        if known.trained_on is None:
            raise InvalidInput(
                f"{file} does not say which rollouts it was trained on: remove it to train anew"
            )
        if known.settings != settings:
            raise InvalidInput(f"{file} was trained with other settings: remove it, and it is trained anew")
        return known
    checkpoint = file.with_name(f"{file.stem}-training.safetensors")
    made = train(transitions(), env, settings, device=device, checkpoint=checkpoint, progress=progress)
    made.save(file)
    checkpoint.unlink()
    return made


def read_arrays(job: Job, folder: RunFolder) -> Arrays:
    """All arrays of a finished job, with a row for each unit."""
    parts = [arrays for _, arrays in folder.over(job.shards, lambda shard, arrays: arrays)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
