"""Sweeps: every choice on the tune part, one look at the calibrate part, and the menu in the ledger first."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_walks import UNITS, walking

from cluster.commands import tune as sweeps
from cluster.commands.tune import (
    Candidate,
    candidates,
    choose,
    fits,
    held_out_sizes,
    sizes_by_tune,
    sweep,
)
from pac_core import (
    GaussianForecast,
    InvalidInput,
    LogitForecast,
    PACLevel,
    SecondLook,
    Trajectories,
    read_certificate,
    verify,
)
from pac_core.bounds import max_errors
from pac_core.certificates import open_ledger, read_ledger
from pac_core.datasets import read_dataset
from pac_core.errors import OverBudget
from pac_core.runs import ALL, RunFolder, View, certify_run, run_here
from pac_core.scores import fit_temperature
from pac_core.sets import Likelihood

pytestmark = pytest.mark.xdist_group("ray")  # one Ray at a time

LEVELS = [PACLevel(0.1, 0.01), PACLevel(0.1, 0.05), PACLevel(0.2, 0.01), PACLevel(0.2, 0.05)]


@pytest.fixture
def finished(tmp_path: Path) -> RunFolder:
    folder, task = RunFolder(tmp_path / "run"), walking()
    task.write(folder)
    run_here(task.job, folder)
    return folder


@pytest.mark.usefixtures("engine")
def test_a_sweep_chooses_certifies_once_and_tests(finished: RunFolder, tmp_path: Path) -> None:
    book = tmp_path / "ledger"
    options: dict[str, Any] = {"horizons": (2, 4), "members": (None, 2), "shapes": ("max", "joint")}
    rows, cost = sweep(walking().results(finished), LEVELS, book, **options)
    assert [(row["horizon"], row["epsilon"], row["delta"]) for row in rows] == [
        (horizon, level.epsilon, level.delta) for horizon in (2, 4) for level in LEVELS
    ]
    [opening] = read_ledger(book)
    assert len(opening.menu) == len(rows) == 8
    assert opening.cost == cost
    for row in rows:
        assert row["refuted"] == "no"
        assert row["test error"] <= row["epsilon"]
        stored = read_certificate(Path(finished.root) / row["file"])
        assert stored.predictor.threshold.level == PACLevel(row["epsilon"], row["delta"])
        assert stored.menu is not None
        assert (stored.menu.asked, stored.menu.cost) == (8, cost)
        assert stored.predictor.domain == ("trajectories", row["horizon"], 2)
    assert rows[0]["size"] < rows[4]["size"], "fewer steps make smaller tubes"
    files = {row["file"]: (Path(finished.root) / row["file"]).read_bytes() for row in rows}
    again, _ = sweep(walking().results(finished), LEVELS, book, **options)
    assert again == rows, "the same sweep is the same look"
    assert files == {name: (Path(finished.root) / name).read_bytes() for name in files}


def test_a_second_look_is_refused_before_a_trial_runs(
    finished: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whichever command, at whichever level, and in another ledger too."""
    book = tmp_path / "ledger"
    certify_run(walking(), finished, LEVELS[:1], book, score="joint")
    kept = {file: file.read_bytes() for file in Path(finished.root).glob("*certificate*")}

    def trials(*arguments: Any) -> Any:
        raise AssertionError("a trial runs")

    monkeypatch.setattr(sweeps, "sizes_by_tune", trials)
    for levels in (LEVELS[:1], LEVELS[1:], LEVELS):
        for horizons in ((None,), (2,)):
            with pytest.raises(SecondLook):
                sweep(walking().results(finished), levels, book, horizons=horizons)
            with pytest.raises(InvalidInput, match="--ledger must be the one"):
                sweep(walking().results(finished), levels, tmp_path / "b.json", horizons=horizons)
    assert kept == {file: file.read_bytes() for file in Path(finished.root).glob("*certificate*")}
    forgotten = shutil.ignore_patterns("ledger.txt", "*certificate*")
    other = RunFolder(shutil.copytree(finished.root, tmp_path / "other", ignore=forgotten))
    open_ledger(tmp_path / "small.json", budget=0.02)
    with pytest.raises(OverBudget):
        sweep(walking().results(other), LEVELS, tmp_path / "small.json")


