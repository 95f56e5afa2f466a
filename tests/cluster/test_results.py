"""From shards to numbers: the same as from all units at once, to the last bit."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pac_program import run as pac
from toy_scorers import Draw
from toy_walks import DIMS, UNITS, ExplodingWalks, walking, world

from cluster.commands.launch import launch, ledger_for
from pac_core import (
    GaussianForecast,
    InvalidInput,
    PACLevel,
    Predictor,
    SecondLook,
    Trajectories,
    evaluate,
    read_certificate,
)
from pac_core.certificates import Record, add_note, open_ledger
from pac_core.errors import BadCertificate, Incomplete, OverBudget, TooManyFailures, UnreadableFile
from pac_core.runs import Results, RunFolder, Stage, Task, View, certify_run, run_here
from pac_core.runs.jobs import pack, unpack
from pac_core.thresholds import fit_threshold
from pac_core.tubes import fit_shape

LEVEL = PACLevel(0.1, 0.01)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walks") / "run"
    task = walking()
    task.write(RunFolder(folder))
    run_here(task.job, RunFolder(folder))
    return folder


@pytest.fixture
def finished(walked: Path, tmp_path: Path) -> RunFolder:
    """A copy for each test: a run that is certified keeps its ledger."""
    return RunFolder(shutil.copytree(walked, tmp_path / "copy"))


def test_a_shard_that_was_damaged_since_spends_no_unit(tmp_path: Path) -> None:
    """Of bare scores nothing is read before the ledger is opened but the files' digests."""
    names, parts = [f"draw/{i}" for i in range(300)], {"tune": 0, "calibrate": 200, "seed": 0}
    stages, model, folder = [Stage(Draw)], Record("a draw", digest="0" * 64), RunFolder(tmp_path / "run")
    task = Task.of(
        "drawn", range(300), stages, size=30, names=names, unit="draw", model=model, score="drawn", **parts
    )
    task.write(folder)
    run_here(task.job, folder)
    last = max((tmp_path / "run" / "shards").iterdir())
    last.write_bytes(last.read_bytes()[:-8])
    with pytest.raises(Incomplete, match=r"000009-30-.* is damaged"):
        certify_run(task, folder, [LEVEL], tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()


def directly(task: Task, folder: RunFolder, part: str) -> tuple[GaussianForecast, Trajectories]:
    """The same part without any shard."""
    rows = getattr(task.results(folder).parts, part).rows
    found = world(rows)
    return GaussianForecast(found["mean"], found["var"]), Trajectories(found["truth"], found["lengths"])


def test_a_run_says_when_its_joint_tube_is_wider_than_the_states_vary(
    finished: RunFolder, tmp_path: Path
) -> None:
    _, [finding] = certify_run(walking(), finished, [LEVEL], tmp_path / "ledger", score="joint")
    predictor = finding.certificate.predictor
    direct = fit_shape(*directly(walking(), finished, "tune"), LEVEL, shape="joint")
    assert predictor.remarks == Predictor(direct, predictor.threshold, predictor.domain).remarks
    assert any("of 2 of 2 numbers is above the deviation" in remark for remark in predictor.remarks)


def test_certificate_threshold_and_test_are_those_of_all_units_at_once(
    finished: RunFolder, tmp_path: Path
) -> None:
    task = walking()
    made, [finding] = certify_run(task, finished, [LEVEL], tmp_path / "ledger", score="joint")
    calibrate, test = (directly(task, finished, part) for part in ("calibrate", "test"))
    threshold = fit_threshold(made.score.scores(*calibrate), LEVEL)
    assert finding.certificate.predictor.threshold == threshold
    direct = evaluate(finding.certificate.predictor.sets(test[0]), test[1], LEVEL)
    assert finding.evaluation is not None
    assert finding.evaluation.all == direct.all
    stored = Path(finished.root) / finding.file
    assert read_certificate(stored).predictor.threshold == threshold
    answer = pac("verify", stored, Path(finished.root) / "scores.parquet")
    assert answer.exit_code == 0, answer.output


def test_a_run_keeps_its_ledger_and_its_certificate(finished: RunFolder, tmp_path: Path) -> None:
    book, other = tmp_path / "ledger", tmp_path / "other"
    _, [finding] = certify_run(walking(), finished, [LEVEL], book, score="joint")
    certificate = Path(finished.root) / finding.file
    before = certificate.read_bytes()
    for levels, shape in (([LEVEL], "joint"), ([LEVEL], "box"), ([PACLevel(0.2, 0.01)], "joint")):
        with pytest.raises(InvalidInput, match=r"--ledger must be the one that .* was certified with"):
            certify_run(walking(), finished, levels, other, score=shape)
    assert not other.exists()
    with pytest.raises(InvalidInput, match="--ledger must be the one"):
        ledger_for(finished, other)
    assert ledger_for(finished) == str(book), "and not the one beside the folder"
    add_note(book, "a thought", {})
    certify_run(walking(), finished, [LEVEL], book, score="joint")  # the same look may be repeated
    with pytest.raises(SecondLook):
        certify_run(walking(), finished, [LEVEL], book, score="box")
    assert certificate.read_bytes() == before


def test_no_certificate_is_replaced_where_the_ledger_is_lost(finished: RunFolder, tmp_path: Path) -> None:
    book = tmp_path / "ledger"
    _, [finding] = certify_run(walking(), finished, [LEVEL], book, score="joint")
    certificate = Path(finished.root) / finding.file
    before = certificate.read_bytes()
    shutil.rmtree(book)
    with pytest.raises(InvalidInput, match="is missing: put it back"):
        certify_run(walking(), finished, [LEVEL], book, score="box")
    with pytest.raises(InvalidInput, match="is missing: put it back"):
        ledger_for(finished)
    (Path(finished.root) / "ledger.txt").unlink()
    with pytest.raises(InvalidInput, match="no certificate is replaced"):
        certify_run(walking(), finished, [LEVEL], book, score="box")
    assert not book.exists()
    assert certificate.read_bytes() == before


@pytest.mark.parametrize("name", ["certificate-0.1-0.01.json", "horizon-2-certificate-0.3-0.2.json"])
def test_a_certificate_whose_ledger_the_folder_forgot_needs_one_that_knows_its_look(
    name: str, finished: RunFolder, tmp_path: Path
) -> None:
    book, other, home = tmp_path / "ledger", tmp_path / "other", Path(finished.root)
    _, [finding] = certify_run(walking(), finished, [LEVEL], book, score="joint")
    (home / finding.file).rename(home / name)
    (home / "ledger.txt").unlink()
    for _ in ("there is no such ledger", "there is one of other looks"):
        with pytest.raises(InvalidInput, match=rf"{name} was issued from a look that \S+other does not"):
            certify_run(walking(), finished, [PACLevel(0.2, 0.01)], other, score="joint")
        add_note(other, "a thought", {})
    with pytest.raises(SecondLook):
        certify_run(walking(), finished, [PACLevel(0.2, 0.01)], book, score="joint")
    certify_run(walking(), finished, [LEVEL], book, score="joint")  # the same look may be repeated
    assert (home / "ledger.txt").read_text() == str(book)
    (home / name).write_text("{}")
    with pytest.raises(BadCertificate, match=f"{home / name}"):
        certify_run(walking(), finished, [LEVEL], book, score="joint")


def test_a_look_that_breaks_off_while_it_reads_has_its_ledger(
    finished: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Results, "write_scores", stopped)
    with pytest.raises(KeyboardInterrupt):
        certify_run(walking(), finished, [LEVEL], tmp_path / "ledger", score="joint")
    with pytest.raises(InvalidInput, match="--ledger must be the one"):
        certify_run(walking(), finished, [LEVEL], tmp_path / "other", score="joint")


def test_what_is_refused_before_the_look_leaves_no_ledger_behind(finished: RunFolder, tmp_path: Path) -> None:
    open_ledger(tmp_path / "small.json", budget=0.001)
    with pytest.raises(OverBudget):
        certify_run(walking(), finished, [LEVEL], tmp_path / "small.json", score="joint")
    certify_run(walking(), finished, [LEVEL], tmp_path / "ledger", score="joint")


def test_a_second_look_at_the_same_units_is_refused(finished: RunFolder, tmp_path: Path) -> None:
    certify_run(walking(), finished, [LEVEL], tmp_path / "ledger", score="joint")
    with pytest.raises(SecondLook):
        certify_run(walking(), finished, [PACLevel(0.2, 0.01)], tmp_path / "ledger", score="joint")


def test_the_calibrate_part_is_not_read_before_the_ledger_is_written(
    finished: RunFolder, tmp_path: Path, readings: list[str]
) -> None:
    certify_run(walking(), finished, [LEVEL], tmp_path / "ledger", score="box")
    assert readings == ["tune", "calibrate", "test"]


@pytest.mark.parametrize("shape", ["joint", "box"])
@pytest.mark.parametrize("levels", [1, 4])
def test_each_part_is_read_once_whatever_the_number_of_levels(
    levels: int, shape: str, tmp_path: Path, opened: list[str]
) -> None:
    folder, task = RunFolder(tmp_path / "run"), walking(size=225)
    task.write(folder)
    run_here(task.job, folder)
    opened.clear()
    asked = [PACLevel(0.1 + 0.05 * i, 0.01) for i in range(levels)]
    _, findings = certify_run(task, folder, asked, tmp_path / "ledger", score=shape)
    assert len(findings) == levels
    assert sorted(Counter(opened).values()) == [3, 3, 3, 3], "4 shards, 3 parts"


def test_a_whole_command_reads_each_part_once(tmp_path: Path, opened: list[str]) -> None:
    """What it says of failed units comes from the same passes."""
    folder, task = RunFolder(tmp_path / "run"), walking(ExplodingWalks, size=225)
    about: Any = {"workers": None, "gpus": None, "dashboard": False, "estimate": False}
    levels: Any = {"levels": [LEVEL, PACLevel(0.2, 0.01)], "ledger": tmp_path / "ledger"}
    launch(task, folder, address="none", **levels, **about)
    assert set(Counter(opened).values()) == {3}


def test_a_shard_without_units_of_a_part_is_read_once_at_least(tmp_path: Path, opened: list[str]) -> None:
    """Each file is verified before the ledger is opened, and then read for the parts that it has units of."""
    folder, task = RunFolder(tmp_path / "run"), walking(size=5, tune=50, calibrate=100)
    task.write(folder)
    run_here(task.job, folder)
    opened.clear()
    certify_run(task, folder, [LEVEL], tmp_path / "ledger")
    reads = Counter(Counter(opened).values())
    assert reads.total() == UNITS / 5
    assert set(reads) == {2, 3}, "nothing is read for a part that a shard has no units of"


def test_a_shard_that_is_damaged_between_two_passes_stops_the_second(finished: RunFolder) -> None:
    results = walking().results(finished)
    list(results.over("tune"))
    path = min((Path(finished.root) / "shards").iterdir())
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(Incomplete, match=r"000000-64-.* is damaged"):
        list(results.over("calibrate"))


def test_a_run_has_tubes_of_features_and_refuses_a_score_of_labels_before_it_reads(
    finished: RunFolder, tmp_path: Path, readings: list[str]
) -> None:
    with pytest.raises(InvalidInput, match="shape must be one of joint, max, box, features"):
        certify_run(walking(), finished, [LEVEL], tmp_path / "ledger", score="smallest")
    assert "calibrate" not in readings
    about: dict[str, Any] = {"score": "features", "features": ("first=0",)}
    made, _ = certify_run(walking(), finished, [LEVEL], tmp_path / "ledger", **about)
    assert made.score.kind == "features"


def test_units_that_were_renamed_are_refused(finished: RunFolder, tmp_path: Path) -> None:
    """Other names are another split: tune units would calibrate, and the ledger would not know them."""
    again = RunFolder(tmp_path / "run")
    shutil.copytree(finished.root, again.root)
    units = unpack(again.get("units.arrow"))
    again.put(
        "units.arrow", pack(units | {"names": np.array([f"other/{i}" for i in range(len(units["ids"]))])})
    )
    with pytest.raises(UnreadableFile, match=r"units.arrow is not the one of this run"):
        Task.read(again)


def test_a_shard_that_is_lost_stops_the_certificate_before_the_ledger(
    finished: RunFolder, tmp_path: Path
) -> None:
    again = RunFolder(tmp_path / "run")
    shutil.copytree(finished.root, again.root)
    next((tmp_path / "run" / "shards").iterdir()).unlink()
    with pytest.raises(Incomplete):
        certify_run(walking(), again, [LEVEL], tmp_path / "ledger", score="joint")
    assert not (tmp_path / "ledger").exists()


def test_a_view_reads_fewer_steps_and_members(finished: RunFolder) -> None:
    results = walking().results(finished)
    forecast, truth = results.gathered("tune", View(members=2, horizon=3))
    assert forecast.mean.shape == (300, 3, DIMS)
    assert (forecast.var == 2.0).all()
    assert truth.lengths.max() == 3
    for view, said in (
        (View(members=7), "no forecasts of 7 members"),
        (View(horizon=9), "horizon must be within"),
    ):
        with pytest.raises(InvalidInput, match=said):
            results.gathered("tune", view)


def test_a_folder_can_be_read_without_knowing_its_task(finished: RunFolder) -> None:
    task = Task.read(finished)
    assert (task.unit, task.tune, task.model.name) == ("walk", 300, "a walk")
    assert (task.names == walking().names).all()
    assert [shard.ids for shard in task.job.shards][1][0] == 64
    with pytest.raises(InvalidInput, match="must be the folder of a finished `pac run`"):
        Task.read(RunFolder(Path(finished.root) / "elsewhere"))


@pytest.mark.parametrize("sizes", [{"tune": 800, "calibrate": 101}, {"tune": -1}, {"calibrate": 0}])
def test_parts_that_cannot_be_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(
        InvalidInput, match="tune and calibrate must be at least 0 and 1, and together at most"
    ):
        walking(**sizes)


@pytest.mark.parametrize("shape", ["joint", "box"])
def test_a_forecast_that_explodes_is_an_error_of_its_unit_and_stops_no_run(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, task, exploded = RunFolder(tmp_path / "run"), walking(ExplodingWalks), np.arange(UNITS) % 50 == 0
    about: Any = {"workers": None, "gpus": None, "dashboard": False, "estimate": False}
    levels: Any = {"levels": [LEVEL], "ledger": tmp_path / "ledger"}
    [finding] = launch(task, folder, address="none", score=shape, **levels, **about)
    results = task.results(folder)
    tune, calibrate, test = (int(exploded[part.rows].sum()) for part in results.parts)
    assert min(tune, calibrate, test) > 0
    assert (
        f"{tune} to tune on are not used, {calibrate} to calibrate on and {test} to test on count as errors"
        in (capsys.readouterr().out)
    )
    listed = (tmp_path / "run" / "exploded.txt").read_text().split()
    assert listed == task.names[exploded].tolist()
    # Nothing is tuned on them, each scores +inf, and the set of each is empty.
    whole = walking()
    here = {part: directly(whole, folder, part) for part in ("tune", "calibrate", "test")}
    alive = {part: ~exploded[getattr(results.parts, part).rows] for part in here}
    tuning = here["tune"][0].take(alive["tune"]), here["tune"][1][alive["tune"]]
    score = fit_shape(*tuning, LEVEL, shape=shape or "box")
    predictor = finding.certificate.predictor
    assert predictor.score.to_json() == score.to_json()
    scores = np.where(alive["calibrate"], score.scores(*here["calibrate"]), np.inf)
    assert predictor.threshold == fit_threshold(scores, LEVEL)
    assert finding.evaluation is not None
    assert finding.evaluation.all.empty == test
    missed = ~score.sets(here["test"][0], predictor.threshold).contains(here["test"][1])
    assert finding.evaluation.all.errors == (missed | ~alive["test"]).sum()
    # A forecast that explodes in its last step is one of fewer steps, and the smaller model's did not.
    assert len(results.gathered("tune", View(horizon=3))[1]) == len(alive["tune"])
    assert len(results.gathered("tune", View(members=2))[1]) == len(alive["tune"])


def test_more_explosions_than_errors_allowed_are_refused_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, task = RunFolder(tmp_path / "run"), walking(ExplodingWalks)
    about: Any = {"workers": None, "gpus": None, "dashboard": False, "estimate": False}
    levels: Any = {"levels": [PACLevel(0.02, 0.05)], "ledger": tmp_path / "ledger"}
    with pytest.raises(TooManyFailures):
        launch(task, folder, address="none", score="joint", **levels, **about)
    assert "18 of 900 walks have a forecast that is no Gaussian" in capsys.readouterr().out
