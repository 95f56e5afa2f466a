"""What a worker does with a range of rollouts or episodes: simulate them, forecast them, run them.

Plain classes, made once per worker and called once per shard: ``scorer(shard, given) -> arrays``, where
``shard.ids`` are seeds. A rollout depends on its seed alone, so any cut gives the same bits as long as
shards begin at multiples of `UNITS`; those of episodes, at multiples of `EPISODES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pac_core import InvalidInput, refuse_overlap
from pac_rl import runs
from pac_rl.controllers import Controller, cheetah_reward
from pac_rl.ensembles import Ensemble
from pac_rl.environments import make_environment
from pac_rl.episodes import run_episodes
from pac_rl.forecasts import PROPAGATIONS, closed_loop
from pac_rl.limits import Limit
from pac_rl.planned import PlanTubes, Search, guarded_cem, outcomes, plan_episode
from pac_rl.policies import Policy, fitting
from pac_rl.scaled_tubes import Tubes
from pac_rl.selections import run_to_selection
from pac_rl.trajectories import BATCH, Rollouts, simulate

UNITS = BATCH
"""Rollouts of a shard: those that are computed together."""
EPISODES = runs.BATCH
"""Episodes of a shard: those that are computed together."""
NEEDS = ("numpy", "torch", "gymnasium", "mujoco", "mbrl")
"""Packages whose versions decide the digits."""

Arrays: TypeAlias = dict[str, NDArray[Any]]


class SimulateRollouts:
    """True rollouts of a policy: `start` `[n, D]`, `truth` `[n, H, D]`, `lengths` `[n]`."""

    def __init__(
        self, env: str, policy: Policy, horizon: int, burn_in: tuple[int, int], *, device: str = "cpu"
    ) -> None:
        self.environment = make_environment(env)
        self.policy = fitting(self.environment, policy)
        self.horizon, self.burn_in = horizon, burn_in

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        seeds = np.asarray(shard.ids)
        done = simulate(self.environment, self.policy, seeds, horizon=self.horizon, burn_in=self.burn_in)
        return {"ids": done.seeds, "start": done.start, "truth": done.states, "lengths": done.lengths}


class ForecastRollouts:
    """Adds what the ensemble forecasts: `mean` and `var` `[n, H, D]`.

    members: sizes of smaller ensembles, of the first so many members, whose forecasts are added as
        `mean_3` and `var_3` for a size of 3
    """

    def __init__(
        self,
        env: str,
        policy: Policy,
        ensemble: Ensemble,
        propagation: str,
        members: Sequence[int] = (),
        *,
        device: str = "cpu",
    ) -> None:
        self.environment = make_environment(env)
        self.policy = fitting(self.environment, policy)
        if propagation not in PROPAGATIONS:
            raise InvalidInput(f"propagation must be one of {', '.join(PROPAGATIONS)}, got {propagation!r}")
        whole = ensemble.to(device)
        self.ensembles = {"": whole} | {f"_{size}": whole.first(size) for size in members}
        self.propagation = propagation

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        if self.ensembles[""].trained_on is not None:
            self.ensembles[""].refuse_seen(shard.ids)
        horizon = given["truth"].shape[1]
        found = {name: given[name] for name in ("ids", "truth", "lengths")}
        for suffix, ensemble in self.ensembles.items():
            forecast = closed_loop(
                ensemble,
                self.environment,
                self.policy,
                given["start"],
                horizon=horizon,
                propagation=self.propagation,
            )
            found |= {f"mean{suffix}": forecast.mean, f"var{suffix}": forecast.var}
        return found


class RunEpisodes:
    """Whole episodes of a guarded controller: the arrays of `Episodes`.

    steps: of an episode
    options: of `Controller`: its fallback, and others such as its horizon
    """

    def __init__(
        self,
        env: str,
        policy: Policy,
        ensemble: Ensemble,
        limits: tuple[Limit, ...],
        guard: Tubes | None,
        steps: int,
        options: dict[str, Any],
        *,
        device: str = "cpu",
    ) -> None:
        parts = (make_environment(env), ensemble.to(device), policy, limits, guard)
        self.controller, self.steps = Controller(*parts, **options), steps

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        done = run_episodes(self.controller, np.asarray(shard.ids), steps=self.steps)
        names = ("errors", "returns", "unbroken", "violated", "violation_steps", "fallbacks", "decisions")
        return {"ids": done.seeds} | {name: getattr(done, name) for name in names}


class RunSelections(RunEpisodes):
    """One decision of each episode and what came of it: the arrays of `Selections`."""

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        done = run_to_selection(self.controller, np.asarray(shard.ids), steps=self.steps)
        names = ("steps", "errors", "accepted", "unsafe")
        return {"ids": done.seeds} | {name: getattr(done, name) for name in names}


class PlanEpisodes:
    """Whole episodes of mbrl-lib's CEM on a half-cheetah, one after the other, with a guard's tubes.

    kept: what the guard checks; limits: what is counted, which without a guard is more
    policy: where each search begins
    """

    def __init__(
        self,
        env: str,
        policy: Policy | None,
        ensemble: Ensemble,
        limits: tuple[Limit, ...],
        kept: tuple[Limit, ...],
        guard: Tubes,
        search: Search,
        steps: int = 200,
        *,
        device: str = "cpu",
    ) -> None:
        self.environment, self.limits, self.steps = make_environment(env), limits, steps
        model = ensemble.to(device)
        self.trained_on = model.trained_on
        tubes = PlanTubes(model, guard, search.population)
        self.agent = guarded_cem(
            self.environment,
            model,
            tubes,
            kept,
            cheetah_reward,
            search=search,
            policy=policy,
            fallback="hold",  # a half-cheetah that is not driven comes to rest
        )

    def __call__(self, shard: Any, given: Arrays) -> Arrays:
        if self.trained_on is not None:
            refuse_overlap({"train": self.trained_on, "episodes": shard.ids})
        done, fallbacks = [], []
        for seed in np.asarray(shard.ids).tolist():
            before = self.agent.fallbacks
            done.append(plan_episode(self.environment, self.agent, seed, steps=self.steps))
            fallbacks.append(self.agent.fallbacks - before)
        whole = Rollouts.join(done)
        returns, errors = outcomes(whole, self.limits, cheetah_reward)
        fastest = np.where(np.isfinite(whole.states[..., 0]), whole.states[..., 0], np.inf).max(axis=1)
        counts = {"fallbacks": np.array(fallbacks), "fastest": fastest}
        return {"ids": whole.seeds, "errors": errors, "returns": returns, **counts}
