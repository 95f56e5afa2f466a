"""The ImageNet experiment: one look, honest costs, the numbers of the tables, pictures, the whole command."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from common import ResultFolder
from imagenet import sets as compared
from imagenet.pictures import BY_SIZE, Case, find_cases, picture_table, spread_evenly, written_table
from imagenet.report import (
    ablation_rows,
    architecture_rows,
    baseline_rows,
    grid_cells,
    show_pictures,
)
from imagenet.sets import (
    OURS,
    PAPER,
    ClassResults,
    Levels,
    Predictions,
    compare_sets,
    fit_levels,
    read_predictions,
)
from pac_program import run as pac
from PIL import Image
from script_runs import run_here, smoke_test, table_in

from pac_core import (
    InvalidInput,
    LogitForecast,
    NotEnoughData,
    PACLevel,
    SecondLook,
    read_certificate,
    verify,
)
from pac_core.bounds import joint_failure_probability
from pac_core.certificates import Record, read_ledger
from pac_core.errors import TooManyFailures, UnreadableFile
from pac_core.evaluation import calibration_error
from pac_core.sets import Likelihood
from pac_core.thresholds import fit_threshold
from pac_vision import find_images

pytestmark = pytest.mark.xdist_group("imagenet_script")  # one run of it serves several tests
CLASSES = 6


def predictions(name: str = "net", *, units: int = 3000, seed: int = 0, sharp: float = 2.0) -> Predictions:
    """A classifier that is over-confident by the factor `sharp`, of images whose labels it nearly knows."""
    drawn = np.random.default_rng(7)
    true = 2 * drawn.normal(size=(units, CLASSES))
    labels = (true + drawn.gumbel(size=true.shape)).argmax(axis=1)
    blurred = true + np.random.default_rng(seed).normal(size=true.shape) * 0.2
    ids = np.array([f"{i:04}.png" for i in range(units)])
    return Predictions(
        name, ids, LogitForecast(sharp * blurred), labels, model=Record(name), data=Record(f"{name}.npz")
    )


LEVELS = Levels(PACLevel(0.1, 1e-3), (0.01, 0.1, 0.2), (0.1, 1e-3))


def compare(tmp_path: Path, *models: Predictions, levels: Levels = LEVELS, **parts: int) -> ClassResults:
    sizes = {"tune": 500, "calibrate": 600, "seed": 0} | parts
    return compare_sets(models or (predictions(),), levels, ledger=tmp_path / "ledger", **sizes)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


def two_models() -> tuple[Predictions, Predictions]:
    return predictions(), predictions("other", seed=1, sharp=1.0)


@pytest.fixture(scope="module")
def results(ledger: Path) -> ClassResults:
    return compare(ledger, *two_models())


def test_the_menu_is_fixed_before_a_calibration_score_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is in the ledger by then, and our score was chosen for all levels that it serves."""
    computed, scores, asked, choose = [], Likelihood.scores, {}, compared.choose_label_score

    def score(self: Likelihood, forecast: Any, truth: Any) -> Any:
        if len(truth) == 600:
            computed.append(len(read_ledger(tmp_path / "ledger")[0].menu))
        return scores(self, forecast, truth)

    def chosen(forecast: Any, labels: Any, level: PACLevel, *, others: Any, **rest: Any) -> Any:
        asked[level.epsilon] = {one.delta for one in (level, *others)}
        return choose(forecast, labels, level, others=others, **rest)

    monkeypatch.setattr(Likelihood, "scores", score)
    monkeypatch.setattr(compared, "choose_label_score", chosen)
    results = compare(tmp_path)
    assert set(computed) == {len(results.entries)}
    (look,) = read_ledger(tmp_path / "ledger")
    assert sorted(e.score for e in look.menu) == sorted(e.score for e in results.entries.values())
    assert look.cost == joint_failure_probability(600, results.entries.values())
    assert asked[0.1] == {0.1, 1e-3, 1e-5, 1e-7}
    assert asked[0.2] == {0.1, 1e-3}
    assert asked[0.01] == {0.1}  # all that 600 images can prove
    served = [one.predictor.score for (_, sets, _), one in results.measured.items() if sets == OURS]
    assert len({id(score) for score in served}) == len(asked)


