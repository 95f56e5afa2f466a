"""One action at a time: is it safe, followed by what would follow, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pac_core import InvalidInput, Predictor, TubeChecker
from pac_core.arrays import like
from pac_core.bounds import whole
from pac_rl.ensembles import Ensemble
from pac_rl.environments import Environment
from pac_rl.fallbacks import UNKNOWN, Fallback, NoSafePlan, checked_fallback, fallback_action
from pac_rl.forecasts import for_plans, matching, one_step, starting
from pac_rl.guards import Forecast, MakesTubes, check_all
from pac_rl.policies import Policy, actions

ContinueWith: TypeAlias = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]
"""From a state `[D]` and first actions `[N, A]` to whole plans `[N, H, A]`."""


@dataclass(frozen=True, eq=False)
class Filtered:
    """What was decided about an action.

    action: `[A]` what to carry out
    safe: whether the check says that `action` is safe
    replaced: whether it is another than was proposed, which may only have been cut off at its range
    reason: of the proposed action's check, in words
    margin: the least margin of what is carried out; -inf where nothing is known
    fallback: whether the fallback acts
    """

    action: NDArray[np.float64]
    safe: bool
    replaced: bool
    reason: str
    margin: float
    fallback: bool = False

    def to_info(self) -> dict[str, Any]:
        """As it stands in Gymnasium's `info`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, eq=False)
class ActionFilter:
    """Hands on actions whose plan is safe, and the fallback's in place of others.

    low, high: `[A]` the range of actions; what lies outside is cut off before it is checked
    forecast, predictor, checker: as for `guard_plans`
    continue_with: what would follow the action, as `then_policy` or `held`
    fallback: see `Fallback`; its action is checked in the same way, and carried out in any case

    What is promised of a tube holds for plans drawn like the calibration plans. An agent that chooses
    its actions with this filter in the loop draws others: certify the loop.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    forecast: Forecast
    predictor: MakesTubes
    checker: TubeChecker
    continue_with: ContinueWith
    fallback: Fallback = "hold"

    def __post_init__(self) -> None:
        checked_fallback(self.fallback)

    @classmethod
    def of(
        cls,
        ensemble: Ensemble,
        environment: Environment,
        backup: Policy,
        predictor: Predictor,
        checker: TubeChecker,
        *,
        continue_with: ContinueWith | None = None,
        fallback: Fallback | None = None,
        propagation: str = "particles",
    ) -> ActionFilter:
        """For a known robot: an action is followed by the backup policy along the predicted mean.

        propagation: as for the calibration plans of `predictor`
        """
        matching(ensemble, environment, backup)
        if predictor.domain is None or predictor.domain[0] != "trajectories":
            raise InvalidInput(f"predictor must be of trajectories, got one of {predictor.domain}")

        def act(state: NDArray[np.float64]) -> NDArray[np.float64]:
            row = torch.as_tensor(state)[None]
            return actions(environment, backup, row, torch.zeros(1, len(environment.low)).to(row))[0].numpy()

        return cls(
            environment.low,
            environment.high,
            partial(for_plans, ensemble, propagation=propagation, batch=2),
            predictor,
            checker,
            continue_with or then_policy(ensemble, environment, backup, horizon=predictor.domain[1]),
            act if fallback is None else fallback,
        )

    def __call__(self, state: Any, action: Any) -> Filtered:
        """What to do in `state` `[D]` where `action` `[A]` was proposed."""
        here, wanted = np.asarray(state, dtype=np.float64), np.asarray(action, dtype=np.float64)
        if wanted.shape != self.low.shape:
            raise InvalidInput(f"action must have shape {self.low.shape}, got {wanted.shape}")
        known = bool(np.isfinite(wanted).all())
        proposed = np.clip(wanted if known else np.zeros_like(wanted), self.low, self.high)
        # Stopping needs no second candidate: it is not an action.
        stand_in = proposed if self.fallback == "stop" else self._instead(here, "")
        if not np.isfinite(here).all():
            if self.fallback == "stop":
                raise NoSafePlan(UNKNOWN)
            return Filtered(stand_in, False, True, UNKNOWN, -np.inf, fallback=True)
        plans = torch.as_tensor(self.continue_with(here, np.stack([proposed, stand_in])))
        tube = self.predictor.tube(self.forecast(torch.from_numpy(here).expand(2, -1), plans))
        checked = check_all(self.checker, tube, (2, int(plans.shape[1])))
        safe, worst = (np.asarray(part.tolist()) for part in (checked.safe, checked.worst))
        reason = checked.reason(0) if known else "the action is not a number"
        if known and safe[0]:
            return Filtered(proposed, True, not np.array_equal(proposed, wanted), reason, float(worst[0]))
        if self.fallback == "stop":
            raise NoSafePlan(reason)
        # The very action that was checked: a backup policy asked again may answer otherwise.
        return Filtered(stand_in, bool(safe[1]), True, reason, float(worst[1]), fallback=True)

    def certify_action(self, state: Any, action: Any) -> tuple[NDArray[np.float64], bool]:
        """The action to carry out, and whether it was found safe: the way of safe-control-gym."""
        decision = self(state, action)
        return decision.action, decision.safe

    def _instead(self, state: NDArray[np.float64], reason: str) -> NDArray[np.float64]:
        return fallback_action(self.fallback, state, self.low, self.high, reason)


def held(horizon: int) -> ContinueWith:
    """The action, held for `horizon` steps."""
    whole("horizon", horizon, least=1)
    return lambda state, first: np.repeat(first[:, None], horizon, axis=1)


def then_policy(
    ensemble: Ensemble, environment: Environment, policy: Policy, *, horizon: int
) -> ContinueWith:
    """The action, and then what the policy would do along the predicted mean: `horizon` steps in all."""
    matching(ensemble, environment, policy)
    whole("horizon", horizon, least=1)

    def plans(state: NDArray[np.float64], first: NDArray[np.float64]) -> NDArray[np.float64]:
        steps: list[Tensor] = []

        def act(t: int, states: Tensor, noise: Tensor) -> Tensor:
            steps.append(like(states, first) if t == 0 else actions(environment, policy, states, noise))
            return steps[-1]

        with torch.no_grad():
            one_step(ensemble, starting(ensemble, state[None]).expand(len(first), -1), act, horizon)
        return torch.stack(steps, dim=1).cpu().numpy().astype(np.float64)

    return plans
