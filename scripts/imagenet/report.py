"""The report of classification results: each function shows one result, as table and as figure."""

from functools import partial

import common
import numpy as np
from imagenet import pictures
from imagenet.sets import OURS, PAPER, WORDS, mark_chance, outcomes, say_infeasible
from scipy.stats import binom

from pac_core import PACLevel
from pac_core.arrays import round_up
from pac_core.bounds import min_samples, vc_min_samples
from pac_core.evaluation import calibration_error, error_interval
from pac_core.plots import INK
from pac_vision.plots import reliability_bins, reliability_diagram

NUMBERS = ("mean size", "median", "smallest", "largest")
SIZES = "labels in the set\n(line: median, diamond: mean)"
COLOURS = {"C": INK[3], "D": INK[4], PAPER: INK[0], OURS: INK[1], "mass": "#9a9a9a", "mass, C": "#5f6b73"}
COLOURS |= {"correct": INK[2], "incorrect": INK[3]}
# From large to small, so that equal sizes do not hide each other.
MARKS = {
    "D": {"marker": "s", "markersize": 11, "linewidth": 3.6, "alpha": 0.6},
    PAPER: {"marker": "o", "markersize": 8, "linewidth": 2.2},
    OURS: {"marker": "D", "markersize": 4, "linewidth": 1},
}


def show_results(results, folder, names, images):
    """Everything the paper shows of ImageNet; the picture tables where there are images."""
    every = (show_ablation, show_correctness, show_levels, show_grid, show_baselines, show_architectures)
    for show in (*every, show_reliability):
        show(results, folder)
    show_coverage(results, folder, names)
    if images is not None:
        show_pictures(results, folder, images, names)


def say_where(results):
    level, n = results.levels.main, results.parts.calibrate.n
    mark = mark_chance(n, level)
    at = f"n = {n:,}, epsilon = {level.epsilon:g}, delta = {level.delta:g}{mark and f' ({mark})'}"
    return f"{results.models[0].name}, {at}"


def say_verdict(found):
    return common.say_refuted(found, "refuted", "not refuted")


new_figure = partial(common.new_panel, label=SIZES, size=(6.6, 4.0), fontsize=10, pad=14)


def draw_kinds(axes, found):
    """A box for each kind of sets; kinds without sets have the reason, a text, written in their place."""
    for place, (name, sizes) in enumerate(found.items(), start=1):
        if isinstance(sizes, str):
            middle = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "center"}
            axes.text(place, 0.5, sizes, **middle, fontsize=8, color="#555555")
        else:
            common.draw_box(axes, sizes, place, COLOURS[name.partition("\n")[0]])
    scale_sizes(axes, [sizes for sizes in found.values() if not isinstance(sizes, str)])
    common.name_places(axes, list(found))


def scale_sizes(axes, sizes):
    """A logarithmic axis of whole numbers, with a place for empty sets."""
    from matplotlib.ticker import NullLocator

    every = np.concatenate([[1], *sizes])
    least, most = every.min(), every.max()
    axes.set_yscale("symlog", linthresh=1, linscale=0.35)
    ticks = [m * 10**p for p in range(7) for m in (1, 2, 5) if m * 10**p <= 1.2 * most]
    ticks = [0, *ticks] if least == 0 else ticks
    axes.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(-0.25 if least == 0 else 0.8, 1.5 * most)


def grouped_boxes(groups, title, *, along=""):
    """Boxes in groups, which may be values `along` an axis; a name has the same colour in every group."""
    from matplotlib.patches import Patch

    figure, axes = new_figure(title, size=(7.2 if along else 6.6, 4.2))
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    width, drawn = 0.8 / len(names), []
    for place, group in enumerate(groups.values(), start=1):
        for i, name in enumerate(names):
            if name in group and len(group[name]):
                at = place + (i - (len(names) - 1) / 2) * width
                common.draw_box(axes, group[name], at, COLOURS[name], width=0.85 * width)
                drawn.append(group[name])
    scale_sizes(axes, drawn)
    common.name_places(axes, list(groups))
    handles = [Patch(facecolor=COLOURS[name], edgecolor="black", alpha=0.6, label=name) for name in names]
    figure.legend(handles=handles, frameon=False, loc="outside lower center", ncols=len(names), fontsize=9)
    axes.set_xlabel(along)
    return figure


