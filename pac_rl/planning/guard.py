"""The guard: tubes of plans, safe plans above unsafe ones, a fallback where none is safe.

A planner takes one finite number for each plan, so an unsafe plan gets one below any return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, cast

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from pac_core import GaussianForecast, InvalidInput, LinearFeatures, PACError, Trajectories, TubeChecker
from pac_core.arrays import Array, check_returned, convert_like, to_float64
from pac_core.bounds import check_integer
from pac_core.safety import CheckResult
from pac_core.sets import ConfidenceSets, Score
from pac_core.thresholds import Threshold
from pac_rl.systems import Floats

FLOOR = 1e30
"""Values of safe plans lie above minus this, those of unsafe ones below; float32 holds both."""
LEAST = 0.01
"""The least penalty of an unsafe plan, as a part of `FLOOR`."""
WORST = 1e35
"""The penalty where nothing is known; float32 still holds the sum of thousands."""

Evaluate: TypeAlias = Callable[[Any, Array], Array]
"""From an initial state `[D]`, or one for each plan `[B, D]`, and plans `[B, H, A]` to their values `[B]`."""
Forecast: TypeAlias = Callable[[Array, Array], GaussianForecast]
"""From starts `[N, D]` and plans `[N, H, A]` to a forecast, as a `Dynamics`.

