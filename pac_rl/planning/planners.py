"""Planners: who proposes plans, and what they are worth. Random shooting, MPPI, candidates around a policy.

A planner never sees the guard: candidates are a function of the start, its settings and its own noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.random import Generator

from pac_core import GaussianForecast, InvalidInput
from pac_core.arrays import check_numbers, check_returned
from pac_core.bounds import check_integer
from pac_rl.dynamics.model import Dynamics
from pac_rl.planning.guard import Reward
from pac_rl.policies import actions_by
from pac_rl.systems.functions import AnySystem, Floats, Rngs

Cost: TypeAlias = Callable[[Any, Any], Any]
"""From predicted means `[..., H, D]` and plans `[..., H, A]` to costs `[...]`: smaller is better."""
FACTORS = tuple(round(0.05 * i, 2) for i in range(21))
"""By which a policy's actions are scaled: from nothing at all to the policy itself."""


def cheetah_reward(states: Any, actions: Any) -> Any:
    """Gymnasium's for the half-cheetah: forward velocity less a tenth of the squared actions."""
    return states[..., 0] - 0.1 * (actions**2).sum(-1)


@dataclass(frozen=True)
class ReturnCost:
    """A `Cost`: less the rewards, summed along the plan."""

    reward: Reward

    def __call__(self, mean: Any, plans: Any) -> Any:
        rewards = check_returned("reward", self.reward(mean, plans), plans.shape[:-1], mean)
        return -rewards.sum(-1)


class Planner(Protocol):
    """Proposes K plans from each start, and says what they are worth. It holds no guard and never learns T.

    One that carries out a plan of its own making (a mean, as CEM and MPPI do) has `pick(forecast, plans)`,
    too, which returns it `[E, H, A]`: refused unless it is one of the candidates. One that forecasts its
    plans while it makes them has `propose_with_forecast(starts, rngs)` and says of which `model`.
    """

    def propose(self, starts: Floats, rngs: Sequence[Generator]) -> Floats:
        """`[E, K, H, A]` from starts `[E, D]`; all that is drawn comes from the generator of its start."""

    def cost(self, forecast: GaussianForecast, plans: Floats) -> Floats:
        """`[E, K]` smaller is better; the forecast is `[E, K, H, D]`."""


def price_plans(cost: Cost, forecast: GaussianForecast, plans: Floats) -> Floats:
    """`[E, K]` what a user's cost says of plans `[E, K, H, A]`, refused unless it is one number a plan."""
    return np.asarray(check_returned("cost", cost(forecast.mean, plans), plans.shape[:2], plans))


@dataclass(frozen=True, eq=False)
class Shooting:
    """Random shooting: K plans drawn from a start, the cheapest safe one carried out.

    sample_plans: from a state `[D]`, a generator, K and H to plans `[K, H, A]`
    price: see `Cost`
    """

    sample_plans: Callable[[Floats, Generator, int, int], Any]
    price: Cost
    candidates: int
    horizon: int = 0

    def at(self, horizon: int) -> Shooting:
        """The same for plans of H steps."""
        return replace(self, horizon=horizon)

    def propose(self, starts: Floats, rngs: Rngs) -> Floats:
        made = []
        for start, rng in zip(starts, rngs, strict=True):
            plans = np.asarray(self.sample_plans(start.copy(), rng, self.candidates, self.horizon))
            if plans.shape[:2] != (self.candidates, self.horizon) or plans.ndim != 3:
                wanted = f"[{self.candidates}, {self.horizon}, A]"
                raise InvalidInput(f"sample_plans must return plans of shape {wanted}, got {plans.shape}")
            made.append(plans)
        return np.stack(made).astype(np.float64)

    def cost(self, forecast: GaussianForecast, plans: Floats) -> Floats:
        return price_plans(self.price, forecast, plans)


