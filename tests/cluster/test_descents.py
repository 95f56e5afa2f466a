"""A descent whose episodes run through the engine: every planned episode once, and the counts that follow."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_scorers as toys

from cluster.engine import run
from pac_core import InvalidInput, PACLevel
from pac_core.certificates import Descent, descend
from pac_core.runs import Job, RunFolder, Stage, episodes_through, run_here

PLAN = Descent(
    scales=(3.0, 2.0, 1.0),
    n=100,
    allowed=0,
    level=PACLevel(0.05, 0.01),
    episodes=np.arange(1000, 1300).reshape(3, 100),
    error="a limit is broken",
    tested={"controller": "toy"},
)


def stage(scale: float) -> Stage:
    """No errors at the two wider scales, seven in a hundred at the last."""
    return Stage(toys.Episodes, (7 if scale < 2 else 0,))


@pytest.mark.xdist_group("ray")
@pytest.mark.usefixtures("engine")
def test_on_ray_and_here_the_same_scale_is_certified(tmp_path: Path) -> None:
    for name, launch in (("ray", partial(run, workers=(2, 2))), ("here", run_here)):
        through = episodes_through(launch, stage, str(tmp_path / name), size=8, controller=PLAN.controller)
        done = descend(PLAN, through, ledger=tmp_path / f"{name}.json")
        assert done.certified == 2.0
        assert [trial.errors for trial in done.trials] == [0, 0, 7]
    ray, here = (sorted(path.name for path in (tmp_path / name).rglob("*.arrow")) for name in ("ray", "here"))
    assert ray == here
    assert len(ray) == 3 * 13


def test_errors_are_in_the_order_of_the_episodes(tmp_path: Path) -> None:
    """Ids in any order; a shard read at another's place would move the errors."""
    ids = np.random.default_rng(0).permutation(PLAN.episodes[0])
    through = episodes_through(run_here, lambda scale: Stage(toys.Episodes, (30,)), str(tmp_path), size=7)
    assert through(1.0, ids).tolist() == (ids % 100 < 30).tolist()


def test_finished_episodes_are_not_run_again(tmp_path: Path) -> None:
    begun: list[int] = []

    def counted(job: Job, folder: RunFolder, **options: Any) -> None:
        done = run_here(job, folder, limit=None if begun else 4)
        begun.append(done.done - done.ready)

    through = episodes_through(counted, stage, str(tmp_path), size=10)
    with pytest.raises(Exception, match="lacks 6 of 10 shards"):
        through(3.0, PLAN.episodes[0])
    assert through(3.0, PLAN.episodes[0]).sum() == 0
    assert begun == [40, 60]


def test_a_folder_of_another_controller_is_refused(tmp_path: Path) -> None:
    episodes_through(run_here, stage, str(tmp_path), size=10, controller="a")(3.0, PLAN.episodes[0])
    with pytest.raises(InvalidInput, match="belongs to another run: it has controller 'a' and not 'b'"):
        episodes_through(run_here, stage, str(tmp_path), size=10, controller="b")(3.0, PLAN.episodes[0])


SEQUENTIAL = Descent(
    scales=(2.0, 1.0),
    n=400,
    level=PACLevel(0.05, 0.01),
    episodes=np.arange(1000, 1800).reshape(2, 400),
    error="a limit is broken",
    tested={"controller": "toy"},
)


@pytest.mark.xdist_group("ray")
@pytest.mark.usefixtures("engine")
def test_on_ray_it_stops_early_and_a_killed_driver_goes_on(tmp_path: Path) -> None:
    """The first shards are computed side by side, later ones never begun, and none is computed twice."""
    begun: list[int] = []

    def launch(job: Job, folder: RunFolder, *, limit: int) -> None:
        if not begun:
            begun.append(run(job, folder, workers=(2, 2), limit=limit // 2).finished)
            raise KeyboardInterrupt
        state = run(job, folder, workers=(2, 2), limit=limit)
        begun.append(state.finished - state.ready // 8)

    def erring(scale: float) -> Stage:
        return Stage(toys.Episodes, (1 if scale > 1 else 9,))

    through = episodes_through(launch, erring, str(tmp_path / "ray"), size=8, plan=SEQUENTIAL)
    with pytest.raises(KeyboardInterrupt):
        descend(SEQUENTIAL, through, ledger=tmp_path / "ledger")
    shown = descend(SEQUENTIAL, through, ledger=tmp_path / "ledger")
    here = episodes_through(run_here, erring, str(tmp_path / "here"), size=8, plan=SEQUENTIAL)
    assert shown.errors == descend(SEQUENTIAL, here, ledger=tmp_path / "other").errors
    assert shown.certified == 2.0
    assert shown.trials[1].passed is False
    for scale in ("2.0", "1.0"):
        ray, twin = (
            len([*(tmp_path / name / f"scale-{scale}").rglob("*.arrow")]) for name in ("ray", "here")
        )
        assert ray == twin < 50, "as many shards as it took, not all 50"
    assert sum(begun) == len([*(tmp_path / "ray").rglob("*.arrow")]), "each shard was computed once"


def test_outcomes_of_another_controller_are_refused_though_nothing_is_missing(tmp_path: Path) -> None:
    def through(name: str) -> Any:
        usual: Any = {"size": 8, "plan": SEQUENTIAL, "controller": name}
        return episodes_through(run_here, stage, str(tmp_path), **usual)

    through("a")(2.0, SEQUENTIAL.episodes[0][:105])
    with pytest.raises(InvalidInput, match="belongs to another run"):
        through("b")(2.0, SEQUENTIAL.episodes[0][:105])
