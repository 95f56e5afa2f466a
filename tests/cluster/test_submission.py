"""A cluster started by hand: a run joined to it, one through Ray Client, one submitted as a job."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import ray
from pac_program import refused
from pac_program import run as pac

from cluster.commands.submit import pinned, runtime_env
from pac_core import InvalidInput

pytestmark = [
    pytest.mark.doors,
    pytest.mark.xdist_group("head"),
]  # its Ray has ports of its own, beside the others'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def head(folder: Path) -> Iterator[dict[str, int]]:
    """`ray start --head` with two CPUs, on ports of its own."""
    ray.shutdown()
    names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port")
    ports = {name: free_port() for name in names}  # none that another Ray may have
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=2"]
    command += ["--disable-usage-stats", "--include-dashboard=true", f"--temp-dir={folder}"]
    command += [f"--{name}={port}" for name, port in ports.items()]
    with (folder / "head.log").open("w") as log:
        found = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env = {**os.environ, "PATH": found, "PYTHONPATH": ""}  # our packages come with the job alone
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=env)
    try:
        yield ports
    finally:
        ray.shutdown()
        process.terminate()
        process.wait(timeout=600)


@pytest.fixture
def tracks(tmp_path: Path) -> list[object]:
    """A small run: tracks of videos."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 15, size=60)
    truth = rng.uniform(10, 90, size=(lengths.sum(), 4))
    members = truth[:, None] + rng.normal(size=(lengths.sum(), 5, 4))
    names = np.array([f"video{i}" for i in range(60)])
    np.savez(tmp_path / "tracks.npz", sequence=names, length=lengths, truth=truth, members=members)
    level = ["--epsilon", 0.2, "--delta", 0.1]
    return ["run", "otb", "--tracks", tmp_path / "tracks.npz", "--calibrate", 40, *level]


def program(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`pac` in a process of its own, as a user starts it; again, while the new cluster does not listen."""
    command = [sys.executable, "-m", "pac_core", *map(str, arguments)]
    deadline = time.monotonic() + 1200
    while True:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=1200)
        starting = "does not take the job" in answer.stderr or "cannot be reached" in answer.stderr
        if not starting or time.monotonic() > deadline:
            return answer


def test_a_run_joins_a_cluster_and_is_submitted_as_a_job(tracks: list[object], tmp_path: Path) -> None:
    answers = {}
    # sockets want short names; the last of Ray's processes may still write while the folder goes
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as short, head(Path(short)) as ports:
        dashboard = f"http://127.0.0.1:{ports['dashboard-port']}"
        folder = tmp_path / "job" / "run"
        old = Path(short) / "cluster"  # a copy of ours where jobs start, which must not be run
        old.mkdir()
        (old / "__init__.py").write_text("raise ImportError('an old copy')")
        answers["job"] = program("submit", "--address", dashboard, *tracks, "--folder", folder)
        shutil.rmtree(old)
        for how, address in (
            ("joined", f"127.0.0.1:{ports['port']}"),
            ("far", f"ray://127.0.0.1:{ports['ray-client-server-port']}"),
        ):
            answers[how] = program(*tracks, "--folder", tmp_path / how / "run", "--address", address)
    for how, answer in answers.items():
        assert answer.returncode == 0, f"{how}\n{answer.stdout}\n{answer.stderr}"
        assert "sequences missed" in answer.stdout
    certificates = {(tmp_path / how / "run" / "certificate-0.2-0.1.json").read_bytes() for how in answers}
    assert len(certificates) == 1, "the same certificate, whichever way it was launched"


@pytest.mark.parametrize("folder", [["--folder=s3://me:WORD@b/x"], ["--folder", "s3://me:WORD@b/x"]])
def test_secrets_and_wrong_addresses_are_not_submitted(folder: list[str]) -> None:
    answer = pac("submit", "--address", "http://127.0.0.1:1", "run", "rl", *folder)
    refused(answer, "without credentials")
    assert "WORD" not in answer.output
    refused(
        pac("submit", "--address", "head", "run", "rl", "--folder", "x"),
        "--address must be that of a dashboard",
    )


def test_nobody_there_is_said_in_one_sentence(tracks: list[object], tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    refused(pac("submit", "--address", f"http://{nowhere}", *tracks), "the cluster does not take the job")
    refused(pac("submit", "--address", f"http://{nowhere}", "fit", "x"), "takes the arguments of `pac run`")


def test_packages_are_shipped_and_requirements_must_be_pinned(tmp_path: Path) -> None:
    env = runtime_env()
    assert [Path(path).name for path in env["py_modules"]] == ["pac_core", "pac_rl", "pac_vision", "cluster"]
    assert all((Path(path) / "__init__.py").exists() for path in env["py_modules"])
    assert env["env_vars"]["RAY_USAGE_STATS_ENABLED"] == "0"
    (tmp_path / "loose.txt").write_text("numpy==2.4.6\nscipy>=1\n")
    with pytest.raises(InvalidInput, match=r"must pin each package as name==version, got \['scipy>=1'\]"):
        pinned(tmp_path / "loose.txt")
    shipped = runtime_env(Path(__file__).parents[2] / "cluster" / "configs" / "requirements.txt")["pip"]
    assert "mbrl==0.2.0" in shipped["packages"]
    assert shipped["pip_install_options"] == ["--no-deps"]


def test_options_of_the_run_stay_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], str]] = []

    def take(arguments: list[str], *, address: str, requirements: Path | None) -> str:
        asked.append((arguments, address))
        return "job-1"

    monkeypatch.setattr("cluster.commands.submit.start_job", take)
    answer = pac(
        "submit", "--no-wait", "--address", "http://a:1", "run", "rl", "--folder", "x", "--address", "auto"
    )
    assert answer.exit_code == 0, answer.output
    assert pac("submit", "--no-wait", "--address", "http://a:1", "run", "rl", "--folder", "x").exit_code == 0
    given = ["run", "rl", "--folder", "x", "--address=auto"]
    assert pac("submit", "--no-wait", "--address", "http://a:1", *given).exit_code == 0
    assert asked.pop()[0] == given
    assert asked == 2 * [(["run", "rl", "--folder", "x", "--address", "auto"], "http://a:1")]
