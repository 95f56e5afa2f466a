"""What two examples bring, as plain functions: a cart pushed around by wind, which must not go beyond 1 m.

None of them knows of a guard or a promise (docs/guarantees.md)."""

import time

import numpy as np

from pac_core.evaluation import error_interval

LOW, HIGH, DT = np.array([-1.0]), np.array([1.0]), 0.2
NAMES, WALL = ("position", "velocity"), 1.0


def reset(rng):
    return np.array([rng.uniform(-0.5, 0.2), 0.0])


def step(state, action, rng):
    velocity = state[1] + DT * action[0] + rng.normal(0, 0.02)
    return np.array([state[0] + DT * velocity, velocity])


def brake(state):
    return np.clip(-state[1:] / DT, LOW, HIGH)


def cost(mean, plans):
    return -mean[..., 0].sum(-1)  # the farther the better


def random_steps(count, rng):  # states, actions and next states, in episodes of 30 random actions
    rows = []
    for t in range(count):
        state = reset(rng) if t % 30 == 0 else rows[-1][2]
        action = rng.uniform(LOW, HIGH)
        rows.append((state, action, step(state, action, rng)))
    return tuple(np.stack(part) for part in zip(*rows, strict=True))


COLUMNS = ("beyond the wall", "98% interval", "farthest", "fallback", "per decision")


def measure(name, act, agent, episodes, steps=30):  # a row; what lies beyond the wall does not count
    farthest, begun = [], time.perf_counter()
    for seed in range(episodes):
        rng = np.random.default_rng((1, seed))
        way = [reset(rng)]
        if hasattr(agent, "reset"):
            agent.reset()
        for _ in range(steps):
            way.append(step(way[-1], act(way[-1]), rng))
        farthest.append(np.max(way, axis=0)[0])
    taken, beyond = time.perf_counter() - begun, int(np.sum(np.array(farthest) > WALL))
    low, high = error_interval(beyond, episodes)
    counts, far = (f"{beyond} of {episodes}", f"{low:.0%} to {high:.0%}"), np.minimum(farthest, WALL).mean()
    idle, decisions = getattr(agent, "fallbacks", 0), episodes * steps
    return name, *counts, f"{far:.2f} m", f"{idle / decisions:.1%}", f"{1e3 * taken / decisions:.0f} ms"
