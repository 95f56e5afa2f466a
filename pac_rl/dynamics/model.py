"""Anybody's model: what is predicted, put into one protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pac_core import GaussianForecast, InvalidInput, PACError
from pac_core.arrays import Array, check_numbers, check_returned, convert_like
from pac_core.bounds import check_integer
from pac_rl.dynamics.ensemble import Ensemble
from pac_rl.dynamics.forecasts import (
    PARTICLES,
    StepModel,
    check_propagation,
    forecast_members,
    propagate_plans,
)

Floats: TypeAlias = NDArray[np.floating[Any]]
FIRST = 16
"""Rows on which it is found out what a function takes."""
Follow: TypeAlias = Callable[[int, Floats], Any]
"""From the step and states `[N, D]` to actions `[N, A]`, numpy."""


@dataclass(frozen=True, eq=False)
class Dynamics:
    """What is predicted: from starts `[N, D]` and plans `[N, H, A]` to means and variances `[N, H, D]`.

    forecast: such a function, of numpy arrays or of torch tensors, which is found out at the first call; for
        a model of one step, an ensemble of ours or one of mbrl-lib's see `of`
    members: `(starts, plans) -> [M, N, H, D]`, where each member alone expects the plans to lead; for the
        heuristic that trusts the worst of them
    ensemble: ours, if it is one: that knows which rollouts it was trained on
    """

    forecast: Callable[[Any, Any], tuple[Any, Any]]
    members: Callable[[Any, Any], Any] | None = None
    ensemble: Ensemble | None = None

    def __post_init__(self) -> None:
        if not callable(self.forecast):
            raise InvalidInput(f"forecast must be a function, got {type(self.forecast).__name__}")

    @classmethod
    def of(
        cls,
        model: Any,
        *,
        members: int | None = None,
        particles: int = PARTICLES,
        propagation: str = "particles",
        batch: int | None = 256,
        device: str = "cpu",
    ) -> Dynamics:
        """From a model of one step, which is followed through the plan.

        model: a function, or torch module, of M members: from states `[M, B, D]` and actions `[M, B, A]` to
            means and variances `[M, B, D]` of the next states, numpy or torch; or an `Ensemble`; or
            mbrl-lib's `OneDTransitionRewardModel` or `ModelEnv` as it was trained, see `Ensemble.from_mbrl`
        members: M of a function; the others know it
        particles: of each member; they share a table of noise, so that a forecast is a function of its start
        propagation: "particles", whose variances are those of the whole way so far; or "one-step", the
            paper's, where each step starts at the mean before it
        batch: plans that go through it together, padded, so that bits do not depend on how many are asked;
            None for all of them, unpadded
        device: where it computes
        """
        check_propagation(propagation)
        check_integer("particles", particles, least=1)
        if batch is not None:
            check_integer("batch", batch, least=1)
        own = isinstance(model, Ensemble)
        if not own and any(kind.__module__.split(".")[0] == "mbrl" for kind in type(model).__mro__):
            model = Ensemble.from_mbrl(getattr(model, "dynamics_model", model), "mbrl-lib's model")
        if isinstance(model, Ensemble):
            if members not in (None, model.members):
                raise InvalidInput(f"members must be None or the model's own {model.members}, got {members}")
            net: Any = model if model.device == torch.device(device) else model.to(device)
        elif not callable(model):
            kinds = "a function of states and actions, an Ensemble or a model of mbrl-lib"
            raise InvalidInput(f"model must be {kinds}, got {type(model).__name__}")
        else:
            net = Adapter(model, "net", device)
        given = net.members if members is None and isinstance(net, Ensemble) else members
        count = check_integer("members", given, least=1)
        way = Propagated(net, count, propagation, particles, batch)
        return cls(way, way.members_alone, net if own else None)

    def __call__(self, starts: Any, plans: Any) -> GaussianForecast:
        """The forecast of plans `[N, H, A]` from starts `[N, D]`, in the model's precision.

        A plan on which the model explodes is marked as failed.
        """
        origin = check_numbers("starts", starts, "[N, D]", finite=True)
        given = check_numbers("plans", plans, "[N, H, A]", finite=True)
        if len(origin) != len(given):
            raise InvalidInput(f"plans must be one for each start, got {len(given)} for {len(origin)} starts")
        return GaussianForecast(*self._run(origin, given)).mark_failures()

    def follow(self, starts: Any, act: Follow, horizon: int) -> tuple[Floats, GaussianForecast]:
        """Plans `[N, H, A]` that `act` makes along the predicted mean, and their forecast.

        One pass through a model of one step with "one-step" propagation; otherwise its mean is found step by
        step, and the whole plans are forecast at the end.

        act: see `Follow`; where the model exploded it is asked at the start, and the plan is marked as failed
        """
        check_integer("horizon", horizon, least=1)
        origin = check_numbers("starts", starts, "[N, D]", finite=True)
        if isinstance(getattr(self.forecast, "net", None), Ensemble):
            origin = origin.astype(np.float32)  # as the ensemble sees it
        states, plans, steps = origin, list[Floats](), list[tuple[Floats, Floats]]()
        for t in range(horizon):
            made = act(t, states.copy())
            width = (plans[0].shape if plans else (1, *np.shape(made)))[-1]
            done = check_returned("actions of act", made, (len(states), width), states)
            if not np.isfinite(done).all():
                raise InvalidInput("act must return finite actions, got NaN or infinity")
            mean, var = self._run(states, done[:, None])
            plans.append(done)
            steps.append((mean, var))
            sound = np.isfinite(mean[:, 0]).all(axis=1, keepdims=True)
            states = np.where(sound, mean[:, 0], origin.astype(mean.dtype))
        whole = np.stack(plans, axis=1)
        if getattr(self.forecast, "propagation", "") == "one-step":
            parts = [np.concatenate(part, axis=1) for part in zip(*steps, strict=True)]
            return whole, GaussianForecast(*parts).mark_failures()
        return whole, GaussianForecast(*self._run(origin, whole)).mark_failures()

    def refuse_seen(self, ids: Any, part: str = "tune, calibrate or test") -> None:
        """Raise `OverlappingSplits` if an ensemble of ours was trained on one of these units."""
        if self.ensemble is not None:
            self.ensemble.refuse_seen(ids, part)

    @cached_property
    def _function(self) -> Callable[[Any, Any], tuple[Any, Any]]:
        return self.forecast if isinstance(self.forecast, Propagated) else Adapter(self.forecast, "forecast")

    def _run(self, starts: Floats, plans: Floats) -> tuple[Floats, Floats]:
        if isinstance(self._function, Adapter):
            self._function.kind(starts[:FIRST], plans[:FIRST])
        shape = (*plans.shape[:2], starts.shape[1])
        mean, var = self._function(starts, plans)
        return _as_numpy("mean", mean, shape), _as_numpy("variance", var, shape)


def _as_numpy(name: str, values: Any, shape: tuple[int, ...]) -> Floats:
    """In float32 if it was computed in that."""
    given = values if isinstance(values, Tensor) else np.asarray(values)
    if tuple(given.shape) != shape:
        raise InvalidInput(f"the model's {name} must have shape {shape}, got {tuple(given.shape)}")
    kind = np.float32 if "float32" in str(given.dtype) else np.float64
    return np.asarray(convert_like(np.zeros(0, kind), given))


@dataclass(frozen=True, eq=False)
class Adapter:
    """A user's function of two arrays that returns a mean and a variance, called with what it takes.

    Numpy arrays or torch tensors, and of which precision, is found out on the first rows and remembered.
    """

    function: Callable[[Any, Any], Any]
    name: str
    device: str = "cpu"

    @cached_property
    def _found(self) -> list[Array]:
        """An empty array of the kind that it takes, once that is known; what is cached is in no digest."""
        return []

    def __call__(self, states: Array, actions: Array) -> tuple[Any, Any]:
        return self._call(self._found[0], states, actions)

    def kind(self, states: Array, actions: Array) -> Array:
        """An empty array of the kind that it takes; refused if it takes none, or answers now so, now so."""
        if not self._found:
            self._found.append(self._find(states, actions))
        return self._found[0]

    def _find(self, states: Array, actions: Array) -> Array:
        single, double = (
            torch.zeros(0, dtype=kind, device=self.device) for kind in (torch.float32, torch.float64)
        )
        numpy = [] if isinstance(self.function, nn.Module) else [np.zeros(0), np.zeros(0, np.float32)]
        taken, errors = list[tuple[Array, Any]](), dict[str, Exception]()
        for like in (*numpy, single, double):
            tensors = isinstance(like, Tensor)
            try:
                made = self._call(like, states, actions)
            except PACError:
                raise
            except Exception as error:  # whatever a stranger's function does with what it does not take
                errors.setdefault("torch tensors" if tensors else "numpy arrays", error)
                continue
            taken.append((like, made))
            if tensors or not any(isinstance(part, Tensor) for part in made):
                break
        if not taken:
            shapes = f"of shapes {tuple(states.shape)} and {tuple(actions.shape)}"
            said = ", ".join(f"{error!r} for {kind}" for kind, error in errors.items())
            rule = f"take numpy arrays or torch tensors {shapes}"
            raise InvalidInput(f"{self.name} must {rule}, but raised {said}")
        like, made = taken[-1]
        # Methods of one name may differ: numpy's std divides by n, torch's by n - 1.
        for other in (like,) if isinstance(like, Tensor) else (like, double):
            try:
                again = self._call(other, states, actions)
            except Exception:  # it takes the one kind only
                continue
            if not all(map(_agree, made, again)):
                rule = "the same numbers whenever it is asked (a module in eval mode), numpy or torch alike"
                raise InvalidInput(f"{self.name} must return {rule}, got others when asked again")
        return like

    def _call(self, like: Array, states: Array, actions: Array) -> tuple[Any, Any]:
        # Copies: a function that changes what it is given must not change what is ours.
        given = (x.clone() if isinstance(x, Tensor) else np.array(x) for x in (states, actions))
        with torch.no_grad():
            made = self.function(*(convert_like(like, x) for x in given))
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise InvalidInput(f"{self.name} must return a mean and a variance, got {type(made).__name__}")
        return made[0], made[1]


def _agree(one: Any, other: Any) -> bool:
    a, b = (np.asarray(convert_like(np.zeros(0), part)) for part in (one, other))
    scale = np.abs(a[np.isfinite(a)]).max(initial=0.0)
    return a.shape == b.shape and np.allclose(a, b, rtol=0, atol=1e-6 * scale, equal_nan=True)


@dataclass(frozen=True, eq=False)
class Members:
    """A user's function of one step as a `StepModel`."""

    net: Adapter
    members: int
    action_dims: int
    units: Tensor

    @property
    def dims(self) -> int:
        return len(self.units)

    def step(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        given = [part.expand(self.members, *part.shape[-2:]) for part in (states, actions)]
        mean, var = self.net(*given)
        return self._checked("mean", mean, given[0]), self._checked("variance", var, given[0])

    def _checked(self, name: str, part: Any, states: Tensor) -> Tensor:
        wanted, shape = tuple(states.shape), tuple(np.shape(part))
        if shape != wanted:
            raise InvalidInput(f"net must return a {name} of shape [M, B, D] = {wanted}, got {shape}")
        tensor: Tensor = convert_like(self.units, part)
        return tensor


@dataclass(frozen=True, eq=False)
class Propagated:
    """Forecasts of plans by a model of one step; see `Dynamics.of`."""

    net: Ensemble | Adapter
    members: int
    propagation: str
    particles: int
    batch: int | None

    def __call__(self, starts: Floats, plans: Floats) -> tuple[Floats, Floats]:
        options: Any = {"propagation": self.propagation, "count": self.particles, "batch": self.batch}
        return propagate_plans(self._model(starts, plans), starts, plans, **options)

    def members_alone(self, starts: Any, plans: Any) -> Floats:
        """`[M, N, H, D]`."""
        given = check_numbers("starts", starts, "[N, D]"), check_numbers("plans", plans, "[N, H, A]")
        return np.asarray(forecast_members(self._model(*given), *given, batch=self.batch))

    def _model(self, starts: Floats, plans: Floats) -> StepModel:
        (dims, width), net = (starts.shape[1], plans.shape[2]), self.net
        if isinstance(net, Ensemble):
            if (net.dims, net.action_dims) != (dims, width):
                got = f"got one of {net.dims} and {net.action_dims}"
                raise InvalidInput(f"the model must be of {dims} state and {width} action numbers, {got}")
            return net
        one = (np.repeat(part[None, :FIRST], self.members, axis=0) for part in (starts, plans[:, 0]))
        like = torch.as_tensor(net.kind(*one), device=net.device)
        return Members(net, self.members, width, like.new_ones(dims))
