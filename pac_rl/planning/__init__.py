"""Guarded planning: planners, guards, tubes, controllers, episodes, filters; the rest is at pac_rl's door.

A name is imported when it is first used: guards work where no simulator is installed.
"""

from typing import TYPE_CHECKING

from pac_core.plugins import lazy_door

if TYPE_CHECKING:
    from pac_rl.planning.candidates import CandidateRuns, PutRowsBack, certify_candidates, policy_candidates
    from pac_rl.planning.controller import Decision
    from pac_rl.planning.episodes import (
        BATCH,
        Episodes,
        RunEpisodes,
        RunSelections,
        RunToStarts,
        Selections,
        Traces,
        describe_episodes,
        read_episodes,
        run_to_selection,
    )
    from pac_rl.planning.filters import (
        Filtered,
        FilteredActions,
        MujocoState,
        continue_with_policy,
        hold_action,
    )
    from pac_rl.planning.guard import (
        FittedTubes,
        GuardedPlans,
        HullTube,
        MeanTubes,
        MemberForecast,
        MemberTubes,
        ScaledTube,
    )
    from pac_rl.planning.planners import FACTORS, Planner, ReturnCost, cheetah_reward

__all__ = [
    "BATCH",
    "FACTORS",
    "CandidateRuns",
    "Decision",
    "Episodes",
    "Filtered",
    "FilteredActions",
    "FittedTubes",
    "GuardedPlans",
    "HullTube",
    "MeanTubes",
    "MemberForecast",
    "MemberTubes",
    "MujocoState",
    "Planner",
    "PutRowsBack",
    "ReturnCost",
    "RunEpisodes",
    "RunSelections",
    "RunToStarts",
    "ScaledTube",
    "Selections",
    "Traces",
    "certify_candidates",
    "cheetah_reward",
    "continue_with_policy",
    "describe_episodes",
    "hold_action",
    "policy_candidates",
    "read_episodes",
    "run_to_selection",
]

__getattr__, __dir__ = lazy_door(__name__, __file__, extra="rl")
