"""The report of classification results: each function shows one result, as table and as figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from common import ResultFolder, interval_text
from imagenet.figures import (
    class_coverage,
    error_bars,
    grid_boxes,
    grouped_boxes,
    size_against_error,
    size_boxes,
)
from imagenet.inputs import Predictions, mark_chance, outcomes, say_infeasible
from imagenet.pictures import find_cases, picture_table, size_columns, written_columns, written_table
from imagenet.sets import OURS, PAPER, WORDS, ClassResults

import pac_core as pac
from pac_core.texts import at_least
from pac_vision import Images
from pac_vision.plots import reliability_bins, reliability_diagram

Rows = list[dict[str, Any]]
SIZES = ("mean size", "median", "smallest", "largest")


def show_results(
    results: ClassResults, folder: ResultFolder, names: Sequence[str], images: Images | None
) -> None:
    """Everything the paper shows of ImageNet, into the folder and onto the terminal.

    images: to draw the picture tables from; without them there are none
    """
    show_ablation(results, folder)
    show_correctness(results, folder)
    show_levels(results, folder)
    show_grid(results, folder)
    show_baselines(results, folder)
    show_architectures(results, folder)
    show_reliability(results, folder)
    show_coverage(results, folder, names)
    if images is not None:
        show_pictures(results, folder, images, names)


def say_level(results: ClassResults) -> str:
    level, n = results.levels.main, results.parts.calibrate.n
    mark = mark_chance(n, level)
    return f"n = {n:,}, epsilon = {level.epsilon:g}, delta = {level.delta:g}{mark and f' ({mark})'}"


def say_where(results: ClassResults) -> str:
    return f"{results.models[0].name}, {say_level(results)}"


def ablation_row(results: ClassResults, sets: str, level: pac.PACLevel) -> dict[str, Any]:
    """One kind of sets at one level in numbers; what is out of reach says so."""
    found, n = results.at(sets, level), results.parts.calibrate.n
    row = {"sets": sets, "what": WORDS[sets], "allowed errors": ""}
    if found is not None:
        row["allowed errors"] = found.predictor.threshold.errors
        return row | measured_numbers(found.evaluation.all, say_verdict(found.evaluation))
    words = say_infeasible(n, pac.vc_min_samples(level) if sets == "C" else pac.min_samples(level))
    row |= {"error": "", "98% interval": "", "verdict": f"not feasible with n = {n:,}, {words}"}
    return row | dict.fromkeys(SIZES, "")


def ablation_rows(results: ClassResults, level: pac.PACLevel | None = None) -> Rows:
    """The paper's ablation in numbers, with the VC bound and with ours; a row for each kind of sets."""
    return [ablation_row(results, sets, level or results.levels.main) for sets in ("C", "D", PAPER, OURS)]


def measured_numbers(group: Any, verdict: str | None) -> dict[str, Any]:
    row = {"error": group.error, "98% interval": interval_text(group.interval)}
    row |= {} if verdict is None else {"verdict": verdict}
    sizes = (group.mean, group.median, group.smallest, group.largest)
    return row | dict(zip(SIZES, sizes, strict=True))


def say_verdict(evaluation: Any) -> str:
    return "refuted" if evaluation.refuted else "not refuted"


def show_ablation(results: ClassResults, folder: ResultFolder) -> None:
    rows, where = ablation_rows(results), say_where(results)
    note = f"Compared on {results.parts.test.n:,} test images; a verdict is no proof."
    folder.table("ablation", rows, f"Ablation ({where})", hidden=("what", "smallest"), note=note)
    sizes = {row["sets"]: one.size for row in rows if (one := results.at(row["sets"])) is not None}
    why = {
        row["sets"]: row["verdict"].replace(" with ", "\nwith ").replace(", ", ",\n", 1)
        for row in rows
        if row["sets"] not in sizes
    }
    title = f"C calibrated, D direct bound (without: VC bound), ours: chosen score\n{where}"
    folder.figure("ablation", size_boxes(sizes, title, missing=why))


