"""The ensemble learns, is kept without pickle, goes on after an interruption, and is mbrl-lib's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mbrl.models import BasicEnsemble, GaussianMLP, ModelEnv, OneDTransitionRewardModel
from mbrl.types import TransitionBatch

from pac_core import InvalidInput, split
from pac_core.errors import OverlappingSplits, UnreadableFile
from pac_core.splits import ids_digest
from pac_rl import Dynamics, Ensemble, Settings, Transitions, train
from pac_rl.dynamics.ensemble import MANY, write_tensors
from pac_rl.dynamics.training import Training
from pac_rl.rollouts import Rollouts

SMALL = Settings(members=3, hidden=24, layers=2, epochs=6, batch=64, rate=5e-3, patience=6)
MATRIX = np.array([[0.9, 0.2], [-0.1, 0.8]])


def linear(n: int = 3000, seed: int = 0) -> Transitions:
    """x' = M x + (u, 0) + noise of deviation 0.1 in the first number and 0.01 in the second."""
    rng = np.random.default_rng(seed)
    states, actions = rng.normal(size=(n, 2)) * [1.0, 30.0], rng.normal(size=(n, 1))
    following = states @ MATRIX.T + np.pad(actions, ((0, 0), (0, 1)))
    return Transitions(states, actions, following + rng.normal(size=(n, 2)) * [0.1, 0.01])


def test_it_learns_mean_and_noise() -> None:
    settings = replace(SMALL, epochs=12, patience=12, batch=128, rate=1e-2)
    made = train(linear(), "linear", settings)
    new = linear(500, seed=1)
    states, actions = (torch.tensor(part, dtype=torch.float32) for part in (new.states, new.actions))
    with torch.no_grad():
        mean, var = made.step(states, actions)
    exact = new.states @ MATRIX.T + np.pad(new.actions, ((0, 0), (0, 1)))
    error = np.sqrt(((mean.mean(dim=0).numpy() - exact) ** 2).mean(axis=0))
    assert (error < [0.15, 0.15]).all()  # of changes whose deviations are 6 and 6
    assert 0.05 < float(var[..., 0].sqrt().median()) < 0.25
    assert made.history[-1].best < 0.3 * made.history[0].score


def test_save_and_load_give_the_same_numbers(ensemble: Ensemble, tmp_path: Path) -> None:
    ensemble.save(tmp_path / "e.safetensors")
    again = Ensemble.load(tmp_path / "e.safetensors")
    states, actions = torch.randn(7, 18), torch.randn(7, 6)
    for left, right in zip(ensemble.step(states, actions), again.step(states, actions), strict=True):
        assert torch.equal(left, right)
    assert (again.settings, again.history) == (ensemble.settings, ensemble.history)
    assert again.environment == "HalfCheetah-v5"


def test_it_remembers_what_it_was_trained_on_and_refuses_it(
    ensemble: Ensemble, episodes: Rollouts, tmp_path: Path
) -> None:
    """A unit among the training rollouts would make the promise worthless; so would not knowing."""
    ensemble.save(tmp_path / "e.safetensors")
    for known in (ensemble, Ensemble.load(tmp_path / "e.safetensors"), ensemble.first(2), ensemble.to("cpu")):
        assert known.trained_on is not None
        np.testing.assert_array_equal(known.trained_on, episodes.seeds)
        known.refuse_seen(range(10**9 - 900, 10**9))
        with pytest.raises(OverlappingSplits, match="'train' and 'tune, calibrate or test' share 1 units"):
            known.refuse_seen([0, 10**9 + 39])
        with pytest.raises(OverlappingSplits):
            split([0, 10**9], tune=0, calibrate=1, seed=0, train=known.trained_on)
    record = ensemble.train_record
    assert (record.n, record.digest) == (40, ids_digest(episodes.seeds))
    unknown = replace(ensemble, trained_on=None)
    assert unknown.train_record.name == "not named"
    with pytest.raises(InvalidInput, match="does not know which rollouts it was trained on"):
        unknown.refuse_seen([0])


