"""The linear half-cheetah policy that comes with pac_rl, by augmented random search.

Tries random directions in the space of linear policies on normalised observations, both ways, and steps along
the best ones in proportion to what they gained (Mania, Guy and Recht, 2018, V2-t).
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from pac_core.arrays import count_threads
from pac_rl import load_policy, make_environment
from pac_rl.policies import Network, check_policy, save_policy
from pac_rl.rollouts import Simulator


@dataclass(frozen=True)
class Search:
    """A search for a policy."""

    out: Annotated[Path, "File for the policy."] = Path("policy.npz")
    start: Annotated[Path | None, "A linear policy to go on from."] = None
    env: Annotated[str, "The environment's id."] = "HalfCheetah-v5"
    minutes: Annotated[float, "How long to search."] = 2.0
    directions: Annotated[int, "Random directions per step."] = 32
    best: Annotated[int, "Directions that count."] = 8
    spread: Annotated[float, "Length of a direction, per weight."] = 0.03
    rate: Annotated[float, "Step size."] = 0.02
    episodes: Annotated[int, "Episodes over which the return of a direction is averaged."] = 2
    judged: Annotated[int, "Episodes over which the return of the present policy is averaged."] = 16
    steps: Annotated[int, "Length of an episode."] = 1000
    speed: Annotated[float, "Velocity beyond which nothing is gained: slower gaits stumble less."] = 10.0
    tilt: Annotated[float, "Pitch at which an episode ends, so that policies learn not to flip."] = 1.5
    std: Annotated[float, "Noise on the actions, in the search and of the policy that is saved."] = 0.1
    seed: Annotated[int, "Of the search."] = 0


def search_policy(args):
    """Searches until the time is over, and writes the best policy that was seen."""
    environment = make_environment(args.env)
    rng = np.random.default_rng(args.seed)
    width = environment.view(np.zeros((1, len(environment.names)))).shape[1]
    weights = np.zeros((len(environment.low), width))
    count, mean, square = 1e-4, np.zeros(width), np.ones(width) * 1e-4
    if args.start is not None:
        known = check_policy(environment, load_policy(args.start, std=args.std))
        weights, mean, count = known.weights[0].numpy(), known.shift.numpy(), 1e6
        square = known.scale.numpy() ** 2 * count
    best, end = (-np.inf, weights, mean, np.ones(width)), time.monotonic() + 60 * args.minutes
    simulator = Simulator(environment)
    iteration = 0
    while time.monotonic() < end:
        scale = np.sqrt(np.maximum(square / count, 1e-8))
        delta = rng.standard_normal((args.directions, *weights.shape))
        moved, judged = args.spread * delta, np.repeat(weights[None], args.judged, axis=0)
        tried = np.concatenate([np.repeat(weights + sign * moved, args.episodes, axis=0) for sign in (1, -1)])
        returns, seen = in_threads(simulator, np.concatenate([tried, judged]), (mean, scale), args, rng)
        plus, minus = returns[: len(tried)].reshape(2, args.directions, args.episodes).mean(axis=2)
        now = returns[len(tried) :].mean()
        if now > best[0]:
            best = (now, weights, mean, scale)
        top = np.argsort(-np.maximum(plus, minus))[: args.best]
        gained = plus[top] - minus[top]
        unit = np.concatenate([plus[top], minus[top]]).std() + 1e-8
        weights = weights + args.rate / (args.best * unit) * np.tensordot(gained, delta[top], axes=1)
        n, new = len(seen), seen.mean(axis=0)
        square = square + ((seen - new) ** 2).sum(axis=0) + (new - mean) ** 2 * count * n / (count + n)
        mean, count = mean + (new - mean) * n / (count + n), count + n
        iteration += 1
        left = f"{max(0, end - time.monotonic()):4.0f} s left"
        print(f"step {iteration:4}  return {now:7.0f}  best {best[0]:7.0f}  {left}", flush=True)
    policy = Network(
        weights=(torch.from_numpy(best[1]),),
        biases=(torch.zeros(len(weights), dtype=torch.float64),),
        std=torch.full((len(weights),), args.std, dtype=torch.float64),
        shift=torch.from_numpy(best[2]),
        scale=torch.from_numpy(best[3]),
        squash=False,
    )
    save_policy(policy, args.out)
    print(f"wrote {args.out}: a linear policy with a return of {best[0]:.0f}")


def in_threads(simulator, weights, normal, args, rng):
    """`episodes`, with a share of the weights for each CPU."""
    count = count_threads()
    shares, draws = np.array_split(weights, count), rng.spawn(count)
    with ThreadPoolExecutor(count) as pool:
        done = pool.map(lambda part, draw: episodes(simulator, part, normal, args, draw), shares, draws)
        returns, seen = zip(*done, strict=True)
    return np.concatenate(returns), np.concatenate(seen)


def episodes(simulator, weights, normal, args, rng):
    """`[B]` the return of one episode with each of the weights `[B, A, I]`, and the observations seen."""
    environment = simulator.environment
    physics = np.stack([environment.reset(int(seed)) for seed in rng.integers(2**31, size=len(weights))])
    states = environment.observe(environment.gym, physics, physics)
    returns, alive, seen = np.zeros(len(weights)), np.arange(len(weights)), []
    for _ in range(args.steps):
        observed = environment.view(states)[alive]
        seen.append(observed[:: max(1, len(observed) // 8)])
        wanted = np.einsum("bai,bi->ba", weights[alive], (observed - normal[0]) / normal[1])
        noise = args.std * rng.standard_normal(wanted.shape)
        done = np.clip(wanted + noise, environment.low, environment.high)
        states[alive], ended, diverged = simulator.step(physics, alive, done)
        cost = getattr(environment.gym, "_ctrl_cost_weight", 0.0)
        returns[alive] += np.minimum(states[alive, 0], args.speed) - cost * (done**2).sum(axis=1)
        returns[alive[diverged]] = -1e4
        ended |= abs(states[alive, 2]) > args.tilt
        alive = alive[~(ended | diverged)]
        if not len(alive):
            break
    return returns, np.concatenate(seen)
