"""The paper's ImageNet experiment: ablation, levels, baselines, architectures, pictures; and ours beside it.

    python scripts/imagenet_results.py --logits imagenet/efficientnet_lite0_val5k.npz \\
        --images imagenet/val300 --classes imagenet/imagenet_class_index.json --out imagenet_output
    python scripts/imagenet_results.py --images imagenet/val300 --model efficientnet-lite0 \\
        --model efficientnet-lite1 --classes imagenet/imagenet_class_index.json --out lite_output
    python scripts/imagenet_results.py --smoke-test

Takes stored logits (npz or parquet with logits, labels, and ids or files), or scores the images of a folder
with one or more models on Ray. A fifth of the images tunes, two fifths calibrate, the rest tests. Everything
is in the output folder: tables (csv), figures (PNG), certificates, the logits that were computed.

Expect errors below epsilon, sets of C+D and ours far smaller than those of the calibrated baseline, and
larger sets where the classifier is wrong. The certificates come from one look at the calibrate part, whose
menu is in the ledger beside the output folder before anything is read; all else is measured on the test
part and is a comparison, not a promise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pac_core import (
    InvalidInput,
    LogitForecast,
    PACError,
    PACLevel,
    Record,
    UnreadableFile,
    calibration_error,
    write_certificate,
)
from pac_core.ledger import score_digest
from pac_core.tables import file_digest, read_arrays
from pac_vision import Images, find_images
from pac_vision.class_figures import (
    class_coverage,
    correctness_boxes,
    error_bars,
    grid_boxes,
    level_boxes,
    reliability_diagram,
    size_against_error,
    size_boxes,
)
from pac_vision.class_names import ClassNames, named_folders, numbered, read_class_names
from pac_vision.class_results import OURS, PAPER, ClassResults, Predictions, compare_sets
from pac_vision.class_tables import (
    ablation_rows,
    architecture_rows,
    baseline_rows,
    correctness_rows,
    coverage_rows,
    grid_cells,
    grid_rows,
    level_rows,
    reliability_rows,
    tau_of,
)
from pac_vision.levels import DELTAS, fit_levels
from pac_vision.picture_sources import picture_cases
from pac_vision.result_folders import ResultFolder
from pac_vision.set_pictures import picture_table, size_columns, written_columns, written_table


@dataclass(frozen=True)
class Args:
    logits: list[Path] = field(default_factory=list)
    """stored logits; several files are several classifiers of the same images"""
    images: Path | None = None
    """folder of images: to be scored with --model, or to draw pictures beside --logits"""
    labels: Path | None = None
    """label file, where the images lie side by side"""
    model: list[str] = field(default_factory=list)
    """model to score the images with, such as efficientnet-lite0; several for a comparison"""
    classes: Path | None = None
    """names of the classes: ImageNet's class index (JSON), or text with a line per class"""
    out: Path = Path("imagenet_output")
    """folder for everything"""
    tune: int | None = None
    """images to tune on (a fifth)"""
    n: int | None = None
    """images to calibrate on (two fifths); the rest tests"""
    epsilon: float | None = None
    """promised error (the smallest of 0.01, 0.02, 0.05, 0.1, ... that leaves 20 errors to n images)"""
    delta: float = 1e-5
    """probability that the promise fails"""
    epsilons: list[float] = field(default_factory=list)
    """epsilons of the tables (five steps up to 0.05, or to a larger epsilon)"""
    deltas: list[float] = field(default_factory=lambda: list(DELTAS))
    """deltas of the tables (0.1, 0.001, 1e-5)"""
    seed: int = 0
    """of the split"""
    address: str = "local"
    """Ray to score on: local, auto, HOST:PORT; none scores in this process"""
    ledger: Path | None = None
    """where looks are recorded (pac-ledger.json beside the output folder)"""
    smoke_test: bool = False
    """generated images and two small networks, in seconds"""


