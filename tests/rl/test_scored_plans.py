"""Plans forecast and scored in one pass: the tube of `forecast_plans`, and returns known by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pac_core import HalfSpace, InvalidInput, PACLevel, TubeChecker
from pac_core.sets import calibrate
from pac_core.tubes import fit_shape
from pac_rl import Ensemble, Guard, forecast_plans, guard_plans
from pac_rl.dynamics.forecasts import ScoredPlans
from pac_rl.planning.neighbours import ranked_safe
from pac_rl.rollouts import Rollouts

PLANS = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, size=(7, 4, 6)))


def cost(states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    return -(actions**2).sum(-1)


@pytest.mark.parametrize("batch", [7, 3, 20])
def test_forecast_and_returns(ensemble: Ensemble, episodes: Rollouts, batch: int) -> None:
    """Any batch: a padded row that counted, or a part that was lost, would show."""
    starts = torch.from_numpy(episodes.start[:7])
    scored = ScoredPlans(ensemble, cost, batch=batch)(starts, PLANS)
    plain = forecast_plans(ensemble, starts, PLANS, batch=batch)
    assert torch.equal(scored.mean, plain.mean)
    assert torch.equal(scored.var, plain.var)
    torch.testing.assert_close(scored.returns, -(PLANS**2).sum(dim=(1, 2)).float())


def test_returns_are_those_of_the_particles(ensemble: Ensemble, episodes: Rollouts) -> None:
    """Without noise, each particle is where its member expects it; a linear reward then has their mean."""
    sure = ensemble.to("cpu")
    with torch.no_grad():
        for end in (sure.network.min_logvar, sure.network.max_logvar):
            end.fill_(-60.0)
    starts = torch.from_numpy(episodes.start[:7])
    scored = ScoredPlans(sure, lambda states, actions: states[..., 0])(starts, PLANS)
    torch.testing.assert_close(scored.returns, scored.mean[..., 0].sum(dim=1))


def test_a_guard_needs_no_other_objective(ensemble: Ensemble, episodes: Rollouts) -> None:
    starts = episodes.start[:1].repeat(200, axis=0)
    plans = np.random.default_rng(1).uniform(-1, 1, size=(200, 4, 6))
    forecast, level = forecast_plans(ensemble, starts, plans), PACLevel(0.2, 0.1)
    truth = forecast.mean + np.sqrt(forecast.var) * np.random.default_rng(2).normal(size=forecast.mean.shape)
    predictor = calibrate(fit_shape(forecast, truth, level), forecast, truth, level)
    reach = np.asarray(
        predictor.tube(forecast_plans(ensemble, starts[:7], PLANS.numpy())).support(np.eye(18)[0])
    )
    bound = float(np.median(reach.max(axis=1)))
    checker = TubeChecker([HalfSpace("speed", np.eye(18)[0], bound)])
    values = guard_plans(None, ScoredPlans(ensemble, cost), Guard(checker, predictor))(starts[0], PLANS)
    safe = reach.max(axis=1) <= bound
    assert ranked_safe(values).tolist() == safe.tolist()
    by_hand = -(PLANS**2).sum(dim=(1, 2))[torch.from_numpy(safe)]
    torch.testing.assert_close(values[torch.from_numpy(safe)], by_hand.float())


def test_refusals(ensemble: Ensemble, episodes: Rollouts) -> None:
    starts = episodes.start[:7]
    with pytest.raises(InvalidInput, match=r"plans must have shape \[7, H, 6\], got \(6, 4, 6\)"):
        ScoredPlans(ensemble, cost)(starts, PLANS[:6])
    with pytest.raises(InvalidInput, match=r"reward must return shape \(3, 4, 400\), got \(3, 4, 400, 18\)"):
        ScoredPlans(ensemble, lambda states, actions: states)(starts, PLANS)
    with pytest.raises(InvalidInput, match="returns must come from one of evaluate, reward and a forecast"):
        guard_plans(None, ScoredPlans(ensemble, cost), Guard(None, None), reward=cost)  # type: ignore[arg-type]
