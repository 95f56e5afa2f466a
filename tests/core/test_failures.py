"""Units without a forecast: errors in calibration, empty sets, never tuned on, never left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pac_program import load, refused, run

from pac_core import (
    GaussianForecast,
    InvalidInput,
    LinearFeatures,
    LogitForecast,
    PACLevel,
    certify,
    evaluate,
    fit_sets,
    read_certificate,
)
from pac_core.bounds import max_errors
from pac_core.errors import TooManyFailures
from pac_core.forecasts import drop_failed
from pac_core.scores import fit_temperature, nll
from pac_core.sets import Likelihood, calibrate, score_units
from pac_core.thresholds import fit_threshold
from pac_core.tubes import fit_shape

LEVEL = PACLevel(0.1, 0.05)


def drawn(n: int, seed: int = 0) -> tuple[Any, Any]:
    """Logits and labels of n units with five labels."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, 5))
    return logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def broken(logits: Any, rows: Any) -> LogitForecast:
    """The forecast of which these units failed."""
    failed = np.zeros(len(logits), bool)
    failed[rows] = True
    return LogitForecast(np.where(failed[:, None], np.nan, logits), failed=failed)


@pytest.mark.parametrize("k", [1, 4])
def test_k_failed_units_give_the_threshold_of_k_infinite_scores(k: int) -> None:
    logits, labels = drawn(100)
    assert max_errors(100, LEVEL) == 4
    scores = nll(LogitForecast(logits), labels)
    rows = np.arange(10, 10 + k)
    worse = scores.copy()
    worse[rows] = np.inf
    found = calibrate(Likelihood(), broken(logits, rows), labels, LEVEL).threshold
    assert found == fit_threshold(worse, LEVEL)
    # by hand: k of the four allowed errors are spent, so T is the (5 - k)-th largest of the others
    assert found.value == np.sort(np.delete(scores, rows))[-(5 - k)]


def test_more_failed_units_than_errors_allowed_are_refused() -> None:
    logits, labels = drawn(100)
    with pytest.raises(TooManyFailures, match="5 of 100 calibration units failed") as refusal:
        calibrate(Likelihood(), broken(logits, range(5)), labels, LEVEL)
    assert refusal.value.allowed == 4


def test_a_failed_unit_has_an_empty_set_and_is_an_error() -> None:
    logits, labels = drawn(200)
    predictor = calibrate(Likelihood(), LogitForecast(logits[:100]), labels[:100], LEVEL)
    before = evaluate(predictor.sets(LogitForecast(logits[100:])), labels[100:], LEVEL).all
    sets = predictor.sets(broken(logits[100:], [0, 3]))
    hit = predictor.sets(LogitForecast(logits[[100, 103]])).contains(labels[[100, 103]])
    found = evaluate(sets, labels[100:], LEVEL).all
    assert (found.n, found.errors) == (100, before.errors + int(hit.sum()))
    assert sets.size()[[0, 3]].tolist() == [0, 0]
    assert found.empty == before.empty + 2


def test_nothing_is_tuned_on_failed_units(tmp_path: Path) -> None:
    logits, labels = drawn(600)
    tuned: list[Any] = []

    def fit(forecast: Any, truth: Any, level: PACLevel) -> Likelihood:
        tuned.append((forecast, truth))
        return Likelihood()

    forecast = broken(logits, range(0, 600, 60))
    sizes: Any = {"ids": range(600), "tune": 200, "calibrate": 200}
    made = certify(forecast, labels, LEVEL, **sizes, fit=fit, ledger=tmp_path / "l.json")
    assert made.parts is not None
    rows = made.parts.tune.rows
    alive = rows[~forecast.failed[rows]]
    assert 0 < len(alive) < 200
    assert np.array_equal(tuned[0][0].logits, logits[alive])
    assert np.array_equal(tuned[0][1], labels[alive])
    assert np.isinf(made.scores).sum() == forecast.failed[made.parts.calibrate.rows].sum() > 0
    with pytest.raises(InvalidInput, match="tune must have a unit that did not fail, got 3 that did"):
        drop_failed(broken(logits[:3], range(3)), labels[:3])


def test_all_of_a_shard_may_have_failed() -> None:
    logits, labels = drawn(3)
    gone = broken(logits, range(3))
    gone.check()
    assert score_units(Likelihood(), gone, labels).tolist() == [np.inf] * 3
    assert broken(logits, []).failed is None


