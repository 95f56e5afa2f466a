"""Tasks on an engine: the same code for a half-cheetah and a hopper that falls; kept, resumed, refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pac_core import InvalidInput, PACLevel, evaluate, fit_tube
from pac_core.errors import OverlappingSplits, UnreadableFile
from pac_core.runs import Job, RunFolder, Task, View, certify_run, run_here
from pac_core.sets import Likelihood, score_units
from pac_rl import (
    Ensemble,
    Settings,
    execute,
    forecast_closed_loop,
    forecast_plans,
    make_environment,
    propose_plans,
    simulate,
    tasks,
)
from pac_rl.policies import SHIPPED, Function, Network, Policy
from pac_rl.systems.mujoco import Environment, never
from pac_rl.tasks import (
    StartGroups,
    read_rollouts,
    rl_task,
    rollout_task,
    train_ensemble,
    training_job,
    unit_seeds,
)

LEVEL = PACLevel(0.1, 1e-3)
SETTINGS = Settings(members=3, hidden=48, layers=3, epochs=3, batch=256, rate=5e-3)
SIZES: dict[str, Any] = {"tune": 60, "calibrate": 80, "test": 60}
SHORT: dict[str, Any] = {"horizon": 3, "burn_in": (0, 5)}


def finished(task: Task, folder: Path) -> RunFolder:
    place = RunFolder(folder)
    task.write(place)
    run_here(task.job, place)
    return place


def cheetah_task(policy: Policy, ensemble: Ensemble, **options: Any) -> Task:
    return rollout_task("HalfCheetah-v5", policy, ensemble, ensemble="made here", **SIZES | SHORT | options)


@pytest.fixture(scope="module")
def hopping() -> Network:
    """A policy that keeps a hopper up for a while: proportional control towards standing."""
    weight = torch.zeros(3, 11, dtype=torch.float64)
    for actuator, (joint, velocity) in enumerate([(2, 8), (3, 9), (4, 10)]):
        weight[actuator, joint], weight[actuator, velocity] = -1.0, -0.1
    zeros, ones = torch.zeros(11).double(), torch.ones(11).double()
    return Network((weight,), (zeros[:3],), ones[:3], zeros, ones, squash=False)


def test_a_hopper_that_falls_runs_through_the_same_code(tmp_path: Path, hopping: Network) -> None:
    model = train_ensemble(tmp_path, "Hopper-v5", hopping, SETTINGS, episodes=32, steps=60)
    about: Any = {"ensemble": "made here", "horizon": 15, "burn_in": (0, 30)}
    task = rollout_task("Hopper-v5", hopping, model, **about, **SIZES)
    results = task.results(finished(task, tmp_path / "closed"))
    tune, cal, (forecast, truth) = (results.gathered(part) for part in ("tune", "calibrate", "test"))
    assert 0.05 < (truth.lengths < 15).mean() < 0.95
    for shape in ("joint", "max", "box"):
        tube = fit_tube(*tune, *cal, LEVEL, shape=shape).tube(forecast)
        assert not evaluate(tube, truth, LEVEL).refuted
        # A rollout inside stays inside if it ends earlier: the promise runs until the end.
        inside = tube.contains(truth)
        cut = replace(truth, lengths=np.maximum(1, truth.lengths - 3))
        assert (tube.contains(cut) >= inside).all()
    plans = rollout_task("Hopper-v5", hopping, model, plans=True, tune=5, calibrate=5, test=5, **about)
    assert plans.results(finished(plans, tmp_path / "plans")).gathered("tune")[0].mean.shape == (5, 15, 12)


def test_propagations_and_plans_are_what_the_functions_say(
    tmp_path: Path,
    cheetah: Environment,
    policy: Network,
    ensemble: Ensemble,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One run holds several propagations side by side; any cut into shards gives the bits of one call."""
    monkeypatch.setattr(tasks, "UNITS", 128)  # two shards
    rollouts = simulate(cheetah, policy, range(200), **SHORT)
    planned = propose_plans(ensemble, cheetah, policy, rollouts.start, rollouts.seeds, horizon=3)
    done = execute(cheetah, rollouts, planned)
    for plans in (False, True):
        task = cheetah_task(policy, ensemble, plans=plans, also=("one-step",))
        results = task.results(finished(task, tmp_path / str(plans)))
        assert results.task.names.tolist() == [str(seed) for seed in range(200)]
        for kind, view in (("particles", View()), ("one-step", View(propagation="one-step"))):
            if plans:
                wanted = forecast_plans(ensemble, rollouts.start, planned, propagation=kind)
            else:
                parts = (ensemble, cheetah, policy, rollouts.start)
                wanted = forecast_closed_loop(*parts, horizon=3, propagation=kind)
            forecast, truth = results.gathered("calibrate", view)
            rows = results.parts.calibrate.rows
            np.testing.assert_array_equal(forecast.mean, wanted.mean[rows])
            np.testing.assert_array_equal(forecast.var, wanted.var[rows])
            np.testing.assert_array_equal(truth.states, (done if plans else rollouts).states[rows])
    with pytest.raises(InvalidInput, match="the run holds no forecasts by another; run it with them"):
        results.gathered("tune", View(propagation="another"))