@pytest.mark.usefixtures("engine")
def test_one_score_for_all_levels_costs_less_together(finished: RunFolder, tmp_path: Path) -> None:
    options: dict[str, Any] = {"shapes": ("box",)}
    copy = RunFolder(shutil.copytree(finished.root, tmp_path / "copy"))
    own, alone = sweep(walking().results(finished), LEVELS, tmp_path / "a.json", **options)
    same, together = sweep(walking().results(copy), LEVELS, tmp_path / "b.json", same=True, **options)
    assert together < alone <= sum(level.delta for level in LEVELS)
    assert len({row["T"] for row in same if row["epsilon"] == 0.1}) == 2
    assert [row["epsilon"] for row in own] == [row["epsilon"] for row in same]


def test_the_same_fit_at_several_horizons_is_several_scores(
    finished: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accumulated variances have no fitted numbers; each horizon fails on its own account all the same."""
    fitted = Likelihood(accumulate=True)
    monkeypatch.setattr(Candidate, "fit", lambda *given, **options: fitted)
    monkeypatch.setattr(
        sweeps,
        "sizes_by_tune",
        lambda tune, menu, levels, *rest: {(c, a): 1.0 for c in menu for a in levels},
    )
    options: Any = {"shapes": ["joint"], "horizons": (2, 3, 4)}
    rows, cost = sweep(walking().results(finished), LEVELS[1:2], tmp_path / "l.json", **options)
    assert cost == pytest.approx(3 * 0.05)
    assert len({row["T"] for row in rows}) == 3
    for row in rows:
        stored = read_certificate(Path(finished.root) / row["file"])
        files = list(Path(finished.root).glob("scores-*.parquet"))
        assert any(
            all(check.holds is not False for check in verify(stored, read_dataset(path).scores))
            for path in files
        )
    assert len(files) == 3


def here(tune: Any, menu: Any, levels: Any, *rest: Any) -> Any:
    """Trials in this process, so that every reading of a part can be watched."""
    sizes = [held_out_sizes(c, *tune[c.view], levels) for c in menu]
    return {
        (c, level): size[i] for c, size in zip(menu, sizes, strict=True) for i, level in enumerate(levels)
    }


def test_the_calibrate_part_is_not_read_before_the_ledger_is_written(
    finished: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readings: list[str]
) -> None:
    monkeypatch.setattr(sweeps, "sizes_by_tune", here)
    sweep(walking().results(finished), LEVELS[:1], tmp_path / "ledger", shapes=("joint",))
    assert readings == ["tune", "calibrate", "test"]


def test_a_sweep_reads_each_part_once_whatever_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[str]
) -> None:
    folder, task = RunFolder(tmp_path / "run"), walking(size=225)
    task.write(folder)
    run_here(task.job, folder)
    opened.clear()
    monkeypatch.setattr(sweeps, "sizes_by_tune", here)
    options: dict[str, Any] = {"horizons": (2, 4), "members": (None, 2), "shapes": ("max", "joint")}
    rows, _ = sweep(task.results(folder), LEVELS, tmp_path / "ledger", **options)
    assert len(rows) == 8
    assert sorted(Counter(opened).values()) == [3, 3, 3, 3], "4 shards, 3 parts"


def test_the_smallest_held_out_size_is_chosen_for_each_level() -> None:
    first, second, short = Candidate("box"), Candidate("max"), Candidate("max", View(horizon=2))
    a, b = LEVELS[0], LEVELS[2]
    sizes = {
        (first, a): 3.0,
        (first, b): 1.0,
        (second, a): 2.0,
        (second, b): 1.4,
        (short, a): 9.0,
        (short, b): 9.0,
    }
    assert choose(sizes) == {(None, a): second, (None, b): first, (2, a): short, (2, b): short}
    assert choose(sizes, same=True)[None, b] == second, "2.0 * 1.4 < 3.0 * 1.0"


def test_a_looser_level_never_takes_a_larger_tube_than_a_stricter_one() -> None:
    """Every fit is measured at every level, in the share of errors that the calibration will allow."""
    rng = np.random.default_rng(3)
    levels = [PACLevel(e, d) for e in (0.02, 0.05, 0.1) for d in (1e-5, 1e-3, 0.05)]
    for _ in range(4):
        mean, var = np.zeros((120, 3, 2)), rng.gamma(2.0, size=(120, 3, 2))
        truth = Trajectories(rng.standard_t(2, size=mean.shape) * np.sqrt(var), np.full(120, 3))
        found = {}
        for fit in fits(candidates("trajectories", ("box", "max"), (ALL,)), levels):
            measured = held_out_sizes(fit, GaussianForecast(mean, var), truth, levels, calibrate=1000)
            found |= {(fit, level): size for level, size in zip(levels, measured, strict=True)}
        chosen = choose(found)
        assert {fit.at for fit, _ in found} == set(levels)
        size = {level: found[chosen[None, level], level] for level in levels}
        for loose in levels:
            for strict in levels:
                if loose.epsilon >= strict.epsilon and loose.delta >= strict.delta:
                    assert size[loose] <= size[strict], (loose, strict)


def test_sizes_are_measured_on_units_a_candidate_was_not_fitted_on() -> None:
    """Logits that are ten times too sure, with and without a temperature: each size again by hand."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 6))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    forecast, level = LogitForecast(10 * logits), PACLevel(0.1, 0.05)
    order = np.random.default_rng(0).permutation(2000)
    halves = [np.sort(order[::2]), np.sort(order[1::2])]
    paper, plain, _ = candidates("labels", (), ())
    for candidate in (paper, plain):
        scores, sets = [], []
        for mine, other in (halves, halves[::-1]):
            tau = fit_temperature(forecast.take(mine), labels[mine]).tau if candidate is paper else 1.0
            z = 10 * logits[other] * tau
            negative = np.log(np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)) - z
            negative += z.max(axis=1, keepdims=True)
            scores += negative[np.arange(1000), labels[other]].tolist()
            sets.append(negative[:500])
        limit = np.sort(scores)[-1 - max_errors(2000, level)]
        by_hand = np.mean(np.concatenate(sets) <= limit) * 6
        assert held_out_sizes(candidate, forecast, labels, [level]) == [pytest.approx(by_hand, rel=1e-3)]


