"""Images in every layout, from `pac run imagenet` to stored logits and to sets for new images."""

from __future__ import annotations

import csv
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from pac_program import load, refused
from pac_program import run as pac
from PIL import Image
from toy_classifier import onnx_means
from toy_layouts import as_parquet, as_tars
from toy_runs import files

from pac_core import PACError, PACLevel, read_certificate, split
from pac_core.runs import RunFolder, run_here
from pac_core.thresholds import fit_threshold
from pac_vision import find_images
from pac_vision.images import Images
from pac_vision.tasks import image_task, list_packages

pytestmark = pytest.mark.xdist_group("ray")  # one Ray at a time

MODEL = "python:toy_classifier:bright"
SIZES = ["--tune", 20, "--calibrate", 40, "--temperature"]
LEVEL = ["--epsilon", 0.2, "--delta", 0.1]  # 40 units allow 4 errors


@pytest.fixture(scope="session")
def shades(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eighty grey images of two classes that overlap."""
    rng, root = np.random.default_rng(0), tmp_path_factory.mktemp("shades")
    for label in range(2):
        (root / str(label)).mkdir()
        for i in range(40):
            shade = np.full((20, 20, 3), 90 + 70 * label + rng.integers(-60, 60), dtype=np.uint8)
            Image.fromarray(shade).save(root / str(label) / f"{i:02d}.png")
    return root


def run(images: Path, folder: Path, *more: object) -> Result:
    """A run with a ledger of its own, because the tests share their images."""
    asked = ["run", "imagenet", "--images", images, "--model", MODEL, "--folder", folder, *SIZES]
    return pac(*asked, "--address", "none", "--ledger", folder.parent / "ledger", *more)


@pytest.fixture(scope="session")
def finished(shades: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with a certificate."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    answer = run(shades, folder, *LEVEL)
    assert answer.exit_code == 0, answer.output
    return folder


def certificate(folder: Path) -> Path:
    return folder / "certificate-0.2-0.1.json"


def damaged(shades: Path, place: Path, part: str, count: int) -> Images:
    """A copy of the images in which so many of a part are cut off."""
    shutil.copytree(shades, place)
    found = find_images(place)
    chosen = getattr(split(found.ids, tune=20, calibrate=40, seed=0), part).rows[:count]
    for name in found.ids[chosen]:
        (place / name).write_bytes((place / name).read_bytes()[:40])
    return found


ADDED = """
import zipfile
from dataclasses import dataclass
from pathlib import Path
import numpy as np
import toy_classifier
from pac_vision.images import Source
from pac_vision.images import read_label

@dataclass(frozen=True)
class Reader:
    folder: str
    def __call__(self, name):
        file, _, member = name.partition("/")
        with zipfile.ZipFile(Path(self.folder) / file) as archive:
            return archive.read(member)

def open_zips(folder, files):
    ids = sorted(f"{file}/{name}" for file in files for name in zipfile.ZipFile(folder / file).namelist())
    def label(file, classes):
        return [read_label(name.split("/")[1], classes, name) for name in ids], classes
    return Source(str(folder), np.array(ids), Reader(str(folder))), label

def short(folder, files):
    source, label = open_zips(folder, files)
    return source, lambda file, classes: ([0], None)

def make(kind="bright"):
    return getattr(toy_classifier, kind)()
"""
ENTRY_POINTS = """
[pac_sets.image_sources]
zip = added_images:open_zips
cbz = added_images:short
[pac_sets.models]
ours = added_images:make
"""


@pytest.fixture
def zipped(shades: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The images in a zip, and a distribution on the path that adds zips and a model, as pip leaves it."""
    (tmp_path / "added_images.py").write_text(ADDED)
    info = tmp_path / "added_images-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: added-images\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "added_images", raising=False)
    (tmp_path / "data").mkdir()
    with zipfile.ZipFile(tmp_path / "data" / "images.zip", "w") as archive:
        for file in shades.rglob("*.png"):
            archive.write(file, file.relative_to(shades))
    return tmp_path / "data" / "images.zip"


@pytest.mark.usefixtures("no_engine")
def test_a_source_and_a_model_of_another_package_go_all_the_way(
    zipped: Path, finished: Path, shades: Path, tmp_path: Path
) -> None:
    assert find_images(zipped).labels.tolist() == find_images(shades).labels.tolist()
    answer = run(zipped, tmp_path / "run", *LEVEL, "--model", "ours")
    assert answer.exit_code == 0, answer.output
    made = certificate(tmp_path / "run")
    for folder, name in ((tmp_path / "run", "ours.npz"), (finished, "theirs.npz")):
        assert pac("logits", folder, "--out", tmp_path / name).exit_code == 0
    ours, theirs = load(tmp_path / "ours.npz"), load(tmp_path / "theirs.npz")
    np.testing.assert_array_equal(ours["logits"], theirs["logits"])
    out = tmp_path / "sets.csv"
    answer = pac("sets", made, "--images", zipped.parent, "--model", "ours:bright", "--out", out)
    assert answer.exit_code == 0, answer.output
    assert len(out.read_text().splitlines()) > 80
    answer = pac("sets", made, "--images", zipped, "--model", "ours:bright_too", "--out", tmp_path / "b.csv")
    refused(answer, "digest")
    refused(run(zipped, tmp_path / "c" / "run", "--model", "ours:dark"), "ours:dark failed: AttributeError")
    shutil.copy(zipped, tmp_path / "short.cbz")
    refused(run(tmp_path / "short.cbz", tmp_path / "d" / "run"), "must have a label per image, got 1 for 80")


@pytest.mark.usefixtures("engine")
def test_ray_reads_tars_and_parquet_as_this_process_does(shades: Path, tmp_path: Path) -> None:
    from cluster.engine import run as run_on_ray

    images = find_images(shades)
    tars, parquet = as_tars(images, tmp_path / "tars"), as_parquet(images, tmp_path / "p.parquet")
    for name, place in (("tar", tars), ("parquet", parquet)):
        sizes: Any = {"tune": 20, "calibrate": 40, "seed": 0}
        job = image_task(images=place, labels=None, model=MODEL, **sizes).job
        run_on_ray(job, RunFolder(tmp_path / name / "ray"), workers=(1, 1))
        run_here(job, RunFolder(tmp_path / name / "here"))
        assert files(tmp_path / name / "ray") == files(tmp_path / name / "here")


def test_a_worker_with_another_model_is_refused(
    shades: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of the user's that reads weights, which are others where a worker looks."""
    (tmp_path / "scaled_net.py").write_text(
        "import pathlib, torch, toy_classifier, pac_vision\n"
        "def make():\n"
        "    net = toy_classifier.Bright()\n"
        "    scale = float((pathlib.Path(__file__).parent / 'scale').read_text())\n"
        "    net.register_buffer('scale', torch.tensor(scale))\n"
        "    return pac_vision.Classifier.of('scaled', net, pac_vision.imagenet())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "scale").write_text("1")
    task = image_task(
        images=shades, labels=None, model="python:scaled_net:make", tune=20, calibrate=40, seed=0
    )
    (tmp_path / "scale").write_text("-1")
    with pytest.raises(PACError, match="must be the same model on every machine"):
        run_here(task.job, RunFolder(tmp_path / "run"))


def test_the_libraries_of_a_model_are_among_the_versions(shades: Path, tmp_path: Path) -> None:
    sizes: Any = {"tune": 20, "calibrate": 40, "seed": 0}
    assert {"torchvision", "timm", "onnxruntime"} <= set(
        image_task(images=shades, labels=None, model=MODEL, **sizes).job.describe()["versions"]
    )
    assert list_packages("torchvision:resnet18:r.pth")[3:] == ("torchvision",)


def test_replaced_images_are_noticed_and_mended_ones_allowed(shades: Path, tmp_path: Path) -> None:
    images, folder = tmp_path / "images", tmp_path / "a" / "run"
    shutil.copytree(shades, images)
    broken = images / "1" / "39.png"  # of the second shard
    whole = broken.read_bytes()
    broken.write_bytes(whole[:40])
    refused(run(images, folder), "39.png cannot be read as an image")
    broken.write_bytes(whole)
    replaced = images / "0" / "05.png"
    before = replaced.read_bytes()
    Image.new("RGB", (33, 20), (9, 80, 7)).save(replaced)
    refused(run(images, folder), "holds results of another 0/05.png than there is now")
    replaced.write_bytes(before)
    first = images / "0" / "00.png"
    before = first.read_bytes()
    first.write_bytes(before[:-1] + b"x")
    refused(run(images, folder), "holds results of another 0/00.png than there is now")
    first.write_bytes(before)
    answer = run(images, folder)
    assert answer.exit_code == 0, answer.output
    assert "64 of 80 images were finished already" in answer.output


@pytest.mark.usefixtures("no_engine")
def test_the_ledger_lies_beside_the_images_whatever_the_folder(shades: Path, tmp_path: Path) -> None:
    shutil.copytree(shades, tmp_path / "data" / "images")
    asked = ["run", "imagenet", "--images", tmp_path / "data" / "images", "--model", MODEL, *SIZES]
    asked += ["--address", "none"]
    first = pac(*asked, *LEVEL, "--folder", tmp_path / "a" / "run")
    assert first.exit_code == 0, first.output
    assert (tmp_path / "data" / "pac-ledger").exists()
    assert not (tmp_path / "a" / "pac-ledger").exists()
    other = [*asked, "--epsilon", 0.3, "--delta", 0.1, "--folder", tmp_path / "b" / "run"]
    refused(pac(*other), "a new certificate needs units never calibrated on")
    assert pac(*asked, "--folder", tmp_path / "b" / "run").exit_code == 0
    tuned = pac("tune", tmp_path / "b" / "run", "--epsilon", 0.3, "--delta", 0.1)
    refused(tuned, "a new certificate needs units never calibrated on")
    assert pac("logits", tmp_path / "b" / "run", "--out", tmp_path / "data" / "z.npz").exit_code == 0
    fitted = pac("fit", tmp_path / "data" / "z.npz", *SIZES, *other[-6:-2], "--out", tmp_path / "c.json")
    refused(fitted, "a new certificate needs units never calibrated on")


def test_broken_images_count_as_errors_of_their_part(shades: Path, finished: Path, tmp_path: Path) -> None:
    damaged(shades, tmp_path / "images", "calibrate", 3)
    stopped = run(tmp_path / "images", tmp_path / "a" / "run", *LEVEL)
    refused(stopped, ".png cannot be read as an image")
    answer = run(tmp_path / "images", tmp_path / "a" / "run", *LEVEL, "--broken", "miss")  # goes on
    assert answer.exit_code == 0, answer.output
    assert "3 of 80 images are broken: 0 to tune on are not used, 3 to calibrate on" in answer.output
    assert len((tmp_path / "a" / "run" / "broken.txt").read_text().splitlines()) == 3
    scores = np.array(pq.read_table(finished / "scores.parquet")["score"])
    ids = pq.read_table(finished / "scores.parquet")["id"].to_pylist()
    broken = (tmp_path / "a" / "run" / "broken.txt").read_text().split()
    scores[np.isin(ids, broken)] = np.inf
    found = read_certificate(certificate(tmp_path / "a" / "run")).predictor.threshold
    assert found == fit_threshold(scores, PACLevel(0.2, 0.1))
    assert found.value > read_certificate(certificate(finished)).predictor.threshold.value


def test_broken_images_of_the_other_parts(shades: Path, finished: Path, tmp_path: Path) -> None:
    damaged(shades, tmp_path / "test", "test", 20)
    answer = run(tmp_path / "test", tmp_path / "a" / "run", *LEVEL, "--broken", "miss")
    assert answer.exit_code == 0, answer.output
    assert "error at most 0.2: refuted by 20 test units (measured 1.0000" in answer.output
    assert "mean size 0" in answer.output
    damaged(shades, tmp_path / "tune", "tune", 6)
    answer = run(tmp_path / "tune", tmp_path / "b" / "run", *LEVEL, "--broken", "miss")
    assert answer.exit_code == 0, answer.output
    score: Any = read_certificate(certificate(tmp_path / "b" / "run")).predictor.score
    assert score.temperature.n == 14
    damaged(shades, tmp_path / "all", "tune", 20)
    answer = run(tmp_path / "all", tmp_path / "c" / "run", *LEVEL, "--broken", "miss")
    refused(answer, "top-1     not known", "tune must have a unit that did not fail, got 20 that did")


def test_more_broken_images_than_errors_allowed_are_refused(shades: Path, tmp_path: Path) -> None:
    damaged(shades, tmp_path / "images", "calibrate", 5)
    answer = run(tmp_path / "images", tmp_path / "a" / "run", *LEVEL, "--broken", "miss")
    refused(answer, "5 of 40 calibration units failed (score +inf) but the level allows 4 errors")
    assert "5 to calibrate on" in answer.output


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_stored_logits_make_the_same_certificate(finished: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"logits.{ending}"
    assert pac("logits", finished, "--out", out).exit_code == 0
    refused(pac("logits", finished, "--out", out), "--out must be new")
    made = pac("fit", out, *LEVEL, *SIZES, "--out", tmp_path / "c.json", "--unit", "image")
    assert made.exit_code == 0, made.output
    one, other = read_certificate(certificate(finished)), read_certificate(tmp_path / "c.json")
    assert one.predictor.threshold == other.predictor.threshold
    assert one.model == other.model
    assert one.parts["calibrate"].digest == other.parts["calibrate"].digest
    tested = pac("evaluate", certificate(finished), out)
    assert "20 units; 60 tuned or calibrated on are left out" in tested.output
    assert len(pac("sets", certificate(finished), out).output.splitlines()) == 81
    twice = pac("fit", out, *LEVEL, *SIZES, "--model-file", out, "--out", tmp_path / "d.json")
    refused(twice, "--model-file must not be given")


def test_sets_for_new_images_by_name(shades: Path, finished: Path, tmp_path: Path) -> None:
    new = tmp_path / "new" / "deep"
    shutil.copytree(shades / "0", new)
    (tmp_path / "new" / "notes.txt").write_text("")
    (tmp_path / "names.txt").write_text("dark\nbright\n")
    asked = ["--images", tmp_path / "new", "--model", MODEL]
    named = ["--classes", tmp_path / "names.txt", "--out", tmp_path / "s.csv"]
    answer = pac("sets", certificate(finished), *asked, *named)
    assert answer.exit_code == 0, answer.output
    assert "left out, because no images: 1 in all, first notes.txt" in answer.output
    assert "probability at most 0.2, with confidence 1 - 0.1" in answer.output
    lines = list(csv.DictReader((tmp_path / "s.csv").read_text().splitlines()))
    stored = tmp_path / "z.npz"
    assert pac("logits", finished, "--out", stored).exit_code == 0
    plain = list(csv.DictReader(pac("sets", certificate(finished), stored).output.splitlines()))
    words = {"0": "dark", "1": "bright"}
    for line, other in zip(lines, plain[:40], strict=True):
        assert line["id"] == other["id"].replace("0/", "deep/", 1)
        assert line["labels"] == "; ".join(words[label] for label in other["labels"].split())
        assert int(line["size"]) == len(other["labels"].split())
    assert {line["labels"] for line in lines} >= {"dark", "bright; dark"}  # the most likely first
    out = ["--out", tmp_path / "s.npz"]
    assert pac("sets", certificate(finished), *asked, *out).exit_code == 0
    member = load(tmp_path / "s.npz")["member"]
    assert member.sum(axis=1).tolist() == [int(line["size"]) for line in lines]


def test_odd_files_do_not_lose_the_sets_of_the_others(shades: Path, finished: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("b.png", "f.png"):
        shutil.copy(shades / "0" / "01.png", photos / name)
    asked = ["sets", certificate(finished), "--images", photos, "--model", MODEL]
    alone = pac(*asked).output.splitlines()
    (photos / "a.png").write_bytes((shades / "0" / "00.png").read_bytes()[:40])
    Image.new("F", (20, 20)).save(photos / "c.tif")
    (photos / "d.png").symlink_to(tmp_path / "nowhere.png")
    Image.new("RGB", (1, 1)).save(photos / "e.png")
    answer = pac(*asked)
    assert answer.exit_code == 0, answer.output
    lines = answer.stdout.splitlines()
    assert lines == [alone[0], "a.png,0,", alone[1], "c.tif,0,", "d.png,0,", "e.png,0,", alone[2]]
    assert "images without a forecast: 4; their sets are empty and count as misses" in answer.stderr
    for said in ("a.png cannot be read", "got mode F", "d.png cannot be read", "e.png cannot be used"):
        assert said in answer.stderr
    assert pac(*asked, "--out", tmp_path / "s.npz").exit_code == 0
    stored = load(tmp_path / "s.npz")
    assert stored["failed"].tolist() == [True, False, True, True, True, False]
    assert not stored["member"][stored["failed"]].any()
    refused(pac(*asked, "--broken", "error"), "a.png cannot be read as an image")
    refused(pac(*asked, "--broken", "error", "--out", tmp_path / "s.csv"), "a.png cannot be read as an image")
    assert not list(tmp_path.glob("s.csv*"))  # nothing is left half written


def test_a_model_that_does_not_say_how_images_go_in(shades: Path, tmp_path: Path) -> None:
    bare = "python:toy_classifier:bare"
    images = ["--images", shades, "--model", bare]
    asked = ["run", "imagenet", *images, *SIZES, *LEVEL, "--address", "none", "--ledger", tmp_path / "l.json"]
    folder = tmp_path / "run"
    refused(pac(*asked, "--folder", folder), "must be stated by --preset", "got no --size, --crop")
    assert not folder.exists()
    stated = ["--preset", "imagenet", "--size", 32, "--crop", "whole"]
    answer = pac(*asked, *stated, "--folder", folder)
    assert answer.exit_code == 0, answer.output
    refused(pac(*asked, *stated[:4], "--folder", folder), "another")  # a resume with another crop
    known = read_certificate(certificate(folder)).model
    assert known.name.startswith(f"{bare} with size=32 crop=whole mean=0.485,0.456,0.406 ")
    sets = ["sets", certificate(folder), *images]
    served = pac(*sets)
    assert served.exit_code == 0, served.output
    assert pac(*sets, *stated).stdout == served.stdout
    refused(pac(*sets, *stated[:4]), "it says nothing about another model")
    refused(pac(*sets[:-1], MODEL, *stated), "brings its own preprocessing")
    assert pac("logits", folder, "--out", tmp_path / "z.npz").exit_code == 0
    fitted = ["fit", tmp_path / "z.npz", *SIZES, *LEVEL, "--ledger", tmp_path / "other.json"]
    assert pac(*fitted, "--out", tmp_path / "c.json").exit_code == 0
    assert pac("sets", tmp_path / "c.json", *images).stdout == served.stdout


def test_an_onnx_file_from_run_to_sets(shades: Path, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(onnx_means(side=16, batch=3, layout="NHWC", softmax=True))
    images = ["--images", shades, "--model", f"onnx:{tmp_path / 'net.onnx'}"]
    asked = ["run", "imagenet", *images, *SIZES, *LEVEL, "--address", "none", "--ledger", tmp_path / "l.json"]
    asked += ["--folder", tmp_path / "run", "--preset", "caffe"]
    refused(pac(*asked, "--batch", 2), "batch must be 3")
    answer = pac(*asked)
    assert answer.exit_code == 0, answer.output
    served = pac("sets", certificate(tmp_path / "run"), *images)
    assert served.exit_code == 0, served.output
    assert len(served.stdout.splitlines()) == 81


def test_the_accuracy_on_the_tune_part_is_said_and_doubted(shades: Path, tmp_path: Path) -> None:
    answer = run(shades, tmp_path / "a" / "run")  # without a level, too
    assert answer.exit_code == 0, answer.output
    assert "top-1     accuracy 0." in answer.output
    assert "SUSPICIOUSLY" not in answer.output
    for label in "01":
        shutil.copytree(shades / label, tmp_path / "swapped" / str(1 - int(label)))
    answer = run(tmp_path / "swapped", tmp_path / "b" / "run", *LEVEL, "--no-temperature")
    assert answer.exit_code == 0, answer.output
    before, _, after = answer.output.partition("SUSPICIOUSLY LOW for 2 classes")
    assert "calibrate " in after  # it is said before the calibrate part is opened
    assert "calibrate " not in before
    answer = run(shades, tmp_path / "c" / "run", "--tune", 0)
    assert "top-1     not known, because there are no images to tune on" in answer.output


def test_what_cannot_be_served_is_refused(shades: Path, finished: Path, tmp_path: Path) -> None:
    sets = ["sets", certificate(finished)]
    images = ["--images", shades]
    other = "python:toy_classifier:bright_too"
    refused(pac(*sets, *images, "--model", other), "it says nothing about another model")
    refused(pac(*sets, *images), "--images needs --model")
    refused(pac(*sets, *images, "--model", MODEL, "--logits", "z"), "--logits is for DATA")
    refused(pac(*sets, finished / "x.npz", "--preset", "clip"), "--preset to --resampling are for --images")
    refused(pac(*sets, *images, "--model", "resnet"), "a model must be named as one of")
    refused(pac(*sets), "give DATA or --images, got neither")
    refused(pac(*sets, finished / "x.npz", *images, "--model", MODEL), "give DATA or --images, got both")
    refused(pac("sets", *images, "--model", MODEL), "Missing argument 'CERTIFICATE'")
    (tmp_path / "names.txt").write_text("dark\ngrey\nbright\n")
    named = ["--classes", tmp_path / "names.txt"]
    refused(pac(*sets, *images, "--model", MODEL, *named), "--classes must name 2 labels, got 3")
    refused(pac("logits", shades, "--out", tmp_path / "x.npz"), "must be the folder of a finished `pac run`")
    refused(pac("logits", finished, "--out", tmp_path / "x.csv"), "--out must end in .npz or .parquet")
    bare = tmp_path / "scores.npz"
    np.savez(bare, scores=np.arange(100.0))
    assert pac("fit", bare, *LEVEL, "--out", tmp_path / "c.json").exit_code == 0
    answer = pac("sets", tmp_path / "c.json", *images, "--model", MODEL)
    refused(answer, "the certificate must be for labels to make sets for images")


def test_runs_that_could_not_end_well_are_refused_before_they_begin(shades: Path, tmp_path: Path) -> None:
    inside = shades / "run"
    refused(run(shades, inside, *LEVEL), "--folder must lie outside --images")
    refused(run(shades, tmp_path / "run", *LEVEL, "--tune", 0), "--tune must be above 0 to fit --score paper")
    refused(run(shades, tmp_path / "run", *LEVEL, "--cpus", 0), "--cpus")
    refused(
        run(shades, tmp_path / "run", *LEVEL, "--labels", tmp_path / "no.txt"), "there is no file of labels"
    )
    assert not inside.exists()
    assert not (tmp_path / "run").exists()
