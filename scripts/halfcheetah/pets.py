"""PETS on the half-cheetah with a guard in its loop: collect, train, fit the guard again, run, and again.

The first model learns from random actions and from a policy with noise; every later one also from what the
guarded planner did. After each training the guard is fitted again (`guard.refit`), on fresh units, because
the tubes of another model promise nothing of this one. All rounds, and the certificate of the last
controller, are charged to one budget.
"""

from dataclasses import dataclass, field

import numpy as np
from common import ResultFolder
from halfcheetah.experiment import say

import pac_rl
from pac_core import LinearFeatures, PACLevel
from pac_core.certificates import open_ledger
from pac_core.evaluation import error_interval
from pac_rl import Settings, Transitions
from pac_rl.planning import ReturnCost, cheetah_reward
from pac_rl.policies import Function
from pac_rl.rollouts import TRAINING_SEEDS

FIRST = TRAINING_SEEDS + 5 * 10**8
"""Seeds from here on are those of the episodes that the loop learns from and reports."""


@dataclass(frozen=True)
class Loop:
    """How much of everything; each of the rounds and the certificate at the end cost one delta."""

    rounds: int = 3
    random: int = 8
    warm: int = 40
    episodes: int = 16
    steps: int = 200
    tune: int = 300
    calibrate: int = 500
    level: PACLevel = field(default_factory=lambda: PACLevel(0.1, 0.01))
    proved: PACLevel = field(default_factory=lambda: PACLevel(0.05, 0.01))
    explore: int = 32
    settings: Settings = field(default_factory=lambda: Settings(hidden=96, layers=3, epochs=20, batch=128))


SMALL = Loop(
    **{"rounds": 2, "random": 4, "warm": 8, "episodes": 2, "steps": 12, "tune": 40, "calibrate": 40},
    **{"level": PACLevel(0.3, 0.05), "proved": PACLevel(0.5, 0.2), "explore": 4},
    settings=Settings(members=2, hidden=24, layers=2, epochs=2, batch=64),
)


def run_loop(out, engine, loop):
    """A row for each round, and a certificate of the controller of the last."""
    system, policy = pac_rl.MujocoSystem("HalfCheetah-v5"), pac_rl.load_policy()
    robot, seeds = system.environment, iter(range(FIRST, FIRST + 10**6))
    limit, report = pac_rl.velocity_limit(robot), ResultFolder(out / "results")
    speed = LinearFeatures(("speed",), np.eye(len(robot.names))[:1])

    def draw(count):
        return np.fromiter(seeds, np.int64, count)

    def roll(by, count):
        return Transitions.of(pac_rl.simulate(robot, by, draw(count), horizon=loop.steps, burn_in=(0, 0)))

    still = Function(lambda seen: np.zeros((len(seen), 6)), policy.inputs, 6, std=1.0)
    data, rows, guard = [roll(still, loop.random), roll(pac_rl.NoisyPolicy(policy, 0.3), loop.warm)], [], None
    open_ledger(out / "pac-ledger", budget=(loop.rounds * loop.level.delta + loop.proved.delta) * 1.001)
    for number in range(1, loop.rounds + 1):
        known = Transitions.join(data)
        ensemble = pac_rl.train(known, robot.id, loop.settings)
        model = pac_rl.Dynamics.of(ensemble, propagation="one-step", batch=None)
        if guard is None:
            price = ReturnCost(cheetah_reward)
            planner = pac_rl.AroundPolicy.of(system, model, policy, price=price, horizon=6)
            guard = pac_rl.fit_guard(
                *(system, model, [limit], planner),
                **{"fallback": "hold", "horizon": 6, "checked": 3, "reward": cheetah_reward},
                **{"tune": loop.tune, "calibrate": loop.calibrate, "level": loop.level},
                **{"steps": loop.steps, "folder": out, "engine": engine},
                **{"shape": "features", "features": speed, "sides": (1,), "units": (1.0,)},
            )
        else:
            guard = guard.refit(model, engine=engine)
        done = pac_rl.run_episodes(
            guard.controller(), draw(loop.episodes), steps=loop.steps, along=speed.matrix[0]
        )
        low, high = error_interval(int(done.errors.sum()), loop.episodes, 0.025)
        row = {"round": number, "steps learnt from": len(known.states)}
        row |= {"model error": ensemble.history[-1].best, "T": guard.certificate.predictor.threshold.value}
        row |= {
            "return": float(done.returns.mean()),
            "violated": f"{int(done.errors.sum())} of {loop.episodes}",
        }
        row |= {"low": low, "high": high, "fallback rate": float(done.fallbacks.sum() / done.decisions.sum())}
        rows.append(row)
        say(f"round {number}: {done}")
        data.append(learn_from(done, system))
    report.table("pets", rows, f"PETS with a guard that is fitted again, {loop.episodes} episodes a round")
    usual = {"steps": loop.steps, "folder": out, "explore": loop.explore, "engine": engine}
    result = guard.controller().certify(loop.proved, **usual)
    print(f"\n{result}")
    return result


def learn_from(done, system):
    """The steps of traced episodes."""
    begun = system.see(system.begin([np.random.default_rng(int(seed)) for seed in done.seeds]))
    before = np.concatenate([begun[:, None], done.traces.states[:, :-1]], axis=1)
    taken = np.isfinite(done.traces.states).all(axis=2) & np.isfinite(before).all(axis=2)
    return Transitions(before[taken], done.traces.actions[taken], done.traces.states[taken], done.seeds)
