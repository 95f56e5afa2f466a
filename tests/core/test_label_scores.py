"""The choice of a label score: what it picks, that it helps where it should, and the program with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pac_program import LEVEL as ASKED
from pac_program import SPLIT, load, refused, run

from pac_core import (
    GaussianForecast,
    InvalidInput,
    LogitForecast,
    PACLevel,
    certify,
    fit_sets,
    read_certificate,
    split,
)
from pac_core.certificates.certificate import seal
from pac_core.fitting import score_fitter
from pac_core.scores import fit_temperature
from pac_core.sets import (
    LABEL_SCORES,
    Likelihood,
    RankedScore,
    calibrate,
    choose_label_score,
    fit_tempered,
)
from pac_core.sets.label_scores import BASES, Units, choose_among

LEVEL = PACLevel(0.03, 1e-3)


def astray(n: int, seed: int, share: float = 1 / 12) -> tuple[LogitForecast, np.ndarray]:
    """A forecaster with a long tail of 200 labels; some truths lie anywhere among its first fifteen.

    Where it is sure, the gap to the second label is wide: by likelihood alone a set that is to hold the
    second label there must hold most labels where it is not.
    """
    rng = np.random.default_rng(seed)
    scale = rng.uniform(2, 8, size=(n, 1))
    logits = scale * np.sort(rng.gumbel(size=(n, 200)), axis=1)[:, ::-1]
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    lost = rng.random(n) < share
    labels[lost] = rng.integers(0, 15, size=lost.sum())
    return LogitForecast(logits.astype(np.float32)), labels


def mean_size(score: object, level: PACLevel) -> float:
    predictor = calibrate(score, *astray(2000, 11), level)  # type: ignore[arg-type]
    return float(predictor.sets(astray(1000, 12)[0]).size().mean())


def test_ranks_help_where_likelihoods_of_different_inputs_do_not_compare() -> None:
    tune = astray(1000, 10)
    chosen = choose_label_score(*tune, LEVEL, calibrate=2000)
    assert isinstance(chosen, RankedScore)
    assert (chosen.weight > 0, chosen.n) == (True, 1000)
    assert mean_size(chosen, LEVEL) < 0.8 * mean_size(fit_tempered(*tune, LEVEL), LEVEL)


def test_a_forecaster_that_is_right_keeps_its_likelihood() -> None:
    """If p is the true probability, no score has smaller sets on average than -log p."""
    forecast, labels = astray(1000, 3, share=0.0)
    score = choose_label_score(forecast, labels, PACLevel(0.1, 1e-3), calibrate=2000)
    assert isinstance(score, RankedScore)
    assert (score.base, score.weight, score.share) == ("likelihood", 0.0, 0.0)
    assert score.tau == pytest.approx(1.0, abs=0.1)


def test_the_order_of_the_units_changes_nothing() -> None:
    forecast, labels = astray(600, 4)
    order = np.random.default_rng(0).permutation(600)
    one = choose_label_score(forecast, labels, LEVEL, calibrate=1000)
    other = choose_label_score(forecast.take(order), labels[order], LEVEL, calibrate=1000)
    assert isinstance(one, RankedScore)
    assert isinstance(other, RankedScore)
    assert one.close_to(other)


@pytest.mark.parametrize("base", BASES)
def test_sizes_are_those_of_the_sets(base: str) -> None:
    """What the choice compares is the mean size of real sets, with so many true labels outside."""
    forecast, labels = astray(300, 5)
    score = RankedScore(base, 0.8, 0.2, share=0.1, flat=0.6)
    counts = np.array([0, 7, 40])
    found, outside = Units.of(forecast, labels).judged(score, counts)
    scores = score.scores(forecast, labels)
    own = np.sort(scores)[::-1]
    assert (outside == (scores > own[40] + 1e-6)).all()
    for count, size in zip(counts, found, strict=True):
        sets = score.sets(forecast, float(own[count]) + 1e-6)
        assert size == pytest.approx(sets.size().mean(), abs=0.05)
        assert (~sets.contains(labels)).sum() <= count


def test_the_smallest_of_a_menu_is_taken_if_it_beats_the_first() -> None:
    units = Units.of(*astray(1000, 6))
    good, bad = RankedScore("likelihood", units.tau, 2.0), RankedScore("top", units.tau, 1e-6)
    assert choose_among([bad, good], units, [LEVEL], calibrate=2000) is good
    assert choose_among([good, bad], units, [LEVEL], calibrate=2000) is good


def test_the_fewer_errors_the_more_the_first_must_be_beaten_by() -> None:
    """With one or two tune labels outside, chance does not pick RAPS or SAPS where likelihood is best."""
    rng, level = np.random.default_rng(0), PACLevel(0.02, 1e-5)
    for _ in range(20):
        logits = 2.0 * rng.standard_normal((200, 50))
        labels = (0.7 * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        units = Units.of(LogitForecast(logits), labels)
        first = RankedScore("likelihood", units.tau)
        scores = [first, *(RankedScore(base, units.tau, 0.03, power=1.0) for base in ("mass", "top"))]
        assert choose_among(scores, units, [level], calibrate=2000) is first


def test_in_doubt_the_temperature_is_half_way() -> None:
    """Between D and C+D: whichever of the two has the smaller sets, few tune units cannot tell."""
    rng = np.random.default_rng(1)
    logits = 1.3 * rng.standard_normal((200, 40))
    labels = (1.4 * logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    forecast = LogitForecast(logits)
    score = choose_label_score(forecast, labels, PACLevel(0.02, 1e-5), calibrate=2000)
    assert isinstance(score, RankedScore)
    assert (score.base, score.weight, score.share) == ("likelihood", 0.0, 0.0)
    assert score.tau**2 == pytest.approx(fit_temperature(forecast, labels).tau)


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="score must be one of smallest, paper, plain, got 'raps'"):
        score_fitter(("labels",), "raps")


@pytest.fixture
def tail(tmp_path: Path) -> Path:
    forecast, labels = astray(1000, 7)
    path = tmp_path / "tail.npz"
    np.savez(path, logits=forecast.logits, labels=labels, ids=[f"image-{i}" for i in range(1000)])
    return path


@pytest.fixture
def ranked(tail: Path) -> Path:
    path = tail.parent / "c.json"
    fitted = run("fit", tail, *ASKED, *SPLIT, "--unit", "image", "--out", path)
    assert fitted.exit_code == 0, fitted.output
    assert "smallest sets: -log p at tau" in fitted.output
    assert ", chosen on 200 tune units" in fitted.output
    return path


def test_the_program_chooses_certifies_serves_and_verifies(tail: Path, ranked: Path) -> None:
    score = read_certificate(ranked).predictor.score
    assert isinstance(score, RankedScore)
    assert score.n == 200
    for data in (ranked.with_name("c.scores.npz"), tail):
        verified = run("verify", ranked, data)
        assert verified.exit_code == 0, verified.output
    assert "ok  choice" in verified.output
    assert "not refuted by 400 test units" in run("evaluate", ranked, tail).output
    assert run("sets", ranked, tail, "--out", tail.with_name("sets.npz")).exit_code == 0
    member = load(tail.with_name("sets.npz"))["member"]
    threshold = read_certificate(ranked).predictor.threshold.value
    every = score.scores(LogitForecast(load(tail)["logits"]), load(tail)["labels"])
    assert (member[np.arange(1000), load(tail)["labels"]] == (every <= threshold)).all()


@pytest.mark.parametrize("score", [None, *LABEL_SCORES])
def test_python_and_the_program_give_the_same_sets(tail: Path, score: str | None) -> None:
    """From the same units and split: the same score, T and sets."""
    options = [] if score is None else ["--score", score]
    out = tail.with_name("c.json")
    assert run("fit", tail, *ASKED, *SPLIT, *options, "--out", out).exit_code == 0
    program = read_certificate(out).predictor
    forecast, labels = LogitForecast(load(tail)["logits"]), load(tail)["labels"]
    level, ids = program.threshold.level, load(tail)["ids"]
    parts = split(ids, tune=200, calibrate=400, seed=0)
    tune, cal = ((forecast.take(part.rows), labels[part.rows]) for part in (parts.tune, parts.calibrate))
    bare = fit_sets(*tune, *cal, level, score=score)
    ledger = tail.with_name("l.json")
    kept = certify(forecast, labels, level, ids=ids, tune=200, calibrate=400, score=score, ledger=ledger)
    for other in (bare, kept.certificates[0].predictor):
        assert other.score.to_json() == program.score.to_json()
        assert other.threshold == program.threshold
        assert (other.sets(forecast).member == program.sets(forecast).member).all()


def test_a_score_that_cannot_be_fitted_is_refused(tail: Path) -> None:
    forecast, labels = LogitForecast(load(tail)["logits"]), load(tail)["labels"]
    vectors = GaussianForecast(np.zeros((5, 2)), np.ones((5, 2)))
    settings = {"ids": range(1000), "calibrate": 400, "ledger": tail.with_name("l.json")}
    with pytest.raises(InvalidInput, match="'smallest' is for labels, the forecasts are of vectors"):
        fit_sets(vectors, np.zeros((5, 2)), vectors, np.zeros((5, 2)), LEVEL, score="smallest")
    with pytest.raises(InvalidInput, match="score='paper' is fitted on tune units, but tune is 0"):
        certify(forecast, labels, LEVEL, tune=0, score="paper", **settings)
    with pytest.raises(InvalidInput, match="fit and score both say what is fitted"):
        certify(forecast, labels, LEVEL, tune=200, score="paper", fit=fit_tempered, **settings)


def test_verify_chooses_again(tail: Path, ranked: Path) -> None:
    """A certificate with another weight, sealed anew, is found out."""
    document = json.loads(ranked.read_text())
    document["score"]["weight"] += 0.25
    ranked.write_text(json.dumps(document | {"seal": seal(document)}))
    result = run("verify", ranked, tail)
    assert result.exit_code == 1
    assert "NO  choice" in result.output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"u": 0.3}, "must have the fields ['base', 'flat',"),
        ({"base": "aps"}, "base must be one of"),
        ({"weight": -1.0}, "weight must be a finite number at least 0"),
    ],
)
def test_a_damaged_score_is_refused(ranked: Path, change: dict[str, object], words: str) -> None:
    document = json.loads(ranked.read_text())
    document["score"] |= change
    ranked.write_text(json.dumps(document | {"seal": seal(document)}))
    refused(run("evaluate", ranked, ranked.with_name("tail.npz")), words)


def test_several_levels_share_one_score(tail: Path) -> None:
    levels = ["--epsilon", "0.1", "--epsilon", "0.2", "--delta", "0.01"]
    fitted = run("fit", tail, *levels, *SPLIT, "--out", tail.with_name("c.json"))
    assert fitted.exit_code == 0, fitted.output
    one, other = (read_certificate(tail.with_name(f"c-{e}-0.01.json")).predictor for e in (0.1, 0.2))
    assert one.score == other.score
    verified = run("verify", tail.with_name("c-0.1-0.01.json"), tail)
    assert verified.exit_code == 0, verified.output
    assert "--  choice       the score was not chosen again" in verified.output


@pytest.mark.parametrize(
    ("options", "kind", "tempered"),
    [
        (["--score", "paper"], Likelihood, True),
        (["--temperature"], Likelihood, True),
        (["--score", "plain"], Likelihood, False),
        (["--no-temperature"], Likelihood, False),
    ],
)
def test_the_papers_scores_stay_reachable(tail: Path, options: list[str], kind: type, tempered: bool) -> None:
    assert run("fit", tail, *ASKED, *SPLIT, *options, "--out", tail.with_name("c.json")).exit_code == 0
    score = read_certificate(tail.with_name("c.json")).predictor.score
    assert isinstance(score, kind)
    assert (score.temperature is not None) is tempered  # type: ignore[attr-defined]


def test_the_plain_score_needs_no_tune_units(tail: Path) -> None:
    alone = ["--calibrate", "400", "--score", "plain", "--out", tail.with_name("c.json")]
    assert run("fit", tail, *ASKED, *alone).exit_code == 0
    assert read_certificate(tail.with_name("c.json")).parts["tune"].n == 0
    refused(run("fit", tail, *ASKED, "--calibrate", "400"), "--tune and --calibrate must both be above 0")


def test_options_that_contradict_each_other_are_refused(tail: Path, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "x.json"]
    both = run("fit", tail, *ASKED, *SPLIT, "--score", "smallest", "--no-temperature", *out)
    refused(both, "--no-temperature means --score plain, got --score smallest as well")
    np.savez(tmp_path / "g.npz", mean=np.zeros((900, 2)), var=np.ones((900, 2)), truth=np.zeros((900, 2)))
    vectors = run("fit", tmp_path / "g.npz", *ASKED, *SPLIT, "--score", "paper", *out)
    refused(vectors, "--score is for labels, the file holds forecasts of vectors")
