"""Candidates around a policy, the guarded planner that picks among them, and what a policy earns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pac_core import GaussianForecast, InvalidInput, TubeChecker
from pac_core.arrays import Array, convert_like
from pac_core.bounds import check_integer
from pac_core.safety import Limit
from pac_rl.dynamics import Ensemble
from pac_rl.forecasts import check_match, one_step, start_tensor
from pac_rl.planning.guard import (
    Fallback,
    FittedTubes,
    Guard,
    MemberForecast,
    NoSafePlan,
    Reward,
    TubeMaker,
    check_fallback,
    shaped,
)
from pac_rl.policies import Function, Policy, actions, check_policy
from pac_rl.systems import Environment, Floats, at_every_step, read_physics

FACTORS = tuple(round(0.05 * i, 2) for i in range(21))
"""By which the policy's actions are scaled: from nothing at all to the policy itself."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """C plans from each of E starts.

    plans: `[E, C, H, A]`
    mean, var: `[E, C, H, D]` forecast states, with the variances of each step alone
    members: `[M, E, C, H, D]` the way each member of the ensemble sees it alone; None unless asked for
    """

    plans: Tensor
    mean: Tensor
    var: Tensor
    members: Tensor | None = None

    @property
    def forecast(self) -> GaussianForecast:
        """`[E * C, H, D]` of all plans, a row each: what tubes are made of."""
        mean, var = (part.reshape(-1, *part.shape[2:]) for part in (self.mean, self.var))
        if self.members is None:
            return GaussianForecast(mean, var)
        return MemberForecast(mean, var, self.members.reshape(len(self.members), *mean.shape))

    def pick(self, which: Tensor, instead: Candidates | None = None) -> Candidates:
        """One plan from each start: candidate `which` `[E]`, or where that is -1, the first of `instead`."""
        each, own = torch.arange(len(which), device=which.device), (which >= 0)[:, None, None]

        def part(mine: Tensor, stand_in: Tensor) -> Tensor:
            return torch.where(own, mine[each, which.clamp(min=0)], stand_in[:, 0])[:, None]

        other: Any = self if instead is None else instead
        made = {name: part(getattr(self, name), getattr(other, name)) for name in ("plans", "mean", "var")}
        if self.members is not None:
            ways = zip(self.members, other.members, strict=True)
            made["members"] = torch.stack([part(*pair) for pair in ways])
        return Candidates(**made)


def candidates_around(
    policy: Policy,
    ensemble: Ensemble,
    environment: Environment,
    starts: Array,
    *,
    horizon: int,
    factors: Sequence[float] = FACTORS,
    members: bool = False,
) -> Candidates:
    """The policy's mean actions along the predicted mean, times each factor, from starts `[E, D]`.

    All E * C plans go through the ensemble together, once: what it predicts is what the policy acts on,
    so plans and forecast come out of the same pass.

    members: whether to send the plans through each member alone, too, which takes as long again
    """
    check_match(ensemble, environment, policy)
    check_integer("horizon", horizon, least=1)
    given = start_tensor(ensemble, starts)
    scales = np.asarray(factors, dtype=np.float64)
    if scales.ndim != 1 or not len(scales) or not np.isfinite(scales).all():
        raise InvalidInput(f"factors must be one or more finite numbers, got {factors!r}")
    low, high = (convert_like(given, end) for end in (environment.low, environment.high))
    by_row = torch.from_numpy(scales).to(given).repeat(len(given))[:, None]
    plans = given.new_empty((len(by_row), horizon, len(low)))

    def act(t: int, states: Tensor, noise: Tensor) -> Tensor:
        plans[:, t] = torch.clamp(by_row * actions(environment, policy, states, noise), low, high)
        return plans[:, t]

    table, alone = (len(given), len(scales), horizon), None
    with torch.no_grad():
        origin = given.repeat_interleave(len(scales), dim=0)
        mean, var = one_step(ensemble, origin, act, horizon)
        if members:
            alone = member_trajectories(ensemble, origin, plans).reshape(-1, *table, ensemble.dims)
    return Candidates(plans.reshape(*table, -1), mean.reshape(*table, -1), var.reshape(*table, -1), alone)


def member_trajectories(ensemble: Ensemble, starts: Tensor, plans: Tensor) -> Tensor:
    """`[M, B, H, D]` where each member alone expects the plans `[B, H, A]` to lead."""
    members = ensemble.settings.members
    states, steps = starts.expand(members, -1, -1), []
    for t in range(plans.shape[1]):
        states, _ = ensemble.step(states, plans[:, t].expand(members, -1, -1))
        steps.append(states)
    return torch.stack(steps, dim=2)


def policy_returns(
    environment: Environment, policy: Policy, *, episodes: int = 3, steps: int = 1000
) -> Floats:
    """`[episodes]` what the policy earns by Gymnasium's own reward, with its noise, from resets of their own.

    By it one sees whether a file was read as it was meant: on other observations than it was trained on, a
    good policy earns nothing.
    """
    check_policy(environment, policy)
    gym, rng, found = environment.gym, np.random.default_rng(0), np.zeros(episodes)
    for i in range(episodes):
        before = physics = environment.reset(int(rng.integers(2**31)))[None]
        for _ in range(steps):
            states = torch.from_numpy(environment.observe(gym, before, physics))
            noise = torch.from_numpy(rng.standard_normal((1, policy.outputs)))
            done = actions(environment, policy, states, noise)[0].numpy()
            _, reward, ended, _, _ = gym.step(done)
            before, physics = physics, read_physics(gym)[None]
            found[i] += float(reward)
            if ended or not np.isfinite(physics).all():
                break
    return found


def returns_in_words(environment: Environment, policy: Policy, **options: Any) -> str:
    """`policy_returns` for a person."""
    found = policy_returns(environment, policy, **options)
    return (
        f"mean return {found.mean():,.0f} ({found.min():,.0f} to {found.max():,.0f}) in {len(found)} "
        f"episodes of {environment.id}; if it should earn more, it sees other things than in training"
    )


CHOICES = ("return", "factor")


def cheetah_reward(states: Any, actions: Any) -> Any:
    """Gymnasium's for the half-cheetah: forward velocity less a tenth of the squared actions."""
    return states[..., 0] - 0.1 * (actions**2).sum(-1)


