"""From rollouts to a guarded robot: tubes for a half-cheetah, in about three minutes on two cores."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from halfcheetah.experiment import Design, Experiment
from halfcheetah.guard import PLANNED, Guarded, Sizes
from halfcheetah.guard_results import draw_episode
from halfcheetah.ours import certificate, compare
from pac_core.evaluation import error_interval
from pac_rl import Settings

SCALE = 1.5
"""Of the guard's tubes."""
DESIGN = Design(
    **{"tune": 1000, "calibrate": 2000, "test": 2000, "epsilon": 0.02, "delta": 1e-3, "episodes": 600},
    settings=Settings(hidden=128, epochs=5, batch=256),
)
SIZES = Sizes(planned=PLANNED[1::3], epochs=8)
"""A smaller share of everything, too."""


def show(experiment: Experiment, sizes: Sizes, episodes: int) -> None:
    """The whole way, with a line before each part and the numbers that matter at the end."""
    design, results = experiment.design, experiment.report.folder
    print(f"1 train      {design.episodes:,} episodes of the policy, half of them with more noise")
    experiment.ensemble  # noqa: B018
    units = design.tune + design.calibrate + design.test
    print(f"2 roll out   {units:,} units of {design.horizon} steps, each from its own reset")
    _, folder = experiment.run("closed")
    print(f"3 certify    tune on {design.tune:,}, calibrate on {design.calibrate:,}, test on {design.test:,}")
    certificate(experiment)
    print("\n4 compare    with the paper's tube: same ensemble, same rollouts; one-step variances there")
    ours = next(row for row in compare(experiment, "closed") if row["shape"] == "box")
    print(f"\npromised error   at most {design.epsilon:.2%}, with confidence 1 - {design.delta:g}")
    print(f"measured error   {ours['error']:.2%} of {design.test:,} rollouts")
    smaller = f"{ours['times smaller']:.0f} times smaller than the paper's shape"
    print(f"tube size        {ours['size']:.3g}, {smaller}")
    print("\n5 guard      speed at most 3.2096 m/s: the policy alone, then with tubes checked at each step")
    guard(Guarded(experiment, "speed", sizes), episodes)
    print(f"\nfigures          {results / 'shapes_closed_steps.png'}   size at each step, by shape")
    print(f"                 {results / 'shapes_closed_tubes.png'}   tubes around real trajectories")
    print(f"                 {results / 'guard_speed_episode.png'}   speed with and without the guard")
    pac = os.path.relpath(Path(sys.executable).with_name("pac"))
    issued = f"{folder}/certificate-{design.epsilon!r}-{design.delta!r}.json"
    print(f"next             {pac} verify {issued} {folder}/scores.parquet")


def guard(guards: Guarded, episodes: int) -> None:
    """The unguarded robot beside the guarded one: a row of numbers each, and a figure."""
    rows = []
    for name, controller in (("unguarded", guards.base.bare()), ("guarded", guards.guarded(SCALE))):
        done = guards.run(controller, "compare", episodes, f"demo {name}")
        errors = int(done.errors.sum())
        low, high = error_interval(errors, episodes)
        row = {"robot": name, "episodes over the limit": f"{errors} of {episodes}"}
        row |= {"98% interval": f"{low:.2f} to {high:.2f}"}
        row |= {"steps over the limit": float(done.violation_steps.mean())}
        rows.append(row | {"return": float(done.returns.mean())})
    report, steps = guards.experiment.report, guards.sizes.steps
    report.table("guard_demo", rows, f"{episodes} episodes of {steps} steps from rest")
    report.figure("guard_speed_episode", draw_episode(guards, SCALE))
    print("  a measurement; `python scripts/halfcheetah guard-certificate` certifies a larger one")
