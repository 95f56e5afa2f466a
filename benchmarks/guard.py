"""The guard against what it guards: the check beside the model's forward pass, planning with and without it.

One torch thread throughout: two on two busy cores made mbrl-lib's planning several times slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import omegaconf
import torch
from mbrl.models import ModelEnv
from mbrl.planning import TrajectoryOptimizerAgent

from benchmarks.figures import Figure, within
from pac_core import GaussianForecast, KeepOutBall, KeepOutBox, PACLevel, Predictor, TubeChecker
from pac_core.sets import calibrate
from pac_core.tubes import fit_shape
from pac_rl import (
    ActionFilter,
    AroundPolicy,
    Controller,
    Dynamics,
    Ensemble,
    Guard,
    GuardedAgent,
    GuardedVectorEnv,
    MujocoSystem,
    Settings,
    forecast_plans,
    guard_plans,
    load_policy,
    make_environment,
    no_flip,
    velocity_limit,
)
from pac_rl.dynamics.ensemble import new_network
from pac_rl.dynamics.forecasts import ScoredPlans
from pac_rl.planning import FittedTubes, MujocoState, hold_action

POPULATION, HORIZON, ITERATIONS, PARTICLES = 400, 30, 5, 20
ROUNDS = 6
STEPS = 20  # of the tubes of `check`
ROBOTS, AHEAD = 64, 6  # at once, and steps of their plans
WIDE = 1e3  # limits that every plan keeps: what is unsafe is no cheaper, and no dearer


def untrained() -> Ensemble:
    """An ensemble of the usual size; speed does not depend on the weights."""
    settings, ones = Settings(), torch.ones(24)
    network = new_network(settings, 18, 6).eval()
    return Ensemble(network, 0 * ones, ones, 0.01 * ones[:18], "HalfCheetah-v5", settings)


def calibrated(steps: int, shape: str = "box") -> Predictor:
    """A predictor for so many steps, from made-up rollouts."""
    rng = np.random.default_rng(0)
    forecast = GaussianForecast(np.zeros((200, steps, 18)), np.ones((200, steps, 18)))
    tune, cal = rng.normal(size=(2, 200, steps, 18))
    level = PACLevel(0.1, 0.01)
    return calibrate(fit_shape(forecast, tune, level, shape=shape), forecast, cal, level)


def check() -> Iterator[Figure]:
    """Tubes and their check, beside the forward pass that they need."""
    ensemble, robot, rng = untrained(), make_environment(), np.random.default_rng(0)
    usual = [velocity_limit(robot, WIDE), no_flip(robot, WIDE)]
    ball = KeepOutBall("pillar", np.full(3, WIDE), 1.0, axes=(1, 2, 3))
    box = KeepOutBox("wall", np.full(2, WIDE), np.full(2, 2 * WIDE), axes=(1, 2))
    starts = torch.from_numpy(np.repeat(rng.normal(size=(1, 18)), POPULATION, axis=0))
    plans = torch.from_numpy(rng.uniform(-1, 1, size=(POPULATION, STEPS, 6)))
    forward = partial(forecast_plans, ensemble, starts, plans, batch=POPULATION)
    forecast = forward()
    cases = {
        "box": (calibrated(STEPS), TubeChecker(usual)),
        "box, four limits": (calibrated(STEPS), TubeChecker([*usual, ball, box])),
        "max, four limits": (calibrated(STEPS, "max"), TubeChecker([*usual, ball, box])),
    }
    with one_thread():
        passes = seconds(forward, 5)
        for name, (predictor, checker) in cases.items():
            taken = seconds(lambda p=predictor, c=checker: c(p.tube(forecast)).safe, 200)  # type: ignore[misc]
            goal = "<= 0.03" if name == "box" else ""
            note = f"{POPULATION} plans x {STEPS} steps, {len(checker.limits)} limits, tube included; "
            note += f"{latency(taken)}; forward pass of {PARTICLES} particles {latency(passes)}"
            yield beside(f"check: {name}", taken, passes, goal, note)


def planning() -> Iterator[Figure]:
    """One decision of mbrl-lib's CEM: bare, guarded, and scored on the tube's own mean trajectory."""
    ensemble, robot = untrained(), make_environment()
    model = ensemble.for_mbrl()
    model.set_propagation_method("fixed_model")
    never = lambda actions, states: torch.zeros(len(states), 1, dtype=torch.bool)  # noqa: E731
    spaces = SimpleNamespace(observation_space=None, action_space=None)
    env = ModelEnv(spaces, model, never, lambda a, s: s[:, :1])

    def returns(state: Any, plans: Any) -> Any:
        return env.evaluate_action_sequences(plans, initial_state=state, num_particles=PARTICLES)

    forecast = partial(forecast_plans, ensemble, propagation="one-step", batch=POPULATION)
    checker = TubeChecker([velocity_limit(robot, WIDE), no_flip(robot, WIDE)])
    state = np.random.default_rng(0).normal(size=18)
    bare = planner()
    bare.set_trajectory_eval_fn(returns)

    def guarded(evaluate: Any, forecast: Any, **scoring: Any) -> Callable[[], Any]:
        guard = Guard(checker, calibrated(HORIZON), fallback="stop")
        return partial(
            GuardedAgent(planner(), guard_plans(evaluate, forecast, guard, **scoring)).safe_plan, state
        )

    def reward(states: Any, actions: Any) -> Any:
        return states[..., 0]

    contenders = {
        "bare": partial(bare.plan, state),
        "wrapped": guarded(returns, forecast),
        "particles": guarded(None, ScoredPlans(ensemble, reward, batch=POPULATION)),
        "mean": guarded(None, forecast, reward=reward),
    }
    taken = in_turns(contenders, ROUNDS)
    shape = f"population {POPULATION}, horizon {HORIZON}, {ITERATIONS} iterations, {PARTICLES} particles; "
    for name, label, goal in (
        ("particles", "guarded, returns over the tube's particles", "<= 1.2"),
        ("wrapped", "guarded, returns by mbrl-lib as before", "<= 1.2"),
        ("mean", "guarded, returns on the tube's mean", "<= 0.3"),
    ):
        kind = f"{PARTICLES} particles" if name == "particles" else "one-step forecasts"
        note = f"{shape}{kind}; {latency(taken[name])}, bare {latency(taken['bare'])}"
        yield beside(f"planning: {label}", taken[name], taken["bare"], goal, note)


def decision() -> Iterator[Figure]:
    """A guarded decision of 21 candidates around a policy, beside the forward pass that makes them."""
    system, predictor = MujocoSystem(), calibrated(AHEAD)
    model = Dynamics.of(untrained(), propagation="one-step", batch=None)
    planner = AroundPolicy.of(system, model, load_policy(), horizon=AHEAD)
    limits = (velocity_limit(system.environment, WIDE), no_flip(system.environment, WIDE))
    tubes = FittedTubes(predictor.score, predictor.threshold)
    controller = Controller(system, model, planner, limits, "hold", AHEAD, tubes=tubes)
    for name, robots, rounds in (("decision: 1 robot", 1, 200), ("decision: 64 robots", ROBOTS, 20)):
        rngs = [np.random.default_rng(i) for i in range(robots)]
        states = 0.1 * np.random.default_rng(0).normal(size=(robots, 18))
        taken = in_turns(
            {
                "forward": partial(planner.propose_with_forecast, states, rngs),
                "decide": partial(controller.decide, states, rngs),
            },
            rounds,
        )
        allowed = 1.1 * min(taken["forward"]) + 1e-3
        note = f"{len(planner.factors)} candidates x {AHEAD} steps, 2 limits; {latency(taken['decide'])}; "
        note += f"forward pass {latency(taken['forward'])}; allowed are 1.1 of it and 1 ms"
        yield within(name, min(taken["decide"]), allowed, "s", "<= 1", note)


def vector() -> Iterator[Figure]:
    """A step of 64 half-cheetahs with their actions checked, beside simulation, policy and forward pass."""
    robot, policy, predictor = make_environment(), load_policy(), calibrated(AHEAD)
    model = Dynamics.of(untrained(), batch=ROBOTS)
    hold, still = hold_action(AHEAD), torch.zeros(ROBOTS, 6)

    def guarded(bound: float) -> GuardedVectorEnv:
        checker = TubeChecker([velocity_limit(robot, bound), no_flip(robot, WIDE)])
        check = ActionFilter(robot.low, robot.high, model, Guard(checker, predictor, "hold"), hold)
        return GuardedVectorEnv(make(), check, state=MujocoState(robot))

    def make() -> Any:
        return gymnasium.make_vec("HalfCheetah-v5", ROBOTS, vectorization_mode="sync")

    def act(observed: Any) -> Any:
        return policy(torch.from_numpy(observed), still).clamp(-1, 1).numpy().astype(np.float32)

    def stepping(envs: Any, *, forward: bool) -> Callable[[], None]:
        observed = envs.reset(seed=0)[0]
        states = 0.1 * np.random.default_rng(0).normal(size=(ROBOTS, 18))

        def step() -> None:
            nonlocal observed
            actions = act(observed)
            if forward:
                model(states, hold(states, actions))
            observed = envs.step(actions)[0]

        return step

    taken = in_turns(
        {
            "bare": stepping(make(), forward=True),
            "guarded": stepping(guarded(WIDE), forward=False),
            "lost": stepping(guarded(-WIDE), forward=False),
        },
        20,
    )
    note = f"{ROBOTS} half-cheetahs, plans of {AHEAD} steps, 2 limits; {latency(taken['guarded'])}, "
    note += f"unchecked {latency(taken['bare'])}"
    yield beside("vector environment: guarded", taken["guarded"], taken["bare"], "<= 1.15", note)
    note = "the fallback's actions are forecast, too, where it acts: here for all of them"
    yield beside("vector environment: guarded, all fall back", taken["lost"], taken["bare"], "", note)


def in_turns(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each run, in turns, after one to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    with one_thread():
        for round in range(rounds + 1):
            for name, work in contenders.items():
                now = seconds(work, 1, warm=False)
                taken[name] += now if round else []
    return taken


def planner() -> TrajectoryOptimizerAgent:
    config = {
        "_target_": "mbrl.planning.CEMOptimizer",
        "num_iterations": ITERATIONS,
        "population_size": POPULATION,
        "elite_ratio": 0.1,
        "alpha": 0.1,
        "device": "cpu",
    }
    return TrajectoryOptimizerAgent(
        omegaconf.OmegaConf.create(config), [-1.0] * 6, [1.0] * 6, planning_horizon=HORIZON
    )


class one_thread:
    """One torch thread within, as many as before afterwards."""

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.before)


def seconds(work: Callable[[], Any], rounds: int, *, warm: bool = True) -> list[float]:
    """Of each of so many runs, after one to warm up."""
    if warm:
        work()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return taken


def latency(taken: list[float]) -> str:
    median, last = np.median(taken) * 1e3, np.quantile(taken, 0.99) * 1e3
    return f"median {median:,.3g} ms, 99th percentile {last:,.3g} ms of {len(taken)} runs"


def beside(name: str, ours: list[float], other: list[float], goal: str, note: str) -> Figure:
    """The ratio of the best runs; medians of few runs on a shared machine hide the guard in its noise."""
    mine, theirs = min(ours), min(other)
    return Figure(name, mine, theirs, "s", mine / theirs, goal, note)


ALL = {"check": check, "decision": decision, "planning": planning, "vector": vector}