def show_correctness(results: ClassResults, folder: ResultFolder) -> None:
    """Images that the classifier labels correctly, others, and broken ones; nothing is promised of any."""
    rows, where, outcome = [], say_where(results), outcomes(*results.test)
    for sets in (PAPER, OURS):
        for group in results.main(sets).evaluation.rows[1:]:
            of = group.name.removeprefix("prediction=")
            rows.append({"sets": sets, "prediction": of, "images": group.n} | measured_numbers(group, None))
    note = "The promise is about all images; nothing is promised of either group."
    folder.table("correctness", rows, f"Correct against incorrect predictions ({where})", note=note)
    groups = {
        sets: {of: results.main(sets).size[outcome == of] for of in ("correct", "incorrect")}
        for sets in (PAPER, OURS)
    }
    title = f"Sizes where the classifier is right and where it is wrong\n{where}"
    folder.figure("correctness", grouped_boxes(groups, title))


def show_levels(results: ClassResults, folder: ResultFolder) -> None:
    words = {"epsilon": "promised error, epsilon", "delta": "probability that the promise fails, delta"}
    n, model = results.parts.calibrate.n, results.models[0].name
    for name, levels in (("epsilon", results.levels.along_epsilon), ("delta", results.levels.along_delta)):
        rows, groups = [], {}
        for level in levels:
            at = {"epsilon": level.epsilon, "delta": level.delta}
            rows += [at | ablation_row(results, sets, level) for sets in (PAPER, OURS)]
            found = {sets: one.size for sets in (PAPER, OURS) if (one := results.at(sets, level)) is not None}
            mark = mark_chance(n, level) if found else "(not feasible)"
            groups[f"{at[name]:g}\n{mark}".strip()] = found
        hidden = ("what", "98% interval", "smallest", "largest")
        folder.table(f"levels_{name}", rows, f"Sizes against {name} ({model})", hidden=hidden)
        other = "delta" if name == "epsilon" else "epsilon"
        fixed = f"n = {n:,}, {other} = {getattr(results.levels.main, other):g}"
        title = f"Sizes against {name}: quartiles, smallest and largest set\n{model}, {fixed}"
        folder.figure(f"levels_{name}", grouped_boxes(groups, title, along=words[name]))


def grid_cells(results: ClassResults, sets: str, number: str) -> Rows:
    """One 5 x 3 table: epsilon down, delta across; `number` is ``error`` or ``mean size``."""

    def cell(level: pac.PACLevel) -> str:
        found = results.at(sets, level)
        if found is None:
            return say_infeasible(results.parts.calibrate.n, pac.min_samples(level))
        doubt = " refuted" if found.evaluation.refuted else ""
        row = found.evaluation.all
        return f"{row.error:.4f}{doubt}" if number == "error" else f"{row.mean:.4g}"

    deltas = results.levels.deltas
    return [
        {"epsilon": epsilon} | {f"delta {delta:g}": cell(pac.PACLevel(epsilon, delta)) for delta in deltas}
        for epsilon in results.levels.epsilons
    ]


def show_grid(results: ClassResults, folder: ResultFolder) -> None:
    n, table, model = results.parts.calibrate.n, results.levels.table, results.models[0].name
    at = [({"epsilon": level.epsilon, "delta": level.delta}, level) for level in table]
    folder.table("grid", [head | row for head, level in at for row in ablation_rows(results, level)])
    for sets, short in ((PAPER, "paper"), (OURS, "ours")):
        for number in ("error", "mean size"):
            title = f"{number.capitalize()} of {sets} at each level ({model}, n = {n:,})"
            name = f"grid_{number.replace(' ', '_')}_{short}"
            folder.table(name, grid_cells(results, sets, number), title)
        cells = sum(results.at(sets, level) is not None for level in table)
        print(
            f"  The {cells} levels of {sets} in the table: any of them fails with probability below "
            f"{at_least(results.cost(sets, table), 3)}."
        )
    title = f"{model}, n = {n:,}: C calibrated, D direct bound, ours\nquartiles, smallest and largest set"
    folder.figure("grid", grid_boxes(results, title))


def baseline_rows(results: ClassResults) -> Rows:
    """The paper's comparison with sets that promise nothing."""
    rows = []
    for sets in ("mass", "mass, C", PAPER, OURS):
        found = results.main(sets).evaluation
        promise, verdict = f"error <= {results.levels.main.epsilon:g}", say_verdict(found)
        if sets.startswith("mass"):
            promise, verdict = "none", "above epsilon beyond doubt" if found.refuted else "nothing to refute"
        rows.append({"sets": sets, "promise": promise} | measured_numbers(found.all, verdict))
    return rows


