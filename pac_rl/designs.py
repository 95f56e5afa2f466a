"""Everything that determines what a study finds, and how two of them are told apart."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pac_core import InvalidInput, PACLevel, max_errors
from pac_core.bounds import whole
from pac_rl.ensembles import Settings
from pac_rl.environments import Environment
from pac_rl.policies import Policy
from pac_rl.policy_files import SHIPPED
from pac_rl.trajectories import burn_in_range, simulate

TRAINING_SEEDS = 1_000_000_000
"""Training episodes have seeds from here on, so that none is ever a unit of the study."""

MOST_SEED = 2**63 // (2 * TRAINING_SEEDS) - 1
"""Beyond it, the seeds of a study's units would not be 64-bit integers."""


@dataclass(frozen=True)
class Design:
    """Everything that determines what a study finds.

    Units are rollouts of `horizon` steps, each from its own reset and a burn-in drawn from `burn_in`.
    """

    env: str = "HalfCheetah-v5"
    policy: str = str(SHIPPED)
    policy_std: float | None = None
    """noise on each action, instead of the policy file's; needed for a file that has none"""
    vecnormalize: str | None = None
    """for a Stable-Baselines3 zip, see `load_policy`"""
    policy_sees: str | None = None
    """"observation" or "state", instead of what the policy file says"""
    horizon: int = 20
    burn_in: tuple[int, int] = (0, 200)
    tune: int = 5000
    calibrate: int = 5000
    test: int = 5000
    epsilon: float = 0.01
    delta: float = 1e-5
    seed: int = 0
    episodes: int = 1600
    """training episodes: half by the policy itself, half with more noise"""
    episode_steps: int = 200
    settings: Settings = field(default_factory=Settings)

    @property
    def level(self) -> PACLevel:
        return PACLevel(self.epsilon, self.delta)

    def __str__(self) -> str:
        return f"{self.env}, n = {self.calibrate:,}, epsilon {self.epsilon:g}, delta {self.delta:g}"

    @property
    def units(self) -> int:
        return self.tune + self.calibrate + self.test

    @classmethod
    def smoke(cls, **changes: Any) -> Design:
        """A study of seconds, to see that everything runs; its level is one that so few units can prove."""
        small = Settings(members=3, hidden=48, layers=3, epochs=3, batch=256, rate=5e-3)
        sizes: dict[str, Any] = {"tune": 256, "calibrate": 320, "test": 256, "epsilon": 0.1, "delta": 1e-3}
        sizes |= {"episodes": 64, "episode_steps": 100, "burn_in": (0, 40), "horizon": 10}
        return cls(**({"settings": small} | sizes | changes))


def checked(design: Design) -> Design:
    """`design`, refused if it cannot lead anywhere, before any long work."""
    for name in ("horizon", "tune", "calibrate", "test", "episodes", "episode_steps"):
        whole(name, getattr(design, name), least=1)
    whole("seed", design.seed, least=0)
    burn_in_range(design.burn_in)
    max_errors(design.calibrate, design.level)
    if design.seed > MOST_SEED:
        raise InvalidInput(f"seed must be at most {MOST_SEED:,}, so that units have seeds, got {design.seed}")
    if max(design.units, design.episodes) >= TRAINING_SEEDS:
        raise InvalidInput(
            f"units and episodes must be fewer than {TRAINING_SEEDS:,}, got {design.units:,} "
            f"and {design.episodes:,}"
        )
    return design


def behaviour(environment: Environment, policy: Policy) -> str:
    """SHA-256 of what a few rollouts do, to six digits: tells objects apart of which there is no file."""
    few = simulate(environment, policy, range(8), horizon=5, burn_in=(0, 0), batch=8, threads=1)
    hashed = hashlib.sha256("\n".join(environment.names).encode())
    for numbers in (few.start, few.states, few.actions, few.lengths):
        hashed.update((np.round(np.asarray(numbers, dtype=np.float64), 6) + 0.0).tobytes())
    return hashed.hexdigest()
