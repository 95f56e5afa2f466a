"""A file of logits with ids, and the certificate that `pac fit` makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pac_program import LEVEL, SPLIT, run


@pytest.fixture
def logits(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    z = (rng.normal(size=(1000, 6)) * 2).astype(np.float32)
    labels = (0.7 * z + rng.gumbel(size=z.shape)).argmax(axis=1)
    path = tmp_path / "logits.npz"
    np.savez(path, logits=z, labels=labels, ids=[f"image-{i}" for i in range(1000)])
    return path


@pytest.fixture
def certificate(logits: Path) -> Path:
    path = logits.parent / "certificate.json"
    assert (
        run("fit", logits, *LEVEL, *SPLIT, "--unit", "image", "--score", "paper", "--out", path).exit_code
        == 0
    )
    return path
