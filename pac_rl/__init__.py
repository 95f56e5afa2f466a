"""Robotics: rollouts, dynamics ensembles and trajectory tubes.

A name is imported from its module when it is first asked for, so that tubes and guards work where neither
MuJoCo, Gymnasium nor mbrl-lib is installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pac_core import (
        Checked,
        FeatureLimit,
        HalfSpace,
        KeepOutBall,
        KeepOutBox,
        Limit,
        StayIn,
        TubeChecker,
    )
    from pac_rl.agents import GuardedAgent
    from pac_rl.candidates import FACTORS, Candidates, candidates_around
    from pac_rl.controllers import Controller, Decision, cheetah_reward
    from pac_rl.ensembles import Ensemble, Epoch, Settings, Transitions
    from pac_rl.environments import Environment, make_environment
    from pac_rl.episodes import Episodes, Traces, run_episodes
    from pac_rl.fallbacks import Fallback, NoSafePlan
    from pac_rl.filters import ActionFilter, Filtered, held, then_policy
    from pac_rl.forecasts import PROPAGATIONS, closed_loop, for_plans
    from pac_rl.guards import Guard, GuardedPlans, MemberForecast, guard_plans
    from pac_rl.limits import no_flip, speed_limit
    from pac_rl.plans import propose
    from pac_rl.policies import Function, Governed, Network, Noisy, Policy
    from pac_rl.policy_files import load_policy, save_policy
    from pac_rl.policy_ratios import PolicyRatios, policy_ratios
    from pac_rl.returns import ModelReturns, model_returns
    from pac_rl.scaled_tubes import FittedTubes, HullTube, MeanTubes, MemberTubes, ScaledTube
    from pac_rl.scored_plans import ScoredForecast, ScoredPlans
    from pac_rl.selections import Selections, run_to_selection
    from pac_rl.training import train
    from pac_rl.trajectories import Rollouts, execute, simulate
    from pac_rl.wrappers import GuardedEnv, MujocoState

# fmt: off
__all__ = [
    "FACTORS", "PROPAGATIONS", "ActionFilter", "Candidates", "Checked", "Controller", "Decision",
    "Ensemble", "Environment", "Episodes", "Epoch", "Fallback", "FeatureLimit", "Filtered",
    "FittedTubes", "Function", "Governed", "Guard", "GuardedAgent", "GuardedEnv", "GuardedPlans",
    "HalfSpace", "HullTube", "KeepOutBall", "KeepOutBox", "Limit", "MeanTubes", "MemberForecast",
    "MemberTubes", "ModelReturns", "MujocoState", "Network", "NoSafePlan", "Noisy", "Policy",
    "PolicyRatios", "Rollouts", "ScaledTube", "ScoredForecast", "ScoredPlans", "Selections", "Settings",
    "StayIn", "Traces", "Transitions", "TubeChecker", "candidates_around", "cheetah_reward",
    "closed_loop", "execute", "for_plans", "guard_plans", "held", "load_policy", "make_environment",
    "model_returns", "no_flip", "policy_ratios", "propose", "run_episodes", "run_to_selection",
    "save_policy", "simulate", "speed_limit", "then_policy", "train",
]
# fmt: on

_MODULES = {
    "pac_core": "Checked FeatureLimit HalfSpace KeepOutBall KeepOutBox Limit StayIn TubeChecker",
    "pac_rl.agents": "GuardedAgent",
    "pac_rl.candidates": "FACTORS Candidates candidates_around",
    "pac_rl.controllers": "Controller Decision cheetah_reward",
    "pac_rl.ensembles": "Ensemble Epoch Settings Transitions",
    "pac_rl.environments": "Environment make_environment",
    "pac_rl.episodes": "Episodes Traces run_episodes",
    "pac_rl.fallbacks": "Fallback NoSafePlan",
    "pac_rl.filters": "ActionFilter Filtered held then_policy",
    "pac_rl.forecasts": "PROPAGATIONS closed_loop for_plans",
    "pac_rl.guards": "Guard GuardedPlans MemberForecast guard_plans",
    "pac_rl.limits": "no_flip speed_limit",
    "pac_rl.plans": "propose",
    "pac_rl.policies": "Function Governed Network Noisy Policy",
    "pac_rl.policy_files": "load_policy save_policy",
    "pac_rl.policy_ratios": "PolicyRatios policy_ratios",
    "pac_rl.returns": "ModelReturns model_returns",
    "pac_rl.scaled_tubes": "FittedTubes HullTube MeanTubes MemberTubes ScaledTube",
    "pac_rl.scored_plans": "ScoredForecast ScoredPlans",
    "pac_rl.selections": "Selections run_to_selection",
    "pac_rl.training": "train",
    "pac_rl.trajectories": "Rollouts execute simulate",
    "pac_rl.wrappers": "GuardedEnv MujocoState",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"pac_rl.{name} needs {error.name}: install pac-sets[rl]") from error
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