def test_another_menu_on_the_same_images_is_refused(ledger: Path, results: ClassResults) -> None:
    assert compare(ledger, *two_models()).look == results.look
    with pytest.raises(SecondLook, match="calibrated on before"):
        compare(ledger, *two_models(), levels=replace(LEVELS, epsilons=(0.1, 0.3)))
    with pytest.raises(SecondLook):
        compare(ledger)


def test_the_same_score_of_two_classifiers_costs_twice(results: ClassResults) -> None:
    """-log f of one and of the other are two chances to fail; one score at several epsilons costs less."""
    main = [LEVELS.main]
    assert results.cost("D", main) == pytest.approx(2e-3)
    assert results.cost("D", [PACLevel(0.1, 0.1)]) == pytest.approx(0.1)  # only the first is asked there
    assert 0.1 < results.cost(PAPER, LEVELS.table) < 0.3


def test_certificates_follow_from_the_scores_of_their_own_classifier(results: ClassResults) -> None:
    rows = results.parts.calibrate.rows
    for model in results.models:
        for sets in ("D", PAPER, OURS):
            certificate = results.at(sets, model=model.name).certificate
            assert certificate is not None
            assert (certificate.model.name, certificate.data.name) == (model.name, f"{model.name}.npz")
            scores = certificate.predictor.score.scores(*model.take(rows))
            assert all(check.holds for check in verify(certificate, scores, model.ids[rows]))


def test_sizes_and_misses_are_those_of_the_sets(results: ClassResults) -> None:
    """D by hand: labels whose -log softmax is at most T."""
    found = results.at("D")
    assert found.predictor is not None
    forecast, labels = results.models[0].take(results.parts.test.rows)
    z = forecast.logits
    score = np.log(np.exp(z).sum(axis=1, keepdims=True)) - z
    inside = score <= found.predictor.threshold.value + 1e-12
    assert found.size.tolist() == inside.sum(axis=1).tolist()
    by_hand = score[np.arange(len(labels)), labels] > found.predictor.threshold.value
    assert found.evaluation.all.errors == by_hand.sum()
    right = z.argmax(axis=1) == labels
    correct, incorrect = found.evaluation.rows[1:]
    assert (correct.name, correct.n, incorrect.n) == ("prediction=correct", right.sum(), (~right).sum())
    assert correct.mean == found.size[right].mean()


def test_what_cannot_be_proved_says_how_many_images_it_needs(results: ClassResults) -> None:
    """600 images: (0.01, 0.001) needs 688 with the direct bound; VC needs thousands at the main level."""
    assert results.at(PAPER, PACLevel(0.01, 1e-3)) is None
    cells = grid_cells(results, PAPER)
    assert cells[0]["epsilon"] == 0.01
    assert cells[0]["delta 0.001"] == "needs 688"
    one = results.at(PAPER).evaluation.all
    assert cells[1]["delta 0.001"] == f"{one.mean:.4g} ({one.error:.4f})"
    vc = ablation_rows(results)[0]
    assert (vc["sets"], vc["error"]) == ("C", "")
    assert vc["verdict"] == "not feasible with n = 600, needs 1,746"
    assert [row["sets"] for row in ablation_rows(results)] == ["C", "D", "C+D", "ours"]


def test_a_level_that_allows_no_error_is_feasible(tmp_path: Path) -> None:
    """(0.01, 0.1) with 230 images allows none: 0 errors is a proof, not the lack of one."""
    results = compare(tmp_path, calibrate=230, levels=Levels(PACLevel(0.2, 1e-3), (0.01,), (0.1,)))
    found = results.at(PAPER, PACLevel(0.01, 0.1))
    assert found is not None
    assert found.predictor is not None
    assert found.predictor.threshold.errors == 0


def test_the_vc_bound_is_compared_where_it_is_feasible(tmp_path: Path) -> None:
    level = PACLevel(0.2, 1e-3)
    results = compare(tmp_path, levels=Levels(level, (0.2,), (1e-3,)))
    vc, paper = results.at("C"), results.at(PAPER)
    assert vc.certificate is None
    assert (vc.size >= paper.size).all()
    assert vc.evaluation.all.mean > paper.evaluation.all.mean
    assert (results.models[0].name, "C", level) not in results.entries


