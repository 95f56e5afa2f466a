"""Is it the same world? A monitor of scores on a half-cheetah whose floor, body or motors change.

A tube of the closed loop is tuned and calibrated on the robot as it is. Then new rollouts come in one by one,
of the same robot and of changed ones, and the monitor sees the score of each. Exits are those of the tube.
Also a log of the policy's episodes, to certify while it grows.
"""

import numpy as np

from pac_core import PACLevel
from pac_core.safety import ScoreMonitor
from pac_core.sets import score_units
from pac_core.thresholds import fit_threshold
from pac_core.tubes import fit_shape
from pac_rl import forecast_closed_loop, make_environment, simulate
from pac_rl.systems import SPEED

CHANGES = {
    "as it is": {},
    "floor with 80% of its grip": {"geom_friction": 0.8},
    "floor with 40% of its grip": {"geom_friction": 0.4},
    "body 5% heavier": {"body_mass": 1.05, "body_inertia": 1.05},
    "body 15% heavier": {"body_mass": 1.15, "body_inertia": 1.15},
    "motors 5% weaker": {"actuator_gear": 0.95},
}
ALPHA, LEVEL = 0.01, PACLevel(0.05, 0.01)


def compare_worlds(experiment, *, tune=1000, calibrate=1000, lives=20, units=500):
    """A row for each change: how soon the monitor notices, and how often the tube is left."""
    design, level = experiment.design, LEVEL

    def roll(robot, first, count):
        seeds = 10**8 + np.arange(first, first + count)
        options = {"horizon": design.horizon, "burn_in": design.burn_in}
        done = simulate(robot, experiment.policy, seeds, **options)
        parts = (experiment.ensemble, robot, experiment.policy, done.start)
        return forecast_closed_loop(*parts, horizon=design.horizon), done.truth

    score = fit_shape(*roll(experiment.robot, 0, tune), level)
    known = np.asarray(score_units(score, *roll(experiment.robot, tune, calibrate)))
    threshold, rows = fit_threshold(known, level), []
    for number, (name, changes) in enumerate(CHANGES.items()):
        robot = make_environment(design.env)
        for field, factor in changes.items():
            getattr(robot.gym.model, field)[:] *= factor
        first = 10**7 * (1 + number)
        new = np.asarray(score_units(score, *roll(robot, first, lives * units))).reshape(lives, units)
        monitors = [ScoreMonitor(known, ALPHA, seed=life) for life in range(lives)]
        noticed = [monitor.observe(some) for monitor, some in zip(monitors, new, strict=True)]
        after = [len(m.scores) if seen else units + 1 for m, seen in zip(monitors, noticed, strict=True)]
        row = {"robot": name, "lives": lives, "units each": units, "noticed": sum(noticed)}
        row |= {"median units": int(np.median(after)) if np.median(after) <= units else ""}
        rows.append(row | {"left the tube": float((new > threshold.value).mean())})
        print(f"{name}: noticed in {sum(noticed)} of {lives} lives", flush=True)
    title = f"A monitor of scores, alpha {ALPHA:g}; tube at epsilon {level.epsilon:g}, delta {level.delta:g}"
    experiment.report.table("world", rows, title)


def log_episodes(experiment, file, count, steps):
    """A log of the policy's episodes from rest, as anybody would keep it, for `pac certify-episodes`."""
    seeds = 2 * 10**8 + np.arange(count)
    done = simulate(experiment.robot, experiment.policy, seeds, horizon=steps, burn_in=(0, 0))
    column = experiment.robot.names.index
    speed, pitch = done.states[..., column("forward velocity")], done.states[..., column("rooty")]
    flipped, fast = (abs(pitch) > np.pi / 2).any(axis=1), (speed > SPEED).mean(axis=1)
    slow = done.states[:, -1, column("forward velocity")] < 1.0
    with file.open("w") as log:
        log.write("episode,flipped,slow_at_the_end,share_over_the_limit\n")
        for row in zip(seeds, flipped.astype(int), slow.astype(int), fast, strict=True):
            log.write("{},{},{},{:.4f}\n".format(*row))
