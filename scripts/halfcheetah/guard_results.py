"""Guards compared on the same episodes, how their planner was chosen, and a certificate for ours.

One policy, one ensemble, the same candidates (the policy's actions, scaled down by 21 factors), the same
fresh episodes of 200 steps from rest in MuJoCo; only the guard differs. The speed limit is the one of
Safety-Gymnasium, 3.2096 m/s; no-flip keeps the torso's pitch within a quarter turn. The numbers of
violations are measurements.

A planner that picks its favourite of many plans voids the promise of a tube that was calibrated on drawn
plans. So the certificate tests the whole controller, on fresh episodes: 380 for each scale of the tubes, from
the widest down, until one has more than 8 errors; the last that passed is certified. Scales, episodes and the
errors allowed are in the ledger before the first episode, so nothing can be added after a failure.
"""

import time
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import numpy as np
import torch
from common import INK, new_panel
from halfcheetah.drawings import plot_episodes
from halfcheetah.experiment import say
from halfcheetah.guard import LEVEL, Guarded

from pac_core import PACLevel
from pac_core.certificates import Descent, descend, open_ledger, score_digest, verify_descent, write_descent
from pac_core.cli import refuse_unwritable
from pac_core.datasets import file_digest
from pac_core.evaluation import error_interval
from pac_core.risks import accepted_risk, claim_accepted_risk
from pac_core.runs import Job, RunFolder, Stage, episodes_through
from pac_rl import run_episodes
from pac_rl.planning import BATCH, MeanTubes, RunEpisodes, RunSelections
from pac_rl.tasks import NEEDS, read_arrays

SCALES = (2.0, 1.6, 1.4, 1.2, 1.0, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Of our tubes, from wide to narrow; tried in this order on tune episodes, until one has a violation."""
SETTINGS = (
    *((3, 3, "return"), (3, 3, "factor"), (4, 4, "factor"), (6, 3, "return")),
    *((6, 6, "return"), (6, 6, "factor"), (9, 9, "return")),
)
"""Horizon, steps that are checked, and which safe plan acts."""
KINDS = {
    "episode": (RunEpisodes, "a limit is violated at any step of an episode from rest, fallback included"),
    "tube": (RunSelections, "the plan chosen at a step drawn beforehand leaves its tube when carried out"),
    "share": (RunEpisodes, "the share of an episode's steps at which a limit is violated"),
}
CERTIFIED_SCALES = {"episode": (1.0, 0.8, 0.6), "tube": (1.8, 1.6, 1.4), "share": (1.0, 0.8, 0.6, 0.4)}
"""Of the tubes, chosen on tune episodes. Later plans mend what leaves a narrow tube, so episodes are safe in
narrower ones than would hold a plan that is carried out to its end."""


def compare_guards(guards, episodes, tune, plans):
    """A row for each guard, a figure of all of them, and one of an episode without and with ours."""
    report, name = guards.experiment.report, f"guard_{guards.task}"
    scale, tried = choose_scale(guards, tune)
    report.table(f"{name}_scales", tried, title="Scales of our tube, on tune episodes")
    rows, done = [], {}
    for kind, controller in guards.controllers(scale).items():
        shown = f"ours, scale {scale:g}" if kind == "ours" else kind
        done[kind] = one = guards.run(controller, "compare", episodes, shown)
        row = {"guard": shown, "return": float(one.returns.mean()), "sd": float(one.returns.std(ddof=1))}
        row |= {"return before a violation": float(one.unbroken.mean()), "violated": say_violated(one)}
        row |= dict(zip(("low", "high"), interval(one), strict=True))
        row |= {"steps in violation": float(one.violation_steps.mean()), "fallback rate": fallback_rate(one)}
        rows.append(row | time_plans(controller, plans))
        say(f"{shown}: {one}")
    where = f"{episodes} episodes of {guards.sizes.steps} steps from rest"
    title = f"Guards for the {guards.limits[0].name}, {where}"
    report.table(name, rows, title)
    ours, mean = done["ours"].returns, done["mean"].returns
    ratio = float(ours.mean() / mean.mean())  # its standard error by the delta method
    wide = 1.96 * (ours - ratio * mean).std(ddof=1) / (np.sqrt(len(ours)) * abs(mean.mean()))
    say(f"return of ours / mean constraint's: {ratio:.4f} +- {wide:.4f} (95%, on the same episodes)")
    points = {kind: (one.returns.mean(), one.errors.mean(), interval(one)) for kind, one in done.items()}
    report.figure(name, returns_and_violations(points, title, allowed=LEVEL.epsilon))
    report.figure(f"{name}_episode", draw_episode(guards, scale))


def choose_scale(guards, episodes, scales=SCALES):
    """The narrowest scale before the first that has a violation in the tune episodes, and what was seen."""
    rows, chosen = [], scales[0]
    for scale in scales:
        done = guards.run(guards.guarded(scale), "tune", episodes, f"scale-{scale:g}")
        row = {"scale": scale, "return": float(done.returns.mean())}
        rows.append(row | {"violations": int(done.errors.sum()), "fallbacks": fallback_rate(done)})
        say(f"scale {scale:g}, tune: {done}")
        if done.errors.any():
            break
        chosen = scale
    return chosen, rows


def fallback_rate(done):
    return float(done.fallbacks.sum() / done.decisions.sum())


def say_violated(done):
    return f"{int(done.errors.sum())} of {len(done.seeds)}"


def interval(done, miss=0.025):
    """The exact 95% interval of the share of episodes with a violation."""
    return error_interval(int(done.errors.sum()), len(done.seeds), miss)


def time_plans(controller, plans):
    """Milliseconds of a plan for one robot, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start, took = np.zeros((1, len(controller.system.names))), []
    for _ in range(plans):
        before = time.perf_counter()
        controller.decide(start, [None])
        took.append(1e3 * (time.perf_counter() - before))
    torch.set_num_threads(threads)
    return {"median ms": float(np.median(took)), "99% ms": float(np.quantile(took, 0.99))}


def returns_and_violations(guards, title, *, allowed):
    """Mean return against the share of episodes with a violation and its interval, a point for each guard."""
    label = "episodes with a violation\n(whisker: exact 95% interval)"
    figure, axes = new_panel(title, label, (8.4, 4.2))
    for i, (name, (earned, share, (low, high))) in enumerate(guards.items()):
        # Rings within rings: guards of the same return and share stay visible, and the names stand apart.
        ring = {"marker": "o", "markersize": 5 + 4 * (len(guards) - 1 - i), "markerfacecolor": "none"}
        ring |= {"markeredgewidth": 2, "capsize": 4, "color": INK[i % len(INK)]}
        ends = [[share - low], [high - share]]
        axes.errorbar(earned, share, ends, label=f"{name}: {earned:.0f}, {share:.1%}", **ring)
    axes.axhline(allowed, color="black", linestyle=":", label=f"{allowed:.0%} of the episodes")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9, labelspacing=1.2)
    axes.set_ylim(-0.06, 1.06)
    axes.margins(x=0.15)
    axes.set_xlabel("mean return of an episode")
    return figure


