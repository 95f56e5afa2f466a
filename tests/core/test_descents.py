"""A descent is written down before its first episode, stops at the first failure, and is never extended."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pac_program import refused
from pac_program import run as run_program
from scipy.stats import binom

from pac_core import InvalidInput, NotEnoughData, PACLevel, SecondLook
from pac_core.bounds import Entry, max_errors
from pac_core.certificates import (
    Descended,
    Descent,
    Opening,
    Trial,
    descend,
    episodes_needed,
    open_ledger,
    open_split,
    read_descent,
    read_family,
    read_ledger,
    read_notes,
    verify_descent,
    write_descent,
)
from pac_core.certificates.certificate import seal
from pac_core.certificates.descent import from_json, to_json
from pac_core.errors import BadCertificate, OverBudget

LEVEL = PACLevel(0.05, 0.01)


def plan(**changed: Any) -> Descent:
    n, scales = changed.get("n", 130), changed.get("scales", (2.0, 1.0, 0.5))
    first = changed.pop("first", 0)
    given = {
        "scales": scales,
        "n": n,
        "allowed": 1,
        "level": LEVEL,
        "episodes": first + np.arange(len(scales) * n).reshape(len(scales), n),
        "error": "a limit is violated",
        "tested": {"planner": "scaled policy", "horizon": 6},
    }
    return Descent(**(given | changed))


class Robot:
    """Makes so many errors at each scale, and remembers what it was asked."""

    def __init__(self, **errors: int) -> None:
        self.errors = {float(scale.strip("_").replace("_", ".")): count for scale, count in errors.items()}
        self.asked: list[tuple[float, list[int]]] = []

    def __call__(self, scale: float, ids: Any) -> Any:
        self.asked.append((scale, ids.tolist()))
        return np.arange(len(ids)) < self.errors[scale]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.mark.parametrize(
    ("n", "allowed"), [(90, 0), (130, 1), (165, 2), (198, 3), (229, 4), (259, 5), (288, 6)]
)
def test_the_fewest_episodes(n: int, allowed: int) -> None:
    assert episodes_needed(LEVEL, allowed) == n
    assert binom.cdf(allowed, n, 0.05) < 0.01 <= binom.cdf(allowed, n - 1, 0.05)
    plan(n=n, allowed=allowed)
    with pytest.raises(NotEnoughData) as refused:
        plan(n=n - 1, allowed=allowed)
    assert (refused.value.n, refused.value.needed, refused.value.errors) == (n - 1, n, allowed)


def test_three_hundred_episodes_allow_six_errors_and_no_more() -> None:
    plan(n=300, allowed=6)
    with pytest.raises(NotEnoughData, match="300 calibration units with 7 errors allowed cannot prove"):
        plan(n=300, allowed=7)


def test_delta_itself_is_not_below_delta() -> None:
    """Two coins show no head with probability 1/4 exactly."""
    plan(n=3, allowed=0, level=PACLevel(0.5, 0.25))
    with pytest.raises(NotEnoughData):
        plan(n=2, allowed=0, level=PACLevel(0.5, 0.25))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"scales": (1.0, 2.0, 0.5)}, "scales must descend"),
        ({"scales": (2.0, 1.0, 1.0)}, "scales must descend"),
        ({"scales": (2.0, 1.0, 0.0)}, "be above 0"),
        ({"scales": (np.inf, 1.0, 0.5)}, "must be finite"),
        ({"scales": (np.nan, 1.0, 0.5)}, "NaN"),
        ({"episodes": np.arange(260).reshape(2, 130)}, r"shape \[3, 130\]"),
        ({"episodes": np.arange(390).reshape(3, 130) % 389}, "1 repeats"),
        ({"episodes": np.tile(np.arange(130), (3, 1))}, "episodes of its own"),
        ({"episodes": np.arange(390.0).reshape(3, 130)}, "whole numbers or text"),
        ({"error": ""}, "error must be a line of text"),
        ({"tested": {}}, "says what the controller is"),
        ({"tested": {"gain": float("nan")}}, "plain JSON without NaN"),
        ({"tested": {"gain": np.zeros(2)}}, "plain JSON"),
    ],
)
def test_plans_that_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        plan(**changed)


@given(
    st.integers(1, 200),
    st.none() | st.integers(0, 3),
    st.lists(st.floats(0.1, 4), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)
def test_a_plan_that_can_prove_nothing_is_no_plan(
    n: int, allowed: int | None, scales: list[float], loss: bool, early: bool, repeats: int
) -> None:
    """Whatever is wrong with it is found before a ledger is written; what is left can certify."""
    episodes = np.arange(len(scales) * n).reshape(len(scales), n)
    episodes.flat[: repeats * (episodes.size > repeats)] = episodes.flat[-1]
    fewest = {0: 90, 1: 130, 2: 165, 3: 198}.get(allowed, 105 if early else 97)  # type: ignore[call-overload]
    fits = all(a > b for a, b in itertools.pairwise(scales)) and n >= fewest
    fits &= len(np.unique(episodes)) == episodes.size
    fits &= (early and not loss) if allowed is not None else (early or loss)
    given = {"n": n, "allowed": allowed, "loss": loss, "early": early}
    if not fits:
        with pytest.raises((InvalidInput, NotEnoughData)):
            plan(scales=tuple(scales), episodes=episodes, **given)
        return
    mine = plan(scales=tuple(scales), episodes=episodes, **given)
    none: Any = 0 if allowed is not None else (0.0,) * (fewest if early else n)
    assert mine.judge(none) is True


def test_it_descends_to_the_first_failure(ledger: Path) -> None:
    robot = Robot(_2=0, _1=2, _0_5=0)
    shown = descend(plan(), robot, ledger=ledger)
    assert shown.certified == 2.0
    assert shown.trials == (Trial(2.0, 130, 0, True), Trial(1.0, 130, 2, False))
    assert [scale for scale, _ in robot.asked] == [2.0, 1.0]


def test_as_many_errors_as_allowed_pass_at_every_scale(ledger: Path) -> None:
    robot = Robot(_2=1, _1=1, _0_5=1)
    assert descend(plan(), robot, ledger=ledger).certified == 0.5
    assert [ids for _, ids in robot.asked] == plan().episodes.tolist()


def test_the_sentences_say_what_is_promised_and_what_is_not(ledger: Path) -> None:
    good = descend(plan(), Robot(_2=0, _1=1, _0_5=9), ledger=ledger)
    assert str(good).startswith("Certified at scale 1: P(error in a fresh episode of exactly this controller")
    assert "<= 0.05 with confidence 1 - 0.01" in good.sentence
    assert "0 at scale 2, 1 at scale 1, 9 at scale 0.5 (failed)" in good.sentence
    assert "An error: a limit is violated." in good.sentence
    third = descend(plan(first=2000, level=PACLevel(0.2 / 3, 0.1 / 3)), Robot(_2=0, _1=9), ledger=ledger)
    assert "<= 0.0666667 with confidence 1 - 0.0333334" in third.sentence, "never more than was proved"
    bad = descend(plan(first=1000), Robot(_2=2), ledger=ledger)
    assert bad.certified is None
    assert bad.sentence.startswith("Nothing is certified: the first scale failed.")
    assert "another attempt needs fresh ones" in bad.sentence
    assert "P(error" not in bad.sentence


def test_the_plan_is_in_the_ledger_before_the_first_episode(ledger: Path) -> None:
    seen: list[Opening] = []

    def run(scale: float, ids: Any) -> Any:
        seen.extend(read_ledger(ledger))
        return np.ones(130, dtype=bool)

    descend(plan(), run, ledger=ledger)
    [look] = seen
    assert look.n == 390
    assert [entry.level for entry in look.menu] == [LEVEL]
    assert look.cost == 0.01, "all scales together cost one delta"
    assert look.plan is not None
    assert (look.plan["scales"], look.plan["n"], look.plan["allowed"]) == ([2.0, 1.0, 0.5], 130, 1)
    assert look.plan["tested"] == plan().controller


@pytest.mark.parametrize(
    "another",
    [
        {"n": 165, "allowed": 2},
        {"allowed": 0},
        {"level": PACLevel(0.05, 0.02)},
        {"scales": (4.0, 2.0, 1.0)},
        {"tested": {"planner": "scaled policy", "horizon": 7}},
        {"error": "the robot falls"},
        {"first": 389},
        {"episodes": np.arange(390).reshape(3, 130)[::-1]},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_plan_on_a_spent_episode_is_refused(ledger: Path, another: dict[str, Any]) -> None:
    descend(plan(), Robot(_2=5), ledger=ledger)
    robot = Robot(_4=0, _2=0, _1=0, _0_5=0)
    with pytest.raises(SecondLook, match="A descent is never extended"):
        descend(plan(**another), robot, ledger=ledger)
    assert not robot.asked
    assert descend(plan(first=390), Robot(_2=0, _1=0, _0_5=0), ledger=ledger).certified == 0.5


def test_units_that_were_calibrated_on_are_spent_too(ledger: Path) -> None:
    open_split(ledger, Opening.of(range(100), [Entry("s", 0.05, 0.01)], "data"))
    with pytest.raises(SecondLook, match="100 of these 390 units"):
        descend(plan(), Robot(_2=0), ledger=ledger)


def test_the_same_plan_again_is_the_same_look_and_runs_nothing_again(ledger: Path) -> None:
    descend(plan(), Robot(_2=0, _1=7), ledger=ledger)
    lucky = Robot(_2=0, _1=0, _0_5=0)
    assert descend(plan(), lucky, ledger=ledger).certified == 2.0
    assert not lucky.asked
    assert len(read_ledger(ledger)) == 1
    assert [note.facts["errors"] for note in read_notes(ledger) if note.kind == "descent"] == [0, 7]


def test_of_two_runs_at_once_the_first_count_stands(ledger: Path) -> None:
    def slow(scale: float, ids: Any) -> Any:
        descend(plan(), Robot(_2=5), ledger=ledger)  # another process is done before this one
        return np.zeros(130, dtype=bool)

    assert descend(plan(), slow, ledger=ledger).certified is None
    assert descend(plan(), slow, ledger=ledger).certified is None


@pytest.mark.parametrize(("repeatable", "certified"), [(True, 1.0), (False, 2.0)])
def test_after_a_crash_it_goes_on_where_it_stopped(ledger: Path, repeatable: bool, certified: float) -> None:
    """The scale that was cut off is run again only if that gives the same; else its episodes are lost."""

    def crash(scale: float, ids: Any) -> Any:
        if scale < 2:
            raise RuntimeError("out of power")
        return np.zeros(130, dtype=bool)

    with pytest.raises(RuntimeError):
        descend(plan(), crash, ledger=ledger, repeatable=repeatable)
    robot = Robot(_1=1, _0_5=4)
    shown = descend(plan(), robot, ledger=ledger, repeatable=repeatable)
    assert shown.certified == certified
    assert [scale for scale, _ in robot.asked] == ([1.0, 0.5] if repeatable else [])
    assert shown.trials[1].errors == (1 if repeatable else 130)


@pytest.mark.parametrize(
    "returned",
    [
        np.zeros(129, dtype=bool),
        np.zeros(131, dtype=bool),
        np.zeros((130, 1), dtype=bool),
        np.zeros(130),
        np.full(130, np.nan),
        np.zeros(130, dtype=int),
        [None] * 130,
        np.ma.masked_array(np.zeros(130, dtype=bool), np.ones(130, dtype=bool)),
        0,
    ],
)
def test_anything_but_one_boolean_an_episode_is_refused(ledger: Path, returned: Any) -> None:
    with pytest.raises(InvalidInput, match="errors must"):
        descend(plan(), lambda scale, ids: returned, ledger=ledger, repeatable=True)
    assert not read_notes(ledger)


def test_a_plan_cannot_be_changed_by_who_runs_it(ledger: Path) -> None:
    tested = {"gains": [1.0]}
    mine = plan(tested=tested)
    before = mine.controller
    tested["gains"].append(2.0)
    assert mine.controller == before
    with pytest.raises(ValueError, match="read-only"):
        mine.episodes[0, 0] = 7

    def run(scale: float, ids: Any) -> Any:
        ids[:] = 0
        return np.zeros(130, dtype=bool)

    descend(mine, run, ledger=ledger)
    assert mine.episodes[2, 129] == 389


@pytest.mark.parametrize("errors", [(), (0,), (2, 2), (2, 0, 0), (0, 0, 0, 0), (131,)])
def test_a_result_that_does_not_follow_from_its_counts_is_refused(errors: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="errors must be those of the plan's scales"):
        Descended(plan(), errors)


@pytest.mark.parametrize("names", ["numbers", "text"])
def test_written_and_read_again(ledger: Path, tmp_path: Path, names: str) -> None:
    episodes = np.arange(390).reshape(3, 130)
    mine = plan(episodes=episodes if names == "numbers" else np.char.add("run-", episodes.astype(str)))
    shown = descend(mine, Robot(_2=0, _1=5), ledger=ledger)
    write_descent(shown, tmp_path / "descent.json")
    again = read_descent(tmp_path / "descent.json")
    assert (again.trials, again.sentence, again.plan.look) == (shown.trials, shown.sentence, mine.look)
    assert [check.holds for check in verify_descent(again, ledger)] == [True, True, True]


def test_what_was_edited_is_refused(ledger: Path) -> None:
    document = to_json(descend(plan(), Robot(_2=0, _1=5), ledger=ledger))
    for edit in (
        {"certified": 1.0},
        {"allowed": 9},
        {"promise": "All is well."},
        {"trials": [document["trials"][0] | {"errors": 1}]},
        {"level": {"epsilon": 0.01, "delta": 0.01}},
        {"note": "one more"},
        {"version": 3},
        {"family": None},
        {"family": document["family"] | {"attempts": 7}},
        {"family": document["family"] | {"budget": 0.01}},
    ):
        changed = json.loads(json.dumps(document | edit))
        with pytest.raises(BadCertificate, match=r"changed after it was written|not a pac-sets descent"):
            from_json(changed)
        with pytest.raises(BadCertificate):
            from_json(changed | {"seal": seal(changed)})
    assert from_json(document).certified == 2.0


def test_the_ledger_tells_a_result_that_it_does_not_know(ledger: Path, tmp_path: Path) -> None:
    descend(plan(), Robot(_2=0, _1=5), ledger=ledger)
    better = Descended(plan(), (0, 2))
    assert [check.holds for check in verify_descent(better, ledger)] == [True, False, True]
    other = Descended(plan(first=1000), (5,))
    assert [check.holds for check in verify_descent(other, ledger)] == [False, False, True]


@pytest.mark.parametrize(
    "renamed", [{}, {"tested": {"retrained": 1}}, {"error": "a limit is violated."}], ids=str
)
def test_every_attempt_counts_whatever_it_is_called(ledger: Path, renamed: dict[str, Any]) -> None:
    """Who tries until one passes certifies anything in the end, and each certificate by itself looks fine."""
    first = descend(plan(), Robot(_2=5), ledger=ledger)
    assert "Its ledger holds 1 attempt or look: no other is known." in first.sentence
    open_split(ledger, Opening.of(range(5000, 5100), [Entry("s", 0.05, 0.01)], "data"))
    again = descend(plan(first=1000, **renamed), Robot(_2=0, _1=5), ledger=ledger)
    told = (
        "Its ledger holds 3 attempts or looks in all, whatever they were called; their deltas add up to 0.03"
    )
    assert told in again.sentence
    assert (
        "which is no confidence level where one was made because of what another had shown" in again.sentence
    )
    assert to_json(again)["family"] == {"attempts": 3, "cost": 0.03, "budget": None}
    *others, attempts = verify_descent(again, ledger)
    assert all(check.holds for check in others)
    assert attempts.holds is False
    assert attempts.text.startswith(told)


def test_a_budget_covers_any_number_of_retrainings(ledger: Path) -> None:
    """At the boundary, where each certificate is false: without a budget 25 attempts make one in seven so."""
    open_ledger(ledger, budget=0.01)
    n, false = 300, []
    for attempt in range(25):
        share = read_family(ledger).share or 0.0
        assert share == pytest.approx(0.01 / ((attempt + 1) * (attempt + 2)), rel=1e-9)
        level = PACLevel(0.05, share)
        mine = plan(
            scales=(1.0,),
            n=n,
            allowed=max_errors(n, level),
            level=level,
            first=n * attempt,
            tested={"a": attempt},
        )
        shown = descend(mine, Robot(_1=40), ledger=ledger)
        false.append(binom.cdf(mine.allowed, n, 0.05))
    assert sum(false) < read_family(ledger).cost < 0.01
    assert "charged" in shown.sentence
    assert "with confidence 1 - 0.01, no statement ever issued from it is false." in shown.sentence
    assert all(check.holds for check in verify_descent(shown, ledger))
    assert 1 - (1 - binom.cdf(max_errors(n, LEVEL), n, 0.05)) ** 25 > 0.13


def test_a_plan_that_costs_more_than_is_left_runs_nothing(ledger: Path) -> None:
    open_ledger(ledger, budget=0.015)
    descend(plan(), Robot(_2=5), ledger=ledger)
    robot = Robot(_2=0, _1=0, _0_5=0)
    with pytest.raises(
        OverBudget, match=r"would cost 0\.01, but of the ledger's budget of 0\.015 only 0\.005"
    ):
        descend(plan(first=1000), robot, ledger=ledger)
    assert not robot.asked
    assert read_family(ledger).attempts == 1
    descend(plan(), Robot(), ledger=ledger)  # the same again is the same attempt, and costs nothing


def test_other_looks_leave_the_counts_of_a_descent_as_they_are(ledger: Path) -> None:
    open_split(ledger, Opening.of(range(1000, 1100), [Entry("s", 0.05, 0.01)], "data"))
    descend(plan(), Robot(_2=5), ledger=ledger)
    open_split(ledger, Opening.of(range(2000, 2100), [Entry("s", 0.05, 0.01)], "data"))
    assert [note.kind for note in read_notes(ledger)] == ["descent begun", "descent"]
    assert len(read_ledger(ledger)) == 3


def test_the_program_compares_a_result_with_its_ledger(ledger: Path, tmp_path: Path) -> None:
    path = tmp_path / "descent.json"
    write_descent(descend(plan(), Robot(_2=0, _1=5), ledger=ledger), path)
    for spelling in (("--ledger", ledger), (ledger,)):
        shown = run_program("verify", path, *spelling)
        assert shown.exit_code == 0, shown.output
        assert shown.output.startswith("Certified at scale 2: P(error")
        assert "ok  plan         written down beforehand" in shown.output
        assert "ok  attempts     Its ledger holds 1 attempt or look" in shown.output
        assert "the ledger confirms it" in shown.output
    refused(run_program("verify", path), "--ledger must be given: the ledger that records")
    descend(plan(first=1000), Robot(_2=5), ledger=ledger)
    twice = run_program("verify", path, "--ledger", ledger)
    assert twice.exit_code == 1
    assert "NO  attempts     Its ledger holds 2 attempts or looks" in twice.output
    assert "add up to 0.02" in twice.output
    path.write_text(path.read_text().replace('"errors": 0', '"errors": 1'))
    refused(run_program("verify", path, "--ledger", ledger), "was changed after it was written")


def test_the_program_shows_plan_and_counts(ledger: Path) -> None:
    descend(plan(), Robot(_2=0, _1=5), ledger=ledger)
    shown = run_program("ledger", ledger).output
    assert "390 units" in shown
    assert "joint failure probability < 0.01" in shown
    assert "scales: [2.0, 1.0, 0.5]" in shown
    assert "allowed: 1" in shown
    assert '"scale": 1.0, "errors": 5' in shown