def test_a_failed_forecast_is_nothing_else() -> None:
    logits, labels = drawn(4)
    forecast = broken(logits, [2])
    for work in (lambda: nll(forecast, labels), lambda: Likelihood().sets(forecast, 1.0)):
        with pytest.raises(InvalidInput, match="each row of logits must be numbers"):
            work()
    with pytest.raises(InvalidInput, match="a failed unit must have logits NaN, got numbers in row 1"):
        LogitForecast(logits, failed=np.array([False, True, False, False]))
    with pytest.raises(InvalidInput, match="failed must be 4 booleans, one for each unit"):
        LogitForecast(logits, failed=[0, 1, 0, 0])
    lost = forecast.logits.copy()
    lost[0] = np.nan
    with pytest.raises(InvalidInput, match="units that did not fail must be numbers, got row 0"):
        LogitForecast(lost, failed=forecast.failed).check()
    assert forecast.take([2, 3]).failed.tolist() == [True, False]


def test_files_with_failed_units_from_fit_to_sets(tmp_path: Path) -> None:
    logits, labels = drawn(600)
    forecast = broken(logits, range(0, 600, 60))
    file, out = tmp_path / "z.npz", tmp_path / "c.json"
    np.savez(file, logits=forecast.logits, labels=labels, failed=forecast.failed, ids=np.arange(600))
    asked = ["--epsilon", 0.1, "--delta", 0.05, "--tune", 200, "--calibrate", 200, "--temperature"]
    made = run("fit", file, *asked, "--out", out)
    assert made.exit_code == 0, made.output
    scores = load(tmp_path / "c.scores.npz")["scores"]
    assert f"{np.isinf(scores).sum()} calibration units have none and count as errors" in made.output
    assert read_certificate(out).predictor.threshold.value == fit_threshold(scores, LEVEL).value
    assert run("verify", out, file).exit_code == 0
    tested = run("evaluate", out, file).output
    assert "prediction=none, failed" in tested
    assert "their sets are empty and count as errors" in tested
    line = run("sets", out, file).output.splitlines()[1 + 60]
    assert line == "60,0,"
    np.savez(file, logits=forecast.logits, labels=labels, ids=np.arange(600))
    refused(run("fit", file, *asked, "--out", tmp_path / "x.json"), "each row of logits must be numbers")


LOST = (3, 17, 40)
ARRAYS = {"numpy": np.asarray, "torch": torch.from_numpy}
SHAPES: dict[str, dict[str, Any]] = {
    "joint": {},
    "max": {},
    "box": {},
    "features": {"features": LinearFeatures(("sum",), np.array([[1.0, 1.0]]))},
}