The first steps must not depend on how many follow.
"""
Reward: TypeAlias = Callable[[Any, Any], Any]
"""From states reached `[..., D]` and actions `[..., A]`, numpy or torch, to rewards `[...]`."""


class TubeMaker(Protocol):
    """Makes the tubes of a guard: a `Predictor`, `FittedTubes`, or one that says `members = True`, because it
    needs a `MemberForecast`."""

    def tube(self, forecast: GaussianForecast) -> Any: ...


@dataclass(frozen=True, eq=False)
class MemberForecast(GaussianForecast):
    """A forecast, and where each of M members of the ensemble alone expects the plans to lead.

    members: `[M, B, H, D]`
    """

    members: Array


@dataclass(frozen=True, eq=False)
class ScaledTube:
    """A tube of any shape, made larger or smaller about its centre.

    tube: of B plans x H steps
    center: `[B, H, D]` the forecast means
    scale: above 0; 1 leaves the tube as it is

    >>> from pac_core import PACLevel
    >>> from pac_core.tubes import fit_shape
    >>> forecast = GaussianForecast(np.zeros((50, 1, 1)), np.ones((50, 1, 1)))
    >>> box = fit_shape(forecast, np.linspace(-1, 1, 50).reshape(50, 1, 1), PACLevel(0.1, 0.1))
    >>> once = box.sets(forecast, 1.0)
    >>> twice = ScaledTube(once, forecast.mean, 2.0)
    >>> float(twice.support([1.0])[0, 0] / once.support([1.0])[0, 0])
    2.0
    """

    tube: ConfidenceSets
    center: Array
    scale: float

    def __post_init__(self) -> None:
        check_scale(self.scale)
        if tuple(self.center.shape) != self.tube.shape:
            raise InvalidInput(f"center must have shape {self.tube.shape}, got {tuple(self.center.shape)}")

    def support(self, direction: Any) -> Array:
        """`[B, H]` c.d + scale * (support of the tube - c.d)."""
        along = self.center * convert_like(self.center, direction)
        middle = array_namespace(along).sum(along, axis=-1)
        return middle + self.scale * (self.tube.support(direction) - middle)

    def box(self) -> tuple[Array, Array]:
        """`[B, H, D]` corners of the bounding boxes; `[B, H, F]`, of the features, if it is of those."""
        middle = self.tube.region.center
        lower, upper = (middle + self.scale * (corner - middle) for corner in self.tube.box())
        return lower, upper

    @property
    def features(self) -> LinearFeatures | None:
        """What the tube knows of the state, if that is a few features alone."""
        return getattr(self.tube, "features", None)

    def interval(self, name: str) -> tuple[Array, Array]:
        """Lower and upper ends `[B, H]` of the feature `name`."""
        if self.features is None or name not in self.features.names:
            raise InvalidInput(f"the tube must have the feature {name!r}, got one without it")
        row = self.features.matrix[self.features.names.index(name)]
        return -self.support(-row), self.support(row)

    def contains(self, truth: Any) -> Array:
        """`[B]` whether the truth `[B, H, D]`, drawn towards the centre by the scale, is in the tube."""
        ended = isinstance(truth, Trajectories)
        states = convert_like(self.center, truth.states if ended else truth)
        drawn = self.center + (states - self.center) / self.scale
        return self.tube.contains(Trajectories(drawn, truth.lengths) if ended else drawn)


def check_scale(scale: Any) -> None:
    """Refuses a scale that makes no tube: at 0 it would be a line that nothing follows."""
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.floating) or not 0 < scale < np.inf:
        raise InvalidInput(f"scale must be finite and above 0, got {scale!r}")


@dataclass(frozen=True, eq=False)
class FittedTubes:
    """The tubes of a score that was fitted on the tune split, at a threshold, scaled.

    The threshold may come from tune or calibrate units: they were not picked by a planner, so a tube of
    a picked plan has no promise from it. What is promised of picked plans is proved for a `scale`, on
    fresh episodes of the whole controller.
    """

    score: Score
    threshold: Threshold | float
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def tube(self, forecast: GaussianForecast) -> ScaledTube:
        forecast = forecast.wide()
        return ScaledTube(self.score.sets(forecast, self.threshold), forecast.mean, self.scale)

    def scaled(self, scale: float) -> FittedTubes:
        """The same tubes at another scale."""
        return replace(self, scale=float(scale))


@dataclass(frozen=True, eq=False)
class HullTube:
    """The hull of a few trajectories `[M, B, H, D]`: a point per step if there is one."""

    ways: Array

    def support(self, direction: Any) -> Array:
        return array_namespace(self.ways).max(self.ways @ convert_like(self.ways, direction), axis=0)

    def box(self) -> tuple[Array, Array]:
        xp = array_namespace(self.ways)
        return xp.min(self.ways, axis=0), xp.max(self.ways, axis=0)

    def contains(self, truth: Any) -> Array:
        """`[B]` whether the truth is within the box of the trajectories; a single one holds nothing else."""
        marked = truth.marked() if isinstance(truth, Trajectories) else truth
        states = convert_like(self.ways, marked)
        lower, upper = self.box()
        xp = array_namespace(states)
        inside = (lower <= states) & (states <= upper) & xp.isfinite(states)
        if isinstance(truth, Trajectories):
            inside |= xp.isnan(states)  # steps after the end
        return xp.all(inside, axis=(1, 2))


@dataclass(frozen=True)
class MeanTubes:
    """The predicted mean, as if it were certain: the ensemble heuristic CCE."""

    def tube(self, forecast: GaussianForecast) -> HullTube:
        return HullTube(forecast.wide().mean[None])


@dataclass(frozen=True)
class MemberTubes:
    """The way of every member of the ensemble: the heuristic RCE, which trusts the worst of them."""

    members = True

    def tube(self, forecast: GaussianForecast) -> HullTube:
        if not isinstance(forecast, MemberForecast):
            raise InvalidInput("forecast must have the ways of members (members=True), got one without")
        return HullTube(to_float64(forecast.members))


@dataclass(frozen=True, eq=False)
class Guard:
    """Which plans are safe, by how much, and what acts where none is: what all guarded planners share.

    checker: the limits
    predictor: makes the tubes, a `Predictor` as a rule
    fallback: needed wherever the guard acts, see `Fallback`; an objective only ranks, and needs none
    horizon: steps of a plan that the tube covers and the guard checks; by default those the predictor was
        calibrated for, and the whole plan where it does not say. Nothing is said of later steps

    The tube's promise is about plans drawn like the calibration plans, and not about the plan that a planner
    picks with a guard: picking is a selection, which needs its own certificate.
    """

    checker: TubeChecker
    predictor: TubeMaker
    fallback: Fallback | None = None
    horizon: int | None = None

    def __post_init__(self) -> None:
        if self.fallback is not None:
            check_fallback(self.fallback)
        domain = getattr(self.predictor, "domain", None)
        if self.horizon is None and domain is not None:
            object.__setattr__(self, "horizon", int(domain[1]))
        if self.horizon is not None:
            check_integer("horizon", self.horizon, least=1)

    def steps(self, plans: Array) -> int:
        """How many steps of plans `[..., H, A]` are checked; plans shorter than the tube are refused."""
        steps = int(plans.shape[-2])
        if self.horizon is not None and self.horizon > steps:
            raise InvalidInput(f"plans must have at least the tube's {self.horizon} steps, got {steps}")
        return self.horizon or steps

    def check(self, forecast: Any, plans: Array) -> CheckResult:
        """What the checker says of plans `[N, H, A]` by their forecast, over the steps that are checked.

        forecast: of all H steps, or of those that are checked. Refused unless it and its tube are of exactly
            these plans and steps: fewer would be broadcast, or leave the last steps unchecked
        """
        steps = self.steps(plans)
        if isinstance(forecast, GaussianForecast) and forecast.mean.shape[1] == plans.shape[1] > steps:
            cut: dict[str, Any] = {name: getattr(forecast, name)[:, :steps] for name in ("mean", "var")}
            if isinstance(forecast, MemberForecast):
                cut["members"] = forecast.members[:, :, :steps]
            # A plan that fails later on has not failed in the steps that are checked.
            forecast = replace(forecast, failed=None, **cut)
        tube = self.predictor.tube(of_plans(forecast, plans[:, :steps]))
        checked = self.checker(tube)
        if (got := tuple(checked.margin.shape[:2])) != (len(plans), steps):
            rule = f"must make a tube of {len(plans)} plans x {steps} steps"
            raise InvalidInput(f"forecast and predictor {rule}, got {got}")
        return checked

    def act(self, state: Any, low: Floats, high: Floats, reason: str) -> Floats:
        """`[A]` the fallback's action in this state, in its range; raises `NoSafePlan` if that is to stop."""
        fallback = check_fallback(self.fallback)
        if fallback == "stop":
            raise NoSafePlan(reason)
        if isinstance(fallback, str):
            return np.clip(np.zeros_like(low), low, high)
        try:
            given = fallback(np.asarray(state))
        except PACError:
            raise
        except Exception as error:
            raise InvalidInput(
                f"the fallback must return an action for any state, but raised {error!r} for {state}"
            ) from error
        action = check_returned("the fallback's action", given, low.shape, low)
        if not np.isfinite(action).all():
            raise InvalidInput(f"the fallback must return {len(low)} finite numbers, got {action}")
        return np.asarray(np.clip(action, low, high))


