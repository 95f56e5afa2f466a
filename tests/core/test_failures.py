"""Units without a forecast: errors in calibration, empty sets, never tuned on, never left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pac_program import load, refused, run

from pac_core import (
    InvalidInput,
    Likelihood,
    LogitForecast,
    PACLevel,
    TooManyFailures,
    calibrate,
    certify,
    evaluate,
    fit_threshold,
    max_errors,
    nll,
    read_certificate,
)
from pac_core.failures import to_tune_on, unit_scores

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
        to_tune_on(broken(logits[:3], range(3)), labels[:3])


def test_all_of_a_shard_may_have_failed() -> None:
    logits, labels = drawn(3)
    gone = broken(logits, range(3))
    gone.check()
    assert unit_scores(Likelihood(), gone, labels).tolist() == [np.inf] * 3
    assert broken(logits, []).failed is None


def test_a_failed_forecast_is_nothing_else() -> None:
    logits, labels = drawn(4)
    forecast = broken(logits, [2])
    for work in (lambda: nll(forecast, labels), lambda: Likelihood().sets(forecast, 1.0)):
        with pytest.raises(InvalidInput, match="each row of logits must be numbers"):
            work()
    with pytest.raises(InvalidInput, match="a failed unit must have logits NaN, got numbers in row 1"):
        LogitForecast(logits, failed=np.array([False, True, False, False]))
    with pytest.raises(InvalidInput, match="failed must be a bool for each of 4 units"):
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
    assert f"{np.isinf(scores).sum()} to calibrate on count as errors" in made.output
    assert read_certificate(out).predictor.threshold.value == fit_threshold(scores, LEVEL).value
    assert run("verify", out, file).exit_code == 0
    tested = run("evaluate", out, file).output
    assert "prediction=none, failed" in tested
    assert "their sets are empty, hence errors" in tested
    line = run("sets", out, file).output.splitlines()[1 + 60]
    assert line == "60,0,"
    np.savez(file, logits=forecast.logits, labels=labels, ids=np.arange(600))
    refused(run("fit", file, *asked, "--out", tmp_path / "x.json"), "each row of logits must be numbers")
