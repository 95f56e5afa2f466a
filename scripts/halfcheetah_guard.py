"""Guards compared on the half-cheetah: none, the predicted mean, the worst member, the paper's tube, ours.

    python scripts/halfcheetah_guard.py [--task speed|flip] [--episodes 300] [--smoke-test] [--out folder]

One policy, one ensemble, the same candidates (the policy's actions, scaled down by 21 factors), the same
fresh episodes of 200 steps from rest in MuJoCo; only the guard differs. The speed limit is the one of
Safety-Gymnasium, 3.2096 m/s; no-flip keeps the torso's pitch within a quarter turn. Tubes are fitted on
rollouts of such candidates, and our scale is chosen on tune episodes, none of which is reported on.
Prints return, episodes with a violation and their exact interval, steps in violation, how often the
fallback acted and the time of a plan; draws return against violations, and an episode of each of two
guards. The numbers of violations are measurements: a promise takes a certificate of its own, on episodes
that nobody has looked at. The ensemble is kept, for a second run.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pac_core import (
    GaussianForecast,
    LinearFeatures,
    PACError,
    PACLevel,
    Trajectories,
    error_interval,
    fit_shape,
    fit_threshold,
)
from pac_rl import (
    Controller,
    Design,
    Ensemble,
    Environment,
    Episodes,
    FittedTubes,
    Governed,
    HalfSpace,
    MeanTubes,
    MemberTubes,
    Policy,
    Rollouts,
    Study,
    Transitions,
    candidates_around,
    execute,
    run_episodes,
    simulate,
    train,
)
from pac_rl.designs import TRAINING_SEEDS
from pac_rl.figures import guarded_over_time, returns_and_violations
from pac_rl.reports import Report

SPEED = 3.2096  # m/s, of Safety-Gymnasium's task
PITCH = math.pi / 2
LEVEL = PACLevel(0.05, 0.01)
SCALES = (2.0, 1.6, 1.4, 1.2, 1.0, 0.8)
"""Of our tubes, from wide to narrow; tried in this order on tune episodes, until one has a violation."""
GOVERNED = tuple(product((2.5, 3.0, 3.5, 4.0), (0.3, 1.0), (0.0, 0.5)))
"""Bounds on speed, widths and jitters of the training episodes that keep near the limit."""
FIRST = 3 * TRAINING_SEEDS
"""Seeds from here on are this experiment's; those of its parts are far apart."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything."""

    episodes: int = 300
    tune_episodes: int = 64
    steps: int = 200
    rollouts: int = 2000
    horizon: int = 6
    checked: int = 3
    """steps of a plan that must keep the limit; the later ones are planned again before they are reached"""
    plans: int = 200
    """timed one at a time"""
    governed: tuple[tuple[float, float, float], ...] = GOVERNED


SMOKE = Sizes(
    episodes=4, tune_episodes=2, steps=12, rollouts=320, horizon=2, checked=2, plans=3, governed=GOVERNED[::5]
)


