"""A look is written down before it is taken, costs what it costs, and is not taken twice."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pac_program import refused
from pac_program import run as run_program
from scipy.stats import binom

from pac_core import (
    BadCertificate,
    Entry,
    Family,
    InvalidInput,
    Opening,
    OverBudget,
    PACLevel,
    SecondLook,
    add_note,
    joint_cost,
    max_errors,
    open_ledger,
    open_split,
    read_family,
    read_ledger,
    read_notes,
)
from pac_core import ledger as ledger_module
from pac_core.ledger import score_digest
from pac_core.predictors import Likelihood
from pac_core.temperatures import Temperature

IDS = [f"unit-{i}" for i in range(500)]
ONE = Entry("s", 0.05, 0.01)


def opening(*menu: Entry, ids: list[str] = IDS, data: str = "data") -> Opening:
    return Opening.of(ids, menu, data)


def test_one_epsilon_costs_the_largest_delta() -> None:
    assert joint_cost(500, [Entry("s", 0.05, d) for d in (1e-3, 0.01, 1e-5)]) == 0.01


def test_different_scores_add_up() -> None:
    assert joint_cost(500, [Entry("a", 0.05, 0.01), Entry("b", 0.05, 0.02)]) == pytest.approx(0.03)
    assert joint_cost(500, [Entry(str(i), 0.5, 0.3) for i in range(9)]) == 1


def test_several_epsilons_by_brute_force() -> None:
    """Two nested binomials, summed term by term."""
    n, (low, high), delta = 60, (0.1, 0.25), 0.2
    k_low, k_high = (max_errors(n, PACLevel(e, delta)) for e in (low, high))
    good = sum(
        binom.pmf(i, n, low) * binom.sf(k_high - i, n - i, (high - low) / (1 - low))
        for i in range(k_low + 1, n + 1)
    )
    assert joint_cost(n, [Entry("s", low, delta), Entry("s", high, delta)]) == pytest.approx(1 - good)


def test_joint_cost_lies_between_the_largest_and_the_sum() -> None:
    for delta in (0.1, 1e-5, 1e-12, 1e-30):
        menu = [Entry("s", e, delta) for e in (0.02, 0.05, 0.1)]
        tails = [binom.cdf(max_errors(5000, entry.level), 5000, entry.epsilon) for entry in menu]
        assert max(tails) * (1 - 1e-9) <= joint_cost(5000, menu) <= 3 * delta * (1 + 1e-9)


def test_huge_samples_fall_back_to_the_sum() -> None:
    menu = [Entry("s", e, 1e-3) for e in (0.1, 0.2, 0.3)]
    assert joint_cost(10**8, menu) == pytest.approx(3e-3)


def test_the_menu_is_on_disk_and_the_same_look_is_one_look(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.json"
    first = open_split(path, opening(ONE))
    assert read_ledger(path) == [first]
    assert open_split(path, opening(ONE)) == first
    assert len(read_ledger(path)) == 1
    assert first.cost == 0.01


def test_the_order_of_menu_and_units_does_not_matter() -> None:
    other = Entry("s", 0.1, 0.01)
    assert opening(ONE, other) == opening(other, ONE, ids=IDS[::-1])


@pytest.mark.parametrize(
    "second",
    [
        opening(Entry("s", 0.04, 0.01)),
        opening(ONE, Entry("s", 0.1, 0.01)),
        opening(Entry("other score", 0.05, 0.01)),
        opening(ONE, data="another model's forecasts"),
        opening(ONE, ids=IDS[1:]),
        opening(ONE, ids=[*IDS, "one more"]),
        opening(ONE, ids=["new-1", "new-2", IDS[7]]),
    ],
)
def test_a_second_look_is_refused(tmp_path: Path, second: Opening) -> None:
    open_split(tmp_path / "ledger.json", opening(ONE))
    with pytest.raises(SecondLook, match="units were calibrated on before, for 1 certificate"):
        open_split(tmp_path / "ledger.json", second)
    assert len(read_ledger(tmp_path / "ledger.json")) == 1


def test_other_units_are_another_look(tmp_path: Path) -> None:
    open_split(tmp_path / "ledger.json", opening(ONE))
    open_split(tmp_path / "ledger.json", opening(Entry("s", 0.1, 0.1), ids=[f"new-{i}" for i in range(500)]))
    assert len(read_ledger(tmp_path / "ledger.json")) == 2


LOOK = """
import sys
from pac_core import Entry, Opening, SecondLook, open_split
sys.stdin.readline()
try:
    open_split(sys.argv[1], Opening.of(range(500), [Entry("s", float(sys.argv[2]), 0.01)], "data"))
