"""A run that stores logits: its score is chosen on the tune part, and by name it is the paper's."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.commands.launch import launch
from pac_core import LogitForecast, PACLevel, read_certificate
from pac_core.certificates import Record
from pac_core.runs import RunFolder, Stage, Task, certify_run, run_here
from pac_core.sets import RankedScore, choose_label_score, fit_tempered

UNITS, TUNE, CALIBRATE = 900, 300, 400
LEVELS = [PACLevel(0.05, 0.01), PACLevel(0.1, 0.01)]


def world(ids: Any) -> tuple[np.ndarray, np.ndarray]:
    """Sharp logits; one label in ten lies anywhere among the first fifteen."""
    logits, labels = [], []
    for unit in np.asarray(ids).tolist():
        rng = np.random.default_rng(unit)
        z = 4 * np.sort(rng.gumbel(size=60))[::-1]
        labels.append(rng.integers(0, 15) if rng.random() < 0.1 else (z + rng.gumbel(size=60)).argmax())
        logits.append(z)
    return np.stack(logits).astype(np.float32), np.array(labels)


class Classified:
    def __init__(self, *, device: str) -> None:
        pass

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        logits, labels = world(shard.ids)
        return {"ids": shard.array, "logits": logits, "labels": labels}


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, RunFolder]:
    names = [f"image/{i}" for i in range(UNITS)]
    task = Task.of(
        "images",
        range(UNITS),
        [Stage(Classified)],
        size=64,
        names=names,
        unit="image",
        model=Record("toy"),
        tune=TUNE,
        calibrate=CALIBRATE,
        seed=1,
    )
    folder = RunFolder(tmp_path_factory.mktemp("labels") / "run")
    task.write(folder)
    run_here(task.job, folder)
    return task, folder


@pytest.fixture
def run(classified: tuple[Task, RunFolder], tmp_path: Path) -> tuple[Task, RunFolder]:
    """A copy for each test: a run that is certified keeps its ledger."""
    task, folder = classified
    return task, RunFolder(shutil.copytree(folder.root, tmp_path / "run"))


def test_the_score_is_the_choice_of_the_tune_part_for_all_levels(
    run: tuple[Task, RunFolder], tmp_path: Path
) -> None:
    task, folder = run
    made, findings = certify_run(task, folder, LEVELS, tmp_path / "ledger")
    logits, labels = world(task.results(folder).parts.tune.rows)
    direct = choose_label_score(
        LogitForecast(logits), labels, LEVELS[0], calibrate=CALIBRATE, others=LEVELS[1:]
    )
    assert isinstance(made.score, RankedScore)
    assert made.score == direct
    for finding in findings:
        stored = read_certificate(Path(folder.root) / finding.file).predictor
        assert stored.score == direct
        assert finding.evaluation is not None
        assert finding.evaluation.all.n == UNITS - TUNE - CALIBRATE
        assert not finding.evaluation.refuted


def test_a_whole_command_reads_each_part_once(
    classified: tuple[Task, RunFolder], tmp_path: Path, opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The accuracy on the tune part comes from the same pass as the score."""
    about: Any = {"workers": None, "gpus": None, "dashboard": False, "estimate": False}
    levels: Any = {"levels": LEVELS, "ledger": tmp_path / "ledger.json"}
    launch(classified[0], RunFolder(tmp_path / "run"), address="none", **levels, **about)
    assert max(Counter(opened).values()) == 3
    assert "accuracy 0." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["paper", "plain"])
def test_the_papers_score_by_name(run: tuple[Task, RunFolder], tmp_path: Path, name: str) -> None:
    task, folder = run
    made, _ = certify_run(task, folder, LEVELS, tmp_path / "ledger", score=name)
    logits, labels = world(task.results(folder).parts.tune.rows)
    fitted = fit_tempered(LogitForecast(logits), labels, LEVELS[0]).to_json()["preparations"]
    assert made.score.to_json()["preparations"] == (fitted if name == "paper" else [])
