"""Units that end before their horizon does: what stands after the end counts for nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pac_program import run

from pac_core import GaussianForecast, InvalidInput, LinearFeatures, PACLevel, Trajectories, certify, fit_tube
from pac_core.scores import fit_temperature, nll
from pac_core.sets import gaussian_sets
from pac_core.tubes import fit_shape

LEVEL = PACLevel(0.1, 0.01)
LEVELS = ("--epsilon", "0.1", "--delta", "0.01")
SHAPES = ["joint", "max", "box", "features"]
LINEAR = {"features": LinearFeatures(("first",), np.array([[1.0, 0.0]]))}


def units(n: int, seed: int, after: float = 0.0) -> tuple[GaussianForecast, Trajectories]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 5, size=n)
    states = rng.normal(size=(n, 4, 2)).cumsum(axis=1)
    states[np.arange(4) >= lengths[:, None]] = after
    return GaussianForecast(np.zeros_like(states), np.ones_like(states)), Trajectories(states, lengths)


def options(shape: str) -> dict[str, LinearFeatures]:
    return LINEAR if shape == "features" else {}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("after", [np.nan, np.inf, 1e9])
def test_what_stands_after_the_end_counts_for_nothing(shape: str, after: float) -> None:
    tubes = []
    for rest in (0.0, after):
        tune, cal, test = (units(300, seed, rest) for seed in range(3))
        predictor = fit_tube(*tune, *cal, LEVEL, shape=shape, **options(shape))
        tube = predictor.tube(test[0])
        tubes.append((predictor.threshold.value, tube.contains(test[1]), tube.size()))
    for left, right in zip(*tubes, strict=True):
        np.testing.assert_array_equal(left, right)
    assert 0.8 < tubes[0][1].mean() < 1


def test_scales_are_those_of_the_steps_that_were_lived() -> None:
    """Half of the units end after step 1, where errors are 1; the others go on with errors of 10."""
    states = np.ones((40, 2, 1))
    states[:, 1] = 10.0
    truth = Trajectories(states, np.array([1, 2] * 20))
    forecast = GaussianForecast(np.zeros_like(states), np.ones_like(states))
    assert fit_temperature(forecast, truth).tau.tolist() == [1.0, 0.01]
    box = fit_shape(forecast, truth, LEVEL, shape="box")
    assert (box.scale[1, 1] / box.scale[1, 0]).tolist() == pytest.approx([10.0], rel=0.6)
    assert fit_shape(forecast, truth, LEVEL, shape="max").scale.tolist() == [1.0, 100.0]


def test_a_step_that_no_unit_lived_to_see_is_treated_like_the_one_before() -> None:
    states = np.full((40, 3, 1), 2.0)
    truth = Trajectories(states, np.array([1, 2] * 20))
    forecast = GaussianForecast(np.zeros_like(states), np.ones_like(states))
    assert fit_temperature(forecast, truth).tau.tolist() == [0.25] * 3
    below, above = fit_shape(forecast, truth, LEVEL, shape="box").scale[:, :, 0]
    assert above[2] == above[1] > 0
    assert below[2] == below[1] > 0


def test_an_ended_unit_is_scored_on_the_steps_it_lived() -> None:
    forecast = GaussianForecast(np.zeros((2, 3, 1)), np.ones((2, 3, 1)))
    states = np.array([[[1.0], [2.0], [9.0]]] * 2)
    score = nll(forecast, Trajectories(states, [2, 3]))
    volume = 1.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(score, [volume + 0.5 * 5, volume + 0.5 * 86])
    inside = gaussian_sets(forecast, volume + 3.1).contains(Trajectories(states, [2, 3]))
    assert inside.tolist() == [True, False]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_unit_that_failed_before_its_end_is_an_error(shape: str) -> None:
    predictor = fit_tube(*units(300, 0), *units(300, 1), LEVEL, shape=shape, **options(shape))
    forecast, truth = units(50, 2)
    states = truth.states.copy()
    states[:, 0] = np.inf
    assert not predictor.tube(forecast).contains(Trajectories(states, truth.lengths)).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_torch_agrees(shape: str) -> None:
    predictor = fit_tube(*units(300, 0), *units(300, 1), LEVEL, shape=shape, **options(shape))
    forecast, truth = units(100, 2, np.nan)
    there = GaussianForecast(torch.from_numpy(forecast.mean), torch.from_numpy(forecast.var))
    moved = Trajectories(torch.from_numpy(truth.states), truth.lengths)
    np.testing.assert_array_equal(
        predictor.tube(there).contains(moved).numpy(), predictor.tube(forecast).contains(truth)
    )
    np.testing.assert_allclose(
        predictor.score.scores(there, moved).numpy(), predictor.score.scores(forecast, truth)
    )


def test_certificates_of_ended_units(tmp_path: Path) -> None:
    forecast, truth = units(600, 3, np.nan)
    made = certify(
        forecast, truth, LEVEL, ids=range(600), tune=200, calibrate=300, ledger=tmp_path / "ledger"
    )
    rows = made.parts.test.rows
    tube = made.certificates[0].predictor.tube(forecast.take(rows))
    assert tube.contains(truth[rows]).mean() > 0.8


def test_a_bare_nan_is_never_an_end() -> None:
    forecast, truth = units(300, 0, np.nan)
    with pytest.raises(InvalidInput, match="must not contain NaN"):
        fit_shape(forecast, truth.states, LEVEL, shape="box")
    predictor = fit_tube(*units(300, 0), *units(300, 1), LEVEL)
    whole = np.isfinite(truth.states).all(axis=(1, 2))
    assert not predictor.tube(forecast).contains(truth.states)[~whole].any()


@pytest.mark.parametrize(
    ("states", "lengths", "message"),
    [
        (np.zeros((2, 3, 1)), [0, 1], "lengths must be whole numbers from 1 to the horizon 3"),
        (np.zeros((2, 3, 1)), [4, 1], "lengths must be whole numbers from 1 to the horizon 3"),
        (np.zeros((2, 3, 1)), [1.0, 1.0], "lengths must be whole numbers"),
        (np.zeros((2, 3, 1)), [1, 1, 1], "with a length each"),
        (np.zeros((2, 3)), [1, 1], r"states must have shape \[B, H, D\]"),
        (np.full((2, 3, 1), np.nan), [1, 1], "NaN before the end"),
    ],
)
def test_bad_trajectories_are_named(states: np.ndarray, lengths: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Trajectories(states, lengths)


def test_a_file_may_say_when_its_units_ended(tmp_path: Path) -> None:
    """Without the lengths the numbers after the end would be taken for states, and refused as NaN."""
    forecast, truth = units(600, 4, np.nan)
    arrays = {"mean": forecast.mean, "var": forecast.var, "truth": truth.states, "ids": np.arange(600)}
    np.savez(tmp_path / "ended.npz", **arrays, lengths=truth.lengths)
    np.savez(tmp_path / "bare.npz", **arrays)
    split = (
        "--tune",
        "200",
        "--calibrate",
        "300",
        "--unit",
        "rollout",
        "--epsilon",
        "0.1",
        "--delta",
        "0.01",
    )
    out = tmp_path / "certificate.json"
    done = run("fit", tmp_path / "ended.npz", *split, "--out", out)
    assert done.exit_code == 0, done.output
    assert run("evaluate", out, tmp_path / "ended.npz").exit_code == 0
    assert run("verify", out, tmp_path / "ended.npz").exit_code == 0
    refused = run("fit", tmp_path / "bare.npz", *split, "--out", tmp_path / "other.json")
    assert refused.exit_code == 2
    assert "must not contain NaN" in refused.output


def test_trajectories_may_be_lists() -> None:
    forecast, truth = units(5, 0)
    listed = Trajectories(truth.states.tolist(), truth.lengths.tolist())
    assert np.array_equal(nll(forecast, listed), nll(forecast, truth))
    for states in (None, "x", [[1.0], [1.0, 2.0]], [[["a"]]]):
        with pytest.raises(InvalidInput, match="states must"):
            Trajectories(states, [1])
