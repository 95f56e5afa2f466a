"""A user's own robot, for the tests: a cart on a line that must stay left of 1, pushed around by wind."""

from __future__ import annotations

from typing import Any

import numpy as np

from pac_rl import Dynamics, Shooting, System

LOW, HIGH, DT = np.array([-1.0]), np.array([1.0]), 0.2
NAMES = ("position", "velocity")


def reset(rng: Any) -> Any:
    return np.array([rng.uniform(-0.5, 0.2), 0.0])


def step(state: Any, action: Any, rng: Any) -> Any:
    velocity = state[1] + DT * action[0] + rng.normal(0, 0.02)
    return np.array([state[0] + DT * velocity, velocity])


def forecast(states: Any, plans: Any) -> Any:
    velocity = states[:, None, 1] + DT * plans[..., 0].cumsum(1)
    position = states[:, None, 0] + DT * velocity.cumsum(1)
    spread = 0.02**2 * np.arange(1, plans.shape[1] + 1) + 0 * velocity
    return np.stack([position, velocity], -1), np.stack([0.04 * spread, spread], -1)


def sample_plans(state: Any, rng: Any, candidates: int, horizon: int) -> Any:
    return np.broadcast_to(rng.uniform(-1, 1, size=(candidates, 1, 1)), (candidates, horizon, 1))


def cost(mean: Any, plans: Any) -> Any:
    return -mean[..., -1, 0]


def brake(state: Any) -> Any:
    return np.clip(-state[1:] / DT, LOW, HIGH)


def cart(**changed: Any) -> System:
    return System(**({"reset": reset, "step": step, "low": LOW, "high": HIGH, "names": NAMES} | changed))


MODEL, PLANNER = Dynamics(forecast), Shooting(sample_plans, cost, candidates=8)
