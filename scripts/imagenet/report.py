"""The report of classification results: each function shows one result, as table and as figure."""

import math

import numpy as np
from common import interval_text
from imagenet import figures, pictures
from imagenet.inputs import mark_chance, outcomes, say_infeasible
from imagenet.sets import OURS, PAPER, WORDS

import pac_core as pac
from pac_core.arrays import round_up
from pac_core.bounds import min_samples, vc_min_samples
from pac_core.evaluation import calibration_error, error_interval
from pac_core.scores import Temperature
from pac_vision.plots import reliability_bins, reliability_diagram

SIZES = ("mean size", "median", "smallest", "largest")


def show_results(results, folder, names, images):
    """Everything the paper shows of ImageNet, into the folder and onto the terminal.

    images: to draw the picture tables from; without them there are none
    """
    for show in (show_ablation, show_correctness, show_levels, show_grid, show_baselines, show_architectures):
        show(results, folder)
    show_reliability(results, folder)
    show_coverage(results, folder, names)
    if images is not None:
        show_pictures(results, folder, images, names)


def say_where(results):
    level, n = results.levels.main, results.parts.calibrate.n
    mark = mark_chance(n, level)
    at = f"n = {n:,}, epsilon = {level.epsilon:g}, delta = {level.delta:g}{mark and f' ({mark})'}"
    return f"{results.models[0].name}, {at}"


def say_verdict(evaluation):
    return "refuted" if evaluation.refuted else "not refuted"


def measured_numbers(group, verdict=None):
    row = {"error": group.error, "98% interval": interval_text(group.interval)}
    row |= {} if verdict is None else {"verdict": verdict}
    return row | dict(zip(SIZES, (group.mean, group.median, group.smallest, group.largest), strict=True))


def ablation_row(results, sets, level):
    """One kind of sets at one level in numbers; what is out of reach says so."""
    found, n, row = results.at(sets, level), results.parts.calibrate.n, {"sets": sets, "what": WORDS[sets]}
    if found is not None:
        row |= {"allowed errors": found.predictor.threshold.errors}
        return row | measured_numbers(found.evaluation.all, say_verdict(found.evaluation))
    words = say_infeasible(n, vc_min_samples(level) if sets == "C" else min_samples(level))
    row |= dict.fromkeys(("allowed errors", "error", "98% interval"), "")
    return row | {"verdict": f"not feasible with n = {n:,}, {words}"} | dict.fromkeys(SIZES, "")


def ablation_rows(results, level=None):
    """The paper's ablation in numbers, with the VC bound and with ours; a row for each kind of sets."""
    return [ablation_row(results, sets, level or results.levels.main) for sets in ("C", "D", PAPER, OURS)]


def show_ablation(results, folder):
    rows, where = ablation_rows(results), say_where(results)
    note = f"Compared on {results.parts.test.n:,} test images; a verdict is no proof."
    folder.table("ablation", rows, f"Ablation ({where})", hidden=("what", "smallest"), note=note)
    said = {row["sets"]: row["verdict"].replace(" with ", "\nwith ").replace(", ", ",\n", 1) for row in rows}
    sizes = {sets: one.size for sets in said if (one := results.at(sets)) is not None}
    why = {sets: words for sets, words in said.items() if sets not in sizes}
    title = f"C calibrated, D direct bound (without: VC bound), ours: chosen score\n{where}"
    folder.figure("ablation", figures.size_boxes(sizes, title, missing=why))


def show_correctness(results, folder):
    """Images that the classifier labels correctly, others, and broken ones; nothing is promised of any."""
    rows, where, outcome, groups = [], say_where(results), outcomes(*results.test), {}
    for sets in (PAPER, OURS):
        for group in results.main(sets).evaluation.rows[1:]:
            of = group.name.removeprefix("prediction=")
            rows.append({"sets": sets, "prediction": of, "images": group.n} | measured_numbers(group))
        groups[sets] = {of: results.main(sets).size[outcome == of] for of in ("correct", "incorrect")}
    note = "The promise is about all images; nothing is promised of either group."
    folder.table("correctness", rows, f"Correct against incorrect predictions ({where})", note=note)
    title = f"Sizes where the classifier is right and where it is wrong\n{where}"
    folder.figure("correctness", figures.grouped_boxes(groups, title))


def show_levels(results, folder):
    n, model, main = results.parts.calibrate.n, results.models[0].name, results.levels.main
    for name, levels, along, fixed in (
        ("epsilon", results.levels.along_epsilon, "promised error", f"delta = {main.delta:g}"),
        ("delta", results.levels.along_delta, "probability that it fails", f"epsilon = {main.epsilon:g}"),
    ):
        rows, groups = [], {}
        for level in levels:
            at = {"epsilon": level.epsilon, "delta": level.delta}
            rows += [at | ablation_row(results, sets, level) for sets in (PAPER, OURS)]
            found = {sets: one.size for sets in (PAPER, OURS) if (one := results.at(sets, level)) is not None}
            mark = mark_chance(n, level) if found else "(not feasible)"
            groups[f"{at[name]:g}\n{mark}".strip()] = found
        hidden = ("what", "98% interval", "smallest", "largest")
        folder.table(f"levels_{name}", rows, f"Sizes against {name} ({model})", hidden=hidden)
        title = f"Sizes against {name}: quartiles, smallest and largest set\n{model}, n = {n:,}, {fixed}"
        folder.figure(f"levels_{name}", figures.grouped_boxes(groups, title, along=f"{along}, {name}"))


