"""Policies act as their makers meant, and their files are read without running anything of theirs."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pac_core import InvalidInput, PACError
from pac_core.errors import UnreadableFile
from pac_rl import load_policy, make_environment, policies, simulate
from pac_rl.policies import (
    Function,
    Network,
    NoisyPolicy,
    actions,
    check_policy,
    policy_returns,
    returns_in_words,
    save_policy,
)

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


ARRAY = {":type:": "<class 'numpy.ndarray'>", ":serialized:": "gAWV"}
PLAIN = {"_last_obs": ARRAY, "_last_original_obs": None}
"""What an on-policy algorithm keeps that was trained without VecNormalize."""


def stable_baselines(path: Path, weights: Any, data: Any = None, **options: Any) -> Path:
    """A zip laid out as Stable-Baselines3 does it."""
    stream = io.BytesIO()
    torch.save(weights, stream)
    with zipfile.ZipFile(path, "w", **options) as archive:
        archive.writestr("policy.pth", stream.getvalue())
        archive.writestr(
            "data", data if isinstance(data, bytes) else json.dumps(PLAIN if data is None else data)
        )
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
    environment, policy = make_environment(), check_policy(make_environment(), load_policy(std=0.0))
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
    policy = check_policy(environment, load_policy(SHARED, std=0))
    rollouts = simulate(environment, policy, range(8), horizon=300, burn_in=(0, 0), batch=8)
    assert rollouts.states[..., 0].mean() > 6


def test_stable_baselines_sac(tmp_path: Path) -> None:
    hidden, mean, log_std = layers(17, 16, 16), layers(16, 6, seed=1)[0], layers(16, 6, seed=2)[0]
    weights = named("actor.latent_pi", hidden)
    weights |= {"actor.mu.weight": mean[0], "actor.mu.bias": mean[1]}
    weights |= {"actor.log_std.weight": log_std[0], "actor.log_std.bias": log_std[1]}
    weights |= {"critic.qf0.0.weight": torch.zeros(3, 3)}
    policy = load_policy(stable_baselines(tmp_path / "sac.zip", weights), vecnormalize="none")
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
    data = PLAIN | ({"policy_kwargs": {"activation_fn": activation}} if activation else {})
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
    zipped = stable_baselines(tmp_path / "td3.zip", named("actor.mu", pairs))
    policy = load_policy(zipped, std=0, vecnormalize="none")
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
        (lambda path: npz(path / "p.npz", std=np.zeros(6), mu_b=np.full(6, np.nan)), "real and finite"),
        (lambda path: npz(path / "p.npz", std=np.ones(5)), "std must have one number per action"),
        (lambda path: npz(path / "p.npz"), r"p.npz: std must be given for a policy file that has none"),
        (
            lambda path: stable_baselines(path / "p.zip", named("actor.mu", layers(17, 8, 6))),
            r"p.zip: std must be given for a policy file that has none \(0: no noise\)",
        ),
        (lambda path: npz(path / "p.npz", std=np.zeros(6), scale=np.zeros(17)), "scale be above 0"),
        (lambda path: npz(path / "p.npz", std=np.zeros(6), activation="swish"), "activation must be one of"),
        (lambda path: npz(path / "p.npz", mu_w=np.array(["a"] * 6)), "mu_w must hold real numbers"),
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
    assert load_policy(zipped, std=0.2, vecnormalize="none").std.tolist() == [0.2] * 6
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
    policy = Function(lambda observed: np.tile([2.0, 0, 0, 0, 0, -2.0], (len(observed), 1)), 17, 6, std=0.1)
    states = torch.zeros(3, 18, dtype=torch.float64)
    done = actions(environment, check_policy(environment, policy), states, torch.zeros(3, 6).double())
    assert done[0].tolist() == [1.0, 0, 0, 0, 0, -1.0]  # cut off at the range
    wrong = Function(lambda observed: np.zeros((len(observed), 5)), 17, 6)
    with pytest.raises(InvalidInput, match=r"must return actions of shape \(3, 6\), got \(3, 5\)"):
        actions(environment, wrong, states, torch.zeros(3, 6).double())


def test_more_noise_goes_on_top(tmp_path: Path) -> None:
    policy = load_policy()
    observed, noise = torch.zeros(1, 17).double(), torch.ones(1, 6).double()
    torch.testing.assert_close(NoisyPolicy(policy, 0.5)(observed, noise), policy(observed, noise) + 0.5)
    squashed = load_policy(npz(tmp_path / "p.npz"), std=0)
    assert NoisyPolicy(squashed, 9.0)(observed, noise).tolist() == [[1.0] * 6]


def test_a_policy_of_other_dimensions_is_refused(tmp_path: Path) -> None:
    hopper = make_environment("Hopper-v5")
    with pytest.raises(
        InvalidInput,
        match=r"Hopper-v5 that sees the observation must have 11 inputs and 3 outputs, got 17 and 6$",
    ):
        check_policy(hopper, load_policy())


def test_what_a_policy_sees_is_said_and_never_guessed(tmp_path: Path) -> None:
    """A walker's policy with 18 inputs has a time feature; a state of 18 numbers fits by chance."""
    walker = make_environment("Walker2d-v5")
    timed = load_policy(npz(tmp_path / "p.npz", (18, 6)), std=0)
    with pytest.raises(
        InvalidInput, match=r"must have 17 inputs .* got 18 and 6; one with a time feature cannot"
    ):
        check_policy(walker, timed)
    with pytest.raises(InvalidInput, match="one that sees the state must say so"):
        simulate(walker, timed, [0], horizon=1)
    with pytest.raises(InvalidInput, match=r"that sees the state must have 18 inputs .* got 17 and 6$"):
        check_policy(walker, load_policy(npz(tmp_path / "q.npz", (17, 6)), std=0, sees="state"))
    said = load_policy(npz(tmp_path / "p.npz", (18, 6), sees="state"), std=0)
    assert check_policy(walker, said) is said
    save_policy(load_policy(tmp_path / "p.npz", std=0, sees="state"), tmp_path / "r.npz")
    states = torch.randn(3, 18).double()
    done = actions(
        walker, NoisyPolicy(load_policy(tmp_path / "r.npz"), 0.0), states, torch.zeros(3, 6).double()
    )
    torch.testing.assert_close(done, said(states, torch.zeros(3, 6).double()))
    for wrong in ("both", ""):
        with pytest.raises(InvalidInput, match="sees must be 'observation' or 'state'"):
            load_policy(npz(tmp_path / "s.npz", sees=wrong), std=0)


