"""Ray for the tests: one local engine a process, and what an undisturbed run holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from toy_runs import contents, job

from pac_core.runs import Results, RunFolder, run_here

TESTS = Path(__file__).parent.parent
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ["PYTHONPATH"] = str(TESTS)  # where workers find the toy scorers


@pytest.fixture
def engine() -> None:
    """A local Ray with three CPUs, whatever the machine has; kept for the tests that follow."""
    import ray

    if not ray.is_initialized():
        ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)


@pytest.fixture
def no_engine() -> None:
    """No Ray in this process, for commands that start their own."""
    import ray

    ray.shutdown()


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


@pytest.fixture
def readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each part as it is read; the calibrate part must not be before the ledger is written."""
    parts: list[str] = []
    each = Results.each

    def watched(self: Results, part: str, function: Any) -> Any:
        assert part != "calibrate" or (tmp_path / "ledger" / "000001.json").exists()
        assert part != "test" or list(tmp_path.glob("*/*certificate-*.json")), "no certificate is issued yet"
        parts.append(part)
        return each(self, part, function)

    monkeypatch.setattr(Results, "each", watched)
    return parts


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each file of a shard as it is opened to be read."""
    paths: list[str] = []
    real = LocalFileSystem._open

    def watched(self: Any, path: str, mode: str = "rb", **options: Any) -> Any:
        if path.endswith(".arrow") and "/shards/" in path and "r" in mode:
            paths.append(path)
        return real(self, path, mode, **options)

    monkeypatch.setattr(LocalFileSystem, "_open", watched)
    return paths


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the files of the toy job hold when nothing happens, made without Ray."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_here(job(), RunFolder(folder))
    return contents(folder)