def draw_episode(guards, scale):
    """The first compared episode without a guard and with ours, over time; run again for its traces."""
    column, panels = int(np.flatnonzero(guards.along)[0]), {}
    for name, controller in (("no guard", guards.bare), ("ours", guards.guarded(scale))):
        seeds, steps = guards.seeds("compare", 1), guards.sizes.steps
        traces = run_episodes(controller, seeds, steps=steps, along=guards.along).traces
        ends = np.stack([traces.lower[0], traces.upper[0]]) if name == "ours" else None
        panels[name] = (traces.states[0, :, column], ends)
    bounds = [float(limit.bound * limit.normal[column]) for limit in guards.limits]
    label = {"speed": "forward velocity, m/s", "flip": "torso pitch, rad"}[guards.task]
    checked = guards.sizes.checked
    title = f"One episode, with the {checked} checked steps of tubes of plans that acted"
    return plot_episodes(panels, bounds, label, title, checked=checked)


def compare_settings(usual, settings, episodes):
    """Settings of the planner, weighed on tune episodes that are reported on nowhere else: no promise."""
    rows = []
    for setting in settings:
        row = dict(zip(("horizon", "checked", "choice"), setting, strict=True))
        guards = Guarded(usual.experiment, usual.task, replace(usual.sizes, **row))
        mean = guards.run(replace(guards.base, tubes=MeanTubes()), "tune", episodes, "mean")
        scale, tried = choose_scale(guards, episodes, SCALES[4:])
        ours = next(one for one in tried if one["scale"] == scale)
        row |= {"mean: return": float(mean.returns.mean()), "violated": say_violated(mean)}
        row |= {"ours: scale": scale, "return": ours["return"]}
        row |= {"violations": f"{ours['violations']} of {episodes}"}
        rows.append(row | {"ours / mean": ours["return"] / row["mean: return"]})
        say("horizon {}, {} checked, by {}: {:.1%}".format(*setting, rows[-1]["ours / mean"]))
    title = f"Settings of the planner, {episodes} tune episodes"
    usual.experiment.report.table(f"guard_{usual.task}_settings", rows, title)


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
    sequential: Annotated[bool, "Stop a scale as soon as its episodes have shown it."] = False
    kind: str = "episode"
    scales: tuple[float, ...] = ()


