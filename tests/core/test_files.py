"""Files are whole or absent, errors name them, and what a killed writer left is swept, nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pac_program import LEVEL, SPLIT

from pac_core import files
from pac_core.certificates import write_json
from pac_core.files import sweep_parts, whole_file

WRITER = """
import sys
from pac_core.files import whole_file
with whole_file(sys.argv[1]) as part:
    part.write_text("half")
    print("begun", flush=True)
    sys.stdin.read()
"""


@contextmanager
def writer(target: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in the middle of writing a file."""
    command = [sys.executable, "-c", WRITER, str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
        process.kill()


def test_what_a_killed_writer_left_is_swept_by_the_next(tmp_path: Path) -> None:
    with writer(tmp_path / "killed.json") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(list(tmp_path.iterdir())) == 1
    write_json(tmp_path / "other.json", {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


def test_what_somebody_writes_is_not_swept(tmp_path: Path) -> None:
    """That of a writer that lives, of one on another host, and files of others."""
    theirs = {"download.part", "tmpabc123", "x.part", f"x.{'0' * 8}-{'1' * 8}.part"}
    for name in theirs:
        (tmp_path / name).touch()
    with writer(tmp_path / "slow.json") as process:
        (alive,) = {path.name for path in tmp_path.iterdir()} - theirs
        write_json(tmp_path / "fast.json", {"a": 1})
        assert {path.name for path in tmp_path.iterdir()} == theirs | {alive, "fast.json"}
        process.communicate("")
    assert (tmp_path / "slow.json").read_text() == "half"
    assert {path.name for path in tmp_path.iterdir()} == theirs | {"slow.json", "fast.json"}


def test_a_file_swept_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fstat, swept = os.fstat, []

    def late(lock: int) -> os.stat_result:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].unlink()
        return fstat(lock)

    monkeypatch.setattr(files.os, "fstat", late)
    write_json(tmp_path / "a.json", {"a": 1})
    assert len(swept) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "a") as part:
        part.write_text(str(1 / 0))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
    with pytest.raises(OSError, match="Is a directory") as said:
        write_json(tmp_path, {})
    assert said.value.filename == str(tmp_path)


def test_a_file_has_the_mode_of_the_one_it_replaces_or_the_users(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    (tmp_path / "old").chmod(0o640)
    (tmp_path / "plain").touch()
    for name in ("old", "new"):
        write_json(tmp_path / name, {})
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"old": 0o640, "new": modes["plain"], "plain": modes["plain"]}


def test_a_folder_that_is_not_there_has_nothing_to_sweep(tmp_path: Path) -> None:
    sweep_parts(tmp_path / "none")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_names_the_file(small_disk: Path, logits: Path) -> None:
    out, command = small_disk / "certificate.json", [sys.executable, "-m", "pac_core", "fit", str(logits)]
    (small_disk / "other").write_bytes(bytes(7 * 4096))
    arguments = [*command, *LEVEL, *SPLIT, "--out", str(out), "--ledger", str(logits.parent / "ledger")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        f"Error: {out.with_name('certificate.scores.npz')}: No space left on device\n",
    )
    assert sorted(path.name for path in small_disk.iterdir()) == ["certificate.json", "other"]
    with pytest.raises(OSError, match="No space left") as said:
        write_json(small_disk / "new.json", {"text": "a" * 10_000})
    assert said.value.filename == str(small_disk / "new.json")
