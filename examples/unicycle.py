"""A unicycle among three rocks: a model of your own, random shooting, a guard, and a certificate of it all.

The promise: at most 5% of the guarded controller's episodes have a collision, proved on fresh ones with
confidence 0.99; see docs/guarantees.md. It takes a few minutes; with --tiny seconds, for a weaker promise;
with --mppi another planner.
"""

import sys

from compare import compare_guards
from unicycle_robot import arrived, brake, cost, reset, sample_plans, step, train

import pac_rl
from pac_core import KeepOutBall, PACLevel

tiny, steps, folder = "--tiny" in sys.argv, 50, "unicycle-run"
units = {"tune": 32, "calibrate": 48, "preliminary": 32} if tiny else {"tune": 300, "calibrate": 500}
tried = {"scales": (1.0, 0.5), "max_episodes": 32} if tiny else {"explore": 64, "max_episodes": 400}
wanted = PACLevel(0.3, 0.1) if tiny else PACLevel(0.05, 0.01)

robot = pac_rl.System(reset, step, [-1, -1], [1, 1], ("x", "y", "heading", "speed"), ended=arrived)
model = pac_rl.Dynamics.of(train(300 if tiny else 2000), members=5, particles=2)
rocks = [KeepOutBall(f"rock at {at}", at, 0.6, axes=("x", "y")) for at in ((2, 0.3), (4, -0.8), (4, 1.2))]
planner = pac_rl.Shooting(sample_plans, cost, candidates=8 if tiny else 32)
if "--mppi" in sys.argv:
    folder = "unicycle-mppi-run"
    planner = pac_rl.MPPI(model, cost, robot.low, robot.high, candidates=8 if tiny else 32, rounds=2)
asked = {"fallback": brake, "horizon": 8, "level": PACLevel(0.1, 0.01), "folder": folder, "steps": steps}
guard = pac_rl.fit_guard(robot, model, rocks, planner, **asked, **units)
print(guard)
print(result := guard.controller().certify(wanted, steps=steps, folder=folder, **tried))

acting = guard.controller(result.certified or 1.0)
columns = {"arrived": lambda done: f"{sum(map(arrived, done.final)) / len(done.seeds):.0%}"}
columns["steps taken"] = lambda done: f"{done.decisions.mean():.1f}"
print(compare_guards(acting, steps=steps, episodes=32 if tiny else 256, **columns))
