"""Sets of mass 1 - epsilon by eye and by scipy, and the paper's ablations as functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from baselines import fit_ablation, mass_gaussian_sets, mass_label_sets, mean_width, volume_root
from scipy.stats import chi2

from pac_core import GaussianForecast, LogitForecast, NotEnoughData, PACLevel
from pac_core.sets import Boxes, ConfidenceSets, Ellipsoids, gaussian_sets


def test_fewest_labels_that_reach_the_mass() -> None:
    probabilities = np.array([[0.5, 0.3, 0.15, 0.05], [0.96, 0.02, 0.01, 0.01], [0.25] * 4])
    sets = mass_label_sets(LogitForecast.from_probabilities(probabilities), 0.05 + 1e-9)
    assert sets.member.tolist() == [[True, True, True, False], [True, False, False, False], [True] * 4]


def test_ellipsoid_has_the_mass_where_the_forecast_is_right() -> None:
    rng, shape = np.random.default_rng(0), (5000, 4, 2)
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


def test_sizes_by_eye() -> None:
    """A sphere of radius 2 in 3 dimensions, and a box of half-widths 1, 2, 3, each for two steps."""
    forecast = GaussianForecast(np.zeros((1, 2, 3)), np.ones((1, 2, 3)))
    reach = np.ones((1, 2, 1)) * [1.0, 2.0, 3.0]
    about: Any = (lambda truth: truth[:, 0, 0], 4.0, np.array([True]), (1, 2, 3))
    ball = ConfidenceSets(Ellipsoids(forecast, np.full((1, 2), 4.0)), *about)
    box = ConfidenceSets(Boxes(0 * reach, -reach, reach), *about)
    assert volume_root(ball).item() == pytest.approx((4 / 3 * np.pi * 8) ** (1 / 3))
    assert mean_width(ball).item() == pytest.approx(4)
    assert volume_root(box).item() == pytest.approx(48 ** (1 / 3))
    # The mean width of a box is the sum of its widths times E|u_1| = 1/2 in three dimensions.
    assert mean_width(box, 20_000).item() == pytest.approx(6, rel=0.02)
    empty = gaussian_sets(forecast, -50.0)
    assert (volume_root(empty).item(), mean_width(empty).item()) == (0, 0)
