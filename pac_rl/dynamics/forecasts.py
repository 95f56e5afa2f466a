"""Forecasts over a horizon, for the closed loop and for given plans; plans as a planner proposes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pac_core import GaussianForecast, InvalidInput
from pac_core.arrays import Array, convert_like
from pac_core.bounds import check_integer
from pac_rl.dynamics.ensemble import MANY, Ensemble
from pac_rl.policies import Policy, actions, check_policy
from pac_rl.rollouts import check_seeds
from pac_rl.systems import Environment, Floats

BATCH = 128
"""Forecasts that are computed together; a smaller batch is padded to it, see `rollouts.BATCH`."""
PARTICLES = 4
"""Particles of each member."""


class StepModel(Protocol):
    """One step of M members, such as an `Ensemble`; `Dynamics.of` makes one of any net.

    dims, action_dims: D and A
    units: `[D]` of the dtype and on the device that it computes with
    """

    @property
    def members(self) -> int: ...
    @property
    def dims(self) -> int: ...
    @property
    def action_dims(self) -> int: ...
    @property
    def units(self) -> Tensor: ...

    def step(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances `[M, B, D]` of the next state, from states `[B, D]` of all or `[M, B, D]`."""


Act: TypeAlias = Callable[[int, Tensor, Tensor], Tensor]
"""From the step, states `[..., B, D]` and noise `[..., B, A]` to actions `[..., B, A]`."""


def one_step(model: StepModel, states: Tensor, act: Act, horizon: int) -> tuple[Tensor, Tensor]:
    """The paper's: each step starts at the mean before it, and variances are those of one step.

    The mean is that of the members; the variance is their mean variance plus their disagreement.
    """
    steps = []
    still = states.new_zeros((len(states), model.action_dims))
    for t in range(horizon):
        states, var = pool_mixture(*model.step(states, act(t, states, still)))
        steps.append((states, var))
    return _stacked(steps)


def particles(
    model: StepModel,
    states: Tensor,
    act: Act,
    horizon: int,
    reached: Callable[[Tensor, Tensor], None] | None = None,
    *,
    count: int = PARTICLES,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of particles that each follow one member, noise and policy noise included.

    Variances are those of the whole way so far. All starts share the noise, so that the forecast is a
    function of its start.

    reached: called at each step with the particles `[M, P, B, D]` it led to and the actions `[M, P, B, A]`
    count: P, particles of each member
    """
    members, (batch, dims) = model.members, states.shape
    noise = _noise(members, horizon, count, dims + model.action_dims).to(states)
    cloud = states.expand(members, count, batch, dims)
    steps = []
    for t in range(horizon):
        drawn = noise[t, :, :, None].expand(-1, -1, batch, -1)
        done = act(t, cloud, drawn[..., dims:])
        # At the start all particles are in one place: where they do the same, one of them tells all.
        each = 1 if t == 0 and done.stride(1) == 0 and count * batch >= MANY else count
        flat = (part[:, :each].reshape(members, each * batch, -1) for part in (cloud, done))
        mean, var = (part.reshape(members, each, batch, dims) for part in model.step(*flat))
        mean, var = (part.expand(-1, count, -1, -1) for part in (mean, var))
        cloud = torch.addcmul(mean, var.sqrt(), drawn[..., :dims])
        if reached is not None:
            reached(cloud, done)
        steps.append(pool_mixture(mean.flatten(0, 1), var.flatten(0, 1)))
    return _stacked(steps)


PROPAGATIONS = {"one-step": one_step, "particles": particles}


def check_propagation(name: str) -> None:
    """Refuses what is none of `PROPAGATIONS`."""
    if name not in PROPAGATIONS:
        raise InvalidInput(f"propagation must be one of {', '.join(PROPAGATIONS)}, got {name!r}")


def forecast_closed_loop(
    ensemble: Ensemble,
    environment: Environment,
    policy: Policy,
    starts: Array,
    *,
    horizon: int,
    propagation: str = "particles",
    batch: int = BATCH,
) -> GaussianForecast:
    """Where the policy will take the robot from `starts` `[B, D]`, numpy or torch.

    A unit on which the ensemble explodes is marked as failed: it counts as an error, and its tube is empty.

    propagation: "one-step" is the paper's (accumulate its variances for the paper's tubes); see the
        functions of this file
    """
    check_match(ensemble, environment, policy)

    def act(t: int, states: Tensor, noise: Tensor) -> Tensor:
        return actions(environment, policy, states, noise)

    made = _in_batches(ensemble, starts, lambda rows: act, horizon, propagation, batch)
    return GaussianForecast(*made).mark_failures()


def forecast_plans(
    ensemble: Ensemble, starts: Array, plans: Array, *, propagation: str = "particles", batch: int = BATCH
) -> GaussianForecast:
    """Where the plans `[B, H, A]` will take the robot from `starts` `[B, D]`, numpy or torch.

    A plan on which the ensemble explodes is marked as failed, see `forecast_closed_loop`.
    """
    made = propagate_plans(ensemble, starts, plans, propagation=propagation, batch=batch)
    return GaussianForecast(*made).mark_failures()


def propagate_plans(
    model: StepModel,
    starts: Array,
    plans: Array,
    *,
    propagation: str,
    batch: int | None,
    count: int = PARTICLES,
) -> tuple[Array, Array]:
    """Mean and variance `[B, H, D]` of the plans `[B, H, A]` from `starts` `[B, D]`, numpy or torch.

    batch: None computes all of them at once, unpadded
    count: particles of each member
    """
    given = plan_tensor(model, starts, plans)

    def acting(rows: slice) -> Act:
        return _follow(pad_rows(given[rows], batch or len(given)))

    return _in_batches(model, starts, acting, plans.shape[1], propagation, batch, count)


def forecast_members(model: StepModel, starts: Array, plans: Array, *, batch: int | None = BATCH) -> Array:
    """`[M, B, H, D]` where each member alone expects the plans `[B, H, A]` to lead, numpy or torch."""
    origin, given, parts = start_tensor(model, starts), plan_tensor(model, starts, plans), []
    with torch.no_grad():
        for rows, count, begun in batches(origin, batch):
            states, done = begun.expand(model.members, -1, -1), pad_rows(given[rows], len(begun))
            steps = []
            for t in range(plans.shape[1]):
                states, _ = model.step(states, done[:, t].expand(model.members, -1, -1))
                steps.append(states)
            parts.append(torch.stack(steps, dim=2)[:, :count])
    ways = torch.cat(parts, dim=1)
    return ways if isinstance(starts, Tensor) else ways.cpu().numpy()


def _follow(plans: Tensor) -> Act:
    return lambda t, states, noise: plans[:, t].expand(*states.shape[:-1], -1)


def check_match(ensemble: Ensemble, environment: Environment, policy: Policy) -> None:
    """Refuses an ensemble or a policy of other dimensions than the environment's."""
    check_policy(environment, policy)
    if (ensemble.dims, ensemble.action_dims) != (len(environment.names), len(environment.low)):
        wanted = (
            f"{len(environment.names)} state and {len(environment.low)} action numbers for {environment.id}"
        )
        got = f"{ensemble.dims} and {ensemble.action_dims}"
        raise InvalidInput(f"the ensemble must be of {wanted}, got {got}")


