"""The guard inside other people's planners: mbrl-lib's CEM, iCEM and MPPI, TorchRL's CEM and MPPI."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from array_api_compat import array_namespace, is_torch_array
from numpy.typing import NDArray
from torch import Tensor

from pac_core import GaussianForecast, InvalidInput
from pac_core.arrays import Array
from pac_core.bounds import check_integer
from pac_rl.planning.guard import (
    FLOOR,
    UNKNOWN,
    WORST,
    Evaluate,
    GuardedPlans,
    Reward,
    check_fallback,
    guard_plans,
    ranked_safe,
)
from pac_rl.planning.planners import Cost, price_plans
from pac_rl.systems.functions import Floats, Lazy, Rngs, require_module

if TYPE_CHECKING:
    from pac_rl.dynamics.model import Dynamics
    from pac_rl.planning.fitting import FittedGuard


class GuardedAgent:
    """A `TrajectoryOptimizerAgent` that carries out only plans that were checked.

    The planners may return a plan that they never evaluated (a mean of good ones), and means of safe
    plans need not be safe. So a plan that was not seen while planning is checked; if it is unsafe,
    the best safe plan that was seen is taken; if there was none, the fallback acts. Where a plan serves for
    several actions (`replan_freq`), what is left of it is checked anew from each observation, and given up
    for a new plan if that is unsafe, or shorter than the tube: a tube without a horizon of its own is of a
    whole plan, so that every action gets a new one.

    agent: mbrl-lib's, with CEM, iCEM or MPPI; its objective is set to `plans`
    plans: the guarded objective, of a guard with a fallback

    decisions: how often it planned; replaced: how often the best safe plan stood in for the planner's
    own; fallbacks: how often no plan was safe; reason: of the last check, in words
    """

    def __init__(self, agent: Any, plans: GuardedPlans) -> None:
        guard = plans.guard
        check_fallback(guard.fallback)
        if guard.horizon is not None and (every := agent.replan_freq) > guard.horizon:
            raise InvalidInput(f"replan_freq must be at most the tube's {guard.horizon} steps, got {every}")
        self.agent, self.plans, self.guard = agent, plans, guard
        self.decisions = self.replaced = self.fallbacks = 0
        self.reason = ""
        self._plan: Floats = np.zeros((0, 0))
        self._waiting = 0  # actions at the head of the plan that may still be carried out
        self._best: tuple[float, Array | None] = (-np.inf, None)
        agent.set_trajectory_eval_fn(self._watched)

    def act(self, observation: Any, **_: Any) -> Floats:
        """`[A]` the next action: of a plan that is safe from this observation on, or the fallback's."""
        # What is left of a plan and shorter than the tube is not known to be safe; a tube without a horizon
        # is as long as the plan was, of which something is carried out.
        whole = self.guard.horizon is not None and len(self._plan) >= self.guard.horizon
        known = np.isfinite(np.asarray(observation)).all()
        if not (self._waiting and whole and known and self._is_safe(observation, self._plan)):
            plan, self._waiting = self.safe_plan(observation), 0
            if plan is None:
                self.fallbacks += 1
                bounds = (self.agent.optimizer_args[end] for end in ("action_lb", "action_ub"))
                low, high = (np.asarray(end, dtype=np.float64) for end in bounds)
                return self.guard.act(observation, low, high, self.reason)
            # Not beyond the tube, even if replan_freq was changed since.
            self._plan, self._waiting = plan, len(plan[: self.guard.horizon][: self.agent.replan_freq])
        action, self._plan, self._waiting = self._plan[0], self._plan[1:], self._waiting - 1
        return np.asarray(action)

    def safe_plan(self, observation: Any) -> Floats | None:
        """`[H, A]` a plan that was checked safe, or None; from a state that is not finite, none is."""
        self.decisions += 1
        self._best = (-np.inf, None)
        if not np.isfinite(np.asarray(observation)).all():
            self.reason = UNKNOWN
            return None
        plan = np.asarray(self.agent.plan(observation))
        width = len(np.asarray(self.agent.optimizer_args["action_lb"]))
        if plan.ndim != 2 or not len(plan) or plan.shape[1] != width:
            raise InvalidInput(f"the agent's plan must have shape [H, {width}], got {plan.shape}")
        seen = None if self._best[1] is None else self._best[1].cpu().numpy()
        if seen is not None and np.array_equal(plan, seen):
            self.reason = "safe: checked while planning"
        elif not self._is_safe(observation, plan):
            if seen is None:
                return None
            self.replaced += 1
            plan = seen
        return np.asarray(plan, dtype=np.float64)

    def reset(self, planning_horizon: int | None = None) -> None:
        """Forgets the last plan, and what iCEM and MPPI keep of it: an episode begins afresh.

        mbrl-lib's own reset leaves those two, so that one episode would lean on the one before.
        """
        self.agent.reset(planning_horizon)
        self._waiting = 0
        planner = self.agent.optimizer.optimizer
        if getattr(planner, "elite", None) is not None:
            planner.elite = None
        if is_torch_array(mean := getattr(planner, "mean", None)):
            planner.mean = mean.new_zeros(mean.shape)

    def _is_safe(self, observation: Any, plan: NDArray[Any]) -> bool:
        where = self.agent.optimizer.initial_solution  # on the planner's device
        given = array_namespace(where).asarray(plan[None], device=where.device)
        checked = self.plans.check(observation, given)
        self.reason = checked.reason(0)
        return bool(checked.safe[0])

    def _watched(self, initial_state: Any, plans: Array) -> Array:
        """The guarded values, keeping the best safe plan in mind."""
        values = self.plans(initial_state, plans)
        i = int(values.argmax())
        if ranked_safe(values[i]) and float(values[i]) > self._best[0]:
            self._best = (float(values[i]), plans[i].clone())
        return values