@dataclass(frozen=True, eq=False)
class AroundPolicy:
    """Candidates around a policy: its actions along the predicted mean, times each factor, within the range.

    act: from states `[N, D]` to actions `[N, A]`; `of` makes one of a policy, see `actions_by`
    model: which predicts where the policy will see itself
    low, high: `[A]` the range of actions
    price: see `Cost`; None prefers the largest factor
    """

    act: Callable[[Floats], Any]
    model: Dynamics
    low: Floats
    high: Floats
    price: Cost | None = None
    factors: tuple[float, ...] = FACTORS
    horizon: int = 6

    def __post_init__(self) -> None:
        check_integer("horizon", self.horizon, least=1)
        check_numbers("factors", self.factors, "[K]", finite=True)

    @classmethod
    def of(cls, system: AnySystem, model: Dynamics, policy: Any, **options: Any) -> AroundPolicy:
        """Around a policy of any kind, see `actions_by`; options are the fields."""
        return cls(actions_by(system, policy), model, system.low, system.high, **options)

    def at(self, horizon: int) -> AroundPolicy:
        """The same for plans of H steps."""
        return replace(self, horizon=horizon)

    def propose(self, starts: Floats, rngs: Rngs) -> Floats:
        return self.propose_with_forecast(starts, rngs)[0]

    def propose_with_forecast(self, starts: Floats, rngs: Rngs) -> tuple[Floats, GaussianForecast]:
        """Plans `[E, K, H, A]` and their forecast `[E * K, H, D]`, of one pass where the model allows it."""
        table = (len(starts), len(self.factors), self.horizon)
        scale = np.tile(np.asarray(self.factors), len(starts))[:, None]

        def act(t: int, states: Any) -> Any:
            factor, low, high = (part.astype(states.dtype) for part in (scale, self.low, self.high))
            made = check_returned("the policy's actions", self.act(states), (len(states), len(low)), states)
            return np.clip(factor * np.nan_to_num(made).astype(states.dtype), low, high)

        plans, forecast = self.model.follow(np.repeat(starts, len(self.factors), axis=0), act, self.horizon)
        return np.asarray(plans, dtype=np.float64).reshape(*table, -1), forecast

    def cost(self, forecast: GaussianForecast, plans: Floats) -> Floats:
        if self.price is None:
            return np.tile(-np.asarray(self.factors), (len(plans), 1))
        return price_plans(self.price, forecast, plans)


@dataclass(frozen=True, eq=False)
class MPPI:
    """Model predictive path integral control: K noisy copies of a plan, refined by their costs.

    Each round draws plans around the current one and takes their mean, weighed by exp(-cost / temperature).
    The K candidates are the last round's, the refined mean, and the plan it began with; so whichever is
    carried out is one of them.

    model: by which plans are refined
    price: see `Cost`
    deviation: of the noise, `[A]` or one number; correlated along the plan by `smoothness`, 0 to 1
    """

    model: Dynamics
    price: Cost
    low: Floats
    high: Floats
    candidates: int = 64
    rounds: int = 3
    temperature: float = 1.0
    deviation: Any = 0.5
    smoothness: float = 0.5
    horizon: int = 10

    def at(self, horizon: int) -> MPPI:
        """The same for plans of H steps."""
        return replace(self, horizon=horizon)

    def propose(self, starts: Floats, rngs: Rngs) -> Floats:
        check_integer("candidates", self.candidates, least=3)
        (e, k), width = (len(starts), self.candidates - 2), len(self.low)
        middle = (np.asarray(self.low) + self.high) / 2
        first = mean = np.broadcast_to(middle, (e, self.horizon, width))
        drawn = np.empty((e, 0, self.horizon, width))
        for _ in range(self.rounds):
            noise = np.stack([rng.standard_normal((k, self.horizon, width)) for rng in rngs])
            for t in range(1, self.horizon):
                noise[:, :, t] *= np.sqrt(1 - self.smoothness**2)
                noise[:, :, t] += self.smoothness * noise[:, :, t - 1]
            drawn = np.clip(mean[:, None] + self.deviation * noise, self.low, self.high)
            flat = drawn.reshape(e * k, self.horizon, width)
            found = self.model(np.repeat(starts, k, axis=0), flat)
            whole = GaussianForecast(*(x.reshape(e, k, *x.shape[1:]) for x in (found.mean, found.var)))
            cost = np.nan_to_num(price_plans(self.price, whole, drawn), nan=np.inf)
            least = cost.min(axis=1, keepdims=True)
            weight = np.exp(-(cost - np.where(np.isfinite(least), least, 0)) / self.temperature)
            total = weight.sum(axis=1, keepdims=True)
            weight = np.where(total > 0, weight / np.where(total > 0, total, 1), 1 / k)
            mean = np.clip(np.einsum("ek,ekha->eha", weight, drawn), self.low, self.high)
        return np.concatenate([drawn, mean[:, None], first[:, None]], axis=1)

    def cost(self, forecast: GaussianForecast, plans: Floats) -> Floats:
        return price_plans(self.price, forecast, plans)


def propose(planner: Planner, system: AnySystem, states: Floats, rngs: Rngs) -> Floats:
    """`[E, K, H, A]` the candidates from states `[E, D]`; refused outside the range of actions."""
    return check_plans(planner.propose(states, rngs), system, len(states))


def check_plans(plans: Any, system: AnySystem, starts: int) -> Floats:
    """Plans `[E, K, H, A]` of a planner, refused in another shape or outside the range of actions."""
    found = np.asarray(plans, dtype=np.float64)
    if found.ndim != 4 or len(found) != starts or found.shape[3] != len(system.low):
        raise InvalidInput(
            f"propose must return plans [{starts}, K, H, {len(system.low)}], got {found.shape}"
        )
    if not (inside := (found >= system.low) & (found <= system.high)).all():
        rule = f"within low {system.low} and high {system.high}"
        raise InvalidInput(f"plans must stay {rule}, got {found[~inside][0]}")
    return found
