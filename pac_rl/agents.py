"""mbrl-lib's planning agent, guarded: only plans that were checked are carried out, or a fallback."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array
from numpy.typing import NDArray

from pac_core import Checked, InvalidInput
from pac_core.arrays import Array
from pac_rl.fallbacks import UNKNOWN, checked_fallback
from pac_rl.guards import GuardedPlans, ranked_safe


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
        checked_fallback(guard.fallback)
        if guard.horizon is not None and agent.replan_freq > guard.horizon:
            raise InvalidInput(
                f"replan_freq must be at most the tube's {guard.horizon} steps, got {agent.replan_freq}"
            )
        self.agent, self.plans, self.guard = agent, plans, guard
        self.decisions = self.replaced = self.fallbacks = 0
        self.reason = ""
        self._plan: NDArray[np.float64] = np.zeros((0, 0))
        self._waiting = 0  # actions at the head of the plan that may still be carried out
        self._best: tuple[float, Array | None] = (-np.inf, None)
        agent.set_trajectory_eval_fn(self._watched)

    def act(self, observation: Any, **_: Any) -> NDArray[np.float64]:
        """`[A]` the next action: of a plan that is safe from this observation on, or the fallback's."""
        if not self._waiting or not self._still_safe(observation):
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

    def _still_safe(self, observation: Any) -> bool:
        """Whether what is left of the plan is safe from here; what is shorter than the tube is not known."""
        horizon = self.guard.horizon  # None: as long as the plan was, of which something is carried out
        if horizon is None or len(self._plan) < horizon or not np.isfinite(np.asarray(observation)).all():
            return False
        checked = self._check(observation, self._plan)
        self.reason = checked.reason(0)
        return bool(checked.safe[0])

    def safe_plan(self, observation: Any) -> NDArray[np.float64] | None:
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
            return np.asarray(plan, dtype=np.float64)
        checked = self._check(observation, plan)
        self.reason = checked.reason(0)
        if bool(checked.safe[0]):
            return np.asarray(plan, dtype=np.float64)
        if seen is None:
            return None
        self.replaced += 1
        return np.asarray(seen, dtype=np.float64)

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

    def _check(self, observation: Any, plan: NDArray[Any]) -> Checked:
        where = self.agent.optimizer.initial_solution  # on the planner's device
        return self.plans.check(observation, array_namespace(where).asarray(plan[None], device=where.device))

    def _watched(self, initial_state: Any, plans: Array) -> Array:
        """The guarded values, keeping the best safe plan in mind."""
        values = self.plans(initial_state, plans)
        i = int(values.argmax())
        if ranked_safe(values[i]) and float(values[i]) > self._best[0]:
            self._best = (float(values[i]), plans[i].clone())
        return values