def test_a_run_is_certified_under_the_names_of_its_units(
    tmp_path: Path, policy: Network, ensemble: Ensemble
) -> None:
    task = cheetah_task(policy, ensemble)
    folder = finished(task, tmp_path / "run")
    made, [finding] = certify_run(task, folder, [LEVEL], tmp_path / "ledger.json")
    assert finding.certificate.unit == "rollout"
    assert finding.certificate.model.digest == "made here"
    assert finding.certificate.parts["train"].n == len(ensemble.trained_on)
    assert made.look.n == 80


def test_units_and_training_are_disjoint(policy: Network) -> None:
    units = [set(unit_seeds(**SIZES, seed=seed)) for seed in (0, 1)]
    jobs = [training_job("HalfCheetah-v5", policy, episodes=64, seed=seed) for seed in (0, 1)]
    seen = [{seed for shard in job.shards for seed in shard.ids} for job in jobs]
    assert [len(part) for part in (*units, *seen)] == [200, 200, 64, 64]
    assert len(set.union(*units, *seen)) == 2 * 200 + 2 * 64


def test_an_ensemble_that_has_seen_units_is_refused(policy: Network, ensemble: Ensemble) -> None:
    with pytest.raises(OverlappingSplits, match="share 1 units"):
        cheetah_task(policy, replace(ensemble, trained_on=np.arange(199, 900)))
    assert cheetah_task(policy, replace(ensemble, trained_on=np.arange(200, 900))).job.units == 200


def trained(folder: Path, policy: Network, **options: Any) -> Ensemble:
    usual: Any = {"episodes": 24, "steps": 30, "settings": replace(SETTINGS, hidden=16, epochs=2)}
    return train_ensemble(folder, "HalfCheetah-v5", policy, **usual | options)


