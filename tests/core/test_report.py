"""The page of finished runs: what it says, what it must not read, and names that are not markup."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pac_program import refused
from pac_program import run as pac

from pac_core import PACLevel, plugins
from pac_core.certificates import Record
from pac_core.report import Chapter, Headline, Section, StoredRun, build_page, paragraph
from pac_core.report.page import find_runs
from pac_core.report.sections import outward
from pac_core.runs import Results, RunFolder, Stage, Task, certify_run, run_here

GOLDEN = Path(__file__).parents[1] / "golden"
HOSTILE = "<script>alert('id')</script>&\"</title>"


class Numbers:
    """Scores that are the numbers in the ids; tubes of two steps around 0, left where the number is large."""

    def __init__(self, forecast: bool, *, device: str = "cpu") -> None:
        self.forecast = forecast

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        values = np.array([float(name.rpartition(" ")[2]) for name in shard.ids])
        found = {"ids": np.array(shard.ids)}
        if not self.forecast:
            return found | {"scores": values}
        truth = np.repeat(values[:, None, None], 2, axis=1) / 100
        same = {"mean": np.zeros_like(truth), "var": np.ones_like(truth), "truth": truth}
        return found | same | {"lengths": np.full(len(values), 2)}


def made(folder: Path, *, forecast: bool = False, certified: bool = True, names: str = "unit") -> RunFolder:
    """A run of 400 units, of which 100 tune, 200 calibrate and 100 test."""
    ids = [f"{names} {number}" for number in range(400)]
    about = {"size": 100, "names": ids, "unit": "unit", "model": Record(HOSTILE), "seed": 0}
    score = None if forecast else "the number"
    task = Task.of("toy", ids, [Stage(Numbers, (forecast,))], tune=100, calibrate=200, score=score, **about)
    place = RunFolder(folder / "run")
    task.write(place)
    run_here(task.job, place)
    if certified:
        certify_run(task, place, [PACLevel(0.1, 0.05)], folder / "pac-ledger")
    return place


def page(*folders: RunFolder | Path, **options: Any) -> str:
    return build_page([StoredRun(RunFolder(str(folder)), **options) for folder in folders])


def test_the_page_says_what_was_promised_and_how_many_test_units_were_missed(tmp_path: Path) -> None:
    folder = made(tmp_path)
    task = Task.read(folder)
    numbers = {
        part: [int(n.split()[1]) for n in task.results(folder).units(part)] for part in ("calibrate", "test")
    }
    # Of 200 units at most 12 may lie above T: P[Bin(200, 0.1) <= 12] = 0.0320, and 0.0566 for 13.
    threshold = sorted(numbers["calibrate"])[-13]
    missed = sum(number > threshold for number in numbers["test"])
    text = page(folder)
    assert "contains the truth with probability at least 90%, with confidence 95%" in text
    assert f"{missed} of 100 test units were missed" in text
    assert "What voids it" in text
    assert "compared with the order of the units: A difference" in text, "the numbers grow with the ids"


@pytest.mark.parametrize("name", ["rl", "imagenet", "otb"])
def test_every_task_that_ships_has_a_page(name: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / name)
    text = page(tmp_path / name)
    assert {"rl": "tubes for", "imagenet": "Images and their sets", "otb": "Tracked videos"}[name] in text
    assert ('data-kind="tubes"' in text) == (name == "rl")
    assert len(text) < 3_000_000


def test_names_that_look_like_markup_stay_text(tmp_path: Path) -> None:
    text = page(made(tmp_path, forecast=True, names=HOSTILE))
    assert "<script>alert" not in text
    assert "</title>&" not in text
    assert "\\u003cscript\\u003ealert" in text  # the ids of the tube player
    assert "&lt;script&gt;alert" in text  # the name of the model


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    text = page(made(tmp_path, forecast=True))
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    assert set(re.findall(r"https?://[\w./]*", text)) == {"http://www.w3.org/2000/svg"}


def test_before_the_look_nobody_reads_the_calibrate_part(tmp_path: Path, monkeypatch: Any) -> None:
    folder, read = made(tmp_path, forecast=True, certified=False), []
    each = Results.each
    monkeypatch.setattr(
        Results, "each", lambda self, part, *rest: read.append(part) or each(self, part, *rest)
    )
    assert "nothing is promised" in page(folder)
    assert "calibrate" not in read


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_ends_of_sets_are_rounded_outward(end: float) -> None:
    low, high = outward(end, -1), outward(end, 1)
    assert low <= end <= high
    assert high - low <= 3e-4 * abs(end)


def test_a_plugin_shows_its_own_task(tmp_path: Path, monkeypatch: Any) -> None:
    def show(runs: Any) -> Chapter:
        head = Headline("It flies.", "It flew.", True, "Seen", "birds")
        return Chapter(f"{len(runs)} flights", [head], [Section("Wings", paragraph("two"))])

    monkeypatch.setattr(plugins, "names", lambda kind: ["toy"])
    monkeypatch.setattr(plugins, "load", lambda kind, name: show)
    text = page(made(tmp_path))
    assert all(words in text for words in ("It flies.", "1 flights", "Wings"))


def test_runs_are_found_below_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a"):
        shutil.copytree(GOLDEN / "otb", tmp_path / "deep" / name)
    assert [Path(run).name for run in find_runs([str(tmp_path)])] == ["a", "b"]


def test_what_cannot_be_shown_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    folder = made(tmp_path, forecast=True)
    cases = [
        (["empty"], "RUN must be a run folder, or hold some below it, got empty"),
        (["run", "--limit", "speed < 3"], "must be NAME<=NUMBER or NAME>=NUMBER, got 'speed < 3'"),
        (["run", "--limit", "speed <= 3"], "--limit must name one of number 0, got 'speed'"),
    ]
    for arguments, words in cases:
        done = pac("report", *arguments, "--out", "page.html")
        assert (done.exit_code, words in done.output) == (2, True), done.output
        assert not (tmp_path / "page.html").exists()
    made(tmp_path / "scores", names="other")
    done = pac("report", "scores/run", "--limit", "speed <= 3")
    assert (done.exit_code, "got 'speed' and no run with certified ones" in done.output) == (2, True)
    next(Path(folder.root, "shards").iterdir()).unlink()
    done = pac("report", "run")
    assert (done.exit_code, "lacks 1 of" in done.output) == (2, True), done.output


def test_the_command_writes_the_page(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path, forecast=True)
    done = pac("report", "run", "--out", "page.html", "--limit", "number 0 <= 2", "--title", "Mine")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "page.html").read_text()
    assert "<title>Mine</title>" in text
    assert '"bound":2.0' in text


def test_a_certificate_alone_is_a_headline_with_its_groups_and_its_world(tmp_path: Path) -> None:
    """And so is what `pac watch` saw since; a changed file is refused."""
    rng, out = np.random.default_rng(0), tmp_path / "page.html"
    light = ["<i>day"] * 300 + ["night"] * 300
    np.savez(tmp_path / "scores.npz", scores=rng.normal(size=600), ids=range(600), light=light)
    np.savez(tmp_path / "new.npz", scores=rng.normal(3, size=100), ids=range(1000, 1100))
    path = tmp_path / "c.json"
    asked = ("--epsilon", 0.1, "--delta", 0.02, "--group", "light", "--unit", "grasp", "--out", path)
    assert pac("fit", tmp_path / "scores.npz", *asked).exit_code == 0
    assert pac("watch", path, tmp_path / "new.npz").exit_code == 1
    done = pac("report", path, tmp_path / "c.watch.json", "--out", out)
    assert done.exit_code == 0, done.output
    page = out.read_text()
    assert "The set of a new grasp contains the truth with probability at least 90% in each light" in page
    assert "Certified, not tested" in page
    assert "A threshold for each group, by light, known when a set is made:" in page
    assert "Calibration scores, compared with the order of the units" in page
    assert "ALARM: they are not. Wealth" in page
    assert "<i>day" not in page, "a hostile name stays text"
    state = (tmp_path / "c.watch.json").read_text()
    (tmp_path / "c.watch.json").write_text(state.replace('"alarm": true', '"alarm": false'))
    refused(pac("report", tmp_path / "c.watch.json", "--out", out), "was changed after it was written")