def guard_agent(
    agent: Any, guard: FittedGuard, *, reward: Reward | None = None, evaluate: Evaluate | None = None
) -> GuardedAgent:
    """mbrl-lib's `TrajectoryOptimizerAgent`, guarded: by default with the objective that it has.

    reward: for returns on the mean trajectory of the guard's own forecast, which saves the other pass
    evaluate: another objective
    """
    if reward is None and evaluate is None:
        evaluate = getattr(agent, "trajectory_eval_fn", None)
        if evaluate is None:
            raise InvalidInput("the agent must have an objective where no reward is given, got None")
    return GuardedAgent(agent, guard_plans(evaluate, guard.model, guard.guard, reward=reward))


@dataclass(frozen=True, eq=False)
class SearchPlanner(Lazy):
    """mbrl-lib's CEM, iCEM or MPPI as a `Planner`: it searches from each start without any guard.

    Its candidates are the best of the last population and, as the last one, the plan that the search returns;
    so whichever is carried out is one of them. It begins each search afresh: nothing is kept from one call to
    the next, and all that is random comes from the start's generator.

    optimizer: the configuration of mbrl-lib's optimiser: `_target_` and its settings, without the bounds
    model: by which it searches
    price: see `Cost`
    low, high: `[A]` the range of actions
    candidates: K
    """

    optimizer: Mapping[str, Any]
    model: Dynamics
    price: Cost
    low: Floats
    high: Floats
    candidates: int = 32
    horizon: int = 10

    def __post_init__(self) -> None:
        check_integer("candidates", self.candidates, least=2)
        check_integer("horizon", self.horizon, least=1)
        config = require_module("omegaconf").OmegaConf.create(self.optimizer)
        plain = require_module("omegaconf").OmegaConf.to_container(config, resolve=True)
        object.__setattr__(self, "optimizer", plain)

    def at(self, horizon: int) -> SearchPlanner:
        """The same for plans of H steps."""
        return replace(self, horizon=horizon)

    def propose(self, starts: Floats, rngs: Rngs) -> Floats:
        return np.stack([self._search(start, rng) for start, rng in zip(starts, rngs, strict=True)])

    def cost(self, forecast: GaussianForecast, plans: Floats) -> Floats:
        return price_plans(self.price, forecast, plans)

    @cached_property
    def _fresh(self) -> Any:
        """mbrl-lib's search, before its first call."""
        config = require_module("omegaconf").OmegaConf.create(self.optimizer)
        ends = (np.asarray(end, dtype=np.float64) for end in (self.low, self.high))
        return require_module("mbrl.planning").TrajectoryOptimizer(config, *ends, self.horizon)

    def _search(self, start: Floats, rng: Any) -> Floats:
        """`[K, H, A]` from one start."""
        search = deepcopy(self._fresh)  # iCEM and MPPI remember
        last: list[tuple[Tensor, Tensor]] = []

        def value(plans: Tensor) -> Tensor:
            given = plans.cpu().numpy().astype(np.float64)
            made = self.model(np.repeat(start[None], len(given), axis=0), given)
            whole = GaussianForecast(made.mean[None], made.var[None])
            cost = np.nan_to_num(price_plans(self.price, whole, given[None])[0], nan=FLOOR)
            return torch.as_tensor(-cost.clip(-FLOOR, FLOOR)).to(plans)

        def note(plans: Tensor, values: Tensor, iteration: int) -> None:
            last[:] = [(plans.clone(), values.clone())]

        with torch.random.fork_rng():
            torch.manual_seed(int(rng.integers(2**62)))
            own = search.optimize(value, callback=note)
        population, values = last[0]
        if (least := self.candidates - 1) > len(population):
            rule = f"must be at most one more than the last population's {len(population)} plans"
            raise InvalidInput(f"candidates {rule}, got {self.candidates}")
        best = population[values.argsort(descending=True, stable=True)[:least]].cpu().numpy()
        plans = np.concatenate([best, own[None]]).astype(np.float64)
        return np.asarray(np.clip(plans, self.low, self.high))