def test_baselines_promise_nothing_and_are_told_apart(results: ClassResults) -> None:
    rows = {row["sets"]: row for row in baseline_rows(results)}
    assert list(rows) == ["mass", "mass, C", "C+D", "ours"]
    assert rows["mass"]["promise"] == rows["mass, C"]["promise"] == "none"
    assert rows["mass, C"]["error"] < 0.9 * rows["mass"]["error"]
    assert rows["mass"]["verdict"] == "above epsilon beyond doubt"  # it is twice too sure of itself
    assert "refuted" not in rows["mass, C"]["verdict"].replace("nothing to refute", "")
    assert rows["C+D"]["promise"] == "error <= 0.1"
    assert rows["C+D"]["verdict"] == "not refuted"


def test_architectures_have_their_own_temperatures(results: ClassResults) -> None:
    first, other = architecture_rows(results)
    assert (first["classifier"], other["classifier"]) == ("net", "other")
    assert first["tau"] == pytest.approx(0.5, rel=0.15)  # it was made twice as sharp as it should be
    assert other["tau"] == pytest.approx(1.0, rel=0.15)
    assert first["ECE, C"] < 0.5 * first["ECE"]
    forecast, labels = results.models[1].take(results.parts.test.rows)
    assert other["ECE, C"] == pytest.approx(calibration_error(forecast.tempered(other["tau"]), labels))
    model = results.models[0]
    assert first["top-1 error"] == (model.forecast.logits.argmax(axis=1) != model.labels).mean()
    assert results.at(OURS, PACLevel(0.2, 1e-3), "other") is None  # only the first is asked everywhere


def test_classifiers_of_other_images_are_refused(tmp_path: Path) -> None:
    first, other = predictions(), predictions("other")
    turned = replace(other, ids=other.ids[::-1])
    with pytest.raises(InvalidInput, match="must have the same labels"):
        compare(tmp_path, first, turned)
    with pytest.raises(InvalidInput, match="must be of the same images"):
        compare(tmp_path, first, predictions("other", units=2000))
    with pytest.raises(InvalidInput, match="names of their own"):
        compare(tmp_path, first, predictions())
    with pytest.raises(InvalidInput, match="leave images to tune and to test"):
        compare(tmp_path, calibrate=2500)
    assert not (tmp_path / "ledger").exists()


def test_the_order_of_the_rows_changes_nothing(tmp_path: Path, results: ClassResults) -> None:
    first = predictions()
    forecast, labels = first.take(slice(None, None, -1))
    turned = replace(first, ids=first.ids[::-1], forecast=forecast, labels=labels)
    again = compare(tmp_path, turned)
    assert again.at().size.tolist() == results.at().size.tolist()


def test_levels_fit_the_number_of_units() -> None:
    paper = fit_levels(20_000)
    assert paper.epsilons == (0.01, 0.02, 0.03, 0.04, 0.05)
    assert paper.deltas == (0.1, 1e-3, 1e-5)
    assert len(paper.table) == 15
    assert [level.epsilon for level in paper.along_epsilon] == [0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 0.2]
    asked = paper.feasible(20_000)
    assert len(set(asked)) == len(asked)
    assert asked[0] == PACLevel(0.01, 1e-5)
    with pytest.raises(NotEnoughData, match=r"100 calibration units cannot prove epsilon=0\.01"):
        fit_levels(100, epsilon=0.01)


def test_predictions_are_read_by_ids_or_files(tmp_path: Path) -> None:
    logits, labels, names = np.eye(3, dtype=np.float16), np.arange(3), np.array(["a", "b", "c"])
    np.savez(tmp_path / "net.npz", logits=logits, labels=labels, files=names)
    found = read_predictions(tmp_path / "net.npz")
    assert (found.name, found.ids.tolist(), found.ids_name) == ("net", ["a", "b", "c"], "files")
    assert (found.data.name, found.data.n) == ("net.npz", 3)
    np.savez(tmp_path / "nameless.npz", logits=logits, labels=labels)
    with pytest.raises(UnreadableFile, match="must name its images in an array ids or files"):
        read_predictions(tmp_path / "nameless.npz")
    np.savez(tmp_path / "truthless.npz", logits=logits, ids=names)
    with pytest.raises(UnreadableFile, match="must hold logits and labels, got ids, logits"):
        read_predictions(tmp_path / "truthless.npz")


