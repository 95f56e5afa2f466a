"""Robotics: rollouts, dynamics ensembles and trajectory tubes."""

from pac_rl.candidates import FACTORS, Candidates, candidates_around
from pac_rl.checker import Checked, TubeChecker
from pac_rl.controllers import Controller, Decision, NoSafePlan, cheetah_reward
from pac_rl.designs import Design
from pac_rl.ensembles import Ensemble, Epoch, Settings, Transitions
from pac_rl.environments import Environment, make_environment
from pac_rl.episodes import Episodes, Traces, run_episodes
from pac_rl.forecasts import PROPAGATIONS, closed_loop, for_plans
from pac_rl.limits import HalfSpace, Limit
from pac_rl.plans import propose
from pac_rl.policies import Function, Governed, Network, Noisy, Policy
from pac_rl.policy_files import load_policy, save_policy
from pac_rl.scaled_tubes import FittedTubes, HullTube, MeanTubes, MemberTubes, ScaledTube
from pac_rl.selections import Selections, run_to_selection
from pac_rl.studies import Case, Study
from pac_rl.training import train
from pac_rl.trajectories import Rollouts, execute, simulate

__all__ = [
    "FACTORS",
    "PROPAGATIONS",
    "Candidates",
    "Case",
    "Checked",
    "Controller",
    "Decision",
    "Design",
    "Ensemble",
    "Environment",
    "Episodes",
    "Epoch",
    "FittedTubes",
    "Function",
    "Governed",
    "HalfSpace",
    "HullTube",
    "Limit",
    "MeanTubes",
    "MemberTubes",
    "Network",
    "NoSafePlan",
    "Noisy",
    "Policy",
    "Rollouts",
    "ScaledTube",
    "Selections",
    "Settings",
    "Study",
    "Traces",
    "Transitions",
    "TubeChecker",
    "candidates_around",
    "cheetah_reward",
    "closed_loop",
    "execute",
    "for_plans",
    "load_policy",
    "make_environment",
    "propose",
    "run_episodes",
    "run_to_selection",
    "save_policy",
    "simulate",
    "train",
]
