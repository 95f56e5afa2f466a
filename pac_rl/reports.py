"""Where experiments put what they found: tables on the terminal and as CSV, figures as PNG."""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pac_core import PACError
from pac_rl.designs import Design
from pac_rl.returns import returns_in_words
from pac_rl.studies import Study

_WIDTH = 110  # of a terminal


class Report:
    """A folder for tables and figures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def table(self, name: str, rows: Sequence[dict[str, Any]], *, title: str = "") -> None:
        """Prints the rows and writes them to `name`.csv, with all digits."""
        heads = list(rows[0])
        with (self.folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, heads)
            writer.writeheader()
            writer.writerows(rows)
        cells = [heads, *([_cell(row[head]) for head in heads] for row in rows)]
        if sum(max(len(line[i]) for line in cells) + 2 for i in range(len(heads))) > _WIDTH:
            cells = [list(line) for line in zip(*cells, strict=True)]  # a column for each row, then
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        print(f"\n{title or name}")
        for line in cells:
            print("  " + "  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)))
        print(f"  (also in {self.folder / name}.csv)", flush=True)

    def figure(self, name: str, figure: Any) -> Path:
        """Writes the figure to `name`.png."""
        path = self.folder / f"{name}.png"
        figure.savefig(path)
        print(f"figure {path}", flush=True)
        return path


def run(main: Callable[[Study, Report], Any], description: str | None) -> None:
    """Runs a script's main on the study its command line asks for; a mistake is one sentence."""
    try:
        main(*opened(description))
    except PACError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from here")


def opened(description: str | None, arguments: Sequence[str] | None = None) -> tuple[Study, Report]:
    """The study and report that a script's command line asks for."""
    usual = Design()
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--out",
        type=Path,
        default=Path("halfcheetah_output"),
        help="folder for everything; a second run goes on",
    )
    add("--n", type=int, help=f"rollouts each to tune, calibrate and test ({usual.tune:,})")
    add("--epsilon", type=float, help=f"promised error ({usual.epsilon})")
    add("--delta", type=float, help=f"probability that the promise fails ({usual.delta:g})")
    add("--horizon", type=int, help=f"steps of a rollout ({usual.horizon})")
    add("--env", help=f"Gymnasium's id of the environment ({usual.env})")
    add("--policy", help="an npz of layers or a Stable-Baselines3 zip (the one that comes with pac_rl)")
    add("--policy-std", type=float, help="noise on each action (the policy file's; needed where it has none)")
    add("--vecnormalize", help="of a Stable-Baselines3 zip: npz of mean, var, clip, epsilon; or none")
    add("--policy-sees", help="observation (the environment's own) or state (the policy file's word)")
    add("--seed", type=int, help=f"of everything random ({usual.seed})")
    add("--device", default="cpu", help="of the dynamics model: cpu, cuda, ... (%(default)s)")
    add("--smoke-test", action="store_true", help="a few hundred rollouts and a tiny ensemble, in seconds")
    args = parser.parse_args(arguments)
    design = Design.smoke() if args.smoke_test else usual
    names = (
        "epsilon",
        "delta",
        "horizon",
        "env",
        "policy",
        "policy_std",
        "vecnormalize",
        "policy_sees",
        "seed",
    )
    named = {name: getattr(args, name) for name in names}
    if args.n is not None:
        named |= {"tune": args.n, "calibrate": args.n, "test": args.n}
    design = replace(design, **{name: value for name, value in named.items() if value is not None})
    study = Study(design, args.out, device=args.device)
    steps = 100 if args.smoke_test else 1000
    print(f"policy    {returns_in_words(study.environment, study.policy, steps=steps)}", flush=True)
    return study, Report(args.out / "results")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.4g}"
    return str(value)
