"""The report of classification results: each function shows one result, as table and as figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pac_core import PACLevel, calibration_error
from pac_core.texts import at_least
from pac_vision.class_figures import class_coverage, error_bars, reliability_diagram, size_against_error
from pac_vision.class_results import OURS, PAPER, ClassResults
from pac_vision.class_tables import (
    ablation_rows,
    architecture_rows,
    baseline_rows,
    calibrated,
    correctness_rows,
    coverage_rows,
    grid_cells,
    grid_rows,
    level_rows,
    reliability_rows,
)
from pac_vision.images import Images
from pac_vision.levels import chance
from pac_vision.picture_sources import picture_cases
from pac_vision.predictions import outcomes, readable
from pac_vision.result_folders import ResultFolder
from pac_vision.set_pictures import picture_table, size_columns, written_columns, written_table
from pac_vision.size_figures import grid_boxes, grouped_boxes, level_boxes, size_boxes


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


def _where(results: ClassResults) -> str:
    return f"{results.models[0].name}, {_level(results)}"


def _level(results: ClassResults) -> str:
    level, n = results.levels.main, results.parts.calibrate.n
    mark = chance(n, level)
    return f"n = {n:,}, epsilon = {level.epsilon:g}, delta = {level.delta:g}{mark and f' ({mark})'}"


def show_ablation(results: ClassResults, folder: ResultFolder) -> None:
    rows = ablation_rows(results)
    note = f"Compared on {results.parts.test.n:,} test images; a verdict is no proof."
    hidden = ("what", "smallest")
    folder.table("ablation", rows, f"Ablation ({_where(results)})", columns=_all_but(rows, hidden), note=note)
    sizes = {row["sets"]: one.size for row in rows if (one := results.at(row["sets"])) is not None}
    why = {row["sets"]: _wrapped(row["verdict"]) for row in rows if row["sets"] not in sizes}
    title = f"C calibrated, D direct bound (without: VC bound), ours: chosen score\n{_where(results)}"
    folder.figure("ablation", size_boxes(sizes, title, missing=why))


def show_correctness(results: ClassResults, folder: ResultFolder) -> None:
    rows = correctness_rows(results)
    note = "The promise is about all images; nothing is promised of either group."
    title = f"Correct against incorrect predictions ({_where(results)})"
    folder.table("correctness", rows, title, note=note)
    outcome = outcomes(*results.test)
    groups = {
        sets: {of: results.main(sets).size[outcome == of] for of in ("correct", "incorrect")}
        for sets in (PAPER, OURS)
    }
    title = f"Sizes where the classifier is right and where it is wrong\n{_where(results)}"
    folder.figure("correctness", grouped_boxes(groups, title))


def show_levels(results: ClassResults, folder: ResultFolder) -> None:
    words = {"epsilon": "promised error, epsilon", "delta": "probability that the promise fails, delta"}
    for name, levels in (("epsilon", results.levels.along_epsilon), ("delta", results.levels.along_delta)):
        rows = level_rows(results, levels)
        shown = ("epsilon", "delta", "sets", "allowed errors", "error", "verdict", "mean size", "median")
        folder.table(
            f"levels_{name}", rows, f"Sizes against {name} ({results.models[0].name})", columns=shown
        )
        groups: dict[str, Any] = {}
        for level in levels:
            found = {sets: one.size for sets in (PAPER, OURS) if (one := results.at(sets, level)) is not None}
            value = f"{getattr(level, name):g}"
            mark = chance(results.parts.calibrate.n, level) if found else "(not feasible)"
            groups[f"{value}\n{mark}" if mark else value] = found
        other = "delta" if name == "epsilon" else "epsilon"
        fixed = f"n = {results.parts.calibrate.n:,}, {other} = {getattr(results.levels.main, other):g}"
        title = (
            f"Sizes against {name}: quartiles, smallest and largest set\n{results.models[0].name}, {fixed}"
        )
        folder.figure(f"levels_{name}", level_boxes(groups, words[name], title))


def show_grid(results: ClassResults, folder: ResultFolder) -> None:
    n, table = results.parts.calibrate.n, results.levels.table
    rows = grid_rows(results)
    folder.table("grid", rows)
    for sets in (PAPER, OURS):
        for number in ("error", "mean size"):
            name = f"grid_{number.replace(' ', '_')}_{'paper' if sets == PAPER else 'ours'}"
            title = f"{number.capitalize()} of {sets} at each level ({results.models[0].name}, n = {n:,})"
            folder.table(name, grid_cells(results, sets, number), title)
    for sets in (PAPER, OURS):
        cells = sum(results.at(sets, level) is not None for level in table)
        print(
            f"  The {cells} levels of {sets} in the table: any of them fails with probability below "
            f"{at_least(results.cost(sets, table), 3)}."
        )
    title = (
        f"{results.models[0].name}, n = {n:,}: C calibrated, D direct bound, ours\n"
        "quartiles, smallest and largest set"
    )
    folder.figure("grid", grid_boxes(results, title))


def show_baselines(results: ClassResults, folder: ResultFolder) -> None:
    rows = baseline_rows(results)
    title = f"Baselines that promise nothing ({_where(results)})"
    folder.table("baselines", rows, title, columns=_all_but(rows, ("smallest",)))
    label = {"mass": "mass\nas it is", "mass, C": "mass, C\ncalibrated", PAPER: "C+D\npaper", OURS: "ours\n"}
    found = {label[row["sets"]]: results.main(row["sets"]) for row in rows}
    errors = {name: (one.evaluation.all.error, one.evaluation.all.interval) for name, one in found.items()}
    epsilon = results.levels.main.epsilon
    title = f"Measured error of baselines and PAC sets\n{_where(results)}"
    folder.figure("baselines_error", error_bars(errors, epsilon, title))
    title = f"Size of baselines and PAC sets\n{_where(results)}"
    folder.figure("baselines_size", size_boxes({name: one.size for name, one in found.items()}, title))


def show_architectures(results: ClassResults, folder: ResultFolder) -> None:
    rows, level = architecture_rows(results), results.levels.main
    note = "Top-1 error of all images; sizes, errors and calibration error (ECE) on the test part."
    title = f"Architectures at epsilon {level.epsilon:g}, delta {level.delta:g}"
    folder.table(
        "architectures", rows, title, columns=[c for c in rows[0] if not c.startswith("verdict")], note=note
    )
    if len(rows) < 2:
        return
    points = {}
    for row in rows:
        low, high = map(float, row["98% interval"].split(".."))
        sizes = {sets: row[f"mean size, {sets}"] for sets in ("D", PAPER, OURS)}
        points[row["classifier"]] = (row["top-1 error"], (low, high), sizes)
    level_words = _level(results)
    title = f"Set size against classification error\n{level_words}"
    folder.figure("architectures", size_against_error(points, title))
    sizes = {
        model.name: {sets: results.main(sets, model.name).size for sets in ("D", PAPER, OURS)}
        for model in results.models
    }
    folder.figure("architectures_size", grouped_boxes(sizes, f"Sizes of each architecture\n{level_words}"))


def show_reliability(results: ClassResults, folder: ResultFolder) -> None:
    rows = reliability_rows(results)
    forecast, labels = results.test
    errors = {
        "as it is": calibration_error(*readable(forecast, labels)),
        "calibrated": calibration_error(*readable(calibrated(results), labels)),
    }
    folder.table("reliability", rows)
    tau = architecture_rows(results)[0]["tau"]
    print(
        f"\nReliability: calibration error (ECE) {errors['as it is']:.4f} as it is, "
        f"{errors['calibrated']:.4f} with tau = {tau:.4g} (reliability.csv)"
    )
    title = f"Reliability of {results.models[0].name}, {len(labels):,} test images, tau = {tau:.3g}"
    folder.figure("reliability", reliability_diagram(rows, errors, title))


def show_coverage(results: ClassResults, folder: ResultFolder, names: Sequence[str]) -> None:
    rows, level = coverage_rows(results, names), results.levels.main
    sure = sum(row["high"] < 1 - level.epsilon for row in rows)
    note = (
        f"The promise is marginal, over all images and not for each class. {sure} of {len(rows):,} classes "
        f"have a 98% interval\n  below {1 - level.epsilon:g}; of classes that are covered so well, one in a "
        "hundred may have one by chance."
    )
    title = f"Coverage of each class by our sets, those with the lowest interval ({_where(results)})"
    folder.table("coverage", rows, title, first=8, note=note)
    title = f"Misses class by class: the promise is about all images, not each class\n{_where(results)}"
    folder.figure("coverage", class_coverage(rows, level.epsilon, title))


def show_pictures(results: ClassResults, folder: ResultFolder, images: Images, names: Sequence[str]) -> None:
    """The two picture tables, of the sets that fill most columns; at best ours at the main level."""
    classes, main = results.models[0].classes, results.levels.main
    drawn = {
        "pictures_by_size": (picture_table, size_columns(classes), "Test images by the size of their set"),
        "pictures_sets": (written_table, written_columns(classes), "Test images and their sets"),
    }
    legend = {
        "pictures_by_size": "in brackets: labels in the set; red frame: classified wrongly",
        "pictures_sets": "red: true label, hat: prediction, red frame: classified wrongly",
    }
    others = (PACLevel(epsilon, main.delta) for epsilon in sorted(results.levels.epsilons, reverse=True))
    levels = dict.fromkeys((main, *others))
    found = [
        one for sets in (OURS, PAPER) for level in levels if (one := results.at(sets, level)) is not None
    ]
    cases = [picture_cases(results, one, images) for one in found]
    print(f"\nPictures: {len(cases[0]):,} of the {results.parts.test.n:,} test images are in {images.folder}")
    for name, (draw, columns, title) in drawn.items():
        filled = [sum(any(case.within(sizes) for case in some) for sizes in columns) for some in cases]
        best = filled.index(max(filled))
        if not filled[best]:
            print(f"  none of them has a set of a size that {name}.png shows")
            continue
        sets, level = found[best].sets, found[best].level
        level_words = f"{sets}, epsilon = {level.epsilon:g}, delta = {level.delta:g}"
        lines = f"{title}\n{results.models[0].name}, {level_words}\n{legend[name]}"
        folder.figure(name, draw(cases[best], names, lines, columns=columns))


def _all_but(rows: Sequence[dict[str, Any]], hidden: Sequence[str]) -> list[str]:
    return [head for head in rows[0] if head not in hidden]


def _wrapped(words: str) -> str:
    return words.replace(" with ", "\nwith ").replace(", ", ",\n", 1)


def summary(results: ClassResults, folder: ResultFolder) -> str:
    """The main numbers in a few lines, for the end of the terminal."""
    level, paper, ours = results.levels.main, results.main(PAPER).evaluation, results.main().evaluation
    less = 1 - ours.all.mean / paper.all.mean
    change = f"{abs(less):.1%} {'fewer' if less >= 0 else 'more'}"
    return (
        f"\n{_where(results)}, {results.parts.test.n:,} test images\n"
        f"  promised error   at most {level.epsilon:.2%}, with confidence 1 - {level.delta:g}, for images "
        "drawn like those calibrated on\n"
        f"  measured error   {ours.all.error:.2%} with our sets, {paper.all.error:.2%} with the paper's C+D\n"
        f"  mean set size    {ours.all.mean:.2f} labels with ours, {paper.all.mean:.2f} with C+D ({change}); "
        f"median {ours.all.median:g} and {paper.all.median:g}\n"
        f"  test             {ours.verdict}\n"
        f"  certificate      {folder.folder / 'certificate.json'}\n"
        f"  everything else  {len(folder.written)} tables and figures in {folder.folder}"
    )
