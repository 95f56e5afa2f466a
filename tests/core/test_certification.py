"""The whole way in one call: what is checked first, what is written before the look, what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pac_core import (
    GaussianForecast,
    InvalidInput,
    LogitForecast,
    NotEnoughData,
    PACLevel,
    SecondLook,
    certify,
    verify,
)
from pac_core.certificates import Record, certify_scores, read_ledger
from pac_core.errors import OverlappingSplits
from pac_core.sets import Likelihood

LEVEL = PACLevel(0.1, 0.01)


def units(n: int = 600) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, 4)) * 2
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return {"forecast": LogitForecast(logits), "truth": labels, "ids": np.arange(n)}


def run(ledger: Path, **changes: Any) -> Any:
    settings = {**units(), "levels": LEVEL, "tune": 100, "calibrate": 300, "ledger": ledger, "unit": "image"}
    return certify(**(settings | changes))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def test_parts_certificate_and_ledger_agree(ledger: Path) -> None:
    made = run(ledger, train_ids=["a", "b"], train="photos", model=Record("net", digest="0" * 64))
    certificate = made.certificates[0]
    assert {name: part.n for name, part in certificate.parts.items()} == {
        "train": 2,
        "tune": 100,
        "calibrate": 300,
        "test": 200,
    }
    assert (
        certificate.parts["calibrate"].digest
        == made.parts.calibrate.digest
        == read_ledger(ledger)[0].calibrate
    )
    assert certificate.predictor.domain == ("labels", 4)
    assert certificate.model.name == "net"
    assert all(check.holds for check in verify(certificate, made.scores, made.ids))


def test_the_menu_is_on_disk_before_a_score_is_computed(ledger: Path) -> None:
    class Spy(Likelihood):
        def scores(self, forecast: Any, truth: Any) -> Any:
            assert [entry.level for entry in read_ledger(ledger)[0].menu] == [LEVEL]
            return super().scores(forecast, truth)

    made = run(ledger, fit=lambda forecast, truth, level: Spy())
    assert len(made.scores) == 300


def test_a_crash_after_the_look_can_be_made_good_with_the_same_look(ledger: Path) -> None:
    class Fragile(Likelihood):
        def scores(self, forecast: Any, truth: Any) -> Any:
            raise RuntimeError("lights out")

    with pytest.raises(RuntimeError):
        run(ledger, fit=lambda forecast, truth, level: Fragile())
    assert run(ledger, fit=lambda forecast, truth, level: Likelihood()).look == read_ledger(ledger)[0]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"levels": PACLevel(0.001, 0.01)}, NotEnoughData, "300 calibration units cannot prove"),
        ({"levels": [LEVEL, PACLevel(0.001, 0.01)]}, NotEnoughData, "cannot prove epsilon=0.001"),
        ({"levels": []}, InvalidInput, "levels must be one or more"),
        ({"train_ids": [3, 1000]}, OverlappingSplits, "'train' and"),
        ({"ids": np.arange(500)}, InvalidInput, "of as many units, got 600 and 500"),
        ({"truth": np.full(600, 4)}, InvalidInput, r"labels must lie in 0\.\.3"),
        ({"unit": " "}, InvalidInput, "unit must be a word"),
        ({"tune": 0, "fit": lambda forecast, truth, level: Likelihood()}, InvalidInput, "but tune is 0"),
        ({"forecast": LogitForecast(np.full((600, 4), np.nan))}, InvalidInput, "in row 0"),
    ],
)
def test_what_can_be_refused_is_refused_before_the_look(
    ledger: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(ledger, **change)
    assert not ledger.exists()


def test_a_bad_row_is_named_by_its_row_in_the_data(ledger: Path) -> None:
    logits = np.zeros((600, 4))
    logits[417, 2] = np.nan
    with pytest.raises(InvalidInput, match="in row 417"):
        run(ledger, forecast=LogitForecast(logits))


@pytest.mark.parametrize(
    "change",
    [
        {"levels": PACLevel(0.2, 0.01)},
        {"seed": 1},
        {"truth": np.zeros(600, dtype=int), "tune": 0},
        {"forecast": LogitForecast(np.random.default_rng(1).normal(size=(600, 4))), "tune": 0},
        {"forecast": units()["forecast"].tempered(3.0), "tune": 0},
    ],
)
def test_another_level_seed_truth_or_model_is_a_second_look(ledger: Path, change: dict[str, Any]) -> None:
    run(ledger, **({"tune": 0} if change.get("tune") == 0 else {}))
    with pytest.raises(SecondLook):
        run(ledger, **change)


def test_other_scores_of_the_same_units_are_a_second_look(ledger: Path) -> None:
    scores = np.arange(100.0)
    about = {"ids": range(100), "ledger": ledger, "unit": "thing"}
    certify_scores(Likelihood(), lambda: scores, [LEVEL], data="first", **about)
    certify_scores(Likelihood(), lambda: scores, [LEVEL], data="first", **about)
    with pytest.raises(SecondLook):
        certify_scores(Likelihood(), lambda: scores + 1, [LEVEL], data="second", **about)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"levels": iter(())}, "levels must be one or more"),
        ({"ids": ["same"] * 100}, "ids must be unique, got 99 repeats"),
    ],
)
def test_given_scores_are_checked_before_the_look(ledger: Path, change: dict[str, Any], message: str) -> None:
    about = {"ids": range(100), "ledger": ledger, "unit": "thing", "levels": LEVEL, "data": "d"} | change
    with pytest.raises(InvalidInput, match=message):
        certify_scores(Likelihood(), lambda: np.arange(100.0), **about)
    assert not ledger.exists()


def test_a_certificate_of_several_says_what_they_cost_together(ledger: Path) -> None:
    made = run(ledger, levels=[LEVEL, PACLevel(0.2, 0.01)])
    assert (
        f"one of 2 asked for in one look, of which any fails with probability below {made.look.cost!r}"
        in (made.certificates[0].promise)
    )


def test_trajectories_get_the_box_by_default(ledger: Path) -> None:
    states = np.random.default_rng(0).normal(size=(600, 5, 2))
    forecast = GaussianForecast(np.zeros_like(states), np.ones_like(states))
    made = run(ledger, forecast=forecast, truth=states)
    assert made.score.kind == "box"
    assert made.certificates[0].predictor.domain == ("trajectories", 5, 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"levels": None}, "levels must be a list"),
        ({"levels": 0.1}, "levels must be a list"),
        ({"levels": [None]}, "level must be a PACLevel"),
        ({"ids": None}, "ids must be an array of plain values"),
        ({"ids": [f"{i}\udc80" for i in range(600)]}, "ids must be text that UTF-8 can hold"),
        ({"train_ids": None}, "train_ids must be a list"),
        ({"train_ids": "photos"}, "train_ids must be a list"),
        ({"train": None}, "train must be a text"),
        ({"model": "net"}, "model must be a Record"),
        ({"data": 3}, "data must be a Record"),
        ({"forecast": None}, "forecast must be a LogitForecast or GaussianForecast"),
    ],
    ids=str,
)
def test_what_is_not_there_is_named_before_the_ledger_is_written(
    changes: dict[str, Any], said: str, ledger: Path
) -> None:
    with pytest.raises(InvalidInput, match=said):
        run(ledger, **changes)
    assert not ledger.exists()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_cannot_be_written_is_refused_before_the_ledger(ledger: Path) -> None:
    """Errors that overflow make infinite scales; no units are spent for a certificate that nobody gets."""
    rng, flat = np.random.default_rng(0), GaussianForecast(np.zeros((600, 3, 2)), np.ones((600, 3, 2)))
    options: dict[str, Any] = {"ids": range(600), "tune": 200, "calibrate": 300, "ledger": ledger}
    with pytest.raises(InvalidInput, match="scale must be finite and above 0, got"):
        certify(flat, 1e160 * rng.normal(size=(600, 3, 2)), LEVEL, **options)
    with pytest.raises(InvalidInput, match="a certificate must hold text and finite numbers only"):
        run(ledger, model=Record(b"weights"))  # type: ignore[arg-type]
    about: dict[str, Any] = {"ids": range(300), "ledger": ledger, "data": "digest", "unit": "image"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'modle'"):
        certify_scores(Likelihood(), lambda: np.zeros(300), LEVEL, modle=Record("net"), **about)
    assert not ledger.exists()
