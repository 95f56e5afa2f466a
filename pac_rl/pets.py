"""PETS with the guard in its loop: CEM's guarded episodes, replays as fresh units, a tube each round."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pac_core import GaussianForecast, InvalidInput, LinearFeatures, PACLevel, Predictor, TubeChecker, certify
from pac_core.arrays import check_returned, round_up
from pac_core.bounds import check_integer, max_errors
from pac_core.safety import Limit
from pac_core.tubes import fit_shape
from pac_rl.dynamics import Ensemble, Settings
from pac_rl.forecasts import forecast_plans, plan_tensor, start_tensor
from pac_rl.planning.controller import candidates_around, member_trajectories
from pac_rl.planning.episodes import broken_limits
from pac_rl.planning.guard import (
    Fallback,
    Guard,
    GuardedAgent,
    MemberForecast,
    Reward,
    TubeMaker,
    guard_plans,
)
from pac_rl.policies import Function, NoisyPolicy, Policy
from pac_rl.rollouts import MOST_SEED, TRAINING_SEEDS, Rollouts, Simulator, execute, observed, simulate
from pac_rl.systems import Environment, Floats, at_every_step, require_module
from pac_rl.training import Transitions, train

SPREADS = (0.0, 0.1, 0.3)
"""Deviations of the noise on replayed actions; each unit draws one of them."""


def rest_policy(environment: Environment, *, std: float = 0.0) -> Function:
    """A policy that does nothing, but for noise of this deviation."""
    seen = environment.view(np.zeros((1, len(environment.names)))).shape[1]
    width = len(environment.low)
    return Function(lambda observed: np.zeros((len(observed), width)), seen, width, std=std)


def replay(
    environment: Environment, recorded: Rollouts, seeds: NDArray[np.int64], *, horizon: int
) -> Rollouts:
    """A unit for each seed: from its own reset, a recorded episode is replayed with noise up to a drawn step.

    The `horizon` actions from there on are its plan, and `states` what they led to. Which episode, step and
    noise is drawn from the seed, so given what was recorded, units are independent. A unit whose simulation
    diverged or ended before its plan did is infinite: it counts as an error.
    """
    check_integer("horizon", horizon, least=1)
    longest = recorded.actions.shape[1]
    if horizon > longest:
        raise InvalidInput(f"horizon must be at most the {longest} steps that were recorded, got {horizon}")
    draws = [np.random.default_rng((2, int(seed))) for seed in seeds]
    picked = np.array([draw.integers(len(recorded.seeds)) for draw in draws])
    begins = np.array([draw.integers(longest - horizon + 1) for draw in draws])
    shape = recorded.actions.shape[1:]
    noise = np.stack([draw.choice(SPREADS) * draw.standard_normal(shape) for draw in draws])
    at_rest = simulate(environment, rest_policy(environment), seeds, horizon=1, burn_in=(0, 0))
    done = execute(environment, at_rest, recorded.actions[picked] + noise)
    rows, window = np.arange(len(seeds)), begins[:, None] + np.arange(horizon)
    start, states = done.before[rows, begins], done.states[rows[:, None], window]
    ended = done.lengths < begins + horizon
    return Rollouts(
        done.seeds,
        np.where(np.isfinite(start), start, 0.0),
        done.physics,
        np.where(ended[:, None, None], np.inf, states),
        done.actions[rows[:, None], window],
        np.full(len(seeds), horizon),
    )


@dataclass(frozen=True)
class Search:
    """How CEM searches for a plan."""

    horizon: int = 12
    """steps of a plan"""
    checked: int = 6
    """of them, the first ones, that are in the tube"""
    population: int = 150
    iterations: int = 3
    elites: float = 0.1
    """share of the population that the next one is drawn around"""

    def __post_init__(self) -> None:
        for name in ("horizon", "checked", "population", "iterations"):
            check_integer(name, getattr(self, name), least=1)
        if self.checked > self.horizon or not 0 < self.elites < 1:
            got = f"{self.checked} of {self.horizon} and {self.elites}"
            raise InvalidInput(f"checked must be at most horizon, and elites lie between 0 and 1, got {got}")


def forecast_with_members(
    ensemble: Ensemble, starts: Tensor, plans: Tensor, *, members: bool, batch: int
) -> GaussianForecast:
    """One-step forecasts of plans `[N, H, A]`; with the way of each member, if the guard looks at those."""
    made = forecast_plans(ensemble, starts, plans, propagation="one-step", batch=batch)
    if not members:
        return made
    with torch.no_grad():
        origin, given = start_tensor(ensemble, starts), plan_tensor(ensemble, starts, plans)
        return MemberForecast(made.mean, made.var, member_trajectories(ensemble, origin, given))


def guarded_cem(
    environment: Environment,
    ensemble: Ensemble,
    predictor: TubeMaker,
    limits: tuple[Limit, ...],
    reward: Reward,
    *,
    search: Search | None = None,
    policy: Policy | None = None,
    fallback: Fallback,
) -> GuardedAgent:
    """mbrl-lib's CEM by returns along the forecast's mean, unsafe plans below all safe ones.

    predictor: of tubes, such as a `Predictor` or `FittedTubes`
    policy: where each search begins; by default, where the last one ended
    """
    search, checker = search or Search(), TubeChecker(at_every_step(limits))
    options: dict[str, Any] = {"num_iterations": search.iterations, "elite_ratio": search.elites}
    options |= {"alpha": 0.1, "population_size": search.population, "device": str(ensemble.device)}
    cem = require_module("omegaconf").OmegaConf.create({"_target_": "mbrl.planning.CEMOptimizer", **options})
    bounds = (environment.low, environment.high, search.horizon)
    agent = require_module("mbrl.planning").TrajectoryOptimizerAgent(cem, *bounds)
    if policy is not None:
        search_on = agent.plan

        def plan_from_policy(observation: Floats) -> Any:
            """The agent's search, begun at what the policy would do along the predicted mean."""
            first = agent.optimizer.initial_solution
            options: Any = {"horizon": len(first), "factors": (1.0,)}
            found = candidates_around(policy, ensemble, environment, observation[None], **options)
            agent.optimizer.previous_solution = found.plans[0, 0].to(first)
            return search_on(observation)

        agent.plan = plan_from_policy
    members = getattr(predictor, "members", False)
    forecast = partial(forecast_with_members, ensemble, members=members, batch=search.population)
    guard = Guard(checker, predictor, fallback, search.checked)
    return GuardedAgent(agent, guard_plans(None, forecast, guard, reward=reward))


