"""Gymnasium's Walker2d-v5 with a policy of Stable-Baselines3, under Safety-Gymnasium's velocity limit.

The promise: at most 5% of the guarded controller's episodes are ever faster, proved on fresh ones with
confidence 0.99; see docs/guarantees.md. PPO trains for minutes first; with --tiny seconds, for a weaker one.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from compare import compare_guards
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

import pac_rl
from pac_core import PACLevel
from pac_rl.dynamics import fit_dynamics

tiny, steps, folder, file = "--tiny" in sys.argv, 150, "walker-run", Path("walker_ppo.zip")
units = {"tune": 32, "calibrate": 48, "preliminary": 32} if tiny else {"tune": 300, "calibrate": 500}
tried = {"scales": (2.0, 1.5), "max_episodes": 32} if tiny else {"explore": 64, "max_episodes": 400}
wanted, fresh = (PACLevel(0.5, 0.2), 32) if tiny else (PACLevel(0.05, 0.01), 128)

if not file.exists():
    how = {"n_steps": 256, "batch_size": 256, "learning_rate": 5e-4, "n_epochs": 8, "gamma": 0.98, "seed": 0}
    learner = PPO("MlpPolicy", make_vec_env("Walker2d-v5", 8, seed=0), device="cpu", **how)
    learner.learn(4_000 if tiny else 160_000).save(file)
policy = pac_rl.load_policy(file, vecnormalize="none")  # nothing was normalised

robot = pac_rl.MujocoSystem("Walker2d-v5")
acting = pac_rl.actions_by(robot, policy)


def explore(states, rngs):  # the policy, slowed down and shaken, so that the model knows such plans
    bold = np.array([rng.uniform(0, 1.2) for rng in rngs])[:, None]
    return bold * acting(states) + np.stack([0.2 * rng.normal(size=6) for rng in rngs])


small = pac_rl.Settings(members=3, hidden=64, epochs=3) if tiny else pac_rl.Settings(epochs=15)
learnt = fit_dynamics(robot, episodes=64 if tiny else 1024, steps=steps, act=explore, settings=small)
model = pac_rl.Dynamics.of(learnt.ensemble, propagation="one-step", batch=None)
planner = pac_rl.AroundPolicy.of(robot, model, policy)
asked = {"fallback": "hold", "horizon": 4, "level": PACLevel(0.1, 0.01), "folder": folder, "steps": steps}
guard = pac_rl.fit_guard(robot, model, [pac_rl.velocity_limit(robot)], planner, **asked, **units)
print(guard)
print(result := guard.controller().certify(wanted, steps=steps, folder=folder, **tried))

ours = replace(guard.controller(result.certified or 1.0), reward=lambda states, _: states[..., 0] / 125)
way = {"way gone, m": lambda done: f"{done.returns.mean():.2f}"}
print(compare_guards(ours, steps=steps, episodes=fresh, **way))
