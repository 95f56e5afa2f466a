"""A ledger of 10^7 units: its size on disk, and time and memory of looking units up in it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, peak, within

LOOKS, UNITS, ASKED = 10, 1_000_000, 100_000


def ledger() -> Iterator[Figure]:
    """10 looks at 1,000,000 units each, and 100,000 new ids that are looked up among them."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "benchmarks.ledger"]
        subprocess.run([*command, "write", place], check=True)
        size = sum(path.stat().st_size for path in (Path(place) / "pac-ledger").iterdir())
        note = f"{LOOKS} looks at {UNITS:,} units each"
        yield within("ledger: size on disk", size / 1e6, 100.0, "MB", "<= 1", note)
        done = subprocess.run([*command, "read", place], check=True, capture_output=True, text=True)
    seconds, wall, most = map(float, done.stdout.split())
    note = f"{ASKED:,} ids among {LOOKS * UNITS:,}, hashes and digests included; {wall:.2g} s by the clock"
    yield within("ledger: look-up, processor time", seconds, 1.0, "s", "<= 1", note)
    yield within("ledger: memory of a look-up", most / 1e6, 100.0, "MB", "<= 1", "beyond the program's own")


def _write(path: Path) -> None:
    from pac_core.bounds import Entry
    from pac_core.certificates import Opening, open_split

    for look in range(LOOKS):
        ids = range(look * UNITS, (look + 1) * UNITS)
        open_split(path, Opening.of(ids, [Entry("score", 0.01, 1e-5)], "data"))


def _read(path: Path) -> None:
    """Prints the seconds of the best of five look-ups, by processor and clock, and their memory."""
    from pac_core import PACLevel
    from pac_core.certificates.ledger import refuse_spent

    ids = [f"new-{i}" for i in range(ASKED)]
    before, used, waited = peak(), [], []
    for _ in range(5):
        clocks = time.process_time(), time.perf_counter()
        refuse_spent(path, ids, [PACLevel(0.01, 1e-5)])
        used.append(time.process_time() - clocks[0])
        waited.append(time.perf_counter() - clocks[1])
    print(min(used), min(waited), peak() - before)


ALL = {"ledger": ledger}

if __name__ == "__main__":
    {"write": _write, "read": _read}[sys.argv[1]](Path(sys.argv[2]) / "pac-ledger")