def grid_cells(results, sets, number):
    """One 5 x 3 table: epsilon down, delta across; `number` is ``error`` or ``mean size``."""

    def cell(level):
        found = results.at(sets, level)
        if found is None:
            return say_infeasible(results.parts.calibrate.n, min_samples(level))
        row, doubt = found.evaluation.all, " refuted" if found.evaluation.refuted else ""
        return f"{row.error:.4f}{doubt}" if number == "error" else f"{row.mean:.4g}"

    deltas = results.levels.deltas
    return [
        {"epsilon": epsilon} | {f"delta {delta:g}": cell(pac.PACLevel(epsilon, delta)) for delta in deltas}
        for epsilon in results.levels.epsilons
    ]


def show_grid(results, folder):
    n, table, model = results.parts.calibrate.n, results.levels.table, results.models[0].name
    at = [({"epsilon": level.epsilon, "delta": level.delta}, level) for level in table]
    folder.table("grid", [head | row for head, level in at for row in ablation_rows(results, level)])
    for sets, short in ((PAPER, "paper"), (OURS, "ours")):
        for number in ("error", "mean size"):
            title = f"{number.capitalize()} of {sets} at each level ({model}, n = {n:,})"
            name = f"grid_{number.replace(' ', '_')}_{short}"
            folder.table(name, grid_cells(results, sets, number), title)
        cells, cost = sum(results.at(sets, level) is not None for level in table), results.cost(sets, table)
        words = f"any of them fails with probability below {round_up(cost, 3)}."
        print(f"  The {cells} levels of {sets} in the table: {words}")
    title = f"{model}, n = {n:,}: C calibrated, D direct bound, ours\nquartiles, smallest and largest set"
    folder.figure("grid", figures.grid_boxes(results, title))


def baseline_rows(results):
    """The paper's comparison with sets that promise nothing."""
    rows = []
    for sets in ("mass", "mass, C", PAPER, OURS):
        found = results.main(sets).evaluation
        promise, verdict = f"error <= {results.levels.main.epsilon:g}", say_verdict(found)
        if sets.startswith("mass"):
            promise, verdict = "none", "above epsilon beyond doubt" if found.refuted else "nothing to refute"
        rows.append({"sets": sets, "promise": promise} | measured_numbers(found.all, verdict))
    return rows


def show_baselines(results, folder):
    where = say_where(results)
    title = f"Baselines that promise nothing ({where})"
    folder.table("baselines", baseline_rows(results), title, hidden=("smallest",))
    label = {"mass": "mass\nas it is", "mass, C": "mass, C\ncalibrated", PAPER: "C+D\npaper", OURS: "ours\n"}
    found = {label[sets]: results.main(sets) for sets in label}
    errors = {name: (one.evaluation.all.error, one.evaluation.all.interval) for name, one in found.items()}
    title = f"Measured error of baselines and PAC sets\n{where}"
    folder.figure("baselines_error", figures.error_bars(errors, results.levels.main.epsilon, title))
    sizes = {name: one.size for name, one in found.items()}
    folder.figure("baselines_size", figures.size_boxes(sizes, f"Size of baselines and PAC sets\n{where}"))


def find_temperature(score):
    """The temperature of the paper's score; 1 where it has none."""
    return math.prod(float(step.tau) for step in score.preparations if isinstance(step, Temperature))


def readable_test(results, model):
    """Of the test images that are not broken: the forecast as it is, calibrated on the tune part, labels."""
    forecast, labels = model.take(results.parts.test.rows)
    rows = np.flatnonzero(outcomes(forecast, labels) != "broken")
    calibrated = results.main(PAPER, model.name).predictor.score.prepared(forecast)
    return forecast.take(rows), calibrated.take(rows), labels[rows]


def count_wrong(model):
    """Nothing was fitted to the predictions themselves, so their errors are counted on all images."""
    return int((outcomes(model.forecast, model.labels) != "correct").sum()), len(model.labels)