@dataclass(frozen=True, eq=False)
class GuardedPlans:
    """A guarded objective; made by `guard_plans`, called as the objective it guards."""

    evaluate: Evaluate | None
    forecast: Forecast
    guard: Guard
    reward: Reward | None

    def __call__(self, initial_state: Any, plans: Array) -> Array:
        """`[B]` values of plans `[B, H, A]` from one state `[D]`, or from one each `[B, D]`."""
        if self.evaluate is not None:
            checked, values = self.check(initial_state, plans), self.evaluate(initial_state, plans)
            return rank(shaped("evaluate", values, (len(plans),), plans), checked)
        forecast = self._forecast(initial_state, plans)
        checked = self.guard.check(forecast, plans)
        if self.reward is None:  # a `ScoredForecast`, guard_plans saw to it
            return rank(shaped("the forecast", forecast.returns, (len(plans),), plans), checked)  # type: ignore[attr-defined]
        rewards = shaped("reward", self.reward(forecast.mean, plans), tuple(plans.shape[:2]), plans)
        return rank(array_namespace(rewards).sum(rewards, axis=1), checked)

    def check(self, initial_state: Any, plans: Array) -> CheckResult:
        """What the checker says of plans `[B, H, A]` from one state, or one each, over the guard's steps."""
        return self.guard.check(self._forecast(initial_state, plans[:, : self.guard.steps(plans)]), plans)

    def _forecast(self, initial_state: Any, plans: Array) -> GaussianForecast:
        """Of exactly these plans, in their library and on their device, whatever the model computes in."""
        made = of_plans(self.forecast(_starts(initial_state, plans), plans), plans)
        if is_torch_array(plans) and not is_torch_array(made.mean):
            xp, where = array_namespace(plans), device(plans)
            parts = (xp.asarray(part, device=where) for part in (made.mean, made.var))
            return GaussianForecast(*parts).mark_failures()
        return made


def guard_plans(
    evaluate: Evaluate | None, forecast: Forecast, guard: Guard, *, reward: Reward | None = None
) -> GuardedPlans:
    """The objective `evaluate` with unsafe plans below all safe ones, of the same signature.

    A safe plan keeps its value. An unsafe one gets a finite penalty that grows with how far its tube
    may break a limit; a safe one whose value is NaN gets the worst.

    evaluate: None where one pass through the model serves both: returns on the forecast's own mean
        trajectory, with `reward`; or, with `ScoredPlans` as the forecast, over its particles
    forecast: such as the `model` of a fitted guard

    It ranks, and never falls back: where no plan is safe, a planner carries out the least unsafe one it
    saw, and one that returns a mean of plans may carry out what was never checked. `GuardedAgent` and
    `GuardedPlanner` check what is carried out, and let a fallback act; `ranked_safe` tells which values are
    those of safe plans.
    """
    if (ways := sum([evaluate is not None, reward is not None, hasattr(forecast, "reward")])) != 1:
        rule = "returns must come from one of evaluate, reward and a forecast by ScoredPlans"
        raise InvalidInput(f"{rule}, got {ways} of them")
    return GuardedPlans(evaluate, forecast, guard, reward)


