"""A guard and the certificate of its controller: killed and resumed, fitted again, of a log, of a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_robot as own
from scipy.stats import binom

from pac_core import GaussianForecast, InvalidInput, KeepOutBall, PACError, PACLevel, split
from pac_core.certificates import Descended, read_descent, read_ledger, verify_descent
from pac_core.errors import NotEnoughData, SecondLook
from pac_core.runs import RunFolder
from pac_rl import (
    Controller,
    Dynamics,
    Ensemble,
    FittedGuard,
    Shooting,
    fit_guard,
    fit_guard_from_log,
    load_guard,
    run_episodes,
)
from pac_rl.policies import Network
from pac_rl.tasks import rollout_task

LEVEL = PACLevel(0.3, 0.05)
FEW: dict[str, Any] = {"fallback": own.brake, "horizon": 5, "tune": 40, "calibrate": 40, "level": LEVEL}
FEW |= {"preliminary": 32, "steps": 12, "limits": ["position <= 1"]}


def fit(folder: Path, **changed: Any) -> FittedGuard:
    given = {"system": own.cart(), "model": own.MODEL, "planner": own.PLANNER, "folder": folder}
    return fit_guard(**(given | FEW | changed))


def certify(controller: Controller, folder: Path, **changed: Any) -> Descended:
    usual: Any = {"level": PACLevel(0.2, 0.1), "steps": 8, "explore": 8, "max_episodes": 40, "folder": folder}
    return controller.certify(**(usual | changed))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> FittedGuard:
    return fit(tmp_path_factory.mktemp("run"))


def test_from_functions_to_a_certificate(fitted: FittedGuard, tmp_path: Path) -> None:
    free = run_episodes(fitted.base, range(16), steps=25)  # type: ignore[arg-type]
    assert free.errors.mean() > 0.9, "without a guard the limit breaks, or the example shows nothing"
    assert "whichever of the 8 candidates of a new start is picked" in str(fitted)
    shown = certify(fitted.controller(), tmp_path, steps=25, explore=16, max_episodes=60)
    assert shown.certified is not None, str(shown)
    assert all(check.holds for check in verify_descent(shown, tmp_path / "pac-ledger"))
    assert read_descent(tmp_path / "controller-25.json").certified == shown.certified
    acting = fitted.controller(shown.certified)  # type: ignore[arg-type]
    assert own.LOW <= acting.act([0.0, 0.0]) <= own.HIGH
    fast = np.array([[0.99, 3.0]])
    decided = acting.decide(fast, [np.random.default_rng(0)])
    assert decided.chosen[0] == -1
    assert decided.actions[0] == own.brake(fast[0])
    assert own.brake(fast[0]) == -1


def raises(state: Any, action: Any, rng: Any) -> Any:
    raise KeyError("speed")


def wild(state: Any, rng: Any, candidates: int, horizon: int) -> Any:
    return np.full((candidates, horizon, 1), 1.5)


def short(state: Any, rng: Any, candidates: int, horizon: int) -> Any:
    return np.zeros((candidates, horizon - 1, 1))


def other(states: Any, plans: Any) -> Any:
    return tuple(np.zeros((*plans.shape[:2], 3)) + 1 for _ in range(2))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"system": own.cart(step=raises)}, r"step must take .* but raised KeyError\('speed'\)"),
        ({"model": Dynamics(other)}, r"the model's mean must have shape \(8, 5, 2\), got \(8, 5, 3\)"),
        ({"planner": Shooting(wild, own.cost, 8)}, r"plans must stay within low .* got 1\.5"),
        ({"planner": Shooting(short, own.cost, 8)}, r"sample_plans must return plans of shape \[8, 5, A\]"),
        (
            {"planner": Shooting(own.sample_plans, lambda mean, plans: mean[0, 0, 0], 8)},
            "cost must be numbers",
        ),
        ({"limits": [KeepOutBall("rock", [0, 0], 1.0, axes=("x", "position"))]}, "reads 'x', which"),
        ({"limits": ["height <= 1"]}, "of position, velocity, got 'height <= 1'"),
        ({"fallback": None}, "fallback must be"),
        ({"fallback": lambda state: [np.nan]}, "the fallback must return 1 finite numbers"),
        ({"fallback": lambda state: [0.0, 0.0]}, "the fallback's action must"),
        (
            {"fallback": lambda state: state["x"]},
            "the fallback must return an action for any state, but raised IndexError",
        ),
        ({"model": own.forecast}, "model must be a Dynamics, got function"),
        ({"planner": own.sample_plans}, "planner must have propose, got function"),
        ({"horizon": 0}, "horizon must be"),
        ({"calibrate": 8}, r"8 calibration units cannot prove .* at least 9 are needed"),
        ({"round": 100}, "round must be below 100, got 100"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(PACError, match=words):
        fit(tmp_path, **changed)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"max_episodes": 12}, "12 calibration units cannot prove .* at least 13 are needed"),
        ({"scales": ()}, "scales must not be empty"),
        ({"scales": (0.5, 1.0)}, "scales must descend"),
        ({"explore": 0}, "explore must be a whole number from 1"),
        ({"level": 0.2}, "level must be a PACLevel"),
    ],
)
def test_a_plan_that_proves_nothing_is_refused_before_anything_runs(
    fitted: FittedGuard, tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(PACError, match=words):
        certify(fitted.controller(), tmp_path, **changed)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(InvalidInput, match=r"state must be numbers of shape \(2,\), got \(3,\)"):
        fitted.controller().act(np.zeros(3))


@pytest.fixture
def two_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pac_rl.planning.controller.SCALES", (1.0, 0.8))


@pytest.mark.usefixtures("two_scales")
def test_a_certificate_goes_on_after_a_kill_at_any_point(
    fitted: FittedGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From what stood in the folder at each write to the disk: the same document, and one look."""
    controller, sync, left = fitted.controller(), os.fsync, list[Path]()

    def noting(file: int) -> None:
        left.append(tmp_path / f"killed-{len(left)}")
        shutil.copytree(tmp_path / "whole", left[-1])
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", noting)
        shown = certify(controller, tmp_path / "whole")
    assert shown.plan.scales == (1.0, 0.8)
    assert shown.certified is not None
    assert len(left) > 15, "runs, shards, ledger, notes and the document"
    document = (tmp_path / "whole" / "controller-8.json").read_bytes()
    for folder in left:
        certify(controller, folder)
        assert (folder / "controller-8.json").read_bytes() == document, folder.name
        assert len(read_ledger(folder / "pac-ledger")) == 1


