"""Certificates that stop as soon as the episodes have shown it: what may be looked at, what is a cheat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_bets import proof_probability
from hypothesis import given
from hypothesis import strategies as st
from pac_program import run as run_program
from scipy.stats import beta, binom

from pac_core import InvalidInput, PACLevel, SecondLook
from pac_core.betting import Bets, hoeffding_bentkus
from pac_core.certificates import (
    Descended,
    Descent,
    descend,
    open_ledger,
    read_descent,
    read_family,
    read_notes,
    verify_descent,
    write_descent,
)
from pac_core.certificates.descent import follow
from pac_core.errors import BadCertificate, OverBudget, PACError

LEVEL = PACLevel(0.05, 0.01)
MOST = 400


def plan(**changed: Any) -> Descent:
    scales = changed.get("scales", (1.0,))
    n = changed.get("n", MOST)
    given = {
        "scales": scales,
        "n": n,
        "level": LEVEL,
        "episodes": np.arange(len(scales) * n).reshape(len(scales), n),
        "error": "a limit is violated",
        "tested": {"planner": "mine"},
    }
    return Descent(**(given | changed))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def test_it_stops_at_the_first_proof_and_asks_for_no_more_than_can_decide(ledger: Path) -> None:
    asked: list[list[int]] = []

    def run(scale: float, ids: Any) -> Any:
        asked.append(ids.tolist())
        return np.isin(ids, (20, 110))

    shown = descend(plan(), run, ledger=ledger, block=1)
    (trial,) = shown.trials
    outcome = np.isin(np.arange(MOST), (20, 110))
    assert trial.n == Bets.at(0.05).first_proof(outcome, 0.01)
    assert (trial.errors, trial.passed, shown.certified) == (2, True, 1.0)
    assert len(asked[0]) == 105
    assert [one for call in asked for one in call] == list(range(trial.n)), (
        "each once, in their order, and none in vain"
    )


def test_what_cannot_pass_any_more_ends_before_the_largest_number(ledger: Path) -> None:
    shown = descend(plan(n=200), lambda scale, ids: ids % 9 == 0, ledger=ledger)
    (trial,) = shown.trials
    assert (trial.passed, shown.certified, shown.open) == (False, None, False)
    assert trial.n < 200
    assert "These episodes are spent" in str(shown)


def test_a_bolder_scale_begins_when_the_one_before_is_certified(ledger: Path) -> None:
    ran: list[float] = []

    def run(scale: float, ids: Any) -> Any:
        ran.append(scale)
        return (ids % 4 == 0) & (scale < 1)

    shown = descend(plan(scales=(2.0, 1.0, 0.5, 0.25)), run, ledger=ledger)
    assert shown.certified == 1.0
    assert list(dict.fromkeys(ran)) == [2.0, 1.0, 0.5]
    assert read_family(ledger).cost == 0.01, "one delta for all scales"


ERRORS = (3, 50, 120)


def cut_off(bad: Any, **attributes: Any) -> Any:
    """A run that is ended, whenever `bad` says so of its outcomes, after all its episodes were run."""

    def run(scale: float, ids: Any) -> Any:
        found = np.isin(ids, ERRORS)
        run.calls.append(ids.tolist())
        if bad(found):
            raise KeyboardInterrupt
        return found

    run.calls = []
    for name, value in attributes.items():
        setattr(run, name, value)
    return run


def insist(mine: Descent, run: Any, ledger: Path, **options: Any) -> Descended:
    for _ in range(50):
        try:
            return descend(mine, run, ledger=ledger, **options)
        except KeyboardInterrupt as error:
            told = error
            assert bool(getattr(told, "__notes__", [])) is not bool(options or hasattr(run, "repeatable"))
    raise AssertionError("it never ended")


@pytest.mark.parametrize("how", [{"repeatable": True}, "attribute"])
def test_a_kill_at_any_point_loses_nothing_where_outcomes_depend_on_the_ids_alone(
    ledger: Path, how: Any
) -> None:
    """What was counted is not run again; the block that was cut off is, with the same outcomes."""
    ended: list[int] = []

    def every_second(found: Any) -> bool:
        ended.append(len(ended))
        return len(ended) % 2 == 1

    given = {"repeatable": True} if how == "attribute" else {}
    run = cut_off(every_second, **given)
    shown = insist(plan(), run, ledger, **({} if given else how))
    other = ledger.with_name("other")
    straight = descend(plan(), lambda scale, ids: np.isin(ids, ERRORS), ledger=other)
    assert (shown.errors, shown.lost, shown.certified) == (straight.errors, 0, 1.0)
    assert [one for call in run.calls[1::2] for one in call] == list(range(len(straight.errors[0])))
    assert run.calls[::2] == run.calls[1::2], "each block twice, because it was cut off once"


def test_episodes_that_were_begun_and_lost_are_errors(ledger: Path, tmp_path: Path) -> None:
    """Who ends the process whenever a block has an error in it would otherwise run the good blocks alone."""
    run = cut_off(lambda found: found.any())
    shown = insist(plan(), run, ledger)
    assert shown.errors[0][:105] == (1.0,) * 105, "the first block is begun once, and lost"
    assert (shown.lost, shown.certified) == (105, None)
    assert len(run.calls) == 1, "with so many errors the rest cannot prove it any more"
    assert "105 were begun and lost, which is an error." in str(shown)
    write_descent(shown, tmp_path / "descent.json")
    assert str(read_descent(tmp_path / "descent.json")) == str(shown)
    assert all(check.holds for check in verify_descent(read_descent(tmp_path / "descent.json"), ledger))


def test_hidden_restarts_certify_no_bad_controller(tmp_path: Path) -> None:
    """Every fourth episode is an error, 20% are allowed, and a block with an error in it ends the process."""
    rng, mine = np.random.default_rng(0), plan(n=30, level=PACLevel(0.2, 0.1))

    def run(scale: float, ids: Any) -> Any:
        found = rng.random(len(ids)) < 0.25
        if found.any():
            raise KeyboardInterrupt
        return found

    for name, options, sure in (("a", {}, None), ("b", {"repeatable": True}, 1.0)):
        shown = None
        while shown is None:
            try:
                shown = descend(mine, run, ledger=tmp_path / name, block=1, **options)  # type: ignore[arg-type]
            except KeyboardInterrupt:
                continue
        assert shown.certified == sure, "a false declaration is not seen, and stands in the ledger"
    assert [note.facts["repeatable"] for note in read_notes(tmp_path / "b")] == [True]


def test_of_two_processes_at_once_only_one_runs_an_episode(ledger: Path) -> None:
    """Otherwise the one that is sooner ready would count, and errors take longer."""
    inner = cut_off(lambda found: False)

    def slow(scale: float, ids: Any) -> Any:
        descend(plan(), inner, ledger=ledger)
        return np.zeros(len(ids), bool)

    shown = descend(plan(), slow, ledger=ledger)
    assert 0 not in [one for call in inner.calls for one in call]
    assert shown.errors[0][:105] == (1.0,) * 105


def test_episodes_counted_as_they_finish_are_another_plan(ledger: Path) -> None:
    """Whoever puts the ids of late errors last has another order, which the ledger does not know."""
    descend(plan(), lambda scale, ids: ids < 60, ledger=ledger)
    late = plan(episodes=np.arange(MOST)[None, ::-1])
    with pytest.raises(SecondLook):
        descend(late, lambda scale, ids: ids < 60, ledger=ledger)


@pytest.mark.parametrize("returned", [np.zeros(104, bool), np.zeros(106, bool), np.zeros(105), [None] * 105])
def test_skipped_and_unclear_episodes_are_refused(ledger: Path, returned: Any) -> None:
    with pytest.raises(InvalidInput):
        descend(plan(), lambda scale, ids: returned, ledger=ledger)
    assert [note.kind for note in read_notes(ledger)] == ["descent begun"], "nothing was counted"


def test_a_lucky_second_run_changes_nothing(ledger: Path) -> None:
    first = descend(plan(n=150), lambda scale, ids: ids % 10 == 0, ledger=ledger)
    again = descend(plan(n=150), lambda scale, ids: np.zeros(len(ids), bool), ledger=ledger)
    assert first.errors == again.errors
    assert first.certified is None


def test_another_attempt_costs_another_delta(ledger: Path) -> None:
    open_ledger(ledger, budget=0.015)
    descend(plan(n=150), lambda scale, ids: ids % 2 == 0, ledger=ledger)
    with pytest.raises(OverBudget):
        descend(plan(episodes=1000 + np.arange(MOST)[None]), lambda scale, ids: ids < 0, ledger=ledger)


def test_documents_follow_from_their_losses(tmp_path: Path, ledger: Path) -> None:
    shown = descend(plan(), lambda scale, ids: ids == 7, ledger=ledger)
    path = tmp_path / "descent.json"
    write_descent(shown, path)
    again = read_descent(path)
    assert str(again) == str(shown)
    assert again.errors == shown.errors
    assert [check.holds for check in verify_descent(again, ledger)] == [True, True, True]
    said = run_program("verify", path, "--ledger", ledger)
    assert said.exit_code == 0, said.output
    path.write_text(path.read_text().replace('"n": 400', '"n": 500'))
    with pytest.raises(BadCertificate):
        read_descent(path)


def test_a_document_with_better_losses_is_not_confirmed(ledger: Path) -> None:
    descend(plan(), lambda scale, ids: ids == 7, ledger=ledger)
    better = Descended(plan(), ((0.0,) * 105,))
    assert [check.holds for check in verify_descent(better, ledger)] == [True, False, True]


@pytest.mark.parametrize("losses", [(0.0,) * 106, (0.0,) * 104 + (0.5,), (2.0,), (float("nan"),)])
def test_losses_that_are_none_of_the_plan(losses: tuple[float, ...]) -> None:
    """One too many, a share where errors are counted, none at all."""
    with pytest.raises(InvalidInput):
        Descended(plan(), (losses,))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"n": 104}, "104 calibration units cannot prove .* at least 105 are needed"),
        ({"n": 96, "loss": True, "early": False}, "96 calibration units .* at least 97 are needed"),
        ({"bets": Bets.at(0.1)}, "bets must be against epsilon=0.05"),
        ({"early": False}, "early=False is for losses"),
        ({"allowed": 0, "loss": True}, "allowed counts errors"),
        ({"scales": ("a", "a")}, "scales must differ"),
        ({"scales": ("a", 1.0)}, "scales"),
        ({"scales": ("a\nb",)}, "names in one line"),
        ({"scales": ()}, "scales"),
    ],
)
def test_plans_that_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(PACError, match=words):
        plan(**changed)


def certifies(mine: Descent, errors: Any) -> bool:
    """Whether a plan certifies on these outcomes."""
    losses = np.asarray(errors, float)

    def count(scale: Any, ids: Any) -> tuple[float, ...]:
        return tuple(losses[: mine.stop(losses)].tolist())

    return follow(mine, count).certified is not None


def test_false_certificates_are_as_rare_as_the_recursion_says() -> None:
    """At the boundary, exactly; and simulated, where one unit more of wealth would show."""
    mine, exact = plan(), proof_probability(Bets.at(0.05), 0.01, 0.05, MOST)[-1]
    assert exact <= 0.01
    draws = np.random.default_rng(0).random((2000, MOST)) < 0.05
    false = sum(certifies(mine, draw) for draw in draws)
    low, high = beta.ppf([0.0005, 0.9995], [false, false + 1], [2001 - false, 2000 - false])
    assert low <= exact <= high


def test_errors_that_finish_late_would_certify_falsely() -> None:
    """The cheat: outcomes in the order of completion, where errors take longer than anything else."""
    draws = np.random.default_rng(1).random((300, MOST)) < 0.08
    honest = sum(certifies(plan(), draw) for draw in draws)
    cheated = sum(certifies(plan(), np.sort(draw)) for draw in draws)
    assert honest <= 3
    assert cheated == 300


@pytest.mark.parametrize("cut", [1, 37, 105])
def test_the_blocks_do_not_matter(tmp_path: Path, cut: int) -> None:
    def run(scale: float, ids: Any) -> Any:
        return np.isin(ids, (11, 12, 130))

    one = descend(plan(), run, ledger=tmp_path / "one", block=1)
    other = descend(plan(), run, ledger=tmp_path / "other", block=cut)
    assert one.errors == other.errors


def test_losses_are_certified_by_their_mean(ledger: Path) -> None:
    mine = plan(loss=True, n=300, scales=("T = 3", "T = 2", "T = 1"), episodes=np.arange(300))
    losses = {"T = 3": 0.0, "T = 2": 0.01, "T = 1": 0.2}
    shown = descend(mine, lambda scale, ids: np.full(len(ids), losses[scale]), ledger=ledger)
    assert shown.certified == "T = 2"
    assert "E[loss of a fresh episode of exactly this controller at this setting] <= 0.05" in str(shown)
    assert [trial.passed for trial in shown.trials] == [True, True, False]


def test_losses_at_a_number_that_was_fixed_are_looked_at_once(ledger: Path) -> None:
    mine = plan(loss=True, early=False, n=500)
    calls: list[int] = []

    def run(scale: float, ids: Any) -> Any:
        calls.append(len(ids))
        return np.random.default_rng(0).beta(5, 195, size=len(ids))

    assert descend(mine, run, ledger=ledger).certified == 1.0
    assert calls == [500]


@given(st.lists(st.sampled_from((0.0, 0.3, 1.0)), min_size=1, max_size=300))
def test_a_plan_never_asks_for_what_cannot_help(losses: list[float]) -> None:
    """`more` zeros decide it, one fewer does not."""
    mine = plan(loss=True)
    more = mine.more(tuple(losses))
    if mine.stop(losses) is not None:
        assert more == 0
    elif more:
        assert mine.stop(losses + [0.0] * more) == len(losses) + more
    else:
        assert mine.stop(losses + [0.0] * (MOST - len(losses))) is None


def test_the_table_of_the_docs_is_exact() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guarantees.md").read_text()
    for error in (0.0, 0.01, 0.02):
        proved = proof_probability(Bets.at(0.05), 0.01, error, 1000)
        median, most = (int(np.argmax(proved >= share)) + 1 for share in (0.5, 0.9))
        passes = (f"{binom.cdf(k, n, error):.2f}" for n, k in ((130, 1), (229, 4), (300, 6)))
        assert f"| {error:g} | {median}, {most} | {' | '.join(passes)} |" in page


@pytest.mark.parametrize(("errors", "median"), [(0.0, 110), (0.01, 170)])
def test_it_takes_as_few_as_it_says(errors: float, median: int) -> None:
    proved = proof_probability(Bets.at(0.05), 0.01, errors, 1000)
    assert np.argmax(proved >= 0.5) + 1 <= median


def test_hoeffding_bentkus_is_what_the_fixed_plan_falls_back_to() -> None:
    """The bound of Bates et al. at 0.7 delta; a mean at which only it holds is certified."""
    losses = (np.arange(400) < 5).astype(float)
    assert hoeffding_bentkus(losses.mean(), 400, 0.05) <= 0.007
    mine = plan(loss=True, early=False, n=400)
    assert mine.judge(tuple(losses)) is True
    assert mine.judge(tuple((np.arange(400) < 14).astype(float))) is False
