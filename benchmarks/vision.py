"""Labels at the scale of ImageNet's validation set: the memory of the whole way, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, peak, within

IMAGES, CLASSES = 50_000, 1_000
TUNE, CALIBRATE = 10_000, 20_000


def labels() -> Iterator[Figure]:
    """50,000 x 1,000 float16 logits: file, choice of the score, threshold, sets, evaluation."""
    for score, goal in (("smallest", "<= 1"), ("paper", "<= 1")):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.vision", score], check=True, capture_output=True, text=True
        )
        most, seconds, size = map(float, done.stdout.split()[-3:])
        note = (
            f"{IMAGES:,} x {CLASSES:,} float16 from file to evaluation, mean size {size:.3g}; {seconds:.0f} s"
        )
        yield within(f"labels: memory, score {score}", most / 1e6, 2000.0, "MB", goal, note)


def draw(path: Path) -> None:
    """Logits of a classifier that is right three times in four, drawn in blocks, as an npz."""
    rng = np.random.default_rng(0)
    logits = np.empty((IMAGES, CLASSES), dtype=np.float16)
    truth = rng.integers(0, CLASSES, size=IMAGES)
    for start in range(0, IMAGES, 1000):
        block = rng.standard_normal((1000, CLASSES), dtype=np.float32) * np.float32(1.5)
        rows, mine = np.arange(1000), truth[start : start + 1000]
        block[rows, mine] += np.where(rng.random(1000) < 0.75, rng.uniform(4, 12, size=1000), 2)
        logits[start : start + 1000] = block
    np.savez(path, logits=logits, labels=truth)


def _whole_way(score: str) -> None:
    """Prints the peak memory of this process in bytes, the seconds it took, and the mean size."""
    from pac_core import PACLevel, certify, evaluate
    from pac_core.datasets import read_dataset
    from pac_core.fitting import score_fitter

    level = PACLevel(0.01, 1e-5)
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "logits.npz"
        subprocess.run([sys.executable, "-m", "benchmarks.vision", "draw", str(file)], check=True)
        start = time.perf_counter()
        units = read_dataset(file)
        made = certify(
            units.forecast,
            units.truth,
            level,
            ids=units.ids,
            tune=TUNE,
            calibrate=CALIBRATE,
            ledger=Path(place) / "ledger",
            fit=score_fitter(("labels",), score, calibrate=CALIBRATE),
            unit="image",
        )
        sets = made.certificates[0].predictor.sets(units.forecast)
        evaluate(sets, units.truth, level)  # of all images, so that no part is spared
    print(peak(), time.perf_counter() - start, sets.size().mean())


ALL = {"labels": labels}

if __name__ == "__main__":
    if sys.argv[1] == "draw":
        draw(Path(sys.argv[2]))
    else:
        _whole_way(sys.argv[1])
