"""CEM's episodes: guards of the other planner serve it too, and all that is random comes from the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from pac_core import HalfSpace, InvalidInput
from pac_rl import Ensemble, Environment, MeanTubes, MemberTubes, Network, Rollouts, for_plans
from pac_rl.planned import PlanTubes, Search
from pac_rl.tasks import PlanEpisodes

AHEAD = np.eye(18)[0]
PLANS = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, size=(5, 4, 6)))
SMALL = Search(horizon=4, checked=3, population=20, iterations=2, elites=0.2)


@dataclass(frozen=True)
class Shard:
    ids: tuple[int, ...]


def test_the_tube_of_the_mean_is_the_mean_of_the_steps_asked_for(
    ensemble: Ensemble, episodes: Rollouts
) -> None:
    starts = torch.from_numpy(episodes.start[:5])
    tubes = PlanTubes(ensemble, MeanTubes(), 5)
    forecast = tubes.forecast(starts, PLANS)
    plain = for_plans(ensemble, starts, PLANS, propagation="one-step", batch=5)
    assert torch.equal(forecast.mean, plain.mean)
    torch.testing.assert_close(tubes.tube(forecast).support(AHEAD), plain.mean[..., 0].double())
    first = type(forecast)(forecast.mean[:, :2], forecast.var[:, :2])
    assert tubes.tube(first).support(AHEAD).shape == (5, 2)


def test_the_worst_member_is_worse_than_the_mean_of_a_first_step(
    ensemble: Ensemble, episodes: Rollouts
) -> None:
    """At the first step the mean is that of the members, so one of them lies at or above it."""
    starts = torch.from_numpy(episodes.start[:5])
    mean, worst = (PlanTubes(ensemble, kind, 5) for kind in (MeanTubes(), MemberTubes()))
    ends = [one.tube(one.forecast(starts, PLANS)).support(AHEAD)[:, 0] for one in (mean, worst)]
    assert bool((ends[1] > ends[0]).all())


def test_a_tube_of_other_plans_is_refused(ensemble: Ensemble, episodes: Rollouts) -> None:
    tubes, starts = PlanTubes(ensemble, MeanTubes(), 5), torch.from_numpy(episodes.start[:5])
    other = for_plans(ensemble, starts, PLANS, propagation="one-step", batch=5)
    with pytest.raises(InvalidInput, match="of the plans that were forecast last"):
        tubes.tube(other)


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