def main(study: Study, report: Report, task: str, sizes: Sizes) -> list[dict[str, Any]]:
    limits, names, sides = task_of(study, task)
    ensemble = model(study, sizes)
    base = Controller(
        study.environment,
        ensemble,
        study.policy,
        limits,
        None,
        horizon=sizes.horizon,
        checked=sizes.checked,
    )
    forecast, truth = candidates_carried_out(base, sizes)
    half = len(truth) // 2
    tune, rest = (forecast.take(slice(half)), truth[:half]), (forecast.take(slice(half, None)), truth[half:])
    features = LinearFeatures(names, np.eye(ensemble.dims)[[study.environment.names.index(n) for n in names]])
    ours = tubes(tune, rest, shape="features", features=features, sides=sides, units=(1.0,) * len(names))
    scale, tried = choose_scale(replace(base, guard=ours), sizes)
    report.table(f"guard_{task}_scales", tried, title="Scales of our tube, on tune episodes")
    controllers = {
        "no guard": base.bare(),
        "mean": replace(base, guard=MeanTubes()),
        f"ours, scale {scale:g}": replace(base, guard=ours.scaled(scale)),
        "worst member": replace(base, guard=MemberTubes()),
        "paper's tube": replace(base, guard=tubes(tune, rest, shape="joint")),
    }
    along = limits[0].normal
    seeds = FIRST + 10**6 * (2 + ("speed", "flip").index(task)) + np.arange(sizes.episodes)
    rows, done = [], {}
    for name, controller in controllers.items():
        before = time.perf_counter()
        done[name] = run_episodes(controller, seeds, steps=sizes.steps, along=along)
        seconds = time.perf_counter() - before
        rows.append({"guard": name} | row(done[name], seconds) | latency(controller, sizes.plans))
        study.say(f"  {name}: {done[name]}, after {seconds:.0f} s")
    title = f"Guards for {limits[0].name}, {sizes.episodes} episodes of {sizes.steps} steps from rest"
    report.table(f"guard_{task}", rows, title=title)
    draw(report, task, done, limits, title)
    return rows


def task_of(study: Study, task: str) -> tuple[tuple[HalfSpace, ...], tuple[str, ...], tuple[int, ...]]:
    """The limits, the numbers of the state that they read, and which side of each counts."""
    along = np.eye(len(study.environment.names))
    if task == "speed":
        name = "forward velocity"
        column = study.environment.names.index(name)
        return (HalfSpace("speed limit", along[column], SPEED),), (name,), (1,)
    column = study.environment.names.index("rooty")
    ends = (
        HalfSpace("no flip, forward", along[column], PITCH),
        HalfSpace("no flip, back", -along[column], PITCH),
    )
    return ends, ("rooty",), (0,)