def measured_numbers(group, verdict=None):
    row = {"error": group.error, "98% interval": common.interval_text(group.interval)}
    row |= {} if verdict is None else {"verdict": verdict}
    return row | dict(zip(NUMBERS, (group.mean, group.median, group.smallest, group.largest), strict=True))


def ablation_row(results, sets, level):
    """One kind of sets at one level in numbers; what is out of reach says so."""
    found, n, row = results.at(sets, level), results.parts.calibrate.n, {"sets": sets, "what": WORDS[sets]}
    if found is not None:
        row |= {"allowed errors": found.predictor.threshold.errors}
        return row | measured_numbers(found.evaluation.all, say_verdict(found.evaluation))
    words = say_infeasible(n, vc_min_samples(level) if sets == "C" else min_samples(level))
    row |= dict.fromkeys(("allowed errors", "error", "98% interval"), "")
    return row | {"verdict": f"not feasible with n = {n:,}, {words}"} | dict.fromkeys(NUMBERS, "")


def ablation_rows(results, level=None):
    """The paper's ablation in numbers, with the VC bound and with ours; a row for each kind of sets."""
    return [ablation_row(results, sets, level or results.levels.main) for sets in ("C", "D", PAPER, OURS)]


def show_ablation(results, folder):
    rows, where, found = ablation_rows(results), say_where(results), {}
    note = f"Compared on {results.parts.test.n:,} test images; a verdict is no proof."
    folder.table("ablation", rows, f"Ablation ({where})", hidden=("what", "smallest"), note=note)
    for row in rows:
        one, why = results.at(row["sets"]), row["verdict"].replace(" with ", "\nwith ")
        found[row["sets"]] = why.replace(", ", ",\n", 1) if one is None else one.size
    title = f"C calibrated, D direct bound (without: VC bound), ours: chosen score\n{where}"
    figure, axes = new_figure(title)
    draw_kinds(axes, found)
    folder.figure("ablation", figure)


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
    folder.figure("correctness", grouped_boxes(groups, title))


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
        folder.figure(f"levels_{name}", grouped_boxes(groups, title, along=f"{along}, {name}"))


def grid_cells(results, sets, number):
    """One 5 x 3 table: epsilon down, delta across; `number` is ``error`` or ``mean size``."""

    def cell(level):
        found = results.at(sets, level)
        if found is None:
            return say_infeasible(results.parts.calibrate.n, min_samples(level))
        row, doubt = found.evaluation.all, common.say_refuted(found.evaluation, " refuted", "")
        return f"{row.error:.4f}{doubt}" if number == "error" else f"{row.mean:.4g}"

    deltas = results.levels.deltas
    return [
        {"epsilon": epsilon} | {f"delta {delta:g}": cell(PACLevel(epsilon, delta)) for delta in deltas}
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
    folder.figure("grid", grid_boxes(results, title))


def grid_boxes(results, title):
    """The ablation at each epsilon (down) and delta (across), all with the same axes."""
    table, n, every = results.levels.table, results.parts.calibrate.n, []
    kinds = ["C", "D", PAPER, OURS][not any(results.at("C", level) for level in table) :]

    def draw(axes, level):
        sizes = {kind: one.size for kind in kinds if (one := results.at(kind, level)) is not None}
        every.extend(sizes.values())
        if sizes:
            draw_kinds(axes, {kind: sizes.get(kind, "not\nfeasible") for kind in kinds})
        else:
            words = f"not feasible with n = {n:,}\n{say_infeasible(n, min_samples(level))}"
            axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, fontsize=8.5)
        if mark := mark_chance(n, level):
            axes.set_title(f"{common.say_level(level)} ({mark})", fontsize=9)

    figure = common.level_grid(table, draw, title, SIZES.replace("\n", " "))
    # The panels share an axis, which must have room for all of them and not for the last alone.
    scale_sizes(figure.axes[0], every)
    return figure


