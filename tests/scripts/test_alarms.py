"""Suppressed alarms: what each rule promises, in worlds where the truth is known in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from alarms.rules import (
    KINDS,
    Alarms,
    RuleResult,
    alarms_in,
    certify_rule,
    count_suppressed,
    fit_true_alarms,
    risk_given,
    sets_row,
    suppress,
    suppress_by_the_paper,
    suppress_by_true_alarms,
)
from scipy.optimize import brentq
from scipy.stats import binom, binomtest
from script_runs import run_here, smoke_test, table_in
from tables.reading import Table

from pac_core import InvalidInput, LogitForecast, PACLevel, SecondLook, read_certificate
from pac_core.certificates import Record
from pac_core.scores import nll
from pac_core.sets import LabelSets, label_sets
from pac_core.thresholds import Threshold, fit_threshold

LEVEL = PACLevel(0.1, 0.05)


@cache
def breach(n: int, slip: int = 0) -> float:
    """P[Binomial(n, epsilon) <= k*], or k* + slip; k* by scipy, not by the code under test."""
    tails = binom.cdf(np.arange(n), n, LEVEL.epsilon)
    return float(tails[np.count_nonzero(tails < LEVEL.delta) - 1 + slip])


def test_the_rule_for_true_alarms_breaks_its_promise_as_often_as_the_binomial_says() -> None:
    """Scores of true alarms are uniform, so T suppresses a share 1 - T of them; false ones score lower."""
    rng, repeats, expected, slipped = np.random.default_rng(0), 6_000, 0.0, 0.0
    broken = 0
    for _ in range(repeats):
        true = rng.random(150) < 0.5  # how many are true is chance
        scores = np.where(true, rng.random(150), 0.5 * rng.random(150))
        threshold = fit_true_alarms(scores, true, LEVEL)
        n = int(true.sum())
        assert threshold.n == n
        broken += 1 - threshold.value > LEVEL.epsilon
        expected += breach(n) / repeats
        slipped += breach(n, 1) / repeats
    assert binomtest(broken, repeats, expected).pvalue > 1e-4
    assert binomtest(broken, repeats, slipped).pvalue < 1e-9, "one error more would be noticed"
    assert expected < LEVEL.delta


def test_a_suppressed_alarm_is_not_false_with_probability_one_minus_epsilon() -> None:
    """x uniform and f(true|x) = x exactly: the set is {false} below c = e^-T, P(true | suppressed) = c / 2.

    A miss has probability c^2, so c is near sqrt(epsilon), and c / 2 far above epsilon.
    """
    rng, level = np.random.default_rng(1), PACLevel(0.05, 0.05)
    claimed = followed = 0
    for _ in range(200):
        x = rng.random(1000)
        true = rng.random(1000) < x
        forecast = LogitForecast.from_probabilities(np.stack([1 - x, x], axis=1))
        threshold = fit_threshold(nll(forecast.take(slice(500)), true[:500].astype(int)), level)
        c = math.exp(-threshold.value)
        member = label_sets(forecast.take(slice(500, None)), threshold).member
        quiet = member[:, 0] & ~member[:, 1]
        np.testing.assert_array_equal(quiet, x[500:] < c)
        claimed += c / 2 > level.epsilon
        followed += c / 2 > risk_given(level, quiet)
    assert claimed == 200
    assert followed == 0


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_implied_limit_fails_for_exactly_the_counts_of_clopper_and_pearson(share: float) -> None:
    """If P(miss and suppressed) is epsilon, the limit is wrong where the count is too large for `share`."""
    level, n, doubt = PACLevel(0.02, 0.05), 60, 0.03
    wrong = set()
    for count in range(1, n + 1):
        if risk_given(level, np.arange(n) < count, doubt=doubt) < level.epsilon / share:
            wrong.add(count)
    assert wrong == {count for count in range(1, n + 1) if binom.sf(count - 1, n, share) < doubt}
    assert sum(binom.pmf(count, n, share) for count in wrong) < doubt


def test_limits_of_many_few_and_none() -> None:
    """The paper suppressed 189 of 817 at epsilon 0.02: more than 2% of those may be true."""
    level = PACLevel(0.02, 1e-5)
    assert risk_given(level, np.arange(817) < 189) == pytest.approx(0.02 / binom_least(189, 817), rel=1e-6)
    assert risk_given(LEVEL, np.arange(21) < 1) == 1.0
    assert risk_given(LEVEL, np.zeros(9, bool)) is None


def binom_least(count: int, n: int) -> float:
    """Where so many or more have the probability 0.01."""
    return float(brentq(lambda p: binom.sf(count - 1, n, p) - 0.01, 1e-9, 1 - 1e-9))


def test_where_the_model_fails_the_alarm_sounds() -> None:
    threshold = fit_true_alarms(np.arange(100.0), np.ones(100, bool), LEVEL)
    assert threshold.value == 95.0  # k* = 4: P[Binomial(100, 0.1) <= 4] = 0.024, <= 5: 0.058
    assert not suppress(threshold, np.array([95.0 + 1e-6])).any(), "another CPU's digits suppress nothing"
    scores = np.array([95.0, 95.1, math.nan, math.inf, -math.inf])
    assert suppress(threshold, scores).tolist() == [False, True] + [False] * 3


def test_false_alarms_do_not_move_the_threshold() -> None:
    true = np.arange(200) < 100
    scores = np.concatenate([np.arange(100.0), np.full(100, 1e6)])
    assert fit_true_alarms(scores, true, LEVEL).value == 95.0
    with pytest.raises(InvalidInput, match="at least one true alarm"):
        fit_true_alarms(scores, ~(true | True), LEVEL)


def test_counts_by_hand() -> None:
    true = np.array([True, False, False, True, True, True] + [False] * 4)
    found = count_suppressed(np.arange(10) < 3, true)
    assert (found.true_suppressed, found.true, found.false_suppressed, found.false) == (1, 4, 2, 6)
    assert (found.share_of_true, found.share_of_false) == (0.25, 2 / 6)
    none = count_suppressed(np.zeros(1, bool), np.zeros(1, bool))
    assert math.isnan(none.share_of_true)
    assert none.true_interval == (0.0, 1.0)


def stream(n: int = 2000, *, tau: float = 1.0) -> Alarms:
    rng = np.random.default_rng(7)
    true = rng.random(n) < 0.3
    odds = 2 * (rng.normal(size=n) + np.where(true, 1, -1)) + math.log(3 / 7)
    forecast = LogitForecast(np.stack([np.zeros(n), odds], axis=1), tau)
    ids, half = np.arange(n).astype(str), n // 2
    rows = np.arange(n)
    return Alarms("s", ids, forecast, true, rows[:half], rows[half:], Record("m"), Record("d"))


@pytest.mark.parametrize("rule", [suppress_by_the_paper, suppress_by_true_alarms])
def test_no_temperature_changes_what_is_suppressed(rule: Callable[..., object]) -> None:
    """With two labels it keeps the order of the scores, which is why alarms need no tune part."""
    found = [rule(stream(tau=tau), LEVEL).found for tau in (1.0, 0.2, 3.0)]
    assert found[0].false_suppressed > 0
    assert found[0] == found[1] == found[2]


def test_the_certificate_counts_true_alarms_alone(tmp_path: Path) -> None:
    alarms = stream()
    made = certify_rule(alarms, LEVEL, ledger=tmp_path / "ledger")
    count = int(alarms.true[:1000].sum())
    certificate = made.certificates[0]
    assert certificate.predictor.threshold.n == count < 400
    result = suppress_by_true_alarms(alarms, LEVEL)
    assert result.threshold == certificate.predictor.threshold
    assert result.promised == LEVEL.epsilon
    assert certificate.promise.startswith(
        "The set of a new true alarm misses its truth with probability at most 0.1"
    )
    with pytest.raises(SecondLook):
        certify_rule(alarms, PACLevel(0.05, 0.05), ledger=tmp_path / "ledger.json")
    paper = suppress_by_the_paper(alarms, LEVEL)
    assert paper.threshold is not None
    assert paper.threshold.n == 1000
    assert paper.promised is not None
    assert paper.promised > LEVEL.epsilon / 0.35, "of true alarms the paper's rule promises less"
    assert (
        suppress_by_true_alarms(alarms, PACLevel(0.001, 0.05)).refused == "refused: 2,995 true alarms needed"
    )


def test_rows_become_alarms() -> None:
    rng = np.random.default_rng(3)
    real = rng.random(400) < 0.4
    cells = {"pulse": rng.normal(size=400) + 1.5 * real, "class": np.where(real, rng.choice([2, 3], 400), 1)}
    table = Table("vitals", np.arange(400).astype(str), pd.DataFrame(cells).astype(str))
    parts = {"false": "1", "train": 180, "seed": 0}
    alarms = alarms_in(table, "Vitals", calibrate=120, **parts)
    np.testing.assert_array_equal(alarms.true, real)
    ids = [alarms.train_ids, *(alarms.ids[rows] for rows in (alarms.calibrate, alarms.test))]
    assert [len(part) for part in ids] == [180, 120, 100]
    assert len(np.unique(np.concatenate(ids))) == 400
    found = suppress_by_true_alarms(alarms, LEVEL).found
    assert found is not None
    assert found.share_of_false > found.share_of_true
    with pytest.raises(InvalidInput, match="vitals must have over 400 rows, got 400"):
        alarms_in(table, "Vitals", calibrate=220, **parts)


def test_the_claims_are_put_to_the_test(tmp_path: Path) -> None:
    said = smoke_test("alarms", "paper", tmp_path)
    claims = {(row["epsilon"], row["claim"]): row for row in table_in(tmp_path / "simulated_claims.csv")}
    paper = claims["0.02", "P(true alarm | suppressed) <= epsilon, as the paper says"]
    assert paper["false in"] == paper["of"] == "200"
    for epsilon in ("0.02", "0.05", "0.1"):
        implied = claims[epsilon, "P(true alarm | suppressed) <= epsilon / P(suppressed)"]
        direct = claims[epsilon, "P(suppressed | true alarm) <= epsilon"]
        assert int(implied["false in"]) <= 10 + 12  # delta = 0.05 of 200, and four deviations
        assert binomtest(int(direct["false in"]), 200, float(direct["expected"]) / 200).pvalue > 1e-4
    for name in ("simulated_suppressed", "simulated_sets"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "compared   'set is {false}' (no certificate" in said
    papers = table_in(tmp_path / "simulated_sets.csv")[0]
    assert (papers["epsilon"], papers["delta"], papers["n"]) == ("0.02", "1e-05", "1000")
    assert float(papers["error"]) < 0.02 < float(papers["{false}"])
    assert read_certificate(tmp_path / "simulated.certificate.json").unit == "true alarm"


def test_a_folder_without_its_tables_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        said = run_here(monkeypatch, "alarms", "paper", folder, "--out", tmp_path / "out")
        assert said == f"Error: FOLDER must hold arrhythmia.arff, car.arff or both, got {folder}"
    assert not list(tmp_path.rglob("*ledger*"))


def test_sets_are_counted_by_hand() -> None:
    alarms = stream(8)
    member = np.array([[True, False], [True, True], [False, True], [False, False]])
    forecast = replace(alarms, true=np.array([False] * 4 + [True, True, True, False]))
    result = RuleResult("set is {false}", LEVEL, Threshold(1.0, 40, 1, LEVEL), sets=LabelSets(member))
    row = sets_row(forecast, result)
    assert [row[kind] for kind in KINDS] == [0.25] * 4
    assert (row["error"], row["mean size"]) == (0.5, 1.0)  # of true, true, true, false: {false} and {} miss
    assert sets_row(forecast, RuleResult("", LEVEL, refused="why"))["verdict"] == "why"
