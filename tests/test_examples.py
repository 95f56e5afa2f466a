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
    assert len(text.splitlines()) < 60
    assert "docs/guarantees.md" in text.split('"""')[1]
    assert "promise" in text.split('"""')[1]


def run(name: str, folder: Path | None = None, *options: str) -> list[str]:
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, FOLDER / name, *options]
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


@pytest.mark.parametrize("name", ["mbrl_lib.py", pytest.param("torchrl_cem.py", marks=pytest.mark.doors)])
def test_another_librarys_planner_is_guarded(name: str, tmp_path: Path) -> None:
    free, limited = run(name, tmp_path, "--tiny")[-2:]
    assert "4 of 4" in free
    assert "0 of 4" in limited


def test_a_gymnasium_environment_is_guarded(tmp_path: Path) -> None:
    bare, guarded = run("gymnasium_wrapper.py", tmp_path)
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


@pytest.mark.doors
def test_the_script_of_readme_runs(tmp_path: Path) -> None:
    """As it stands on the page, but for fewer units and a weaker promise."""
    code = next(
        part for part in (FOLDER.parent / "README.md").read_text().split("```python\n") if "fit_guard" in part
    )
    code = code.partition("```")[0]
    few = {"train(2000)": "train(300)", "tune=300, calibrate=500": "tune=32, calibrate=48, preliminary=32"}
    few |= {"PACLevel(0.05, 0.01)": "PACLevel(0.3, 0.1)", "candidates=32": "candidates=8"}
    few |= {"steps=50, folder": "steps=50, explore=8, folder"}
    for some, fewer in few.items():
        assert some in code
        code = code.replace(some, fewer)
    (tmp_path / "unicycle_robot.py").write_text((FOLDER / "unicycle_robot.py").read_text())
    (tmp_path / "script.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": str(FOLDER.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "whichever of the 8 candidates of a new start is picked" in done.stdout
    assert "Certified at scale" in done.stdout


WALKER = pytest.param("walker_sb3.py", marks=pytest.mark.doors)  # needs Stable-Baselines3


@pytest.mark.parametrize("name", ["unicycle.py", "pendulum.py", WALKER])
def test_a_robot_of_ones_own_is_guarded_and_certified(name: str, tmp_path: Path) -> None:
    lines = run(name, tmp_path, "--tiny")
    assert any(line.startswith("Certified at scale") for line in lines)
    broken = [int(re.search(r"(\d+) of 32", line)[1]) for line in lines[-4:]]  # type: ignore[index]
    assert broken[0] > 24 or name == "walker_sb3.py", "unguarded, the limit breaks in most episodes"
    assert broken[3] <= 2
