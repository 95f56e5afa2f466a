"""The report of classification results: each function shows one result, as table and as figure."""

import textwrap
from functools import partial

import common
import numpy as np
from common import INK
from imagenet import pictures
from imagenet.sets import OURS, PAPER, outcomes, say_infeasible

from pac_core import PACLevel
from pac_core.arrays import round_up
from pac_core.bounds import min_samples, vc_min_samples
from pac_core.evaluation import calibration_error, error_interval

NUMBERS = ("mean size", "median", "smallest", "largest")
SIZES = "labels in the set\n(line: median, diamond: mean)"
COLOURS = {"C": INK[3], "D": INK[4], PAPER: INK[0], OURS: INK[1], "mass": "#9a9a9a", "mass, C": "#5f6b73"}
COLOURS |= {"correct": INK[2], "incorrect": INK[3]}


def show_results(results, folder, names, images):
    """Everything the paper shows of ImageNet; the picture tables where there are images."""
    show_ablation(results, folder)
    show_correctness(results, folder)
    show_levels(results, folder)
    show_grid(results, folder)
    show_baselines(results, folder)
    show_architectures(results, folder)
    if images is not None:
        show_pictures(results, folder, images, names)


def say_where(results):
    n = results.parts.calibrate.n
    return f"{results.models[0].name}, n = {n:,}, {common.say_level(results.levels.main)}"


say_verdict = partial(common.say_refuted, yes="refuted", no="not refuted")
new_figure = partial(common.new_panel, label=SIZES, size=(6.6, 4.0), fontsize=10, pad=14)


def draw_kinds(axes, found):
    """A box for each kind of sets; kinds without sets have the reason, a text, written in their place."""
    for place, (name, sizes) in enumerate(found.items(), start=1):
        if isinstance(sizes, str):
            middle = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "center"}
            axes.text(place, 0.5, sizes, **middle, fontsize=8, color="#555555")
        else:
            common.draw_box(axes, sizes, place, COLOURS[name])
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
    found, n, row = results.at(sets, level), results.parts.calibrate.n, {"sets": sets}
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
    rows, where = ablation_rows(results), say_where(results)
    note = f"Compared on {results.parts.test.n:,} test images; a verdict is no proof."
    folder.table("ablation", rows, f"Ablation ({where})", hidden=("smallest",), note=note)
    reasons = {row["sets"]: textwrap.fill(row["verdict"], 14) for row in rows}
    found = {sets: one.size if (one := results.at(sets)) else why for sets, why in reasons.items()}
    title = f"C calibrated, D direct bound (without: VC bound), ours: chosen score\n{where}"
    figure, axes = new_figure(title)
    draw_kinds(axes, found)
    folder.figure("ablation", figure)


def show_correctness(results, folder):
    """Images that the classifier labels correctly, others, and broken ones; nothing is promised of any."""
    rows, where, outcome, groups = (
        [],
        say_where(results),
        outcomes(*results.models[0].take(results.parts.test.rows)),
        {},
    )
    for sets in (PAPER, OURS):
        for group in results.at(sets).evaluation.rows[1:]:
            of = group.name.removeprefix("prediction=")
            rows.append({"sets": sets, "prediction": of, "images": group.n} | measured_numbers(group))
        groups[sets] = {of: results.at(sets).size[outcome == of] for of in ("correct", "incorrect")}
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
            groups[f"{at[name]:g}" if found else f"{at[name]:g}\n(not feasible)"] = found
        hidden = ("98% interval", "smallest", "largest")
        folder.table(f"levels_{name}", rows, f"Sizes against {name} ({model})", hidden=hidden)
        title = f"Sizes against {name}: quartiles, smallest and largest set\n{model}, n = {n:,}, {fixed}"
        folder.figure(f"levels_{name}", grouped_boxes(groups, title, along=f"{along}, {name}"))


def grid_cells(results, sets):
    """Mean size and, in brackets, error at each level: epsilon down, delta across."""

    def cell(level):
        found = results.at(sets, level)
        if found is None:
            return say_infeasible(results.parts.calibrate.n, min_samples(level))
        row, doubt = found.evaluation.all, common.say_refuted(found.evaluation, " refuted", "")
        return f"{row.mean:.4g} ({row.error:.4f}{doubt})"

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
        title = f"Mean size (and error) of {sets} at each level ({model}, n = {n:,})"
        words = f"any of them fails with probability below {round_up(results.cost(sets, table), 3)}."
        folder.table(f"grid_{short}", grid_cells(results, sets), title, note=words)
    title = f"{model}, n = {n:,}: C calibrated, D direct bound, ours\nquartiles, smallest and largest set"
    folder.figure("grid", grid_boxes(results, title))