def main(args: Args) -> None:
    folder = ResultFolder(args.out)
    classified = stored(args) if args.logits else scored(args)
    units, first = len(classified[0].ids), classified[0]
    images, names = pictures_and_names(args, first)
    calibrate = args.n if args.n is not None else 2 * units // 5
    tune = args.tune if args.tune is not None else units // 5
    levels = fit_levels(
        calibrate, epsilon=args.epsilon, delta=args.delta, epsilons=args.epsilons, deltas=args.deltas
    )
    book = args.ledger or args.out.resolve().parent / "pac-ledger.json"
    results = compare_sets(classified, levels, tune=tune, calibrate=calibrate, seed=args.seed, ledger=book)
    print(
        f"{units:,} images of {first.classes:,} classes: {results.parts.tune.n:,} to tune, {calibrate:,} to "
        f"calibrate, {results.parts.test.n:,} to test"
    )
    keep_certificates(results, folder, book)
    ablation(results, folder)
    correctness(results, folder)
    along_levels(results, folder)
    grid(results, folder)
    baselines(results, folder)
    architectures(results, folder)
    reliability(results, folder)
    coverage(results, folder, names)
    if images is not None:
        pictures(results, folder, images, names)
    summary(results, folder)


def stored(args: Args) -> list[Predictions]:
    """Classifiers whose logits are in files."""
    if args.model:
        raise InvalidInput("--model scores the images of --images, but --logits are given: give one of them")
    found = []
    for path in args.logits:
        arrays = read_arrays(path)
        if not {"logits", "labels"} <= set(arrays):
            raise UnreadableFile(f"{path} must hold logits and labels, got {', '.join(sorted(arrays))}")
        key = next((key for key in ("ids", "files") if key in arrays), None)
        if key is None:
            raise UnreadableFile(f"{path} must name its images in an array ids or files, got none")
        forecast = LogitForecast(arrays["logits"])
        forecast.check()
        data = Record(path.name, len(arrays[key]), file_digest(path))
        known = (arrays[key], forecast, arrays["labels"])
        found.append(Predictions(path.stem, *known, model=Record(path.stem), data=data, ids_name=key))
    return found


def scored(args: Args) -> list[Predictions]:
    """Classifiers that score the images now, in shards on Ray; what was scored before is kept."""
    from cluster import RunFolder, connected, run_here, run_on_ray
    from cluster.progress import shown
    from cluster.tasks import image_task

    if not args.model or args.images is None:
        raise InvalidInput("--logits, or --images with --model, must be given, got neither")
    found, here = [], args.address == "none"
    with nullcontext() if here else connected(args.address):
        for name, label in zip(args.model, short_names(args.model), strict=True):
            task = image_task(
                images=args.images, labels=args.labels, model=name, tune=1, calibrate=1, seed=0
            )  # only the run folder knows these two; the split is drawn later, once for all models
            run = RunFolder(args.out / "runs" / label)
            task.write(run)
            with shown(label, "image") as show:
                (run_here if here else run_on_ray)(task.job, run, progress=show)
            shards = [arrays for _, arrays in run.over(task.job.shards, lambda _, arrays: arrays)]
            arrays = {
                key: np.concatenate([shard[key] for shard in shards]) for key in ("ids", "logits", "labels")
            }
            (args.out / "logits").mkdir(parents=True, exist_ok=True)
            path = args.out / "logits" / f"{label}.npz"
            np.savez(path, **arrays)
            data = Record(path.name, len(arrays["ids"]), file_digest(path))
            known = (arrays["ids"], LogitForecast(arrays["logits"]), arrays["labels"])
            found.append(Predictions(label, *known, model=task.model, data=data))
    return found


def short_names(models: Sequence[str]) -> list[str]:
    """What people call them: the function, the architecture or the file; all of the name where that is shared."""

    def short(name: str) -> str:
        kind, *rest = name.split(":")
        if not rest:
            return name
        return {"python": rest[-1], "onnx": Path(rest[-1]).stem}.get(kind, rest[0])

    names = [short(name) for name in models]
    return (
        names
        if len(set(names)) == len(names)
        else [name.replace(":", "-").replace("/", "-") for name in models]
    )


def pictures_and_names(args: Args, first: Predictions) -> tuple[Images | None, ClassNames]:
    """The images to draw, and what the labels are called."""
    names = None if args.classes is None else read_class_names(args.classes)
    if names is not None:
        names.check(first.classes, first.name)
    if args.images is None:
        return None, names or numbered(first.classes)
    by_folder = names is not None and {f.name for f in args.images.iterdir() if f.is_dir()} <= set(
        names.folders
    )
    images = find_images(args.images, labels=args.labels, classes=names.folders if by_folder else None)
    if names is None and images.classes is not None and len(images.classes) == first.classes:
        names = named_folders(images.classes)
    return images, names or numbered(first.classes)


