"""Which planner suits the guard: horizons, checked steps and choices, weighed on tune episodes.

    python scripts/halfcheetah_guard_settings.py [--task speed|flip] [--episodes 64] [--smoke-test]

For each setting of the planner the mean constraint and our guard run the same tune episodes; our scale is the
narrowest before the first that breaks the limit. Nothing here is a promise, and none of these episodes is
reported on elsewhere: it is how `Sizes` got its defaults, and what another robot would have to repeat. Expect
a row for each setting, and the ratio of our return to the mean constraint's, which may run over the limit.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from halfcheetah_guard import SCALES, SMOKE, choose_scale

from pac_core import PACError
from pac_rl import Design, MeanTubes, Study, run_episodes
from pac_rl.guard_studies import TASKS, GuardStudy, Sizes
from pac_rl.reports import Report

SETTINGS = (
    (3, 3, "return"),
    (3, 3, "factor"),
    (4, 4, "factor"),
    (6, 3, "return"),
    (6, 6, "return"),
    (6, 6, "factor"),
    (9, 9, "return"),
)
"""Horizon, steps that are checked, and which safe plan acts."""


def main(study: Study, report: Report, task: str, sizes: Sizes, settings: Any, episodes: int) -> None:
    rows: list[dict[str, Any]] = []
    for horizon, checked, choice in settings:
        changed = replace(sizes, horizon=horizon, checked=checked, choice=choice)
        guards = GuardStudy(study, task, changed)
        bold = replace(guards.base, guard=MeanTubes())
        mean = run_episodes(bold, guards.seeds("tune", episodes), steps=sizes.steps)
        scale, tried = choose_scale(guards, episodes, SCALES[4:])
        ours = next(row for row in tried if row["scale"] == scale)
        rows.append(
            {
                "horizon": horizon,
                "checked": checked,
                "choice": choice,
                "mean: return": float(mean.returns.mean()),
                "violated": f"{int(mean.errors.sum())} of {episodes}",
                "ours: scale": scale,
                "return": ours["return"],
                "violations": f"{ours['violations']} of {episodes}",
                "ours / mean": ours["return"] / float(mean.returns.mean()),
            }
        )
        study.say(f"  horizon {horizon}, {checked} checked, by {choice}: {rows[-1]['ours / mean']:.1%}")
    report.table(f"guard_{task}_settings", rows, title=f"Settings of the planner, {episodes} tune episodes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("halfcheetah_output"), help="folder for everything")
    parser.add_argument("--task", choices=TASKS, default="speed")
    parser.add_argument("--episodes", type=int, default=64, help="of each setting and scale (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (%(default)s)")
    parser.add_argument("--smoke-test", action="store_true", help="two settings and episodes, in seconds")
    args = parser.parse_args()
    try:
        report = Report(args.out / "results")
        if args.smoke_test:
            small = Study(Design.smoke(seed=args.seed), args.out)
            main(small, report, args.task, SMOKE, ((2, 2, "return"), (2, 1, "factor")), 2)
        else:
            full = Study(Design(seed=args.seed), args.out)
            main(full, report, args.task, Sizes(), SETTINGS, args.episodes)
    except PACError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; what was trained is kept")