def with_broken(rows: Any) -> Predictions:
    whole = predictions()
    failed = np.zeros(len(whole.ids), bool)
    failed[rows] = True
    logits = np.where(failed[:, None], np.nan, whole.forecast.logits)
    return replace(whole, forecast=LogitForecast(logits, failed=failed))


def test_broken_images_are_errors_of_every_kind_of_sets(results: ClassResults, tmp_path: Path) -> None:
    tune, calibrate, test = (part.rows for part in results.parts)
    broken = with_broken(np.concatenate([tune[:4], calibrate[:2], test[:3]]))
    found = compare(tmp_path, broken)
    for sets in ("D", PAPER, OURS, "mass", "mass, C"):
        one = found.at(sets)
        assert not one.size[:3].any()
        (broken_ones,) = (row for row in one.evaluation.rows if row.name == "prediction=broken")
        assert (broken_ones.n, broken_ones.errors) == (3, 3)
    plain, own = results.at("D"), found.at("D")
    assert own.certificate is not None
    scores = own.certificate.predictor.score.scores(*results.models[0].take(calibrate[2:]))
    expected = np.sort([*scores, np.inf, np.inf])[-1 - own.certificate.predictor.threshold.errors]
    assert own.certificate.predictor.threshold.value == expected
    assert (own.size[3:] >= plain.size[3:]).all()
    (first,) = architecture_rows(found)
    wrong = broken.forecast.logits.argmax(axis=1) != broken.labels
    assert first["top-1 error"] == (wrong | broken.forecast.failed).mean()


def test_more_broken_images_than_a_level_allows_errors_say_so(results: ClassResults, tmp_path: Path) -> None:
    """600 images: 60 errors at (0.2, 1e-3) leave room for more broken ones than (0.1, 1e-3)."""
    level, calibrate = PACLevel(0.2, 1e-3), results.parts.calibrate.rows
    broken = with_broken(calibrate[:50])
    found = compare(tmp_path, broken, levels=Levels(level, (0.1, 0.2), (1e-3,)))
    assert found.at(PAPER, PACLevel(0.1, 1e-3)) is None
    assert grid_cells(found, PAPER)[0]["delta 0.001"] == "too many are broken"
    with pytest.raises(TooManyFailures, match="50 of 600 calibration units failed"):
        compare(tmp_path / "other", broken)


def test_the_model_that_a_file_names_is_kept(tmp_path: Path) -> None:
    logits, ids = np.zeros((2, 3)), np.array(["a", "b"])
    about = {"model": "net", "model_digest": "float16:abc"}
    np.savez(tmp_path / "logits.npz", logits=logits, labels=np.zeros(2, int), ids=ids, **about)
    assert read_predictions(tmp_path / "logits.npz").model.digest == "float16:abc"


MANY = ["king penguin", "church", "toilet seat", "plunger", *(f"class {i}" for i in range(4, 1000))]


def grey() -> Image.Image:
    return Image.new("RGB", (40, 30), "grey")


def case(label: int, size: int, prediction: int | None = None) -> Case:
    members = [label, *range(500, 499 + size)]
    return Case(grey, label, label if prediction is None else prediction, members)


def captions(figure: Any) -> list[str]:
    return [axes.get_xlabel() for axes in figure.axes if axes.images]


def test_a_row_has_one_class_where_it_can_and_only_wrongly_classified_images_are_framed() -> None:
    full, nearly = [case(1, size) for size in (1, 7, 60, 300)], [case(2, size) for size in (1, 6)]
    wrong = case(2, 70, prediction=3)
    poor = [case(3, 1), case(3, 250), case(3, 11)]
    figure = picture_table([*poor, *nearly, wrong, *full], MANY, "title", BY_SIZE)
    assert captions(figure) == [f"church ({n})" for n in (1, 7, 60, 300)] + [
        f"toilet seat ({n})" for n in (1, 6, 70)
    ]
    words = [text.get_text() for text in figure.texts]
    assert {"church", "toilet seat", "5 to 10"} <= set(words)
    framed = [bool(axes.spines["top"].get_visible()) for axes in figure.axes if axes.images]
    assert framed == [False] * 6 + [True]
    mixed = picture_table(poor, MANY, "title", BY_SIZE)
    assert captions(mixed) == ["plunger (1)", "plunger (250)"], "no class fills three columns"