def model(study: Study, sizes: Sizes) -> Ensemble:
    """The ensemble, half of whose training episodes keep near the speed limit, where a guard holds the robot.

    Of the study's own episodes, at the policy's full speed, every other one is left out: the budget is
    the same.
    """
    file = study.folder / "guard_ensemble.safetensors"
    if file.exists():
        return Ensemble.load(file, study.device)
    own, each = study.episodes, max(1, study.design.episodes // 2 // len(sizes.governed))
    parts = [Transitions.of(own.take(slice(0, None, 2)))]
    for i, options in enumerate(sizes.governed):
        seeds = study.seeds[0] + TRAINING_SEEDS + 10**6 * (i + 1) + np.arange(each)
        done = simulate(
            study.environment,
            governed(study.environment, study.policy, options),
            seeds,
            burn_in=(0, 0),
            horizon=own.states.shape[1],
        )
        parts.append(Transitions.of(done))
    study.say("training with episodes near the limit")
    made = train(
        Transitions.join(parts),
        study.design.env,
        study.design.settings,
        device=study.device,
        progress=lambda epoch: study.say(f"  {epoch}"),
    )
    made.save(file)
    return made


def governed(environment: Environment, policy: Policy, options: tuple[float, float, float]) -> Governed:
    names = environment.names
    return Governed(policy, environment.view, len(names), names.index("forward velocity"), *options)


def candidates_carried_out(base: Controller, sizes: Sizes) -> tuple[GaussianForecast, Trajectories]:
    """Candidates as the planner would weigh them, one drawn for each start, and what came of them.

    The starts lie anywhere along governed episodes, which keep where a guarded robot does.
    """
    environment, parts, forecasts = base.environment, [], []
    draw = np.random.default_rng(0)
    each = max(1, sizes.rollouts // len(sizes.governed))
    for i, options in enumerate(sizes.governed):
        policy = governed(environment, base.policy, options)
        seeds = FIRST + 10**5 + 1000 * i + np.arange(each)
        starts = simulate(environment, policy, seeds, horizon=1, burn_in=(0, sizes.steps - 1))
        found = candidates_around(
            base.policy, base.ensemble, environment, starts.start, horizon=base.horizon, factors=base.factors
        )
        picked = found.pick(torch.from_numpy(draw.integers(len(base.factors), size=each)))
        plans = picked.plans[:, 0].double().cpu().numpy()
        parts.append(execute(environment, starts, plans))
        forecasts.append(picked.forecast)
    mean, var = (
        torch.cat([getattr(one, name) for one in forecasts]).cpu().numpy() for name in ("mean", "var")
    )
    done, mixed = Rollouts.join(parts), draw.permutation(len(mean))
    return GaussianForecast(mean, var).take(mixed), done.truth[mixed]


def tubes(tune: Any, rest: Any, **options: Any) -> FittedTubes:
    """The shape from one half of the rollouts, T from the other."""
    score = fit_shape(*tune, LEVEL, **options)
    return FittedTubes(score, fit_threshold(np.asarray(score.scores(*rest)), LEVEL))


def choose_scale(controller: Controller, sizes: Sizes) -> tuple[float, list[dict[str, Any]]]:
    """The narrowest scale before the first that has a violation in the tune episodes, and what was seen."""
    seeds = FIRST + 10**6 + np.arange(sizes.tune_episodes)
    rows: list[dict[str, Any]] = []
    for scale in SCALES:
        done = run_episodes(controller.scaled(scale), seeds, steps=sizes.steps)
        rows.append({"scale": scale, "return": float(done.returns.mean())})
        rows[-1] |= {"violations": int(done.errors.sum()), "fallbacks": float(share(done))}
        if done.errors.any():
            break
    kept = [row["scale"] for row in rows if not row["violations"]]
    return (kept or SCALES)[-1 if kept else 0], rows


def share(done: Episodes) -> float:
    return float(done.fallbacks.sum() / done.decisions.sum())


def row(done: Episodes, seconds: float) -> dict[str, Any]:
    """Return, violations with their exact 95% interval, and fallbacks."""
    errors, n = int(done.errors.sum()), len(done.seeds)
    low, high = error_interval(errors, n, 0.025)
    return {
        "return": float(done.returns.mean()),
        "sd": float(done.returns.std(ddof=1)),
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


def draw(
    report: Report, task: str, done: dict[str, Episodes], limits: tuple[HalfSpace, ...], title: str
) -> None:
    points = {}
    for name, one in done.items():
        errors, n = int(one.errors.sum()), len(one.seeds)
        points[name] = (float(one.returns.mean()), errors / n, error_interval(errors, n, 0.025))
    report.figure(f"guard_{task}", returns_and_violations(points, title, allowed=LEVEL.epsilon))
    column, panels = int(np.flatnonzero(limits[0].normal)[0]), {}
    for name in (next(iter(done)), next(name for name in done if name.startswith("ours"))):
        traces = done[name].traces
        assert traces is not None
        ends = np.stack([traces.lower[0], traces.upper[0]]) if name.startswith("ours") else None
        panels[name] = (traces.states[0, :, column], ends)
    bounds = [float(limit.bound * limit.normal[column]) for limit in limits]
    label = {"speed": "forward velocity, m/s", "flip": "torso pitch, rad"}[task]
    drawn = guarded_over_time(panels, bounds, label, "One episode, with the tubes of the plans that acted")
    report.figure(f"guard_{task}_episode", drawn)


def opened() -> tuple[Study, Report, str, Sizes]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("halfcheetah_output"), help="folder for everything")
    parser.add_argument("--task", choices=("speed", "flip"), default="speed")
    parser.add_argument("--episodes", type=int, help=f"reported on ({Sizes.episodes})")
    parser.add_argument("--smoke-test", action="store_true", help="a few short episodes, in seconds")
    args = parser.parse_args()
    design, sizes = (Design.smoke(), SMOKE) if args.smoke_test else (Design(), Sizes())
    sizes = sizes if args.episodes is None else replace(sizes, episodes=args.episodes)
    return Study(design, args.out), Report(args.out / "results"), args.task, sizes


if __name__ == "__main__":
    try:
        main(*opened())
    except PACError as error:
        sys.exit(f"Error: {error}")
