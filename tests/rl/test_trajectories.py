"""Rollouts depend on their seed and on nothing else; ends and divergences are recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from pac_core import InvalidInput
from pac_rl import execute, load_policy, make_environment, simulate
from pac_rl.policies import Function, Network, Policy
from pac_rl.systems import Environment

OPTIONS = {"horizon": 6, "burn_in": (0, 15), "batch": 32}


def deep(inputs: int = 17, outputs: int = 6) -> Network:
    """A policy of wide layers, whose last digits depend on the batch."""
    drawn = torch.Generator().manual_seed(0)
    sizes = [(64, inputs), (64, 64), (outputs, 64)]
    return Network(
        weights=tuple(torch.randn(size, generator=drawn).double() / 8 for size in sizes),
        biases=tuple(torch.zeros(size[0]).double() for size in sizes),
        std=torch.full((outputs,), 0.3).double(),
        shift=torch.zeros(inputs).double(),
        scale=torch.ones(inputs).double(),
    )


@pytest.mark.parametrize("make", [load_policy, deep])
def test_a_rollout_depends_on_its_seed_alone(cheetah: Environment, make: type[Policy]) -> None:
    """Any order, grouping and number of threads gives the same bits."""
    policy = make()
    whole = simulate(cheetah, policy, range(70), threads=2, **OPTIONS)
    order = np.random.default_rng(0).permutation(70)
    shuffled = simulate(cheetah, policy, order, threads=1, **OPTIONS)
    alone = simulate(cheetah, policy, [41], threads=1, **OPTIONS)
    for name in ("start", "physics", "states", "actions", "lengths"):
        np.testing.assert_array_equal(getattr(shuffled, name), getattr(whole, name)[order])
        np.testing.assert_array_equal(getattr(alone, name)[0], getattr(whole, name)[41])
    assert len(np.unique(whole.states[:, 0, 0])) == 70  # every seed is another rollout


def test_the_record_is_what_happened(cheetah: Environment, policy: Network) -> None:
    """The recorded actions, carried out blindly from the recorded start, lead to the recorded states."""
    rollouts = simulate(cheetah, policy, range(40), **OPTIONS)
    again = execute(cheetah, rollouts, rollouts.actions)
    np.testing.assert_array_equal(again.states, rollouts.states)
    # The first action is the policy's, in the recorded start with the noise of the seed.
    noise = []
    for seed in range(40):
        draw = np.random.default_rng(seed)
        before = draw.integers(0, 16)
        noise.append(draw.standard_normal((before + 6, 6))[before])
    wanted = policy(torch.from_numpy(rollouts.start[:, 1:]), torch.tensor(np.array(noise))).clamp(-1, 1)
    np.testing.assert_allclose(rollouts.actions[:, 0], wanted.numpy(), atol=1e-12)


def test_without_burn_in_a_rollout_starts_at_gymnasiums_reset(cheetah: Environment, policy: Network) -> None:
    rollouts = simulate(cheetah, policy, [5], horizon=1, burn_in=(0, 0), batch=4)
    draw = np.random.default_rng(5)
    draw.integers(0, 1), draw.standard_normal((1, 6))
    observed, _ = gymnasium.make("HalfCheetah-v5").reset(seed=int(draw.integers(2**31)))
    np.testing.assert_array_equal(rollouts.start[0], [0.0, *observed])


def test_the_burn_in_is_spread_over_its_range(cheetah: Environment) -> None:
    rollouts = simulate(cheetah, deep(), range(64), horizon=1, burn_in=(3, 9), batch=64)
    steps = np.rint(rollouts.physics[:, 0] / cheetah.dt).astype(int)
    assert set(steps) == set(range(3, 10))


def test_an_episode_that_ends_is_recorded_until_its_end() -> None:
    """The hopper falls; its last state is the fall itself, and its start is never a fall."""
    hopper = make_environment("Hopper-v5")
    rollouts = simulate(hopper, deep(11, 3), range(64), horizon=30, burn_in=(0, 60), batch=64)
    ended = rollouts.lengths < 30
    assert 5 < ended.sum() < 64
    assert not rollouts.failed.any()
    assert not hopper.ends(hopper.gym, rollouts.physics).any()
    for unit in np.flatnonzero(ended):
        last = rollouts.lengths[unit]
        heights, angles = rollouts.states[unit, :last, 1], rollouts.states[unit, :last, 2]
        healthy = (heights > 0.7) & (abs(angles) < 0.2)
        assert healthy[:-1].all()
        assert not healthy[-1]
        assert not rollouts.states[unit, last:].any()
    truth = rollouts.truth
    assert np.isnan(truth.marked()[ended, -1]).all()


def test_a_diverging_simulation_is_infinite_from_there_on(
    cheetah: Environment, policy: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log to the working directory
    rollouts = simulate(cheetah, policy, range(4), **OPTIONS)
    physics = rollouts.physics.copy()
    physics[1, 10:] = 1e12
    done = execute(cheetah, replace(rollouts, physics=physics), rollouts.actions)
    assert done.failed.tolist() == [False, True, False, False]
    assert np.isinf(done.states[1]).all()
    assert done.lengths.tolist() == [6] * 4  # it did not end, it failed
    np.testing.assert_array_equal(done.states[[0, 2, 3]], rollouts.states[[0, 2, 3]])


def test_a_robot_is_put_back_when_it_falls_before_its_start() -> None:
    hopper = make_environment("Hopper-v5")
    lying = Function(lambda observed: np.ones((len(observed), 3)), 11, 3)
    rollouts = simulate(hopper, lying, range(16), horizon=1, burn_in=(200, 200), batch=16)
    assert (rollouts.physics[:, 0] < 150 * hopper.dt).all()  # none can have stood for so long
    assert not hopper.ends(hopper.gym, rollouts.physics).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 0}, "horizon must be a whole number from 1 .*got 0"),
        ({"batch": 0}, "batch must be"),
        ({"burn_in": (-1, 3)}, "burn_in must be"),
        ({"burn_in": (3, 1)}, r"burn_in must be \(least, most\)"),
        ({"burn_in": (0, 2.5)}, r"burn_in must be a whole number from 0 .*got 2\.5"),
        ({"threads": 0}, "threads must be a whole number from 1 .*got 0"),
        ({"seeds": []}, "seeds must be one or more"),
        ({"seeds": [1, 1]}, "seeds must differ"),
        ({"seeds": [0.5]}, "seeds must be one or more whole numbers"),
        ({"seeds": [-1]}, r"seeds must lie from 0 to 2\*\*63 - 1, got -1 to -1"),
        ({"seeds": np.array([2**63], dtype=np.uint64)}, "got 9223372036854775808 to 9223372036854775808"),
        ({"policy": deep(12, 3)}, "must have 17 inputs and 6 outputs, got 12 and 3"),
    ],
)
def test_bad_input_is_named(cheetah: Environment, policy: Network, change: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        simulate(cheetah, **({"policy": policy, "seeds": [0]} | OPTIONS | change))


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        (np.zeros((2, 5, 6)), r"plans must have shape \[3, H, 6\], got \(2, 5, 6\)"),
        (np.zeros((3, 0, 6)), "plans must have shape"),
        (np.full((3, 5, 6), np.nan), "plans must be finite"),
    ],
)
def test_bad_plans_are_named(cheetah: Environment, policy: Network, plans: np.ndarray, message: str) -> None:
    rollouts = simulate(cheetah, policy, range(3), **OPTIONS)
    with pytest.raises(InvalidInput, match=message):
        execute(cheetah, rollouts, plans)
