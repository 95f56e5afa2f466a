"""PETS on the half-cheetah with the guard in the loop, and guards compared inside its planner.

    python scripts/halfcheetah_pets.py [--episodes 12] [--rounds 3] [--address local|none] [--smoke-test]

Collect, train, calibrate anew, plan with mbrl-lib's CEM, and again; each search begins at the policy's own
actions, because CEM from nothing barely moves on so little data. Then, on the last round's ensemble, five
guards inside the same CEM: none, the predicted mean, the worst member, the paper's tube, ours at the scale
that kept the limit on tune episodes. The episodes run on Ray. Speed limit 3.2096 m/s, 200 steps from rest.
With so few episodes the intervals are wide; they are shown.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cluster import Job, RunFolder, Stage, connected, run_here, run_on_ray
from pac_core import HalfSpace, LinearFeatures, PACError, PACLevel, error_interval, fit_shape, fit_threshold
from pac_core.failures import unit_scores
from pac_rl import (
    FittedTubes,
    MeanTubes,
    MemberTubes,
    Settings,
    cheetah_reward,
    for_plans,
    load_policy,
    make_environment,
    speed_limit,
)
from pac_rl.designs import TRAINING_SEEDS
from pac_rl.loops import Loop, Round, learn
from pac_rl.planned import Search
from pac_rl.replays import replayed
from pac_rl.reports import Report
from pac_rl.scoring import NEEDS, PlanEpisodes

SCALES = (1.0, 0.6)
LEVEL = PACLevel(0.1, 0.05)
FRESH = TRAINING_SEEDS + 10**8
"""Seeds from here on: units of the paper's tube, tune episodes, compared episodes."""


def main(args: argparse.Namespace, loop: Loop) -> list[dict[str, Any]]:
    robot, policy, report = make_environment(), load_policy(), Report(args.out / "results")
    limits, features = (speed_limit(robot),), LinearFeatures(("speed",), np.eye(len(robot.names))[:1])
    rounds = learn(
        robot,
        limits,
        features,
        cheetah_reward,
        ledger=args.out / "pets-ledger",
        loop=loop,
        policy=policy,
        fallback="hold",
        progress=partial(print, flush=True),
    )
    learnt = list(rounds)
    last = learnt[-1]
    ours = FittedTubes(last.predictor.score, last.predictor.threshold)
    unbound = (HalfSpace("none", limits[0].normal, 1e30),)

    def stage(guard: Any, kept: Any) -> Stage:
        parts = ("HalfCheetah-v5", policy, last.ensemble, limits, kept, guard, loop.search, loop.steps)
        return Stage(PlanEpisodes, parts, needs=NEEDS)

    def measured(launch: Any, name: str, guard: Any, kept: Any, first: int, count: int) -> dict[str, Any]:
        seeds = range(FRESH + first, FRESH + first + count)
        job = Job.of("pets", seeds, [stage(guard, kept)], size=1, guard=name, rounds=loop.rounds)
        folder = RunFolder(args.out / "pets" / name.replace(" ", "_").replace("'", ""))
        launch(job, folder)
        found = [arrays for _, arrays in folder.over(job.shards, lambda shard, arrays: arrays)]
        errors, returns, fallbacks, fastest = (
            np.concatenate([part[key] for part in found])
            for key in ("errors", "returns", "fallbacks", "fastest")
        )
        low, high = error_interval(int(errors.sum()), count, 0.025)
        row = {"guard": name, "return": float(returns.mean()), "violated": f"{int(errors.sum())} of {count}"}
        interval = {"low": low, "high": high, "fastest": float(fastest.mean())}
        row |= interval | {"fallback rate": float(fallbacks.sum() / (count * loop.steps))}
        print(f"  {name}: return {row['return']:.0f}, {row['violated']} over the limit", flush=True)
        return row

    def compare(launch: Any) -> list[dict[str, Any]]:
        scale = SCALES[0]
        for tried in SCALES:
            row = measured(launch, f"tune {tried:g}", ours.scaled(tried), limits, 10**6, args.tune)
            if not row["violated"].startswith("0 "):
                break
            scale = tried
        guards = {
            "no guard": (MeanTubes(), unbound),
            "mean": (MeanTubes(), limits),
            "worst member": (MemberTubes(), limits),
            "paper's tube": (papers_tubes(robot, last, learnt, loop), limits),
            f"ours, scale {scale:g}": (ours.scaled(scale), limits),
        }
        return [measured(launch, name, *guard, 2 * 10**6, args.episodes) for name, guard in guards.items()]

    if args.address == "none":
        rows = compare(run_here)
    else:
        with connected(args.address):
            rows = compare(run_on_ray)
    shown = f"{args.episodes} episodes of {loop.steps} steps from rest"
    title = f"Guards inside CEM after {loop.rounds} rounds of the loop, {shown}"
    report.table("pets", rows, title=title)
    return rows


def papers_tubes(robot: Any, last: Round, learnt: list[Round], loop: Loop) -> FittedTubes:
    """The paper's shape for the last model, on replays of what was done before it."""
    recorded = learnt[-2].collected if len(learnt) > 1 else last.collected
    units = replayed(robot, recorded, np.arange(FRESH, FRESH + 800), horizon=loop.search.checked)
    forecast = for_plans(last.ensemble, units.start, units.actions, propagation="one-step")
    tune, rest = ((forecast.take(part), units.truth[part]) for part in (slice(0, 400), slice(400, 800)))
    score = fit_shape(*tune, LEVEL, shape="joint")
    return FittedTubes(score, fit_threshold(np.asarray(unit_scores(score, *rest)), LEVEL))


def opened() -> tuple[argparse.Namespace, Loop]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("pets_output"), help="folder for everything")
    add("--episodes", type=int, default=12, help="compared (%(default)s)")
    add("--tune", type=int, default=4, help="episodes to choose our scale on (%(default)s)")
    add("--rounds", type=int, default=3, help="of the loop (%(default)s)")
    add("--address", default="local", help="of Ray: local, auto, HOST:PORT; none for no Ray (%(default)s)")
    add("--smoke-test", action="store_true", help="a few short episodes, in seconds")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    loop = Loop(rounds=args.rounds, warm=40)
    if args.smoke_test:
        args.address, args.episodes, args.tune = "none", 1, 1
        small = Settings(members=3, hidden=24, layers=2, epochs=2, batch=64)
        search = Search(horizon=4, checked=3, population=20, iterations=2)
        loop = replace(loop, rounds=2, episodes=1, random=4, warm=4, steps=30, settings=small, search=search)
        loop = replace(loop, tune=100, calibrate=150)
    return args, loop


if __name__ == "__main__":
    try:
        main(*opened())
    except PACError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; finished episodes are kept, the loop begins anew with the same numbers")