except SecondLook:
    sys.exit(1)
"""


def test_of_many_looks_at_once_one_is_taken(tmp_path: Path) -> None:
    """Processes wait for a line, so that they all look at the same moment."""
    ledger = tmp_path / "ledger.json"
    epsilons = ["0.05", "0.06", "0.07", "0.08"]
    racers = [
        subprocess.Popen([sys.executable, "-c", LOOK, str(ledger), epsilon], stdin=subprocess.PIPE)
        for epsilon in epsilons
    ]
    for racer in racers:
        racer.stdin.write(b"go\n")  # type: ignore[union-attr]
        racer.stdin.flush()  # type: ignore[union-attr]
    for racer in racers:
        racer.communicate()
    codes = [racer.returncode for racer in racers]
    assert sorted(codes) == [0, 1, 1, 1]
    assert [str(o.menu[0].epsilon) for o in read_ledger(ledger)] == [epsilons[codes.index(0)]]


def test_nobody_else_holds_the_lock_while_a_ledger_is_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race above may be won by luck; this cannot."""
    fcntl = pytest.importorskip("fcntl")
    path, held = tmp_path / "ledger.json", []

    def watched(real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            with open(path.with_name("ledger.json.lock"), "a") as other:
                try:
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held.append(real.__name__)
            return real(*arguments)

        return call

    for name in ("read_json", "write_json"):
        monkeypatch.setattr(ledger_module, name, watched(getattr(ledger_module, name)))
    open_ledger(path, budget=0.5)
    open_split(path, opening(ONE))
    add_note(path, "a thought", {})
    assert held == ["write_json", "read_json", "write_json", "read_json", "write_json"]


def test_a_link_to_a_ledger_is_that_ledger(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "ledger.json")
    open_split(tmp_path / "link.json", opening(ONE))
    assert (tmp_path / "link.json").is_symlink()
    with pytest.raises(SecondLook):
        open_split(tmp_path / "ledger.json", opening(Entry("s", 0.1, 0.01)))


@pytest.mark.parametrize(
    "edit",
    [
        lambda o: o.update(units=""),
        lambda o: o.update(units="not base64"),
        lambda o: o.update(n="x"),
        lambda o: o.update(menu=[]),
        lambda o: o["menu"][0].update(epsilon="x"),
        lambda o: o.pop("data"),
    ],
)
def test_a_look_whose_parts_do_not_fit_is_refused(tmp_path: Path, edit: Any) -> None:
    path = tmp_path / "ledger.json"
    open_split(path, opening(ONE))
    document = json.loads(path.read_text())
    edit(document["openings"][0])
    path.write_text(json.dumps(document))
    with pytest.raises(BadCertificate, match="is a damaged ledger"):
        read_ledger(path)


def test_damaged_ledgers_are_refused_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    for text in ("{", "{}", '{"format": "pac-sets ledger", "version": 1, "openings": [{}]}'):
        path.write_text(text)
        with pytest.raises(BadCertificate):
            open_split(path, opening(ONE))
        assert path.read_text() == text


def test_scores_are_told_apart_by_their_numbers() -> None:
    digests = {score_digest(Likelihood((Temperature(tau, 9),))) for tau in (1.0, 1.1, math.nextafter(1.1, 2))}
    assert len(digests) == 3
    assert score_digest(Likelihood()) == score_digest(Likelihood())
    assert score_digest(Likelihood((Temperature(np.array([1.0]), 9),))) not in digests


def others(i: int) -> list[str]:
    return [f"{i}-{j}" for j in range(500)]


def test_a_budget_is_charged_before_each_look_and_never_exceeded(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    assert open_ledger(path, budget=0.01) == Family(0, 0.0, 0.01)
    third = [opening(Entry(str(i), 0.05, 0.01 / 3), ids=others(i)) for i in range(3)]
    for look in third:
        open_split(path, look)
    assert read_family(path).attempts == 3
    assert read_family(path).cost == pytest.approx(0.01)
    before = path.read_bytes()
    with pytest.raises(OverBudget, match="ask for a smaller delta"):
        open_split(path, opening(Entry("late", 0.05, 1e-9), ids=others(3)))
    assert path.read_bytes() == before
    assert open_split(path, third[0]) == third[0]
    assert open_ledger(path, budget=0.01).attempts == 3, "the same command goes on"


def test_a_look_is_charged_with_the_joint_cost_of_its_menu(tmp_path: Path) -> None:
    menu = [Entry("a", 0.05, 0.01), Entry("a", 0.1, 0.01), Entry("b", 0.05, 0.01)]
    open_ledger(tmp_path / "small.json", budget=0.02)
    with pytest.raises(OverBudget):
        open_split(tmp_path / "small.json", opening(*menu))
    open_ledger(tmp_path / "large.json", budget=0.03)
    open_split(tmp_path / "large.json", opening(*menu))
    assert 0.02 < read_family(tmp_path / "large.json").cost == joint_cost(500, menu) < 0.03


def test_monitors_that_begin_anew_count(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    open_ledger(path, budget=0.025)
    for _ in range(2):
        add_note(path, "monitor reset", {"alpha": 0.01})
    with pytest.raises(OverBudget):
        add_note(path, "monitor reset", {"alpha": 0.01})
    add_note(path, "a thought", {"alpha": 0.01})
    assert len(read_notes(path)) == 3
    assert read_family(path) == Family(2, 0.02, 0.025)


def test_a_budget_comes_before_everything_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    open_split(path, opening(ONE))
    with pytest.raises(InvalidInput, match="budget must be laid down before anything else"):
        open_ledger(path, budget=0.05)
    other = tmp_path / "other.json"
    open_ledger(other, budget=0.05)
    with pytest.raises(InvalidInput, match=r"got 0\.1 for the ledger .* which has 0\.05"):
        open_ledger(other, budget=0.1)
    for wrong in (0, 1, -0.1, math.nan, math.inf, True, "0.1", None):
        with pytest.raises(InvalidInput, match="budget must lie strictly between 0 and 1"):
            open_ledger(tmp_path / "new.json", budget=wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "new.json").exists()


@pytest.mark.parametrize("budget", [0.005, 2.0, "0.1", True])
def test_a_ledger_that_costs_more_than_its_budget_is_refused(tmp_path: Path, budget: Any) -> None:
    path = tmp_path / "ledger.json"
    open_ledger(path, budget=0.01)
    open_split(path, opening(ONE))
    document = json.loads(path.read_text())
    assert (document["version"], document["budget"]) == (3, 0.01)
    path.write_text(json.dumps(document | {"budget": budget}))
    with pytest.raises(BadCertificate, match="is a damaged ledger"):
        open_split(path, opening(ONE, ids=others(1)))


def test_the_program_begins_a_ledger_with_a_budget_and_says_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    assert run_program("ledger", path, "--budget", "0.02").exit_code == 0
    open_split(path, opening(ONE))
    shown = run_program("ledger", path).output
    assert "1 attempt or look, charged 0.01 in all to a budget laid down before the first" in shown
    assert "left: 0.01" in shown
    refused(run_program("ledger", path, "--budget", "0.5"), "budget must be laid down before anything else")
    refused(run_program("ledger", tmp_path / "none.json"), "cannot be read")