def ppo(path: Path, data: Any = None) -> Path:
    head = layers(8, 6, seed=1)[0]
    weights = named("mlp_extractor.policy_net", layers(17, 8))
    weights |= {"action_net.weight": head[0], "action_net.bias": head[1], "log_std": torch.full((6,), -1.0)}
    return stable_baselines(path, weights, data)


FLATTEN = "<class 'stable_baselines3.common.torch_layers.FlattenExtractor'>"
THEIRS = {":serialized:": "gASV", "__module__": "stable_baselines3.common.policies"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"policy_kwargs": {"features_extractor_class": "<class 'mine.Squares'>"}},
            "p.zip: only policies that see plain observations .* got <class 'mine.Squares'>$",
        ),
        (
            {"policy_kwargs": {"features_extractor_class": "<class 'mine.FlattenExtractor'>"}},
            "got <class 'mine.FlattenExtractor'>$",
        ),
        (
            {"policy_class": {**THEIRS, "__module__": "__main__"}},
            "p.zip: only policies of a class of stable_baselines3 or sb3_contrib .* the module __main__$",
        ),
        (
            {"policy_class": {**THEIRS, "__module__": "stable_baselines3_of_mine"}},
            "stable_baselines3_of_mine$",
        ),
        ({"policy_class": {":serialized:": "gASV"}}, "a policy_class of the module None$"),
    ],
)
def test_a_policy_of_code_of_ones_own_is_refused(tmp_path: Path, settings: Any, message: str) -> None:
    """Its weights look like those of a plain one, which would act in another way."""
    with pytest.raises(InvalidInput, match=message):
        load_policy(ppo(tmp_path / "p.zip", PLAIN | settings))


