"""Sets of mass 1 - epsilon by eye and by scipy, and the paper's ablations as functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from pac_core import GaussianForecast, InvalidInput, LogitForecast, NotEnoughData, PACLevel
from pac_core.evaluation import mass_gaussian_sets, mass_label_sets
from pac_core.fitting import fit_ablation


def test_fewest_labels_that_reach_the_mass() -> None:
    probabilities = np.array([[0.5, 0.3, 0.15, 0.05], [0.96, 0.02, 0.01, 0.01], [0.25] * 4])
    sets = mass_label_sets(LogitForecast.from_probabilities(probabilities), 0.05 + 1e-9)
    assert sets.member.tolist() == [[True, True, True, False], [True, False, False, False], [True] * 4]


@pytest.mark.parametrize("shape", [(5000, 3), (5000, 4, 2)])
def test_ellipsoid_has_the_mass_where_the_forecast_is_right(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    forecast = GaussianForecast(np.zeros(shape), np.full(shape, 4.0))
    sets = mass_gaussian_sets(forecast, 0.1)
    assert sets.limit == pytest.approx(chi2.ppf(0.9, np.prod(shape[1:])))
    # 5,000 draws have a deviation of 0.0042; four of them.
    assert sets.contains(2 * rng.normal(size=shape)).mean() == pytest.approx(0.9, abs=0.017)


def test_ablations_of_the_paper() -> None:
    """Each letter does what it says: A accumulates, C fits temperatures, D is the direct bound."""
    rng = np.random.default_rng(0)
    level = PACLevel(0.1, 1e-3)

    def data() -> tuple[GaussianForecast, np.ndarray]:
        sigma = np.exp(rng.normal(size=(800, 10, 1))) * np.ones(2)
        states = (3 * sigma * rng.normal(size=sigma.shape)).cumsum(axis=1)
        return GaussianForecast(np.zeros_like(states), sigma**2), states

    tune, cal, (forecast, states) = data(), data(), data()
    made = {name: fit_ablation(name, tune, cal, level) for name in ("D", "C+D", "A+D", "A+C+D")}
    for name, predictor in made.items():
        score: Any = predictor.score
        assert (score.accumulate, score.temperature is not None) == ("A" in name, "C" in name)
    sizes = {name: p.sets(forecast).size().mean() for name, p in made.items()}
    assert sizes["A+C+D"] < sizes["C+D"] < sizes["D"]
    for predictor in made.values():
        assert (~predictor.sets(forecast).contains(states)).mean() < 0.1
    loose = PACLevel(0.5, 0.1)
    without_d = fit_ablation("C", tune, cal, loose)
    assert without_d.threshold.bound == "vc_max_errors"
    assert without_d.score.to_json() == made["C+D"].score.to_json()
    with pytest.raises(NotEnoughData):
        fit_ablation("C", tune, cal, level)


def test_bad_epsilon_is_named() -> None:
    with pytest.raises(InvalidInput, match="epsilon must lie strictly between 0 and 1, got 1"):
        mass_label_sets(LogitForecast(np.zeros((1, 2))), 1)