def grid_boxes(results, title):
    """The ablation at each epsilon (down) and delta (across), all with the same axes."""
    table, every = results.levels.table, []
    kinds = ["C", "D", PAPER, OURS][not any(results.at("C", level) for level in table) :]

    def draw(axes, level):
        sizes = {kind: one.size for kind in kinds if (one := results.at(kind, level)) is not None}
        every.extend(sizes.values())
        draw_kinds(axes, {kind: sizes.get(kind, "not\nfeasible") for kind in kinds})

    figure = common.level_grid(table, draw, title, SIZES.replace("\n", " "))
    # The panels share an axis, which must have room for all of them and not for the last alone.
    scale_sizes(figure.axes[0], every)
    return figure


def baseline_rows(results):
    """The paper's comparison with sets that promise nothing."""
    rows = []
    for sets in ("mass", "mass, C", PAPER, OURS):
        found = results.at(sets).evaluation
        promise, verdict = f"error <= {results.levels.main.epsilon:g}", say_verdict(found)
        if sets.startswith("mass"):
            verdict = common.say_refuted(found, "above epsilon beyond doubt", "nothing to refute")
            promise = "none"
        rows.append({"sets": sets, "promise": promise} | measured_numbers(found.all, verdict))
    return rows


def show_baselines(results, folder):
    where = say_where(results)
    title = f"Baselines that promise nothing ({where})"
    folder.table("baselines", baseline_rows(results), title, hidden=("smallest",))
    found = {sets: results.at(sets) for sets in ("mass", "mass, C", PAPER, OURS)}
    words = "share of test images whose set misses\n(whisker: exact 98% interval)"
    figure, axes = new_figure(f"Measured error of baselines and PAC sets\n{where}", label=words)
    errors = {name: one.evaluation.all for name, one in found.items()}
    common.draw_errors(axes, errors, results.levels.main.epsilon, [COLOURS[sets] for sets in found])
    axes.margins(y=0.2)
    folder.figure("baselines_error", figure)
    figure, axes = new_figure(f"Size of baselines and PAC sets\n{where}")
    draw_kinds(axes, {name: one.size for name, one in found.items()})
    folder.figure("baselines_size", figure)


def architecture_rows(results):
    """Each classifier: how often it errs, how calibrated it is, and its sets at the main level."""
    rows, test = [], results.parts.test.rows
    for model in results.models:
        score, (forecast, labels) = results.at(PAPER, model=model.name).predictor.score, model.take(test)
        whole = np.flatnonzero(outcomes(forecast, labels) != "broken")
        plain, calibrated = forecast.take(whole), score.prepared(forecast).take(whole)
        # Nothing was fitted to the top-1 error, so it is counted on all images.
        wrong, n = int((outcomes(model.forecast, model.labels) != "correct").sum()), len(model.labels)
        ends = common.interval_text(error_interval(wrong, n))
        row = {"classifier": model.name, "top-1 error": wrong / n, "98% interval": ends}
        row |= {"tau": 1.0 if score.temperature is None else float(score.temperature.tau)}
        row |= {"ECE": calibration_error(plain, labels[whole])}
        row |= {"ECE, C": calibration_error(calibrated, labels[whole])}
        for sets in ("D", PAPER, OURS):
            found = results.at(sets, model=model.name).evaluation
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
    names, kinds = [model.name for model in results.models], ("D", PAPER, OURS)
    sizes = {name: {sets: results.at(sets, model=name).size for sets in kinds} for name in names}
    folder.figure("architectures_size", grouped_boxes(sizes, f"Sizes of each architecture\n{words}"))


def show_pictures(results, folder, images, names):
    """The two picture tables, of our sets at the main level."""
    model, cases = results.models[0], pictures.find_cases(results, images)
    print(f"\nPictures: {len(cases):,} of the {results.parts.test.n:,} test images are in {images.folder}")
    by_size = "Test images by the size of their set", "in brackets: its labels; red frame: classified wrongly"
    sets = "Test images and their sets", "^: prediction; red frame: classified wrongly"
    few = pictures.FEW if model.classes < 100 else None
    for name, draw, columns, (head, legend) in (
        ("pictures_by_size", pictures.picture_table, few or pictures.BY_SIZE, by_size),
        ("pictures_sets", pictures.written_table, few or pictures.WRITTEN, sets),
    ):
        if any(case.within(size) for case in cases for size in columns.values()):
            title = f"{head}\n{say_where(results)}, {OURS}\n{legend}"
            folder.figure(name, draw(cases, names, title, columns))
        else:
            print(f"  none of them has a set of a size that {name}.png shows")