def architecture_rows(results):
    """Each classifier: how often it errs, how calibrated it is, and its sets at the main level."""
    rows = []
    for model in results.models:
        plain, calibrated, labels = readable_test(results, model)
        wrong, n = count_wrong(model)
        row = {
            "classifier": model.name,
            "top-1 error": wrong / n,
            "98% interval": interval_text(error_interval(wrong, n)),
            "tau": find_temperature(results.main(PAPER, model.name).predictor.score),
            "ECE": calibration_error(plain, labels),
            "ECE, C": calibration_error(calibrated, labels),
        }
        for sets in ("D", PAPER, OURS):
            found = results.main(sets, model.name).evaluation
            row |= {f"error, {sets}": found.all.error, f"mean size, {sets}": found.all.mean}
            row |= {f"median, {sets}": found.all.median, f"verdict, {sets}": say_verdict(found)}
        rows.append(row)
    return rows


def show_architectures(results, folder):
    rows, level = architecture_rows(results), results.levels.main
    words = say_where(results).partition(", ")[2]
    note = "Top-1 error of all images; sizes, errors and calibration error (ECE) on the test part."
    title = f"Architectures at epsilon {level.epsilon:g}, delta {level.delta:g}"
    hidden = [head for head in rows[0] if head.startswith("verdict")]
    folder.table("architectures", rows, title, hidden=hidden, note=note)
    if len(rows) < 2:
        return
    intervals = [error_interval(*count_wrong(model)) for model in results.models]
    title = f"Set size against classification error\n{words}"
    folder.figure("architectures", figures.size_against_error(rows, intervals, title))
    kinds, names = ("D", PAPER, OURS), [model.name for model in results.models]
    sizes = {name: {sets: results.main(sets, name).size for sets in kinds} for name in names}
    folder.figure("architectures_size", figures.grouped_boxes(sizes, f"Sizes of each architecture\n{words}"))


def show_reliability(results, folder):
    model, tau = results.models[0], find_temperature(results.main(PAPER).predictor.score)
    *forecasts, labels = readable_test(results, model)
    rows, errors, shown = [], [], {}
    for name, forecast in zip(("as it is", "calibrated"), forecasts, strict=True):
        bins = reliability_bins(forecast, labels)
        errors.append(calibration_error(forecast, labels))
        rows += [{"forecast": name} | row for row in bins]
        shown[f"{name}: ECE {errors[-1]:.3f}"] = bins
    folder.table("reliability", rows)
    words = f"{errors[0]:.4f} as it is, {errors[1]:.4f} with tau = {tau:.4g}"
    print(f"\nReliability: calibration error (ECE) {words} (reliability.csv)")
    title = f"Reliability of {model.name}, {results.parts.test.n:,} test images, tau = {tau:.3g}"
    folder.figure("reliability", reliability_diagram(shown, title))


def coverage_rows(results, names, sets=OURS):
    """The share of each class's test images whose set holds the truth, the surely least covered first.

    The promise is about all images together. A class that is covered less than 1 - epsilon breaks nothing.
    """
    found, (_, labels), rows = results.main(sets), results.test, []
    for label in np.unique(labels).tolist():
        mine = labels == label
        n, missed = int(mine.sum()), int(found.missed[mine].sum())
        low, high = error_interval(missed, n)
        row = {"label": label, "class": names[label], "images": n, "covered": n - missed}
        row |= {"coverage": 1 - missed / n, "low": 1 - high, "high": 1 - low}
        rows.append(row | {"mean size": float(found.size[mine].mean())})
    return sorted(rows, key=lambda row: (row["high"], row["coverage"], row["label"]))


def show_coverage(results, folder, names):
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
    folder.figure("coverage", figures.class_coverage(rows, epsilon, title))


def show_pictures(results, folder, images, names):
    """The two picture tables, of the sets that fill most columns; at best ours at the main level."""
    model, main = results.models[0], results.levels.main
    others = (pac.PACLevel(epsilon, main.delta) for epsilon in sorted(results.levels.epsilons, reverse=True))
    keys = [(sets, level) for sets in (OURS, PAPER) for level in dict.fromkeys((main, *others))]
    found = [one for key in keys if (one := results.at(*key)) is not None]
    cases = [pictures.find_cases(results, one, images) for one in found]
    print(f"\nPictures: {len(cases[0]):,} of the {results.parts.test.n:,} test images are in {images.folder}")
    size, written = pictures.size_columns(model.classes), pictures.written_columns(model.classes)
    by_size = "Test images by the size of their set", "in brackets: its labels; red frame: classified wrongly"
    sets = "Test images and their sets", "red: true label, hat: prediction, red frame: classified wrongly"
    for name, draw, columns, (head, legend) in (
        ("pictures_by_size", pictures.picture_table, size, by_size),
        ("pictures_sets", pictures.written_table, written, sets),
    ):
        filled = [sum(any(case.within(one) for case in some) for one in columns) for some in cases]
        best = filled.index(max(filled))
        if not filled[best]:
            print(f"  none of them has a set of a size that {name}.png shows")
            continue
        level = found[best].level
        words = f"{model.name}, {found[best].sets}, epsilon = {level.epsilon:g}, delta = {level.delta:g}"
        folder.figure(name, draw(cases[best], names, f"{head}\n{words}\n{legend}", columns))


def summarise(results, folder):
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
