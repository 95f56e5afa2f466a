"""Rollouts and an ensemble that several tests look at; made once."""

from __future__ import annotations

import numpy as np
import pytest

from pac_rl import Ensemble, Settings, Transitions, load_policy, make_environment, simulate, train
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
