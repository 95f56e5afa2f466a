"""Is it the same world? Bets on ranks are fair to the last digit, survive a kill, and only report."""

from __future__ import annotations

import itertools
import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pac_program import LEVEL as AT
from pac_program import SPLIT, load, refused, run
from scipy.special import betainc
from scipy.stats import beta, binomtest

from pac_core import InvalidInput, LogitForecast, PACLevel, certify, read_certificate, write_certificate
from pac_core.certificates import certify_scores, open_ledger, read_family, read_ledger, read_notes
from pac_core.certificates.certificate import seal
from pac_core.errors import BadCertificate, OverBudget
from pac_core.exchangeability import (
    BETS,
    LEVEL,
    MOST,
    SHARES,
    RankBets,
    compare_scores,
    settle_ranks,
)
from pac_core.safety import ScoreMonitor
from pac_core.sets.predictor import GivenScore
from pac_core.thresholds import ShardedScores

RNG = np.random.default_rng(0)
CALIBRATION = RNG.normal(size=300)


def mean_densities(low: float, high: float) -> Any:
    """`[J]` the mean of each betting density over an interval of p: what smoothing gives, integrated."""
    a, b = BETS.T
    if low == high:
        return beta.pdf(low, a, b)
    return (betainc(a, b, high) - betainc(a, b, low)) / (high - low)


class OffByOne(RankBets):
    """The new score is not counted among those it is ranked with."""

    def rank(self, score: float) -> tuple[float, float]:
        n = len(self._sorted)
        low, high = super().rank(score)
        return low * (n + 1) / n, min(1.0, high * (n + 1) / n)


class Unsmoothed(RankBets):
    """Ties count as larger, without a draw."""

    def rank(self, score: float) -> tuple[float, float]:
        _, high = super().rank(score)
        return high - 1e-6, high - 1e-6


def mean_wealth(kind: type[RankBets], values: tuple[float, ...]) -> list[float]:
    """After each of three new units, over all orders of two calibration scores and the new ones."""
    found = []
    for scores in itertools.permutations(values):
        bets, stakes, wealth = kind(scores[:2]), np.zeros(len(BETS)), []
        for unit, score in enumerate(scores[2:], 1):
            stakes = stakes + SHARES * (1 / math.sqrt(unit) - 1 / math.sqrt(unit + 1))
            stakes = stakes * mean_densities(*bets.rank(score))
            wealth.append(stakes.sum() + 1 / math.sqrt(unit + 1))
        found.append(wealth)
    return np.mean(found, axis=0).tolist()


@pytest.mark.parametrize(
    "values", [(1, 2, 3, 4, 5), (1, 1, 2, 3, 3), (2, 2, 2, 2, 2), (0, 1, 1, 1, math.inf)]
)
def test_the_mean_wealth_over_all_orders_is_exactly_one(values: tuple[float, ...]) -> None:
    assert mean_wealth(RankBets, values) == pytest.approx([1.0] * 3, rel=1e-12)
    for wrong in (OffByOne, Unsmoothed) if len({*values}) > 1 else (Unsmoothed,):
        assert abs(mean_wealth(wrong, values)[-1] - 1) > 1e-3, "a test that cannot fail"


def test_each_bet_is_a_density_of_the_rank() -> None:
    """By hand: the p-value of the fourth of four scores is (1 + u) / 4, and a tie is drawn within itself."""
    bets = RankBets([1.0, 2.0, 4.0], seed=7)
    assert bets.rank(3.0) == (0.25, 0.5)
    assert RankBets([1.0, 1.0, 2.0]).rank(1.0) == (0.25, 1.0)
    u = np.random.Generator(np.random.PCG64((0x70AC, 7))).random()
    again = RankBets([1.0, 2.0, 4.0], seed=7)
    assert not again.bet(3.0, 0.01)
    before = SHARES * (1 - 1 / math.sqrt(2))
    np.testing.assert_allclose(again.stakes, before * beta.pdf((1 + u) / 4, *BETS.T), rtol=1e-12)
    ends = settle_ranks(np.zeros((2, len(BETS))), 1, np.array([0.0, 1.0]))
    assert np.isfinite(ends).all()
    assert SHARES.sum() == pytest.approx(1)