def test_a_policy_of_stable_baselines_own_classes_is_read(tmp_path: Path) -> None:
    plain = PLAIN | {"policy_class": THEIRS, "policy_kwargs": {"features_extractor_class": FLATTEN}}
    assert load_policy(ppo(tmp_path / "p.zip", plain)).inputs == 17


def test_a_net_that_actor_and_critic_share_is_refused(tmp_path: Path) -> None:
    """Left out, it goes unnoticed where it is as wide as the observation."""
    head = layers(8, 6, seed=1)[0]
    weights = named("mlp_extractor.shared_net", layers(17, 17))
    weights |= named("mlp_extractor.policy_net", layers(17, 8))
    weights |= {"action_net.weight": head[0], "action_net.bias": head[1], "log_std": torch.full((6,), -1.0)}
    with pytest.raises(
        InvalidInput, match=r"only policies of dense layers .* got mlp_extractor\.shared_net\.0"
    ):
        load_policy(stable_baselines(tmp_path / "p.zip", weights))


def statistics(path: Path, **changes: Any) -> Path:
    numbers = {"mean": np.linspace(-1, 1, 17), "var": np.linspace(0.1, 4, 17), "clip": 1.5, "epsilon": 1e-2}
    np.savez(path, **{name: value for name, value in (numbers | changes).items() if value is not None})
    return path


def test_a_policy_that_may_need_statistics_is_not_run_without_them(tmp_path: Path) -> None:
    """Hints: what the algorithm kept of its last observation, and a pickle beside the file."""
    normalised = ppo(tmp_path / "n.zip", {"_last_obs": ARRAY, "_last_original_obs": ARRAY})
    unknown = ppo(tmp_path / "u.zip", {"_last_obs": None, "_last_original_obs": None})
    off_policy = stable_baselines(tmp_path / "td3.zip", named("actor.mu", layers(17, 8, 6)))
    for file, reason in (
        (normalised, "n.zip: it was trained with VecNormalize, and without"),
        (unknown, "u.zip: it may have been trained with VecNormalize, which its file does not say"),
        (off_policy, "td3.zip: it may have been trained with VecNormalize"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            load_policy(file, std=0)
        assert load_policy(file, std=0, vecnormalize="none").shift.eq(0).all()
    plain = ppo(tmp_path / "p.zip")
    assert load_policy(plain).clip == np.inf
    (tmp_path / "p").mkdir()
    for pickled in (tmp_path / "p" / "vecnormalize.pkl", tmp_path / "vecnormalize.pkl"):
        pickled.write_bytes(b"")
        with pytest.raises(InvalidInput, match=f"there is {pickled}, and without VecNormalize's statistics"):
            load_policy(plain)
        pickled.unlink()
    with pytest.raises(InvalidInput, match="vecnormalize is for a Stable-Baselines3 zip"):
        load_policy(npz(tmp_path / "p.npz"), std=0, vecnormalize="none")


def test_statistics_normalise_and_clip_as_vecnormalize_does(tmp_path: Path) -> None:
    stats = statistics(tmp_path / "vecnormalize.npz")
    file = ppo(tmp_path / "p.zip", {"_last_obs": ARRAY, "_last_original_obs": ARRAY})
    policy, bare = load_policy(file, vecnormalize=stats), load_policy(file, vecnormalize="none")
    observed, noise = 3 * torch.randn(20, 17).double(), torch.randn(20, 6).double()
    with np.load(stats) as given:
        seen = (observed.numpy() - given["mean"]) / np.sqrt(given["var"] + given["epsilon"])
    assert (np.abs(seen) > 1.5).any()
    expected = bare(torch.from_numpy(np.clip(seen, -1.5, 1.5)), noise)
    torch.testing.assert_close(policy(observed, noise), expected, rtol=1e-12, atol=1e-12)
    save_policy(policy, tmp_path / "q.npz")
    torch.testing.assert_close(
        load_policy(tmp_path / "q.npz")(observed, noise), expected, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip": None}, "must hold clip; there are mean"),
        (
            {"mean": np.zeros(18)},
            r"a number for each of 17 inputs, clip and epsilon one, got shapes \[\[18\]",
        ),
        ({"mean": np.zeros((1, 17))}, "a number for each of 17 inputs"),
        ({"var": np.full(17, -1.0)}, "var and epsilon must be at least 0"),
        ({"var": np.zeros(17), "epsilon": 0.0}, "scale be above 0"),
        ({"clip": 0.0}, "clip must be above 0"),
        ({"clip": np.nan}, "clip must be above 0"),
        ({"mean": np.full(17, np.nan)}, "must be real and finite"),
        ({"mean": np.zeros(17, dtype=complex)}, "mean must hold real numbers"),
    ],
)
def test_bad_statistics_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PACError, match=f"v.npz: .*{message}"):
        load_policy(ppo(tmp_path / "p.zip"), vecnormalize=statistics(tmp_path / "v.npz", **changes))