def test_training_is_part_of_a_run_and_goes_on_where_it_was_stopped(
    tmp_path: Path, policy: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted while it rolls out, and again between two epochs, it comes to the same weights."""
    first = trained(tmp_path / "whole", policy)
    assert first.trained_on.tolist() == list(range(10**9, 10**9 + 24))
    monkeypatch.setattr(tasks, "UNITS", 8)  # three shards instead of one
    calls: list[str] = []

    def stopping(job: Job, folder: RunFolder) -> None:
        calls.append(job.name)
        run_here(job, folder, limit=1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        run_here(job, folder)

    def stop(epoch: object) -> None:
        raise KeyboardInterrupt

    part = tmp_path / "part"
    with pytest.raises(KeyboardInterrupt):
        trained(part, policy, engine=stopping)
    kept = set((part / "model" / "episodes" / "shards").iterdir())
    with pytest.raises(KeyboardInterrupt):
        trained(part, policy, engine=stopping, progress=stop)
    assert kept < set((part / "model" / "episodes" / "shards").iterdir())
    said: list[str] = []
    again = trained(part, policy, engine=stopping, progress=lambda epoch: said.append(str(epoch)))
    assert len(said) == 1, "the first epoch is not done again"
    monkeypatch.setattr(tasks, "train", None)
    for model in (again, trained(part, policy, engine=stopping)):
        for name, tensor in first.network.state_dict().items():
            assert torch.equal(tensor, model.network.state_dict()[name])
    assert not list((part / "model").glob("*-training*"))


def test_training_episodes_have_more_noise_from_quarter_to_quarter(tmp_path: Path, policy: Network) -> None:
    job = training_job("HalfCheetah-v5", policy, episodes=24, steps=30)
    run_here(job, RunFolder(tmp_path))
    done = read_rollouts(job, RunFolder(tmp_path))
    quarters = done.actions.reshape(4, -1)
    alone = simulate(make_environment(), policy, done.seeds[:12], horizon=30, burn_in=(0, 0))
    np.testing.assert_array_equal(done.states[:12], alone.states)
    assert quarters[0].std() < quarters[2].std() < quarters[3].std()


def test_a_model_of_another_run_is_refused(tmp_path: Path, policy: Network) -> None:
    model = trained(tmp_path, policy)
    file = tmp_path / "model" / "ensemble.safetensors"
    with pytest.raises(InvalidInput, match=r"episodes belongs to another run: .*Choose another"):
        trained(tmp_path, policy, seed=1)
    with pytest.raises(InvalidInput, match="was trained with other settings: remove it"):
        trained(tmp_path, policy, settings=SETTINGS)
    replace(model, trained_on=None).save(file)
    with pytest.raises(InvalidInput, match=r"does not say which rollouts .* remove it"):
        trained(tmp_path, policy)
    with pytest.raises(InvalidInput, match="--ensemble must be given where the run folder is a URL"):
        trained("memory://run", policy)  # type: ignore[arg-type]


def test_forecasts_of_another_ensemble_are_not_taken_for_its_own(
    tmp_path: Path, policy: Network, ensemble: Ensemble
) -> None:
    finished(cheetah_task(policy, ensemble), tmp_path)
    other = replace(ensemble, units=2 * ensemble.units)
    with pytest.raises(InvalidInput, match="belongs to another run"):
        cheetah_task(policy, other).write(RunFolder(tmp_path))


def test_units_on_which_the_ensemble_explodes_count_as_errors(
    tmp_path: Path, policy: Network, ensemble: Ensemble
) -> None:
    task = cheetah_task(policy, replace(ensemble, units=torch.full_like(ensemble.units, 3e38)))
    results = task.results(finished(task, tmp_path))
    with pytest.raises(InvalidInput, match="tune must have a unit that did not fail, got 60 that did"):
        results.gathered("tune")
    forecast, truth = results.gathered("calibrate", failed=True)
    assert forecast.failed.all()
    assert np.isinf(score_units(Likelihood(), forecast, truth)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 0}, "horizon must be a whole number from 1 .*got 0"),
        ({"test": 0}, "test must be a whole number from 1 .*got 0"),
        ({"tune": -1}, "tune must be a whole number from 1 .*got -1"),
        ({"seed": -1}, "seed must be a whole number from 0 .*got -1"),
        ({"calibrate": 320.0}, r"calibrate must be a whole number from 1 .*got 320\.0"),
        ({"burn_in": (0, 1.5)}, r"burn_in must be a whole number from 0 .*got 1\.5"),
        ({"burn_in": (5, 1)}, r"burn_in must be \(least, most\) steps, the least first, got \(5, 1\)"),
        ({"burn_in": 5}, r"burn_in must be \(least, most\) steps, .* got 5"),
        ({"seed": 5 * 10**9}, "seed must be at most 4,611,686,017, so that units have seeds, got 5000000000"),
        ({"tune": 10**9}, "units must be fewer than 1,000,000,000"),
        ({"env": "Nowhere-v5"}, "id and options must be what Gymnasium can make: .*Nowhere"),
        ({"env": "Hopper-v5"}, "a policy for Hopper-v5 that sees the observation must have 11 inputs"),
        ({"policy": Path("nowhere.npz")}, "there is no policy file nowhere.npz"),
        ({"policy_std": -1.0}, r"std must be a number of at least 0, got -1\.0"),
        ({"propagation": "magic"}, "propagation must be one of one-step, particles, got 'magic'"),
    ],
)
def test_bad_options_are_refused_before_anything_is_trained(change: dict[str, Any], message: str) -> None:
    usual: Any = {"env": "HalfCheetah-v5", "policy": SHIPPED, "propagation": "particles", "members": ()}

    def never_made() -> Path:
        raise AssertionError("trained")

    with pytest.raises((InvalidInput, UnreadableFile), match=message):
        rl_task(ensemble=never_made, **usual | SIZES | SHORT | {"seed": 0} | change)


def pendulum() -> Environment:
    names = ("cart", "pole", "cart velocity", "pole velocity")
    return make_environment(
        "InvertedPendulum-v5", observe=lambda gym, before, after: after[:, 1:5], names=names, ends=never
    )


def push(gain: float) -> Function:
    return Function(lambda seen: gain * seen[:, 1:2] + seen[:, 3:4], 4, 1, std=0.3)


def test_a_robot_and_a_policy_of_ones_own(tmp_path: Path) -> None:
    """Nothing of the half-cheetah is needed: no known id, no policy file, none of its names."""
    few: Any = {"tune": 64, "calibrate": 100, "test": 64, "horizon": 4, "burn_in": (0, 5)}

    def made(gain: float, robot: Callable[[], Environment] = pendulum) -> Task:
        model = train_ensemble(tmp_path, robot, push(gain), SETTINGS, episodes=16, steps=100)
        return rollout_task(robot, push(gain), model, ensemble="made here", **few)

    task = made(3.0)
    folder = finished(task, tmp_path / "run")
    assert folder.configuration()["env"] == "InvertedPendulum-v5"
    _, [finding] = certify_run(task, folder, [LEVEL], tmp_path / "ledger.json")
    assert not finding.evaluation.refuted
    made(3.0).write(folder)  # the folder knows them again by their content
    with pytest.raises(InvalidInput, match="belongs to another run"):
        made(3.1)


def test_starts_are_grouped_by_a_number_of_the_state() -> None:
    robot = make_environment("HalfCheetah-v5")
    groups = StartGroups.parse(robot, "forward velocity=1,3")
    names = groups(np.array([[v] + [9.0] * 17 for v in (0.0, 1.0, 2.9, 3.0)])).tolist()
    assert names == [f"forward velocity {part}" for part in ("below 1", "1 to 3", "1 to 3", "from 3")]
    for text in ("speed=1", "forward velocity", "forward velocity=2,1", "forward velocity=nan", "rootz=x"):
        with pytest.raises(InvalidInput, match="--group must be one of"):
            StartGroups.parse(robot, text)