def test_scores_are_computed_once_for_all_levels_of_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []
    scores = Likelihood.scores

    def counted(self: Likelihood, forecast: Any, truth: Any) -> Any:
        scored.append(len(truth))
        return scores(self, forecast, truth)

    monkeypatch.setattr(Likelihood, "scores", counted)
    forecast = LogitForecast(np.random.default_rng(0).normal(size=(1000, 3)))
    sizes = held_out_sizes(Candidate("plain"), forecast, np.zeros(1000, dtype=int), LEVELS)
    assert scored == [500, 500], "each half judges the other, once"
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3], "a stricter level takes larger sets"


@pytest.mark.usefixtures("engine")
def test_a_candidate_that_cannot_be_fitted_loses_to_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every label is the most likely one, so there is no most likely temperature: the plain score is left."""
    logits = np.random.default_rng(0).normal(size=(400, 3))
    tune = {ALL: (LogitForecast(logits), logits.argmax(axis=1))}
    menu = candidates("labels", (), ())
    sizes = sizes_by_tune(tune, menu, LEVELS[:1])
    assert [str(one) for (one, _), size in sizes.items() if size < np.inf] == ["plain"]
    assert str(choose(sizes)[None, LEVELS[0]]) == "plain"
    said = capsys.readouterr()
    assert "left out  paper: " in said.out
    assert "Traceback" not in said.out + said.err


def test_scores_of_labels_are_compared_too() -> None:
    """Some labels lie anywhere among the first twenty: a score that counts ranks makes smaller sets."""
    rng = np.random.default_rng(0)
    logits = -np.sort(-4 * rng.gumbel(size=(4000, 50)), axis=1)
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    labels[:320] = rng.integers(0, 20, size=320)
    menu, levels = candidates("labels", (), ()), [PACLevel(0.02, 0.05)]
    sizes = {(one, levels[0]): held_out_sizes(one, LogitForecast(logits), labels, levels)[0] for one in menu}
    assert str(choose(sizes)[None, levels[0]]) == "smallest"


def test_unknown_shapes_and_runs_without_forecasts_are_refused(finished: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="shape must be one of joint, max, box, features, got 'ball'"):
        candidates("trajectories", ("ball",), (ALL,))
    with pytest.raises(InvalidInput, match="--shape is for trajectories, but the run holds"):
        candidates("labels", ("box",), (ALL,))
    task = walking(tune=0, calibrate=UNITS, score="a score")
    with pytest.raises(InvalidInput, match="a sweep needs forecasts and tune units"):
        sweep(task.results(finished), LEVELS, tmp_path / "l.json")