def plan_env(
    guard: FittedGuard,
    *,
    reward: Reward | None = None,
    evaluate: Evaluate | None = None,
    low: Any = None,
    high: Any = None,
    horizon: int | None = None,
    observation: str = "observation",
) -> Any:
    """A TorchRL environment for its `CEMPlanner` and `MPPIPlanner`: one action is a whole plan, one step its
    guarded value; make them with `planning_horizon=1`, and hand them to `GuardedPlanner`.

    Planners search over plans either way; but of a plan of several actions they return the first alone, and
    of that nobody can tell whether the plan is safe.

    reward: on the mean trajectory of the guard's own forecast
    evaluate: or another objective, from a state for each plan `[B, D]` and plans `[B, H, A]` to values `[B]`;
        what the state at the end of a plan is worth belongs into it
    low, high: `[A]` the range of actions, by default the guarded system's
    horizon: H, by default the tube's
    observation: the key of the state

    The value is less the best of its population, so that no exponent of MPPI's overflows, or underflows where
    no plan is safe.
    """
    plans = guard_plans(evaluate, guard.model, guard.guard, reward=reward)
    ends = [getattr(guard.base and guard.base.system, name, None) for name in ("low", "high")]
    lower, upper = (
        np.asarray(ours if end is None else end, float) for end, ours in zip((low, high), ends, strict=True)
    )
    steps = horizon or guard.guard.horizon
    if lower.ndim != 1 or lower.shape != upper.shape or steps is None:
        got = f"got {low}, {high} and {horizon}"
        raise InvalidInput(f"low, high and horizon must be given where the guard has none, {got}")
    return _plan_env()(plans, lower, upper, steps, observation)


@lru_cache(maxsize=1)
def _plan_env() -> Any:
    """The class of `plan_env`, made where TorchRL is first needed."""
    envs, data = require_module("torchrl.envs"), require_module("torchrl.data")

    class PlanModel(torch.nn.Module):
        """From states and plans to guarded values; keeps the best safe plan of each start in mind."""

        def __init__(self, plans: GuardedPlans, shape: tuple[int, int], key: str) -> None:
            super().__init__()
            self.plans, self.shape, self.key = plans, shape, key
            self.best: tuple[Tensor, Tensor] | None = None

        def forward(self, given: Any) -> Any:
            starts, wanted = given.get(self.key), given.get("action")
            batch = wanted.shape[:-1]
            flat = wanted.reshape(-1, *self.shape)
            known = flat.isfinite().flatten(1).all(1)
            values = self.plans(starts.reshape(len(flat), -1), torch.where(known[:, None, None], flat, 0))
            values = torch.where(known, values, -WORST).reshape(batch)
            if batch:
                self._note(values, wanted)
                values = values - values.amax(-1, keepdim=True)
            return given.set("reward", values[..., None])

        def _note(self, values: Tensor, plans: Tensor) -> None:
            best, which = values.max(-1)
            found = plans.take_along_dim(which[..., None, None], -2)[..., 0, :]
            if self.best is not None and self.best[0].shape == best.shape:
                better = best > self.best[0]
                best = torch.where(better, best, self.best[0])
                found = torch.where(better[..., None], found, self.best[1])
            self.best = best, found

    class PlanEnv(envs.ModelBasedEnvBase):  # type: ignore[misc, name-defined]
        """See `plan_env`."""

        def __init__(self, plans: GuardedPlans, low: Floats, high: Floats, horizon: int, key: str) -> None:
            super().__init__(PlanModel(plans, (horizon, len(low)), key))
            self.low, self.high, self.key = low, high, key
            ends = (torch.as_tensor(end, dtype=torch.float32).repeat(horizon) for end in (low, high))
            self.action_spec = data.Bounded(*ends, dtype=torch.float32)
            self.observation_spec = data.Composite({key: data.Unbounded((-1,))})
            self.reward_spec = data.Unbounded((1,))

        def _reset(self, given: Any, **_: Any) -> Any:
            raise InvalidInput("the environment of a planner is not reset: it begins where the planner says")

    return PlanEnv


