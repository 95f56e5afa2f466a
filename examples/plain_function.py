"""Check plans with a plain function call: no planner, no environment, only a tube and limits.

The tube holds 9 of 10 plans drawn like the ones it was calibrated on, with confidence 0.99. It promises
nothing about a plan that is picked because it was found safe: for that see docs/guarantees.md.
"""

import numpy as np

import pac_rl
from pac_core import LinearFeatures, PACLevel, TubeChecker, fit_tube

H, LEVEL = 4, PACLevel(epsilon=0.1, delta=0.01)
robot, policy = pac_rl.make_environment("HalfCheetah-v5"), pac_rl.load_policy()
own, noisy = range(10**9, 10**9 + 200), pac_rl.NoisyPolicy(policy, 0.3)  # what trains the model is no unit
seen = pac_rl.simulate(robot, noisy, own, horizon=40, burn_in=(0, 0))
small = pac_rl.Settings(members=3, hidden=100, layers=2, epochs=6, batch=128)
model = pac_rl.train(pac_rl.Transitions.of(seen), robot.id, small)

# 400 plans, each carried out in the simulator: half of them tune the tube, half calibrate it.
units = pac_rl.simulate(robot, policy, range(400), horizon=H, burn_in=(0, 20))
model.refuse_seen(units.seeds)
plans = pac_rl.propose_plans(model, robot, policy, units.start, units.seeds, horizon=H)
forecast, truth = pac_rl.forecast_plans(model, units.start, plans), pac_rl.execute(robot, units, plans).truth
parts = [(forecast.take(rows), truth[rows]) for rows in (slice(0, 200), slice(200, 400))]
features = LinearFeatures(("speed", "pitch"), np.eye(18)[[0, 2]])  # forward velocity, torso pitch
predictor = fit_tube(*parts[0], *parts[1], LEVEL, shape="features", features=features)

# New starts, and a plan from each, drawn like the 400: of a plan made otherwise nothing would be promised.
checker = TubeChecker([pac_rl.velocity_limit(robot, 3.2096), pac_rl.no_flip(robot)])
new = pac_rl.simulate(robot, policy, range(1000, 1012), horizon=H, burn_in=(0, 20))
plan = pac_rl.propose_plans(model, robot, policy, new.start, new.seeds, horizon=H)
checked = checker(predictor.tube(pac_rl.forecast_plans(model, new.start, plan)))
for speed, reason in zip(new.start[:, 0], checked.reasons(), strict=True):
    print(f"at {speed:4.1f} m/s: {reason}")