@pytest.mark.usefixtures("two_scales")
def test_another_plan_on_the_same_episodes_is_refused(fitted: FittedGuard, tmp_path: Path) -> None:
    controller = fitted.controller()
    certify(controller, tmp_path)
    for changed in ({"scales": (0.9,)}, {"max_episodes": 39}, {"steps": 9}, {"level": PACLevel(0.2, 0.09)}):
        with pytest.raises(SecondLook, match="A descent is never extended"):
            certify(controller, tmp_path, **changed)
    with pytest.raises(SecondLook, match="A descent is never extended"):  # of another controller
        certify(replace(controller, fallback="hold"), tmp_path, scales=(1.0, 0.8))
    assert len(read_ledger(tmp_path / "pac-ledger")) == 1


def test_where_no_scale_keeps_its_episodes_nothing_is_looked_at(fitted: FittedGuard, tmp_path: Path) -> None:
    reckless = replace(fitted.controller(), fallback=lambda state: [1.0], limits=fit_limits("position <= -9"))
    with pytest.raises(
        InvalidInput, match=r"even with tubes of scale 2, \d of 8 episodes broke a limit or failed"
    ):
        certify(reckless, tmp_path)
    assert not (tmp_path / "pac-ledger").exists()


def fit_limits(*texts: str) -> Any:
    from pac_core.safety import number_axes

    return tuple(number_axes(text, own.NAMES) for text in texts)


def hashes(folder: Path) -> list[set[int]]:
    """Of the units of each look of a ledger, as its files hold them."""
    looks = read_ledger(folder)
    return [{*np.frombuffer((folder / f"{look.units}.units").read_bytes(), "<u8").tolist()} for look in looks]


@pytest.mark.usefixtures("two_scales")
def test_a_guard_is_fitted_again_on_fresh_units(tmp_path: Path) -> None:
    """For a model that was trained again: other units, other episodes, the same ledger."""
    first = fit(tmp_path)
    unsure = Dynamics(
        lambda starts, plans: tuple(np.array([1, 4])[:, None, None, None] * own.forecast(starts, plans))
    )
    second = first.refit(unsure)
    third = second.refit(own.MODEL)
    assert second.certificate.model.digest != first.certificate.model.digest == third.certificate.model.digest
    episodes = [certify(guard.controller(), tmp_path).plan.episodes for guard in (first, second)]
    found = hashes(tmp_path / "pac-ledger")
    assert [len(units) for units in found] == [40, 40, 40, 80, 80]
    assert len(set.union(*found)) == 280, "no unit is in two looks"
    assert not {*episodes[0].ravel()} & {*episodes[1].ravel()}
    for part in ("plans", "preliminary", "round-1/plans", "round-1/preliminary", "round-2/plans"):
        assert (tmp_path / part / "run.json").exists()
    ids = [RunFolder(tmp_path / part).read_all()["ids"] for part in ("preliminary", "round-1/preliminary")]
    assert not {*ids[0]} & {*ids[1]}
    assert (tmp_path / "controller-8.json").exists()
    assert (tmp_path / "controller-8-round-1.json").exists()
    with pytest.raises(InvalidInput, match="a round must have at most 1,000,000 units"):
        fit(tmp_path, round=1, calibrate=10**6)


