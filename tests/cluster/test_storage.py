"""The run folder: what is written is what is read, and nothing else passes for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem
from toy_runs import files, job
from toy_scorers import Draw, Forgets, Square

from pac_core import InvalidInput
from pac_core.errors import Incomplete, UnreadableFile
from pac_core.runs import Job, RunFolder, Stage, State, cut, run_here, shown
from pac_core.runs.jobs import pack, unpack


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files of the toy job."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_here(job(), RunFolder(folder))
    return files(folder)


def every_score(folder: RunFolder, asked: Job) -> list[float]:
    found = folder.over(asked.shards, lambda shard, arrays: arrays["scores"].tolist())
    return [score for _, scores in found for score in scores]


@pytest.mark.parametrize("url", ["{}", "file://{}", "memory://{}"])
def test_every_kind_of_place_keeps_the_same_numbers(tmp_path: Path, url: str) -> None:
    folder = RunFolder(url.format(tmp_path))
    run_here(job(), folder)
    assert every_score(folder, job())[:2] == [np.random.default_rng(i).normal() for i in (0, 1)]
    assert len(folder.receipts(job())) == 20


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float16).reshape(3, 2),
        np.array([np.inf, -0.0, np.nan]),
        np.arange(24, dtype=np.float32).reshape(3, 2, 4),
        np.array([2**62, -1, 0]),
        np.array(["a", "ä/b", ""]),
        np.array([True, False, True]),
        np.array([[True, False], [True, True], [False, False]]),
    ],
    ids=str,
)
def test_arrays_come_back_as_they_were(array: Any) -> None:
    again = unpack(pack({"x": array}))["x"]
    assert again.dtype.kind == array.dtype.kind
    assert again.tobytes() == array.tobytes()
    assert pack({"x": array}).tobytes() == pack({"x": array.copy()}).tobytes()


def test_objects_are_not_packed() -> None:
    with pytest.raises(
        InvalidInput, match="x must hold numbers, text or at most two axes of booleans, got object"
    ):
        pack({"x": np.array([{}], dtype=object)})


def test_a_damaged_shard_is_computed_again(
    tmp_path: Path, undisturbed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run_here(job(), RunFolder(tmp_path))
    for number, damage in ((0, lambda old: old[:-1]), (1, lambda old: old[:50] + b"x" + old[51:])):
        path = tmp_path / "shards" / undisturbed[number]
        path.write_bytes(damage(path.read_bytes()))
    (tmp_path / "shards" / undisturbed[2]).unlink()
    with pytest.raises(Incomplete, match="lacks 1 of 20 shards, first shard 2"):
        every_score(RunFolder(tmp_path), job())
    computed: list[int] = []

    def progress(state: State) -> None:
        computed.extend([state.last.number] if state.last else [])
        show(state)

    with shown("toy", "unit") as show:
        run_here(job(), RunFolder(tmp_path), progress=progress)
    said = capsys.readouterr().err
    assert said.startswith("2 shards were damaged, and are computed again\n170 of 200 units were finished")
    assert computed == [0, 1, 2]
    assert files(tmp_path) == undisturbed


def test_damage_that_comes_later_is_noticed_when_it_is_read(tmp_path: Path, undisturbed: list[str]) -> None:
    run_here(job(), RunFolder(tmp_path))
    path = tmp_path / "shards" / undisturbed[5]
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(Incomplete, match=r"000005-10-.*is damaged, or of another run"):
        every_score(RunFolder(tmp_path), job())


def test_a_shard_of_another_run_is_not_taken_for_one_of_ours(tmp_path: Path, undisturbed: list[str]) -> None:
    """The same units by another model: a file that was copied, or that a second driver wrote."""
    other = Job.of("toy", range(200), [Stage(Draw, (99.0,))], size=10, model="another")
    run_here(other, RunFolder(tmp_path / "other"))
    run_here(job(), RunFolder(tmp_path / "ours"))
    (tmp_path / "ours" / "shards" / undisturbed[0]).unlink()
    foreign = tmp_path / "other" / "shards" / files(tmp_path / "other")[0]
    copied = tmp_path / "ours" / "shards" / foreign.name
    copied.write_bytes(foreign.read_bytes())
    with pytest.raises(Incomplete, match="of another run"):
        every_score(RunFolder(tmp_path / "ours"), job())
    run_here(job(), RunFolder(tmp_path / "ours"))
    assert files(tmp_path / "ours") == undisturbed


def test_the_shard_of_other_units_is_not_taken_for_another_of_the_run(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    """A sound file of this run under the number of another shard: its units would count twice."""
    run_here(job(), RunFolder(tmp_path))
    third, fourth = (tmp_path / "shards" / undisturbed[number] for number in (3, 4))
    fourth.unlink()
    (third.with_name(third.name.replace("000003", "000004"))).write_bytes(third.read_bytes())
    with pytest.raises(Incomplete, match=r"000004-10-.* is damaged, or of another run or other units"):
        every_score(RunFolder(tmp_path), job())
    assert 4 not in RunFolder(tmp_path).receipts(job())
    run_here(job(), RunFolder(tmp_path))
    assert files(tmp_path) == undisturbed


def test_a_run_is_not_continued_on_another_kind_of_device(tmp_path: Path) -> None:
    run_here(job(), RunFolder(tmp_path), limit=3)
    with pytest.raises(InvalidInput, match="device 'cpu' and not 'cuda'"):
        run_here(job(), RunFolder(tmp_path), device="cuda")


def test_a_shard_that_vanishes_is_noticed_at_the_end(tmp_path: Path) -> None:
    def remove(state: State) -> None:
        for path in (tmp_path / "shards").glob("000003-*"):
            path.unlink()

    with pytest.raises(Incomplete, match=r"lacks 1 of 20 shards.*first shard 3 \(10 units, 30 to 39\)"):
        run_here(job(), RunFolder(tmp_path), progress=remove)


def test_a_half_written_file_is_no_shard(tmp_path: Path, undisturbed: list[str]) -> None:
    run_here(job(), RunFolder(tmp_path))
    path = tmp_path / "shards" / undisturbed[0]
    path.rename(path.with_name(path.name + ".part"))
    assert sorted(RunFolder(tmp_path).receipts(job())) == list(range(1, 20))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (job(units=199), "units 200 and not 199"),
        (Job.of("toy", range(200), [Stage(Draw)], size=10, horizon=3), "horizon None and not 3"),
        (Job.of("toy", range(1, 201), [Stage(Draw)], size=10), "other unit ids"),
        (Job.of("toy", range(200), [Stage(Draw, needs=("scipy",))], size=10), "scipy None and not"),
        (job(Draw, 99.0), "Draw's shift None and not '99.0'"),
        (job(Forgets), "scorer 'Draw' and not 'Forgets'"),
        (Job.of("toy", range(200), [Stage(Draw, cpus=2)], size=10), "Draw's cpus 1 and not 2"),
        (
            Job.of("toy", range(200), [Stage(Draw), Stage(Square)], size=10),
            "scorer None and not 'Square'; Square's cpus None and not 1",
        ),
    ],
)
def test_a_folder_of_another_run_is_refused(tmp_path: Path, other: Job, said: str) -> None:
    run_here(job(), RunFolder(tmp_path))
    with pytest.raises(InvalidInput, match=f"belongs to another run: it has .*{said}"):
        run_here(other, RunFolder(tmp_path))


def test_a_damaged_description_is_refused(tmp_path: Path) -> None:
    run_here(job(), RunFolder(tmp_path))
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UnreadableFile, match=r"run.json is damaged; remove it, and the command that made"):
        run_here(job(), RunFolder(tmp_path))
    (tmp_path / "run.json").unlink()
    state = run_here(job(), RunFolder(tmp_path))
    assert (state.ready, state.damaged) == (200, 0), "nothing is computed again"


def test_shards_that_lost_their_description_are_not_removed_for_another_run(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    run_here(job(), RunFolder(tmp_path))
    (tmp_path / "run.json").unlink()
    other = Job.of("toy", range(200), [Stage(Draw)], size=10, horizon=3)
    with pytest.raises(InvalidInput, match=r"it has 20 shards, none of this one, and no run.json"):
        run_here(other, RunFolder(tmp_path))
    assert files(tmp_path) == undisturbed
    assert not (tmp_path / "run.json").exists()


def test_a_folder_without_shards_belongs_to_nobody(tmp_path: Path, undisturbed: list[str]) -> None:
    """A command that was refused before its first shard does not keep the next one out."""
    other = Job.of("toy", range(200), [Stage(Draw)], size=10, cpus=100)
    RunFolder(tmp_path).claim(other, "cuda")
    run_here(job(), RunFolder(tmp_path))
    assert files(tmp_path) == undisturbed
    with pytest.raises(InvalidInput, match=r"belongs to another run: it has .*cpus None and not 100"):
        run_here(other, RunFolder(tmp_path))


class Directories(LocalFileSystem):
    """A store with real directories and without replacement, such as SMB."""

    protocol = ("directories",)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).replace("directories://", ""))

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        if self.exists(path2):
            raise FileExistsError(path2)
        super().mv(path1, path2, **options)


def test_a_store_with_real_directories(tmp_path: Path, undisturbed: list[str]) -> None:
    register_implementation("directories", Directories, clobber=True)
    folder = RunFolder(f"directories://{tmp_path}/deep/run")
    run_here(job(), folder, limit=5)
    run_here(job(), folder)
    folder.put("note.txt", b"first")
    folder.put("note.txt", b"second")
    assert folder.get("note.txt") == b"second"
    assert files(tmp_path / "deep" / "run") == undisturbed, "and no part of a file is left"


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append("content"), sync(file)))
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append("name"), replace(old, new)))
    RunFolder(tmp_path).put("file", b"content")
    assert done == ["content", "name"]
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:secret@bucket/run",
        "s3://secret@bucket/run",
        "simplecache::s3://me:secret@bucket/run",
        "https://host/run?token=abc",
        "memory://x?AWS_SECRET_ACCESS_KEY=abc",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput, match="without credentials") as said:
        RunFolder(url)
    assert "secret" not in str(said.value)
    assert "abc" not in str(said.value)


def test_a_url_nobody_understands_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a path or a URL that fsspec opens"):
        RunFolder("nosuchthing://bucket/run")


def test_shards_are_cut_in_order_and_seeds_belong_to_them() -> None:
    shards = cut(["a", "b", "c"], 2, seed=7)
    assert [list(shard.ids) for shard in shards] == [["a", "b"], ["c"]]
    assert [shard.seed for shard in shards] == [shard.seed for shard in cut(["x", "y", "z"], 2, seed=7)]
    assert len({shard.seed for shard in shards} | {shard.seed for shard in cut(["a"], 1, seed=8)}) == 3
    with pytest.raises(InvalidInput, match="ids must be unique, got 1 repeats"):
        cut(["a", "a"], 1)
    with pytest.raises(InvalidInput, match="ids must be one or more"):
        cut([], 1)
