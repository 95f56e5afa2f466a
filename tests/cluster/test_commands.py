"""The program: `pac run` and `pac tune` on real rollouts, images and tracks; stopped, resumed, refused."""

from __future__ import annotations

import csv
import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pac_program import refused
from pac_program import run as pac
from PIL import Image

from pac_core import InvalidInput, read_certificate
from pac_core.certificates import read_descent
from pac_core.datasets import file_digest
from pac_core.splits import ids_digest
from pac_rl import Ensemble, Settings, Transitions, load_guard, load_policy, make_environment, simulate, train
from pac_rl.policies import SHIPPED
from pac_rl.tasks import rl_task

pytestmark = pytest.mark.xdist_group("ray")  # one Ray at a time

LEVEL = ["--epsilon", "0.1", "--delta", "0.05"]
PATIENCE = 1200.0


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ensemble, really trained."""
    seen = simulate(make_environment(), load_policy(), np.arange(20) + 10**9, horizon=60, burn_in=(0, 0))
    small = Settings(members=3, hidden=16, layers=2, epochs=2, batch=128)
    path = tmp_path_factory.mktemp("ensemble") / "ensemble.safetensors"
    train(Transitions.of(seen), "HalfCheetah-v5", small).save(path)
    return path


def rl(ensemble: Path, folder: Path | str, *more: object, units: int = 700) -> list[str]:
    """A run of rollouts that takes a few seconds."""
    quick = ["--horizon", 3, "--burn-in", 0, 5, "--propagation", "one-step", "--seed", 4]
    sizes = ["--tune", 300, "--calibrate", 300, "--test", units]
    return [
        str(word) for word in ("run", "rl", "--ensemble", ensemble, "--folder", folder, *quick, *sizes, *more)
    ]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)


def shards(folder: Path) -> dict[str, float]:
    """Finished shards, and when they were written."""
    return {path.name: path.stat().st_mtime for path in (folder / "shards").glob("*.arrow")}


@pytest.mark.usefixtures("no_engine")
def test_ray_and_no_ray_give_the_same_certificate(ensemble: Path, tmp_path: Path) -> None:
    words = {}
    for address in ("none", "local"):
        answer = pac(*rl(ensemble, tmp_path / address / "run", *LEVEL, "--address", address))
        assert answer.exit_code == 0, answer.output
        words[address] = answer.output
    certificates = [
        (tmp_path / a / "run" / "certificate-0.1-0.05.json").read_bytes() for a in ("none", "local")
    ]
    assert certificates[0] == certificates[1]
    assert "estimate  a shard takes" in words["local"]
    assert re.search(r"logs in \S*/session_\S+/logs", words["local"])
    assert re.search(r"rl: 1,300 of 1,300 rollouts, \S+ a second, \d workers?, 0 retries", words["local"])
    assert "not refuted by 700 test units" in words["local"]


def test_rollouts_that_trained_the_ensemble_are_no_units(ensemble: Path, tmp_path: Path) -> None:
    """What it was trained on stands in its file or is stated; a certificate never pretends to know."""
    file, first, words = tmp_path / "other.safetensors", 8 * 10**9, [*LEVEL, "--address", "none"]

    def answer(seen: Any, folder: str, *more: str) -> Any:
        replace(Ensemble.load(ensemble), trained_on=seen).save(file)
        return pac(*rl(file, tmp_path / folder, *words, *more, units=1))

    refused(answer([first + 600, 7], "a"), "'train' and 'tune, calibrate or test' share 1 units")
    stated = ("--trained-on", f"{first - 9}..{first}")
    refused(answer(None, "b", *stated), "share 1 units")
    refused(answer(None, "c"), "does not say which rollouts the ensemble was trained on: give their seeds")
    refused(answer([7], "d", *stated), "--trained-on must not be given")
    for bad in ("7..x", "9..7", "-3", "0..99999999", "1..2..3", str(2**63)):
        refused(answer(None, "e", f"--trained-on={bad}"), "--trained-on must be")
    assert not list(tmp_path.glob("[a-e]")), "refused before anything is written"
    assert not (tmp_path / "pac-ledger").exists()
    for folder, more, known in (
        ("unknown", ("--trained-on", "unknown"), ("not named", None, None)),
        ("stated", ("--trained-on", "5", "--trained-on", "7..8"), (None, 3, ids_digest([5, 7, 8]))),
    ):
        made = answer(None, f"{folder}/run", *more)
        assert made.exit_code == 0, made.output
        train = read_certificate(tmp_path / folder / "run" / "certificate-0.1-0.05.json").parts["train"]
        assert (train.n, train.digest) == known[1:]
        assert train.name == (known[0] or "training rollouts, by seed or id")


@pytest.mark.parametrize("plans", ["candidates", "policy"])
def test_plans_are_run_and_guarded_by_what_was_certified(ensemble: Path, tmp_path: Path, plans: str) -> None:
    """From the program to a controller: tubes of plans, an episode certificate, and what acts."""
    folder, ledger, limit = tmp_path / "run", tmp_path / "pac-ledger", "forward velocity <= 3.2096"
    made = ["run", "rl", "--plans", plans, "--ensemble", ensemble, "--folder", folder, "--address", "none"]
    few = ["--horizon", 2, "--burn-in", 0, 5, "--tune", 40, "--calibrate", 60, "--test", 30, *LEVEL]
    answer = pac(*made, *few, "--shape", "features", "--feature", "forward velocity")
    assert answer.exit_code == 0, answer.output
    certificate = folder / "certificate-0.1-0.05.json"
    words = "whichever of the 21 candidates" if plans == "candidates" else "The set of a new rollout"
    assert words in read_certificate(certificate).promise
    if plans == "candidates":
        checked = pac("verify", certificate, folder / "scores.parquet", "--ledger", ledger)
        assert checked.exit_code == 0, checked.output
    guard = ["guard", folder, "--fallback", "hold", "--ensemble", ensemble, "--address", "none"]
    guard += ["--epsilon", 0.3, "--delta", 0.2, "--steps", 3, "--explore", 4, "--episodes", 8]
    refused(pac(*guard, "--limit", "speed <= 3"), "of forward velocity, rootz", "got 'speed <= 3'")
    shown = pac(*guard, "--limit", limit)
    assert shown.exit_code == 0, shown.output
    done = folder / "controller-3.json"
    assert pac("verify", done, "--ledger", ledger).exit_code == 0
    assert read_descent(done).certified == 0.4, "the narrowest: in three steps from rest nobody is too fast"
    read = load_guard(folder, model=ensemble)
    assert read.certificate.promise == read_certificate(certificate).promise
    acting = read.controller()
    assert acting.limits[0].bound == 3.2096  # type: ignore[attr-defined]
    assert acting.act(np.zeros(18)).shape == (6,)
    other = tmp_path / "other.safetensors"
    replace(Ensemble.load(ensemble), trained_on=None).save(other)
    with pytest.raises(InvalidInput, match="the model must be the certified one"):
        load_guard(folder, model=other)


def ppo(path: Path, *, normalised: bool) -> Path:
    """Laid out as Stable-Baselines3 saves PPO, where VecNormalize was used or was not."""
    weights = {"mlp_extractor.policy_net.0.weight": torch.zeros(4, 17), "log_std": torch.zeros(6)}
    weights |= {"mlp_extractor.policy_net.0.bias": torch.zeros(4), "action_net.weight": torch.zeros(6, 4)}
    stream, kept = io.BytesIO(), {":type:": "<class 'numpy.ndarray'>"}
    torch.save(weights | {"action_net.bias": torch.zeros(6)}, stream)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("policy.pth", stream.getvalue())
        original = kept if normalised else None
        archive.writestr("data", json.dumps({"_last_obs": kept, "_last_original_obs": original}))
    return path


def test_units_are_named_by_what_acts_and_not_by_what_is_stated(ensemble: Path, tmp_path: Path) -> None:
    """Else the ledger would take the same rollouts, once more, for others."""

    def known(policy: Path, **stated: Any) -> tuple[list[str], Any]:
        sizes: Any = {"tune": 100, "calibrate": 100, "test": 1, "seed": 4, "horizon": 3, "burn_in": (0, 5)}
        about: Any = {"env": "HalfCheetah-v5", "propagation": "one-step", "members": ()}
        task = rl_task(policy=policy, policy_std=0.1, ensemble=ensemble, **stated, **sizes, **about)
        return task.names.tolist(), task.job.configuration

    weights: Any = {"mu_w": np.zeros((6, 18)), "mu_b": np.zeros(6)}
    np.savez(tmp_path / "silent.npz", **weights)
    np.savez(tmp_path / "says.npz", **weights, sees="state")
    np.savez(tmp_path / "v.npz", mean=np.zeros(17), var=np.ones(17), clip=10.0, epsilon=1e-8)
    plain = ppo(tmp_path / "ppo.zip", normalised=False)
    assert known(SHIPPED) == known(SHIPPED, policy_sees="observation")
    assert known(tmp_path / "says.npz") == known(tmp_path / "says.npz", policy_sees="state")
    assert known(plain) == known(plain, vecnormalize="none", policy_sees="observation")
    normalised = known(plain, vecnormalize=str(tmp_path / "v.npz"))
    assert normalised == known(plain, vecnormalize=str(tmp_path / "v.npz"), policy_sees="observation")
    assert normalised[0] != known(plain)[0]
    by_file = f"HalfCheetah-v5/{file_digest(tmp_path / 'silent.npz')[:12]}/"
    assert not known(tmp_path / "silent.npz", policy_sees="state")[0][0].startswith(by_file)


def test_a_zip_is_run_with_its_statistics_and_shows_what_it_earns(ensemble: Path, tmp_path: Path) -> None:
    """Other statistics, other units."""
    ppo(tmp_path / "ppo.zip", normalised=True)
    np.savez(tmp_path / "v.npz", mean=np.zeros(17), var=np.ones(17), clip=10.0, epsilon=1e-8)
    asked = ["--address", "none", "--policy", tmp_path / "ppo.zip"]
    refused(pac(*rl(ensemble, tmp_path / "a", *asked, units=1)), "it was trained with VecNormalize")
    for bad, said in (
        (["--vecnormalize", tmp_path / "v.pkl"], "must be an npz of mean"),
        (["--policy-sees", "x"], "x"),
    ):
        refused(pac(*rl(ensemble, tmp_path / "a", *asked, *bad, units=1)), said)
    assert not (tmp_path / "a").exists()
    units = []
    for folder, given in (("b", tmp_path / "v.npz"), ("c", "none")):
        answer = pac(*rl(ensemble, tmp_path / folder, *asked, "--vecnormalize", given, units=1))
        assert answer.exit_code == 0, answer.output
        assert re.search(
            r"policy +mean return -?[\d,]+ \(.*\) in 3 episodes of HalfCheetah-v5", answer.output
        )
        units.append((tmp_path / folder / "units.arrow").read_bytes())
    assert units[0] != units[1]


def test_a_killed_driver_goes_on_where_it_stopped(ensemble: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "pac_core", *rl(ensemble, folder, "--workers", 1, *LEVEL, units=5000)]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (folder / "shards").exists() and len(shards(folder)) >= 2)
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    kept = shards(folder)
    assert 2 <= len(kept) < 11, "it was killed in the middle"
    answer = pac(*rl(ensemble, folder, "--address", "none", *LEVEL, units=5000))
    assert answer.exit_code == 0, answer.output
    assert "were finished already" in answer.output
    assert {name: when for name, when in shards(folder).items() if name in kept} == kept, "nothing twice"
    whole = tmp_path / "whole" / "run"
    assert pac(*rl(ensemble, whole, "--address", "none", *LEVEL, units=5000)).exit_code == 0
    assert set(shards(folder)) == set(shards(whole))


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(ensemble: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "pac_core", *rl(ensemble, folder, "--workers", 1, units=9000)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(lambda: (folder / "shards").exists() and len(shards(folder)) >= 1)
    driver.send_signal(signal.SIGINT)
    said, _ = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 130, said
    assert "the same command goes on from there" in said
    assert "Traceback" not in said


def test_an_estimate_computes_one_shard_and_keeps_it(ensemble: Path, tmp_path: Path) -> None:
    answer = pac(*rl(ensemble, tmp_path / "run", "--address", "none", "--estimate", *LEVEL))
    assert answer.exit_code == 0, answer.output
    assert re.search(
        r"takes \d+\.\d s and \S+[MG]B of memory: 2 left, about \d+:\d+ on 1 worker; \S+[kM]B", answer.output
    )
    assert re.search(
        r"driver takes about \S+[MG]B of memory; \S+[MGT]B are free for the \S+[kM]B", answer.output
    )
    assert len(shards(tmp_path / "run")) == 1
    assert not (tmp_path / "pac-ledger").exists()
    asked = rl(ensemble, tmp_path / "run", "--address", "none")
    assert "nothing is left" not in pac(*asked, "--estimate").output
    assert "nothing is left to compute: all 3 shards" in pac(*asked, "--estimate").output


def test_a_run_that_the_disk_has_no_room_for_is_refused(
    ensemble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    answer = pac(*rl(ensemble, tmp_path / "run", "--address", "none"))
    refused(answer, "--folder must have room for another", "got 1.00kB free")
    assert len(shards(tmp_path / "run")) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--epsilon", "0.1"], "--epsilon and --delta go together"),
        ([*LEVEL, "--level", "0.1,0.1"], "by --level, or by --epsilon and --delta, got both"),
        (["--level", "0.001,1e-5"], "at least 11,508 are needed"),
        (["--workers", "4..2"], "MIN at most MAX"),
        (["--workers", "many"], "how many, or MIN..MAX"),
        (["--shape", "ball"], "shape must be one of joint, max, box, features, got 'ball'"),
        (["--shape", "smallest"], "shape must be one of joint, max, box, features, got 'smallest'"),
        (["--shape", "features"], "--shape features and --feature NAME=DIMENSION go together"),
        (["--shape", "features", "--feature", "speed=99"], "a dimension below 18, got 'speed=99'"),
        (["--address", "nowhere"], "--address must be local, auto, HOST:PORT"),
        (["--address", "foo:bar"], "--address must be local, auto, HOST:PORT"),
        (["--gpus", "-1"], "must be a part of one, as 0.5, or a whole number, got '-1'"),
        (["--gpus", "1.5", "--workers", "1..2"], "must be a part of one"),
        (["--propagation", "magic"], "propagation must be one of"),
        (["--policy", "nothing.npz"], "nothing.npz"),
        (["--members", "9"], "members must be 1 to 3, got 9"),
        (["--folder", "s3://me:word@bucket/x"], "without credentials"),
        (["--folder", "memory://run", *LEVEL], "--ledger must be given where the run folder is a URL"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    ensemble: Path, tmp_path: Path, more: list[str], said: str
) -> None:
    answer = pac(*rl(ensemble, tmp_path / "run", *more))
    refused(answer, said)
    assert not (tmp_path / "run" / "shards").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--epsilon", "0.1"], "--epsilon and --delta go together"),
        (["--epsilon", "0.001", "--delta", "1e-5", "--calibrate", "300"], "at least 11,508 are needed"),
        (["--propagation", "magic"], "propagation must be one of"),
        (["--env", "Nowhere-v0"], "must be what Gymnasium can make: Environment `Nowhere`"),
    ],
)
def test_nothing_is_trained_for_what_is_refused(tmp_path: Path, more: list[str], said: str) -> None:
    refused(pac("run", "rl", "--folder", tmp_path / "run", *more), said)
    assert not (tmp_path / "run" / "model").exists()


def test_ctrl_c_while_certifying_is_clean(
    ensemble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("cluster.commands.launch.certify_run", interrupted)
    answer = pac(*rl(ensemble, tmp_path / "run", "--address", "none", *LEVEL, units=1))
    assert answer.exit_code == 130
    assert "the same command goes on from there" in answer.output


@pytest.mark.usefixtures("no_engine")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ray Tune's open logs
def test_ctrl_c_between_trials_is_clean(
    ensemble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def stopping(name: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, total: os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("cluster.commands.tune.counted", stopping)
    assert pac(*rl(ensemble, tmp_path / "run", "--address", "none", units=1)).exit_code == 0
    answer = pac("tune", tmp_path / "run", *LEVEL, "--shape", "joint")
    code, said = answer.exit_code, answer.output
    del answer  # and with it, here and not in another test, the logs that Ray Tune had open
    gc.collect()
    assert code == 130, said
    assert "the same command goes on from there" in said
    assert not (tmp_path / "pac-ledger").exists()


def test_training_that_is_interrupted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **design: Any) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr("cluster.commands.rl.trained", interrupted)
    answer = pac("run", "rl", "--folder", tmp_path / "run")
    assert answer.exit_code == 130
    assert "the same command goes on from there" in answer.output


@pytest.mark.usefixtures("no_engine")
def test_images_and_tracks_run_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for label in range(2):
        (tmp_path / "images" / str(label)).mkdir(parents=True)
        for i in range(40):
            shade = np.full((20, 20, 3), 90 + 70 * label + rng.integers(-60, 60), dtype=np.uint8)
            Image.fromarray(shade).save(tmp_path / "images" / str(label) / f"{i}.png")
    images = ["run", "imagenet", "--images", tmp_path / "images", "--model", "python:toy_classifier:bright"]
    sizes = ["--tune", 20, "--calibrate", 40, "--epsilon", 0.2, "--delta", 0.1, "--address", "local"]
    answer = pac(*images, "--folder", tmp_path / "classified", *sizes)
    assert answer.exit_code == 0, answer.output
    assert "not refuted by 20 test units" in answer.output
    lengths = rng.integers(5, 15, size=60)
    truth = rng.uniform(10, 90, size=(lengths.sum(), 4))
    members = truth[:, None] + rng.normal(size=(lengths.sum(), 5, 4))
    names = np.array([f"video{i}" for i in range(60)])
    np.savez(tmp_path / "tracks.npz", sequence=names, length=lengths, truth=truth, members=members)
    tracks = ["run", "otb", "--tracks", tmp_path / "tracks.npz", "--folder", tmp_path / "tracked"]
    answer = pac(*tracks, "--calibrate", 40, "--epsilon", 0.2, "--delta", 0.1, "--address", "none")
    assert answer.exit_code == 0, answer.output
    assert re.search(r"\d of 20 sequences missed", answer.output)


def test_tune_writes_table_and_certificates(ensemble: Path, tmp_path: Path) -> None:
    assert pac(*rl(ensemble, tmp_path / "run", "--address", "none")).exit_code == 0
    levels = ["--level", "0.1,0.05", "--level", "0.2,0.06"]
    answer = pac("tune", tmp_path / "run", *levels, "--shape", "box", "--shape", "joint")
    assert answer.exit_code == 0, answer.output
    assert "2 certificates; joint failure probability < " in answer.output
    lines = (tmp_path / "run" / "tune.csv").read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("epsilon,delta,horizon,members,score,tune size,T,test error")
    table = answer.output[answer.output.index("epsilon  delta") :].splitlines()
    start = table[0].index("  T ") + 2
    for row, shown in zip(csv.DictReader(lines), table[1:3], strict=True):
        assert float(shown[start:].split()[0]) >= float(row["T"]), "T may be rounded up, never down"
    refused(pac("tune", tmp_path / "run"), "--epsilon and --delta must each be given, or --level")
    refused(pac("tune", tmp_path / "nowhere", *levels), "must be the folder of a finished `pac run`")
