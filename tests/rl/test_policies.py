"""Policies act as their makers meant, and their files are read without running anything of theirs."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pac_core import InvalidInput, PACError, UnreadableFile
from pac_rl import Function, Network, load_policy, make_environment, save_policy, simulate
from pac_rl.policies import Noisy, actions, fitting

SHARED = Path(__file__).parents[3] / "shared" / "data" / "halfcheetah" / "sac_actor.npz"


def layers(*sizes: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(o, i, generator=drawn) / i**0.5, torch.randn(o, generator=drawn))
        for i, o in itertools.pairwise(sizes)
    ]


def npz(path: Path, sizes: tuple[int, ...] = (17, 8, 6), **more: Any) -> Path:
    arrays: dict[str, Any] = {}
    for i, (weight, bias) in enumerate(layers(*sizes)):
        names = ("mu_w", "mu_b") if i == len(sizes) - 2 else (f"w{i}", f"b{i}")
        arrays |= dict(zip(names, (weight.numpy(), bias.numpy()), strict=True))
    np.savez(path, **(arrays | more))
    return path


def stable_baselines(
    path: Path, weights: dict[str, torch.Tensor], data: dict[str, Any] | None = None
) -> Path:
    """A zip laid out as Stable-Baselines3 does it."""
    stream = io.BytesIO()
    torch.save(weights, stream)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("policy.pth", stream.getvalue())
        archive.writestr("data", json.dumps(data or {}))
        archive.writestr("_stable_baselines3_version", "2.3.2")
    return path


def named(
    prefix: str, pairs: list[tuple[torch.Tensor, torch.Tensor]], step: int = 2
) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}.{i * step}.{part}": tensor
        for i, pair in enumerate(pairs)
        for part, tensor in zip(("weight", "bias"), pair, strict=True)
    }


def test_the_shipped_policy_runs() -> None:
    """The return it is shipped for: above 3,000 per 1,000 steps, without its noise."""
    environment, policy = make_environment(), fitting(make_environment(), load_policy(std=0.0))
    rollouts = simulate(environment, policy, range(8), horizon=300, burn_in=(0, 0), batch=8)
    reward = rollouts.states[..., 0] - 0.1 * (rollouts.actions**2).sum(axis=-1)
    assert reward.sum(axis=1).mean() * 1000 / 300 > 3000
    assert load_policy().std.tolist() == [0.1] * 6


def test_layers_of_an_npz(tmp_path: Path) -> None:
    policy = load_policy(npz(tmp_path / "p.npz"), std=0)
    (w0, b0), (w1, b1) = layers(17, 8, 6)
    observed = torch.linspace(-1, 1, 34).reshape(2, 17)
    wanted = torch.tanh(torch.relu(observed @ w0.T + b0) @ w1.T + b1)
    torch.testing.assert_close(policy(observed, torch.zeros(2, 6)), wanted)
    scaled = load_policy(npz(tmp_path / "q.npz", shift=np.full(17, 0.5), scale=np.full(17, 2.0)), std=0)
    torch.testing.assert_close(scaled(2 * observed + 0.5, torch.zeros(2, 6)), wanted)


def test_noise_enters_before_the_squashing(tmp_path: Path) -> None:
    policy = load_policy(npz(tmp_path / "p.npz", std=np.full(6, 0.3)))
    observed, noise = torch.zeros(1, 17).double(), torch.ones(1, 6).double()
    mean = torch.atanh(policy(observed, 0 * noise))
    torch.testing.assert_close(torch.atanh(policy(observed, noise)), mean + 0.3)
    torch.testing.assert_close(load_policy(tmp_path / "p.npz", std=0.1).std, torch.full((6,), 0.1).double())


def test_save_and_load(tmp_path: Path) -> None:
    policy = load_policy()
    save_policy(policy, tmp_path / "p.npz")
    again = load_policy(tmp_path / "p.npz")
    observed, noise = torch.randn(5, 17).double(), torch.randn(5, 6).double()
    assert torch.equal(policy(observed, noise), again(observed, noise))
    assert (again.squash, again.activation) == (policy.squash, policy.activation)


@pytest.mark.skipif(not SHARED.exists(), reason="the SAC actor is not part of the project")
def test_a_real_sac_actor() -> None:
    environment = make_environment()
    policy = fitting(environment, load_policy(SHARED, std=0))
    rollouts = simulate(environment, policy, range(8), horizon=300, burn_in=(0, 0), batch=8)
    assert rollouts.states[..., 0].mean() > 6


def test_stable_baselines_sac(tmp_path: Path) -> None:
    hidden, mean, log_std = layers(17, 16, 16), layers(16, 6, seed=1)[0], layers(16, 6, seed=2)[0]
    weights = named("actor.latent_pi", hidden)
    weights |= {"actor.mu.weight": mean[0], "actor.mu.bias": mean[1]}
    weights |= {"actor.log_std.weight": log_std[0], "actor.log_std.bias": log_std[1]}
    weights |= {"critic.qf0.0.weight": torch.zeros(3, 3)}
    policy = load_policy(stable_baselines(tmp_path / "sac.zip", weights))
    observed, noise = torch.randn(4, 17), torch.randn(4, 6)
    latent = observed
    for weight, bias in hidden:
        latent = torch.relu(latent @ weight.T + bias)
    deviation = torch.exp(torch.clamp(latent @ log_std[0].T + log_std[1], -20, 2))
    wanted = torch.tanh(latent @ mean[0].T + mean[1] + deviation * noise)
    torch.testing.assert_close(policy(observed, noise), wanted)


@pytest.mark.parametrize("activation", [None, "<class 'torch.nn.modules.activation.ReLU'>"])
def test_stable_baselines_ppo(tmp_path: Path, activation: str | None) -> None:
    hidden, head = layers(17, 16, 16), layers(16, 6, seed=1)[0]
    weights = named("mlp_extractor.policy_net", hidden) | named("mlp_extractor.value_net", layers(17, 16))
    weights |= {"action_net.weight": head[0], "action_net.bias": head[1], "log_std": torch.full((6,), -1.0)}
    data = {"policy_kwargs": {"activation_fn": activation}} if activation else {}
    policy = load_policy(stable_baselines(tmp_path / "ppo.zip", weights, data))
    observed, noise = torch.randn(4, 17), torch.randn(4, 6)
    latent = observed
    for weight, bias in hidden:
        latent = (torch.relu if activation else torch.tanh)(latent @ weight.T + bias)
    wanted = latent @ head[0].T + head[1] + np.exp(-1.0) * noise
    torch.testing.assert_close(policy(observed, noise), wanted)
    assert not policy.squash


def test_stable_baselines_td3(tmp_path: Path) -> None:
    pairs = layers(17, 16, 16, 6)
    policy = load_policy(stable_baselines(tmp_path / "td3.zip", named("actor.mu", pairs)), std=0)
    observed = torch.randn(4, 17)
    (w0, b0), (w1, b1), (w2, b2) = pairs
    wanted = torch.tanh(torch.relu(torch.relu(observed @ w0.T + b0) @ w1.T + b1) @ w2.T + b2)
    torch.testing.assert_close(policy(observed, torch.ones(4, 6)), wanted)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("exploded"),))


def test_nothing_in_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("bomb.npz", mu_w=np.array([Bomb()], dtype=object), mu_b=np.zeros(6))
    stream = io.BytesIO()
    torch.save({"actor.mu.0.weight": Bomb()}, stream)
    with zipfile.ZipFile("bomb.zip", "w") as archive:
        archive.writestr("policy.pth", stream.getvalue())
        archive.writestr("data", json.dumps({"policy_class": {":serialized:": "gAWV"}}))
    for name in ("bomb.npz", "bomb.zip"):
        with pytest.raises(UnreadableFile):
            load_policy(name)
    assert not Path("exploded").exists()
    pickle.loads(pickle.dumps(Bomb()))  # the bomb itself is live
    assert Path("exploded").exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path / "none.npz", "there is no policy file"),
        (lambda path: path / "policy.pt", "must be a .npz of layers or a Stable-Baselines3 .zip"),
        (
            lambda path: npz(path / "p.npz", std=np.zeros(6), mu_w=np.zeros((6, 7))),
            r"must have weights \[6, 8\], got \[6, 7\]",
        ),
        (lambda path: npz(path / "p.npz", std=np.zeros(6), mu_b=np.full(6, np.nan)), "must be finite"),
        (lambda path: npz(path / "p.npz", std=np.ones(5)), "std must have one number per action"),
        (lambda path: npz(path / "p.npz"), r"p.npz: std must be given for a policy file that has none"),
        (
            lambda path: stable_baselines(path / "p.zip", named("actor.mu", layers(17, 8, 6))),
            r"p.zip: std must be given for a policy file that has none \(0: no noise\)",
        ),
        (lambda path: npz(path / "p.npz", std=np.zeros(6), scale=np.zeros(17)), "scale be above 0"),
        (lambda path: npz(path / "p.npz", std=np.zeros(6), activation="swish"), "activation must be one of"),
        (lambda path: npz(path / "p.npz", mu_w=np.array(["a"] * 6)), "mu_w must hold numbers"),
        (lambda path: stable_baselines(path / "p.zip", {"q": torch.zeros(1)}), "of no known algorithm"),
        (lambda path: stable_baselines(path / "p.zip", {}, {"use_sde": True}), "use_sde"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(PACError, match=message):
        load_policy(make(tmp_path))


def test_noise_that_is_given_replaces_the_files(tmp_path: Path) -> None:
    assert load_policy(npz(tmp_path / "none.npz"), std=0.2).std.tolist() == [0.2] * 6
    zipped = stable_baselines(tmp_path / "td3.zip", named("actor.mu", layers(17, 8, 6)))
    assert load_policy(zipped, std=0.2).std.tolist() == [0.2] * 6
    for std in (-0.1, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match=f"std must be a number of at least 0, got {std}"):
            load_policy(std=std)


@pytest.mark.parametrize("name", ["p.npz", "p.zip"])
@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.95])
def test_a_cut_off_file_is_named(tmp_path: Path, name: str, kept: float) -> None:
    path = tmp_path / name
    npz(path) if name == "p.npz" else stable_baselines(path, named("actor.mu", layers(17, 16, 6)))
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if kept < 1 else int(kept)])
    with pytest.raises(UnreadableFile, match=r"cannot be read as|is cut off"):
        load_policy(path)


def test_any_callable_is_a_policy() -> None:
    environment = make_environment()
    policy = Function(lambda observed: np.tile([2.0, 0, 0, 0, 0, -2.0], (len(observed), 1)), 18, 6, std=0.1)
    states = torch.zeros(3, 18, dtype=torch.float64)
    done = actions(environment, fitting(environment, policy), states, torch.zeros(3, 6).double())
    assert done[0].tolist() == [1.0, 0, 0, 0, 0, -1.0]  # cut off at the range
    wrong = Function(lambda observed: np.zeros((len(observed), 5)), 18, 6)
    with pytest.raises(InvalidInput, match=r"must return actions of shape \(3, 6\), got \(3, 5\)"):
        actions(environment, wrong, states, torch.zeros(3, 6).double())


def test_more_noise_goes_on_top(tmp_path: Path) -> None:
    policy = load_policy()
    observed, noise = torch.zeros(1, 17).double(), torch.ones(1, 6).double()
    torch.testing.assert_close(Noisy(policy, 0.5)(observed, noise), policy(observed, noise) + 0.5)
    squashed = load_policy(npz(tmp_path / "p.npz"), std=0)
    assert Noisy(squashed, 9.0)(observed, noise).tolist() == [[1.0] * 6]


def test_a_policy_of_other_dimensions_is_refused(tmp_path: Path) -> None:
    hopper = make_environment("Hopper-v5")
    with pytest.raises(InvalidInput, match="Hopper-v5 must have 11 or 12 inputs and 3 outputs, got 17 and 6"):
        fitting(hopper, load_policy())
    policy: Network = load_policy(npz(tmp_path / "p.npz", (12, 3)), std=0)
    assert fitting(hopper, policy) is policy
