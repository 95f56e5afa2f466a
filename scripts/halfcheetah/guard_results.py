"""Guards compared on the same episodes, and how their planner was chosen.

One policy, one ensemble, the same candidates (the policy's actions, scaled down by 21 factors), the same
fresh episodes of 200 steps from rest in MuJoCo; only the guard differs. The speed limit is the one of
Safety-Gymnasium, 3.2096 m/s; no-flip keeps the torso's pitch within a quarter turn. The numbers of
violations are measurements: a promise takes a certificate of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from halfcheetah.drawing import returns_and_violations
from halfcheetah.experiment import say
from halfcheetah.guard import LEVEL, Guarded
from pac_core.evaluation import error_interval
from pac_rl import Controller, run_episodes
from pac_rl.planning import Episodes, MeanTubes
from pac_rl.plots import plot_episodes

Rows = list[dict[str, Any]]
SCALES = (2.0, 1.6, 1.4, 1.2, 1.0, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Of our tubes, from wide to narrow; tried in this order on tune episodes, until one has a violation."""
SETTINGS = (
    *((3, 3, "return"), (3, 3, "factor"), (4, 4, "factor"), (6, 3, "return")),
    *((6, 6, "return"), (6, 6, "factor"), (9, 9, "return")),
)
"""Horizon, steps that are checked, and which safe plan acts."""


@dataclass(frozen=True)
class Counts:
    """How many episodes are compared, how many choose our scale, and how many plans are timed."""

    episodes: int = 300
    tune: int = 64
    plans: int = 200


def compare_guards(guards: Guarded, counts: Counts) -> Rows:
    """A row for each guard, a figure of all of them, and one of an episode without and with ours."""
    report, steps = guards.experiment.report, guards.sizes.steps
    scale, tried = choose_scale(guards, counts.tune)
    report.table(f"guard_{guards.task}_scales", tried, title="Scales of our tube, on tune episodes")
    rows, done = [], {}
    for name, controller in guards.controllers(scale).items():
        shown = f"ours, scale {scale:g}" if name == "ours" else name
        done[name] = guards.run(controller, "compare", counts.episodes, shown)
        rows.append({"guard": shown} | row(done[name]) | latency(controller, counts.plans))
        say(f"{shown}: {done[name]}")
    title = f"Guards for the {guards.limits[0].name}, {counts.episodes} episodes of {steps} steps from rest"
    report.table(f"guard_{guards.task}", rows, title)
    ratio, wide = quotient(done["ours"].returns, done["mean"].returns)
    say(f"return of ours / mean constraint's: {ratio:.4f} +- {wide:.4f} (95%, on the same episodes)")
    points = {
        name: (float(one.returns.mean()), float(one.errors.mean()), interval(one))
        for name, one in done.items()
    }
    figure = returns_and_violations(points, title, allowed=LEVEL.epsilon)
    report.figure(f"guard_{guards.task}", figure)
    report.figure(f"guard_{guards.task}_episode", draw_episode(guards, scale))
    return rows


def choose_scale(guards: Guarded, episodes: int, scales: tuple[float, ...] = SCALES) -> tuple[float, Rows]:
    """The narrowest scale before the first that has a violation in the tune episodes, and what was seen."""
    rows: Rows = []
    for scale in scales:
        done = guards.run(guards.guarded(scale), "tune", episodes, f"scale-{scale:g}")
        rows.append({"scale": scale, "return": float(done.returns.mean())})
        rows[-1] |= {"violations": int(done.errors.sum()), "fallbacks": fallback_rate(done)}
        say(f"scale {scale:g}, tune: {done}")
        if done.errors.any():
            break
    kept = [row["scale"] for row in rows if not row["violations"]]
    return (kept or scales)[-1 if kept else 0], rows


def quotient(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """The quotient of two means over the same episodes, and 1.96 of its standard errors (delta method)."""
    ratio = float(ours.mean() / theirs.mean())
    rest = ours - ratio * theirs
    return ratio, float(1.96 * rest.std(ddof=1) / (np.sqrt(len(rest)) * abs(theirs.mean())))


def fallback_rate(done: Episodes) -> float:
    return float(done.fallbacks.sum() / done.decisions.sum())


def interval(done: Episodes) -> tuple[float, float]:
    """The exact 95% interval of the share of episodes with a violation."""
    return error_interval(int(done.errors.sum()), len(done.seeds), 0.025)


def row(done: Episodes) -> dict[str, Any]:
    """Return, violations with their exact 95% interval, and fallbacks."""
    low, high = interval(done)
    return {
        "return": float(done.returns.mean()),
        "sd": float(done.returns.std(ddof=1)),
        "return before a violation": float(done.unbroken.mean()),
        "violated": f"{int(done.errors.sum())} of {len(done.seeds)}",
        "low": low,
        "high": high,
        "steps in violation": float(done.violation_steps.mean()),
        "fallback rate": fallback_rate(done),
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


def draw_episode(guards: Guarded, scale: float) -> Any:
    """The first compared episode without a guard and with ours, over time; run again for its traces."""
    column, panels = int(np.flatnonzero(guards.along)[0]), {}
    for name, controller in (("no guard", guards.base.bare()), ("ours", guards.guarded(scale))):
        seeds, steps = guards.seeds("compare", 1), guards.sizes.steps
        traces = run_episodes(controller, seeds, steps=steps, along=guards.along).traces
        ends = np.stack([traces.lower[0], traces.upper[0]]) if name == "ours" else None
        panels[name] = (traces.states[0, :, column], ends)
    bounds = [float(limit.bound * limit.normal[column]) for limit in guards.limits]
    label = {"speed": "forward velocity, m/s", "flip": "torso pitch, rad"}[guards.task]
    checked = guards.sizes.checked
    title = f"One episode, with the {checked} checked steps of tubes of plans that acted"
    return plot_episodes(panels, bounds, label, title, checked=checked)


def compare_settings(usual: Guarded, settings: Any, episodes: int) -> Rows:
    """Horizons, checked steps and choices of the planner, weighed on tune episodes.

    Nothing here is a promise, and none of these episodes is reported on elsewhere: it is how `Sizes` got its
    defaults, and what another robot would have to repeat.
    """
    rows: Rows = []
    for horizon, checked, choice in settings:
        sizes = replace(usual.sizes, horizon=horizon, checked=checked, choice=choice)
        guards = Guarded(usual.experiment, usual.task, sizes)
        mean = guards.run(replace(guards.base, guard=MeanTubes()), "tune", episodes, "mean")
        scale, tried = choose_scale(guards, episodes, SCALES[4:])
        ours = next(row for row in tried if row["scale"] == scale)
        row = {"horizon": horizon, "checked": checked, "choice": choice}
        row |= {"mean: return": float(mean.returns.mean())}
        row |= {"violated": f"{int(mean.errors.sum())} of {episodes}", "ours: scale": scale}
        row |= {"return": ours["return"], "violations": f"{ours['violations']} of {episodes}"}
        rows.append(row | {"ours / mean": ours["return"] / row["mean: return"]})
        say(f"horizon {horizon}, {checked} checked, by {choice}: {rows[-1]['ours / mean']:.1%}")
    title = f"Settings of the planner, {episodes} tune episodes"
    usual.experiment.report.table(f"guard_{usual.task}_settings", rows, title)
    return rows
