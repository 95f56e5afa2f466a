"""How the tests run the program `pac`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from pac_core.cli import main

LEVEL = ["--epsilon", "0.1", "--delta", "0.01"]
SPLIT = ["--tune", "200", "--calibrate", "400"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


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
