"""Guards compared on the half-cheetah: none, the predicted mean, the worst member, the paper's tube, ours.

    python scripts/halfcheetah_guard.py [--task speed|flip] [--episodes 300] [--smoke-test] [--out folder]

One policy, one ensemble, the same candidates (the policy's actions, scaled down by 21 factors), the same
fresh episodes of 200 steps from rest in MuJoCo; only the guard differs. The speed limit is the one of
Safety-Gymnasium, 3.2096 m/s; no-flip keeps the torso's pitch within a quarter turn. Tubes are fitted on
rollouts of such candidates, and our scale is chosen on tune episodes, none of which is reported on.
Prints return, what of it was earned before a violation, episodes with one and their exact interval, steps
in violation, how often the fallback acted and the time of a plan; draws return against violations, and an
episode of each of two guards. The numbers of violations are measurements: a promise takes a certificate of
its own, on episodes that nobody has looked at (halfcheetah_guard_certificate.py). The ensemble, trained twice
in about ten minutes on two cores, is kept for a second run.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pac_core import PACError, error_interval
from pac_rl import Controller, Design, Episodes, Study, run_episodes
from pac_rl.figures import guarded_over_time, returns_and_violations
from pac_rl.guard_studies import GOVERNED, LEVEL, PLANNED, TASKS, GuardStudy, Sizes
from pac_rl.reports import Report

SCALES = (2.0, 1.6, 1.4, 1.2, 1.0, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Of our tubes, from wide to narrow; tried in this order on tune episodes, until one has a violation."""
SMOKE = Sizes(
    steps=12, rollouts=320, horizon=2, checked=2, governed=GOVERNED[::5], planned=PLANNED[:1], epochs=3
)


@dataclass(frozen=True)
class Counts:
    """How many of each."""

    episodes: int = 300
    """compared"""
    tune: int = 64
    """episodes to choose our scale on"""
    plans: int = 200
    """timed one at a time"""


def main(guards: GuardStudy, report: Report, counts: Counts) -> list[dict[str, Any]]:
    task, steps, say = guards.task, guards.sizes.steps, guards.study.say
    scale, tried = choose_scale(guards, counts.tune)
    report.table(f"guard_{task}_scales", tried, title="Scales of our tube, on tune episodes")
    rows, done = [], {}
    for name, controller in guards.controllers(scale).items():
        before = time.perf_counter()
        seeds = guards.seeds("compare", counts.episodes)
        done[name] = run_episodes(controller, seeds, steps=steps, along=guards.along)
        seconds = time.perf_counter() - before
        shown = f"ours, scale {scale:g}" if name == "ours" else name
        rows.append({"guard": shown} | row(done[name], seconds) | latency(controller, counts.plans))
        say(f"  {shown}: {done[name]}, after {seconds:.0f} s")
    title = f"Guards for the {guards.limits[0].name}, {counts.episodes} episodes of {steps} steps from rest"
    report.table(f"guard_{task}", rows, title=title)
    ratio, wide = quotient(done["ours"].returns, done["mean"].returns)
    say(f"return of ours / mean constraint's: {ratio:.4f} +- {wide:.4f} (95%, on the same episodes)")
    draw(report, guards, done, title)
    return rows


def choose_scale(
    guards: GuardStudy, episodes: int, scales: tuple[float, ...] = SCALES
) -> tuple[float, list[dict[str, Any]]]:
    """The narrowest scale before the first that has a violation in the tune episodes, and what was seen."""
    rows: list[dict[str, Any]] = []
    for scale in scales:
        seeds = guards.seeds("tune", episodes)
        done = run_episodes(guards.guarded(scale), seeds, steps=guards.sizes.steps)
        rows.append({"scale": scale, "return": float(done.returns.mean())})
        rows[-1] |= {"violations": int(done.errors.sum()), "fallbacks": float(share(done))}
        guards.study.say(f"  scale {scale:g}, tune: {done}")
        if done.errors.any():
            break
    kept = [row["scale"] for row in rows if not row["violations"]]
    return (kept or scales)[-1 if kept else 0], rows


