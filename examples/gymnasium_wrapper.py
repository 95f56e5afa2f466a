"""A Gymnasium half-cheetah whose actions are checked; where unsafe, it holds still instead.

The promise: at 9 of 10 starts, the policy's plans at 21 strengths all stay in their tubes, with confidence
0.99. The wrapper's own actions lead elsewhere, so of an episode nothing is promised: see docs/guarantees.md.
"""

import numpy as np
import torch

import pac_rl
from pac_core import LinearFeatures, PACLevel
from pac_rl.planning import continue_with_policy

H, robot, policy = 4, pac_rl.MujocoSystem("HalfCheetah-v5"), pac_rl.load_policy()
own, noisy = range(10**9, 10**9 + 200), pac_rl.NoisyPolicy(policy, 0.3)  # what trains the model is no unit
seen = pac_rl.simulate(robot.environment, noisy, own, horizon=40, burn_in=(0, 0))
small = pac_rl.Settings(members=3, hidden=100, layers=2, epochs=6, batch=128)
ensemble = pac_rl.train(pac_rl.Transitions.of(seen), robot.id, small)
model = pac_rl.Dynamics.of(ensemble, propagation="one-step")

limit, speed = pac_rl.velocity_limit(robot.environment, 3.2096), LinearFeatures(("speed",), np.eye(18)[:1])
planner = pac_rl.AroundPolicy.of(robot, model, policy)
asked = {
    "fallback": "hold",
    "horizon": H,
    "level": PACLevel(0.1, 0.01),
    "folder": "gymnasium-run",
    "steps": 30,
}
units = {"tune": 100, "calibrate": 150, "preliminary": 50, "shape": "features", "features": speed}
guard = pac_rl.fit_guard(robot, model, [limit], planner, **asked, **units)

bare = pac_rl.make_environment("HalfCheetah-v5").gym
follow = continue_with_policy(robot, model, policy, horizon=H)  # what is checked with an action
for env in (bare, pac_rl.GuardedEnv(bare, guard, continue_with=follow)):
    (observation, _), speeds, info = env.reset(seed=0), [], {}
    for _ in range(60):
        action = policy(torch.from_numpy(observation)[None], torch.zeros(1, 6))[0].clamp(-1, 1).numpy()
        observation, reward, terminated, truncated, info = env.step(action)
        speeds.append(info["x_velocity"])
    replaced, guard_says = getattr(env, "replaced", 0), info.get("guard", {}).get("reason", "not guarded")
    print(f"fastest {max(speeds):.2f} m/s, {replaced} of 60 actions replaced; the last: {guard_says}")
