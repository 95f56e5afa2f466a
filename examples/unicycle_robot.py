"""What you bring to unicycle.py, as plain functions: a simulator, a model, plans and their cost, brakes.

None of them knows of a guard or a promise (docs/guarantees.md)."""

import numpy as np
import torch

DT, GOAL = 0.2, np.array([6.0, 0.0])


def reset(rng):
    return np.array([0.0, rng.uniform(-1, 1), 0.0, 0.0])  # x, y, heading, speed


def step(state, action, rng):  # turn and throttle; the wheels slip
    heading = state[2] + DT * (1.5 * action[0] + rng.normal(0, 0.2) * state[3])
    speed = np.clip(state[3] + DT * (2 * action[1] + rng.normal(0, 0.1)), 0, 1.5)
    way = DT * speed * np.array([np.cos(heading), np.sin(heading)])
    return np.array([*(state[:2] + way), heading, speed])


def arrived(state):
    return bool(np.hypot(*(state[:2] - GOAL)) < 0.5)


def train(rounds):
    """Five networks side by side, from random states and actions to the next state, and how sure it is."""
    rng, _ = np.random.default_rng(0), torch.manual_seed(0)
    weights = [(torch.randn(5, a, b) / a**0.5).requires_grad_() for a, b in ((5, 48), (48, 48), (48, 8))]
    drawn = rng.uniform([0, 0, -3, 0, -1, -1], [0, 0, 3, 1.5, 1, 1], size=(20_000, 6))
    seen = torch.tensor(np.array([[*one, *step(one[:4], one[4:], rng)] for one in drawn])).float()

    def net(states, actions):  # [5, B, 4] and [5, B, 2] to means and variances [5, B, 4]
        x = torch.cat([states[..., 2:3].cos(), states[..., 2:3].sin(), states[..., 3:], actions], -1)
        change, log_var = (torch.tanh(torch.tanh(x @ weights[0]) @ weights[1]) @ weights[2]).chunk(2, -1)
        return states + change, 0.1 * log_var.clamp(-12, 2).exp()

    optimizer = torch.optim.Adam(weights, 5e-3)
    for _ in range(rounds):
        state, action, after = seen[torch.randint(len(seen), (5, 256))].split([4, 2, 4], dim=-1)
        mean, var = net(state, action)
        optimizer.zero_grad()
        (var.log() + (after - mean) ** 2 / var).mean().backward()
        optimizer.step()
    return net


def sample_plans(state, rng, candidates, horizon):  # two arcs, and the brakes at the end
    plans = rng.uniform(-1, 1, size=(candidates, 2, 2)).repeat(horizon // 2, axis=1)
    plans[:, -2:, 1] = -1
    return plans


def cost(mean, plans):  # straight to the goal, whatever lies there
    return ((mean[..., :2] - GOAL) ** 2).sum(-1).mean(-1)


def brake(state):
    return np.array([0.0, np.clip(-state[3] / (2 * DT), -1, 0)])