def test_transitions_of_several_sources_are_known_only_if_all_are(episodes: Rollouts, tmp_path: Path) -> None:
    parts = [Transitions.of(episodes.take(rows)) for rows in (slice(30, 40), slice(0, 10), slice(5, 15))]
    joined = Transitions.join(parts).ids
    assert joined is not None
    np.testing.assert_array_equal(joined - 10**9, [*range(15), *range(30, 40)])
    assert Transitions.join([*parts, replace(parts[0], ids=None)]).ids is None
    named = train(replace(linear(300), ids=np.array(["run-7", "run-3"])), "linear", replace(SMALL, epochs=1))
    named.save(tmp_path / "e.safetensors")
    with pytest.raises(OverlappingSplits, match="run-3"):
        Ensemble.load(tmp_path / "e.safetensors").refuse_seen(["run-3", "run-4"])
    assert train(linear(300), "linear", replace(SMALL, epochs=1)).trained_on is None
    with pytest.raises(InvalidInput, match="ids of the transitions must not be empty"):
        train(replace(linear(300), ids=np.array([], dtype=np.int64)), "linear", SMALL)


@pytest.mark.parametrize(
    "claim", [[[0, 2**62]], [[5, 5]], [["a", "b"]], [[0, 1, 2]], 7, [1.5], [[0.5, 2]], {"a": 1}, []]
)
def test_a_file_that_lies_about_its_training_is_refused(
    ensemble: Ensemble, tmp_path: Path, claim: object
) -> None:
    write_tensors(tmp_path / "e.safetensors", ensemble.tensors(), ensemble.about() | {"trained_on": claim})
    with pytest.raises(UnreadableFile, match="do not fit together"):
        Ensemble.load(tmp_path / "e.safetensors")


def test_it_is_the_ensemble_that_mbrl_lib_computes(ensemble: Ensemble) -> None:
    """In mbrl-lib's own ModelEnv, with each particle bound to a member."""
    model = ensemble.for_mbrl()
    states, actions = torch.randn(6, 18), torch.rand(6, 6) * 2 - 1
    inputs = model._get_model_input(states, actions)
    mean, log_var = model.model.forward(inputs.expand(3, -1, -1), use_propagation=False)
    ours, our_var = ensemble.step(states, actions)
    torch.testing.assert_close(states + mean, ours, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.exp(log_var), our_var, rtol=1e-3, atol=1e-8)
    model.set_propagation_method("expectation")

    class Spaces:
        observation_space = action_space = None

    env = ModelEnv(
        Spaces(), model, lambda act, obs: torch.zeros(len(obs), 1, dtype=bool), lambda act, obs: obs[:, :1]
    )
    start = env.reset(states.numpy())
    following, *_ = env.step(actions, start)
    np.testing.assert_allclose(following, ours.mean(dim=0).detach().numpy(), rtol=1e-3, atol=1e-4)


def test_a_step_of_each_member_from_its_own_state(ensemble: Ensemble) -> None:
    states, actions = torch.randn(3, 5, 18), torch.randn(3, 5, 6)
    together = ensemble.step(states, actions)
    for i in range(3):
        alone = ensemble.step(states[i], actions[i])
        for left, right in zip(together, alone, strict=True):
            torch.testing.assert_close(left[i], right[i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["SiLU", "Tanh"])  # one that works in place, one that does not
def test_many_rows_are_computed_as_few_are(name: str) -> None:
    """In two buffers for all members: one that is overwritten too early, or a member's weights for another's,
    would show."""
    made = Ensemble.from_mbrl(from_elsewhere(activation={"_target_": f"torch.nn.{name}"}), "mine")
    states, actions = torch.randn(4, MANY, 3), torch.randn(4, MANY, 2)
    with torch.no_grad():
        for given in ((states, actions), (states[0], actions[0])):
            whole = made.step(*given)
            few = [made.step(*rows) for rows in zip(*(x.split(100, dim=-2) for x in given), strict=True)]
            for part, rows in zip(whole, zip(*few, strict=True), strict=True):
                torch.testing.assert_close(part, torch.cat(rows, dim=1), rtol=1e-5, atol=1e-5)
    mean, _ = made.step(states, actions)
    assert mean.requires_grad
    torch.testing.assert_close(mean, made.step(states, actions)[0])


def test_an_interrupted_training_comes_to_the_same_weights(tmp_path: Path) -> None:
    whole = train(linear(600), "linear", SMALL)

    class Interrupted(Exception):
        pass

    def stop(epoch: object) -> None:
        stops.append(epoch)
        if len(stops) in (2, 3):
            raise Interrupted

    stops: list[object] = []
    for _ in range(2):
        with pytest.raises(Interrupted):
            train(linear(600), "linear", SMALL, checkpoint=tmp_path / "c.safetensors", progress=stop)
    resumed = train(linear(600), "linear", SMALL, checkpoint=tmp_path / "c.safetensors", progress=stop)
    assert len(stops) == SMALL.epochs  # nothing was computed twice
    assert resumed.history == whole.history
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, resumed.network.state_dict()[name]), name


