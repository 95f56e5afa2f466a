"""A whole study: the same code for the half-cheetah and for a hopper that falls; kept, resumed, refused."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pac_core import (
    InvalidInput,
    Likelihood,
    NotEnoughData,
    OverlappingSplits,
    PACLevel,
    UnreadableFile,
    evaluate,
    fit_tube,
    max_errors,
)
from pac_rl import Design, Ensemble, Environment, Function, Network, Study, make_environment, save_policy
from pac_rl import studies as module
from pac_rl.environments import never
from pac_rl.experiments import Fitted, fit_box
from pac_rl.reports import Report, opened

LEVEL = PACLevel(0.1, 1e-3)


@pytest.fixture(scope="module")
def hopping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that keeps a hopper up for a while: proportional control towards standing."""
    weight = torch.zeros(3, 11, dtype=torch.float64)
    for actuator, (joint, velocity) in enumerate([(2, 8), (3, 9), (4, 10)]):
        weight[actuator, joint], weight[actuator, velocity] = -1.0, -0.1
    path = tmp_path_factory.mktemp("policies") / "hopper.npz"
    zeros, ones = torch.zeros(11).double(), torch.ones(11).double()
    save_policy(Network((weight,), (zeros[:3],), ones[:3], zeros, ones, squash=False), path)
    return path


def test_a_hopper_that_falls_runs_through_the_same_code(tmp_path: Path, hopping: Path) -> None:
    design = Design.smoke(env="Hopper-v5", policy=str(hopping), horizon=15, burn_in=(0, 60))
    study = Study(design, tmp_path, quiet=True)
    case = study.closed_loop()
    ended = case.truth.lengths < 15
    assert 0.05 < ended.mean() < 0.95
    tune, cal, (forecast, truth) = (case.part(name) for name in ("tune", "calibrate", "test"))
    for shape in ("joint", "max", "box"):
        tube = fit_tube(*tune, *cal, LEVEL, shape=shape).tube(forecast)
        assert not evaluate(tube, truth, LEVEL).refuted
        # A rollout inside stays inside if it ends earlier: the promise runs until the end.
        inside = tube.contains(truth)
        cut = replace(truth, lengths=np.maximum(1, truth.lengths - 3))
        assert (tube.contains(cut) >= inside).all()
    plans = study.given_plans()
    assert plans.forecast.mean.shape == (design.units, 15, 12)


def test_the_parts_are_disjoint_from_each_other_and_from_the_training(tmp_path: Path) -> None:
    study = Study(Design.smoke(), tmp_path, quiet=True)
    parts = [set(study.seeds[part.rows].tolist()) for part in study.parts]
    assert [len(part) for part in parts] == [256, 320, 256]
    assert len(set.union(*parts)) == 832
    assert not set(study.episodes.seeds.tolist()) & set.union(*parts)
    other = Study(Design.smoke(seed=1), tmp_path / "other", quiet=True)
    assert not set(other.seeds.tolist()) & set(study.seeds.tolist())


def test_an_ensemble_that_has_seen_units_is_refused(tmp_path: Path, ensemble: Ensemble) -> None:
    """One that was put into the folder, or is of an earlier version, which did not keep its seeds."""
    for seen, kind, said in (
        (np.arange(831, 900), OverlappingSplits, "share 1 units"),
        (None, InvalidInput, "ensemble.safetensors does not say which rollouts .* remove it"),
    ):
        study = Study(Design.smoke(), tmp_path, quiet=True)
        replace(ensemble, trained_on=seen).save(study.folder / "ensemble.safetensors")
        with pytest.raises(kind, match=said):
            study.closed_loop()
    replace(ensemble, trained_on=np.arange(832, 900)).save(study.folder / "ensemble.safetensors")
    assert Study(Design.smoke(), tmp_path, quiet=True).ensemble.trained_on is not None


