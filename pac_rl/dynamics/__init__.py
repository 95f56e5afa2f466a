"""Dynamics: what is predicted. Any model as a function, our ensemble and its training, forecasts.

A name is imported when it is first used: guards work where no simulator is installed.
"""

from typing import TYPE_CHECKING

from pac_core.plugins import lazy_door

if TYPE_CHECKING:
    from pac_rl.dynamics.ensemble import MOST_ROLLOUTS, Ensemble, Epoch, Settings, rollout_ids
    from pac_rl.dynamics.forecasts import (
        ScoredPlans,
        check_match,
        check_propagation,
        forecast_closed_loop,
        forecast_members,
        forecast_plans,
        propose_plans,
    )
    from pac_rl.dynamics.model import Dynamics
    from pac_rl.dynamics.training import Transitions, fit_dynamics, train

__all__ = [
    "MOST_ROLLOUTS",
    "Dynamics",
    "Ensemble",
    "Epoch",
    "ScoredPlans",
    "Settings",
    "Transitions",
    "check_match",
    "check_propagation",
    "fit_dynamics",
    "forecast_closed_loop",
    "forecast_members",
    "forecast_plans",
    "propose_plans",
    "rollout_ids",
    "train",
]

__getattr__, __dir__ = lazy_door(__name__, __file__, extra="rl")
