"""How a shape is chosen: on units it was not fitted on, with risk spent where width costs most."""

from __future__ import annotations

import numpy as np

from pac_core import GaussianForecast, PACLevel
from pac_core.tubes import BoxShape, MaxShape, Tuning, balance, choose, fit_shape

LEVEL = PACLevel(0.1, 0.01)


def test_shapes_are_compared_on_units_they_were_not_fitted_on() -> None:
    """Each candidate is fitted on either half, judged on the other, and the best fitted on all."""
    states = np.random.default_rng(0).normal(size=(100, 5, 3)).cumsum(axis=1)
    forecast = GaussianForecast(np.zeros_like(states), np.ones_like(states))
    seen: list[tuple[str, set[float]]] = []

    class Spy(BoxShape):
        def _scores(self, forecast: GaussianForecast, truth: np.ndarray) -> np.ndarray:
            seen.append(("judged", set(truth[:, 0, 0])))
            return super()._scores(forecast, truth)

    def fit(forecast: GaussianForecast, states: np.ndarray) -> BoxShape:
        seen.append(("fitted", set(states[:, 0, 0])))
        return Spy(np.ones((2, 5, 3)), 0.0, False, (0, 0, 0))

    choose([fit], Tuning.of(forecast, states, LEVEL))
    (_, half), (_, other), *judged, (last, everything) = seen
    assert [kind for kind, _ in judged] == ["judged", "judged"]
    assert [units for _, units in judged] == [other, half]
    assert not half & other
    assert last == "fitted"
    assert half | other == everything == set(states[:, 0, 0])


def test_risk_is_spent_where_width_costs_most() -> None:
    """Two dimensions with errors of one law; widths of the first count a hundred times as much."""
    errors = np.random.default_rng(0).standard_normal((4000, 3, 2))
    reach = np.broadcast_to([1.0, 0.01], errors.shape)
    below, above = balance(errors, reach, np.array([40]))
    assert (below[0, 0] + above[0, 0]) < 0.95 * (below[0, 1] + above[0, 1])

    def size(below: np.ndarray, above: np.ndarray) -> float:
        limit = np.sort(np.maximum(-errors / below, errors / above).max(axis=(1, 2)))[-41]
        return float(np.sqrt(((limit * (below + above) / 2 * reach[0]) ** 2).mean(axis=1)).mean())

    assert size(below, above) < 0.95 * size(np.ones((3, 2)), np.ones((3, 2)))


def test_each_side_is_as_wide_as_its_own_errors() -> None:
    """Errors reach three times as far down as up; the box nearly so, as risk is spent on the wider side."""
    rng = np.random.default_rng(0)
    errors = rng.standard_normal((4000, 3, 1))
    errors = np.where(errors < 0, 3 * errors, errors)
    forecast = GaussianForecast(np.zeros_like(errors), np.ones_like(errors))
    score = fit_shape(forecast, errors, LEVEL, shape="box")
    lower, upper = score.sets(forecast, 1.0).box()
    assert 2.0 < -lower[0, 0, 0] / upper[0, 0, 0] < 3.2
    tube = score.sets(forecast, 2.0)
    lower, upper = tube.box()
    inside = ((lower <= errors) & (errors <= upper)).all(axis=(1, 2))
    assert tube.contains(errors).tolist() == inside.tolist()
    assert 0.1 < inside.mean() < 1


def test_a_tail_without_errors_is_not_forgotten() -> None:
    """All errors are above: the lower side shrinks, but never beyond a quarter."""
    errors = abs(np.random.default_rng(0).standard_normal((4000, 3, 1)))
    below, above = balance(errors, np.ones_like(errors), np.array([40]))
    assert below.min() >= 0.25
    assert (below < above).all()


def test_choices_follow_the_data() -> None:
    """Where the spread is told truly it counts; where it is noise it does not; a walk accumulates."""
    rng = np.random.default_rng(0)
    sigma = np.exp(rng.normal(size=(2000, 4, 1)))
    steady = sigma * rng.normal(size=(2000, 4, 1))
    true = BoxShape.fit(GaussianForecast(0 * steady, sigma**2), steady, LEVEL)
    assert true.power >= 0.5
    assert not true.accumulate
    noise = BoxShape.fit(
        GaussianForecast(0 * steady, rng.permutation(sigma**2)), rng.normal(size=steady.shape), LEVEL
    )
    assert noise.power == 0
    sigma = np.exp(rng.normal(size=(2000, 12, 1)))
    walk = (sigma * rng.normal(size=sigma.shape)).cumsum(axis=1)
    assert MaxShape.fit(GaussianForecast(0 * walk, sigma**2), walk, LEVEL).accumulate


def test_units_say_which_width_matters() -> None:
    """Of one number the forecast knows the spread, of the other it only believes to."""
    rng = np.random.default_rng(0)
    spread = np.exp(rng.normal(size=(2000, 1, 2)))
    errors = rng.normal(size=(2000, 4, 2))
    errors[..., 1] *= spread[..., 1]
    forecast = GaussianForecast(np.zeros_like(errors), np.broadcast_to(spread**2, errors.shape).copy())
    widths = []
    for units in ((1, 1e6), (1e6, 1)):
        tube = fit_shape(forecast, errors, LEVEL, shape="box", units=units).sets(forecast, 1.0)
        widths.append(tube.region.half_widths().mean(axis=(0, 1)) / tube.region.half_widths().mean())
    assert widths[0][0] < widths[1][0]
    assert widths[0][1] > widths[1][1]