def plan_episode(environment: Environment, agent: GuardedAgent, seed: int, *, steps: int) -> Rollouts:
    """One episode of the agent from rest; all that is random in it comes from its seed."""
    simulator = Simulator(environment)
    physics = environment.reset(int(np.random.default_rng(seed).integers(2**31)))[None]
    start = observed(environment, physics, physics, np.zeros(1, bool))
    made = Rollouts.begin(environment, np.array([seed]), start, physics.copy(), steps)
    alive, state = np.arange(1), start[0]
    agent.reset()
    with torch.random.fork_rng(devices=[]):  # CEM draws from the global generator
        torch.manual_seed(seed)
        for t in range(steps):
            action = agent.act(state)[None]
            stepped = simulator.step(physics, alive, action)
            alive = made.record(t, alive, action, *stepped)
            if not len(alive):
                break
            state = stepped[0][0]
    return made


def score_episodes(
    rollouts: Rollouts, limits: tuple[Limit, ...], reward: Reward
) -> tuple[Floats, NDArray[np.bool_]]:
    """`[N]` return and `[N]` whether any limit was broken; a simulation that diverged broke them all."""
    taken = rollouts.acted
    lost = np.asarray(~np.isfinite(rollouts.states).all(axis=2))
    known = np.where(lost[..., None], 0.0, rollouts.states)
    given = reward(torch.from_numpy(known), torch.from_numpy(rollouts.actions))
    rewards = check_returned("reward", given, lost.shape, known)
    returns = np.asarray(np.where(taken & ~lost, rewards, 0.0).sum(axis=1))
    # State by state, as for all episodes: the steps of a limit are those of a plan, not of an episode.
    broken = broken_limits(limits, rollouts.states.reshape(-1, known.shape[2])).any(axis=1)
    return returns, np.asarray((broken.reshape(lost.shape) & taken).any(axis=1))


NOISE = 0.3
"""On the actions of a warm start's policy, so that the model sees more than the policy's own way."""


@dataclass(frozen=True)
class Loop:
    """How much of everything.

    Round i may cost delta / (i (i + 1)), so that all rounds together, however many, cost less than delta.
    """

    rounds: int = 6
    episodes: int = 2
    """collected by the guarded planner in each round"""
    random: int = 8
    """episodes of random actions before the first round"""
    warm: int = 0
    """episodes of a policy, with noise, before the first round: a warm start"""
    steps: int = 200
    """of an episode"""
    tune: int = 400
    calibrate: int = 800
    """fresh units of each round"""
    level: PACLevel = field(default_factory=lambda: PACLevel(0.1, 0.05))
    search: Search = field(default_factory=Search)
    settings: Settings = field(default_factory=lambda: Settings(hidden=96, layers=3, epochs=20, batch=128))
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "episodes", "random", "steps", "tune", "calibrate"):
            check_integer(name, getattr(self, name), least=1)
        check_integer("warm", self.warm, least=0)
        check_integer("seed", self.seed, least=0)
        if self.search.horizon > self.steps or self.seed > MOST_SEED:
            rule = (
                f"steps must be at least the {self.search.horizon} of a plan and seed at most {MOST_SEED:,}"
            )
            raise InvalidInput(f"{rule}, got {self.steps} and {self.seed}")
        max_errors(self.calibrate, self.level_of(self.rounds))  # refused now, not after hours

    def level_of(self, number: int) -> PACLevel:
        """What round `number`, from 1, may cost.

        >>> [round(Loop().level_of(i).delta, 4) for i in (1, 2, 3)]
        [0.025, 0.0083, 0.0042]
        """
        return PACLevel(self.level.epsilon, self.level.delta / (number * (number + 1)))


