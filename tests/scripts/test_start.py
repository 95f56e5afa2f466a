"""Every script starts as a user starts it, without the path of the tests."""

from __future__ import annotations

import subprocess
import sys

from script_runs import ROOT

# One process for all of them, because it is torch that takes seconds to import.
START = """
import runpy, sys
plain = list(sys.path)
for name in sys.argv[1:]:
    sys.path[:], sys.argv[:] = plain, [name, "--help"]
    runpy.run_path(f"scripts/{name}/__main__.py", run_name="__main__")
"""


def test_every_script_starts_and_says_what_it_is_for() -> None:
    names = sorted(path.parent.name for path in ROOT.glob("scripts/*/__main__.py"))
    assert len(names) == 5
    command = [sys.executable, "-W", "error", "-c", START, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == 5