def baseline_rows(results):
    """The paper's comparison with sets that promise nothing."""
    rows = []
    for sets in ("mass", "mass, C", PAPER, OURS):
        found = results.main(sets).evaluation
        promise, verdict = f"error <= {results.levels.main.epsilon:g}", say_verdict(found)
        if sets.startswith("mass"):
            promise, verdict = (
                "none",
                common.say_refuted(found, "above epsilon beyond doubt", "nothing to refute"),
            )
        rows.append({"sets": sets, "promise": promise} | measured_numbers(found.all, verdict))
    return rows


def show_baselines(results, folder):
    where = say_where(results)
    title = f"Baselines that promise nothing ({where})"
    folder.table("baselines", baseline_rows(results), title, hidden=("smallest",))
    label = {"mass": "mass\nas it is", "mass, C": "mass, C\ncalibrated", PAPER: "C+D\npaper", OURS: "ours\n"}
    found = {label[sets]: results.main(sets) for sets in label}
    words = "share of test images whose set misses\n(whisker: exact 98% interval)"
    figure, axes = new_figure(f"Measured error of baselines and PAC sets\n{where}", label=words)
    errors = {name: one.evaluation.all for name, one in found.items()}
    common.draw_errors(axes, errors, results.levels.main.epsilon, [COLOURS[sets] for sets in label])
    axes.margins(y=0.2)
    folder.figure("baselines_error", figure)
    figure, axes = new_figure(f"Size of baselines and PAC sets\n{where}")
    draw_kinds(axes, {name: one.size for name, one in found.items()})
    folder.figure("baselines_size", figure)


def find_temperature(score):
    """The temperature of the paper's score; 1 where it has none."""
    return 1.0 if score.temperature is None else float(score.temperature.tau)


def readable_test(results, model):
    """Of the test images that are not broken: the forecast as it is, calibrated on the tune part, labels."""
    forecast, labels = model.take(results.parts.test.rows)
    rows = np.flatnonzero(outcomes(forecast, labels) != "broken")
    calibrated = results.main(PAPER, model.name).predictor.score.prepared(forecast)
    return forecast.take(rows), calibrated.take(rows), labels[rows]


def error_of(model):
    """The top-1 error and its interval; nothing was fitted to it, so it is counted on all images."""
    wrong, n = int((outcomes(model.forecast, model.labels) != "correct").sum()), len(model.labels)
    return wrong / n, error_interval(wrong, n)


def architecture_rows(results):
    """Each classifier: how often it errs, how calibrated it is, and its sets at the main level."""
    rows = []
    for model in results.models:
        plain, calibrated, labels = readable_test(results, model)
        error, ends = error_of(model)
        row = {"classifier": model.name, "top-1 error": error, "98% interval": common.interval_text(ends)}
        row |= {"tau": find_temperature(results.main(PAPER, model.name).predictor.score)}
        row |= {"ECE": calibration_error(plain, labels), "ECE, C": calibration_error(calibrated, labels)}
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
    ends = [error_of(model)[1] for model in results.models]
    folder.figure("architectures", size_against_error(rows, ends, words))
    names = [model.name for model in results.models]
    sizes = {name: {sets: results.main(sets, name).size for sets in MARKS} for name in names}
    folder.figure("architectures_size", grouped_boxes(sizes, f"Sizes of each architecture\n{words}"))


