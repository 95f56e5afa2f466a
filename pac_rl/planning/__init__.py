"""Guarded planning: guards and their tubes, controllers, episodes, filters.

A name is imported when it is first used: guards work where no simulator is installed.
"""

from typing import TYPE_CHECKING

from pac_core.plugins import lazy_door

if TYPE_CHECKING:
    from pac_rl.planning.controller import (
        FACTORS,
        Candidates,
        Controller,
        Decision,
        candidates_around,
        cheetah_reward,
        returns_in_words,
    )
    from pac_rl.planning.episodes import BATCH, Episodes, Selections, Traces, run_episodes, run_to_selection
    from pac_rl.planning.filters import (
        ActionFilter,
        Filtered,
        GuardedEnv,
        MujocoState,
        continue_with_policy,
        hold_action,
    )
    from pac_rl.planning.guard import (
        Fallback,
        FittedTubes,
        Guard,
        GuardedAgent,
        GuardedPlans,
        HullTube,
        MeanTubes,
        MemberForecast,
        MemberTubes,
        NoSafePlan,
        ScaledTube,
        guard_plans,
    )

__all__ = [
    "BATCH",
    "FACTORS",
    "ActionFilter",
    "Candidates",
    "Controller",
    "Decision",
    "Episodes",
    "Fallback",
    "Filtered",
    "FittedTubes",
    "Guard",
    "GuardedAgent",
    "GuardedEnv",
    "GuardedPlans",
    "HullTube",
    "MeanTubes",
    "MemberForecast",
    "MemberTubes",
    "MujocoState",
    "NoSafePlan",
    "ScaledTube",
    "Selections",
    "Traces",
    "candidates_around",
    "cheetah_reward",
    "continue_with_policy",
    "guard_plans",
    "hold_action",
    "returns_in_words",
    "run_episodes",
    "run_to_selection",
]

__getattr__, __dir__ = lazy_door(__name__, __file__, extra="rl")
