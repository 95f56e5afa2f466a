"""Certificates come back as they went, and anything not understood is refused with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pac_core import (
    Certificate,
    GaussianForecast,
    InvalidInput,
    LinearFeatures,
    LogitForecast,
    PACLevel,
    Predictor,
    fit_sets,
    read_certificate,
    verify,
    write_certificate,
)
from pac_core.certificates import Record, issue, write_json
from pac_core.certificates.certificate import seal
from pac_core.errors import BadCertificate
from pac_core.scores import Temperature
from pac_core.sets import GivenScore, Likelihood, calibrate
from pac_core.thresholds import fit_threshold
from pac_core.tubes import fit_shape

LEVEL = PACLevel(0.1, 0.1)


def classifier(seed: int) -> tuple[LogitForecast, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(200, 5)) * 2
    return LogitForecast(logits), (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


@pytest.fixture
def made() -> tuple[Certificate, np.ndarray]:
    cal = classifier(1)
    predictor = fit_sets(*classifier(0), *cal, LEVEL, score="paper")
    scores = predictor.score.scores(*cal)
    tune = Record("tune", 200, "0" * 64)
    return issue(predictor, scores, unit="image", ids=np.arange(200), tune=tune), scores


@pytest.fixture
def path(made: tuple[Certificate, np.ndarray], tmp_path: Path) -> Path:
    write_certificate(made[0], tmp_path / "certificate.json")
    return tmp_path / "certificate.json"


def change(path: Path, edit: Any, *, reseal: bool = True) -> Path:
    """A certificate with a change; sealed again, so that what is behind the seal is tested."""
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document | {"seal": seal(document)} if reseal else document))
    return path


def test_comes_back_and_makes_the_same_sets(made: tuple[Certificate, np.ndarray], path: Path) -> None:
    again = read_certificate(path)
    assert again.promise == made[0].promise
    assert again.predictor.threshold == made[0].predictor.threshold
    forecast, _ = classifier(2)
    one, other = made[0].predictor.sets(forecast), again.predictor.sets(forecast)
    assert (one.member == other.member).all()


@pytest.mark.parametrize("shape", ["joint", "max", "box", "features"])
def test_every_tube_shape_comes_back_to_the_last_bit(shape: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def data() -> tuple[GaussianForecast, np.ndarray]:
        states = rng.normal(size=(200, 4, 2))
        return GaussianForecast(np.zeros_like(states), np.exp(rng.normal(size=states.shape))), states

    options = {"features": LinearFeatures(("a",), np.array([[1.0, 2.0]]))} if shape == "features" else {}
    cal = data()
    predictor = calibrate(fit_shape(*data(), LEVEL, shape=shape, **options), *cal, LEVEL)
    write_certificate(issue(predictor, predictor.score.scores(*cal), unit="rollout"), tmp_path / "c.json")
    again = read_certificate(tmp_path / "c.json").predictor
    new = data()
    assert again.score.scores(*new).tolist() == predictor.score.scores(*new).tolist()


@settings(max_examples=30)
@given(scores=st.lists(st.floats(-1e300, 1e300), min_size=22, max_size=60), unit=st.text("abcé", min_size=1))
def test_round_trip_of_any_scores(scores: list[float], unit: str, tmp_path_factory: Any) -> None:
    certificate = issue(Predictor(GivenScore("mine"), fit_threshold(scores, LEVEL)), scores, unit=unit)
    file = tmp_path_factory.mktemp("c") / "c.json"
    write_certificate(certificate, file)
    again = read_certificate(file)
    assert again.predictor.threshold == certificate.predictor.threshold
    assert (again.unit, again.scores, again.promise) == (unit, certificate.scores, certificate.promise)
    assert all(check.holds is not False for check in verify(again, scores))


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s.update(power=-3.0),
        lambda s: s.update(power=99.0),
        lambda s: s.update(sides=[7, 0]),
        lambda s: s.update(sides=[0]),
        lambda s: s.update(scale=[[0.0, 1.0]]),
    ],
)
def test_a_box_that_is_none_is_refused(tmp_path: Path, edit: Any) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(200, 4, 2))
    forecast = GaussianForecast(np.zeros_like(states), np.ones_like(states))
    predictor = calibrate(fit_shape(forecast, states, LEVEL), forecast, states, LEVEL)
    file = tmp_path / "c.json"
    write_certificate(issue(predictor, predictor.score.scores(forecast, states), unit="rollout"), file)
    with pytest.raises(BadCertificate):
        read_certificate(change(file, lambda d: edit(d["score"])))


def test_sets_only_for_the_kind_of_forecast_that_was_calibrated(path: Path) -> None:
    predictor = read_certificate(path).predictor
    with pytest.raises(InvalidInput, match="must be of 5 labels, as calibrated, got 3 labels"):
        predictor.sets(LogitForecast(np.zeros((1, 3))))
    with pytest.raises(InvalidInput, match="got 4 steps of 2 dimensions"):
        predictor.sets(GaussianForecast(np.zeros((1, 4, 2)), np.ones((1, 4, 2))))


def test_promise_says_everything(made: tuple[Certificate, np.ndarray]) -> None:
    for words in (
        "a new image",
        "at most 0.1",
        "1 - 0.1",
        "200 calibration units",
        "independent",
        "not about each kind",
    ):
        assert words in made[0].promise


def test_verify_says_yes_to_the_scores_in_any_order(made: tuple[Certificate, np.ndarray], path: Path) -> None:
    order = np.random.default_rng(0).permutation(200)
    checks = verify(read_certificate(path), made[1][order], order)
    assert [check.name for check in checks] == ["n", "k", "T", "scores", "ids"]
    assert all(check.holds for check in checks)


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda s: s[:-1], {"n", "scores"}),
        (lambda s: s + 1e-9, {"T", "scores"}),
        (lambda s: np.where(np.arange(200) == s.argmin(), s - 1e-9, s), {"scores"}),
        (lambda s: np.where(np.arange(200) < 30, np.inf, s), {"T"}),
    ],
)
def test_verify_says_what_does_not_follow(
    made: tuple[Certificate, np.ndarray], spoil: Any, wrong: set[str]
) -> None:
    checks = verify(made[0], spoil(made[1]))
    assert {check.name for check in checks if check.holds is False} == wrong


def test_a_threshold_rounded_up_follows_and_one_rounded_down_does_not(path: Path, made: Any) -> None:
    value = made[0].predictor.threshold.value
    for direction, holds in ((np.inf, True), (-np.inf, False)):
        moved = float(np.nextafter(value, direction))
        other = change(path, lambda d, moved=moved: d["threshold"].update(value=moved))
        assert {c.name: c.holds for c in verify(read_certificate(other), made[1])}["T"] is holds


def test_other_ids_are_noticed(made: tuple[Certificate, np.ndarray]) -> None:
    checks = {check.name: check.holds for check in verify(made[0], made[1], np.arange(1, 201))}
    assert checks["ids"] is False
    assert {check.name: check.holds for check in verify(made[0], made[1])}["ids"] is None


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda d: d.update(version=2), "has version 2; this program understands 1"),
        (lambda d: d.update(format="other"), "its format is 'other'"),
        (lambda d: d.update(extra=1), r"not understood \['extra'\]"),
        (lambda d: d.pop("unit"), r"missing \['unit'\]"),
        (lambda d: d["level"].update(epsilon=0.01), "do not allow the stated|cannot prove"),
        (lambda d: d["level"].update(epsilon="0.1"), r"level.epsilon must be of type float, got '0.1'"),
        (lambda d: d["threshold"].update(errors=99), "do not allow the stated 99 errors"),
        (lambda d: d["threshold"].update(n=300), "do not allow|parts.calibrate.n"),
        (lambda d: d["threshold"].update(bound="eval"), "threshold.bound must be one of"),
        (lambda d: d["score"].update(kind="magic"), "score.kind must be one of"),
        (lambda d: d["score"].update(more=1), "fields that are not understood"),
        (lambda d: d["score"]["preparations"][0].update(tau=-1.0), "tau must be"),
        (lambda d: d["score"]["preparations"].append({"other": 1}), "preparations must be"),
        (lambda d: d["score"].pop("preparations"), "preparations"),
        (
            lambda d: d.update(promise="It is always right."),
            "the promise in words is not the promise of its numbers",
        ),
        (lambda d: d["parts"].pop("train"), r"missing \['train'\]"),
        (lambda d: d["parts"].update(tune=3), "parts.tune must be"),
        (lambda d: d.update(model={"name": "m"}), "model must have the fields"),
        (lambda d: d.update(unit="image\nof anything"), "unit must be a word"),
        (lambda d: d["threshold"].update(value=1e999), "NaN|Infinity|finite"),
        (lambda d: d.update(forecast=["labels"]), "forecast must be a kind"),
        (lambda d: d.update(forecast=["sounds", 3]), "forecast must be a kind"),
        (lambda d: d.update(forecast=["labels", True]), "forecast must be a kind"),
        (lambda d: d["score"]["preparations"][0].update(tau=10**400), "damaged"),
    ],
)
def test_what_is_not_understood_is_refused(path: Path, edit: Any, reason: str) -> None:
    with pytest.raises(BadCertificate, match=reason):
        read_certificate(change(path, edit))


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["score"]["preparations"][0].update(tau=5.0),
        lambda d: d["threshold"].update(value=0.1),
        lambda d: d["model"].update(name="another"),
        lambda d: d["versions"].update(numpy="9"),
    ],
)
def test_any_change_breaks_the_seal(path: Path, edit: Any) -> None:
    with pytest.raises(BadCertificate, match="changed after it was written"):
        read_certificate(change(path, edit, reseal=False))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not the JSON"),
        ("[1, 2]", "must hold a JSON object, got list"),
        ('{"a": 1, "a": 2}', "a key stands twice"),
        ('{"a": NaN}', "NaN is not a number"),
        ("[" * 100_000, "not the JSON"),
        ("\x80", "not the JSON"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadCertificate, match=reason):
        read_certificate(file)


def test_what_cannot_be_written_leaves_the_old_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "d.json"
    write_json(file, {"old": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"new": float("nan")})
    assert json.loads(file.read_text()) == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["d.json"]


def test_every_cut_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for end in range(0, len(whole) - 2, 97):
        path.write_bytes(whole[:end])
        with pytest.raises(BadCertificate):
            read_certificate(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCertificate, match="cannot be read: No such file"):
        read_certificate(tmp_path / "none.json")


def test_issue_refuses_a_threshold_from_other_scores(made: tuple[Certificate, np.ndarray]) -> None:
    with pytest.raises(BadCertificate, match="does not follow from these scores"):
        issue(made[0].predictor, made[1] + 1, unit="image")
    with pytest.raises(InvalidInput, match="unit must be a word"):
        issue(made[0].predictor, made[1], unit="")
    with pytest.raises(InvalidInput, match="ids must be unique"):
        issue(made[0].predictor, made[1], unit="image", ids=["same"] * 200)


def test_bare_scores_make_no_sets() -> None:
    predictor = Predictor(GivenScore("distance"), fit_threshold(np.arange(100.0), LEVEL))
    with pytest.raises(InvalidInput, match=r"made from bare scores \(distance\)"):
        predictor.sets(LogitForecast(np.zeros((1, 2))))


@pytest.mark.parametrize("step", [{"tau": 1.0, "n": 3}, {"accumulated": True}], ids=str)
def test_preparations_without_end_are_refused_before_any_is_made(
    path: Path, step: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(path, lambda document: document["score"].update(preparations=[step] * 100_000))
    made: list[Any] = []
    monkeypatch.setattr(Temperature, "__post_init__", lambda temperature: made.append(temperature))
    with pytest.raises(BadCertificate, match=r"preparations must be .* each once at most, got"):
        read_certificate(path)
    assert not made


def test_a_score_that_nobody_could_read_again_is_refused_before_it_is_written(
    made: tuple[Certificate, np.ndarray], tmp_path: Path
) -> None:
    """A shape that is registered for fitting and not for reading would cost a look."""

    class Unregistered(Likelihood):
        kind = "unregistered"

    known = made[0]
    unread = replace(known, predictor=replace(known.predictor, score=Unregistered()))
    with pytest.raises(InvalidInput, match=r"must be readable again, but: score\.kind must be one of"):
        write_certificate(unread, tmp_path / "c.json")
    assert not list(tmp_path.iterdir())
