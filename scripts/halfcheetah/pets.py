"""PETS on the half-cheetah with the guard in the loop, and guards compared inside its planner.

Collect, train, calibrate anew, plan with mbrl-lib's CEM, and again; each search begins at the policy's own
actions, because CEM from nothing barely moves on so little data. Then, on the last round's ensemble, five
guards inside the same CEM. Speed limit 3.2096 m/s, 200 steps from rest. With so few episodes the intervals
are wide; they are shown.
"""

from functools import partial

import numpy as np
from common import ResultFolder
from halfcheetah.guard import fit_tubes

import pac_rl
from pac_core import HalfSpace, LinearFeatures, PACLevel
from pac_core.evaluation import error_interval
from pac_core.runs import Job, RunFolder, Stage
from pac_rl import Settings, forecast_plans
from pac_rl.pets import Loop, Search, guarded_cem, plan_episode, replay, run_pets, score_episodes
from pac_rl.planning import FittedTubes, MeanTubes, MemberTubes, cheetah_reward
from pac_rl.rollouts import TRAINING_SEEDS, Rollouts
from pac_rl.tasks import NEEDS, read_arrays

SCALES = (1.0, 0.6)
LEVEL = PACLevel(0.1, 0.05)
FRESH = TRAINING_SEEDS + 10**8
"""Seeds from here on: units of the paper's tube, tune episodes, compared episodes."""
SMALL = Loop(
    **{"rounds": 2, "episodes": 1, "random": 4, "warm": 4, "steps": 30, "tune": 100, "calibrate": 150},
    settings=Settings(members=3, hidden=24, layers=2, epochs=2, batch=64),
    search=Search(horizon=4, checked=3, population=20, iterations=2),
)


class PlanEpisodes:
    """Whole episodes of mbrl-lib's CEM on a half-cheetah, one after the other, with a guard's tubes.

    kept: what the guard checks; limits: what is counted, which without a guard is more
    """

    def __init__(self, env, policy, ensemble, limits, kept, guard, search, steps, *, device="cpu"):
        self.robot, self.ensemble = pac_rl.make_environment(env), ensemble.to(device)
        self.limits, self.steps = limits, steps
        parts = (self.robot, self.ensemble, guard, kept, cheetah_reward)
        # A half-cheetah that is not driven comes to rest.
        self.agent = guarded_cem(*parts, search=search, policy=policy, fallback="hold")

    def __call__(self, shard, given):
        self.ensemble.refuse_seen(shard.ids, "episodes")
        done, fallbacks = [], []
        for seed in np.asarray(shard.ids).tolist():
            before = self.agent.fallbacks
            done.append(plan_episode(self.robot, self.agent, seed, steps=self.steps))
            fallbacks.append(self.agent.fallbacks - before)
        whole = Rollouts.join(done)
        returns, errors = score_episodes(whole, self.limits, cheetah_reward)
        fastest = np.where(np.isfinite(whole.states[..., 0]), whole.states[..., 0], np.inf).max(axis=1)
        found = {"ids": whole.seeds, "errors": errors, "returns": returns, "fastest": fastest}
        return found | {"fallbacks": np.array(fallbacks)}


def compare_in_loop(out, engine, loop, tune, episodes):
    """The rounds of the loop, then a row for each guard; ours at the scale that kept the limit on tune."""
    robot, policy, report = pac_rl.make_environment(), pac_rl.load_policy(), ResultFolder(out / "results")
    limits, features = (pac_rl.speed_limit(robot),), LinearFeatures(("speed",), np.eye(len(robot.names))[:1])
    about = {"loop": loop, "policy": policy, "fallback": "hold", "progress": partial(print, flush=True)}
    ledger = out / "pets-ledger.json"
    learnt = list(run_pets(robot, limits, features, cheetah_reward, ledger=ledger, **about))
    last = learnt[-1]
    ours = FittedTubes(last.predictor.score, last.predictor.threshold)

    def measure(name, guard, kept, first, count):
        parts = (robot.id, policy, last.ensemble, limits, kept, guard, loop.search, loop.steps)
        seeds = range(FRESH + first, FRESH + first + count)
        stage = Stage(PlanEpisodes, parts, needs=NEEDS)
        job = Job.of("pets", seeds, [stage], size=1, guard=name, rounds=loop.rounds, unit="episode")
        folder = RunFolder(out / "pets" / name.replace(" ", "_").replace("'", ""))
        engine(job, folder)
        found = read_arrays(job, folder)
        errors = int(found["errors"].sum())
        low, high = error_interval(errors, count, 0.025)
        row = {"guard": name, "return": float(found["returns"].mean()), "violated": f"{errors} of {count}"}
        row |= {"low": low, "high": high, "fastest": float(found["fastest"].mean())}
        print(f"  {name}: return {row['return']:.0f}, {row['violated']} over the limit", flush=True)
        return row | {"fallback rate": float(found["fallbacks"].sum() / (count * loop.steps))}

    scale = SCALES[0]
    for tried in SCALES:
        if measure(f"tune {tried:g}", ours.scaled(tried), limits, 10**6, tune)["violated"][0] != "0":
            break
        scale = tried
    guards = {
        "no guard": (MeanTubes(), (HalfSpace("none", limits[0].normal, 1e30),)),
        "mean": (MeanTubes(), limits),
        "worst member": (MemberTubes(), limits),
        "paper's tube": (papers_tubes(robot, learnt, loop), limits),
        f"ours, scale {scale:g}": (ours.scaled(scale), limits),
    }
    rows = [measure(name, *guard, 2 * 10**6, episodes) for name, guard in guards.items()]
    shown = f"{episodes} episodes of {loop.steps} steps from rest"
    title = f"Guards inside CEM after {loop.rounds} rounds of the loop, {shown}"
    report.table("pets", rows, title)


def papers_tubes(robot, learnt, loop):
    """The paper's shape for the last model, on replays of what was done before it."""
    recorded = learnt[-2 if len(learnt) > 1 else -1].collected
    units = replay(robot, recorded, np.arange(FRESH, FRESH + 800), horizon=loop.search.checked)
    forecast = forecast_plans(learnt[-1].ensemble, units.start, units.actions, propagation="one-step")
    return fit_tubes(forecast, units.truth, LEVEL, shape="joint")
