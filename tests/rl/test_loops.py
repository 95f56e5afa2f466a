"""PETS with a guard in the loop: fresh units for every model, and counts that add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pac_core import HalfSpace, InvalidInput, LinearFeatures, NotEnoughData, PACLevel, SecondLook
from pac_core.certificates import read_ledger
from pac_rl import Settings, execute, simulate, speed_limit
from pac_rl import pets as loops
from pac_rl import pets as replays_module
from pac_rl.pets import Loop, Round, Search, guarded_cem, replay, rest_policy, run_pets, score_episodes
from pac_rl.planning import cheetah_reward
from pac_rl.rollouts import Rollouts
from pac_rl.systems import Environment

SPEED = LinearFeatures(("speed",), np.eye(18)[:1])
TINY = Loop(
    rounds=2,
    episodes=1,
    random=10,
    steps=12,
    tune=60,
    calibrate=90,
    level=PACLevel(0.2, 0.1),
    search=Search(horizon=4, checked=3, population=20, iterations=2, elites=0.2),
    settings=Settings(members=2, hidden=16, layers=2, epochs=2, batch=32),
)
USUAL: Any = {"loop": TINY, "fallback": "hold"}


@pytest.fixture(scope="module")
def recorded(cheetah: Environment) -> Rollouts:
    at_rest = simulate(cheetah, rest_policy(cheetah), range(40, 44), horizon=1, burn_in=(0, 0))
    return execute(cheetah, at_rest, np.random.default_rng(0).uniform(-1, 1, size=(4, 15, 6)))


def test_a_replay_without_noise_repeats_what_was_recorded(
    cheetah: Environment, recorded: Rollouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the recorded episode's own reset; a plan that began a step too late would show other states."""
    monkeypatch.setattr(replays_module, "SPREADS", (0.0,))
    for row in range(4):
        unit = replay(cheetah, recorded.take([row]), recorded.seeds[[row]], horizon=5)
        begin = int(np.flatnonzero((recorded.actions[row] == unit.actions[0, 0]).all(axis=1))[0])
        assert np.array_equal(unit.states[0], recorded.states[row, begin : begin + 5])
        before = recorded.start[row] if begin == 0 else recorded.states[row, begin - 1]
        assert np.array_equal(unit.start[0], before)


def test_a_unit_is_a_function_of_its_seed(cheetah: Environment, recorded: Rollouts) -> None:
    seeds = np.arange(100, 140)
    whole, some = (replay(cheetah, recorded, part, horizon=5) for part in (seeds, seeds[7:9]))
    assert np.array_equal(whole.states[7:9], some.states)
    assert len(np.unique(whole.states[:, 0, 0])) == len(seeds), "a reset of its own"


def test_a_unit_that_diverges_is_kept_as_an_error(cheetah: Environment, recorded: Rollouts) -> None:
    broken = Rollouts(
        recorded.seeds,
        recorded.start,
        recorded.physics,
        np.full_like(recorded.states, np.inf),
        recorded.actions,
        recorded.lengths,
    )
    returns, violated = score_episodes(broken, (speed_limit(cheetah),), cheetah_reward)
    assert violated.all()
    assert (returns == 0).all()


def test_outcomes_by_hand(cheetah: Environment, recorded: Rollouts) -> None:
    fastest = recorded.states[..., 0].max(axis=1)
    bound = float(np.sort(fastest)[1])  # two of four stay at or below it
    limit = HalfSpace("speed", np.eye(18)[0], bound)
    returns, violated = score_episodes(recorded, (limit,), cheetah_reward)
    assert violated.tolist() == (fastest > bound).tolist()
    # The steps of a limit are those of a plan: in an episode every step is the first of one.
    first = HalfSpace("speed", np.eye(18)[0], bound, steps=(0,))
    assert score_episodes(recorded, (first,), cheetah_reward)[1].tolist() == violated.tolist()
    by_hand = recorded.states[..., 0].sum(axis=1) - 0.1 * (recorded.actions**2).sum(axis=(1, 2))
    assert returns == pytest.approx(by_hand)


def test_every_round_has_a_model_and_units_of_its_own(cheetah: Environment, tmp_path: Path) -> None:
    def go(ledger: str, **options: Any) -> Iterator[Round]:
        parts = (cheetah, (speed_limit(cheetah),), SPEED, cheetah_reward)
        return run_pets(*parts, ledger=tmp_path / ledger, **USUAL | options)

    found = list(go("a.json"))
    assert [one.predictor.threshold.level.delta for one in found] == [0.1 / 2, 0.1 / 6]
    assert [one.decisions for one in found] == [12, 12]
    assert not np.array_equal(found[0].collected.states, found[1].collected.states)
    first, second = read_ledger(tmp_path / "a.json")  # a shared unit would have been refused
    assert first.n == second.n == 90
    assert first.cost + second.cost < TINY.level.delta
    assert str(next(go("b.json"))) == str(found[0]), "all that is random comes from the seed"
    other = Loop(**{**vars(TINY), "settings": Settings(members=3, hidden=16, layers=2, epochs=2)})
    with pytest.raises(SecondLook):  # another model looks at units that were looked at before
        next(go("a.json", loop=other))


def test_outcomes_take_nothing_that_would_be_broadcast(cheetah: Environment) -> None:
    recorded = simulate(cheetah, rest_policy(cheetah, std=1.0), [1, 2], horizon=4, burn_in=(0, 0))
    with pytest.raises(InvalidInput, match=r"reward must be numbers of shape \(2, 4\), got \(2, 1\)"):
        score_episodes(recorded, (speed_limit(cheetah),), lambda states, actions: states[:, :1, 0])


def test_what_cannot_be_proved_is_refused_before_any_work() -> None:
    with pytest.raises(NotEnoughData):
        Loop(**{**vars(TINY), "rounds": 10_000})
    with pytest.raises(InvalidInput, match="checked must be at most horizon"):
        Search(horizon=4, checked=6)
    with pytest.raises(InvalidInput, match="steps must be at least the 4 of a plan"):
        Loop(**{**vars(TINY), "steps": 3})


def test_limits_of_some_steps_are_refused_before_any_work(
    cheetah: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = (replace(speed_limit(cheetah), steps=(2,)),)
    monkeypatch.setattr(loops, "simulate", None)
    with pytest.raises(InvalidInput, match=r"limits must hold at every step .* 'speed' with steps=\(2,\)"):
        next(run_pets(cheetah, later, SPEED, cheetah_reward, ledger=tmp_path / "l", **USUAL))
    with pytest.raises(InvalidInput, match="limits must hold at every step"):
        guarded_cem(cheetah, None, None, later, cheetah_reward, fallback="hold")  # type: ignore[arg-type]


def test_a_warm_start_needs_a_policy(cheetah: Environment, tmp_path: Path) -> None:
    warm: Any = USUAL | {"loop": Loop(**{**vars(TINY), "warm": 2})}
    with pytest.raises(InvalidInput, match="policy must be given for a warm start"):
        next(run_pets(cheetah, (speed_limit(cheetah),), SPEED, cheetah_reward, ledger=tmp_path / "l", **warm))
