"""Losses in [0, 1]: by hand, certified at the boldest setting that follows, refused before a look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from pac_core import InvalidInput, NotEnoughData, PACLevel, SecondLook
from pac_core.certificates import read_family, verify_descent
from pac_core.errors import PACError
from pac_core.risks import certify_losses, missed_share, weighted_miss

LEVEL = PACLevel(0.1, 0.01)


def prove(losses: Any, ledger: Path, **changed: Any) -> Any:
    n = len(next(iter(losses.values())))
    usual: dict[str, Any] = {"ids": range(n), "loss": "share of frames missed", "tested": {"tracker": "mine"}}
    return certify_losses(losses, changed.pop("level", LEVEL), ledger=ledger, **(usual | changed))


def test_the_share_that_is_missed_by_hand() -> None:
    inside = [[True, True, False, False], [True, True, True, True], [False, False, False, False]]
    assert missed_share(inside).tolist() == [0.5, 0.0, 1.0]
    counted = [[True, False, True, False], [False, True, False, False], [False] * 4]
    assert missed_share(inside, counted).tolist() == [0.5, 0.0, 0.0], "of nothing, nothing is missed"


def test_a_missed_label_costs_its_weight() -> None:
    weights = [1.0, 0.25, 0.0]
    assert weighted_miss([False, False, True, False], [0, 1, 0, 2], weights).tolist() == [1.0, 0.25, 0.0, 0.0]


def test_the_boldest_setting_that_follows_from_its_losses(tmp_path: Path) -> None:
    """400 units: 0 and 0.02 show 0.1, 0.2 does not, and what comes after it is not looked at."""
    losses = {3.0: [0.0] * 400, 2.0: [0.02] * 400, 1.0: [0.2] * 400, 0.5: [0.0] * 400}
    shown = prove(losses, tmp_path / "ledger", unit="video")
    assert shown.certified == 2.0
    assert [(one.n, one.errors, one.passed) for one in shown.trials] == [
        (400, 0, True),
        (400, pytest.approx(8.0), True),
        (400, pytest.approx(80.0), False),
    ]
    assert "E[loss of a fresh video of exactly what was tested at this scale] <= 0.1" in str(shown)
    assert read_family(tmp_path / "ledger").cost == 0.01, "one delta for all settings"
    assert all(check.holds for check in verify_descent(shown, tmp_path / "ledger"))


def test_errors_need_as_few_as_the_bound_says(tmp_path: Path) -> None:
    """Of full losses at 0.7 delta: e P[Bin(200, 0.1) <= 8] = 0.0038 passes, e P[<= 9] = 0.0096 does not."""
    for lost, certified in ((8, 1.0), (9, None)):
        losses = {1.0: (np.arange(200) < lost).astype(float)}
        assert prove(losses, tmp_path / f"{lost}").certified == certified


def test_a_risk_of_epsilon_is_certified_as_rarely_as_promised(tmp_path: Path) -> None:
    """Losses of 0 or 1/2 with a mean of exactly 0.3, at a delta that is often spent."""
    rng, level, found = np.random.default_rng(0), PACLevel(0.3, 0.2), 0
    for world in range(150):
        losses = {1.0: 0.5 * (rng.random(60) < 0.6)}
        found += prove(losses, tmp_path / f"{world}", level=level).certified is not None
    assert binomtest(found, 150, 0.2, alternative="greater").pvalue > 1e-3


def test_too_few_units_for_any_proof_are_refused_before_they_are_spent(tmp_path: Path) -> None:
    with pytest.raises(NotEnoughData, match=r"5 calibration units cannot prove epsilon=0\.1 .* at least 48"):
        prove({1.0: [0.0] * 5}, tmp_path / "ledger")
    with pytest.raises(NotEnoughData):
        prove({1.0: [0.0] * 47}, tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()
    assert prove({1.0: [0.0] * 48}, tmp_path / "ledger").certified == 1.0


def test_other_losses_of_the_same_units_are_refused(tmp_path: Path) -> None:
    first = prove({2.0: [0.5] * 60, 1.0: [0.0] * 60}, tmp_path / "ledger")
    assert first.certified is None
    with pytest.raises(SecondLook, match=r"losses of 2\.0 must be those that .* counted, got others"):
        prove({2.0: [0.0] * 60, 1.0: [0.0] * 60}, tmp_path / "ledger")
    again = prove({2.0: [0.5] * 60, 1.0: [0.0] * 60}, tmp_path / "ledger")
    assert again.errors == first.errors, "the same again is the same look"


BAD = st.sampled_from([np.nan, np.inf, -np.inf, -1e-9, 1 + 1e-9, 7.0])


@given(BAD, st.integers(0, 59), st.sampled_from(["loss", "length", "ids", "settings", "words", "level"]))
def test_what_is_no_loss_is_refused_and_no_ledger_begins(
    tmp_path_factory: pytest.TempPathFactory, bad: float, place: int, what: str
) -> None:
    ledger, some = tmp_path_factory.mktemp("losses") / "ledger", np.zeros(60)
    changed: dict[str, Any] = {}
    losses: dict[Any, Any] = {2.0: np.zeros(60), 1.0: some}
    if what == "loss":
        some[place] = bad
    elif what == "length":
        losses[1.0] = some[:place]
    elif what == "ids":
        changed["ids"] = [*range(59), place if place < 59 else 0]
    elif what == "settings":
        losses = {1.0: some, 2.0: some}  # from bold to safe
    elif what == "words":
        changed["loss"] = ""
    else:
        losses = {1.0: np.zeros(place or 1)} if place < 48 else {}
    with pytest.raises((PACError, StopIteration)):
        prove(losses, ledger, **changed)
    assert not ledger.exists()


SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(SHAPES, SHAPES, st.sampled_from([bool, int, float]), st.sampled_from([bool, int, float]))
def test_shares_are_of_booleans_of_one_shape(
    inside: tuple[int, int], counted: tuple[int, int], one: type, other: type
) -> None:
    if inside == counted and one is other is bool:
        assert missed_share(np.ones(inside, one), np.ones(counted, other)).tolist() == [0.0] * inside[0]
        return
    with pytest.raises(InvalidInput, match="inside and counted must be booleans of one shape"):
        missed_share(np.ones(inside, one), np.ones(counted, other))


@given(
    st.lists(st.integers(-2, 4), min_size=1, max_size=4), st.lists(st.floats(-1, 2), min_size=1, max_size=4)
)
def test_weights_are_losses_and_labels_have_one(labels: list[int], weights: list[float]) -> None:
    inside = [False] * len(labels)
    fits = all(0 <= w <= 1 for w in weights) and all(0 <= label < len(weights) for label in labels)
    if fits:
        assert weighted_miss(inside, labels, weights).tolist() == [weights[label] for label in labels]
        return
    with pytest.raises(InvalidInput, match=r"weights must|labels must"):
        weighted_miss(inside, labels, weights)
