"""Sets of classifiers compared: one look, honest costs, and the numbers of the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pac_core import (
    InvalidInput,
    Likelihood,
    LogitForecast,
    NotEnoughData,
    PACLevel,
    Record,
    SecondLook,
    TooManyFailures,
    UnreadableFile,
    calibration_error,
    joint_cost,
    max_errors,
    read_ledger,
    verify,
)
from pac_vision import class_results
from pac_vision.class_results import OURS, PAPER, ClassResults, compare_sets
from pac_vision.class_tables import (
    ablation_rows,
    architecture_rows,
    baseline_rows,
    coverage_rows,
    grid_cells,
    grid_rows,
    reliability_rows,
)
from pac_vision.levels import Levels, fit_levels
from pac_vision.predictions import Predictions, read_predictions
from pac_vision.size_figures import grid_boxes

CLASSES = 6
NAMES = ["ant", "bee", "cat", "dog", "elk", "fox"]


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
def results(tmp_path_factory: pytest.TempPathFactory) -> ClassResults:
    return compare(tmp_path_factory.mktemp("results"), predictions(), predictions("other", seed=1, sharp=1.0))


def test_the_whole_menu_is_in_the_ledger_before_a_calibration_score_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed, plain = [], Likelihood.scores

    def watched(self: Likelihood, forecast: Any, truth: Any) -> Any:
        if len(truth) == 600:
            computed.append(len(read_ledger(tmp_path / "ledger")[0].menu))
        return plain(self, forecast, truth)

    monkeypatch.setattr(Likelihood, "scores", watched)
    results = compare(tmp_path)
    assert set(computed) == {len(results.entries)}
    (look,) = read_ledger(tmp_path / "ledger")
    assert sorted(e.score for e in look.menu) == sorted(e.score for e in results.entries.values())
    assert look.cost == joint_cost(600, results.entries.values()) == results.cost()


def test_our_score_is_chosen_for_all_levels_that_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, plain = {}, class_results.choose_label_score

    def watched(forecast: Any, labels: Any, level: PACLevel, *, others: Any, **rest: Any) -> Any:
        asked[level.epsilon] = {one.delta for one in (level, *others)}
        return plain(forecast, labels, level, others=others, **rest)

    monkeypatch.setattr(class_results, "choose_label_score", watched)
    results = compare(tmp_path)
    assert asked[0.1] == {0.1, 1e-3, 1e-5, 1e-7}
    assert asked[0.2] == {0.1, 1e-3}
    assert asked[0.01] == {0.1}  # all that 600 images can prove
    served = [one.predictor.score for one in results.measured.values() if one.sets == OURS and one.predictor]
    assert len({id(score) for score in served}) == len(asked)


def test_figures_mark_where_sizes_compare_by_chance(results: ClassResults) -> None:
    """Where fewer than ten errors are allowed, one calibration image more or less changes the order."""
    titles = [axes.get_title() for axes in grid_boxes(results, "all").axes]
    for level, title in zip(results.levels.table, titles, strict=True):
        few = results.at(PAPER, level) is not None and max_errors(600, level) < 10
        assert ("chance" in title) is few
    assert any("chance" in title for title in titles)
    assert not all("chance" in title for title in titles)


def test_another_menu_on_the_same_images_is_refused(tmp_path: Path) -> None:
    compare(tmp_path)
    compare(tmp_path)  # the same look
    with pytest.raises(SecondLook, match="calibrated on before"):
        compare(tmp_path, levels=replace(LEVELS, epsilons=(0.1, 0.3)))
    with pytest.raises(SecondLook):
        compare(tmp_path, predictions(), predictions("other", seed=1))


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
            certificate = results.main(sets, model.name).certificate
            assert certificate is not None
            assert (certificate.model.name, certificate.data.name) == (model.name, f"{model.name}.npz")
            scores = certificate.predictor.score.scores(*model.take(rows))
            assert all(check.holds for check in verify(certificate, scores, model.ids[rows]))


def test_sizes_and_misses_are_those_of_the_sets(results: ClassResults) -> None:
    """D by hand: labels whose -log softmax is at most T."""
    found = results.main("D")
    assert found.predictor is not None
    forecast, labels = results.test
    z = forecast.logits
    score = np.log(np.exp(z).sum(axis=1, keepdims=True)) - z
    inside = score <= found.predictor.threshold.value + 1e-12
    assert found.size.tolist() == inside.sum(axis=1).tolist()
    assert found.missed.tolist() == (~inside[np.arange(len(labels)), labels]).tolist()
    by_hand = score[np.arange(len(labels)), labels] > found.predictor.threshold.value
    assert found.evaluation.all.errors == by_hand.sum()
    right = z.argmax(axis=1) == labels
    correct, incorrect = found.evaluation.rows[1:]
    assert (correct.name, correct.n, incorrect.n) == ("prediction=correct", right.sum(), (~right).sum())
    assert correct.mean == found.size[right].mean()


def test_what_cannot_be_proved_says_how_many_images_it_needs(results: ClassResults) -> None:
    """600 images: (0.01, 0.001) needs 688 with the direct bound; VC needs thousands at the main level."""
    assert results.at(PAPER, PACLevel(0.01, 1e-3)) is None
    cells = grid_cells(results, PAPER, "error")
    assert cells[0]["epsilon"] == 0.01
    assert cells[0]["delta 0.001"] == "needs 688"
    assert cells[1]["delta 0.001"] == f"{results.main(PAPER).evaluation.all.error:.4f}"
    vc = ablation_rows(results)[0]
    assert (vc["sets"], vc["error"]) == ("C", "")
    assert vc["verdict"] == "not feasible with n = 600, needs 1,746"
    assert [row["sets"] for row in grid_rows(results)] == ["C", "D", "C+D", "ours"] * 6


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
    vc, paper = results.main("C"), results.main(PAPER)
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


def test_reliability_counts_every_test_image_once(results: ClassResults) -> None:
    rows = reliability_rows(results)
    for name in ("as it is", "calibrated"):
        mine = [row for row in rows if row["forecast"] == name]
        assert sum(row["images"] for row in mine) == results.parts.test.n
        for row in mine:
            if row["images"]:
                assert row["from"] <= row["confidence"] <= row["to"] + 1e-9
                assert row["accuracy, low"] <= row["accuracy"] <= row["accuracy, high"]


def test_coverage_of_classes_adds_up_to_that_of_all(results: ClassResults) -> None:
    rows = coverage_rows(results, NAMES)
    found = results.main()
    assert sum(row["images"] for row in rows) == results.parts.test.n
    assert sum(row["images"] - row["covered"] for row in rows) == found.evaluation.all.errors
    assert [row["high"] for row in rows] == sorted(row["high"] for row in rows)
    labels = results.test[1]
    worst = rows[0]
    assert worst["class"] == NAMES[worst["label"]]
    assert worst["covered"] == (~found.missed[labels == worst["label"]]).sum()


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
    assert again.main().size.tolist() == results.main().size.tolist()


def test_levels_fit_the_number_of_units() -> None:
    paper = fit_levels(20_000)
    assert paper.epsilons == (0.01, 0.02, 0.03, 0.04, 0.05)
    assert paper.deltas == (0.1, 1e-3, 1e-5)
    assert len(paper.table) == 15
    assert [level.epsilon for level in paper.along_epsilon] == [0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 0.2]
    assert len(set(paper.all)) == len(paper.all)
    assert paper.all[0] == PACLevel(0.01, 1e-5)
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
        one = found.main(sets)
        assert one.missed[:3].all()
        assert not one.size[:3].any()
    plain, own = results.main("D"), found.main("D")
    assert own.certificate is not None
    scores = own.certificate.predictor.score.scores(*results.models[0].take(calibrate[2:]))
    expected = np.sort([*scores, np.inf, np.inf])[-1 - own.certificate.predictor.threshold.errors]
    assert own.certificate.predictor.threshold.value == expected
    assert (own.size[3:] >= plain.size[3:]).all()
    groups = {row.name: row.n for row in own.evaluation.rows}
    assert groups["prediction=broken"] == 3
    (first,) = architecture_rows(found)
    wrong = broken.forecast.logits.argmax(axis=1) != broken.labels
    assert first["top-1 error"] == (wrong | broken.forecast.failed).mean()
    mine = [row["images"] for row in reliability_rows(found) if row["forecast"] == "as it is"]
    assert sum(mine) == len(test) - 3


def test_more_broken_images_than_a_level_allows_errors_say_so(results: ClassResults, tmp_path: Path) -> None:
    """600 images: 60 errors at (0.2, 1e-3) leave room for more broken ones than (0.1, 1e-3)."""
    level, calibrate = PACLevel(0.2, 1e-3), results.parts.calibrate.rows
    broken = with_broken(calibrate[:50])
    found = compare(tmp_path, broken, levels=Levels(level, (0.1, 0.2), (1e-3,)))
    assert found.at(PAPER, PACLevel(0.1, 1e-3)) is None
    assert grid_cells(found, PAPER, "error")[0]["delta 0.001"] == "too many are broken"
    with pytest.raises(TooManyFailures, match="50 of 600 calibration units failed"):
        compare(tmp_path / "other", broken)


def test_the_model_that_a_file_names_is_kept(tmp_path: Path) -> None:
    logits, ids = np.zeros((2, 3)), np.array(["a", "b"])
    about = {"model": "net", "model_digest": "float16:abc"}
    np.savez(tmp_path / "logits.npz", logits=logits, labels=np.zeros(2, int), ids=ids, **about)
    assert read_predictions(tmp_path / "logits.npz").model.digest == "float16:abc"
