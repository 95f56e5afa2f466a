"""Error, interval, sizes and the word refuted, on sets small enough to count by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from pac_core import InvalidInput, LogitForecast, PACLevel, evaluate
from pac_core.evaluation import calibration_error, describe_accuracy, error_interval
from pac_core.sets import LabelSets

LEVEL = PACLevel(0.05, 0.01)
MEMBER = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=bool)


def test_rows_by_hand() -> None:
    result = evaluate(LabelSets(MEMBER), [0, 2, 0, 2], LEVEL, by={"kind": ["a", "a", "b", "b"]})
    whole, a, b = result.rows
    assert (whole.name, whole.n, whole.errors, whole.empty) == ("all", 4, 2, 1)
    assert (whole.mean, whole.median, whole.smallest, whole.largest) == (1.5, 1.5, 0, 3)
    assert (a.name, a.errors, a.mean) == ("kind=a", 1, 1.5)
    assert (b.name, b.errors, b.empty) == ("kind=b", 1, 1)
    assert whole.quantiles == tuple(np.quantile([1, 2, 0, 3], [0.05, 0.25, 0.75, 0.95]))


@pytest.mark.parametrize(("errors", "n"), [(0, 10), (3, 10), (10, 10), (70, 1000)])
def test_interval_is_scipys(errors: int, n: int) -> None:
    exact = binomtest(errors, n).proportion_ci(confidence_level=0.98, method="exact")
    assert error_interval(errors, n) == pytest.approx((exact.low, exact.high))


@pytest.mark.parametrize(("errors", "refuted"), [(50, False), (67, False), (68, True), (100, True)])
def test_refuted_only_beyond_doubt(errors: int, refuted: bool) -> None:
    """At 1,000 units and epsilon 0.05, P[Binomial >= 68] is 0.0074 and P[Binomial >= 67] is 0.0106."""
    member = np.zeros((1000, 2), dtype=bool)
    member[errors:, 0] = True
    result = evaluate(LabelSets(member), np.zeros(1000, dtype=int), LEVEL)
    assert result.refuted is refuted
    assert ("not refuted" in result.verdict) is not refuted
    assert bool(binomtest(errors, 1000, 0.05, alternative="greater").pvalue < 0.01) is refuted


def test_table_has_a_line_per_row_and_the_verdict() -> None:
    lines = str(evaluate(LabelSets(MEMBER), [0, 2, 0, 2], LEVEL, by={"kind": list("aabb")})).splitlines()
    assert lines[0].split()[:3] == ["units", "n", "error"]
    assert lines[1].split()[:3] == ["all", "4", "0.5000"]
    assert lines[-1].startswith("error at most 0.05: not refuted by 4 test units")


def test_calibration_error_by_hand() -> None:
    """Two bins: confidence 0.9 with accuracy 1/2, confidence 0.6 with accuracy 1."""
    forecast = LogitForecast.from_probabilities(np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6]]))
    assert calibration_error(forecast, [0, 1, 1, 1], bins=10) == pytest.approx((0.4 * 2 + 0.4 * 2) / 4)


def test_calibration_error_keeps_its_bins_apart() -> None:
    """Gaps of opposite sign in neighbouring bins must not cancel: 0.55 with accuracy 1, 0.65 with 0."""
    forecast = LogitForecast.from_probabilities(np.array([[0.55, 0.45], [0.65, 0.35]]))
    assert calibration_error(forecast, [0, 1], bins=10) == pytest.approx((0.45 + 0.65) / 2)


def test_truths_of_another_number_are_refused() -> None:
    with pytest.raises(InvalidInput):
        evaluate(LabelSets(MEMBER), [0], LEVEL)


def test_bad_groups_are_named() -> None:
    with pytest.raises(InvalidInput, match="kind must have one entry per unit, got 1 for 4"):
        evaluate(LabelSets(MEMBER), [0, 2, 0, 2], LEVEL, by={"kind": ["a"]})


@pytest.mark.parametrize(
    ("right", "labels", "classes", "low"),
    [
        (0.77, range(1000), 1000, False),
        (0.29, range(1000), 1000, True),
        (0.60, [0, 1] * 500, 2, True),
        (0.70, [0, 1] * 500, 2, False),
        (0.90, [0] * 900 + [1] * 100, 2, True),  # as good as always answering 0
        (0.60, [0, 1] * 5, 2, False),  # ten units may be that wrong by chance
        (0.95, [0] * 900 + [1] * 100, 2, False),
    ],
)
def test_an_accuracy_near_a_guess_is_suspicious(right: float, labels: Any, classes: int, low: bool) -> None:
    n = len(labels)
    said = describe_accuracy(np.arange(n) < n * right, np.array(labels), classes)
    assert said.startswith(f"accuracy {right:.3f} on {n:,} units")
    assert ("SUSPICIOUSLY LOW" in said) == low