def show_baselines(results: ClassResults, folder: ResultFolder) -> None:
    where = say_where(results)
    title = f"Baselines that promise nothing ({where})"
    folder.table("baselines", baseline_rows(results), title, hidden=("smallest",))
    label = {"mass": "mass\nas it is", "mass, C": "mass, C\ncalibrated", PAPER: "C+D\npaper", OURS: "ours\n"}
    found = {label[sets]: results.main(sets) for sets in label}
    errors = {name: (one.evaluation.all.error, one.evaluation.all.interval) for name, one in found.items()}
    title = f"Measured error of baselines and PAC sets\n{where}"
    folder.figure("baselines_error", error_bars(errors, results.levels.main.epsilon, title))
    title = f"Size of baselines and PAC sets\n{where}"
    folder.figure("baselines_size", size_boxes({name: one.size for name, one in found.items()}, title))


def find_temperature(score: Any) -> float:
    """The temperature of the paper's score; 1 where it has none."""
    return math.prod(float(step.tau) for step in score.preparations if isinstance(step, pac.Temperature))


def readable_test(results: ClassResults, model: Predictions) -> tuple[Any, Any, Any]:
    """Of the test images that are not broken: the forecast as it is, calibrated on the tune part, labels."""
    forecast, labels = model.take(results.parts.test.rows)
    rows = np.flatnonzero(outcomes(forecast, labels) != "broken")
    calibrated: pac.LogitForecast = results.main(PAPER, model.name).predictor.score.prepared(forecast)
    return forecast.take(rows), calibrated.take(rows), labels[rows]


def count_wrong(model: Predictions) -> tuple[int, int]:
    """Nothing was fitted to the predictions themselves, so their errors are counted on all images."""
    return int((outcomes(model.forecast, model.labels) != "correct").sum()), len(model.labels)


def architecture_rows(results: ClassResults) -> Rows:
    """Each classifier: how often it errs, how calibrated it is, and its sets at the main level."""
    rows: Rows = []
    for model in results.models:
        plain, calibrated, labels = readable_test(results, model)
        wrong, n = count_wrong(model)
        row: dict[str, Any] = {
            "classifier": model.name,
            "top-1 error": wrong / n,
            "98% interval": interval_text(pac.error_interval(wrong, n)),
            "tau": find_temperature(results.main(PAPER, model.name).predictor.score),
            "ECE": pac.calibration_error(plain, labels),
            "ECE, C": pac.calibration_error(calibrated, labels),
        }
        for sets in ("D", PAPER, OURS):
            found = results.main(sets, model.name).evaluation
            row |= {f"error, {sets}": found.all.error, f"mean size, {sets}": found.all.mean}
            row |= {f"median, {sets}": found.all.median, f"verdict, {sets}": say_verdict(found)}
        rows.append(row)
    return rows


def show_architectures(results: ClassResults, folder: ResultFolder) -> None:
    rows, level, words = architecture_rows(results), results.levels.main, say_level(results)
    note = "Top-1 error of all images; sizes, errors and calibration error (ECE) on the test part."
    title = f"Architectures at epsilon {level.epsilon:g}, delta {level.delta:g}"
    hidden = [head for head in rows[0] if head.startswith("verdict")]
    folder.table("architectures", rows, title, hidden=hidden, note=note)
    if len(rows) < 2:
        return
    intervals = [pac.error_interval(*count_wrong(model)) for model in results.models]
    title = f"Set size against classification error\n{words}"
    folder.figure("architectures", size_against_error(rows, intervals, title))
    sizes = {
        model.name: {sets: results.main(sets, model.name).size for sets in ("D", PAPER, OURS)}
        for model in results.models
    }
    folder.figure("architectures_size", grouped_boxes(sizes, f"Sizes of each architecture\n{words}"))


def show_reliability(results: ClassResults, folder: ResultFolder) -> None:
    model = results.models[0]
    plain, calibrated, labels = readable_test(results, model)
    tau = find_temperature(results.main(PAPER).predictor.score)
    found, errors = {}, {}
    for name, forecast in (("as it is", plain), ("calibrated", calibrated)):
        found[name], errors[name] = (
            reliability_bins(forecast, labels),
            pac.calibration_error(forecast, labels),
        )
    folder.table("reliability", [{"forecast": name} | row for name in found for row in found[name]])
    print(
        f"\nReliability: calibration error (ECE) {errors['as it is']:.4f} as it is, "
        f"{errors['calibrated']:.4f} with tau = {tau:.4g} (reliability.csv)"
    )
    title = f"Reliability of {model.name}, {results.parts.test.n:,} test images, tau = {tau:.3g}"
    shown = {f"{name}: ECE {errors[name]:.3f}": rows for name, rows in found.items()}
    folder.figure("reliability", reliability_diagram(shown, title))