def exploded(n: int = 100, library: str = "numpy", seed: int = 0) -> tuple[Any, Any, Any]:
    """Forecasts of which some explode, each in its own way, the same before they did, and the truth."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(n, 4, 2))
    var = rng.uniform(0.5, 2, size=mean.shape)
    truth = mean + rng.normal(size=mean.shape)
    lost, none = mean.copy(), var.copy()
    lost[LOST[0], 3, 1], lost[LOST[1]], none[LOST[2], 0, 0] = np.inf, np.nan, 0.0
    array = ARRAYS[library]
    made = GaussianForecast(array(lost), array(none)), GaussianForecast(array(mean), array(var))
    return *made, array(truth)


@pytest.mark.parametrize("library", ARRAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_unit_on_which_the_model_explodes_is_an_error_of_every_tube(shape: str, library: str) -> None:
    raw, whole, truth = exploded(library=library)
    forecast, alive = raw.mark_failures(), np.setdiff1d(np.arange(100), LOST)
    score = fit_shape(forecast, truth, LEVEL, shape=shape, **SHAPES[shape])
    assert (
        score.to_json()
        == fit_shape(whole.take(alive), truth[alive], LEVEL, shape=shape, **SHAPES[shape]).to_json()
    )
    found = np.asarray(score_units(score, forecast, truth))
    assert np.flatnonzero(np.isinf(found)).tolist() == list(LOST)
    assert np.array_equal(found[alive], np.asarray(score.scores(whole, truth))[alive])
    predictor = calibrate(score, forecast, truth, LEVEL)
    assert predictor.threshold == fit_threshold(found, LEVEL)
    assert predictor.threshold.value == np.sort(found[alive])[-(4 - len(LOST) + 1)]
    for served in (forecast, raw):
        sets = predictor.sets(served)
        assert set(LOST) <= set(np.flatnonzero(np.asarray(sets.empty)).tolist())
        assert not np.asarray(sets.contains(truth))[list(LOST)].any()
        assert np.isnan(np.asarray(sets.support([1.0, 1.0]))[list(LOST)]).all()


def test_more_explosions_than_errors_allowed_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    mean = rng.normal(size=(300, 2))
    truth, failed = mean + rng.normal(size=mean.shape), np.arange(300) % 20 == 0
    forecast = GaussianForecast(mean, np.ones_like(mean), failed=failed)
    with pytest.raises(TooManyFailures, match="5 of 100 calibration units failed") as refusal:
        calibrate(Likelihood(), forecast.take(slice(100)), truth[:100], LEVEL)
    assert refusal.value.allowed == 4
    sizes: Any = {"ids": range(300), "tune": 100, "calibrate": 150}
    made = certify(forecast, truth, [PACLevel(0.05, 0.05), LEVEL], **sizes, ledger=tmp_path / "l.json")
    assert np.isinf(made.scores).sum() == failed[made.parts.calibrate.rows].sum()  # type: ignore[union-attr]
    assert [level.epsilon for level in made.refused] == [0.05]


def test_a_forecast_that_is_none_is_refused_unless_it_is_marked() -> None:
    raw, whole, truth = exploded()
    marked = raw.mark_failures()
    assert np.flatnonzero(marked.failed).tolist() == list(LOST)
    assert whole.mark_failures().failed is None
    how = r"the first in row 3; a unit marked as failed \(`failed`, or mark_failures\(\)\) counts as an error"
    level: Any = {"level": LEVEL}
    for work in (
        lambda: score_units(Likelihood(), raw, truth),
        lambda: fit_shape(raw, truth, LEVEL),
        lambda: fit_temperature(raw, truth),
        lambda: fit_sets(whole, truth, raw, truth, **level),
        lambda: nll(raw, truth),
    ):
        with pytest.raises(InvalidInput, match=how):
            work()
    with pytest.raises(InvalidInput, match=r"others in 3 units, .* has no score of its own"):
        nll(marked, truth)
    with pytest.raises(InvalidInput, match="failed must be 100 booleans, one for each unit"):
        GaussianForecast(whole.mean, whole.var, failed=np.zeros(99, bool))
    half = GaussianForecast(raw.mean, raw.var, failed=np.arange(100) == 3)
    with pytest.raises(InvalidInput, match=r"others in 2 units, the first in row 17; .* counts as an error"):
        score_units(Likelihood(), half, truth)


@pytest.mark.parametrize("full", [False, True])
def test_a_mark_holds_whatever_becomes_of_the_numbers(full: bool) -> None:
    """A sum over steps hides a bad variance, and a unit may be marked although its numbers look well."""
    var = np.stack([np.eye(2)] * 4) if full else np.ones((4, 2))
    var = np.broadcast_to(var, (3, *var.shape)).copy()
    var[1, 2] *= -0.5
    forecast = replace(GaussianForecast(np.zeros((3, 4, 2)), var).mark_failures(), failed=[True, True, False])
    for made in (forecast, forecast.accumulated(), forecast.tempered(2.0), forecast.wide()):
        assert made.failed.tolist() == [True, True, False]
        assert made.sound().tolist() == [False, False, True]
    assert forecast.take([2]).failed is None


def test_nothing_is_tuned_on_explosions() -> None:
    raw, whole, truth = exploded()
    alive = np.setdiff1d(np.arange(100), LOST)
    tau = fit_temperature(whole.take(alive), truth[alive]).tau
    marked = raw.mark_failures()
    assert np.array_equal(fit_temperature(marked, truth).tau, tau)
    assert np.array_equal(Likelihood.fit(marked, truth).temperature.tau, tau)  # type: ignore[union-attr]


@pytest.mark.parametrize("ending", ["npz", "csv"])
def test_files_with_explosions_from_fit_to_sets(ending: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    mean = rng.normal(size=600)
    arrays = {"mean": mean, "var": np.ones(600), "truth": mean + rng.normal(size=600)}
    lost = np.arange(600) % 60 == 0
    arrays["mean"] = np.where(lost, np.nan, mean)
    file, out = tmp_path / f"g.{ending}", tmp_path / "c.json"

    def write(**more: Any) -> None:
        if ending == "npz":
            return np.savez(file, ids=np.arange(600), **arrays, **more)
        columns = {"id": np.arange(600)} | {f"{name}_0": values for name, values in arrays.items()} | more
        rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        file.write_text("\n".join([",".join(columns), *rows]))

    asked = ["--epsilon", 0.1, "--delta", 0.05, "--tune", 200, "--calibrate", 200]
    write()
    refused(
        run("fit", file, *asked, "--out", out), "got others in 10 units, the first in row 0; a unit marked"
    )
    write(failed=lost)
    made = run("fit", file, *asked, "--out", out)
    assert made.exit_code == 0, made.output
    scores = load(tmp_path / "c.scores.npz")["scores"]
    assert f"{np.isinf(scores).sum()} calibration units have none and count as errors" in made.output
    assert read_certificate(out).predictor.threshold.value == fit_threshold(scores, LEVEL).value
    assert run("verify", out, file).exit_code == 0
    assert "their sets are empty and count as errors" in run("evaluate", out, file).output
    answer = run("sets", out, file).output
    assert answer.splitlines()[1 + 60].split(",") == ["60", "0", "nan", "nan"]
    assert "units without a forecast: 10; their sets are empty and count as misses" in answer
