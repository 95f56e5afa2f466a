"""Scripts as a user starts them, or in this process; and the tables they write."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(ROOT / "scripts" / name), *map(str, arguments)]
    clean = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean)


def run_here(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: object) -> str:
    """Runs a script in this process, where torch is loaded already; returns its refusal, or nothing."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    try:
        runpy.run_path(str(ROOT / "scripts" / name / "__main__.py"), run_name="__main__")
    except SystemExit as refused:
        return str(refused.code)
    return ""


def smoke_test(name: str, command: str, out: Path) -> str:
    """Runs a command with --smoke-test in this process, to its end; returns what it printed."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        assert run_here(patch, name, command, "--smoke-test", "--out", out) == ""
    return said.getvalue()


def table_in(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