def test_there_is_no_alarm_just_below_the_wealth_that_is_one() -> None:
    """1 / alpha, and not 1 less: over a life in which wealth was never larger than after its last unit."""
    scores = np.random.default_rng(8).normal(1.0, size=40)

    def life(alpha: float, units: int) -> list[bool]:
        bets = RankBets(CALIBRATION)
        return [bets.bet(score, alpha) for score in scores[:units]]

    bets, wealth = RankBets(CALIBRATION), list[float]()
    for score in scores:
        bets.bet(score, 1e-9)
        wealth.append(bets.wealth)
    last = int(np.argmax(wealth))
    assert wealth[last] > 20
    assert not any(life(1 / (wealth[last] * (1 + 1e-6)), last + 1))
    assert life(1 / (wealth[last] * (1 - 1e-6)), last + 1)[-1]


def test_the_smoothing_is_not_the_stream_of_the_same_seed() -> None:
    drawn = np.random.default_rng(0).random(50)
    assert RankBets([], 0)._rng.random() not in drawn


def test_false_alarms_are_as_rare_as_promised_with_ties() -> None:
    """At most alpha, not refuted at 99.9%; and many enough that the test could have failed."""
    rng, alarms, lives = np.random.default_rng(1), 0, 400
    for life in range(lives):
        scores = rng.integers(0, 6, size=120).astype(float)
        alarms += ScoreMonitor(scores[:40], 0.2, seed=life).observe(scores[40:])
    assert binomtest(alarms, lives, 0.2, alternative="greater").pvalue > 1e-3
    assert alarms > 0.05 * lives


def test_half_a_deviation_is_noticed_in_either_direction() -> None:
    rng = np.random.default_rng(2)
    for shift in (0.5, -0.5):
        delays = []
        for _ in range(41):
            monitor = ScoreMonitor(rng.normal(size=1000), 0.01)
            monitor.observe(rng.normal(shift, size=1000))
            delays.append(len(monitor.scores) if monitor.alarm else math.inf)
        assert np.median(delays) <= 80, "48 and 53 units in a simulation of 2,000 lives"


def test_a_sound_world_is_called_another_no_more_often_than_said() -> None:
    rng, found = np.random.default_rng(3), 0
    for _ in range(200):
        cal, held_out = rng.normal(size=100), rng.normal(size=60)
        found += compare_scores(cal, held_out) >= 1 / LEVEL
        found += compare_scores(cal) >= 1 / LEVEL
    assert binomtest(found, 400, LEVEL, alternative="greater").pvalue > 1e-3
    assert compare_scores(rng.normal(1, size=300), rng.normal(size=60)) >= 1 / LEVEL


def test_large_samples_are_thinned_evenly_wherever_they_lie() -> None:
    whole = np.arange(2 * MOST + 1.0)
    shards = {0: whole[:7], 1: whole[7:12_000], 2: whole[12_000:]}
    sharded = ShardedScores({name: len(part) for name, part in shards.items()}, lambda: shards.items())
    from pac_core.exchangeability import _thin

    assert _thin(sharded) == _thin(whole) == whole[::3].tolist()
    assert compare_scores(sharded) >= 1 / LEVEL


def test_a_restart_gives_the_same_bytes(tmp_path: Path) -> None:
    scores = [*RNG.normal(size=30), math.inf, *RNG.integers(0, 3, size=30).astype(float)]
    straight, often = tmp_path / "straight.json", tmp_path / "often.json"
    ScoreMonitor(CALIBRATION, 1e-6, straight).observe(scores)
    for start in range(0, len(scores), 7):
        ScoreMonitor(CALIBRATION, 1e-6, often).observe(scores[start : start + 7])
    assert straight.read_bytes() == often.read_bytes()
    assert ScoreMonitor(CALIBRATION[::-1], 1e-6, often).scores == scores, "the order of calibration is free"