def quotient(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> tuple[float, float]:
    """The quotient of two means over the same episodes, and 1.96 of its standard errors (delta method)."""
    ratio = float(ours.mean() / theirs.mean())
    rest = ours - ratio * theirs
    return ratio, float(1.96 * rest.std(ddof=1) / (np.sqrt(len(rest)) * abs(theirs.mean())))


def share(done: Episodes) -> float:
    return float(done.fallbacks.sum() / done.decisions.sum())


def row(done: Episodes, seconds: float) -> dict[str, Any]:
    """Return, violations with their exact 95% interval, and fallbacks."""
    errors, n = int(done.errors.sum()), len(done.seeds)
    low, high = error_interval(errors, n, 0.025)
    return {
        "return": float(done.returns.mean()),
        "sd": float(done.returns.std(ddof=1)),
        "return before a violation": float(done.unbroken.mean()),
        "violated": f"{errors} of {n}",
        "low": low,
        "high": high,
        "steps in violation": float(done.violation_steps.mean()),
        "fallback rate": share(done),
        "batched ms a plan": 1e3 * seconds / int(done.decisions.sum()),
    }


def latency(controller: Controller, plans: int) -> dict[str, float]:
    """Milliseconds of a plan for one robot, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start, took = np.zeros((1, controller.ensemble.dims)), []
    for _ in range(plans):
        before = time.perf_counter()
        controller.decide(start)
        took.append(1e3 * (time.perf_counter() - before))
    torch.set_num_threads(threads)
    return {"median ms": float(np.median(took)), "99% ms": float(np.quantile(took, 0.99))}


def draw(report: Report, guards: GuardStudy, done: dict[str, Episodes], title: str) -> None:
    points = {}
    for name, one in done.items():
        errors, n = int(one.errors.sum()), len(one.seeds)
        points[name] = (float(one.returns.mean()), errors / n, error_interval(errors, n, 0.025))
    figure = returns_and_violations(points, title, allowed=LEVEL.epsilon)
    report.figure(f"guard_{guards.task}", figure)
    report.figure(f"guard_{guards.task}_episode", episodes_figure(guards, done))


def episodes_figure(guards: GuardStudy, done: dict[str, Episodes]) -> Any:
    """The first episode without a guard and with ours, over time."""
    column, panels = int(np.flatnonzero(guards.along)[0]), {}
    for name in ("no guard", "ours"):
        traces = done[name].traces
        assert traces is not None
        ends = np.stack([traces.lower[0], traces.upper[0]]) if name == "ours" else None
        panels[name] = (traces.states[0, :, column], ends)
    bounds = [float(limit.bound * limit.normal[column]) for limit in guards.limits]
    label = {"speed": "forward velocity, m/s", "flip": "torso pitch, rad"}[guards.task]
    checked = guards.sizes.checked
    title = f"One episode, with the {checked} checked steps of tubes of plans that acted"
    return guarded_over_time(panels, bounds, label, title, checked=checked)


def opened() -> tuple[GuardStudy, Report, Counts]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("halfcheetah_output"), help="folder for everything")
    parser.add_argument("--task", choices=TASKS, default="speed")
    parser.add_argument("--episodes", type=int, default=Counts.episodes, help="compared (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (%(default)s)")
    parser.add_argument("--smoke-test", action="store_true", help="a few short episodes, in seconds")
    args = parser.parse_args()
    report = Report(args.out / "results")
    if args.smoke_test:
        small = Counts(episodes=4, tune=2, plans=3)
        return GuardStudy(Study(Design.smoke(seed=args.seed), args.out), args.task, SMOKE), report, small
    study = Study(Design(seed=args.seed), args.out)
    return GuardStudy(study, args.task), report, Counts(episodes=args.episodes)


if __name__ == "__main__":
    try:
        main(*opened())
    except PACError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; what was trained is kept")