def size_against_error(rows, ends, words):
    """Mean set size against top-1 error, a point for each classifier and kind of sets."""
    title = f"Set size against classification error\n{words}"
    figure, axes = new_figure(title, label="mean number of labels in the set", size=(6.6, 4.4))
    order = np.argsort([row["top-1 error"] for row in rows])
    rows, ends = [rows[i] for i in order], np.array(ends)[order].T
    errors = np.array([row["top-1 error"] for row in rows])
    sizes = np.array([[row[f"mean size, {kind}"] for row in rows] for kind in MARKS])
    for (kind, mark), means in zip(MARKS.items(), sizes, strict=True):
        axes.plot(errors, means, color=COLOURS[kind], label=kind, fillstyle="none", **mark)
    low, top = sizes.min(), sizes.max()
    floor, ceiling = max(0, low - 0.5 * (top - low) - 0.05 * top), top + 1.1 * (top - low) + 0.25 * top
    axes.set_ylim(floor, ceiling)
    heights = floor + (ceiling - floor) * (0.03 + 0.035 * np.arange(len(errors)))
    grey = {"color": "#8a8a8a", "linestyle": "none", "capsize": 2, "elinewidth": 1, "marker": "|"}
    axes.errorbar(errors, heights, xerr=abs(ends - errors), label="exact 98% interval of the error", **grey)
    place, apart = -np.inf, 0.035 * np.diff(axes.get_xlim())[0]
    how = {"rotation": 90, "ha": "center", "va": "top", "fontsize": 8.5}
    how |= {"arrowprops": {"arrowstyle": "-", "color": "#bbbbbb", "shrinkB": 4}}
    for row, error, tallest in zip(rows, errors, sizes.max(axis=0), strict=True):
        place = max(error, place + apart)
        axes.annotate(row["classifier"], (error, tallest), xytext=(place, ceiling), **how)
    axes.set_xlabel("top-1 error")
    figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=9)
    return figure


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
    """The coverage of each class, which nothing is promised of; the surely least covered first."""
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
    figure, axes = new_figure(title, size=(7.0, 4.2))
    (draw_few_classes if len(rows) <= 40 else draw_many_classes)(axes, rows, epsilon)
    axes.legend(frameon=False)
    folder.figure("coverage", figure)


def draw_few_classes(axes, rows, epsilon):
    """The coverage of each class with its exact interval."""
    values, low, high = (np.array([row[key] for row in rows]) for key in ("coverage", "low", "high"))
    places, ends = np.arange(len(rows)), [values - low, high - values]
    axes.errorbar(places, values, ends, color=INK[0], marker="o", linestyle="none", capsize=3)
    axes.set_xticks(places, [row["class"] for row in rows], rotation=45, ha="right", fontsize=8)
    axes.axhline(1 - epsilon, color="black", linestyle=":", label=f"1 - epsilon = {1 - epsilon:g}")
    axes.set_ylabel("share of the class's test images covered\n(whisker: exact 98% interval)", fontsize=9)


def draw_many_classes(axes, rows, epsilon):
    """How many classes are missed how often, beside what equal classes would give."""
    images = np.array([row["images"] for row in rows])
    missed = images - np.array([row["covered"] for row in rows])
    places = np.arange(missed.max() + 1)
    equal = [float(np.sum(binom.pmf(k, images, missed.sum() / images.sum()))) for k in places]
    for counts, shift, colour, label in (
        (np.bincount(missed), -0.2, INK[0], "classes found"),
        (equal, 0.2, "#b5b5b5", "if every class had the same error"),
    ):
        bars = axes.bar(places + shift, counts, width=0.38, color=colour, alpha=0.65, label=label)
        axes.bar_label(bars, [f"{count:.3g}" for count in counts], padding=2, fontsize=8)
    axes.set_yscale("log")
    axes.set_ylim(0.5, 3 * max(np.bincount(missed).max(), *equal))
    axes.set_xticks(places)
    few, many = images.min(), images.max()
    axes.set_xlabel(f"images of a class that its sets miss (of {few} to {many} in the test part)")
    axes.set_ylabel("classes", fontsize=9)


def show_pictures(results, folder, images, names):
    """The two picture tables, of the sets that fill most columns; at best ours at the main level."""
    model, main = results.models[0], results.levels.main
    others = (PACLevel(epsilon, main.delta) for epsilon in sorted(results.levels.epsilons, reverse=True))
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
