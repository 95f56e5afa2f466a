"""Runs the benchmarks, prints a table and writes benchmarks/results.json.

    python -m benchmarks [name ...]

Contenders take turns in one process and each counts with its best round, because the machine may
be shared and noisy. A figure is a ratio; seconds are shown for orientation.
"""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks import core, engine, guard, label_sizes, ledger, monitor, rl, vision
from benchmarks.figures import Figure

ALL = core.ALL | rl.ALL | guard.ALL | monitor.ALL | engine.ALL | ledger.ALL | vision.ALL | label_sizes.ALL
RESULTS = Path(__file__).parent / "results.json"


def main(only: list[str]) -> int:
    unknown = set(only) - set(ALL)
    if unknown:
        print(f"no benchmark is named {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
        return 2
    # Figures of the others stay as they were; a run of all leaves none behind that nothing writes any more.
    earlier = json.loads(RESULTS.read_text())["figures"] if only and RESULTS.exists() else []
    figures: dict[str, Figure] = {row["name"]: Figure(**row) for row in earlier}
    for name in only or ALL:
        print(f"running {name} ...", flush=True)
        for figure in ALL[name]():
            figures[figure.name] = figure
            print(f"  {figure}", flush=True)
    machine = {"cpu": platform.machine(), "python": platform.python_version(), "numpy": np.__version__}
    document = {"machine": machine, "figures": [asdict(figure) for figure in figures.values()]}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    print(f"wrote {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