def test_images_of_a_column_are_spread_from_small_sets_to_large() -> None:
    cases = [case(i, size) for i, size in enumerate((9, 5, 1, 6, 7, 8, 10, 10))]
    rows = spread_evenly(cases, BY_SIZE)
    assert [[one and len(one.members) for one in row[:2]] for row in rows] == [
        [1, 5], [None, 7], [None, 8], [None, 9], [None, 10],
    ]  # fmt: skip


def test_the_prediction_has_the_hat_and_the_truth_stands_below_the_set() -> None:
    cases = [Case(grey, 3, 2, [1, 2, 3]), Case(grey, 3, 0, [1])]
    figure = written_table(cases, MANY, "title", {"any": (1, 9)})
    assert captions(figure) == [
        "{church}\ntruth: plunger",
        "{church, ^toilet seat,\nplunger}\ntruth: plunger",
    ]


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> tuple[ClassResults, Path]:
    """Logits that know images by file names in another folder, as stored logits may; half are at hand."""
    home = tmp_path_factory.mktemp("pictured")
    for label in range(12):
        (home / "all" / f"{label:02}").mkdir(parents=True)
        for i in range(10):
            grey().save(home / "all" / f"{label:02}" / f"{label:02}_{i}.png")
    images = find_images(home / "all")
    drawn = np.random.default_rng(0)
    logits = drawn.normal(size=(120, 12)) + 2 * np.eye(12)[images.labels]
    names = np.array([f"elsewhere/{name.partition('/')[2]}" for name in images.ids])
    one = Predictions("net", names, LogitForecast(logits), images.labels, Record("net"), Record("net"))
    levels = Levels(PACLevel(0.3, 0.1), (0.3,), (0.1,))
    results = compare_sets([one], levels, tune=40, calibrate=40, seed=0, ledger=home / "ledger.json")
    for name in images.ids[::2]:
        (home / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "all" / name).rename(home / "here" / name)
    return results, home / "here"


def test_pictures_are_of_the_test_part_and_at_hand(pictured: tuple[ClassResults, Path]) -> None:
    results, folder = pictured
    cases = find_cases(results, find_images(folder))
    rows, model = results.parts.test.rows, results.models[0]
    here = {path.name for path in folder.rglob("*.png")}
    wanted = [i for i, row in enumerate(rows) if model.ids[row].split("/")[1] in here]
    assert 0 < len(cases) == len(wanted) < len(rows)
    assert [one.label for one in cases] == [int(model.labels[rows[i]]) for i in wanted]
    assert [len(one.members) for one in cases] == [int(results.at(OURS).size[i]) for i in wanted]


def test_other_labels_of_any_image_are_found_before_the_look(
    pictured: tuple[ClassResults, Path], tmp_path: Path
) -> None:
    """One image of the tune part lies in the folder of another class."""
    results, folder = pictured
    shutil.copytree(folder, tmp_path / "here")
    (model,), rows = results.models, results.parts.tune.rows
    here = {path.name: path for path in (tmp_path / "here").rglob("*.png")}
    strayed = next(path for row in rows if (path := here.get(model.ids[row].split("/")[1])))
    strayed.rename(tmp_path / "here" / f"{(int(strayed.parent.name) + 1) % 12:02}" / strayed.name)
    sizes: dict[str, Any] = {"tune": 40, "calibrate": 40, "seed": 0, "images": find_images(tmp_path / "here")}
    with pytest.raises(InvalidInput, match=f"{strayed.name} must have one label, got"):
        compare_sets(results.models, results.levels, ledger=tmp_path / "new.json", **sizes)
    assert not (tmp_path / "new.json").exists()