def test_statistics_are_no_pickle_and_must_be_there(tmp_path: Path) -> None:
    for name, said in (
        ("v.pkl", "must be an npz of mean, var, clip and epsilon, or 'none'"),
        ("v.npz", "no file"),
    ):
        with pytest.raises(PACError, match=said):
            load_policy(ppo(tmp_path / "p.zip"), vecnormalize=tmp_path / name)


def test_a_policy_that_no_dense_layers_make_is_refused(tmp_path: Path) -> None:
    """Read without what is between its layers, it would be another policy."""
    pairs = named("actor.mu", layers(17, 8, 6))
    crossq = {"actor.latent_pi.0.ra_mean": torch.zeros(17)} | named("actor.latent_pi", layers(17, 8))
    head = {"actor.mu.weight": torch.zeros(6, 8), "actor.mu.bias": torch.zeros(6)}
    head |= {"actor.log_std.weight": torch.zeros(6, 8), "actor.log_std.bias": torch.zeros(6)}
    for weights, data, said in (
        (crossq | head, None, "dense layers .* got actor.latent_pi.0.ra_mean"),
        (
            pairs | {"actor.features_extractor.cnn.0.weight": torch.zeros(3)},
            None,
            "got actor.features_extractor",
        ),
        (named("actor.mu", layers(17, 8, 6), step=3), None, r"got layers \[0, 3\]"),
        ({"action_net.0.weight": torch.zeros(6, 17)}, None, "of ARS, which is not read"),
        (
            pairs,
            {"observation_space": {":type:": "<class 'gymnasium.spaces.dict.Dict'>"}},
            "a Box.* got .*Dict",
        ),
        (pairs, b"{'a'", "its member data is not JSON"),
        (pairs, b"\xff\xfe", "its member data is not JSON"),
        (pairs, b"[" * 100_000, "its member data is not JSON"),
        (pairs, [1], "its member data must be a JSON object"),
        (pairs, {"policy_kwargs": 3}, "its member data must be a JSON object"),
        ([torch.zeros(1)], None, "must hold tensors by their names"),
        (
            pairs | {"actor.mu.0.weight": torch.zeros(8, 17, dtype=torch.complex64)},
            None,
            "real numbers, got torch.c",
        ),
        (
            pairs | {"actor.mu.0.weight": torch.zeros(8, 17, dtype=torch.int8)},
            None,
            "real numbers, got torch.int8",
        ),
        (
            named("actor.mu", [(torch.zeros(8, 0), torch.zeros(8)), *layers(8, 6)]),
            None,
            "at least 1 number each",
        ),
        ({"actor.mu.0.weight": torch.zeros(6, 17)}, None, "must hold actor.mu.0.bias"),
    ):
        with pytest.raises(PACError, match=f"p.zip: .*{said}"):
            load_policy(stable_baselines(tmp_path / "p.zip", weights, data), std=0, vecnormalize="none")
    with zipfile.ZipFile(tmp_path / "q.zip", "w") as archive:
        archive.writestr("policy.pth", b"")
    with pytest.raises(UnreadableFile, match="must hold data"):
        load_policy(tmp_path / "q.zip")
    for arrays, said in (
        ({"std": np.array([0.1] * 5 + [-0.1])}, "std must be at least 0 for each action, got -0.1"),
        ({"std": np.zeros(6), "w0": np.zeros((8, 17), dtype=complex)}, "w0 must hold real numbers"),
        ({"std": np.zeros(6), "w0": np.zeros((8, 0))}, "at least 1 number each"),
        ({"std": np.zeros(6), "w0": np.zeros(8)}, r"weights \[out, in\] and biases \[out\]"),
        ({"std": np.zeros(6), "mu_b": np.zeros(())}, "cannot be read as a policy|biases"),
    ):
        with pytest.raises(PACError, match=f"p.npz.*{said}"):
            load_policy(npz(tmp_path / "p.npz", **arrays))


