"""An mbrl-lib user's script: its model, its training, its CEM; five added lines put a guard into it.

The promise: for 9 in 10 starts, every one of 16 plans that CEM would weigh stays in its tube, with confidence
0.95. CEM searches with the guard in the loop, so about whole episodes it says nothing; they are measured. See
docs/guarantees.md. It takes a minute or two; with --tiny seconds, for a weaker promise.
"""

import sys
from types import SimpleNamespace

import numpy as np
import torch
from cart_robot import COLUMNS, HIGH, LOW, NAMES, WALL, brake, cost, measure, random_steps, reset, step
from mbrl.models import GaussianMLP, ModelEnv, ModelTrainer, OneDTransitionRewardModel
from mbrl.planning import TrajectoryOptimizerAgent
from mbrl.util import ReplayBuffer
from mbrl.util.common import get_basic_buffer_iterators
from omegaconf import OmegaConf

import pac_rl
from pac_core import HalfSpace, PACLevel
from pac_core.evaluation import format_table

tiny, H = "--tiny" in sys.argv, 8
level, steps = (PACLevel(0.3, 0.1), 4) if tiny else (PACLevel(0.1, 0.05), 12)
units = {"tune": 24, "calibrate": 16, "preliminary": 16} if tiny else {"tune": 80, "calibrate": 120}
torch.manual_seed(0)
network = GaussianMLP(3, 2, "cpu", 2, 5, 32, propagation_method="fixed_model")
model = OneDTransitionRewardModel(network, target_is_delta=True, normalize=True, learned_rewards=False)
buffer = ReplayBuffer(3000, (2,), (1,), rng=np.random.default_rng(0))
for one in zip(*random_steps(3000, np.random.default_rng(0)), strict=True):
    buffer.add(*one, 0.0, False, False)
model.update_normalizer(buffer.get_all())
batches, _ = get_basic_buffer_iterators(buffer, 64, 0.0, ensemble_size=5)
ModelTrainer(model, optim_lr=3e-3).train(batches, num_epochs=10 if tiny else 30, silent=True)
spaces = SimpleNamespace(observation_space=None, action_space=None)
env = ModelEnv(spaces, model, lambda a, x: torch.zeros(len(x), 1, dtype=torch.bool), lambda a, x: x[:, :1])
common = {"num_iterations": 3, "population_size": 40, "elite_ratio": 0.2, "alpha": 0.1, "device": "cpu"}
cem = OmegaConf.create({"_target_": "mbrl.planning.CEMOptimizer", **common})
agent = TrajectoryOptimizerAgent(cem, LOW, HIGH, planning_horizon=H)
agent.set_trajectory_eval_fn(lambda x, plans: env.evaluate_action_sequences(plans, x, num_particles=5))

robot, dynamics = pac_rl.System(reset, step, LOW, HIGH, NAMES), pac_rl.Dynamics.of(model, batch=40)
search, wall = pac_rl.SearchPlanner(cem, dynamics, cost, LOW, HIGH, 16), HalfSpace("wall", [1, 0], WALL)
asked = {"fallback": brake, "horizon": H, "level": level, "folder": "mbrl-run", "steps": steps}
print(guard := pac_rl.fit_guard(robot, dynamics, [wall], search, **asked, **units))
rows = [measure("as it was", agent.act, agent, 4 if tiny else 20)]
agent = pac_rl.guard_agent(agent, guard)  # .act and .reset as before
rows.append(measure("guarded", agent.act, agent, 4 if tiny else 20))
print(format_table([("agent", *COLUMNS), *rows]))
