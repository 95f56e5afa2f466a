"""From rollouts to a guarded robot: tubes for a half-cheetah, in about three minutes on two cores.

    python scripts/demo_halfcheetah.py [--out demo_output]

Trains a small probabilistic ensemble on rollouts of the policy that comes with pac_rl, rolls out
thousands of real trajectories in MuJoCo, tunes and calibrates tubes for the next 20 steps, certifies
them, and measures them on rollouts never looked at before. Then it lets the robot run under a speed limit,
without and with a guard that checks the tubes of what it might do next. Run again, it goes on where it
stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import halfcheetah_certificate
import halfcheetah_guard
import halfcheetah_shapes

from pac_core import PACError, error_interval
from pac_rl import Design, Settings, run_episodes
from pac_rl.guard_studies import PLANNED, GuardStudy, Sizes
from pac_rl.reports import Report
from pac_rl.studies import Study

SCALE = 1.5
"""Of the guard's tubes."""
DESIGN = Design(
    tune=1000,
    calibrate=2000,
    test=2000,
    epsilon=0.02,
    delta=1e-3,
    episodes=600,
    settings=Settings(hidden=128, epochs=5, batch=256),
)


GUARD = Sizes(planned=PLANNED[1::3], epochs=8)
"""A smaller share of everything, too."""


def guard_rows(guards: GuardStudy, report: Report, episodes: int) -> None:
    """The unguarded robot beside the guarded one: a row of numbers each, and a figure."""
    seeds, rows, done = guards.seeds("compare", episodes), [], {}
    for name, controller in (("no guard", guards.base.bare()), ("ours", guards.guarded(SCALE))):
        done[name] = run_episodes(controller, seeds, steps=guards.sizes.steps, along=guards.along)
        errors, n = int(done[name].errors.sum()), len(seeds)
        low, high = error_interval(errors, n)
        rows.append(
            {
                "robot": "guarded" if name == "ours" else "unguarded",
                "episodes over the limit": f"{errors} of {n}",
                "98% interval": f"{low:.2f} to {high:.2f}",
                "steps over the limit": float(done[name].violation_steps.mean()),
                "return": float(done[name].returns.mean()),
            }
        )
    report.table("guard_demo", rows, title=f"{episodes} episodes of {guards.sizes.steps} steps from rest")
    report.figure("guard_speed_episode", halfcheetah_guard.episodes_figure(guards, done))
    print("  a measurement; scripts/halfcheetah_guard_certificate.py certifies a larger study's controller")


def main(design: Design, out: Path, guard_sizes: Sizes | None = None, episodes: int = 32) -> None:
    study, report = Study(design, out), Report(out / "results")
    print(f"1 train      {design.episodes:,} episodes of the policy, half of them with more noise")
    study.ensemble  # noqa: B018
    print(f"2 roll out   {design.units:,} units of {design.horizon} steps, each from its own reset")
    study.rollouts  # noqa: B018
    print(f"3 certify    tune on {design.tune:,}, calibrate on {design.calibrate:,}, test on {design.test:,}")
    halfcheetah_certificate.main(study, report)
    print("\n4 compare    with the paper's tube: same ensemble, same rollouts; one-step variances there")
    rows = halfcheetah_shapes.compare(
        study, report, "closed", study.closed_loop("one-step"), study.closed_loop("particles")
    )
    ours = next(row for row in rows if row["shape"] == "box")
    print(f"\npromised error   at most {design.epsilon:.2%}, with confidence 1 - {design.delta:g}")
    print(f"measured error   {ours['error']:.2%} of {design.test:,} rollouts")
    smaller = f"{ours['times smaller']:.0f} times smaller than the paper's shape"
    print(f"tube size        {ours['size']:.3g}, {smaller}")
    print("\n5 guard      speed at most 3.2096 m/s: the policy alone, then with tubes checked at each step")
    guard_rows(GuardStudy(study, "speed", guard_sizes), report, episodes)
    print(f"\nfigures          {report.folder / 'shapes_closed_steps.png'}   size at each step, by shape")
    print(f"                 {report.folder / 'shapes_closed_tubes.png'}   tubes around real trajectories")
    print(f"                 {report.folder / 'guard_speed_episode.png'}   speed with and without the guard")
    pac = os.path.relpath(Path(sys.executable).with_name("pac"))
    folder = report.folder
    print(f"next             {pac} verify {folder / 'certificate.json'} {folder / 'certificate.scores.npz'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="folder for the results")
    parser.add_argument("--smoke-test", action="store_true", help="a few hundred rollouts, in seconds")
    args = parser.parse_args()
    try:
        if args.smoke_test:
            main(Design.smoke(), args.out, halfcheetah_guard.SMOKE, episodes=2)
        else:
            main(DESIGN, args.out, GUARD)
    except PACError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on from here")
