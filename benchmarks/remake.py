"""Makes the files of benchmarks/published anew, by the commands of the docs, and says which differ.

    python -m benchmarks.remake DATA [NAME ...] [--keep]

DATA holds the folders imagenet, otb and uci; nothing is written there. `--keep` replaces the files that
differ. Times are not compared.
"""

from __future__ import annotations

import csv
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).parent / "published"
TIMES = {"ms a forecast"}
PROGRESS = re.compile(r"^(estimate |\w+: [\d,]+ of ).*\n", re.M)
CLASSES = "imagenet/imagenet_class_index.json"
LOGITS = "imagenet/efficientnet_lite0_val5k.npz"


@dataclass(frozen=True)
class Source:
    """The page of docs/ that has the commands, the folder of DATA they read, and what they leave behind.

    made: the folder of the results
    files: those that are kept; `printed.txt` is what the commands print
    """

    page: str
    data: str
    commands: tuple[str, ...]
    made: str
    files: tuple[str, ...]


SOURCES = {
    "halfcheetah": Source(
        "halfcheetah",
        "",
        ("python scripts/halfcheetah figures --seed 2",),
        "halfcheetah_output/results",
        ("ablation.csv", "baselines.csv", "shapes_closed.csv", "shapes_plans.csv", "coverage.csv"),
    ),
    "propagation": Source(
        "halfcheetah",
        "",
        ("python scripts/halfcheetah figures propagation --seed 2 --n 400 --epsilon 0.1 --delta 1e-3",),
        "halfcheetah_output/results",
        ("propagation.csv",),
    ),
    "imagenet": Source(
        "results",
        "imagenet",
        (
            f"python scripts/imagenet results {LOGITS} --images imagenet/val300 --classes {CLASSES} "
            "--out imagenet_output",
        ),
        "imagenet_output",
        (
            "ablation.csv",
            "architectures.csv",
            "baselines.csv",
            "correctness.csv",
            "grid.csv",
            "levels_epsilon.csv",
            "printed.txt",
        ),
    ),
    "fit": Source(
        "results",
        "imagenet",
        (
            f"pac fit {LOGITS} --ids files --unit image --epsilon 0.02 --epsilon 0.05 --epsilon 0.1 "
            "--delta 1e-5 --tune 1000 --calibrate 2000 --ledger fit-ledger",
            *(f"pac evaluate certificate-{level}-1e-05.json {LOGITS}" for level in ("0.02", "0.05", "0.1")),
        ),
        ".",
        ("printed.txt",),
    ),
    "run": Source(
        "vision",
        "imagenet",
        (
            f"pac run imagenet --images imagenet/val300 --classes {CLASSES} --model efficientnet-lite0 "
            "--folder run --tune 80 --calibrate 150 --epsilon 0.1 --delta 0.01 --temperature --address none",
        ),
        ".",
        ("printed.txt",),
    ),
    "lite": Source(
        "results",
        "imagenet",
        (
            "python scripts/imagenet score imagenet/val300 --model efficientnet-lite0 "
            f"--model efficientnet-lite1 --model efficientnet-lite2 --classes {CLASSES} --out lite_output",
            "python scripts/imagenet results lite_output/logits/*.npz --images imagenet/val300 "
            f"--classes {CLASSES} --epsilon 0.1 --delta 0.05 --tune 50 --n 150 --out lite_output",
        ),
        "lite_output",
        ("architectures.csv",),
    ),
    "otb": Source(
        "results",
        "otb",
        (
            "python scripts/otb tracks otb/siamfc_ensemble_tracks.npz --sequences otb/sequences "
            "--out otb_output",
            "python scripts/otb losses otb/siamfc_ensemble_tracks.npz --ledger losses-ledger "
            "--out otb_output",
            "python scripts/otb frames otb/sequences --out otb_output",
        ),
        "otb_output",
        (
            "by_frame.csv",
            "by_sequence.csv",
            "frame_errors.csv",
            "frames.csv",
            "losses.csv",
            "scores.csv",
            "units.csv",
        ),
    ),
    "episodes": Source(
        "results",
        "",
        (
            "python scripts/halfcheetah log-episodes",
            "pac ledger pac-ledger --budget 0.02",
            "pac certify-episodes runs.csv --error flipped --epsilon 0.01 --delta 0.01",
            "pac certify-episodes runs.csv --loss share_over_the_limit --epsilon 0.9 --delta 0.01 "
            "--name share --out share.json",
            *(f"pac verify {file}.json --ledger pac-ledger" for file in ("runs.certificate", "share")),
        ),
        ".",
        ("printed.txt",),
    ),
    "groups": Source(
        "results",
        "imagenet",
        (
            f"python scripts/groups.py images {LOGITS}",
            f"python scripts/groups.py images {LOGITS} --coarse --ledger coarse-ledger",
            "python scripts/halfcheetah demo --out demo",
            "pac run rl --folder cheetah --ensemble demo/model/ensemble.safetensors --seed 1 --tune 1000 "
            "--calibrate 3000 --test 4000 --epsilon 0.05 --delta 0.01 --group 'forward velocity=3' "
            "--address none",
            "python scripts/groups.py rollouts cheetah",
        ),
        "groups_output",
        ("images.csv", "images_coarse.csv", "rollouts.csv"),
    ),
    "any_of": Source(
        "planning",
        "",
        (
            "python scripts/halfcheetah any-of --seed 2",
            "make demo",
            "python scripts/halfcheetah any-of --seed 2 --model demo_output/guard/ensemble.safetensors",
            "python scripts/halfcheetah any-of --seed 2 --guarded "
            "--model demo_output/guard/ensemble.safetensors",
        ),
        "halfcheetah_output/results",
        ("any_of.csv", "any_of_model.csv", "any_of_guarded.csv"),
    ),
    "robots": Source(
        "planning",
        "",
        tuple(
            f"python examples/{name}"
            for name in (
                "unicycle.py",
                "unicycle.py --mppi",
                "pendulum.py",
                "walker_sb3.py",
                "mbrl_lib.py",
                "torchrl_cem.py",
            )
        ),
        ".",
        ("printed.txt",),
    ),
    "world": Source(
        "results",
        "",
        ("python scripts/halfcheetah same-world --seed 2",),
        "halfcheetah_output/results",
        ("world.csv",),
    ),
    "tables": Source(
        "results", "uci", ("python scripts/tables paper uci",), "tables_output", ("repeats.csv", "tables.csv")
    ),
    "alarms": Source(
        "results",
        "uci",
        ("python scripts/alarms paper uci --ledger alarms-ledger",),
        "alarms_output",
        ("arrhythmia.csv", "car.csv", "simulated.csv", "simulated_claims.csv", "simulated_sets.csv"),
    ),
}