def test_training_stops_when_it_no_longer_gains() -> None:
    """A step size so large that nothing is learnt after the first epochs."""
    settings = replace(SMALL, epochs=40, patience=3, rate=0.3)
    made = train(linear(600), "linear", settings)
    scores = [epoch.score for epoch in made.history]
    assert len(scores) < 40
    assert len(scores) - 1 - int(np.argmin(scores)) == 3
    training = Training(linear(600), "linear", settings, "cpu")
    training.network.load_state_dict(made.network.state_dict())
    assert training.validate() == pytest.approx(min(scores), rel=1e-6)  # the best weights were kept


def test_training_does_not_touch_the_global_generator() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    train(linear(300), "linear", replace(SMALL, epochs=1))
    assert torch.equal(torch.rand(3), wanted)


def test_transitions_leave_out_what_never_was(episodes: Rollouts) -> None:
    part = episodes.take(slice(0, 3))
    states, lengths = part.states.copy(), part.lengths.copy()
    lengths[1] = 40
    states[2, 70:] = np.inf
    steps = Transitions.of(replace(part, states=states, lengths=lengths))
    assert len(steps.states) == 100 + 40 + 70
    np.testing.assert_array_equal(steps.states[0], part.start[0])
    np.testing.assert_array_equal(steps.following[0], part.states[0, 0])
    np.testing.assert_array_equal(steps.states[1], part.states[0, 0])


@pytest.mark.parametrize("kept", [0, 20, 0.5, 0.99])
def test_a_cut_off_file_is_named(ensemble: Ensemble, tmp_path: Path, kept: float) -> None:
    path = tmp_path / "e.safetensors"
    ensemble.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if kept < 1 else int(kept)])
    with pytest.raises(UnreadableFile, match="cut off or no ensemble"):
        Ensemble.load(path)


