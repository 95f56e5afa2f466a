"""T is the (k*+1)-th largest score: by eye, by shards to the same bit, and refused where there is none."""

from __future__ import annotations

import math
import pickle
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pac_core import InvalidInput, NotEnoughData, PACLevel
from pac_core.arrays import round_down, round_up
from pac_core.bounds import max_errors, vc_max_errors
from pac_core.errors import TooManyFailures
from pac_core.thresholds import ShardedScores, Threshold, fit_threshold

LEVEL = PACLevel(0.1, 0.1)  # k* is 0 for 22 units, 1 for 38, 5 for 100
any_score = st.floats(allow_nan=False, allow_infinity=False, width=64)


def from_shards(shards: list[np.ndarray]) -> float:
    sizes = {i: len(shard) for i, shard in enumerate(shards)}
    return fit_threshold(ShardedScores(sizes, lambda: enumerate(shards)), LEVEL).value


@pytest.mark.parametrize(("n", "expected"), [(22, 21), (37, 36), (38, 36), (100, 94)])
def test_by_eye(n: int, expected: float) -> None:
    threshold = fit_threshold(np.random.default_rng(0).permutation(n), LEVEL)
    assert threshold.value == expected
    assert threshold.errors == n - 1 - expected


@given(arrays(np.float64, st.integers(22, 300), elements=any_score), st.randoms())
def test_at_most_k_lie_above_and_not_fewer_than_needed(scores: np.ndarray, random: object) -> None:
    threshold = fit_threshold(scores, LEVEL)
    assert (scores > threshold.value).sum() <= threshold.errors
    assert (scores >= threshold.value).sum() > threshold.errors
    shuffled = scores.tolist()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fit_threshold(shuffled, LEVEL) == threshold


@given(
    arrays(np.float64, st.integers(22, 400), elements=any_score | st.sampled_from([0.0, -0.0, 1.0, 5e-324])),
    st.integers(1, 9),
)
def test_shards_give_the_same_bits(scores: np.ndarray, count: int) -> None:
    whole = fit_threshold(scores, LEVEL).value
    sharded = from_shards([part for part in np.array_split(scores, count) if len(part)])
    assert np.float64(sharded).tobytes() == np.float64(whole).tobytes()


def test_shards_of_every_width_agree() -> None:
    scores = np.random.default_rng(0).normal(size=500)
    for dtype in (np.float16, np.float32, np.float64):
        cast = scores.astype(dtype)
        assert from_shards(np.array_split(cast, 3)) == fit_threshold(cast, LEVEL).value


@pytest.mark.parametrize(
    ("arrived", "message"),
    [
        ("ab", r"all 3 expected shards must come, got no \['c'\]"),
        ("abb", "got 30 of shard 'b' where 0 were due"),
        ("abcd", "got 30 of shard 'd' where 0 were due"),
    ],
)
def test_a_lost_or_repeated_shard_is_an_error(arrived: str, message: str) -> None:
    sharded = ShardedScores(
        {"a": 30, "b": 30, "c": 30}, lambda: [(name, np.arange(30.0)) for name in arrived]
    )
    with pytest.raises(InvalidInput, match=message):
        fit_threshold(sharded, LEVEL)


def test_a_shard_that_is_short_is_an_error() -> None:
    shards = {"a": np.arange(31.0), "b": np.arange(29.0)}
    with pytest.raises(InvalidInput, match="got 29 of shard 'b' where 30 were due"):
        fit_threshold(ShardedScores({"b": 30, "a": 31}, shards.items), LEVEL)


def test_failed_units_count_as_errors() -> None:
    scores = np.arange(100.0)
    scores[:5] = np.inf  # k* is 5
    assert fit_threshold(scores, LEVEL).value == 99
    scores[5] = np.inf
    for fit in (lambda: fit_threshold(scores, LEVEL), lambda: from_shards([scores])):
        with pytest.raises(TooManyFailures, match="6 of 100 calibration units failed") as caught:
            fit()
        assert (caught.value.failed, caught.value.allowed) == (6, 5)


def test_the_bound_is_a_function_passed_in() -> None:
    level = PACLevel(0.3, 0.1)
    scores = np.arange(1000.0)
    vc = fit_threshold(scores, level, bound=vc_max_errors)
    assert vc.errors == vc_max_errors(1000, level) < max_errors(1000, level)
    assert vc.value > fit_threshold(scores, level).value
    assert vc.bound == "vc_max_errors"


@given(st.floats(allow_nan=False), st.integers(1, 17))
@example(5e-324, 6)
@example(sys.float_info.max, 6)
@example(-sys.float_info.max, 1)
@example(0.0, 3)
@example(math.inf, 6)
def test_rounded_text_reads_back_on_its_side(value: float, digits: int) -> None:
    for other in (value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf)):
        low, high = round_down(other, digits), round_up(other, digits)
        assert float(low) <= other <= float(high)
        if 1e-300 < abs(other) < 1e300:
            assert float(high) - float(low) <= 1.001 * abs(other) * 10.0 ** (1 - digits) + 2 * math.ulp(other)


def test_few_digits_are_no_more_than_needed() -> None:
    assert [round_up(value) for value in (94.0, 0.05, 1e-5, 1.0000001)] == ["94", "0.05", "1e-05", "1.00001"]
    assert round_down(math.nan) == round_up(math.nan) == "nan"


@given(st.floats(-1e308, 1e308))
def test_the_sentence_never_states_a_smaller_threshold(value: float) -> None:
    said = str(Threshold(value, 100, 5, LEVEL))
    assert float(said.split()[2]) >= value


def test_it_speaks_a_sentence_for_the_logbook() -> None:
    said = str(fit_threshold(np.arange(100), LEVEL))
    assert "T = 94 from 100 calibration units, of which 5 may lie above" in said
    assert "error at most 0.1 with confidence 1 - 0.1, for units drawn like these" in said


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros((3, 2)), r"scores must have shape \[N\], got \(3, 2\)"),
        (np.array([]), "scores must not be empty"),
        (np.array([1.0, np.nan]), "scores must not contain NaN, got 1"),
        (np.array([1.0, -np.inf]), "scores must be above -inf"),
        (np.array([1.0, None]), "got Python objects"),
        (np.array(["a", "b"]), "scores must be numbers that a double can hold, got dtype"),
        ([[1.0], [1.0, 2.0]], "scores must convert to a numpy array"),
        (np.array([1j]), "scores must be numbers"),
        (np.int64(2**60) + np.arange(100), "integers beyond 2"),
        (np.ma.masked_array(np.arange(100.0), np.arange(100) > 90), "no unit may be left out"),
        (np.arange(100, dtype=np.longdouble), "that a double can hold"),
    ],
)
def test_bad_scores_are_named(scores: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        fit_threshold(scores, LEVEL)


@pytest.mark.parametrize("wrong", [0, 1, -0.1, 1.5, float("nan"), "0.1", None, True])
def test_levels_outside_their_range_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="epsilon must"):
        PACLevel(wrong, 0.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="delta must"):
        PACLevel(0.1, wrong)  # type: ignore[arg-type]


def test_refusals_survive_the_trip_between_processes() -> None:
    for error in (NotEnoughData(20, 22, LEVEL), TooManyFailures(6, 5, 100)):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