def test_a_promise_about_drawn_plans_says_so(tmp_path: Path) -> None:
    """One candidate of each unit is carried out; the guard still weighs all eight."""
    made = fit(tmp_path, promise="drawn")
    assert "The set of the plan drawn at a new start misses" in made.certificate.promise
    assert "not about one that is picked" in str(made)
    tuned = RunFolder(tmp_path / "plans" / "tune").read_all()
    assert tuned["mean"].shape == (40, 1, 5, 2)
    assert made.controller().decide(np.zeros((1, 2)), [np.random.default_rng(0)]).plans.shape[1] == 8
    with pytest.raises(InvalidInput, match="promise must be 'any' or 'drawn', got 'all'"):
        fit(tmp_path, promise="all")


def log(n: int) -> Any:
    """Plans from random starts, and what came of them."""
    rng = np.random.default_rng(7)
    starts, plans = rng.uniform(-0.5, 0.5, (n, 2)), rng.uniform(-1, 1, (n, 3, 1))
    states = np.empty((n, 3, 2))
    for i in range(n):
        state = starts[i]
        for t in range(3):
            states[i, t] = state = own.step(state, plans[i, t], rng)
    return starts, plans, states


def from_log(tmp_path: Path, n: int, **changed: Any) -> FittedGuard:
    level = PACLevel(0.1, 0.05)
    usual: Any = {
        "names": own.NAMES,
        "fallback": "stop",
        "level": level,
        "tune": 50,
        "ledger": tmp_path / "l",
    }
    return fit_guard_from_log(own.MODEL, ["position <= 1"], *log(n), **(usual | changed))


def test_the_threshold_of_a_log_is_the_k_plus_first_largest_score(tmp_path: Path) -> None:
    made = from_log(tmp_path, 250)
    starts, plans, states = log(250)
    rows = split([f"plan {i}" for i in range(250)], tune=50, calibrate=200, seed=0).calibrate.rows
    forecast = GaussianForecast(*own.forecast(starts[rows], plans[rows]))
    predictor: Any = made.certificate.predictor
    scores = np.sort(predictor.score.scores(forecast, states[rows]))[::-1]
    k = max(k for k in range(200) if binom.cdf(k, 200, 0.1) < 0.05)
    assert k == 12
    assert predictor.threshold.value == scores[k]
    left = ~predictor.tube(forecast).contains(states[rows])
    assert left.sum() == k
    assert "the 200 calibration units" in str(made)
    safe = made.guard.check(made.model(np.zeros((2, 2)), np.zeros((2, 3, 1))), np.zeros((2, 3, 1))).safe
    assert safe.tolist() == [True, True]
    for ask in (made.controller, lambda: made.refit(own.MODEL)):
        with pytest.raises(InvalidInput, match="this guard was read, or made of a log"):
            ask()


def test_one_drawn_of_several_candidates_needs_as_many_times_the_units(tmp_path: Path) -> None:
    """0.9**28 > 0.05 > 0.9**29, and for a quarter of epsilon 0.975**118 > 0.05 > 0.975**119."""
    for drawn_of, enough in ((None, 29), (4, 119)):
        with pytest.raises(NotEnoughData, match=rf"at least {enough} are needed \(1 more\)"):
            from_log(tmp_path, 50 + enough - 1, drawn_of=drawn_of)
        assert not (tmp_path / "l").exists()
    made = from_log(tmp_path, 50 + 119, drawn_of=4)
    assert "whichever of the 4 candidates of a new plan is picked" in made.certificate.promise
    assert "with probability at most 0.1;" in made.certificate.promise