class GuardedPlanner:
    """A TorchRL actor that carries out only plans that were checked: from a tensordict with the state to the
    same with an action.

    As in `GuardedAgent`: the plan that CEM or MPPI returns is a mean of others and was never evaluated. So it
    is checked; if it is unsafe, the best safe plan that was seen is taken, and else the fallback acts.

    planner: TorchRL's, on an environment of `plan_env`, with `planning_horizon=1`
    action: the key to write

    decisions: how often it planned; replaced: how often the best safe plan stood in; fallbacks: how often no
    plan was safe; reasons: of the last check of each state, in words
    """

    def __init__(self, planner: Any, *, action: str = "action") -> None:
        self.planner, self.env = planner, planner.env
        if not hasattr(self.env, "world_model") or not hasattr(self.env.world_model, "plans"):
            raise InvalidInput(
                f"planner must be on an environment of plan_env, got {type(self.env).__name__}"
            )
        if (steps := planner.planning_horizon) != 1:
            raise InvalidInput(f"planning_horizon must be 1, because an action is a plan, got {steps}")
        self.plans, self.guard = self.env.world_model.plans, self.env.world_model.plans.guard
        check_fallback(self.guard.fallback)
        self.action = action
        self.decisions = self.replaced = self.fallbacks = 0
        self.reasons: tuple[str, ...] = ()

    def __call__(self, tensordict: Any) -> Any:  # by this name TorchRL knows that it is an actor
        given = tensordict.get(self.env.key)
        states = given.reshape(-1, given.shape[-1])
        seen = states.isfinite().all(1)
        model, kind = self.env.world_model, self.env.action_spec.dtype
        plans = torch.zeros((len(states), *model.shape), dtype=kind, device=given.device)
        safe, reasons = torch.zeros_like(seen), [UNKNOWN] * len(states)
        if bool(seen.any()):
            plans[seen], safe[seen], why = self._search(states[seen])
            for i, reason in zip(seen.nonzero().flatten().tolist(), why, strict=True):
                reasons[i] = reason
        actions = plans[:, 0].clone()
        for i in (~safe).nonzero().flatten().tolist():
            here = states[i].cpu().numpy().astype(np.float64)
            actions[i] = torch.as_tensor(self.guard.act(here, self.env.low, self.env.high, reasons[i]))
        self.decisions += len(states)
        self.fallbacks += int((~safe).sum())
        self.reasons = tuple(reasons)
        return tensordict.set(self.action, actions.reshape(*given.shape[:-1], -1))

    def _search(self, states: Tensor) -> tuple[Tensor, Tensor, list[str]]:
        """Plans `[N, H, A]` from states `[N, D]`, which are safe, and what was found of the planner's own."""
        model = self.env.world_model
        model.best = None
        start = require_module("tensordict").TensorDict({self.env.key: states}, batch_size=[len(states)])
        own = self.planner(start).get("action").reshape(-1, *model.shape)
        known = own.isfinite().flatten(1).all(1)
        plans = torch.where(known[:, None, None], own, 0)
        checked = self.plans.check(states, plans)
        safe = known & torch.as_tensor(checked.safe, device=known.device)
        reasons = [
            checked.reason(i) if fine else "the planner's plan is not a number"
            for i, fine in enumerate(known.tolist())
        ]
        values, seen = model.best
        other = ~safe & ranked_safe(values)
        self.replaced += int(other.sum())
        return torch.where(other[:, None, None], seen.reshape(plans.shape), plans), safe | other, reasons
