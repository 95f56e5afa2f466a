"""The guard's model learns from episodes of the planner, none of which is a unit of anything else."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pac_core import InvalidInput, OverlappingSplits
from pac_rl import Design, Study
from pac_rl.designs import TRAINING_SEEDS
from pac_rl.ensembles import Ensemble, Settings
from pac_rl.guard_studies import GOVERNED, PARTS, PLANNED, TASKS, GuardStudy, Sizes

SETTINGS = Settings(members=2, hidden=16, layers=2, epochs=1, batch=128)
TINY = Design.smoke(episodes=40, episode_steps=30, settings=SETTINGS)
SMALL = Sizes(steps=10, governed=GOVERNED[:2], planned=PLANNED[::5], epochs=2)


def test_no_episode_has_two_uses(tmp_path: Path) -> None:
    """What the model was trained on is no unit, and not tuned, compared or certified on; a million each."""
    study = Study(Design(), tmp_path, quiet=True)
    uses = [study.seeds, study.seeds[0] + TRAINING_SEEDS + np.arange(study.design.episodes)]
    for task in TASKS:
        guards = GuardStudy(study, task)
        uses += [guards.seeds(part, 10**6) for part in PARTS]
    uses += [guards.training_seeds("governed", i) for i in range(len(GOVERNED))]
    uses += [guards.training_seeds("planned", i) for i in range(len(PLANNED))]
    ends = sorted((int(part[0]), int(part[-1])) for part in uses)
    assert all(np.ptp(part) == len(part) - 1 for part in uses), "each is a range of its own"
    assert all(last < first for (_, last), (first, _) in pairwise(ends))
    of_training = sum(len(part) for part in uses[2 + len(TASKS) * len(PARTS) :])
    assert of_training + study.design.episodes // 4 == study.design.episodes, "the budget is the same"


def test_the_model_learns_from_the_planner_and_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards = GuardStudy(Study(TINY, tmp_path / "whole", quiet=True), "speed", SMALL)
    made = guards.ensemble
    first = Ensemble.load(tmp_path / "whole" / "guard_first.safetensors")
    assert made.trained_on is not None
    assert len(made.trained_on) == TINY.episodes, "every training episode, the planner's too, is remembered"
    for part in PARTS:
        made.refuse_seen(guards.seeds(part, 1000))
    assert (len(first.history), len(made.history)) == (SETTINGS.epochs, SMALL.epochs)
    # 10 episodes of the policy, 20 governed and 10 planned, of 30 steps: more than the first has seen.
    assert not np.array_equal(first.shift.numpy(), made.shift.numpy())
    stopped = tmp_path / "stopped"

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(GuardStudy, "_planned", interrupted)
        with pytest.raises(KeyboardInterrupt):
            GuardStudy(Study(TINY, stopped, quiet=True), "speed", SMALL).ensemble  # noqa: B018
    before = (stopped / "guard_first.safetensors").stat().st_mtime_ns
    again = GuardStudy(Study(TINY, stopped, quiet=True), "speed", SMALL).ensemble
    assert (stopped / "guard_first.safetensors").stat().st_mtime_ns == before, "not trained again"
    for name, tensor in made.tensors().items():
        np.testing.assert_array_equal(tensor.numpy(), again.tensors()[name].numpy(), err_msg=name)


def test_the_planner_keeps_the_predicted_mean_below_its_limit(tmp_path: Path) -> None:
    """What the model learns from are the planner's episodes: with a limit that nothing keeps, it holds."""
    study = Study(TINY, tmp_path, quiet=True)
    guards = GuardStudy(study, "speed", Sizes(governed=GOVERNED[:2], planned=(((1, "factor"), 100.0),)))
    first = Ensemble.load(_trained(guards, tmp_path))
    held = guards._planned(first)
    assert len(held.states) == TINY.episodes // 4 * TINY.episode_steps
    assert not held.actions.any()


def _trained(guards: GuardStudy, folder: Path) -> Path:
    guards._trained("guard_first", guards._near_the_limit(), SETTINGS)
    return folder / "guard_first.safetensors"


def test_tubes_are_not_fitted_on_what_the_model_was_trained_on(tmp_path: Path) -> None:
    study = Study(TINY, tmp_path, quiet=True)
    guards = GuardStudy(study, "speed", SMALL)
    guards._trained("guard_ensemble", guards._near_the_limit(), SETTINGS)
    file = tmp_path / "guard_ensemble.safetensors"
    replace(Ensemble.load(file), trained_on=guards.seeds("tubes", 1)).save(file)
    with pytest.raises(OverlappingSplits, match="'train' and 'tubes'"):
        guards.tubes(shape="joint")
    replace(Ensemble.load(file), trained_on=None).save(file)
    with pytest.raises(InvalidInput, match="does not say which rollouts"):
        GuardStudy(study, "speed", SMALL).ensemble  # noqa: B018