@dataclass(frozen=True, eq=False)
class Decision:
    """What the controller does in E states, on the ensemble's device.

    acting: the plan that acts in each state, a candidate or the fallback's, with its forecast
    chosen: `[E]` the candidate it is; -1 where none was safe and the fallback acts
    margin: `[E]` how far the chosen candidate's tube keeps the limits; that of the least unsafe one where
        none was safe, NaN if nothing can be said
    safe: `[E, C]` which candidates are safe
    """

    acting: Candidates
    chosen: Tensor
    margin: Tensor
    safe: Tensor
    candidates: Candidates

    @property
    def plans(self) -> Array:
        """`[E, H, A]` what will be done, if nobody plans again."""
        return self.acting.plans[:, 0]

    @property
    def accepted(self) -> Tensor:
        """`[E]` whether a candidate was safe."""
        return self.chosen >= 0


@dataclass(frozen=True, eq=False)
class Controller:
    """Re-plans at every step: candidates around a policy, the safe ones by their tubes, the best of those.

    limits: what must hold
    guard: how candidates get their tubes, such as `FittedTubes`; None for no guard at all
    horizon: H, steps of a plan
    factors: of the candidates, see `candidates_around`
    reward: by which safe candidates are ranked, summed along the predicted mean
    choice: "return", the largest predicted return; or "factor", the largest factor
    checked: how many steps of a plan must keep the limits; all H by default. Fewer leave the later ones to
        later plans, which are made before they are reached
    fallback: where no candidate is safe, see `Fallback`; or another policy

    It acts on the state alone, without noise: equal states get equal actions in a batch of equal size.
    A guard is no promise by itself. What is promised of a guarded controller is proved by running it, on
    fresh episodes, at a scale that was written down before.
    """

    environment: Environment
    ensemble: Ensemble
    policy: Policy
    limits: tuple[Limit, ...]
    guard: TubeMaker | None
    horizon: int = 6
    factors: tuple[float, ...] = FACTORS
    reward: Reward = cheetah_reward
    choice: str = "return"
    checked: int | None = None
    fallback: Fallback | Policy = field(kw_only=True)

    def __post_init__(self) -> None:
        check_match(self.ensemble, self.environment, self.policy)
        check_integer("horizon", self.horizon, least=1)
        at_every_step(self.limits)
        if self.checked is not None and check_integer("checked", self.checked, least=1) > self.horizon:
            raise InvalidInput(f"checked must be at most the horizon {self.horizon}, got {self.checked}")
        TubeChecker(self.limits)  # refuses none at all
        if self.choice not in CHOICES:
            raise InvalidInput(f"choice must be one of {', '.join(CHOICES)}, got {self.choice!r}")
        if not isinstance(check_fallback(self.fallback), str):
            check_policy(self.environment, self._backup)

    def scaled(self, scale: float) -> Controller:
        """The same controller with tubes of another scale."""
        if not isinstance(self.guard, FittedTubes):
            raise InvalidInput(f"guard must be FittedTubes to be scaled, got {type(self.guard).__name__}")
        return replace(self, guard=self.guard.scaled(scale))

    def bare(self) -> Controller:
        """The policy itself, with nobody watching."""
        return replace(self, guard=None, factors=(1.0,), horizon=1, checked=None)

    def falling_back(self) -> Controller:
        """The fallback acting alone, as if nothing were ever safe."""
        alone: dict[str, Any] = {"guard": None, "horizon": 1, "checked": None}
        if self.fallback == "stop":
            raise InvalidInput("fallback must be one that acts, to run its episodes, got 'stop'")
        if self.fallback == "hold":
            return replace(self, factors=(0.0,), **alone)
        return replace(self, policy=self._backup, factors=(1.0,), **alone)

    def decide(self, states: Array, *, asked: Tensor | None = None) -> Decision:
        """What to do in `states` `[E, D]`.

        asked: `[E]` bool, which of the states matter; the others fill up the batch

        From a state that is not finite no candidate is safe; a fallback that is a policy cannot act there.
        """
        given: Tensor = convert_like(self.ensemble.units, states)
        known = given.isfinite().all(dim=-1)
        sound = given.where(known[..., None], 0.0)
        found = self._around(self.policy, sound, self.factors)
        rows = found.plans.shape[:2]
        if self.guard is None:
            safe = torch.ones(rows, dtype=torch.bool, device=found.plans.device)
            margin = torch.full(rows, torch.nan, device=found.plans.device)
        else:
            guard = Guard(TubeChecker(self.limits), self.guard, horizon=self.horizon)
            checked = guard.check(found.forecast, found.plans.flatten(0, 1))
            margins = checked.margin[:, : self.checked].flatten(1)
            safe, margin = (margins >= 0).all(dim=1).reshape(rows), margins.amin(dim=1).reshape(rows)
        worth = self._worth(found)
        # A plan that cannot be valued is not the best one.
        able = safe & torch.isfinite(worth) & known[:, None]
        best = torch.where(able, worth, -torch.inf).argmax(dim=1)
        # Where nothing is safe, the margin that is told is the least unsafe one's.
        told = torch.where(able.any(dim=1), best, margin.nan_to_num(nan=-torch.inf).argmax(dim=1))
        each = torch.arange(len(best), device=best.device)
        chosen = torch.where(able.any(dim=1), best, -1)
        lost = (chosen < 0) if asked is None else (chosen < 0) & asked
        # To hold, nothing need be known of a state; a policy must see it.
        seen = sound if isinstance(self.fallback, str) else given
        instead = self.fallback_candidates(seen) if bool(lost.any()) else None
        acting = found.pick(chosen, instead)
        acting = replace(acting, mean=acting.mean.where(known[:, None, None, None], torch.nan))
        return Decision(acting, chosen, margin[each, told].where(known, torch.nan), able, found)

    def fallback_candidates(self, states: Array) -> Candidates:
        """What the fallback would do from `states` `[E, D]`, one candidate each, with its forecast."""
        if self.fallback == "stop":
            raise NoSafePlan(f"no candidate of {len(self.factors)} is safe")
        if isinstance(self.fallback, str):
            return self._around(self.policy, states, (0.0,))
        return self._around(self._backup, states, (1.0,))

    @property
    def _backup(self) -> Policy:
        """The fallback as a policy; a function of one state is called for each."""
        backup: Any = self.fallback
        if hasattr(backup, "outputs"):
            return cast(Policy, backup)
        sizes = len(self.environment.names), len(self.environment.low)
        return Function(lambda states: np.stack([backup(state) for state in states]), *sizes, sees="state")

    def _around(self, policy: Policy, states: Array, factors: Sequence[float]) -> Candidates:
        around, members = (policy, self.ensemble, self.environment), getattr(self.guard, "members", False)
        return candidates_around(*around, states, horizon=self.horizon, factors=factors, members=members)

    def _worth(self, found: Candidates) -> Array:
        """`[E, C]` by which safe candidates are ranked."""
        if self.choice == "factor":
            return torch.as_tensor(self.factors).to(found.mean).expand(found.plans.shape[:2])
        rewards = self.reward(found.mean, found.plans)
        return shaped("reward", rewards, tuple(found.plans.shape[:3]), found.mean).sum(dim=-1)
