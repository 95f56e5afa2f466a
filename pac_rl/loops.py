"""PETS with a guard in the loop: collect, train, calibrate, plan, and again.

Each round trains the ensemble on everything collected so far, calibrates tubes anew on fresh units, because a
new model voids every old promise, and lets mbrl-lib's CEM plan with unsafe plans ranked below all safe ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pac_core import (
    InvalidInput,
    LinearFeatures,
    PACLevel,
    Predictor,
    TubeChecker,
    certify,
    fit_shape,
    max_errors,
)
from pac_core.bounds import whole
from pac_core.texts import at_least
from pac_rl.ensembles import Ensemble, Settings, Transitions
from pac_rl.environments import Environment
from pac_rl.fallbacks import Fallback
from pac_rl.forecasts import for_plans
from pac_rl.guards import Reward
from pac_rl.limits import Limit, at_every_step
from pac_rl.planned import Search, guarded_cem, outcomes, plan_episode
from pac_rl.policies import Noisy, Policy
from pac_rl.replays import replayed, unmoved
from pac_rl.training import train
from pac_rl.trajectories import MOST_SEED, TRAINING_SEEDS, Rollouts, simulate

NOISE = 0.3
"""On the actions of a warm start's policy, so that the model sees more than the policy's own way."""


@dataclass(frozen=True)
class Loop:
    """How much of everything.

    Round i may cost delta / (i (i + 1)), so that all rounds together, however many, cost less than delta.
    """

    rounds: int = 6
    episodes: int = 2
    """collected by the guarded planner in each round"""
    random: int = 8
    """episodes of random actions before the first round"""
    warm: int = 0
    """episodes of a policy, with noise, before the first round: a warm start"""
    steps: int = 200
    """of an episode"""
    tune: int = 400
    calibrate: int = 800
    """fresh units of each round"""
    level: PACLevel = field(default_factory=lambda: PACLevel(0.1, 0.05))
    search: Search = field(default_factory=Search)
    settings: Settings = field(default_factory=lambda: Settings(hidden=96, layers=3, epochs=20, batch=128))
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "episodes", "random", "steps", "tune", "calibrate"):
            whole(name, getattr(self, name), least=1)
        whole("warm", self.warm, least=0)
        whole("seed", self.seed, least=0)
        if self.search.horizon > self.steps or self.seed > MOST_SEED:
            raise InvalidInput(
                f"steps must be at least the {self.search.horizon} of a plan and seed at most {MOST_SEED:,}, "
                f"got {self.steps} and {self.seed}"
            )
        max_errors(self.calibrate, self.level_of(self.rounds))  # refused now, not after hours

    def level_of(self, number: int) -> PACLevel:
        """What round `number`, from 1, may cost.

        >>> [round(Loop().level_of(i).delta, 4) for i in (1, 2, 3)]
        [0.025, 0.0083, 0.0042]
        """
        return PACLevel(self.level.epsilon, self.level.delta / (number * (number + 1)))


@dataclass(frozen=True, eq=False)
class Round:
    """What a round of the loop came to.

    ensemble, predictor: trained on what was there before, and its tubes
    collected: episodes of the planner
    returns, violated: `[episodes]` of these, and whether each broke a limit
    fallbacks, decisions: in these episodes
    """

    number: int
    ensemble: Ensemble
    predictor: Predictor
    collected: Rollouts
    returns: NDArray[np.float64]
    violated: NDArray[np.bool_]
    fallbacks: int
    decisions: int

    def __str__(self) -> str:
        return (
            f"round {self.number}: model error {self.ensemble.history[-1].best:.3f}, "
            f"T = {at_least(self.predictor.threshold.value, 3)}, return {self.returns.mean():.1f}, "
            f"{int(self.violated.sum())} of {len(self.violated)} episodes broke a limit, "
            f"the fallback acted {self.fallbacks} of {self.decisions} times"
        )


def learn(
    environment: Environment,
    limits: tuple[Limit, ...],
    features: LinearFeatures,
    reward: Reward,
    *,
    ledger: str | os.PathLike[str],
    loop: Loop | None = None,
    policy: Policy | None = None,
    fallback: Fallback,
    progress: Callable[[str], Any] | None = None,
) -> Iterator[Round]:
    """Rounds of PETS on the robot, each with a new model, new tubes and episodes of the guarded planner.

    features: what the limits read; tubes are intervals of these numbers
    ledger: a folder; each round's units go into it before they are looked at
    policy: of the warm start, see `Loop.warm`; each search for a plan begins with it, too
    fallback: what acts where no plan is safe, see `Fallback`
    progress: called with a line whenever a part of a round is done

    What a round promises is its tube, for plans drawn like its calibration plans: what was done before,
    replayed with noise from a fresh reset. Nothing is promised of the plan that CEM picks, nor of episodes:
    for that, stop learning and certify the controller of the last round on fresh episodes (`descend`), with
    seeds that the loop did not use: it takes them in order from 2,000,000,000 times its own on.
    """
    loop, say = loop or Loop(), progress or (lambda line: None)
    TubeChecker(at_every_step(limits))  # refused now, not after a round
    if (policy is None) != (loop.warm == 0):
        raise InvalidInput(f"policy must be given for a warm start and only then, got warm={loop.warm}")
    seeds = _Seeds(loop.seed)

    def recorded(by: Policy, count: int) -> Rollouts:
        return simulate(environment, by, seeds.take(count), horizon=loop.steps, burn_in=(0, 0))

    rollouts = [recorded(unmoved(environment, std=1.0), loop.random)]
    if policy is not None:
        rollouts.append(recorded(Noisy(policy, NOISE), loop.warm))
    for number in range(1, loop.rounds + 1):
        transitions = Transitions.join([Transitions.of(part) for part in rollouts])
        ensemble = train(transitions, environment.id, loop.settings)
        say(f"round {number}: trained on {len(transitions.states):,} steps")
        predictor = _calibrated(environment, ensemble, rollouts[-1], features, loop, number, seeds, ledger)
        options: Any = {"search": loop.search, "policy": policy, "fallback": fallback}
        agent = guarded_cem(environment, ensemble, predictor, limits, reward, **options)
        own = seeds.take(loop.episodes).tolist()
        collected = Rollouts.join([plan_episode(environment, agent, seed, steps=loop.steps) for seed in own])
        rollouts.append(collected)
        counts = (agent.fallbacks, agent.decisions)
        found = Round(number, ensemble, predictor, collected, *outcomes(collected, limits, reward), *counts)
        say(str(found))
        for remark in predictor.remarks:
            say(f"round {number}: {remark}")
        yield found


def _calibrated(
    environment: Environment,
    ensemble: Ensemble,
    recorded: Rollouts,
    features: LinearFeatures,
    loop: Loop,
    number: int,
    seeds: _Seeds,
    ledger: str | os.PathLike[str],
) -> Predictor:
    """Tubes for this very model, from fresh units: those of another model promise nothing of it."""
    fresh = seeds.take(loop.tune + loop.calibrate)
    units = replayed(environment, recorded, fresh, horizon=loop.search.checked)
    seen = ensemble.trained_on
    assert seen is not None
    made = certify(
        for_plans(ensemble, units.start, units.actions, propagation="one-step"),
        units.truth,
        loop.level_of(number),
        ids=[f"loop/{seed}" for seed in fresh.tolist()],
        tune=loop.tune,
        calibrate=loop.calibrate,
        ledger=ledger,
        fit=partial(fit_shape, shape="features", features=features),
        unit="replayed plan",
        train_ids=[f"loop/{seed}" for seed in seen.tolist()],
        train="recorded episodes",
    )
    return made.certificates[0].predictor


class _Seeds:
    """Fresh seeds, each handed out once."""

    def __init__(self, seed: int) -> None:
        self._next = 2 * TRAINING_SEEDS * seed

    def take(self, count: int) -> NDArray[np.int64]:
        self._next += count
        return np.arange(self._next - count, self._next)
