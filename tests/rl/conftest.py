"""Rollouts, an ensemble and a planner around a policy that several tests look at; made once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pac_core import HalfSpace
from pac_rl import (
    AroundPolicy,
    Controller,
    Dynamics,
    Ensemble,
    MujocoSystem,
    Settings,
    Transitions,
    load_policy,
    make_environment,
    simulate,
    train,
)
from pac_rl.planning import MeanTubes, ReturnCost, cheetah_reward
from pac_rl.policies import Network
from pac_rl.rollouts import Rollouts
from pac_rl.systems import Environment


@pytest.fixture(scope="session")
def cheetah() -> Environment:
    return make_environment()


@pytest.fixture(scope="session")
def policy() -> Network:
    return load_policy()


@pytest.fixture(scope="session")
def episodes(cheetah: Environment, policy: Network) -> Rollouts:
    return simulate(cheetah, policy, np.arange(40) + 10**9, horizon=100, burn_in=(0, 0), batch=64)


@pytest.fixture(scope="session")
def ensemble(episodes: Rollouts) -> Ensemble:
    settings = Settings(members=3, hidden=32, layers=2, epochs=3, batch=128, rate=5e-3)
    return train(Transitions.of(episodes), "HalfCheetah-v5", settings)


@pytest.fixture(scope="session")
def controller(ensemble: Ensemble, policy: Network) -> Controller:
    """The policy's actions times 0, 0.25 ... 1, by their predicted return; only means are checked."""
    system, model = MujocoSystem(), Dynamics.of(ensemble, propagation="one-step", batch=None)
    about: Any = {"price": ReturnCost(cheetah_reward), "factors": (0.0, 0.25, 0.5, 0.75, 1.0), "horizon": 3}
    planner = AroundPolicy.of(system, model, policy, **about)
    limits = (HalfSpace("speed", np.eye(18)[0], 1.0), HalfSpace("pitch", np.eye(18)[2], 0.3))
    return Controller(system, model, planner, limits, "hold", 3, tubes=MeanTubes(), reward=cheetah_reward)


@pytest.fixture(scope="session")
def bare(controller: Controller) -> Controller:
    """The policy itself, with nobody watching."""
    planner = replace(controller.planner, factors=(1.0,), horizon=1)  # type: ignore[type-var]
    return replace(controller, planner=planner, horizon=1, tubes=None)