def test_other_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="there is no ensemble file"):
        Ensemble.load(tmp_path / "none.safetensors")
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UnreadableFile, match="is not a 'pac-sets ensemble 2' file"):
        Ensemble.load(tmp_path / "other.safetensors")


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    one = replace(SMALL, epochs=1)
    train(linear(), "linear", one, checkpoint=tmp_path / "c.safetensors")
    swapped = linear()
    swapped.following[[0, 1]] += (swapped.following - swapped.states)[[1, 0]]
    swapped.following[[0, 1]] -= (linear().following - linear().states)[[0, 1]]  # two changes, exchanged
    for data, settings in ((linear(seed=5), one), (swapped, one), (linear(), replace(one, rate=1e-3))):
        with pytest.raises(UnreadableFile, match="other data or settings"):
            train(data, "linear", settings, checkpoint=tmp_path / "c.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": 0}, "members must be a whole number from 1 .*got 0"),
        ({"epochs": 0}, "epochs must be a whole number from 1 .*got 0"),
        ({"batch": 2.5}, r"batch must be a whole number from 1 .*got 2\.5"),
        ({"rate": float("nan")}, "rate must be above 0 and held_out between 0 and 1, got nan and 0.05"),
        ({"held_out": 1.0}, r"held_out between 0 and 1, got 0.002 and 1\.0"),
    ],
)
def test_bad_settings_are_named(change: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Settings(**change)


def test_bad_transitions_are_named() -> None:
    good = linear(200)
    with pytest.raises(InvalidInput, match="at least 100 steps"):
        train(linear(50), "linear", SMALL)
    with pytest.raises(InvalidInput, match="following of the transitions must be finite"):
        train(replace(good, following=np.full_like(good.following, np.nan)), "linear", SMALL)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu(tmp_path: Path) -> None:
    made = train(linear(), "linear", SMALL, device="cuda")
    made.save(tmp_path / "e.safetensors")
    here = Ensemble.load(tmp_path / "e.safetensors")
    states, actions = torch.randn(5, 2), torch.randn(5, 1)
    there = made.step(states.cuda(), actions.cuda())[0]
    torch.testing.assert_close(there.cpu(), here.step(states, actions)[0], rtol=1e-3, atol=1e-3)


def from_elsewhere(
    normalize: str = "double",
    elites: tuple[int, ...] | None = None,
    activation: dict | None = None,
    rewards: bool = True,
    members: int = 4,
    deterministic: bool = False,
    **wrapper: object,
) -> OneDTransitionRewardModel:
    """A model of 3 state and 2 action numbers that mbrl-lib trained itself, for a few steps."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        options = {"num_layers": 3, "ensemble_size": members, "hid_size": 16, "deterministic": deterministic}
        network = GaussianMLP(5, 3 + rewards, "cpu", activation_fn_cfg=activation, **options)
        model = OneDTransitionRewardModel(
            network,
            normalize=normalize != "none",
            normalize_double_precision=normalize == "double",
            learned_rewards=rewards,
            **wrapper,
        )
        rng = np.random.default_rng(0)
        kind = np.float64 if normalize == "double" else np.float32
        draws = (rng.normal(size=(200, n)).astype(kind) * [1, 5, 40][:n] + 3 for n in (3, 2, 3))
        states, actions, following = (draw.astype(kind) for draw in draws)
        reward, ends = states[:, 0], states[:, 0] > 9
        steps = TransitionBatch(states, actions, following, reward, ends, ends)
        model.update_normalizer(steps)
        adam = torch.optim.Adam(network.parameters(), lr=1e-2)
        parts = [np.broadcast_to(part, (members, *part.shape)).copy() for part in steps.astuple()]
        for _ in range(5):
            model.update(TransitionBatch(*parts), adam)
    if elites is not None:
        network.set_elite(elites)
    return model


@pytest.mark.parametrize("normalize", ["none", "single", "double"])
@pytest.mark.parametrize(
    "other",
    [
        {},
        {"rewards": False, "target_is_delta": False},
        {"elites": (2, 0), "no_delta_list": [1, -1]},
        {"elites": (3,), "rewards": False, "no_delta_list": [0]},
        {"members": 1, "elites": (0,)},
        *({"activation": {"_target_": f"torch.nn.{name}"}} for name in ("SiLU", "ELU", "LeakyReLU", "Tanh")),
        *({"activation": {"_target_": f"torch.nn.{name}"}} for name in ("GELU", "Softplus", "Sigmoid")),
        {"activation": {"_target_": "torch.nn.ReLU", "inplace": True}},
    ],
)
def test_a_model_of_mbrl_lib_is_read_as_it_is(normalize: str, other: dict, tmp_path: Path) -> None:
    """Against the model's own forward pass, and its own sample with each row bound to a member."""
    model = from_elsewhere(normalize, **other)
    made = Ensemble.from_mbrl(model, "mine", trained_on=[5, 6])
    made.save(tmp_path / "e.safetensors")
    rng = torch.Generator().manual_seed(1)
    states = 3 + torch.randn((20, 3), generator=rng) * torch.tensor([1, 5, 40])
    actions = 3 + torch.randn((20, 2), generator=rng)
    used = other.get("elites") or tuple(range(4))
    with torch.no_grad():
        _, log_var = model.forward(model._get_model_input(states, actions), use_propagation=False)
        model.set_propagation_method("fixed_model")
        count = len(used)
        bound = {"obs": states.repeat(count, 1), "propagation_indices": torch.arange(20 * count)}
        expected, *_ = model.sample(actions.repeat(count, 1), {**bound}, deterministic=True)
        for ours in (made, Ensemble.load(tmp_path / "e.safetensors"), made.to("cpu")):
            mean, var = ours.step(states, actions)
            assert mean.dtype == torch.float32
            torch.testing.assert_close(mean, expected.reshape(count, 20, 3), rtol=1e-6, atol=1e-6)
            wanted = log_var[list(used), :, :3].exp()
            torch.testing.assert_close(var, wanted, rtol=1e-6, atol=1e-6)
            assert ours.trained_on is not None
            assert ours.trained_on.tolist() == [5, 6]
        back = made.for_mbrl()
        back.set_propagation_method("fixed_model")
        again, *_ = back.sample(actions.repeat(count, 1), {**bound}, deterministic=True)
        torch.testing.assert_close(again, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("other", [{}, {"elites": (2, 0)}, {"rewards": False, "target_is_delta": False}])
def test_a_model_of_mbrl_lib_forecasts_what_its_own_environment_does(wrapped: bool, other: dict) -> None:
    """Three steps of its `ModelEnv`, whose expectation is the mean of the members: elites alone, if any."""
    model = from_elsewhere("single", **other)
    model.set_propagation_method("expectation")

    class Spaces:
        observation_space = action_space = None

    ends = lambda done, states: torch.zeros(len(states), 1, dtype=bool)  # noqa: E731
    env = ModelEnv(Spaces(), model, ends, lambda done, states: states[:, :1])
    rng = np.random.default_rng(1)
    starts, plans = (rng.normal(size=size).astype(np.float32) for size in ((8, 3), (8, 3, 2)))
    made = Dynamics.of(env if wrapped else model, propagation="one-step", batch=8)(starts, plans)
    seen = env.reset(starts)
    for t in range(3):
        after, *_, seen = env.step(torch.from_numpy(plans[:, t]), seen)
        np.testing.assert_allclose(made.mean[:, t], after, rtol=1e-4, atol=1e-4)
    assert made.mean.dtype == made.var.dtype == np.float32


def test_a_model_of_mbrl_lib_that_cannot_be_read_is_refused() -> None:
    class Doubled(GaussianMLP):
        pass

    hooked = from_elsewhere()
    hooked.model.hidden_layers[0].register_forward_hook(lambda *given: given[2] * 1.1)
    mixed = from_elsewhere()
    mixed.model.hidden_layers[1][1] = torch.nn.Tanh()
    broken = from_elsewhere()
    broken.model.mean_and_logvar.bias.data[0, 0, 0] = torch.nan
    flat = from_elsewhere()
    flat.input_normalizer.std[:, 0] = 0.0
    member = {"_target_": "mbrl.models.GaussianMLP", "in_size": 5, "out_size": 4, "device": "cpu"}
    slope = {"_target_": "torch.nn.LeakyReLU", "negative_slope": 0.2}
    for model, said in (
        (from_elsewhere(deterministic=True), "must forecast a variance, got deterministic heads"),
        (from_elsewhere(obs_process_fn=lambda states: states), "obs_process_fn, which no file can hold"),
        (
            from_elsewhere(activation=slope),
            r"activation must be one of silu, .* got LeakyReLU\(negative_slope",
        ),
        (mixed, r"the same after every layer, got ReLU\(\), Tanh\(\)"),
        (hooked, "must compute what its layers say"),
        (broken, "weights must be finite"),
        (flat, "scale and units above 0"),
        (from_elsewhere(elites=(7,)), r"elites among its 4 members .* got \[7\]"),
        (
            from_elsewhere(no_delta_list=[2]).model,
            "must be mbrl-lib's OneDTransitionRewardModel, got GaussianMLP",
        ),
        (OneDTransitionRewardModel(Doubled(5, 4, "cpu")), "must be mbrl-lib's GaussianMLP, got Doubled"),
        (OneDTransitionRewardModel(BasicEnsemble(2, "cpu", member)), "GaussianMLP, got BasicEnsemble"),
        (OneDTransitionRewardModel(GaussianMLP(3, 4, "cpu")), "inputs for the state and the action"),
    ):
        with pytest.raises(InvalidInput, match=said):
            Dynamics.of(model)


def test_a_network_is_not_run_as_another(ensemble: Ensemble, tmp_path: Path) -> None:
    """Handed over directly, too: its activation counts, and sizes and elites must fit."""
    settings = Settings(members=4, hidden=16, layers=3)
    read = Ensemble.from_mbrl(from_elsewhere("none", rewards=False), "mine")
    direct = Ensemble(read.network, read.shift, read.scale, read.units, "mine", settings)
    states, actions = torch.randn(7, 3), torch.randn(7, 2)
    torch.testing.assert_close(direct.step(states, actions), read.step(states, actions), rtol=0, atol=0)
    for changes, said in (
        ({"settings": Settings()}, r"network's members, hidden and layers, \(4, 16, 3\)"),
        ({"units": read.units[:2]}, "each output and input of the network"),
        ({"absolute": (3,)}, "absolute must be columns below 3"),
        ({"scale": -read.scale}, "scale and units above 0"),
    ):
        with pytest.raises(InvalidInput, match=said):
            replace(direct, **changes)
    with pytest.raises(InvalidInput, match="no elite members"):
        Ensemble(
            from_elsewhere("none", (1, 2), rewards=False).model, read.shift, read.scale, read.units, "mine"
        )
