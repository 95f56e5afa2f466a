"""What `pac report` shows of a robot's runs: tubes by the names of the state, guards compared, the robot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from pac_core.certificates import Descended, Descent, read_descent
from pac_core.errors import Incomplete, InvalidInput
from pac_core.evaluation import error_interval
from pac_core.report import (
    DESCENT,
    Chapter,
    Headline,
    Section,
    Series,
    StoredRun,
    at_least,
    certificate_headlines,
    coverage_sections,
    descent_sections,
    line_chart,
    paragraph,
    player,
    say_units,
    share_text,
    shorten,
    sweep_sections,
    table,
    tube_sections,
)
from pac_rl.systems import Environment, Floats, make_environment

ROBOT_VOIDS = (
    "another controller: model, policy, tubes, limits, planner or fallback",
    "longer episodes, other starts, another simulator, or the real robot",
    "a choice of the controller made after looking at these episodes",
)
FREE = (
    "These tubes are around the policy as it runs freely. They guard nothing: a guard's tubes are fitted on "
    "plans, and what is promised of a guarded robot is a certificate of whole episodes."
)


def show_rollouts(runs: Sequence[StoredRun]) -> Chapter:
    """Rollouts or plans: the certificates, and tubes by the names of the robot's state."""
    heads = [head for run in runs for head in certificate_headlines(run)]
    sections = list[Section]()
    for run in runs:
        sections += [*coverage_sections(run), *tube_sections(run, _names(run)), *sweep_sections(run)]
    plans = runs[0].name == "plans"
    what = "Plans carried out" if plans else "Rollouts of the policy"
    if not plans and sections:
        sections[0] = Section(sections[0].title, paragraph(FREE) + sections[0].body)
    return Chapter(f"{what}: tubes for {say_units(runs)} of {runs[0].about.get('env')}", heads, sections)


def show_episodes(runs: Sequence[StoredRun]) -> Chapter:
    """Whole episodes: certificates of controllers, guards compared, the robot with and without its guard."""
    shown = [run for run in runs if run.about.get("guard") and "returns" in _arrays(run)]  # not for training
    if not shown:
        return Chapter("")
    rows, series = [], list[Series]()
    for run in shown:
        arrays = run.arrays
        errors, n = int(arrays["errors"].sum()), len(arrays["ids"])
        low, high = error_interval(errors, n)
        name, earned = _name(run), float(arrays["returns"].mean())
        row = {"robot": name, "episodes": n, "over the limit": errors}
        row |= {"98% interval": f"{share_text(low)} to {share_text(high)}", "mean return": earned}
        row |= {"smallest return": float(arrays["returns"].min())}
        row |= {"steps over the limit, per episode": float(arrays["violation_steps"].mean())}
        fallbacks, decisions = int(arrays["fallbacks"].sum()), int(arrays["decisions"].sum())
        rows.append(row | {"fallback acted, of all steps": f"{fallbacks:,} of {decisions:,}"})
        series.append(
            Series(name, [earned], [errors / n], [low], [high], True, 2 * len(series))
        )  # as the robots
    words = "; ".join(f"{row['robot']}: {row['over the limit']} of {row['episodes']}" for row in rows)
    chart = line_chart(
        series,
        x="mean return of an episode",
        y="share of episodes over the limit",
        alt=f"Episodes over the limit, {words}.",
        zero=True,
    )
    lead = paragraph(
        "Fresh episodes. Intervals are exact and two-sided, 98% together; a certificate is one-sided, at a "
        "confidence of its own."
    )
    if not any(row["mean return"] for row in rows):  # nobody says what an episode earns
        rows = [{name: cell for name, cell in row.items() if "return" not in name} for row in rows]
    both = chart if len(shown) > 1 else Markup("")
    compared = Section("What the guard prevented, and what it cost", lead + table(rows) + both)
    seen = Section("The robot with and without the guard", _animation(shown))
    heads = [head for run in shown if (head := _certificate(run))]
    grew = [section for run in shown if (done := _descent(run)) for section in descent_sections(done)]
    return Chapter("The guarded robot", heads, [*([seen] if seen.body else []), compared, *grew])


def _arrays(run: StoredRun) -> Mapping[str, Any]:
    """None of a scale that was left before its end."""
    try:
        return run.arrays
    except Incomplete:
        return {}


def _certificate(run: StoredRun) -> Headline | None:
    """What is proved of the controller of these episodes, if anything is."""
    if (done := _descent(run)) is None:
        return None
    level, plan, sure = done.plan.level, done.plan, done.certified is not None
    steps, limits = plan.tested.get("steps"), run.about.get("limits") or []
    what = f"new simulated episodes of {steps} steps" if steps else "new episodes"
    kept = " and ".join(f"{number} stays at or below {bound:g}" for _, number, bound in limits)
    every = run.about.get("every_limit") or [name for name, _, _ in limits]
    if len(limits) < len(every) or not kept:  # some are of another kind: none is left out
        kept = "no limit is broken" + (f" ({', '.join(every)})" if every else "")
    kept = f"{kept} at every step" if "limit" in plan.error else "there is no error"
    robot = f"{run.about.get('env')} {_name(run)}"
    promise = f"In at least {at_least(level.epsilon)} of {what} of {robot}, {kept}, "
    promise += f"with confidence {at_least(level.delta)}."
    trials = "; ".join(f"{one.errors} of {one.n} with tubes scaled by {one.scale:g}" for one in done.trials)
    rule = "betting stopped it" if plan.allowed is None else f"{plan.allowed} were allowed"
    seen = f"Episodes with an error: {trials}; {rule}. An error: {plan.error}."
    about = f"New episodes, drawn like these, of exactly this controller: {_controller(plan)}."
    return Headline(promise, seen, sure, "Certified" if sure else "Not certified", about, ROBOT_VOIDS)