def keep_certificates(results: ClassResults, folder: ResultFolder, book: Path) -> None:
    """Our certificates as files: that of the main level, those of the tables, those of the other classifiers."""
    where = folder.folder / "certificates"
    where.mkdir(exist_ok=True)
    tuned = results.models[0].ids[results.parts.tune.rows]
    ids = results.models[0].ids[results.parts.calibrate.rows]
    for (model, sets, level), found in results.measured.items():
        if sets != OURS or found.certificate is None:
            continue
        main = (model, level) == (results.models[0].name, results.levels.main)
        path = (
            folder.folder / "certificate.json"
            if main
            else where / f"{model}-{level.epsilon!r}-{level.delta!r}.json"
        )
        write_certificate(found.certificate, path)
        if main:
            score = found.certificate.predictor.score
            forecast, labels = results.models[0].take(results.parts.calibrate.rows)
            scores = score.scores(forecast, labels)
            known = {"scores": scores, "ids": ids, "tune_ids": tuned, "score": score_digest(score)}
            np.savez_compressed(path.with_suffix(".scores.npz"), **known)
    print(
        f"one look at the calibrate part: {len(results.entries)} certificates asked for, any of which fails with "
        f"probability below {results.look.cost:.3g} (ledger {book})"
    )
    certificate = results.main().certificate
    assert certificate is not None
    print(f"ours, {certificate.predictor.threshold}")


def where(results: ClassResults) -> str:
    level = results.levels.main
    return (
        f"{results.models[0].name}, n = {results.parts.calibrate.n:,}, epsilon = {level.epsilon:g}, "
        f"delta = {level.delta:g}"
    )


def ablation(results: ClassResults, folder: ResultFolder) -> None:
    rows = ablation_rows(results)
    note = f"Compared on {results.parts.test.n:,} test images; a verdict is no proof."
    hidden = ("what", "smallest")
    folder.table("ablation", rows, f"Ablation ({where(results)})", columns=_all_but(rows, hidden), note=note)
    sizes = {row["sets"]: one.size for row in rows if (one := results.at(row["sets"])) is not None}
    why = {row["sets"]: _wrapped(row["verdict"]) for row in rows if row["sets"] not in sizes}
    title = f"C calibrated, D direct bound (without: VC bound), ours: chosen score\n{where(results)}"
    folder.figure("ablation", size_boxes(sizes, title, missing=why))


def correctness(results: ClassResults, folder: ResultFolder) -> None:
    rows = correctness_rows(results)
    note = "The promise is about all images; nothing is promised of either group."
    title = f"Correct against incorrect predictions ({where(results)})"
    folder.table("correctness", rows, title, note=note)
    forecast, labels = results.test
    right = forecast.predictions() == labels
    groups = {
        sets: {"correct": results.main(sets).size[right], "incorrect": results.main(sets).size[~right]}
        for sets in (PAPER, OURS)
    }
    title = f"Sets are larger where the classifier is wrong\n{where(results)}"
    folder.figure("correctness", correctness_boxes(groups, title))


def along_levels(results: ClassResults, folder: ResultFolder) -> None:
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
            groups[value if found else f"{value}\n(not feasible)"] = found
        title = f"Sizes against {name}: quartiles, smallest and largest set\n{where(results)}"
        folder.figure(f"levels_{name}", level_boxes(groups, words[name], title))


def grid(results: ClassResults, folder: ResultFolder) -> None:
    n, table = results.parts.calibrate.n, results.levels.table
    rows = grid_rows(results)
    with quiet(folder):
        folder.table("grid", rows, "")
    for sets in (PAPER, OURS):
        for number in ("error", "mean size"):
            name = f"grid_{number.replace(' ', '_')}_{'paper' if sets == PAPER else 'ours'}"
            title = f"{number.capitalize()} of {sets} at each level ({results.models[0].name}, n = {n:,})"
            folder.table(name, grid_cells(results, sets, number), title)
    for sets in (PAPER, OURS):
        cells = sum(results.at(sets, level) is not None for level in table)
        print(
            f"  The {cells} levels of {sets} in the table: any of them fails with probability below "
            f"{results.cost(sets, table):.3g}."
        )
    title = f"{results.models[0].name}, n = {n:,}: C calibrated, D direct bound, ours\nquartiles, smallest and largest set"
    folder.figure("grid", grid_boxes(results, title))


