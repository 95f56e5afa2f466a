"""The scripts about label scores run as they are, on data they make themselves."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(ROOT / "scripts" / script), *arguments]
    clean = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean)


def test_scores_are_compared_at_equal_levels(tmp_path: Path) -> None:
    done = run("label_scores.py", "--smoke-test", "--out", str(tmp_path), "--level", "0.1", "1e-3")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "label_scores.csv").open(newline="") as file:
        rows = {row["score"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["D", "C+D", "ours", "RAPS", "SAPS"]
    assert float(rows["C+D"]["of_paper"]) == 1
    assert all(1 <= float(row["size"]) <= 80 for row in rows.values())
    # At delta = 1e-3 the share of 600 calibration labels above T is below 0.1 with room to spare.
    assert all(float(row["error"]) < 0.1 for row in rows.values())
    assert (tmp_path / "label_scores.png").read_bytes().startswith(b"\x89PNG")
    few = run("label_scores.py", "--smoke-test", "--out", str(tmp_path), "--level", "0.001", "1e-5")
    assert (few.returncode, few.stderr) == (1, "Error: no level is left\n")
    assert "600 units cannot prove it" in few.stdout


def test_tokens_are_forecast_for_files_kept_out_of_the_training(tmp_path: Path) -> None:
    done = run("token_logits.py", "--smoke-test", "--out", str(tmp_path / "tokens.npz"))
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "tokens.npz") as arrays:
        logits, labels, ids = arrays["logits"], arrays["labels"], arrays["ids"]
    assert logits.shape == (len(labels), 100)
    assert len(set(ids)) == len(labels) >= 200
    often = np.bincount(labels).max() / len(labels)
    assert (logits.argmax(axis=1) == labels).mean() > often - 0.05, "it has learnt at least the commonest"
