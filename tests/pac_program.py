"""How the tests run the program `pac`."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pac_core.cli import main

LEVEL = ["--epsilon", "0.1", "--delta", "0.01"]
SPLIT = ["--tune", "200", "--calibrate", "400"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def on_another_cpu(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Python with these arguments, where numpy and BLAS run as on an older CPU; skips if they cannot."""
    newer, differs = _other_path()
    if not differs:
        pytest.skip(f"numpy's float32 exp has one code path here (features found: {newer or 'none'})")
    env = os.environ | {"NPY_DISABLE_CPU_FEATURES": newer, "OPENBLAS_CORETYPE": "Nehalem"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@cache
def _other_path() -> tuple[str, bool]:
    """The features to disable, and whether float32 exp really differs without them."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    newer = " ".join(name for name in __cpu_dispatch__ if __cpu_features__.get(name))
    probe = "import numpy as np; print(np.exp(np.linspace(-9, 9, 9999, dtype=np.float32)).tobytes().hex())"
    env = os.environ | {"NPY_DISABLE_CPU_FEATURES": newer}
    there = subprocess.run([sys.executable, "-c", probe], env=env, capture_output=True, text=True, check=True)
    here = np.exp(np.linspace(-9, 9, 9999, dtype=np.float32)).tobytes().hex()
    return newer, here != there.stdout.strip()


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def refused(result: Result, *words: str) -> None:
    """One sentence, exit code 2, no traceback."""
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.output
