"""Episodes of mbrl-lib's CEM, guarded: what it does in the simulator, seed by seed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pac_core import GaussianForecast, InvalidInput, TubeChecker
from pac_core.arrays import returned
from pac_core.bounds import whole
from pac_rl.agents import GuardedAgent
from pac_rl.candidates import candidates_around, ways_of_members
from pac_rl.ensembles import Ensemble
from pac_rl.environments import Environment, required
from pac_rl.fallbacks import Fallback
from pac_rl.forecasts import as_tensor, for_plans, starting
from pac_rl.guards import Guard, MakesTubes, MemberForecast, Reward, guard_plans
from pac_rl.limits import Limit, at_every_step
from pac_rl.policies import Policy
from pac_rl.runs import broken_limits
from pac_rl.simulators import Simulator, observed
from pac_rl.trajectories import Rollouts, Track


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
            whole(name, getattr(self, name), least=1)
        if self.checked > self.horizon or not 0 < self.elites < 1:
            raise InvalidInput(
                "checked must be at most horizon, and elites lie between 0 and 1, got "
                f"{self.checked} of {self.horizon} and {self.elites}"
            )


def forecast_plans(
    ensemble: Ensemble, starts: Tensor, plans: Tensor, *, members: bool, batch: int
) -> GaussianForecast:
    """One-step forecasts of plans `[N, H, A]`; with the way of each member, if the guard looks at those."""
    made = for_plans(ensemble, starts, plans, propagation="one-step", batch=batch)
    if not members:
        return made
    with torch.no_grad():
        origin, given = starting(ensemble, starts), as_tensor("plans", plans, ensemble)
        return MemberForecast(made.mean, made.var, ways_of_members(ensemble, origin, given))


def guarded_cem(
    environment: Environment,
    ensemble: Ensemble,
    predictor: MakesTubes,
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
    options: dict[str, Any] = {
        "num_iterations": search.iterations,
        "elite_ratio": search.elites,
        "alpha": 0.1,
    }
    options |= {"population_size": search.population, "device": str(ensemble.device)}
    cem = required("omegaconf").OmegaConf.create({"_target_": "mbrl.planning.CEMOptimizer", **options})
    bounds = (environment.low, environment.high, search.horizon)
    agent = required("mbrl.planning").TrajectoryOptimizerAgent(cem, *bounds)
    if policy is not None:
        agent.plan = partial(_plan_from_policy, agent, agent.plan, (policy, ensemble, environment))
    members = getattr(predictor, "members", False)
    forecast = partial(forecast_plans, ensemble, members=members, batch=search.population)
    guard = Guard(checker, predictor, fallback, search.checked)
    return GuardedAgent(agent, guard_plans(None, forecast, guard, reward=reward))


def _plan_from_policy(agent: Any, plan: Any, around: Any, observation: NDArray[np.float64]) -> Any:
    """The agent's search, begun at what a policy would do along the predicted mean."""
    first = agent.optimizer.initial_solution
    policy, ensemble, environment = around
    start, options = observation[None], {"horizon": len(first), "factors": (1.0,)}
    found = candidates_around(policy, ensemble, environment, start, **options)  # type: ignore[arg-type]
    agent.optimizer.previous_solution = found.plans[0, 0].to(first)
    return plan(observation)


def plan_episode(environment: Environment, agent: GuardedAgent, seed: int, *, steps: int) -> Rollouts:
    """One episode of the agent from rest; all that is random in it comes from its seed."""
    simulator = Simulator(environment)
    physics = environment.reset(int(np.random.default_rng(seed).integers(2**31)))[None]
    start, origin = observed(environment, physics, physics, np.zeros(1, bool)), physics.copy()
    track, alive, state = Track.empty(environment, 1, steps), np.arange(1), start[0]
    agent.reset()
    with torch.random.fork_rng(devices=[]):  # CEM draws from the global generator
        torch.manual_seed(seed)
        for t in range(steps):
            action = agent.act(state)[None]
            stepped = simulator.step(physics, alive, action)
            alive = track.record(t, alive, action, *stepped)
            if not len(alive):
                break
            state = stepped[0][0]
    return Rollouts(np.array([seed]), start, origin, track.states, track.actions, track.lengths)


def outcomes(
    rollouts: Rollouts, limits: tuple[Limit, ...], reward: Reward
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """`[N]` return and `[N]` whether any limit was broken; a simulation that diverged broke them all."""
    taken = np.arange(rollouts.states.shape[1]) < rollouts.lengths[:, None]
    lost = np.asarray(~np.isfinite(rollouts.states).all(axis=2))
    known = np.where(lost[..., None], 0.0, rollouts.states)
    given = reward(torch.from_numpy(known), torch.from_numpy(rollouts.actions))
    rewards = returned("reward", given, lost.shape, known)
    returns = np.asarray(np.where(taken & ~lost, rewards, 0.0).sum(axis=1))
    # State by state, as for all episodes: the steps of a limit are those of a plan, not of an episode.
    broken = broken_limits(limits, rollouts.states.reshape(-1, known.shape[2])).any(axis=1)
    return returns, np.asarray((broken.reshape(lost.shape) & taken).any(axis=1))
