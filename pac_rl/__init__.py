"""Robotics: rollouts, dynamics models, trajectory tubes and guarded planning.

A name is imported when it is first used: guards work where no simulator is installed.
"""

from typing import TYPE_CHECKING

from pac_core.plugins import lazy_door

if TYPE_CHECKING:
    from pac_rl.dynamics import Ensemble, Settings
    from pac_rl.forecasts import forecast_closed_loop, forecast_plans, propose_plans
    from pac_rl.guarding import RobotController, RobotGuard, fit_guard
    from pac_rl.planning.controller import Controller, candidates_around
    from pac_rl.planning.episodes import run_episodes
    from pac_rl.planning.filters import ActionFilter, GuardedEnv
    from pac_rl.planning.guard import Fallback, Guard, GuardedAgent, NoSafePlan, guard_plans
    from pac_rl.policies import NoisyPolicy, load_policy
    from pac_rl.robot import Dynamics, GymSystem, MujocoSystem, Shooting, System
    from pac_rl.rollouts import execute, policy_ratios, simulate
    from pac_rl.systems import make_environment, no_flip, speed_limit
    from pac_rl.training import Transitions, train

__all__ = [
    "ActionFilter",
    "Controller",
    "Dynamics",
    "Ensemble",
    "Fallback",
    "Guard",
    "GuardedAgent",
    "GuardedEnv",
    "GymSystem",
    "MujocoSystem",
    "NoSafePlan",
    "NoisyPolicy",
    "RobotController",
    "RobotGuard",
    "Settings",
    "Shooting",
    "System",
    "Transitions",
    "candidates_around",
    "execute",
    "fit_guard",
    "forecast_closed_loop",
    "forecast_plans",
    "guard_plans",
    "load_policy",
    "make_environment",
    "no_flip",
    "policy_ratios",
    "propose_plans",
    "run_episodes",
    "simulate",
    "speed_limit",
    "train",
]

__getattr__, __dir__ = lazy_door(__name__, __file__, extra="rl")