def test_without_pictures_the_report_says_so(
    pictured: tuple[ClassResults, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "unknown.png")
    (tmp_path / "labels.txt").write_text("unknown.png 0\n")
    images = find_images(tmp_path, labels=tmp_path / "labels.txt")
    show_pictures(pictured[0], ResultFolder(tmp_path / "out"), images, MANY)
    said = capsys.readouterr().out
    assert "Pictures: 0 of the 40 test images are in" in said
    assert "none of them has a set of a size that pictures_sets.png shows" in said
    assert not list((tmp_path / "out").glob("*.png"))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("script") / "out"
    return out, smoke_test("imagenet", "results", out)


def test_every_result_of_the_paper_is_there(done: tuple[Path, str]) -> None:
    out, said = done
    figures = {path.stem for path in out.glob("*.png")}
    assert figures == {
        "ablation", "correctness", "levels_epsilon", "levels_delta", "grid", "baselines_error",
        "baselines_size", "architectures_size", "pictures_by_size", "pictures_sets",
    }  # fmt: skip
    rows = {row["sets"]: row for row in table_in(out / "ablation.csv")}
    assert list(rows) == ["C", "D", "C+D", "ours"]
    assert "not feasible with n = 480" in rows["C"]["verdict"]
    assert [row["classifier"] for row in table_in(out / "architectures.csv")] == ["narrow", "wide"]
    assert len(table_in(out / "grid_ours.csv")) == 5
    assert "any of which fails with probability below" in said
    assert "error at most 0.1: not refuted by 480 test units" in said


def test_the_certificate_follows_from_the_logits_that_are_kept(done: tuple[Path, str]) -> None:
    out, _ = done
    certificate = read_certificate(out / "certificate.json")
    assert (certificate.unit, certificate.model.name) == ("image", "narrow")
    with np.load(out / "certificate.scores.npz") as stored:
        threshold = fit_threshold(stored["scores"], PACLevel(0.1, 1e-3))
    assert threshold.value == certificate.predictor.threshold.value
    for data in ("certificate.scores.npz", "logits/narrow.npz"):
        verified = pac("verify", out / "certificate.json", out / data)
        assert verified.exit_code == 0, verified.output
    (look,) = read_ledger(out / "pac-ledger.json")
    assert certificate.menu is not None
    assert (certificate.menu.asked, certificate.menu.cost) == (len(look.menu), look.cost)


def fill_folder(root: Path) -> Path:
    """Dark images in a folder and bright ones in another, with some in the wrong one."""
    rng = np.random.default_rng(0)
    for i, light in enumerate(rng.integers(0, 256, 200).tolist()):
        path = root / str(int(light + rng.normal(0, 60) > 123)) / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (light, light, light)).save(path)
    return root


def test_broken_images_stop_it_or_count_as_errors_and_the_ledger_is_that_of_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out = fill_folder(tmp_path / "images"), tmp_path / "out"
    broken = sorted(images.rglob("*.png"))[3:5]
    for path in broken:
        path.write_bytes(b"no image")
    model = ("--model", "python:toy_classifier:bright", "--address", "none", "--batch", 8)
    asked = ("imagenet", "score", images, *model, "--out", out)
    assert broken[0].name in run_here(monkeypatch, *asked)
    assert run_here(monkeypatch, *asked, "--broken", "miss") == ""
    logits = out / "logits" / "python-toy_classifier-bright.npz"
    shown = ("imagenet", "results", logits, "--delta", 0.1, "--out", out)
    assert run_here(monkeypatch, *shown, "--epsilon", 0.3) == ""
    assert (
        "2 are broken for python-toy_classifier-bright: errors, and not tuned on" in capsys.readouterr().out
    )
    assert pac("verify", out / "certificate.json", logits).exit_code == 0
    certificate = read_certificate(out / "certificate.json")
    with np.load(logits) as stored:
        assert str(stored["model_digest"]) == certificate.model.digest is not None
    assert list(tmp_path.glob("pac-ledger*")), "beside the folder of the images"
    again = run_here(monkeypatch, *shown, "--epsilon", 0.4)
    assert "a new certificate needs units never calibrated on" in again


def test_a_refusal_is_one_sentence_before_the_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = ("--out", tmp_path / "none")
    assert run_here(monkeypatch, "imagenet", "results", *none).startswith(
        "Error: files of logits must be given"
    )
    (tmp_path / "two.txt").write_text("cat\ndog\n")
    one = predictions(units=100)
    np.savez(tmp_path / "net.npz", logits=one.forecast.logits, labels=one.labels, ids=one.ids)
    logits = ("results", tmp_path / "net.npz", *none)
    said = run_here(monkeypatch, "imagenet", *logits, "--classes", tmp_path / "two.txt", "--epsilon", 0.3)
    assert "must name the 6 classes of net, got 2" in said
    assert "cannot prove epsilon=0.01" in run_here(monkeypatch, "imagenet", *logits, "--epsilon", 0.01)
    assert not (tmp_path / "none").exists()
    assert not list(tmp_path.rglob("pac-ledger*"))
