"""The script that forecasts tokens runs as it is, on data it makes itself."""

from __future__ import annotations

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


def test_tokens_are_forecast_for_files_kept_out_of_the_training(tmp_path: Path) -> None:
    done = run("token_logits.py", "--smoke-test", "--out", str(tmp_path / "tokens.npz"))
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "tokens.npz") as arrays:
        logits, labels, ids = arrays["logits"], arrays["labels"], arrays["ids"]
    assert logits.shape == (len(labels), 100)
    assert len(set(ids)) == len(labels) >= 200
    often = np.bincount(labels).max() / len(labels)
    assert (logits.argmax(axis=1) == labels).mean() > often - 0.05, "it has learnt at least the commonest"
