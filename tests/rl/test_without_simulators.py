"""Guards, tubes and the checker where no simulator, no mbrl-lib and, on numpy, no torch is installed."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

MISSING = ("mujoco", "gymnasium", "mbrl", "safetensors", "omegaconf")
HIDE = """
import sys


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Hidden())
"""


def run(program: str, *more: str) -> str:
    """What a program prints in a Python that cannot import a simulator, nor what else is named."""
    code = HIDE.format(hidden={*MISSING, *more}) + dedent(program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


GUARD = """
import numpy as np

import pac_rl
from pac_core import GaussianForecast, HalfSpace, PACLevel, TubeChecker
from pac_core.sets import calibrate
from pac_core.tubes import fit_shape

{imports}


def model(starts, plans):
    \"\"\"My own: a point on a line that moves by its action.\"\"\"
    mean = starts[:, None] + plans.cumsum(1)
    return GaussianForecast(mean, 0 * mean + 0.01)


rng, level = np.random.default_rng(0), PACLevel(0.1, 0.1)
plans = rng.uniform(-1, 1, (200, 3, 1))
forecast = model(np.zeros((200, 1)), plans)
truth = forecast.mean + rng.uniform(-0.1, 0.1, plans.shape)
predictor = calibrate(fit_shape(forecast, truth, level), forecast, truth, level)
wall = TubeChecker([HalfSpace("wall", np.ones(1), 1.0)])
three = here(np.array([[0.5, 0.3, 0.0], [0.5, 0.6, 0.0], [-1.0, 0.0, 0.0]])[..., None])
reward = lambda states, actions: states[..., 0]
guard = pac_rl.guard_plans(None, model, pac_rl.Guard(wall, predictor), reward=reward)
values = guard(np.zeros(1), three)
assert type(values) is type(three), type(values)
print([round(value, 6) for value in values.tolist()[::2]], values.tolist()[1] < -1e30)
other = pac_rl.guard_plans(lambda state, plans: plans[:, 0, 0], model, guard.guard)
print(other(np.zeros(1), three).argmax().item())
print(guard.check(np.zeros(1), three).reason(1)[:15])
forecast = model(three[:, 0] * 0, three)
print(wall(pac_rl.planning.ScaledTube(predictor.tube(forecast), forecast.mean, 3.0)).safe.tolist())
print(pac_rl.planning.HullTube(three[None]).support([1.0]).shape[0])
hold = pac_rl.Guard(wall, predictor, fallback="hold")
print(hold.act(np.zeros(1), -np.ones(1), np.ones(1), "").tolist())
print(sorted({{"mujoco", "gymnasium", "mbrl", "torch"}} & {{*sys.modules}}))
"""
WANTED = "[2.1, -3.0] True\n0\nwall: may reach\n[False, False, True]\n3\n[0.0]\n"


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_plan_is_guarded_with_a_model_of_ones_own(library: str) -> None:
    numpy = library == "numpy"
    imports = "here = np.asarray" if numpy else "import torch\n\nhere = torch.from_numpy"
    told = run(GUARD.format(imports=imports), *(["torch"] if numpy else []))
    assert told == WANTED + ("[]\n" if numpy else "['torch']\n")


NEEDED = {
    "pac_rl.make_environment()": "gymnasium",
    "pac_rl.GuardedEnv(None, None)": "gymnasium",
    "import_module('pac_rl.dynamics.ensemble').new_network(pac_rl.Settings(), 2, 1)": "mbrl.models",
    f"pac_rl.Ensemble.load({__file__!r})": "safetensors",
}
ASK = """
from importlib import import_module

import pac_rl
from pac_core import InvalidInput

for program in {programs!r}:
    try:
        eval(program)
    except (InvalidInput, ImportError) as error:
        print(error)
"""


def test_what_needs_a_simulator_says_what_to_install() -> None:
    told = run(ASK.format(programs=[*NEEDED])).splitlines()
    for line, module in zip(told, NEEDED.values(), strict=True):
        assert line.startswith(f"{module} is needed here: install pac-sets[rl]")
        assert ("mbrl==0.2.0" in line) == (module == "mbrl.models")
    without = run(ASK.format(programs=["pac_rl.load_policy()"]), "torch")
    assert without.startswith("pac_rl.load_policy needs torch: install pac-sets[rl]")


def test_every_name_of_the_front_door_is_there() -> None:
    import pac_rl

    assert all(getattr(pac_rl, name) is not None for name in pac_rl.__all__)
    assert {*pac_rl.__all__} <= {*dir(pac_rl)}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pac_rl.nothing
