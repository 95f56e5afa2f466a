"""Guarded planning: guards and their tubes, controllers, episodes, filters; most names are at pac_rl's door.

A name is imported when it is first used: guards work where no simulator is installed.
"""

from typing import TYPE_CHECKING

from pac_core.plugins import lazy_door

if TYPE_CHECKING:
    from pac_rl.planning.controller import FACTORS, Candidates, Decision, cheetah_reward, returns_in_words
    from pac_rl.planning.episodes import BATCH, Episodes, Selections, Traces, run_to_selection
    from pac_rl.planning.filters import Filtered, MujocoState, continue_with_policy, hold_action
    from pac_rl.planning.guard import (
        FittedTubes,
        GuardedPlans,
        HullTube,
        MeanTubes,
        MemberForecast,
        MemberTubes,
        ScaledTube,
    )

__all__ = [
    "BATCH",
    "FACTORS",
    "Candidates",
    "Decision",
    "Episodes",
    "Filtered",
    "FittedTubes",
    "GuardedPlans",
    "HullTube",
    "MeanTubes",
    "MemberForecast",
    "MemberTubes",
    "MujocoState",
    "ScaledTube",
    "Selections",
    "Traces",
    "cheetah_reward",
    "continue_with_policy",
    "hold_action",
    "returns_in_words",
    "run_to_selection",
]

__getattr__, __dir__ = lazy_door(__name__, __file__, extra="rl")
