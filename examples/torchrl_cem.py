"""TorchRL's CEM plans with a guarded model: a small torch network, trained here, of a cart before a wall.

The promise: for 9 in 10 starts, every one of 32 random plans stays in its tube, with confidence 0.99. CEM's
own plan is a mean of others. It is checked before it acts; of it, and of episodes, nothing is promised. They
are measured; see docs/guarantees.md. It takes a minute; with --tiny seconds.
"""

import sys
from dataclasses import replace

import numpy as np
import torch
from cart_robot import COLUMNS, HIGH, LOW, NAMES, WALL, brake, cost, measure, random_steps, reset, step
from tensordict import TensorDict
from torchrl.modules import CEMPlanner

import pac_rl
from pac_core import HalfSpace, PACLevel, TubeChecker
from pac_core.evaluation import format_table


class Net(torch.nn.Sequential):
    def forward(self, states, actions):  # [1, B, 2] and [1, B, 1] to mean and variance of what follows
        change, spread = super().forward(torch.cat([states, actions], dim=-1)).chunk(2, dim=-1)
        return states + change, torch.exp(spread - 6)


def sample_plans(state, rng, candidates, horizon):
    return rng.uniform(LOW, HIGH, size=(candidates, horizon, 1))


tiny, H = "--tiny" in sys.argv, 8
level = PACLevel(0.3, 0.1) if tiny else PACLevel(0.1, 0.01)
units = {"tune": 32, "calibrate": 32, "preliminary": 32} if tiny else {"tune": 300, "calibrate": 500}
torch.manual_seed(0)
net = Net(torch.nn.Linear(3, 32), torch.nn.SiLU(), torch.nn.Linear(32, 4))
seen = [torch.from_numpy(part).float()[None] for part in random_steps(3000, np.random.default_rng(0))]
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(1000):
    mean, var = net(*seen[:2])
    optimizer.zero_grad()
    torch.nn.functional.gaussian_nll_loss(mean, seen[2], var).backward()
    optimizer.step()

robot, model = pac_rl.System(reset, step, LOW, HIGH, NAMES), pac_rl.Dynamics.of(net.eval(), members=1)
wall, planner = HalfSpace("wall", [1, 0], WALL), pac_rl.Shooting(sample_plans, cost, candidates=32)
asked = {"fallback": brake, "horizon": H, "level": level, "folder": "torchrl-run", "steps": 16}
print(guard := pac_rl.fit_guard(robot, model, [wall], planner, **asked, **units))
rows = [("CEM", *COLUMNS)]
for name, limit in (("without a limit", HalfSpace("wall", [1, 0], 1e9)), ("guarded", wall)):
    chosen = replace(guard, guard=replace(guard.guard, checker=TubeChecker([limit])))
    env = pac_rl.plan_env(chosen, reward=lambda states, actions: states[..., 0])
    actor = pac_rl.GuardedPlanner(CEMPlanner(env, 1, optim_steps=4, num_candidates=100, top_k=10))

    def act(state, actor=actor):
        return actor(TensorDict({"observation": torch.from_numpy(state)}, []))["action"].numpy()

    rows.append(measure(name, act, actor, 4 if tiny else 20))
print(format_table(rows))