def rank(values: Array, checked: CheckResult) -> Array:
    """`[B]` finite values: those of safe plans above -FLOOR, unsafe ones below by how unsafe they are.

    The penalty grows with the eighth root of the violation, so that float32 tells violations apart that
    differ by a millionth, from 1e-12 to 1e26; what is larger, or unknown, is worst.

    >>> margin = np.array([1.0, -0.5, -2.0, np.nan])[:, None, None]
    >>> checked = CheckResult(margin, margin[:, 0, 0] >= 0, ("speed",))
    >>> (-rank(np.array([-7.0, 9.0, 9.0, 9.0]), checked)).argsort().tolist()
    [0, 1, 2, 3]
    """
    xp = array_namespace(values)
    dtype = xp.result_type(values.dtype, xp.float32)  # half precision ends at 65,504
    wide = to_float64(values)
    amount = -xp.clip(convert_like(wide, checked.worst), max=0)
    with np.errstate(over="ignore"):
        penalty = xp.clip(-FLOOR * (1 + LEAST) * (1 + 1e12 * amount) ** (1 / 8), min=-WORST)
    safe = shaped("the check", convert_like(wide == 0, checked.safe), tuple(values.shape), values)
    kept = xp.where(xp.isnan(values), xp.full_like(wide, -WORST), xp.clip(wide, -FLOOR, FLOOR))
    return xp.astype(xp.where(safe, kept, penalty), dtype)


def ranked_safe(values: Array) -> Array:
    """`[B]` which values of a guarded objective are those of safe plans."""
    return values > -FLOOR * (1 + LEAST / 2)


def _starts(state: Any, plans: Array) -> Array:
    """`[N, D]` a start for each of N plans: one state for all of them, or one each."""
    xp, n = array_namespace(plans), len(plans)
    given = xp.asarray(state, device=device(plans))
    if given.ndim == 2 and len(given) == n:
        return given
    if given.ndim != 1:
        rule = f"the initial state must have shape [D], or [{n}, D] for {n} plans"
        raise InvalidInput(f"{rule}, got {tuple(given.shape)}")
    return xp.broadcast_to(given, (n, *given.shape))


def shaped(name: str, values: Any, shape: tuple[int, ...], to: Array) -> Array:
    """What a user's function returned, in the library of `to`, refused unless it is of exactly this shape."""
    given = array_namespace(to).asarray(values)
    if tuple(given.shape) != shape:
        raise InvalidInput(f"{name} must return values of shape {shape}, got {tuple(given.shape)}")
    return given


def of_plans(forecast: Any, plans: Array) -> GaussianForecast:
    """`forecast`, refused unless it is one of exactly these plans `[N, H, A]`: fewer would be broadcast."""
    if not isinstance(forecast, GaussianForecast):
        raise InvalidInput(f"forecast must return a GaussianForecast, got {type(forecast).__name__}")
    if tuple(forecast.mean.shape[:-1]) != tuple(plans.shape[:2]):
        got = tuple(forecast.mean.shape[:-1])
        raise InvalidInput(f"forecast must be of {plans.shape[0]} plans x {plans.shape[1]} steps, got {got}")
    return forecast


Fallback: TypeAlias = Literal["hold", "stop"] | Callable[[Floats], Any]
"""`hold` is the action 0, `stop` raises `NoSafePlan`; a backup policy goes from a state to an action.

There is no default: the action 0 is rest for some robots, and for others a fall or full speed ahead.

From a state that is not finite no plan is safe, so the fallback acts: a backup policy is asked for an action
there too, and refused if it has none.

Nothing is promised of what the fallback does: it acts because nothing better was found.
"""
UNKNOWN = "the state is not a number"
"""The reason where there is no state to plan from."""


class NoSafePlan(PACError):
    """No plan was found safe, and the fallback that was chosen is to stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"no plan was safe, and the fallback is to stop; of the last one: {self.reason}"


def check_fallback(fallback: Any) -> Fallback:
    """`fallback`, refused if it is none."""
    if fallback not in ("hold", "stop") and not callable(fallback):
        raise InvalidInput(f"fallback must be 'hold', 'stop' or a function of the state, got {fallback!r}")
    return cast(Fallback, fallback)
