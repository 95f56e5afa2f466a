"""A Gymnasium half-cheetah whose actions are checked; where unsafe, it holds still instead.

The tube holds 9 of 10 plans drawn like the ones it was calibrated on, with confidence 0.99. The wrapper's
own actions lead elsewhere, so nothing is promised of an episode: for that see docs/guarantees.md.
"""

import numpy as np
import torch

import pac_rl
from pac_core import LinearFeatures, PACLevel, TubeChecker, fit_tube
from pac_rl.planning import MujocoState

H, LEVEL = 4, PACLevel(epsilon=0.1, delta=0.01)
robot, policy = pac_rl.make_environment("HalfCheetah-v5"), pac_rl.load_policy()
own, noisy = range(10**9, 10**9 + 200), pac_rl.NoisyPolicy(policy, 0.3)  # what trains the model is no unit
seen = pac_rl.simulate(robot, noisy, own, horizon=40, burn_in=(0, 0))
small = pac_rl.Settings(members=3, hidden=100, layers=2, epochs=6, batch=128)
model = pac_rl.train(pac_rl.Transitions.of(seen), robot.id, small)
units = pac_rl.simulate(robot, policy, range(400), horizon=H, burn_in=(0, 20))
model.refuse_seen(units.seeds)
plans = pac_rl.propose_plans(model, robot, policy, units.start, units.seeds, horizon=H)
forecast, truth = pac_rl.forecast_plans(model, units.start, plans), pac_rl.execute(robot, units, plans).truth
parts = [(forecast.take(rows), truth[rows]) for rows in (slice(0, 200), slice(200, 400))]
speed = LinearFeatures(("speed",), np.eye(18)[:1])
predictor = fit_tube(*parts[0], *parts[1], LEVEL, shape="features", features=speed)

checker = TubeChecker([pac_rl.speed_limit(robot, 3.2096)])
guard = pac_rl.Guard(checker, predictor, fallback="hold")
filtered = pac_rl.ActionFilter.of(model, robot, policy, guard)
bare = pac_rl.make_environment("HalfCheetah-v5").gym
for env in (bare, pac_rl.GuardedEnv(bare, filtered, state=MujocoState(robot))):
    (observation, _), speeds, info = env.reset(seed=0), [], {}
    for _ in range(60):
        action = policy(torch.from_numpy(observation)[None], torch.zeros(1, 6))[0].clamp(-1, 1).numpy()
        observation, reward, terminated, truncated, info = env.step(action)
        speeds.append(info["x_velocity"])
    replaced, guard_says = getattr(env, "replaced", 0), info.get("guard", {}).get("reason", "not guarded")
    print(f"fastest {max(speeds):.2f} m/s, {replaced} of 60 actions replaced; the last: {guard_says}")
