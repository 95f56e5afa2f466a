"""CEM's episodes: guards of the other planner serve it too, and all that is random comes from the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from halfcheetah.pets import PlanEpisodes

from pac_core import HalfSpace, TubeChecker
from pac_rl import Ensemble, Guard
from pac_rl.pets import Search, forecast_with_members
from pac_rl.planning import MeanTubes, MemberTubes
from pac_rl.policies import Network
from pac_rl.rollouts import Rollouts
from pac_rl.systems import Environment

AHEAD = np.eye(18)[0]
PLANS = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, size=(5, 4, 6)))
SMALL = Search(horizon=4, checked=3, population=20, iterations=2, elites=0.2)


@dataclass(frozen=True)
class Shard:
    ids: tuple[int, ...]


def test_the_worst_member_is_worse_than_the_mean_of_a_first_step(
    ensemble: Ensemble, episodes: Rollouts
) -> None:
    """At the first step the mean is that of the members, so one of them lies at or above it."""
    starts = torch.from_numpy(episodes.start[:5])
    plain = forecast_with_members(ensemble, starts, PLANS, members=False, batch=5)
    forecast = forecast_with_members(ensemble, starts, PLANS, members=True, batch=5)
    assert torch.equal(forecast.mean, plain.mean)
    ends = [kind.tube(forecast).support(AHEAD)[:, 0] for kind in (MeanTubes(), MemberTubes())]
    torch.testing.assert_close(ends[0], plain.mean[:, 0, 0].double())
    assert bool((ends[1] > ends[0]).all())


def test_of_longer_plans_a_guard_checks_the_first_steps(ensemble: Ensemble, episodes: Rollouts) -> None:
    forecast = forecast_with_members(
        ensemble, torch.from_numpy(episodes.start[:5]), PLANS, members=True, batch=5
    )
    limit = TubeChecker([HalfSpace("speed", AHEAD, 1.0)])
    for kind in (MeanTubes(), MemberTubes()):
        checked = Guard(limit, kind, horizon=2).check(forecast, PLANS)
        assert checked.margin.shape == (5, 2, 1)
        torch.testing.assert_close(checked.margin, Guard(limit, kind).check(forecast, PLANS).margin[:, :2])


def test_an_episode_is_a_function_of_its_seed(
    cheetah: Environment, ensemble: Ensemble, policy: Network
) -> None:
    limits = (HalfSpace("speed", AHEAD, 1.0),)
    scorer = PlanEpisodes(
        "HalfCheetah-v5", policy, ensemble, limits, limits, MeanTubes(), SMALL, steps=8, device="cpu"
    )
    together, alone = scorer(Shard((5, 6)), {}), scorer(Shard((6,)), {})
    assert together["returns"][1] == alone["returns"][0]
    assert together["returns"][0] != together["returns"][1]
    assert together["errors"].tolist() == (together["fastest"] > 1.0).tolist()
    assert together["fallbacks"].max() <= 8
