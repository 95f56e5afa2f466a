"""The mission before your eyes: rollouts on Ray, tubes, a sweep, a guarded robot, and a page about it."""

import os
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
from halfcheetah.experiment import SMOKE, Design, Experiment
from halfcheetah.guard import PLANNED, SMALL, Guarded, Sizes
from halfcheetah.guard_results import KINDS, describe

from cluster.commands.tune import tune_run
from pac_core import PACLevel
from pac_core.certificates import Descent, descend, open_ledger, write_descent
from pac_core.report import DESCENT, StoredRun, write_report
from pac_core.runs import Job, RunFolder, Stage, certify_run, episodes_through
from pac_rl import Settings
from pac_rl.planning import BATCH, RunEpisodes, describe_episodes, read_episodes
from pac_rl.tasks import NEEDS

DEMO = Design(
    **{"tune": 1000, "calibrate": 2000, "test": 2000, "epsilon": 0.02, "delta": 1e-3, "episodes": 512},
    settings=Settings(hidden=128, epochs=5, batch=256),
)
SCALE = 1.5
"""Of the guard's tubes, laid down for the demo."""
STAGES = {
    "train a model": 40,
    "roll out and forecast": 35,
    "sweep and certify": 30,
    "fit the guard's tubes": 140,
    "run guarded episodes": 50,
    "write the page": 5,
}
"""Seconds that each stage takes on two idle cores."""


def run_demo(out, engine, smoke_test):
    few = Sizes(planned=PLANNED[1::5], epochs=7, rollouts=1280)  # whole batches for each of two workers
    design, sizes, episodes, level = DEMO, few, 64, PACLevel(0.05, 0.05)
    deltas = (1e-3, 1e-2)
    if smoke_test:
        design, sizes, episodes, level = SMOKE, SMALL, 4, PACLevel(0.5, 0.1)
    levels = [PACLevel(epsilon, delta) for epsilon in (design.epsilon, 0.05, 0.1) for delta in deltas]
    levels = levels if not smoke_test else [design.level]
    experiment, stage = Experiment(design, out, engine), partial(_stage, list(STAGES))
    units, ledger = design.tune + design.calibrate + design.test, out / "pac-ledger"
    open_ledger(ledger, budget=0.15 if smoke_test else 0.08)  # for all that is said, together
    with stage("train a model", f"{design.episodes:,} episodes of the policy, a probabilistic ensemble"):
        experiment.ensemble  # noqa: B018
    with stage("roll out and forecast", f"{units:,} rollouts of {design.horizon} steps, on Ray workers"):
        task, closed = experiment.run("closed")
    with stage("sweep and certify", f"{len(levels)} levels with Ray Tune, on {design.tune:,} tune rollouts"):
        if smoke_test:  # without Ray
            certify_run(task, closed, levels, ledger)
        elif not closed.has("tune.csv"):
            tune_run(closed, levels, ledger, shapes=("box", "joint"))
    guards = Guarded(experiment, "speed", sizes)
    words = f"a model that learns from its planner's episodes, then {sizes.rollouts:,} plans carried out"
    with stage("fit the guard's tubes", words):
        guards.ours  # noqa: B018
    with stage("run guarded episodes", f"{episodes} with the guard, {episodes} by the policy alone"):
        done, free = run_guarded(guards, episodes, level)
    page = out / "report.html"
    with stage("write the page", "for you and your colleagues"):
        folders = [guards.home / "episodes", closed.root]
        write_report([str(one) for one in folders], str(page), limits=[("forward velocity", 3.2096, True)])
    say_results(StoredRun(RunFolder(closed.root)), done, free, page)


def run_guarded(guards, episodes, level):
    """The certificate of the guarded controller, and the same number of episodes without the guard."""
    home, controller = guards.home / "episodes", guards.guarded(SCALE)
    # Nobody has seen these episodes: what was tried while the demo was made ran on others.
    seeds = guards.seeds("certify", episodes, first=9 * 10**6)
    plan = Descent(
        scales=(SCALE,),
        n=episodes,
        allowed=0,
        level=level,
        episodes=seeds[None],
        error=KINDS["episode"][1],
        tested=describe(guards),
    )

    def trace(controller):
        return Stage(RunEpisodes, (controller, guards.sizes.steps, guards.along), needs=NEEDS)

    def stage(scale):
        return trace(guards.guarded(scale))

    about = describe_episodes(controller, "with the guard") | {"size": BATCH}
    run = episodes_through(guards.experiment.engine, stage, str(home), **about)
    done = descend(plan, run, ledger=guards.experiment.out / "pac-ledger")
    write_descent(done, home / f"scale-{SCALE!r}" / DESCENT)
    bare = guards.bare
    ids = range(int(seeds[0]), int(seeds[0]) + episodes)
    job = Job.of("episodes", ids, [trace(bare)], size=BATCH, **describe_episodes(bare, "by the policy alone"))
    folder = RunFolder(home / "no-guard")
    guards.experiment.engine(job, folder)
    return done, read_episodes(job, folder, bare)


def say_results(run, done, free, page):
    """Five lines: what was promised, what was measured, what the guard prevented, the page, what is next."""
    tube, test = run.main
    level, plan, errors = tube.predictor.threshold.level, done.plan, done.trials[0].errors
    pac = os.path.relpath(Path(sys.executable).with_name("pac"))
    proved = f"certified: at most {plan.level.epsilon:.0%} of new ones, confidence {1 - plan.level.delta:g}"
    if done.certified is None:
        proved = "too many for a certificate"
    lines = {
        "promised": f"tubes of the free policy contain a new rollout like these with probability "
        f"{1 - level.epsilon:g}, confidence {1 - level.delta:g}",
        "measured": f"{test.all.errors} of {test.all.n:,} test rollouts missed ({test.all.error:.2%})",
        "guarded": f"over 3.2096 m/s in {errors} of {plan.n} simulated episodes, the policy alone in "
        f"{int(free.errors.sum())}; {proved}",
        "the page": f"{page}: open it in a browser",
        "try next": f"your own robot: docs/how-to/your-robot.md; your own runs: {pac} run --help; a log of "
        f"your robot's episodes: {pac} certify-episodes --help",
    }
    print("", *(f"{name:<10} {text}" for name, text in lines.items()), sep="\n")


@contextmanager
def _stage(names, name, what):
    """A line before a stage with what it may take, and one after it with what it took."""
    click.secho(
        f"\n[{names.index(name) + 1}/{len(names)}] {name}: {what} (about {STAGES[name]} s)", bold=True
    )
    begun = time.monotonic()
    yield
    print(f"      took {time.monotonic() - begun:.0f} s", flush=True)
