"""mbrl-lib's CEM plans for a half-cheetah, with every plan checked against a speed limit.

The tube holds 9 of 10 plans drawn like the ones it was calibrated on, with confidence 0.99. CEM picks its
plan, so that promise is not about the plan it carries out: for one that is see docs/guarantees.md.
"""

from functools import partial

import numpy as np
import torch
from mbrl.planning import TrajectoryOptimizerAgent
from omegaconf import OmegaConf

import pac_rl
from pac_core import LinearFeatures, PACLevel, TubeChecker, fit_tube

torch.manual_seed(0)  # CEM draws from it
H, robot, policy = 4, pac_rl.make_environment("HalfCheetah-v5"), pac_rl.load_policy()
seen = pac_rl.simulate(robot, pac_rl.NoisyPolicy(policy, 0.3), range(500, 700), horizon=40, burn_in=(0, 0))
small = pac_rl.Settings(members=3, hidden=100, layers=2, epochs=6, batch=128)
model = pac_rl.train(pac_rl.Transitions.of(seen), robot.id, small)
units = pac_rl.simulate(robot, policy, range(400), horizon=H, burn_in=(0, 20))
plans = pac_rl.propose_plans(model, robot, policy, units.start, units.seeds, horizon=H)
forecast, truth = pac_rl.forecast_plans(model, units.start, plans), pac_rl.execute(robot, units, plans).truth
parts = [(forecast.take(rows), truth[rows]) for rows in (slice(0, 200), slice(200, 400))]
speed = LinearFeatures(("speed",), np.eye(18)[:1])
predictor = fit_tube(*parts[0], *parts[1], PACLevel(0.1, 0.01), shape="features", features=speed)
common = {"num_iterations": 3, "elite_ratio": 0.1, "population_size": 100, "alpha": 0.1, "device": "cpu"}
cem = OmegaConf.create({"_target_": "mbrl.planning.CEMOptimizer", **common})
new = pac_rl.simulate(robot, policy, range(1000, 1010), horizon=H, burn_in=(0, 20))
forecast = partial(pac_rl.forecast_plans, model)
for limit in (1e9, 3.2096):
    guard = pac_rl.Guard(TubeChecker([pac_rl.speed_limit(robot, limit)]), predictor, fallback="hold")
    plans = pac_rl.guard_plans(None, forecast, guard, reward=lambda x, actions: x[..., 0])
    agent = TrajectoryOptimizerAgent(cem, robot.low, robot.high, planning_horizon=H)
    guarded = pac_rl.GuardedAgent(agent, plans)  # .act(state) goes on to act
    chosen = {i: plan for i in range(10) if (plan := guarded.safe_plan(new.start[i])) is not None}
    speeds = pac_rl.execute(robot, new.take(list(chosen)), np.stack(list(chosen.values()))).states[..., 0]
    print(f"limit {limit:g} m/s: {len(chosen)} of 10 have a safe plan, fastest {speeds.max():.2f}")