def start_tensor(model: StepModel, starts: Array) -> Tensor:
    """`starts` as the model takes them, refused unless they are finite states `[B, D]`."""
    if len(starts.shape) != 2 or starts.shape[1] != model.dims or not len(starts):
        raise InvalidInput(f"starts must have shape [B, {model.dims}], got {tuple(starts.shape)}")
    return as_tensor("starts", starts, model)


def plan_tensor(model: StepModel, starts: Array, plans: Array) -> Tensor:
    """`plans` as the model takes them, refused unless they are finite and one per start."""
    if len(plans.shape) != 3 or tuple(plans.shape[::2]) != (len(starts), model.action_dims):
        wanted = f"[{len(starts)}, H, {model.action_dims}]"
        raise InvalidInput(f"plans must have shape {wanted}, got {tuple(plans.shape)}")
    return as_tensor("plans", plans, model)


def pool_mixture(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the mixture of Gaussians along the first axis."""
    center = mean.mean(dim=0)
    return center, (var + (mean - center) ** 2).mean(dim=0)  # torch's own var is several times slower


def _in_batches(
    model: StepModel,
    starts: Array,
    acting: Callable[[slice], Act],
    horizon: int,
    propagation: str,
    batch: int | None,
    count: int = PARTICLES,
) -> tuple[Array, Array]:
    """Mean and variance from all starts, in batches of one size."""
    check_propagation(propagation)
    check_integer("horizon", horizon, least=1)
    check_integer("particles", count, least=1)
    way = one_step if propagation == "one-step" else partial(particles, count=count)
    given, parts = start_tensor(model, starts), []
    with torch.no_grad():
        for rows, n, states in batches(given, batch):
            mean, var = way(model, states, acting(rows), horizon)
            parts.append((mean[:n], var[:n]))
    mean, var = (torch.cat(part) for part in zip(*parts, strict=True))
    return (mean, var) if isinstance(starts, Tensor) else (mean.cpu().numpy(), var.cpu().numpy())


def as_tensor(name: str, values: Any, model: StepModel) -> Tensor:
    """`values` on the model's device, refused unless finite."""
    tensor: Tensor = convert_like(model.units, values)
    if not torch.isfinite(tensor).all():
        raise InvalidInput(f"{name} must be finite numbers, got NaN or infinity")
    return tensor


def batches(states: Tensor, batch: int | None) -> Iterator[tuple[slice, int, Tensor]]:
    """Which rows, how many they are, and their states, padded so that every batch is computed at one size;
    all of them at once if that is None."""
    batch = len(states) if batch is None else check_integer("batch", batch, least=1)
    for first in range(0, len(states), batch):
        rows = slice(first, min(first + batch, len(states)))
        yield rows, rows.stop - first, pad_rows(states[rows], batch)


def pad_rows(rows: Tensor, batch: int) -> Tensor:
    """`rows` with zeros below, up to a whole batch."""
    if len(rows) == batch:
        return rows
    return torch.nn.functional.pad(rows, (0,) * (2 * rows.ndim - 1) + (batch - len(rows),))


def _stacked(steps: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    means, variances = zip(*steps, strict=True)
    return torch.stack(means, dim=1), torch.stack(variances, dim=1)


@lru_cache(maxsize=8)
def _noise(members: int, horizon: int, count: int, width: int) -> Tensor:
    """`[H, M, P, width]` standard normal, with mean 0 and variance 1 over the particles of a step; a single
    one follows the mean."""
    drawn = np.random.default_rng(0).standard_normal((horizon, members * count, width))
    drawn -= drawn.mean(axis=1, keepdims=True)
    drawn /= np.maximum(drawn.std(axis=1, keepdims=True), 1e-12)
    return torch.from_numpy(drawn.reshape(horizon, members, count, width))


SPREADS = (0.1, 0.3, 0.6)
"""Deviations of the perturbation; each plan draws one of them."""


def propose_plans(
    ensemble: Ensemble,
    environment: Environment,
    policy: Policy,
    starts: Floats,
    seeds: NDArray[np.int64],
    *,
    horizon: int,
    batch: int = BATCH,
) -> Floats:
    """`[B, H, A]` one plan for each start `[B, D]`: what a planner that starts from the policy would weigh.

    The plan is fixed before the first step is taken; its perturbation comes from the unit's seed.
    """
    check_match(ensemble, environment, policy)
    check_integer("horizon", horizon, least=1)
    given, names = start_tensor(ensemble, starts), check_seeds(seeds)
    if len(names) != len(given):
        raise InvalidInput(f"seeds must be one for each start, got {len(names)} for {len(given)} starts")
    low, high = environment.low, environment.high
    draws = [np.random.default_rng((1, int(seed))) for seed in names]  # another stream than the rollout's
    noise = [draw.choice(SPREADS) * draw.standard_normal((horizon, len(low))) for draw in draws]
    perturbation = np.stack(noise) * (high - low) / 2
    plans = np.empty_like(perturbation)
    for rows, n, states in batches(given, batch):

        def act(t: int, states: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
            wanted = actions(environment, policy, states, noise).nan_to_num()  # where the ensemble explodes
            plans[rows, t] = np.clip(wanted[:n].cpu().numpy() + perturbation[rows, t], low, high)  # noqa: B023
            wanted[:n] = convert_like(wanted, plans[rows, t])  # noqa: B023
            return wanted

        with torch.no_grad():
            one_step(ensemble, states, act, horizon)
    return plans


@dataclass(frozen=True, eq=False)
class ScoredForecast(GaussianForecast):
    """A forecast, and what its plans are worth.

    returns: `[B]` summed rewards, the mean over the particles
    """

    returns: Tensor


@dataclass(frozen=True, eq=False)
class ScoredPlans:
    """From starts `[N, D]` and plans `[N, H, A]` to their `ScoredForecast`; for `guard_plans`.

    Means and variances are those of `forecast_plans` with particles, so a predictor calibrated on those fits.

    reward: from states `[..., D]` after each action and actions `[..., A]` to rewards `[...]`
    batch: plans that go through the model together
    """

    ensemble: Ensemble
    reward: Callable[[Tensor, Tensor], Tensor]
    batch: int = 400

    def __post_init__(self) -> None:
        check_integer("batch", self.batch, least=1)

    def __call__(self, starts: Any, plans: Any) -> ScoredForecast:
        origin, given = start_tensor(self.ensemble, starts), plan_tensor(self.ensemble, starts, plans)
        with torch.no_grad():
            parts = [self._batch(states, given[rows]) for rows, _, states in batches(origin, self.batch)]
        return ScoredForecast(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def _batch(self, origin: Tensor, plans: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, act = origin.new_zeros(self.batch), _follow(pad_rows(plans, self.batch))

        def reached(states: Tensor, actions: Tensor) -> None:
            rewards, shape = self.reward(states, actions), tuple(states.shape[:-1])
            if tuple(rewards.shape) != shape:
                raise InvalidInput(f"reward must return shape {shape}, got {tuple(rewards.shape)}")
            total.add_(rewards.flatten(0, 1).mean(dim=0))

        mean, var = particles(self.ensemble, origin, act, plans.shape[1], reached)
        return mean[: len(plans)], var[: len(plans)], total[: len(plans)]