def test_a_file_is_bounded_before_it_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two megabytes can hold gigabytes: in the zip, in the zip inside it, and in a tensor's strides."""
    monkeypatch.setattr(policies, "MOST_BYTES", 8 * 2**20)
    deflated = {"compression": zipfile.ZIP_DEFLATED}
    many = named("actor.mu", [(torch.zeros(6, 17), torch.zeros(6))])
    outer = stable_baselines(tmp_path / "outer.zip", many | {"critic": torch.zeros(5 * 2**20)}, **deflated)
    strided = stable_baselines(tmp_path / "strided.zip", many | {"x": torch.zeros(1).expand(10**6, 10**6)})
    np.savez_compressed(
        tmp_path / "a.npz", mu_w=np.zeros((6, 17)), mu_b=np.zeros(6), other=np.zeros(3 * 2**20)
    )
    inner, stream = tmp_path / "inner.zip", io.BytesIO()
    with zipfile.ZipFile(outer) as archive:
        content = io.BytesIO(archive.read("policy.pth"))
    with zipfile.ZipFile(content) as stored, zipfile.ZipFile(stream, "w", **deflated) as again:
        for one in stored.infolist():
            again.writestr(one.filename, stored.read(one))
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("policy.pth", stream.getvalue())
        archive.writestr("data", json.dumps(PLAIN))
    tracemalloc.start()
    for file in (outer, inner, strided, tmp_path / "a.npz"):
        assert file.stat().st_size < 2**20
        with pytest.raises(UnreadableFile, match=f"{file.name}.* at most 8 MB"):
            load_policy(file, std=0, vecnormalize=None if file.suffix == ".npz" else "none")
    assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    tracemalloc.stop()


def test_the_return_tells_a_policy_from_another(policy: Network) -> None:
    """By Gymnasium's own reward; the same policy on scaled observations earns far less."""
    cheetah = make_environment()
    other = replace(policy, scale=3 * policy.scale)
    good, bad = (policy_returns(cheetah, one, episodes=2, steps=200) for one in (policy, other))
    assert good.shape == (2,)
    assert good.min() > 300 > bad.max()
    rollouts = simulate(cheetah, load_policy(std=0), range(2), horizon=200, burn_in=(0, 0))
    reward = (rollouts.states[..., 0] - 0.1 * (rollouts.actions**2).sum(axis=-1)).sum(axis=1)
    np.testing.assert_allclose(
        policy_returns(cheetah, load_policy(std=0), episodes=2, steps=200), reward, rtol=0.5
    )
    assert "mean return " in returns_in_words(cheetah, policy, steps=5)


PPO = SHARED.parent / "ppo" / "HalfCheetah-v3.zip"


@pytest.mark.skipif(not PPO.exists(), reason="the PPO checkpoint is not part of the project")
def test_a_real_ppo_policy_with_its_statistics() -> None:
    cheetah = make_environment()
    policy = load_policy(PPO, vecnormalize=PPO.with_name("vecnormalize.npz"))
    assert policy_returns(cheetah, policy, episodes=2, steps=300).mean() > 1000
    with pytest.raises(InvalidInput, match="it was trained with VecNormalize"):
        load_policy(PPO)
