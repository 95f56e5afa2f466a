"""Whichever of K candidates is picked: the promise against a closed form, and what is refused.

The world. Each of K candidates has one step of one number, forecast as N(0, 1). With probability 1/2 all K
errors of a unit are one normal draw, else they are independent. So a tube that holds a single candidate with
probability F holds all K with probability (F + F^K) / 2.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pac_program import run as pac
from scipy.special import ndtr
from scipy.stats import binom, binomtest

from pac_core import GaussianForecast, InvalidInput, LinearFeatures, PACLevel, Trajectories, fit_tube
from pac_core.bounds import max_errors, min_samples, share_level
from pac_core.certificates import certify, read_certificate, write_certificate
from pac_core.errors import NotEnoughData
from pac_core.sets import calibrate, score_units
from pac_core.thresholds import fit_threshold
from pac_core.tubes import Tuning, fit_shape

LEVEL, K = PACLevel(0.1, 0.05), 5
N, ALLOWED = 61, 2  # the binomial's 0.0499 at epsilon, just below delta: a slip of one is noticed
DOUBT = 1e-4


def world(rng: np.random.Generator, n: int) -> tuple[GaussianForecast, np.ndarray]:
    errors = np.where(rng.random((n, 1)) < 0.5, rng.normal(size=(n, 1)), rng.normal(size=(n, K)))
    mean = np.zeros((n, K, 1, 1))
    return GaussianForecast(mean, np.ones_like(mean)), errors.reshape(mean.shape)


def walks(rng: np.random.Generator, n: int, k: int = K) -> tuple[GaussianForecast, np.ndarray]:
    """Two dimensions, four steps."""
    truth = rng.normal(size=(n, k, 4, 2)).cumsum(axis=2)
    return GaussianForecast(np.zeros_like(truth), np.ones_like(truth)), truth


def miss(score: Any, limits: np.ndarray) -> np.ndarray:
    """P(any candidate leaves its tube) at each T, by the formula."""
    lower, upper = score.sets(GaussianForecast(np.zeros((1, 1, 1)), np.ones((1, 1, 1))), 1.0).box()
    held = ndtr(limits * upper.item()) - ndtr(limits * lower.item())
    return 1 - (held + held**K) / 2


@pytest.mark.parametrize("shape", ["box", "max"])
def test_the_promise_breaks_as_often_as_the_binomial_says(shape: str) -> None:
    """It would catch: scores of single candidates, a T or k* that is one off, tubes unlike their score. The
    last lines see that the test has the power to: each wrong way is refused by the same comparison."""
    score = fit_shape(*world(np.random.default_rng(0), 400), LEVEL, shape=shape, any_of=True)
    tries, rng = 4000, np.random.default_rng(1)
    forecast, truth = world(rng, tries * N)
    scores = np.asarray(score.scores(forecast, truth)).reshape(tries, N)
    made = calibrate(score, forecast.take(slice(N)), truth[:N], LEVEL)
    assert made.threshold.value == fit_threshold(scores[0], LEVEL).value

    def p_value(limits: Any) -> float:
        """Of the share of these thresholds that break the promise, if the binomial is right."""
        # The set of `max` grows with the root of T.
        widths = np.sqrt(limits) if shape == "max" else np.asarray(limits)
        broken = int((miss(score, widths) > LEVEL.epsilon).sum())
        return float(binomtest(broken, tries, float(binom.cdf(ALLOWED, N, LEVEL.epsilon))).pvalue)

    def one_more(n: int, level: PACLevel) -> int:
        return max_errors(n, level) + 1

    assert p_value([fit_threshold(row, LEVEL).value for row in scores]) > DOUBT
    assert p_value([fit_threshold(row, LEVEL, bound=one_more).value for row in scores]) < DOUBT
    plans = GaussianForecast(forecast.mean.reshape(-1, 1, 1), forecast.var.reshape(-1, 1, 1))
    each = np.asarray(score.shape.scores(plans, truth.reshape(-1, 1, 1))).reshape(tries, N, K)
    assert p_value([fit_threshold(row, LEVEL).value for row in each[..., 0]]) < DOUBT
    assert p_value([fit_threshold(row.ravel(), LEVEL).value for row in each]) < DOUBT


def test_drawn_candidates_at_epsilon_over_k_cover_all_of_them() -> None:
    """It would catch: a level that is not divided, or tuned and calibrated at different levels."""
    level = share_level(LEVEL, K)
    assert level.epsilon * K <= LEVEL.epsilon
    need = min_samples(level)
    rng = np.random.default_rng(2)

    def drawn(n: int) -> tuple[GaussianForecast, np.ndarray]:
        forecast, truth = world(rng, n)
        which = rng.integers(K, size=n)
        return GaussianForecast(forecast.mean[:, 0], forecast.var[:, 0]), truth[np.arange(n), which]

    with pytest.raises(NotEnoughData, match=f"at least {need:,} are needed"):
        fit_tube(*drawn(50), *drawn(need - 1), LEVEL, any_of=True, drawn_of=K)
    made = fit_tube(*drawn(50), *drawn(need), LEVEL, any_of=True, drawn_of=K)
    assert made.threshold.level == level
    tries = 2000
    scores = np.asarray(made.score.scores(*drawn(tries * need))).reshape(tries, need)
    assert fit_threshold(scores[0], level).value == scores[0].max()
    broken = int((miss(made.score, scores.max(axis=1)) > LEVEL.epsilon).sum())
    # A drawn candidate misses with probability 1 - F, all K together with less than K times that.
    assert 0 < broken < LEVEL.delta * tries
    assert "5 times it covers all" in repr(made)


def test_the_tuning_halves_are_of_units() -> None:
    """It would catch: candidates of one unit on both sides: a shape measured where it was fitted."""
    truth = np.repeat(np.arange(40.0), 3)[:, None, None] + np.zeros((120, 2, 1))
    tuning = Tuning.of(GaussianForecast(0 * truth, 1 + 0 * truth), truth, LEVEL, candidates=3)
    first, second = ({*states[:, 0, 0].tolist()} for _, states in tuning.halves)
    assert not first & second
    assert len(first | second) == 40
    assert all(len(states) == 60 for _, states in tuning.halves)


@pytest.mark.parametrize("shape", ["box", "max", "features"])
def test_it_makes_tubes_of_plans_and_says_whose(shape: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    options: dict[str, Any] = (
        {"features": LinearFeatures(("x",), np.eye(2)[:1])} if shape == "features" else {}
    )
    made = fit_tube(*walks(rng, 200), *walks(rng, 200), LEVEL, shape=shape, any_of=True, **options)
    plans, truth = walks(rng, 500, 1)
    tube = made.tube(GaussianForecast(plans.mean[:, 0], plans.var[:, 0]))
    assert tube.support([1.0, 0.0]).shape == (500, 4)
    assert tube.contains(truth[:, 0]).mean() > 0.95  # wider than for one
    assert "whichever of the 5 candidates is picked" in repr(made)
    forecast, states = walks(rng, 400)
    fit = partial(fit_shape, shape=shape, any_of=True, **options)
    done = certify(
        forecast, states, LEVEL, ids=range(400), tune=100, calibrate=200, ledger=tmp_path / "l", fit=fit
    )
    file = tmp_path / "certificate.json"
    write_certificate(done.certificates[0], file)
    again = read_certificate(file)
    assert again.promise.startswith(
        "The set of whichever of the 5 candidates of a new unit is picked misses its"
    )
    assert again.predictor.remarks[0] == made.remarks[0]
    rows = done.parts.calibrate.rows  # type: ignore[union-attr]
    np.testing.assert_array_equal(
        score_units(again.predictor.score, forecast.take(rows), states[rows]), done.scores
    )
    document = json.loads(file.read_text())
    document["score"]["candidates"] = 4
    file.write_text(json.dumps(document))
    with pytest.raises(Exception, match="seal"):
        read_certificate(file)


def test_one_failed_candidate_fails_its_unit() -> None:
    """A diverged truth, or a forecast that exploded, of one candidate alone; and it counts."""
    rng = np.random.default_rng(4)
    score = fit_shape(*walks(rng, 50), LEVEL, any_of=True)
    forecast, truth = walks(rng, 6)
    truth[1, 3, 2:] = np.inf
    mean = forecast.mean.copy()
    mean[4, 0, 1, 1] = np.nan
    found = score_units(score, GaussianForecast(mean, forecast.var).mark_failures(), truth)
    assert np.flatnonzero(np.isinf(found)).tolist() == [1, 4]
    with pytest.raises(InvalidInput, match="row 4"):
        score_units(score, GaussianForecast(mean, forecast.var), truth)
    truth[2, 0, 0, 0] = np.nan
    with pytest.raises(InvalidInput, match="NaN"):
        score_units(score, forecast, truth)


def test_candidates_that_end_early_are_judged_up_to_their_end() -> None:
    rng = np.random.default_rng(5)
    forecast, truth = walks(rng, 60)
    lengths = np.full((60, K), 4)
    lengths[7, 2] = 1
    wild = truth.copy()
    wild[7, 2, 1:] = 1e9
    score = fit_shape(forecast, Trajectories(wild, lengths), LEVEL, any_of=True)
    found = score.scores(forecast, Trajectories(wild, lengths))
    assert found[7] < 1e6
    others = np.arange(60) != 7
    np.testing.assert_array_equal(found[others], score.scores(forecast, truth)[others])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": "joint"}, "any_of is for the shapes max, box, features, got 'joint' .*widest candidate"),
        ({"any_of": False}, "any_of=True takes all K candidates"),
        ({"any_of": 1}, "any_of must be True or False"),
        ({"any_of": False, "drawn_of": 3}, "True with drawn_of"),
        ({"drawn_of": 3}, r"must have shape \[N, H, D\], got"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        fit_shape(*walks(np.random.default_rng(6), 20), LEVEL, **({"any_of": True} | change))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=5),
    st.sampled_from(["box", "max", "joint", "cone"]),
    st.sampled_from([True, False, None, 1, "yes"]),
    st.sampled_from([None, 1, 2, 0, -1, 2.5]),
)
def test_only_candidates_of_units_make_a_promise_about_any(
    inner: list[int], shape: str, any_of: Any, drawn_of: Any
) -> None:
    """Everything else is refused in a sentence, before anything is fitted."""
    truth = np.random.default_rng(0).normal(size=(40, *inner))

    def fit() -> Any:
        forecast = GaussianForecast(np.zeros_like(truth), np.ones_like(truth))
        return fit_shape(forecast, truth, LEVEL, shape=shape, any_of=any_of, drawn_of=drawn_of)

    whole = drawn_of is None or (isinstance(drawn_of, int) and drawn_of >= 1)
    wanted = 4 if any_of is True and drawn_of is None else 3
    fits = shape in ("box", "max", "joint") and whole and truth.ndim == wanted
    fits &= (any_of is True and shape != "joint") or (any_of is False and drawn_of is None)
    if fits:
        assert fit() is not None
        return
    with pytest.raises(InvalidInput):
        fit()


def test_other_shapes_are_refused() -> None:
    rng = np.random.default_rng(7)
    forecast, truth = walks(rng, 20)
    flat = GaussianForecast(forecast.mean[:, 0], forecast.var[:, 0])
    with pytest.raises(InvalidInput, match=r"\[N, K, H, D\], all K candidates of each unit"):
        fit_shape(flat, truth[:, 0], LEVEL, any_of=True)
    with pytest.raises(InvalidInput, match="truth must have shape"):
        fit_shape(forecast, truth.swapaxes(1, 2), LEVEL, any_of=True)
    score = fit_shape(forecast, truth, LEVEL, any_of=True)
    with pytest.raises(InvalidInput, match=r"\[N, 5, H, D\], as it was tuned, got \(9, 3, 4, 2\)"):
        score.scores(*walks(rng, 9, 3))
    with pytest.raises(InvalidInput, match="a row for each plan"):
        score.sets(forecast, 1.0)
    drawn = fit_shape(flat, truth[:, 0], LEVEL, any_of=True, drawn_of=5)
    with pytest.raises(InvalidInput, match=r"\[N, H, D\], as it was tuned"):
        drawn.scores(forecast, truth)


def test_the_command_line_certifies_a_file_of_candidates(tmp_path: Path) -> None:
    forecast, truth = walks(np.random.default_rng(8), 400)
    data, out = tmp_path / "plans.npz", tmp_path / "certificate.json"
    np.savez(data, mean=forecast.mean, var=forecast.var, truth=truth, ids=np.arange(400))
    words = ["--epsilon", 0.1, "--delta", 0.05, "--tune", 100, "--calibrate", 200, "--out", out]
    refused = pac("fit", data, *words)
    assert refused.exit_code != 0
    assert "any_of=True takes all K candidates" in refused.output
    done = pac("fit", data, *words, "--any-of")
    assert done.exit_code == 0, done.output
    assert "whichever of the 5 candidates is picked" in done.output
    checked = pac("verify", out, data, "--ledger", tmp_path / "pac-ledger")
    assert checked.exit_code == 0, checked.output
    tested = pac("evaluate", out, data)
    assert tested.exit_code == 0, tested.output
    document, known = read_certificate(out), np.load(out.with_name("certificate.scores.npz"))
    new = ~np.isin(np.arange(400).astype(str), [*known["ids"], *known["tune_ids"]])
    lower, upper = document.predictor.sets(GaussianForecast(np.zeros((1, 4, 2)), np.ones((1, 4, 2)))).box()
    outside = ((truth[new] < lower) | (truth[new] > upper)).any(axis=(1, 2, 3))
    assert f"all    100  {outside.mean():.4f}" in tested.output, "a unit is missed if any candidate is"
    assert 0 < outside.sum() > ((truth[new, 0] < lower) | (truth[new, 0] > upper)).any(axis=(1, 2)).sum()
    one = tmp_path / "one" / "plans.npz"
    one.parent.mkdir()
    np.savez(one, mean=forecast.mean[:, 0], var=forecast.var[:, 0], truth=truth[:, 0], ids=np.arange(400))
    few = pac("fit", one, *words[:-1], one.parent / "c.json", "--any-of", "--drawn-of", 5)
    assert "at least 149 are needed" not in few.output
    assert few.exit_code == 0, few.output
    assert read_certificate(one.parent / "c.json").promise.startswith(
        "The set of whichever of the 5 candidates of a new unit is picked misses its truth with probability "
        "at most 0.1;"
    )
