"""Robotics: rollouts, dynamics ensembles and trajectory tubes."""

from pac_rl.checker import Checked, TubeChecker
from pac_rl.designs import Design
from pac_rl.ensembles import Ensemble, Epoch, Settings, Transitions
from pac_rl.environments import Environment, make_environment
from pac_rl.forecasts import PROPAGATIONS, closed_loop, for_plans
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
from pac_rl.policies import Function, Network, Noisy, Policy
from pac_rl.policy_files import load_policy, save_policy
from pac_rl.studies import Case, Study
from pac_rl.training import train
from pac_rl.trajectories import Rollouts, execute, simulate

__all__ = [
    "PROPAGATIONS",
    "Case",
    "Checked",
    "Design",
    "Ensemble",
    "Environment",
    "Epoch",
    "FeatureLimit",
    "Function",
    "HalfSpace",
    "KeepOutBall",
    "KeepOutBox",
    "Limit",
    "Network",
    "Noisy",
    "Policy",
    "Rollouts",
    "Settings",
    "StayIn",
    "Study",
    "Transitions",
    "TubeChecker",
    "closed_loop",
    "execute",
    "for_plans",
    "load_policy",
    "make_environment",
    "no_flip",
    "propose",
    "save_policy",
    "simulate",
    "speed_limit",
    "train",
]