def test_an_interrupted_study_goes_on_and_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four parts, two at a time; interrupted in the second two, it is finished with other threads."""
    monkeypatch.setattr(module, "PART", 512)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    design = Design.smoke(tune=600, calibrate=600, test=400, horizon=3, burn_in=(0, 5))
    whole = Study(design, tmp_path / "whole", quiet=True).rollouts
    simulate, calls = module.simulate, []

    def dies(*args: object, **options: Any) -> object:
        calls.append(len(options["seeds"]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return simulate(*args, **options)

    monkeypatch.setattr(module, "simulate", dies)
    with pytest.raises(KeyboardInterrupt):
        Study(design, tmp_path / "part", quiet=True).rollouts  # noqa: B018
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    resumed = Study(design, tmp_path / "part", quiet=True).rollouts
    assert calls == [1024, 576, 512, 64]  # what was kept is not done again
    for name in ("seeds", "start", "states", "actions", "lengths"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name))
    Study(design, tmp_path / "part", quiet=True).rollouts  # noqa: B018
    assert len(calls) == 4


def test_the_ensemble_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    design = Design.smoke()
    first = Study(design, tmp_path, quiet=True).ensemble
    monkeypatch.setattr(module, "train", None)
    again = Study(design, tmp_path, quiet=True).ensemble
    for name, tensor in first.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name])
    assert not list(tmp_path.glob("training*"))


def test_forecasts_of_another_ensemble_are_not_taken_for_its_own(tmp_path: Path) -> None:
    design = Design.smoke()
    first = Study(design, tmp_path / "a", quiet=True).closed_loop("one-step")
    other = Study(replace(design, settings=replace(design.settings, seed=9)), tmp_path / "b", quiet=True)
    other.ensemble.save(tmp_path / "a" / "ensemble.safetensors")
    second = Study(design, tmp_path / "a", quiet=True).closed_loop("one-step")
    assert (first.forecast.mean != second.forecast.mean).any()
    np.testing.assert_array_equal(first.truth.states, second.truth.states)


def test_a_study_says_and_keeps_on_which_units_the_ensemble_explodes(
    tmp_path: Path, ensemble: Ensemble, capsys: pytest.CaptureFixture[str]
) -> None:
    design = Design.smoke(horizon=2, burn_in=(0, 3))
    study = Study(design, tmp_path)
    replace(ensemble, units=torch.full_like(ensemble.units, 3e38)).save(tmp_path / "ensemble.safetensors")
    assert study.closed_loop("one-step").forecast.failed.all()
    said = "closed loop, one-step: the ensemble explodes on 832 of 832 units, which count as errors"
    assert said in capsys.readouterr().out
    again = Study(design, tmp_path, quiet=True).closed_loop("one-step")
    assert again.forecast.failed.all()
    with pytest.raises(InvalidInput, match="tune must have a unit that did not fail, got 256 that did"):
        fit_box(again, LEVEL)
    assert np.isinf(Fitted.of(Likelihood(), again).scores).all()


def test_a_folder_of_another_design_is_refused(tmp_path: Path) -> None:
    Study(Design.smoke(), tmp_path, quiet=True)
    Study(Design.smoke(), tmp_path, quiet=True)
    with pytest.raises(InvalidInput, match="belongs to a study with another horizon, seed; choose another"):
        Study(Design.smoke(horizon=5, seed=3), tmp_path, quiet=True)
    (tmp_path / "design.json").write_text('{"env": ')
    with pytest.raises(UnreadableFile, match="is cut off or damaged"):
        Study(Design.smoke(), tmp_path, quiet=True)


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
        ({"burn_in": 5}, r"burn_in must be \(least, most\) steps, got 5"),
        ({"seed": 5 * 10**9}, "seed must be at most 4,611,686,017, so that units have seeds, got 5000000000"),
        ({"tune": 10**9}, "units and episodes must be fewer than 1,000,000,000"),
        ({"env": "Ant-v5"}, "for another, as 'Ant-v5', give observe"),
        ({"env": "Hopper-v5"}, "a policy for Hopper-v5 that sees the observation must have 11 inputs"),
        ({"policy": "nowhere.npz"}, "there is no policy file nowhere.npz"),
        ({"policy_std": -1.0}, r"std must be a number of at least 0, got -1\.0"),
        ({"epsilon": 0.0}, "epsilon must"),
    ],
)
def test_bad_designs_are_refused_before_any_work(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises((InvalidInput, UnreadableFile), match=message):
        Study(Design.smoke(**change), tmp_path / "none", quiet=True)
    assert not (tmp_path / "none").exists()


def test_the_noise_of_the_policy_can_be_given(tmp_path: Path) -> None:
    study, report = opened(None, ["--smoke-test", "--policy-std", "0.3", "--out", str(tmp_path)])
    assert study.design == Design.smoke(policy_std=0.3)
    assert study.policy.std.tolist() == [0.3] * 6
    assert report.folder == tmp_path / "results"
    with pytest.raises(InvalidInput, match="belongs to a study with another policy_std"):
        Study(Design.smoke(), tmp_path)


def pendulum() -> Environment:
    names = ("cart", "pole", "cart velocity", "pole velocity")
    return make_environment(
        "InvertedPendulum-v5", observe=lambda gym, before, after: after[:, 1:5], names=names, ends=never
    )


def push(gain: float) -> Function:
    return Function(lambda seen: gain * seen[:, 1:2] + seen[:, 3:4], 4, 1, std=0.3)


def test_a_robot_and_a_policy_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the half-cheetah is needed: no known id, no policy file, none of its names."""
    design = Design.smoke(tune=64, calibrate=100, test=64, horizon=4, burn_in=(0, 5), episodes=16)
    own: Any = {"environment": pendulum(), "policy": push(3.0), "quiet": True}
    study = Study(design, tmp_path, **own)
    assert study.source.startswith("InvertedPendulum-v5, policy ")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    shapes = importlib.import_module("halfcheetah_shapes")
    cases = study.closed_loop("one-step"), study.closed_loop()
    rows = shapes.compare(study, Report(tmp_path / "results"), "closed", *cases)
    assert [row["shape"] for row in rows] == ["joint", "max", "box"]
    assert all(row["refuted"] == "no" for row in rows)
    assert not [name for name in rows[0] if "velocity" in name]
    # The folder knows them again by what they do.
    Study(design, tmp_path, **own)
    Study(design, tmp_path, **own | {"environment": pendulum(), "policy": push(3.0)})
    with pytest.raises(InvalidInput, match="belongs to a study with another behaviour;"):
        Study(design, tmp_path, **own | {"policy": push(3.1)})
    with pytest.raises(InvalidInput, match="with another policy, behaviour;"):
        Study(replace(design, policy=str(pushing(tmp_path))), tmp_path, **own | {"policy": None})
    with pytest.raises(InvalidInput, match="policy_std must be None where a policy is given"):
        Study(replace(design, policy_std=0.1), tmp_path, **own)


def pushing(folder: Path) -> Path:
    """A policy for the pendulum, in a file."""
    zeros, ones = torch.zeros(4).double(), torch.ones(4).double()
    policy = Network((ones[None],), (zeros[:1],), zeros[:1], zeros, ones, squash=False)
    save_policy(policy, folder / "pendulum.npz")
    return folder / "pendulum.npz"


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="device must be one that torch has here, got 'abacus'"):
        Study(Design.smoke(), tmp_path / "none", device="abacus")
    assert not (tmp_path / "none").exists()


def test_too_few_rollouts_for_the_level_say_how_many_more(tmp_path: Path) -> None:
    with pytest.raises(NotEnoughData, match=r"1,146 are needed \(826 more\)"):
        Study(Design.smoke(epsilon=0.01, delta=1e-5), tmp_path / "none", quiet=True)
    assert not (tmp_path / "none").exists()


def test_the_default_is_the_papers() -> None:
    design = Design()
    assert (design.horizon, design.calibrate, design.epsilon, design.delta) == (20, 5000, 0.01, 1e-5)
    assert max_errors(design.calibrate, design.level) == 22