def test_a_kill_while_writing_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    scores = RNG.normal(size=20)
    np.savez(tmp_path / "scores.npz", calibration=CALIBRATION, scores=scores)
    code = """
import os, signal, sys, numpy as np
from pac_core.safety import ScoreMonitor
with np.load("scores.npz") as data:
    monitor = ScoreMonitor(data["calibration"], 0.001, "killed.json")
    for number, score in enumerate(data["scores"]):
        if number == 12:
            os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
        monitor.observe(score)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    again = ScoreMonitor(CALIBRATION, 0.001, tmp_path / "killed.json")
    assert len(again.scores) == 12
    again.observe(scores[12:])
    ScoreMonitor(CALIBRATION, 0.001, tmp_path / "straight.json").observe(scores)
    assert (tmp_path / "killed.json").read_bytes() == (tmp_path / "straight.json").read_bytes()


def test_the_alarm_stands_is_told_once_and_ends_the_test(tmp_path: Path) -> None:
    told: list[ScoreMonitor] = []
    monitor = ScoreMonitor(CALIBRATION, 0.01, tmp_path / "m.json", told.append)
    assert monitor.observe([math.inf] * 30)
    assert 1 < len(monitor.scores) < 30
    kept = (tmp_path / "m.json").read_bytes()
    assert monitor.observe(CALIBRATION)
    assert told == [monitor]
    assert (tmp_path / "m.json").read_bytes() == kept
    assert ScoreMonitor(CALIBRATION, 0.01, tmp_path / "m.json", told.append) is told[1]


def test_a_reset_is_charged_as_that_of_the_other_monitor(tmp_path: Path) -> None:
    open_ledger(tmp_path / "ledger", budget=0.015)
    monitor = ScoreMonitor(CALIBRATION, 0.01, tmp_path / "m.json")
    monitor.observe([math.inf] * 30)
    wealth, seen = monitor.wealth, len(monitor.scores)
    monitor.reset(tmp_path / "ledger", "a new gripper, calibrated again")
    assert (monitor.wealth, monitor.alarm, len(monitor.scores)) == (1.0, False, seen)
    [note] = read_notes(tmp_path / "ledger")
    assert (note.kind, note.facts["wealth"], note.facts["alpha"]) == ("monitor reset", wealth, 0.01)
    assert "scores" not in note.facts
    assert read_family(tmp_path / "ledger").cost == 0.01
    with pytest.raises(OverBudget):
        monitor.reset(tmp_path / "ledger", "again")
    assert ScoreMonitor(CALIBRATION, 0.01, tmp_path / "m.json").observe([math.inf] * 300), "ranks go on"


@pytest.mark.parametrize("score", [math.nan, -math.inf, "large", [], [[1.0]], [1.0, math.nan], None])
def test_what_is_no_score_is_refused_and_nothing_is_bet(score: Any, tmp_path: Path) -> None:
    monitor = ScoreMonitor(CALIBRATION, 0.01, tmp_path / "m.json")
    before = (tmp_path / "m.json").read_bytes()
    with pytest.raises(InvalidInput, match="scores must"):
        monitor.observe(score)
    assert (tmp_path / "m.json").read_bytes() == before
    with pytest.raises(InvalidInput, match="calibration must"):
        ScoreMonitor(score, 0.01)


@pytest.mark.parametrize("alpha", [0, 1, math.nan, True, "0.01"])
def test_a_wrong_alpha_is_refused(alpha: Any) -> None:
    with pytest.raises(InvalidInput, match="alpha must"):
        ScoreMonitor(CALIBRATION, alpha)


def test_a_state_belongs_to_one_certificate_and_one_test(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    ScoreMonitor(CALIBRATION, 0.01, path).observe(1.0)
    for calibration, alpha, seed, word in (
        (CALIBRATION[1:], 0.01, 0, "calibration="),
        (CALIBRATION, 0.02, 0, "alpha="),
        (CALIBRATION, 0.01, 1, "seed="),
    ):
        with pytest.raises(InvalidInput, match=f"keeps a monitor with {word}"):
            ScoreMonitor(calibration, alpha, path, seed=seed)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"units": 0}))
    with pytest.raises(BadCertificate, match="was changed after it was written"):
        ScoreMonitor(CALIBRATION, 0.01, path)


def world_of(folder: Path, **options: Any) -> Any:
    """Of a certificate from logits whose scores grow with the row."""
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(600, 3)) * np.linspace(4, 0.1, 600)[:, None]
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    made = certify(
        LogitForecast(logits),
        labels,
        PACLevel(0.2, 0.01),
        ids=range(600),
        tune=150,
        calibrate=300,
        ledger=folder / "ledger",
        **options,
    )
    return made.certificates[0]


def test_the_look_reports_the_order_of_collection_and_nothing_else_changes(tmp_path: Path) -> None:
    shuffled = np.random.default_rng(5).permutation(600)
    plain, mixed = world_of(tmp_path / "a"), world_of(tmp_path / "b", order=shuffled)
    assert list(plain.world) == ["order of the units"], "never with tune units that it was fitted on"
    assert plain.world["order of the units"] >= 1 / LEVEL > mixed.world["order of collection"]
    assert plain.predictor.threshold == mixed.predictor.threshold
    assert "A difference" in str(plain)
    assert "stopping because of it counts as an attempt" in str(mixed)
    days = np.datetime64("2024-01-01") + np.arange(600)
    dated = world_of(tmp_path / "c", order=days).world
    assert dated == {"order of collection": plain.world["order of the units"]}
    with pytest.raises(InvalidInput, match="order must be a time or a number for each of 600 units"):
        world_of(tmp_path / "d", order=[math.nan] * 600)
    with pytest.raises(InvalidInput, match="order must be a time or a number for each of 600 units"):
        world_of(tmp_path / "d", order=range(5))
    assert not (tmp_path / "d").exists(), "refused before the look"


def test_held_out_units_are_compared_only_if_nothing_was_fitted_on_them(tmp_path: Path) -> None:
    logits = 0.1 * np.random.default_rng(6).normal(size=(80, 3))
    others = LogitForecast(logits), logits.argmin(axis=1)
    fitted = world_of(tmp_path / "a", held_out=others, order=np.random.default_rng(5).permutation(600))
    [_, (name, wealth)] = fitted.world.items()
    assert name.startswith("80 held-out units ")
    assert wealth >= 1 / LEVEL
    [_, name] = world_of(tmp_path / "b", score="plain").world
    assert name.startswith("150 held-out units "), "plain -log f looks at no tune unit"


def test_the_comparison_is_in_the_ledger_before_a_score_is_read(tmp_path: Path) -> None:
    ledger, asked = tmp_path / "ledger", []

    def scores() -> Any:
        asked.append(read_ledger(ledger)[0].compared)
        return CALIBRATION

    about: Any = {"ids": range(300), "ledger": ledger, "data": "d", "unit": "unit"}
    first = certify_scores(GivenScore("x"), scores, PACLevel(0.1, 0.01), **about)
    assert asked == [["order of the units"]]
    again = certify_scores(
        GivenScore("x"), scores, PACLevel(0.1, 0.01), **about, held_out=CALIBRATION[:50] + 1
    )
    assert again.certificates[0].world == first.certificates[0].world, "no comparison that was not laid down"
    assert len(read_ledger(ledger)) == 1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=310),
    st.sampled_from(["order", "held_out"]),
)
def test_what_cannot_be_compared_is_refused_before_the_look(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], what: str
) -> None:
    ledger = tmp_path_factory.mktemp("world") / "ledger"
    about: Any = {"ids": range(300), "ledger": ledger, "data": "d", "unit": "unit", what: values}
    numbers = not any(map(math.isnan, values))
    fits = numbers and (len(values) == 300 if what == "order" else bool(values) and -math.inf not in values)
    if fits:
        made = certify_scores(GivenScore("x"), lambda: CALIBRATION, PACLevel(0.1, 0.01), **about)
        assert len(made.certificates[0].world or ()) == (1 if what == "order" else 2)
        return
    with pytest.raises(InvalidInput, match=f"{what} must"):
        certify_scores(GivenScore("x"), lambda: CALIBRATION, PACLevel(0.1, 0.01), **about)
    assert not ledger.exists()


def test_verify_computes_the_report_again_or_says_that_it_did_not(tmp_path: Path) -> None:
    """A sealed certificate that claims another world is told from a true one."""
    scores, others = tmp_path / "scores.npz", tmp_path / "others.npz"
    np.savez(scores, scores=CALIBRATION, ids=range(300))
    np.savez(others, scores=CALIBRATION[:50], ids=range(1000, 1050))
    path = tmp_path / "c.json"
    fitted = run("fit", scores, *AT, "--held-out", others, "--out", path)
    assert fitted.exit_code == 0, fitted.output
    true = run("verify", path, scores)
    assert true.exit_code == 0, true.output
    assert "ok  world        wealth" in true.output
    assert "--  world        not compared again with the 50 held-out units" in true.output
    document = json.loads(path.read_text())
    document["world"]["order of the units"] = 250.0
    path.write_text(json.dumps(document | {"seal": seal(document)}))
    false = run("verify", path, scores)
    assert false.exit_code == 1
    assert "NO  world" in false.output
    assert "stated 250" in false.output


def test_the_document_keeps_it_and_earlier_documents_have_none(tmp_path: Path) -> None:
    certificate, path = world_of(tmp_path), tmp_path / "c.json"
    write_certificate(certificate, path)
    assert read_certificate(path).world == certificate.world
    document = json.loads(path.read_text())
    for wrong in ({"order of the units": "1"}, [1.0]):
        broken = document | {"world": wrong}
        path.write_text(json.dumps(broken | {"seal": seal(broken)}))
        with pytest.raises(BadCertificate, match="world"):
            read_certificate(path)
    del document["world"]
    path.write_text(json.dumps(document | {"seal": seal(document)}))
    assert read_certificate(path).world is None


def test_the_command_goes_on_where_it_was_and_says_alarm(certificate: Path, tmp_path: Path) -> None:
    calibration = load(certificate.with_name("certificate.scores.npz"))["scores"]
    scores, data = np.random.default_rng(7).permutation(calibration)[:200], tmp_path / "new.npz"
    np.savez(data, scores=scores[:100])
    assert run("watch", certificate, data).output.startswith("no alarm after 100 units")
    np.savez(data, scores=scores)
    assert run("watch", certificate, data).output.startswith("no alarm after 200 units")
    np.savez(data, scores=scores[::-1])
    refused(run("watch", certificate, data), "must begin with the 200 units that were seen")
    np.savez(data, scores=scores[:150])
    refused(run("watch", certificate, data), "must begin with the 200 units that were seen")
    np.savez(data, scores=[*scores, math.nan])
    refused(run("watch", certificate, data), "NaN")
    np.savez(data, scores=[*scores, *[math.inf] * 50])
    refused(run("watch", certificate, data, "--alpha", 0.5), "alpha=0.01")
    for _ in range(2):
        answer = run("watch", certificate, data)
        assert answer.exit_code == 1
        assert answer.output.startswith("ALARM after 2")
    certificate.with_name("certificate.scores.npz").unlink()
    refused(run("watch", certificate, data), "must lie beside it")


def test_the_command_scores_forecasts_and_refuses_calibration_units(logits: Path, certificate: Path) -> None:
    refused(run("watch", certificate, logits), "share 400 units")
    arrays, used = load(logits), load(certificate.with_name("certificate.scores.npz"))["ids"]
    new = ~np.isin(arrays["ids"], used)
    np.savez(logits, **{name: array[new] for name, array in arrays.items()})
    assert run("watch", certificate, logits).output.startswith("no alarm after 600 units")


def test_fit_compares_with_a_column_and_a_file(logits: Path, tmp_path: Path) -> None:
    arrays, out = load(logits), tmp_path / "c.json"
    np.savez(logits, **arrays, when=np.arange(1000)[::-1])
    other = {"logits": arrays["logits"][:50], "labels": arrays["labels"][:50], "ids": np.arange(50)}
    np.savez(tmp_path / "other.npz", **other)
    options = ("fit", logits, *AT, *SPLIT, "--out", out)
    refused(run(*options, "--order", "why"), "--order must name an array")
    refused(run(*options, "--held-out", logits), "share 1,000 units")
    np.savez(tmp_path / "scores.npz", scores=np.ones(50))
    refused(run(*options, "--held-out", tmp_path / "scores.npz"), "--held-out must hold what")
    answer = run(*options, "--order", "when", "--held-out", tmp_path / "other.npz")
    assert answer.exit_code == 0, answer.output
    assert "compared with the order of collection: no difference" in answer.output
    assert "compared with the 50 held-out units" in answer.output
    assert "after a random split, only the order of collection" in answer.output
    assert "compared with the 50 held-out units" in run("ledger", tmp_path / "pac-ledger").output