def baselines(results: ClassResults, folder: ResultFolder) -> None:
    rows = baseline_rows(results)
    title = f"Baselines that promise nothing ({where(results)})"
    folder.table("baselines", rows, title, columns=_all_but(rows, ("smallest",)))
    label = {"mass": "mass\nas it is", "mass, C": "mass, C\ncalibrated", PAPER: "C+D\npaper", OURS: "ours\n"}
    found = {label[row["sets"]]: results.main(row["sets"]) for row in rows}
    errors = {name: (one.evaluation.all.error, one.evaluation.all.interval) for name, one in found.items()}
    epsilon = results.levels.main.epsilon
    title = f"Measured error of baselines and PAC sets\n{where(results)}"
    folder.figure("baselines_error", error_bars(errors, epsilon, title))
    title = f"Size of baselines and PAC sets\n{where(results)}"
    folder.figure("baselines_size", size_boxes({name: one.size for name, one in found.items()}, title))


def architectures(results: ClassResults, folder: ResultFolder) -> None:
    rows, level = architecture_rows(results), results.levels.main
    title = f"Architectures at epsilon {level.epsilon:g}, delta {level.delta:g}"
    folder.table("architectures", rows, title, columns=[c for c in rows[0] if not c.startswith("verdict")])
    if len(rows) < 2:
        return
    points = {
        row["classifier"]: (
            row["top-1 error"],
            tuple(map(float, row["98% interval"].split(".."))),
            {sets: row[f"mean size, {sets}"] for sets in ("D", PAPER, OURS)},
        )
        for row in rows
    }
    n = results.parts.calibrate.n
    title = f"Set size against classification error\nn = {n:,}, epsilon = {level.epsilon:g}, delta = {level.delta:g}"
    folder.figure("architectures", size_against_error(points, title))


def reliability(results: ClassResults, folder: ResultFolder) -> None:
    rows = reliability_rows(results)
    forecast, labels = results.test
    paper = results.main(PAPER).predictor
    errors = {
        "as it is": calibration_error(forecast, labels),
        "calibrated": calibration_error(paper.score.prepared(forecast), labels),
    }
    with quiet(folder):
        folder.table("reliability", rows, "")
    tau = tau_of(paper.score)
    print(
        f"\nReliability: calibration error (ECE) {errors['as it is']:.4f} as it is, {errors['calibrated']:.4f} "
        f"with tau = {tau:.4g} (reliability.csv)"
    )
    title = f"Reliability of {results.models[0].name}, {len(labels):,} test images, tau = {tau:.3g}"
    folder.figure("reliability", reliability_diagram(rows, errors, title))


def coverage(results: ClassResults, folder: ResultFolder, names: ClassNames) -> None:
    rows, level = coverage_rows(results, names), results.levels.main
    sure = sum(row["high"] < 1 - level.epsilon for row in rows)
    note = (
        f"The promise is marginal: over all images, not for each class. {sure} of {len(rows):,} classes have an "
        f"interval below {1 - level.epsilon:g} (by chance alone, a hundredth of those at the edge would)."
    )
    title = f"Coverage of each class by our sets, the least covered ({where(results)})"
    folder.table("coverage", rows, title, first=8, note=note)
    title = f"Coverage class by class; the promise is about all images together\n{where(results)}"
    folder.figure("coverage", class_coverage(rows, level.epsilon, title))


def pictures(results: ClassResults, folder: ResultFolder, images: Images, names: ClassNames) -> None:
    """The two picture tables, of our sets at the level of the menu that fills most columns."""
    classes, delta = results.models[0].classes, results.levels.main.delta
    drawn = {
        "pictures_by_size": (picture_table, size_columns(classes), "Test images by the size of their set"),
        "pictures_sets": (written_table, written_columns(classes), "Test images and their sets"),
    }
    legend = {
        "pictures_by_size": "red frame: classified wrongly",
        "pictures_sets": "red: true label, hat: prediction, red frame: classified wrongly",
    }
    levels = [
        results.levels.main,
        *(PACLevel(e, delta) for e in sorted(results.levels.epsilons, reverse=True)),
    ]
    cases = {
        level: picture_cases(results, found, images)
        for level in dict.fromkeys(levels)
        if (found := results.at(OURS, level)) is not None
    }
    if not any(cases.values()):
        print(f"\nPictures: none of the test images is in {images.folder}")
        return
    for name, (draw, columns, title) in drawn.items():
        level = max(cases, key=lambda one: sum(any(c.within(s) for c in cases[one]) for s in columns))
        line = f"{title} ({results.models[0].name}, epsilon = {level.epsilon:g}, delta = {level.delta:g})"
        folder.figure(name, draw(cases[level], names, f"{line}\n{legend[name]}", columns=columns))
    print(f"\nPictures: drawn from {len(next(iter(cases.values()))):,} of the test images")