def read(file: Path) -> object:
    if file.suffix == ".txt":
        return file.read_text()
    with file.open() as lines:
        return [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(lines)]


def remake(name: str, data: Path, scratch: Path) -> list[Path]:
    """Runs the commands of a source in an empty folder; the files made, named as those that are kept."""
    source, printed = SOURCES[name], ""
    if source.data:  # a copy, because ledgers lie beside the data
        shutil.copytree(data / source.data, scratch / source.data, copy_function=shutil.copyfile)
        (scratch / source.data).chmod(0o755)
    for command in source.commands:
        print(f"{name}: {command}", flush=True)
        command = command.replace("make demo", "python scripts/halfcheetah demo")
        script = re.match(r"python (scripts/\w+)", command)
        words = [str(ROOT / script[1])] if script else ["-m", "pac_core"]
        start = shlex.join([sys.executable, *words])
        real = start + command[script.end() if script else len("pac") :]
        done = subprocess.run(["bash", "-c", real], cwd=scratch, check=True, stdout=-1, text=True)
        printed += PROGRESS.sub("", done.stdout.replace(f"{scratch}/", ""))
    (scratch / source.made / "printed.txt").write_text(printed)
    return [scratch / source.made / file for file in source.files]


def main(data: Path, names: list[str], keep: bool) -> int:
    differ = 0
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            for made in remake(name, data, Path(scratch)):
                kept = KEPT / name / made.name
                same = kept.exists() and read(kept) == read(made)
                differ += not same
                print(f"  {kept.relative_to(ROOT)} {'is the same' if same else 'differs'}", flush=True)
                if keep and not same:
                    kept.parent.mkdir(exist_ok=True)
                    shutil.copyfile(made, kept)
    return 1 if differ else 0


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if word != "--keep"]
    names = given[1:] or [*SOURCES]
    if not given or set(names) - set(SOURCES):
        sys.exit(f"python -m benchmarks.remake DATA [NAME ...] [--keep]; names: {', '.join(SOURCES)}")
    if missing := {
        SOURCES[name].data for name in names if not (Path(given[0]) / SOURCES[name].data).is_dir()
    }:
        sys.exit(f"DATA must hold the folders {', '.join(sorted(missing))}, and {given[0]} does not")
    sys.exit(main(Path(given[0]), names, "--keep" in sys.argv))
