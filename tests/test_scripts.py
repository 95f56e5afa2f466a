"""The scripts run as they are, and their results hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pac_core import read_certificate

ROOT = Path(__file__).parent.parent


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_demo_certifies_and_measures_below_its_promise(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.txt").write_text("mine")
    for _ in range(2):  # the second run replaces what the first wrote, and nothing else
        done = run("demo_digits.py", "--out", str(tmp_path / "demo"))
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "demo" / "thesis.txt").read_text() == "mine"
    certificate = read_certificate(tmp_path / "demo" / "certificate.json")
    assert certificate.parts["train"].n == 500
    assert certificate.predictor.threshold.n == 700
    assert "it follows from its scores" in done.stdout
    assert "not refuted by 447 test units" in done.stdout
    assert (tmp_path / "demo" / "sets.png").read_bytes().startswith(b"\x89PNG")


def test_demo_refuses_in_one_sentence(tmp_path: Path) -> None:
    done = run("demo_digits.py", "--out", str(tmp_path / "demo"), "--epsilon", "0.001")
    assert done.returncode == 1
    assert "700 calibration units cannot prove epsilon=0.001" in done.stderr
    assert "Traceback" not in done.stderr