def summary(results: ClassResults, folder: ResultFolder) -> None:
    level, paper, ours = results.levels.main, results.main(PAPER), results.main()
    mean = {one.sets: one.evaluation.all.mean for one in (paper, ours)}
    less = 1 - mean[OURS] / mean[PAPER]
    print(
        f"\n{where(results)}, {results.parts.test.n:,} test images\n"
        f"  promised error   at most {level.epsilon:.2%}, with confidence 1 - {level.delta:g}, for images drawn "
        "like the calibration images\n"
        f"  measured error   {ours.evaluation.all.error:.2%} with our sets, {paper.evaluation.all.error:.2%} "
        "with the paper's C+D\n"
        f"  mean set size    {mean[OURS]:.2f} labels with ours, {mean[PAPER]:.2f} with C+D "
        f"({abs(less):.1%} {'fewer' if less >= 0 else 'more'}); median {ours.evaluation.all.median:g} and "
        f"{paper.evaluation.all.median:g}\n"
        f"  test             {ours.evaluation.verdict}\n"
        f"  certificate      {folder.folder / 'certificate.json'}\n"
        f"  everything else  {len(folder.written)} tables and figures in {folder.folder}"
    )


@contextmanager
def quiet(folder: ResultFolder) -> Iterator[None]:
    """Tables that are too long for the terminal."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _all_but(rows: Sequence[dict[str, Any]], hidden: Sequence[str]) -> list[str]:
    return [head for head in rows[0] if head not in hidden]


def _wrapped(words: str) -> str:
    return words.replace(" with ", "\nwith ").replace(", needs", ",\nneeds")


def smoke(args: Args) -> Args:
    """The same on generated images."""
    from dataclasses import replace

    from stripes import NAMES, fill_folder

    images = fill_folder(args.out / "images", 60)
    (args.out / "classes.txt").write_text("\n".join(NAMES) + "\n")
    address = args.address if args.address != "local" else "none"
    return replace(
        args,
        images=images,
        model=["python:stripes:narrow", "python:stripes:wide"],
        classes=args.out / "classes.txt",
        epsilon=args.epsilon or 0.2,
        delta=1e-3,
        address=address,
        ledger=args.ledger or args.out / "pac-ledger.json",
    )


def parse() -> Args:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, usual = parser.add_argument, Args()
    add(
        "--logits",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="stored logits (npz, parquet); several files are several classifiers of the same images",
    )
    add(
        "--images",
        type=Path,
        metavar="FOLDER",
        help="images to score with --model, or to draw beside --logits",
    )
    add("--labels", type=Path, metavar="FILE", help="label file, where the images lie side by side")
    add(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="model to score the images with, such as efficientnet-lite0; repeat it",
    )
    add(
        "--classes",
        type=Path,
        metavar="FILE",
        help="names of the classes (ImageNet's class index, or a line each)",
    )
    add("--out", type=Path, default=usual.out, help="folder for everything (%(default)s)")
    add("--tune", type=int, help="images to tune on (a fifth)")
    add("--n", type=int, help="images to calibrate on (two fifths); the rest tests")
    add(
        "--epsilon",
        type=float,
        help="promised error (the smallest of 0.01, 0.02, 0.05, 0.1, ... that leaves 20 errors to n)",
    )
    add("--delta", type=float, default=usual.delta, help="probability that the promise fails (%(default)s)")
    add("--epsilons", type=float, nargs="+", default=[], help="of the tables (five steps up to 0.05)")
    add("--deltas", type=float, nargs="+", default=usual.deltas, help="of the tables (0.1 0.001 1e-5)")
    add("--seed", type=int, default=usual.seed, help="of the split (%(default)s)")
    add(
        "--address",
        default=usual.address,
        help="Ray: local, auto, HOST:PORT; none scores in this process (%(default)s)",
    )
    add("--ledger", type=Path, metavar="FILE", help="where looks are recorded (pac-ledger.json beside --out)")
    add("--smoke-test", action="store_true", help="generated images and two small networks, in seconds")
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    try:
        given = parse()
        main(smoke(given) if given.smoke_test else given)
    except PACError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; what is scored is kept, and the same command goes on from there")
