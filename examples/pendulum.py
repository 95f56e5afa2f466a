"""Gymnasium's Pendulum-v1, spun as fast as it may: at most 6 rad/s, with four guesses of gravity for a model.

The promise: at most 5% of the guarded controller's episodes are ever faster, proved on fresh ones with
confidence 0.99; see docs/guarantees.md. It takes a few minutes; with --tiny seconds, for a weaker promise.
"""

import sys
from dataclasses import replace

import numpy as np
import torch
from compare import compare_guards

import pac_rl
from pac_core import PACLevel, StayIn

tiny, steps, folder = "--tiny" in sys.argv, 80, "pendulum-run"
units = {"tune": 32, "calibrate": 48, "preliminary": 32} if tiny else {"tune": 300, "calibrate": 500}
tried = {"scales": (1.0, 0.8), "max_episodes": 32} if tiny else {"explore": 64, "max_episodes": 400}
wanted, fresh = (PACLevel(0.3, 0.1), 32) if tiny else (PACLevel(0.05, 0.01), 256)
gravity = torch.tensor([8.0, 8.5, 9.0, 9.5])[:, None, None]  # the truth is 10


def set_state(env, state):  # an angle, 0 is up, and a speed
    env.state = state


def net(states, actions):  # [4, B, 2] and [4, B, 1] to means and variances [4, B, 2]
    speed = states[..., 1:] + 0.05 * (1.5 * gravity * states[..., :1].sin() + 3 * actions)
    return torch.cat([states[..., :1] + 0.05 * speed, speed], -1), 1e-3 + 0 * states


def sample_plans(state, rng, candidates, horizon):  # three torques, one after the other
    return rng.uniform(-2, 2, size=(candidates, 3, 1)).repeat(horizon // 3, axis=1)


def brake(state):
    return np.clip(-state[1:] / 0.15, -2, 2)


robot = pac_rl.GymSystem("Pendulum-v1", lambda env: env.state, set_state, ("angle", "speed"))
model = pac_rl.Dynamics.of(net, members=4, particles=1)
planner = pac_rl.Shooting(sample_plans, lambda mean, plans: -(mean[..., 1] ** 2).mean(-1), candidates=16)
limit = StayIn("speed", [-6.0], [6.0], axes=("speed",))
asked = {"fallback": brake, "horizon": 15, "level": PACLevel(0.1, 0.01), "folder": folder, "steps": steps}
guard = pac_rl.fit_guard(robot, model, [limit], planner, **asked, **units)
print(result := guard.controller().certify(wanted, steps=steps, folder=folder, **tried))

acting = replace(guard.controller(result.certified or 1.0), reward=lambda states, _: abs(states[..., 1]))
speed = {"mean speed": lambda done: f"{done.returns.mean() / steps:.2f}"}
print(compare_guards(acting, steps=steps, episodes=fresh, **speed))