@dataclass(frozen=True, eq=False)
class Round:
    """What a round of the loop came to.

    ensemble, predictor: trained on what was there before, and its tubes
    collected: episodes of the planner
    returns, violated: `[episodes]` of these, and whether each broke a limit
    fallbacks, decisions: in these episodes
    """

    number: int
    ensemble: Ensemble
    predictor: Predictor
    collected: Rollouts
    returns: Floats
    violated: NDArray[np.bool_]
    fallbacks: int
    decisions: int

    def __str__(self) -> str:
        return (
            f"round {self.number}: model error {self.ensemble.history[-1].best:.3f}, "
            f"T = {round_up(self.predictor.threshold.value, 3)}, return {self.returns.mean():.1f}, "
            f"{int(self.violated.sum())} of {len(self.violated)} episodes broke a limit, "
            f"the fallback acted {self.fallbacks} of {self.decisions} times"
        )


def run_pets(
    environment: Environment,
    limits: tuple[Limit, ...],
    features: LinearFeatures,
    reward: Reward,
    *,
    ledger: str | os.PathLike[str],
    loop: Loop | None = None,
    policy: Policy | None = None,
    fallback: Fallback,
    progress: Callable[[str], Any] | None = None,
) -> Iterator[Round]:
    """Rounds of PETS on the robot, each with a new model, new tubes and episodes of the guarded planner.

    features: what the limits read; tubes are intervals of these numbers
    ledger: a folder; each round's units go into it before they are looked at
    policy: of the warm start, see `Loop.warm`; each search for a plan begins with it, too
    fallback: what acts where no plan is safe, see `Fallback`
    progress: called with a line whenever a part of a round is done

    What a round promises is its tube, for plans drawn like its calibration plans: what was done before,
    replayed with noise from a fresh reset. Nothing is promised of the plan that CEM picks, nor of episodes:
    for that, stop learning and certify the controller of the last round on fresh episodes (`descend`), with
    seeds that the loop did not use: it takes them in order from 2,000,000,000 times its own on.
    """
    loop, say = loop or Loop(), progress or (lambda line: None)
    TubeChecker(at_every_step(limits))  # refused now, not after a round
    if (policy is None) != (loop.warm == 0):
        raise InvalidInput(f"policy must be given for a warm start and only then, got warm={loop.warm}")
    counter = itertools.count(2 * TRAINING_SEEDS * loop.seed)

    def fresh_seeds(count: int) -> NDArray[np.int64]:
        return np.fromiter(counter, np.int64, count)

    def recorded(by: Policy, count: int) -> Rollouts:
        return simulate(environment, by, fresh_seeds(count), horizon=loop.steps, burn_in=(0, 0))

    rollouts = [recorded(rest_policy(environment, std=1.0), loop.random)]
    if policy is not None:
        rollouts.append(recorded(NoisyPolicy(policy, NOISE), loop.warm))
    for number in range(1, loop.rounds + 1):
        transitions = Transitions.join([Transitions.of(part) for part in rollouts])
        ensemble = train(transitions, environment.id, loop.settings)
        say(f"round {number}: trained on {len(transitions.states):,} steps")
        # Tubes for this very model, from fresh units: those of another model promise nothing of it.
        fresh = fresh_seeds(loop.tune + loop.calibrate)
        units = replay(environment, rollouts[-1], fresh, horizon=loop.search.checked)
        made = certify(
            forecast_plans(ensemble, units.start, units.actions, propagation="one-step"),
            units.truth,
            loop.level_of(number),
            ids=[f"loop/{seed}" for seed in fresh.tolist()],
            tune=loop.tune,
            calibrate=loop.calibrate,
            ledger=ledger,
            fit=partial(fit_shape, shape="features", features=features),
            unit="replayed plan",
            train_ids=[f"loop/{seed}" for seed in np.asarray(ensemble.trained_on).tolist()],
            train="recorded episodes",
        )
        predictor = made.certificates[0].predictor
        options: Any = {"search": loop.search, "policy": policy, "fallback": fallback}
        agent = guarded_cem(environment, ensemble, predictor, limits, reward, **options)
        own = fresh_seeds(loop.episodes).tolist()
        collected = Rollouts.join([plan_episode(environment, agent, seed, steps=loop.steps) for seed in own])
        rollouts.append(collected)
        told = (*score_episodes(collected, limits, reward), agent.fallbacks, agent.decisions)
        found = Round(number, ensemble, predictor, collected, *told)
        say(str(found))
        for remark in predictor.remarks:
            say(f"round {number}: {remark}")
        yield found
