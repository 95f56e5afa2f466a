"""Files of version 0.1.0 as it wrote them: read today, and computed again, they give the same digits."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pac_program import run as pac

from pac_core import PACLevel, SecondLook, read_certificate
from pac_core.certificates import read_descent, read_family, verify_descent
from pac_core.runs import RunFolder, Task, certify_run, run_here
from pac_rl.tasks import rl_task

GOLDEN = Path(__file__).parent / "golden"
PATHS = "d135bd3412d2"
"""Of the machine that wrote the files: how its numpy rounds."""
LEVELS = {
    "rl": (PACLevel(0.2, 0.1), PACLevel(0.3, 0.1)),
    "imagenet": (PACLevel(0.2, 0.1), PACLevel(0.3, 0.1)),
    "otb": (PACLevel(0.3, 0.1),),
}


def same(ours: Any, theirs: Any) -> None:
    """To the last bit where numpy rounds as it did there; to five digits on another CPU."""
    probe = np.linspace(-9, 9.1, 9999)
    bits = np.exp(probe.astype(np.float32)).tobytes() + np.log(probe**2).tobytes() + np.exp(probe).tobytes()
    here = hashlib.sha256(bits + (probe.reshape(99, 101) @ probe.reshape(101, 99)).tobytes()).hexdigest()
    np.testing.assert_allclose(ours, theirs, rtol=0 if here.startswith(PATHS) else 1e-5, atol=0)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("certificate-*.json"))


@pytest.fixture(params=LEVELS)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a finished run folder."""
    shutil.copytree(GOLDEN / request.param, tmp_path / request.param)
    return tmp_path / request.param


def test_a_run_folder_is_certified_anew_with_the_same_digits(stored: Path, tmp_path: Path) -> None:
    for file in files(stored):
        file.unlink()
    (stored / "scores.parquet").unlink()
    folder = RunFolder(stored)
    certify_run(Task.read(folder), folder, LEVELS[stored.name], tmp_path / "fresh-ledger")
    for theirs in files(GOLDEN / stored.name):
        before, after = (read_certificate(folder) for folder in (theirs, stored / theirs.name))
        same(after.predictor.threshold.value, before.predictor.threshold.value)
        assert after.predictor.threshold.errors == before.predictor.threshold.errors
        assert (after.parts, after.unit, after.model) == (before.parts, before.unit, before.model)
        old, new = (json.loads(path.read_text())["score"] for path in (theirs, stored / theirs.name))
        assert old.keys() == new.keys()
        same(new.get("scale", 0), old.get("scale", 0))


def test_certificates_verify_and_a_second_look_is_refused(stored: Path) -> None:
    for file in files(stored):
        answer = pac("verify", file, stored / "scores.parquet", "--ledger", stored / "pac-ledger.json")
        assert answer.exit_code == 0, answer.output
    folder, others = RunFolder(stored), [PACLevel(0.25, 0.1)]
    with pytest.raises(SecondLook):
        certify_run(Task.read(folder), folder, others, stored / "pac-ledger.json")


def test_rollouts_and_forecasts_have_the_same_bits(tmp_path: Path) -> None:
    from pac_rl.policies import SHIPPED

    sizes: Any = {"tune": 60, "calibrate": 50, "test": 30, "seed": 0, "horizon": 3, "burn_in": (0, 20)}
    model: Any = {"ensemble": GOLDEN / "rl/ensemble.safetensors", "propagation": "particles", "members": ()}
    task = rl_task(env="HalfCheetah-v5", policy=SHIPPED, **model, **sizes)
    run_here(task.job, RunFolder(tmp_path / "run"))
    was, now = RunFolder(GOLDEN / "rl"), RunFolder(tmp_path / "run")
    [(_, before)] = was.over(Task.read(was).job.shards, lambda shard, arrays: arrays)
    [(_, after)] = now.over(task.job.shards, lambda shard, arrays: arrays)
    assert before.keys() == after.keys()
    for name in before:
        same(after[name], before[name])
    assert Task.read(was).names.tolist() == task.names.tolist()


def test_a_descent_follows_from_its_ledger() -> None:
    found = read_descent(GOLDEN / "descent/descent.json")
    assert (found.certified, [trial.errors for trial in found.trials]) == (1.0, [0, 0, 1])
    assert all(check.holds for check in verify_descent(found, GOLDEN / "descent/pac-ledger.json"))
    family = read_family(GOLDEN / "descent/pac-ledger.json")
    assert (family.attempts, family.cost, family.budget) == (1, 0.01, 0.05)
