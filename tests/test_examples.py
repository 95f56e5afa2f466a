"""The examples run as they stand, in few lines, and say what is worth reading."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pac_core import read_certificate

FOLDER = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.py")))
def test_an_example_is_short_and_says_what_it_promises(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert len(text.splitlines()) < 40
    assert "docs/guarantees.md" in text.split('"""')[1]
    assert "promise" in text.split('"""')[1]


def run(name: str, folder: Path | None = None) -> list[str]:
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, FOLDER / name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_plans_are_checked_by_a_plain_function() -> None:
    lines = run("plain_function.py")
    assert len(lines) == 12
    assert any(": safe: the smallest margin is" in line for line in lines)
    assert any("speed: may reach" in line for line in lines)


def fastest(line: str) -> float:
    return float(re.search(r"fastest (-?[\d.]+)", line)[1])  # type: ignore[index]


def test_mbrl_libs_planner_is_guarded() -> None:
    free, limited = run("mbrl_lib.py")
    assert "10 of 10 have a safe plan" in free
    assert fastest(limited) <= 3.2096 < fastest(free)
    assert "10 of 10" not in limited  # some starts are too fast already


def test_a_gymnasium_environment_is_guarded() -> None:
    bare, guarded = run("gymnasium_wrapper.py")
    assert fastest(guarded) <= 3.2096 < fastest(bare)
    assert "not guarded" in bare
    assert int(re.search(r"(\d+) of 60 actions replaced", guarded)[1]) > 0  # type: ignore[index]


def test_a_classifier_of_ones_own_gets_its_certificate(tmp_path: Path) -> None:
    lines = run("digits.py", tmp_path)
    certificate = read_certificate(tmp_path / "digits-certificate.json")
    assert certificate.parts["train"].n == 500
    assert certificate.predictor.threshold.n == 700
    assert "not refuted by 447 test units" in lines[-1]
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
