"""Robotics: systems, dynamics models, trajectory tubes and guarded planning.

A name is imported when it is first used: guards work where no simulator is installed.
"""

from typing import TYPE_CHECKING

from pac_core.plugins import lazy_door

if TYPE_CHECKING:
    from pac_rl.dynamics.ensemble import Ensemble, Settings
    from pac_rl.dynamics.forecasts import forecast_closed_loop, forecast_plans, propose_plans
    from pac_rl.dynamics.model import Dynamics
    from pac_rl.dynamics.training import Transitions, train
    from pac_rl.planning.controller import Controller
    from pac_rl.planning.episodes import run_episodes
    from pac_rl.planning.filters import ActionFilter, GuardedEnv, GuardedVectorEnv
    from pac_rl.planning.fitting import FittedGuard, fit_guard, fit_guard_from_log, load_guard
    from pac_rl.planning.guard import Fallback, Guard, NoSafePlan, guard_plans
    from pac_rl.planning.neighbours import (
        GuardedAgent,
        GuardedPlanner,
        SearchPlanner,
        guard_agent,
        plan_env,
    )
    from pac_rl.planning.planners import MPPI, AroundPolicy, Shooting
    from pac_rl.policies import NoisyPolicy, actions_by, load_policy
    from pac_rl.rollouts import execute, policy_ratios, simulate
    from pac_rl.systems.functions import GymSystem, System
    from pac_rl.systems.mujoco import MujocoSystem, make_environment, no_flip, velocity_limit

__all__ = [
    "MPPI",
    "ActionFilter",
    "AroundPolicy",
    "Controller",
    "Dynamics",
    "Ensemble",
    "Fallback",
    "FittedGuard",
    "Guard",
    "GuardedAgent",
    "GuardedEnv",
    "GuardedPlanner",
    "GuardedVectorEnv",
    "GymSystem",
    "MujocoSystem",
    "NoSafePlan",
    "NoisyPolicy",
    "SearchPlanner",
    "Settings",
    "Shooting",
    "System",
    "Transitions",
    "actions_by",
    "execute",
    "fit_guard",
    "fit_guard_from_log",
    "forecast_closed_loop",
    "forecast_plans",
    "guard_agent",
    "guard_plans",
    "load_guard",
    "load_policy",
    "make_environment",
    "no_flip",
    "plan_env",
    "policy_ratios",
    "propose_plans",
    "run_episodes",
    "simulate",
    "train",
    "velocity_limit",
]

__getattr__, __dir__ = lazy_door(__name__, __file__, extra="rl")