SMALL_PLAN = Plan(epsilon=0.4, delta=0.4, episodes=10, allowed=3, confidence=0.9, budget=0.9)


def certify_guard(guards, asked, ledger):
    """Runs the plan, or goes on with it, and writes the certificate into the results."""
    scorer, error = KINDS[asked.kind]
    scales = tuple(sorted(asked.scales or CERTIFIED_SCALES[asked.kind], reverse=True))
    # Seeds that no other kind of certificate and no other attempt has.
    later, place = divmod(list(KINDS).index(asked.kind), 2)
    first = (2 * asked.attempt + place) * 10**5 + later * 4 * 10**6
    seeds = guards.seeds("certify", len(scales) * asked.episodes, first=first)
    guards.ensemble.refuse_seen(seeds, "episodes")
    loss = asked.kind == "share"
    plan = Descent(
        scales=scales,
        n=asked.episodes,
        allowed=None if asked.sequential or loss else asked.allowed,
        early=asked.sequential or not loss,
        loss=loss,
        level=PACLevel(asked.epsilon, asked.delta),
        episodes=seeds.reshape(len(scales), asked.episodes),
        error=error,
        tested=describe(guards),
    )
    refuse_unwritable("--ledger", ledger)
    open_ledger(ledger, budget=asked.budget)
    if asked.kind == "tube":
        claim_accepted_risk(plan.episodes, confidence=asked.confidence, ledger=ledger)
    rule = "until betting shows it" if plan.allowed is None else f"{plan.allowed} errors allowed"
    counts = f"{len(scales)} scales, at most {plan.n} episodes each, {rule}"
    print(f"plan      {counts}; in {ledger}")
    root = guards.experiment.out / f"certify-{guards.task}-{asked.kind}-{asked.attempt}"

    def stage(scale):
        return Stage(scorer, (guards.guarded(scale), guards.sizes.steps), needs=NEEDS)

    about = {"size": BATCH, "controller": plan.controller, "unit": "episode"}
    if asked.sequential:
        about["plan"] = plan
    if loss:
        about["outcome"] = lambda found: found["violation_steps"] / guards.sizes.steps
    done = descend(plan, episodes_through(guards.experiment.engine, stage, str(root), **about), ledger=ledger)
    print(f"\n{done}")
    if asked.kind == "tube" and done.certified is not None:
        print(f"accepted  {bound_accepted_risk(done, root, asked.confidence, ledger)}")
    file = guards.experiment.report.folder / f"guard_{guards.task}_{asked.kind}_certificate.json"
    write_descent(done, file)
    for check in verify_descent(done, ledger):
        print(f"{check.name:<9} {check.text}")
    print(f"wrote     {file}")
    return done


def describe(guards):
    """All that would make it another controller."""
    base, threshold = guards.base, guards.ours.threshold
    value = threshold if isinstance(threshold, float) else threshold.value
    return {
        "robot": base.system.id,
        "policy": guards.experiment.design.about()["policy"],
        "ensemble": file_digest(guards.home / "ensemble.safetensors"),
        "trained on": asdict(guards.ensemble.train_record),
        "limits": [[limit.name, limit.normal.tolist(), limit.bound] for limit in guards.limits],
        "tubes": {"score": score_digest(guards.ours.score), "threshold": value},
        **guards.options,
        "reward": base.reward.__name__,
        **asdict(guards.sizes),
    }


def bound_accepted_risk(done, root, confidence, ledger):
    """P(unsafe given accepted) at the certified scale; as it was picked here, the limit is for all scales."""
    ids = done.plan.episodes[done.plan.scales.index(done.certified)].tolist()
    job = Job.of("episodes", ids, [Stage(RunSelections)], size=BATCH)
    found = read_arrays(job, RunFolder(root / f"scale-{done.certified!r}"))
    counts = (found["ids"], found["accepted"], found["unsafe"])
    return accepted_risk(*counts, confidence=confidence, choices=len(done.plan.scales), ledger=ledger)
