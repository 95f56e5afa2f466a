"""Robotics: rollouts, dynamics ensembles and trajectory tubes."""

from pac_core import Checked, TubeChecker
from pac_rl.agents import GuardedAgent
from pac_rl.candidates import FACTORS, Candidates, candidates_around
from pac_rl.controllers import Controller, Decision, cheetah_reward
from pac_rl.ensembles import Ensemble, Epoch, Settings, Transitions
from pac_rl.environments import Environment, make_environment
from pac_rl.episodes import Episodes, Traces, run_episodes
from pac_rl.fallbacks import Fallback, NoSafePlan
from pac_rl.filters import ActionFilter, Filtered, held, then_policy
from pac_rl.forecasts import PROPAGATIONS, closed_loop, for_plans
from pac_rl.guards import GuardedPlans, guard_plans
from pac_rl.limits import (
    FeatureLimit,
    HalfSpace,
    KeepOutBall,
    KeepOutBox,
    Limit,
    StayIn,
    no_flip,
    speed_limit,
)
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

__all__ = [
    "FACTORS",
    "PROPAGATIONS",
    "ActionFilter",
    "Candidates",
    "Checked",
    "Controller",
    "Decision",
    "Ensemble",
    "Environment",
    "Episodes",
    "Epoch",
    "Fallback",
    "FeatureLimit",
    "Filtered",
    "FittedTubes",
    "Function",
    "Governed",
    "GuardedAgent",
    "GuardedEnv",
    "GuardedPlans",
    "HalfSpace",
    "HullTube",
    "KeepOutBall",
    "KeepOutBox",
    "Limit",
    "MeanTubes",
    "MemberTubes",
    "ModelReturns",
    "MujocoState",
    "Network",
    "NoSafePlan",
    "Noisy",
    "Policy",
    "PolicyRatios",
    "Rollouts",
    "ScaledTube",
    "ScoredForecast",
    "ScoredPlans",
    "Selections",
    "Settings",
    "StayIn",
    "Traces",
    "Transitions",
    "TubeChecker",
    "candidates_around",
    "cheetah_reward",
    "closed_loop",
    "execute",
    "for_plans",
    "guard_plans",
    "held",
    "load_policy",
    "make_environment",
    "model_returns",
    "no_flip",
    "policy_ratios",
    "propose",
    "run_episodes",
    "run_to_selection",
    "save_policy",
    "simulate",
    "speed_limit",
    "then_policy",
    "train",
]
