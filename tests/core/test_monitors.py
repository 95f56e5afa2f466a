"""The run-time monitor: rarely wrong, quick to notice, and not to be silenced by a restart."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from benchmarks.monitor import detection_times
from pac_core import InvalidInput, Monitor
from pac_core.certificates import read_notes
from pac_core.errors import BadCertificate
from pac_core.safety.monitor import ODDS, settle

LOST = 1 / (1 + (ODDS - 1) * 0.05)  # what each stake is multiplied by without an exit
WON = ODDS * LOST
"""With an exit: the likelihood ratios of the odds, 1.5, 2 and 4 times those of 0.05, against 0.05."""


def live(monitor: Monitor, *exits: int, steps: int = 3) -> Monitor:
    """Episodes of a few steps that exit (1) at the second step, or not (0)."""
    for exited in exits:
        for step in range(steps):
            monitor.step(bool(exited) and step == 1)
        monitor.finish()
    return monitor


def test_wealth_by_hand() -> None:
    """Half of the wealth is staked at the first episode, a sixth of it joins at the second."""
    monitor = live(Monitor(0.05, 0.01), 1)
    stakes = 0.5 * np.array([0.25, 0.5, 0.25]) * WON
    assert monitor.wealth == pytest.approx(stakes.sum() + 1 / 2)
    stakes = (stakes + np.array([0.25, 0.5, 0.25]) / 6) * LOST
    assert live(monitor, 0).wealth == pytest.approx(stakes.sum() + 1 / 3)
    assert (monitor.episodes, monitor.exits, monitor.alarm) == (2, 1, False)


def test_a_fair_bet_gains_nothing() -> None:
    """From any state, the expected wealth at P(exit) = epsilon is the wealth before: what Ville needs."""
    rng = np.random.default_rng(0)
    for episode in (1, 2, 30, 1000):
        for size in (0.01, 1.0, 30.0, 60.0, 99.0):
            stakes = size * rng.dirichlet(np.ones(3))
            before = stakes.sum() + 1 / episode
            after = [settle(stakes, episode, x, epsilon=0.05, alpha=0.01).sum() for x in (0.0, 1.0)]
            assert 0.95 * after[0] + 0.05 * after[1] + 1 / (episode + 1) == pytest.approx(before, rel=1e-12)
            assert min(after) >= 0


def test_an_exit_counts_at_once_and_only_once() -> None:
    monitor = Monitor(0.05, 0.01)
    assert not monitor.step(False)
    before = monitor.wealth
    monitor.step(True)
    after = monitor.wealth
    assert after > before == 1.0
    for exited in (True, False, True):
        monitor.step(exited)
    monitor.finish()
    assert (monitor.wealth, monitor.episodes) == (after, 1)


def test_windows_cannot_be_fed() -> None:
    """An end without a step would let anybody dilute the wealth; more exits in an episode are one."""
    monitor = Monitor(0.05, 0.01)
    with pytest.raises(InvalidInput, match="finish must follow a step"):
        monitor.finish()
    for _ in range(500):
        monitor.step(True)
    assert (monitor.episodes, monitor.alarm) == (1, False)


@pytest.mark.parametrize("exited", [None, 1, float("nan"), "no"])
def test_what_is_no_answer_is_refused(exited: Any) -> None:
    with pytest.raises(InvalidInput, match="exited must be True or False"):
        Monitor(0.05, 0.01).step(exited)


@pytest.mark.parametrize(("epsilon", "alpha"), [(0, 0.01), (0.05, 1), (float("nan"), 0.01), (0.05, True)])
def test_levels_that_are_refused(epsilon: Any, alpha: Any) -> None:
    with pytest.raises(InvalidInput, match="strictly between 0 and 1"):
        Monitor(epsilon, alpha)


def test_the_alarm_calls_once_at_the_exit_and_stands() -> None:
    calls: list[tuple[int, float]] = []
    monitor = Monitor(0.05, 0.01, on_alarm=lambda m: calls.append((m.episodes, m.wealth)))
    live(monitor, *[1] * 5)
    assert not calls
    assert monitor.step(True), "the step of the exit says so already"
    assert calls == [(6, monitor.wealth)]
    monitor.finish()
    live(monitor, *[0] * 50, *[1] * 5)
    assert monitor.alarm
    assert len(calls) == 1
    assert monitor.episodes == 6, "after the alarm it stands still"
    assert 100 <= monitor.wealth < 100.001, "no more is bet than an exit needs"


def test_a_bet_that_is_cut_to_reach_the_alarm_reaches_it() -> None:
    """A last bit below it, the next bet would be smaller still, and the alarm might never come."""
    rng = np.random.default_rng(1)
    stakes = rng.uniform(80, 98, size=(20_000, 1)) * rng.dirichlet(np.ones(3), size=20_000)
    after = settle(stakes, 7, 1.0, epsilon=0.05, alpha=0.01)
    assert (after.sum(-1) + 1 / 8 >= 100).all()


@pytest.mark.parametrize("epsilon", [1e-6, 0.05, 0.3, 0.9])
@pytest.mark.parametrize("alpha", [1e-9, 0.01, 0.9])
def test_exits_without_end_always_raise_the_alarm(epsilon: float, alpha: float) -> None:
    times = detection_times(epsilon, alpha, np.ones(5_000), lives=1, seed=0)
    assert np.isfinite(times).all()


def test_lives_and_simulated_lives_are_the_same() -> None:
    rng = np.random.default_rng(3)
    exits = rng.random((400, 1)) < 0.2
    monitor = Monitor(0.05, 0.01)
    for exited in exits[:, 0]:
        live(monitor, int(exited))
        if monitor.alarm:
            break
    assert monitor.episodes == detection_times(0.05, 0.01, np.full(400, 0.2), lives=1, seed=3)[0]


def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "monitor.json"
    live(Monitor(0.05, 0.01, path), 1, 0, 0)
    again = live(Monitor(0.05, 0.01, path), 1, 0)
    straight = live(Monitor(0.05, 0.01), 1, 0, 0, 1, 0)
    assert (again.wealth, again.episodes, again.exits) == (straight.wealth, 5, 2)


def test_an_episode_that_is_cut_off_counts_as_an_exit(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    monitor = live(Monitor(0.05, 0.01, path), 0, 0)
    monitor.step(False)
    again = Monitor(0.05, 0.01, path)
    assert (again.episodes, again.exits) == (3, 1)
    assert again.wealth == live(Monitor(0.05, 0.01), 0, 0, 1).wealth


def test_an_exit_cannot_be_erased_nor_counted_twice_by_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    Monitor(0.05, 0.01, path).step(True)
    again = Monitor(0.05, 0.01, path)
    assert (again.episodes, again.exits) == (1, 1)
    assert Monitor(0.05, 0.01, path).wealth == again.wealth == live(Monitor(0.05, 0.01), 1).wealth


def test_an_alarm_outlives_the_process_and_is_told_to_the_next(tmp_path: Path) -> None:
    path, calls = tmp_path / "monitor.json", []
    live(Monitor(0.05, 0.01, path), *[1] * 6)
    again = Monitor(0.05, 0.01, path, on_alarm=calls.append)
    assert again.alarm
    assert calls == [again]
    live(again, 1)
    assert len(calls) == 1


def test_the_state_is_on_disk_when_the_alarm_calls(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    seen = []
    monitor = Monitor(0.05, 0.01, path, on_alarm=lambda m: seen.append(json.loads(path.read_text())["alarm"]))
    live(monitor, *[1] * 6)
    assert seen == [True]


@pytest.mark.parametrize("edit", [{"stakes": [0.0, 0.0, 0.0]}, {"exits": 0}, {"phase": "between"}, {"x": 1}])
def test_an_edited_state_is_refused(tmp_path: Path, edit: dict[str, Any]) -> None:
    path = tmp_path / "monitor.json"
    live(Monitor(0.05, 0.01, path), 1).step(False)
    path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises(BadCertificate, match="was changed after it was written"):
        Monitor(0.05, 0.01, path)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"format": "pac-sets monitor", "version": 2}'])
def test_a_damaged_state_is_refused_not_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "monitor.json"
    path.write_text(text)
    with pytest.raises(BadCertificate):
        Monitor(0.05, 0.01, path)
    assert path.read_text() == text


def test_a_state_belongs_to_one_test_and_one_process(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    mine, other = Monitor(0.05, 0.01, path), Monitor(0.05, 0.01, path)
    with pytest.raises(InvalidInput, match=r"keeps a monitor with epsilon=0.05, got 0.1"):
        Monitor(0.1, 0.01, path)
    live(mine, 1)
    with pytest.raises(InvalidInput, match="was changed by somebody else"):
        other.step(False)


def test_a_look_from_elsewhere_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    mine = live(Monitor(0.05, 0.01, path), 1, 0)
    path.chmod(0o640)
    mine.step(False)
    kept = path.read_bytes()
    seen = Monitor.read(path)
    assert (seen.episodes, seen.exits, seen.wealth, seen.alarm) == (2, 1, mine.wealth, False)
    assert path.read_bytes() == kept
    for act in (lambda: seen.step(False), seen.finish, lambda: seen.reset(tmp_path / "l.json", "a try")):
        with pytest.raises(InvalidInput, match="needs the process that keeps the monitor"):
            act()
    mine.step(False)
    mine.finish()
    assert (mine.episodes, mine.exits) == (3, 1)
    assert Monitor.read(path).episodes == 3
    assert path.stat().st_mode & 0o777 == 0o640
    for text in ("{}", "", path.read_text().replace('"exits": 1', '"exits": 0')):
        path.write_text(text)
        with pytest.raises(BadCertificate):
            Monitor.read(path)


def test_the_state_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, done = tmp_path / "monitor.json", []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("sync"), sync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append(Path(b).name), rename(a, b))[1])
    Monitor(0.05, 0.01, path)
    assert done[-2:] == ["sync", "monitor.json"]


def test_a_reset_is_written_down(tmp_path: Path) -> None:
    ledger, calls = tmp_path / "ledger", []
    monitor = live(Monitor(0.05, 0.01, tmp_path / "monitor.json", calls.append), *[1] * 6)
    given_up = monitor.wealth
    for reason in ("", "  ", None):
        with pytest.raises(InvalidInput, match="reason must be a line of text"):
            monitor.reset(ledger, reason)  # type: ignore[arg-type]
    monitor.reset(ledger, "new tyres, certified again")
    [note] = read_notes(ledger)
    assert note.kind == "monitor reset"
    assert note.time.endswith("+00:00")
    facts = note.facts
    assert (facts["wealth"], facts["episodes"], facts["exits"], facts["alarm"]) == (given_up, 6, 6, True)
    assert facts["reason"] == "new tyres, certified again"
    assert (monitor.wealth, monitor.episodes, monitor.alarm) == (1.0, 0, False)
    assert Monitor(0.05, 0.01, tmp_path / "monitor.json").wealth == 1.0
    live(monitor, *[1] * 6)
    assert len(calls) == 2, "the new life has an alarm of its own"


def test_a_running_episode_cannot_be_reset_away(tmp_path: Path) -> None:
    monitor = Monitor(0.05, 0.01)
    monitor.step(False)
    with pytest.raises(InvalidInput, match="finish the running one first"):
        monitor.reset(tmp_path / "ledger", "a look")
    assert not (tmp_path / "ledger").exists()


def test_a_reset_that_cannot_be_written_down_does_not_happen(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_text("{")
    monitor = live(Monitor(0.05, 0.01), 1, 1)
    with pytest.raises(BadCertificate):
        monitor.reset(tmp_path / "ledger", "a try")
    assert monitor.episodes == 2


@pytest.mark.slow
def test_false_alarms_are_as_rare_as_promised() -> None:
    times = detection_times(0.05, 0.01, 0.05, lives=2000, seed=0, longest=5000)
    alarms = int(np.isfinite(times).sum())
    assert binomtest(alarms, 2000, 0.01, alternative="greater").pvalue > 1e-3
    assert alarms > 5, "a test that never alarms would be no test"


@pytest.mark.slow
def test_twice_epsilon_is_noticed_in_time() -> None:
    times = detection_times(0.05, 0.01, 0.1, lives=4000, seed=1)
    assert np.median(times) <= 235
    assert np.quantile(times, 0.9) <= 514


@pytest.mark.slow
def test_a_change_after_a_long_quiet_life_is_noticed_too() -> None:
    """A constant bet has lost nearly everything in 500 episodes at 0.01: it then takes about 1,300."""
    p = np.where(np.arange(3000) < 500, 0.01, 0.1)
    times = detection_times(0.05, 0.01, p, lives=1000, seed=2) - 500
    assert 0 < np.median(times) <= 700


@pytest.mark.slow
def test_windows_of_an_episode_are_not_units() -> None:
    """An exit in an episode lies in many of its windows: fed one by one, they are one outcome many times."""
    rng = np.random.default_rng(4)
    lives, episodes, windows = 300, 40, 50
    exits = rng.random((lives, episodes)) < 0.05
    stakes, alarms = np.zeros((lives, len(ODDS))), np.zeros(lives, dtype=bool)
    for unit in range(episodes * windows):
        stakes = settle(stakes, unit + 1, exits[:, unit // windows], epsilon=0.05, alpha=0.01)
        alarms |= stakes.sum(-1) + 1 / (unit + 2) >= 100
    assert alarms.mean() > 0.5