@pytest.mark.parametrize(
    ("place", "values"),
    [(0, np.zeros((60, 1))), (0, np.zeros(60)), (1, np.zeros((60, 3))), (2, np.zeros((60, 2, 2)))],
)
def test_a_log_of_other_shapes_is_refused(tmp_path: Path, place: int, values: Any) -> None:
    arrays = [*log(60)]
    arrays[place] = values
    about: Any = {
        "names": own.NAMES,
        "fallback": "stop",
        "level": LEVEL,
        "tune": 20,
        "ledger": tmp_path / "l",
    }
    with pytest.raises(InvalidInput, match=r"starts, plans and states must be \[N, D\], \[N, H, A\] and"):
        fit_guard_from_log(own.MODEL, ["position <= 1"], *arrays, **about)
    assert not (tmp_path / "l").exists()


def test_a_guard_is_read_for_the_certified_model_alone(fitted: FittedGuard) -> None:
    folder = fitted.asked["folder"]
    with pytest.raises(InvalidInput, match=r"limits must be given, because the run has none"):
        load_guard(folder, model=own.MODEL)
    read = load_guard(folder, ["position <= 1"], model=own.MODEL, names=own.NAMES)
    plans = own.PLANNER.at(5).propose(np.full((1, 2), 0.5), [np.random.default_rng(0)])[0]
    forecast = own.MODEL(np.full((8, 2), 0.5), plans)
    np.testing.assert_array_equal(
        read.guard.check(forecast, plans).margin, fitted.guard.check(forecast, plans).margin
    )
    bolder = Dynamics(lambda starts, plans: own.forecast(starts, 0.9 * plans))
    with pytest.raises(
        InvalidInput, match=r"the model must be the certified one, [0-9a-f]{12}, got [0-9a-f]{12}"
    ):
        load_guard(folder, ["position <= 1"], model=bolder, names=own.NAMES)
    with pytest.raises(InvalidInput, match=r"of position, velocity, got 'speed <= 1'"):
        load_guard(folder, ["speed <= 1"], model=own.MODEL, names=own.NAMES)
    with pytest.raises(InvalidInput, match="must have one certificate of this level, got 0"):
        load_guard(folder, ["position <= 1"], model=own.MODEL, names=own.NAMES, level=PACLevel(0.1, 0.1))
    with pytest.raises(InvalidInput, match=r"model must be given: there is no .*ensemble\.safetensors"):
        load_guard(folder, ["position <= 1"], names=own.NAMES)


def test_tubes_of_the_closed_loop_guard_no_plans(tmp_path: Path, policy: Network, ensemble: Ensemble) -> None:
    about: Any = {"ensemble": "made here", "tune": 9, "calibrate": 9, "test": 9, "horizon": 2}
    rollout_task("HalfCheetah-v5", policy, ensemble, **about).write(RunFolder(tmp_path))
    with pytest.raises(
        InvalidInput, match=r"tubes of the closed loop, which never guard plans: run it with --plans"
    ):
        load_guard(tmp_path, ["forward velocity <= 3.2096"])


SCRIPT = """
import sys
from pathlib import Path

import cluster
import my_robot as own
import pac_rl
from pac_core import PACLevel


def main(engine, folder):
    few = {"fallback": own.brake, "horizon": 5, "tune": 40, "calibrate": 70, "preliminary": 32, "steps": 12}
    parts = (own.cart(), own.MODEL, ["position <= 1"], own.PLANNER)
    guard = pac_rl.fit_guard(*parts, **few, level=PACLevel(0.3, 0.05), folder=folder, engine=engine)
    about = {"steps": 8, "max_episodes": 70, "scales": (1.0,), "folder": folder, "engine": engine}
    guard.controller().certify(PACLevel(0.2, 0.1), **about)
    names = "plans/certificate-0.3-0.05.json", "controller-8.json"
    return [(Path(folder) / name).read_bytes() for name in names]


if __name__ == "__main__":
    here = main(None, "here")
    with cluster.connect("local", cpus=2) as engine:
        there = main(engine, "there")
    assert here == there, "other certificates on Ray"
"""


@pytest.mark.xdist_group("ray")
def test_modules_beside_the_script_travel_to_the_workers(tmp_path: Path) -> None:
    """By value: no worker imports the module, wherever it lies; and certificates are those of one process."""
    home, elsewhere, root = tmp_path / "home", tmp_path / "elsewhere", Path(__file__).parents[2]
    home.mkdir()
    elsewhere.mkdir()
    (home / "script.py").write_text(SCRIPT)
    shutil.copy(own.__file__, home / "my_robot.py")
    noted = "\nwith open(__file__ + '.imported', 'a') as file:\n    file.write('x')\n"
    with (home / "my_robot.py").open("a") as file:
        file.write(noted)
    env = os.environ | {"PYTHONPATH": str(root), "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, home / "script.py"],
        cwd=elsewhere,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (home / "my_robot.py.imported").read_text() == "x", "imported once, by the script"