def _descent(run: StoredRun) -> Descended | None:
    known = run.folder.has(DESCENT)
    return read_descent(f"{run.folder}/{DESCENT}", run.folder.get(DESCENT)) if known else None


def _controller(plan: Descent) -> str:
    """What is tested, in words: plain settings as they are, files by their digests."""
    names = ("ensemble", "policy", "horizon", "checked", "fallback", "choice")
    words = [f"{name} {str(plan.tested[name])[:12]}" for name in names if name in plan.tested]
    return ", ".join([f"fingerprint {plan.controller[:12]}", *words])


def _name(run: StoredRun) -> str:
    return str(run.about.get("guard") or "the robot")


def _names(run: StoredRun) -> tuple[str, ...]:
    """The names of the state's numbers, where the simulator can be asked."""
    robot = _robot(run)
    return robot.names if robot else ()


def _robot(run: StoredRun) -> Environment | None:
    try:
        return make_environment(str(run.about.get("env")))
    except (InvalidInput, ImportError):  # another robot, or no simulator here
        return None


def _animation(runs: Sequence[StoredRun]) -> Markup:
    """The robot in one episode of each run, drawn from its states, with what the limit reads below."""
    traced = [run for run in runs if "states" in run.arrays and run.about.get("limits")]
    robot = _robot(traced[0]) if traced else None
    if robot is None:
        return Markup("")
    name, number, bound = traced[0].about["limits"][0]
    column = robot.names.index(number)
    robots: list[dict[str, Any]] = []
    radii: list[float] = []
    unit = typical_episode(traced)
    for run in traced:
        states = run.arrays["states"][run.arrays["ids"] == unit][0].astype(np.float64)
        states = states[np.isfinite(states).all(axis=1)]
        x, frames, radii = draw_frames(robot, states)
        one = {
            "name": _name(run),
            "value": shorten(states[:, column]),
            "x": shorten(x),
            "frames": shorten(frames),
        }
        robots.append(one)
    data = {"robots": robots, "radii": shorten(radii), "dt": robot.dt, "bound": bound, "scale": 82}
    data |= {"label": f"{number}, m/s" if "velocity" in number else number}
    data |= {"unit": "m/s" if "velocity" in number else "", "start": 60}
    lead = f"{traced[0].about['env']} in simulation; the {name} is {bound:g}. Of the episodes "
    lead += f"{_name(traced[-1])}, this one has the median return."
    shown = player("robots", data, "The robot with and without its guard")
    return paragraph(lead) + paragraph("Press Play.", "screen") + shown


def typical_episode(runs: Sequence[StoredRun]) -> Any:
    """The id of the episode that has the median return in the last of these runs, among those of all."""
    shared = set.intersection(*(set(run.arrays["ids"].tolist()) for run in runs))
    last = runs[-1].arrays
    known = [row for row in np.argsort(last["returns"]).tolist() if last["ids"][row] in shared]
    return last["ids"][known[len(known) // 2]]


def draw_frames(robot: Environment, states: Floats) -> tuple[Floats, Floats, list[float]]:
    """Where the robot is at each step, seen from the side: x `[T]`; for each capsule of its body the ends in
    x and z `[T, G, 4]`; and the G radii.

    The state lacks the way gone, which the forward velocity adds up to.
    """
    import mujoco

    model, data = robot.gym.model, mujoco.MjData(robot.gym.model)
    joints = [model.joint(i).name for i in range(model.njnt)]
    way = np.cumsum(states[:, robot.names.index("forward velocity")]) * robot.dt
    bodies = [g for g in range(model.ngeom) if model.geom_bodyid[g] > 0]
    frames = np.zeros((len(states), len(bodies), 4))
    for t, state in enumerate(states):
        for i, joint in enumerate(joints):
            data.qpos[model.jnt_qposadr[i]] = (
                state[robot.names.index(joint)] if joint in robot.names else way[t]
            )
        mujoco.mj_kinematics(model, data)
        for place, g in enumerate(bodies):
            reach = data.geom_xmat[g].reshape(3, 3)[:, 2] * model.geom_size[g][1]
            ends = data.geom_xpos[g] - reach, data.geom_xpos[g] + reach
            frames[t, place] = [ends[0][0], ends[0][2], ends[1][0], ends[1][2]]
    return way, frames, [float(model.geom_size[g][0]) for g in bodies]
