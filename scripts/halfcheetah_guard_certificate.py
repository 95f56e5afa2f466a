"""A certificate for the guarded half-cheetah: at most one episode in twenty breaks the limit, proved on Ray.

    python scripts/halfcheetah_guard_certificate.py [--task speed|flip] [--kind episode|tube]
        [--scale 1 --scale 0.8 ...] [--episodes 380 --allowed 8] [--address local|none|auto] [--smoke-test]

A planner that picks its favourite of many plans voids the promise of a tube that was calibrated on drawn
plans. So the whole controller is tested, on fresh episodes: 380 for each scale of the tubes, from the widest
down, until one has more than 8 errors; the last that passed is certified. Scales, episodes and the errors
allowed are in the ledger before the first episode, so nothing can be added after a failure. For the kind
"episode" an error is a broken limit anywhere in 200 steps from rest, fallback included; for "tube", the plan
chosen at a step that was drawn beforehand leaves its tube when it is carried out, and P(unsafe given
accepted) is a claim of its own. All three are charged to one budget of the ledger, 0.01, which further
attempts would have to share: with confidence 0.99 no statement from it is false. Stopped, it goes on.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from halfcheetah_guard import SMOKE

from cluster import Job, RunFolder, Stage, connected, run_here, run_on_ray
from cluster.engines import episodes_through
from cluster.progress import shown
from pac_core import (
    Descended,
    Descent,
    PACError,
    PACLevel,
    accepted_risk,
    claim_accepted_risk,
    descend,
    open_ledger,
    verify_descent,
    write_descent,
)
from pac_core.ledger import score_digest
from pac_core.options import refuse_unwritable
from pac_core.tables import file_digest
from pac_rl import Controller, Design, FittedTubes, Study
from pac_rl.guard_studies import TASKS, GuardStudy, Sizes
from pac_rl.scoring import EPISODES, NEEDS, RunEpisodes, RunSelections

KINDS = {
    "episode": (RunEpisodes, "a limit is violated at any step of an episode from rest, fallback included"),
    "tube": (RunSelections, "the plan chosen at a step drawn beforehand leaves its tube when carried out"),
}
SCALES = {"episode": (1.0, 0.8, 0.6), "tube": (1.8, 1.6, 1.4)}
"""Of the tubes, chosen on tune episodes. Later plans mend what leaves a narrow tube, so episodes are safe in
narrower ones than would hold a plan that is carried out to its end."""
LEVEL, CONFIDENCE, BUDGET = PACLevel(0.05, 0.004), 0.998, 0.01
"""Of each kind, of P(unsafe given accepted), and of the ledger: 0.004 + 0.004 + 0.002 are 0.01."""


def main(guards: GuardStudy, args: argparse.Namespace) -> Descended:
    scorer, error = KINDS[args.kind]
    scales = tuple(sorted(args.scale or SCALES[args.kind], reverse=True))
    tested = about(guards)
    plan = Descent(
        scales=scales,
        n=args.episodes,
        allowed=args.allowed,
        level=PACLevel(args.epsilon, args.delta),
        episodes=episodes(guards, args.kind, len(scales), args.episodes, args.attempt),
        error=error,
        tested=tested,
    )

    def stage(scale: float) -> Stage:
        made = (*parts(guards.guarded(scale)), guards.sizes.steps, guards.options)
        return Stage(scorer, made, needs=NEEDS)

    root = args.out / f"certify-{guards.task}-{args.kind}-{args.attempt}"
    # Its budget is for these statements; episodes are known by their seeds, whatever folder they lie in.
    name = "guard-smoke-ledger" if args.smoke_test else "guard-ledger"
    ledger = args.ledger or args.out.resolve().parent / name
    refuse_unwritable("--ledger", ledger)
    open_ledger(ledger, budget=args.budget)
    if args.kind == "tube":
        claim_accepted_risk(plan.episodes, confidence=args.confidence, ledger=ledger)
    print(
        f"plan      {len(scales)} scales, {plan.n} episodes each, {plan.allowed} errors allowed; in {ledger}"
    )

    def go(launch: Any) -> Descended:
        def watched(job: Any, folder: RunFolder) -> None:
            with shown(f"scale {job.configuration['scale']:g}", "episode") as progress:
                launch(job, folder, progress=progress)

        run = episodes_through(watched, stage, str(root), size=EPISODES, controller=plan.controller)
        return descend(plan, run, ledger=ledger)

    if args.address == "none":
        done = go(run_here)
    else:
        with connected(args.address) as session:
            print(f"ray       {session}")
            done = go(run_on_ray)
    print(f"\n{done}")
    if args.kind == "tube" and done.certified is not None:
        print(f"accepted  {risk(done, root, args.confidence, ledger)}")
    file = args.out / "results" / f"guard_{guards.task}_{args.kind}_certificate.json"
    write_descent(done, file)
    for check in verify_descent(done, ledger):
        print(f"{check.name:<9} {check.text}")
    print(f"wrote     {file}")
    return done


def episodes(guards: GuardStudy, kind: str, scales: int, n: int, attempt: int) -> Any:
    """`[S, n]` seeds that no other kind of certificate and no other attempt has."""
    first = (attempt * len(KINDS) + list(KINDS).index(kind)) * 10**5
    seeds = guards.seeds("certify", scales * n, first=first)
    guards.ensemble.refuse_seen(seeds, "episodes")
    return seeds.reshape(scales, n)


def parts(controller: Controller) -> tuple[Any, ...]:
    """What a worker makes the controller of."""
    return (
        controller.environment.id,
        controller.policy,
        controller.ensemble,
        controller.limits,
        controller.guard,
    )


def about(guards: GuardStudy) -> dict[str, Any]:
    """All that would make it another controller."""
    base, ours = guards.base, guards.ours
    assert isinstance(ours, FittedTubes)
    threshold = ours.threshold if isinstance(ours.threshold, float) else ours.threshold.value
    return {
        "robot": base.environment.id,
        "policy": guards.study.about["policy"],
        "ensemble": file_digest(guards.study.folder / "guard_ensemble.safetensors"),
        "trained on": asdict(guards.ensemble.train_record),
        "limits": [[limit.name, limit.normal.tolist(), limit.bound] for limit in guards.limits],
        "tubes": {"score": score_digest(ours.score), "threshold": threshold},
        **guards.options,
        "reward": base.reward.__name__,
        **asdict(guards.sizes),
    }


def risk(done: Descended, root: Path, confidence: float, ledger: Path) -> Any:
    """P(unsafe given accepted) at the certified scale, from the decisions drawn beforehand.

    The scale was picked on these episodes, so the limit holds for all scales of the plan at once.
    """
    folder = RunFolder(root / f"scale-{done.certified!r}")
    place = done.plan.scales.index(done.certified)
    found, scales = stored(folder, done.plan.episodes[place]), len(done.plan.scales)
    counts = (found["ids"], found["accepted"], found["unsafe"])
    return accepted_risk(*counts, confidence=confidence, choices=scales, ledger=ledger)


def stored(folder: RunFolder, ids: Any) -> dict[str, Any]:
    job = Job.of("episodes", ids.tolist(), [Stage(RunSelections)], size=EPISODES)
    parts = [arrays for _, arrays in folder.over(job.shards, lambda shard, arrays: arrays)]
    return {name: np.concatenate([part[name] for part in parts]) for name in ("ids", "accepted", "unsafe")}


def opened() -> tuple[GuardStudy, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("halfcheetah_output"), help="folder for everything")
    add("--task", choices=TASKS, default="speed")
    add("--kind", choices=tuple(KINDS), default="episode")
    add(
        "--scale",
        type=float,
        action="append",
        help="of the tubes; several (by kind: 1, 0.8, 0.6 and 1.8, 1.6, 1.4)",
    )
    add("--episodes", type=int, default=380, help="of each scale (%(default)s)")
    add("--allowed", type=int, default=8, help="errors with which a scale passes (%(default)s)")
    add("--epsilon", type=float, default=LEVEL.epsilon, help="promised error (%(default)s)")
    add("--delta", type=float, default=LEVEL.delta, help="probability that the promise fails (%(default)s)")
    add("--confidence", type=float, default=CONFIDENCE, help="of P(unsafe given accepted) (%(default)s)")
    add("--budget", type=float, default=BUDGET, help="of a ledger that is begun, for all in it (%(default)s)")
    add("--ledger", type=Path, help="folder that knows earlier plans (guard-ledger beside the folder)")
    add("--attempt", type=int, default=0, help="another one has fresh episodes (%(default)s)")
    add(
        "--address",
        default="local",
        help="of Ray: local, auto, HOST:PORT; none for this process (%(default)s)",
    )
    add("--seed", type=int, default=0, help="of everything random (%(default)s)")
    add("--smoke-test", action="store_true", help="a few short episodes, in seconds")
    args = parser.parse_args()
    (args.out / "results").mkdir(parents=True, exist_ok=True)
    if not args.smoke_test:
        return GuardStudy(Study(Design(seed=args.seed), args.out), args.task, Sizes()), args
    args.epsilon, args.delta, args.episodes, args.allowed, args.address = 0.4, 0.4, 10, 3, "none"
    args.confidence, args.budget = 0.9, 0.9
    return GuardStudy(Study(Design.smoke(seed=args.seed), args.out), args.task, SMOKE), args


if __name__ == "__main__":
    try:
        sys.exit(0 if main(*opened()).certified is not None else 1)
    except PACError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; finished episodes are kept, and the same command goes on from here")
