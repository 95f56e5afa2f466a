"""Dynamics models: the probabilistic ensemble and its training."""

from pac_rl.dynamics.ensemble import Ensemble, Epoch, Settings, Transitions
from pac_rl.dynamics.training import train

__all__ = [
    "Ensemble",
    "Epoch",
    "Settings",
    "Transitions",
    "train",
]
