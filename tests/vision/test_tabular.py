"""Tables: what is read, what is refused by name, and that only training rows are learned from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import betabinom
from toy_tables import world

from pac_core import (
    GaussianForecast,
    InvalidInput,
    LogitForecast,
    NotEnoughData,
    PACLevel,
    SecondLook,
    nll,
)
from pac_vision import Table, TableDesign, certify_table, fit_encoder, forecast_rest
from pac_vision.tabular_designs import design_for
from pac_vision.tabular_models import fit_labels, fit_values
from pac_vision.tabular_studies import ablate, repeat, sets_of, tempered_if_any


def test_networks_learn_the_likelihood_and_come_out_the_same() -> None:
    table, rows = world(1200), np.arange(400)
    inputs = fit_encoder(table, ["x", "junk"], rows)(table)
    labels = (table.columns["kind"] == "high").astype(int)
    model = fit_labels(inputs[rows], labels[rows], ("low", "high"), seed=3)
    forecast = model.forecast(inputs[400:])
    assert (forecast.predictions() == labels[400:]).mean() > 0.85  # at best 0.9
    assert nll(forecast, labels[400:]).mean() < 0.40  # at best 0.325, without knowledge 0.693
    assert model.digest == fit_labels(inputs[rows], labels[rows], ("low", "high"), seed=3).digest
    assert model.digest != fit_labels(inputs[rows], labels[rows], ("low", "high"), seed=4).digest
    y, x = table.columns["y"], table.columns["x"][400:]
    values = fit_values(inputs[rows], y[rows]).forecast(inputs[400:])
    assert abs(values.mean[:, 0] - 3 * x).mean() < 0.15
    std = np.sqrt(values.var[:, 0])
    assert std[x > 0.9].mean() > 2 * std[x < 0.1].mean()  # true deviations 1.05 and 0.15
    np.testing.assert_allclose(std[x > 0.9].mean(), 1.05, rtol=0.3)


def test_networks_stop_before_they_learn_noise() -> None:
    """Labels that nothing tells: a coin's -log likelihood is 0.693, and learning by heart costs far more."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(400, 60)).astype(np.float32), rng.integers(0, 2, 400)
    forecast = fit_labels(inputs[:80], labels[:80], ("heads", "tails")).forecast(inputs[80:])
    assert nll(forecast, labels[80:]).mean() < 0.75


@pytest.mark.parametrize(("target", "task"), [("kind", "labels"), ("y", "values")])
def test_a_table_is_certified_once_on_disjoint_rows(tmp_path: Path, target: str, task: str) -> None:
    table = world(700)
    design = TableDesign("World", target, task, 250, 60, 150, PACLevel(0.1, 0.05), leave_out=("junk",))
    made, found = certify_table(table, design, ledger=tmp_path / "ledger", seed=5)
    parts = found.parts
    assert parts is not None
    ids = [made.train_ids, *(made.ids[part.rows] for part in parts)]
    assert [len(part) for part in ids] == [250, 60, 150, 240]
    assert len(np.unique(np.concatenate(ids))) == 700
    threshold = found.certificates[0].predictor.threshold
    assert (threshold.n, threshold.errors) == (150, 8)  # P[Binomial(150, 0.1) <= 8] = 0.030, <= 9: 0.058
    rows = ablate(made, design, seed=5)
    assert [row.name for row in rows] == ["D", "C+D"]
    assert rows[1].predictor.threshold.value == threshold.value, "the table speaks of what was certified"
    assert rows[1].found.all.n == 240
    assert not rows[1].found.refuted
    if task == "values":
        lower, upper = rows[1].sets.sets.box()
        np.testing.assert_allclose(rows[1].sets.size(), (upper - lower)[:, 0])
    inside = made.ids[parts.test.rows].tolist()
    new = {row["id"]: row for row in sets_of(found.certificates[0].predictor, made.model, table)}
    truths = dict(zip(table.ids.tolist(), table.columns[target].tolist(), strict=True))
    if task == "values":
        missed = sum(not new[i]["lower"] <= truths[i] <= new[i]["upper"] for i in inside)
    else:
        missed = sum(truths[i] not in new[i]["set"].split(" or ") for i in inside)
    assert missed == rows[1].found.all.errors, "new rows get the very sets that were measured"
    assert certify_table(table, design, ledger=tmp_path / "ledger", seed=5)[1].look == found.look
    with pytest.raises(SecondLook):
        certify_table(table, design, ledger=tmp_path / "ledger", seed=6)


def test_the_model_never_sees_other_rows() -> None:
    """Other truths in the rows that calibrate and test, or wild cells in one of them, leave the forecasts."""
    table = world(300)
    design = TableDesign("World", "y", "values", 120, 30, 100, PACLevel(0.1, 0.05))
    made = forecast_rest(table, design, seed=1)
    seen = np.isin(table.ids, made.train_ids)
    x = table.columns["x"].copy()
    x[np.flatnonzero(~seen)[0]] = 1e6
    changed = {**table.columns, "x": x, "y": np.where(seen, table.columns["y"], -99.0)}
    again = forecast_rest(Table("world", table.ids, changed), design, seed=1)
    assert isinstance(made.forecast, GaussianForecast)
    assert isinstance(again.forecast, GaussianForecast)
    np.testing.assert_array_equal(made.forecast.mean[1:], again.forecast.mean[1:])
    np.testing.assert_array_equal(made.forecast.var[1:], again.forecast.var[1:])
    assert (again.truth == -99).all()


def test_too_few_rows_are_refused_before_training() -> None:
    with pytest.raises(NotEnoughData):
        forecast_rest(world(60), design_for(world(60), "y", level=PACLevel(0.1, 0.05)), seed=0)
    design = TableDesign("World", "y", "values", 100, 30, 100, PACLevel(0.1, 0.05))
    with pytest.raises(InvalidInput, match=r"must leave a row to test, got 100 \+ 30 \+ 100 of 230 rows"):
        forecast_rest(world(230), design, seed=0)
    with pytest.raises(InvalidInput, match="task must be labels or values, got 'classes'"):
        design_for(world(60), "y", level=PACLevel(0.1, 0.05), task="classes")


def test_a_model_that_is_always_right_goes_without_a_temperature() -> None:
    logits = np.array([[3.0, 0.0], [0.0, 3.0]])
    assert str(tempered_if_any(LogitForecast(logits), [0, 1], PACLevel(0.1, 0.05))) == "as it is"
    logits = np.array([[3.0, 0.0]] * 3)
    assert "tau" in str(tempered_if_any(LogitForecast(logits), [0, 0, 1], PACLevel(0.1, 0.05)))


def test_repeats_say_what_to_expect() -> None:
    """P(measured above epsilon) by simulating calibrations, against the closed form that is printed."""
    design = TableDesign("World", "y", "values", 60, 20, 60, PACLevel(0.1, 0.05))
    found = repeat(world(180), design, [0, 1])
    assert (len(found.errors), found.n) == (2, 40)
    assert found.above == sum(errors > 4 for errors in found.errors)
    assert found.breach < 0.05
    rng = np.random.default_rng(0)
    drawn = rng.random((20_000, 100))
    limit = np.sort(drawn[:, :60], axis=1)[
        :, 59 - 1
    ]  # k* = 1: P[Binomial(60, 0.1) <= 1] = 0.0138, <= 2: 0.053
    errors = (drawn[:, 60:] > limit[:, None]).sum(axis=1)
    assert abs((errors > 4).mean() - found.expected) < 0.006
    assert found.expected == pytest.approx(betabinom.sf(4, 40, 2, 59))