def coverage_rows(results: ClassResults, names: Sequence[str], sets: str = OURS) -> Rows:
    """The share of each class's test images whose set holds the truth, the surely least covered first.

    The promise is about all images together. A class that is covered less than 1 - epsilon breaks nothing.
    """
    found, (_, labels), rows = results.main(sets), results.test, []
    for label in np.unique(labels).tolist():
        mine = labels == label
        n, missed = int(mine.sum()), int(found.missed[mine].sum())
        low, high = pac.error_interval(missed, n)
        row = {"label": label, "class": names[label], "images": n, "covered": n - missed}
        row |= {"coverage": 1 - missed / n, "low": 1 - high, "high": 1 - low}
        rows.append(row | {"mean size": float(found.size[mine].mean())})
    return sorted(rows, key=lambda row: (row["high"], row["coverage"], row["label"]))


def show_coverage(results: ClassResults, folder: ResultFolder, names: Sequence[str]) -> None:
    rows, epsilon, where = coverage_rows(results, names), results.levels.main.epsilon, say_where(results)
    sure = sum(row["high"] < 1 - epsilon for row in rows)
    note = (
        f"The promise is marginal, over all images and not for each class. {sure} of {len(rows):,} classes "
        f"have a 98% interval\n  below {1 - epsilon:g}; of classes that are covered so well, one in a "
        "hundred may have one by chance."
    )
    title = f"Coverage of each class by our sets, those with the lowest interval ({where})"
    folder.table("coverage", rows, title, first=8, note=note)
    title = f"Misses class by class: the promise is about all images, not each class\n{where}"
    folder.figure("coverage", class_coverage(rows, epsilon, title))


def show_pictures(results: ClassResults, folder: ResultFolder, images: Images, names: Sequence[str]) -> None:
    """The two picture tables, of the sets that fill most columns; at best ours at the main level."""
    model, main = results.models[0], results.levels.main
    others = (pac.PACLevel(epsilon, main.delta) for epsilon in sorted(results.levels.epsilons, reverse=True))
    levels = dict.fromkeys((main, *others))
    found = [
        one for sets in (OURS, PAPER) for level in levels if (one := results.at(sets, level)) is not None
    ]
    cases = [find_cases(results, one, images) for one in found]
    print(f"\nPictures: {len(cases[0]):,} of the {results.parts.test.n:,} test images are in {images.folder}")
    for name, draw, columns, head, legend in (
        ("pictures_by_size", picture_table, size_columns(model.classes),
         "Test images by the size of their set",
         "in brackets: labels in the set; red frame: classified wrongly"),
        ("pictures_sets", written_table, written_columns(model.classes), "Test images and their sets",
         "red: true label, hat: prediction, red frame: classified wrongly"),
    ):  # fmt: skip
        filled = [sum(any(case.within(sizes) for case in some) for sizes in columns) for some in cases]
        best = filled.index(max(filled))
        if not filled[best]:
            print(f"  none of them has a set of a size that {name}.png shows")
            continue
        sets, level = found[best].sets, found[best].level
        words = f"{model.name}, {sets}, epsilon = {level.epsilon:g}, delta = {level.delta:g}"
        folder.figure(name, draw(cases[best], names, f"{head}\n{words}\n{legend}", columns))


def summarise(results: ClassResults, folder: ResultFolder) -> str:
    """The main numbers in a few lines, for the end of the terminal."""
    level, paper, ours = results.levels.main, results.main(PAPER).evaluation.all, results.main().evaluation
    less = 1 - ours.all.mean / paper.mean
    change = f"{abs(less):.1%} {'fewer' if less >= 0 else 'more'}"
    return (
        f"\n{say_where(results)}, {results.parts.test.n:,} test images\n"
        f"  promised error   at most {level.epsilon:.2%}, with confidence 1 - {level.delta:g}, for images "
        "drawn like those calibrated on\n"
        f"  measured error   {ours.all.error:.2%} with our sets, {paper.error:.2%} with the paper's C+D\n"
        f"  mean set size    {ours.all.mean:.2f} labels with ours, {paper.mean:.2f} with C+D ({change}); "
        f"median {ours.all.median:g} and {paper.median:g}\n"
        f"  test             {ours.verdict}\n"
        f"  certificate      {folder.folder / 'certificate.json'}\n"
        f"  everything else  {len(folder.written)} tables and figures in {folder.folder}"
    )
