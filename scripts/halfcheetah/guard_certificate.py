"""A certificate for the guarded half-cheetah: at most one episode in twenty breaks the limit, proved on Ray.

A planner that picks its favourite of many plans voids the promise of a tube that was calibrated on drawn
plans. So the whole controller is tested, on fresh episodes: 380 for each scale of the tubes, from the widest
down, until one has more than 8 errors; the last that passed is certified. Scales, episodes and the errors
allowed are in the ledger before the first episode, so nothing can be added after a failure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from halfcheetah.guard import Guarded
from pac_core import PACLevel
from pac_core.certificates import (
    Descended,
    Descent,
    descend,
    open_ledger,
    score_digest,
    verify_descent,
    write_descent,
)
from pac_core.cli import refuse_unwritable
from pac_core.datasets import file_digest
from pac_core.risks import accepted_risk, claim_accepted_risk
from pac_core.runs import Job, RunFolder, Stage, episodes_through
from pac_rl.tasks import EPISODES, RunEpisodes, RunSelections, episodes_stage, read_arrays

KINDS = {
    "episode": (RunEpisodes, "a limit is violated at any step of an episode from rest, fallback included"),
    "tube": (RunSelections, "the plan chosen at a step drawn beforehand leaves its tube when carried out"),
}
SCALES = {"episode": (1.0, 0.8, 0.6), "tube": (1.8, 1.6, 1.4)}
"""Of the tubes, chosen on tune episodes. Later plans mend what leaves a narrow tube, so episodes are safe in
narrower ones than would hold a plan that is carried out to its end."""


@dataclass(frozen=True)
class Plan:
    """What is to be proved, and at what cost: 0.004 for each kind and 0.002 for P(unsafe given accepted)."""

    episodes: Annotated[int, "Of each scale."] = 380
    allowed: Annotated[int, "Errors with which a scale passes."] = 8
    epsilon: Annotated[float, "Promised error."] = 0.05
    delta: Annotated[float, "Probability that the promise fails."] = 0.004
    confidence: Annotated[float, "Of P(unsafe given accepted)."] = 0.998
    budget: Annotated[float, "Of a ledger that is begun, for all in it."] = 0.01
    attempt: Annotated[int, "Another one has fresh episodes."] = 0
    kind: str = "episode"
    scales: tuple[float, ...] = ()


SMALL = Plan(epsilon=0.4, delta=0.4, episodes=10, allowed=3, confidence=0.9, budget=0.9)
"""Of a smoke test."""


def certify_guard(guards: Guarded, asked: Plan, ledger: Path) -> Descended:
    """Runs the plan, or goes on with it, and writes the certificate into the results."""
    scorer, error = KINDS[asked.kind]
    scales = tuple(sorted(asked.scales or SCALES[asked.kind], reverse=True))
    plan = Descent(
        scales=scales,
        n=asked.episodes,
        allowed=asked.allowed,
        level=PACLevel(asked.epsilon, asked.delta),
        episodes=fresh_episodes(guards, asked, len(scales)),
        error=error,
        tested=describe(guards),
    )
    refuse_unwritable("--ledger", ledger)
    open_ledger(ledger, budget=asked.budget)
    if asked.kind == "tube":
        claim_accepted_risk(plan.episodes, confidence=asked.confidence, ledger=ledger)
    counts = f"{len(scales)} scales, {plan.n} episodes each, {plan.allowed} errors allowed"
    print(f"plan      {counts}; in {ledger}")
    root = guards.experiment.out / f"certify-{guards.task}-{asked.kind}-{asked.attempt}"

    def stage(scale: float) -> Stage:
        return episodes_stage(guards.guarded(scale), guards.sizes.steps, scorer)

    about: Any = {"size": EPISODES, "controller": plan.controller, "unit": "episode"}
    run = episodes_through(guards.experiment.engine, stage, str(root), **about)
    done = descend(plan, run, ledger=ledger)
    print(f"\n{done}")
    if asked.kind == "tube" and done.certified is not None:
        print(f"accepted  {risk(done, root, asked.confidence, ledger)}")
    file = guards.experiment.report.folder / f"guard_{guards.task}_{asked.kind}_certificate.json"
    write_descent(done, file)
    for check in verify_descent(done, ledger):
        print(f"{check.name:<9} {check.text}")
    print(f"wrote     {file}")
    return done


def fresh_episodes(guards: Guarded, asked: Plan, scales: int) -> np.ndarray:
    """`[S, n]` seeds that no other kind of certificate and no other attempt has."""
    first = (asked.attempt * len(KINDS) + list(KINDS).index(asked.kind)) * 10**5
    seeds = guards.seeds("certify", scales * asked.episodes, first=first)
    guards.ensemble.refuse_seen(seeds, "episodes")
    return seeds.reshape(scales, asked.episodes)


def describe(guards: Guarded) -> dict[str, Any]:
    """All that would make it another controller."""
    base, threshold = guards.base, guards.ours.threshold
    return {
        "robot": base.environment.id,
        "policy": guards.experiment.design.about()["policy"],
        "ensemble": file_digest(guards.home / "ensemble.safetensors"),
        "trained on": asdict(guards.ensemble.train_record),
        "limits": [[limit.name, limit.normal.tolist(), limit.bound] for limit in guards.limits],
        "tubes": {
            "score": score_digest(guards.ours.score),
            "threshold": threshold if isinstance(threshold, float) else threshold.value,
        },
        **guards.options,
        "reward": base.reward.__name__,
        **asdict(guards.sizes),
    }


def risk(done: Descended, root: Path, confidence: float, ledger: Path) -> Any:
    """P(unsafe given accepted) at the certified scale, from the decisions drawn beforehand.

    The scale was picked on these episodes, so the limit holds for all scales of the plan at once.
    """
    ids = done.plan.episodes[done.plan.scales.index(done.certified)].tolist()
    job = Job.of("episodes", ids, [Stage(RunSelections)], size=EPISODES)
    found = read_arrays(job, RunFolder(root / f"scale-{done.certified!r}"))
    counts = (found["ids"], found["accepted"], found["unsafe"])
    return accepted_risk(*counts, confidence=confidence, choices=len(done.plan.scales), ledger=ledger)
