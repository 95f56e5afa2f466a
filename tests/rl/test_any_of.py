"""All candidates of a planner as one unit: through the engine, along episodes, over a grid of thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pac_program import run as pac

from pac_core import GaussianForecast, HalfSpace, InvalidInput, PACLevel, Predictor, Trajectories
from pac_core.certificates import Descent, Record, descend, read_certificate, read_ledger, verify_descent
from pac_core.errors import OverlappingSplits, ShardFailed
from pac_core.runs import RunFolder, Stage, Task, cut
from pac_core.thresholds import fit_threshold
from pac_core.tubes import fit_shape
from pac_rl import Controller, Dynamics, Ensemble, execute, run_episodes
from pac_rl.planning import CandidateRuns, FittedTubes, PutRowsBack, RunToStarts, certify_candidates
from pac_rl.planning.candidates import (
    EXECUTION,
    NO_DECISION,
    CarryOutCandidates,
    at_threshold,
    find_picked,
    propose_unguarded,
)
from pac_rl.policies import Network
from pac_rl.rollouts import Rollouts
from pac_rl.tasks import SimulateRollouts

LEVEL, K, H = PACLevel(0.1, 0.05), 4, 3
SIZES: dict[str, Any] = {"tune": 60, "calibrate": 100, "test": 70, "model": Record("a line")}


class Starts:
    """A number for each unit."""

    def __init__(self, *, device: str) -> None:
        pass

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        start = np.array([[np.random.default_rng(unit).normal()] for unit in shard.array.tolist()])
        return {"ids": shard.array, "start": start}


@dataclass(frozen=True, eq=False)
class Steps:
    """Random steps along a line; the farthest by forecast is picked."""

    k: int = K

    def propose(self, starts: Any, rngs: Sequence[np.random.Generator]) -> Any:
        return np.stack([rng.normal(size=(self.k, H, 1)) for rng in rngs])

    def cost(self, forecast: GaussianForecast, plans: Any) -> Any:
        return -forecast.mean[..., -1, 0]


def walk(starts: Any, plans: Any) -> GaussianForecast:
    mean = starts[:, None] + plans.cumsum(axis=1)
    return GaussianForecast(mean, np.ones_like(mean))


@dataclass(frozen=True)
class Slip:
    """Each step slips; `broken` is the id of a unit whose last candidate diverges."""

    size: float = 0.1
    broken: int = -1

    def __call__(self, given: Any, plans: Any, rngs: Sequence[np.random.Generator]) -> tuple[Any, Any]:
        slips = self.size * np.stack([rng.normal(size=plans.shape[1:]) for rng in rngs])
        states = given["start"][:, None, None] + (plans + slips).cumsum(axis=2)
        states[given["ids"] == self.broken, -1, 1:] = np.inf
        return states, np.full(plans.shape[:2], H)


RUNS = CandidateRuns(Stage(Starts), Steps(), walk, Slip())


def score_of(folder: Path) -> Any:
    found = RUNS.arrays(range(60), RunFolder(folder))
    forecast = GaussianForecast(found["mean"], found["var"])
    return fit_shape(forecast, Trajectories(found["truth"], found["lengths"]), LEVEL, any_of=True)


def test_scores_come_back_and_the_certificate_follows_from_them(tmp_path: Path) -> None:
    """Scores are computed again here from all trajectories; it would catch the score of a single candidate, a
    run that is not the ledger's, and trajectories that are stored."""
    made, [finding] = certify_candidates(
        RUNS, RunFolder(tmp_path / "run"), [LEVEL], tmp_path / "ledger", **SIZES
    )
    folder = RunFolder(tmp_path / "run")
    found, parts = folder.read_all(), Task.read(folder).results(folder).parts
    assert set(found) == {"ids", "scores", "picked", "drawn", "pick"}
    assert all(array.ndim == 1 for array in found.values())
    again = RUNS.arrays(range(60, 230), RunFolder(tmp_path / "again"))
    each = made.score.shape.scores(
        GaussianForecast(again["mean"].reshape(-1, H, 1), again["var"].reshape(-1, H, 1)),
        again["truth"].reshape(-1, H, 1),
    ).reshape(-1, K)
    np.testing.assert_array_equal(found["scores"], each.max(axis=1))
    np.testing.assert_array_equal(found["pick"], again["mean"][:, :, -1, 0].argmax(axis=1))
    np.testing.assert_array_equal(found["picked"], each[np.arange(170), found["pick"]])
    threshold = finding.certificate.predictor.threshold
    assert threshold == fit_threshold(found["scores"][parts.calibrate.rows], LEVEL)
    assert finding.errors == (int((found["scores"][parts.test.rows] > threshold.value).sum()), 70)
    [look] = read_ledger(tmp_path / "ledger")
    assert look.n == 100
    certificate = tmp_path / "run" / finding.file
    done = pac("verify", certificate, tmp_path / "run" / "scores.parquet", "--ledger", tmp_path / "ledger")
    assert done.exit_code == 0, done.output
    assert read_certificate(certificate).parts["tune"].n == 60
    assert isinstance(read_certificate(certificate).predictor, Predictor)
    same, _ = certify_candidates(RUNS, folder, [LEVEL], tmp_path / "ledger", **SIZES)
    assert same.certificates[0].scores == made.certificates[0].scores
    page = pac("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert page.exit_code == 0, page.output
    assert "whichever of the 4 candidates of a new start is picked" in (tmp_path / "page.html").read_text()


def test_a_start_that_the_model_was_trained_on_is_no_unit(tmp_path: Path, ensemble: Ensemble) -> None:
    seen = Dynamics.of(replace(ensemble, trained_on=np.array([65])))
    with pytest.raises(OverlappingSplits, match="65"):
        certify_candidates(
            replace(RUNS, forecast=seen), RunFolder(tmp_path / "run"), [LEVEL], tmp_path / "ledger", **SIZES
        )
    assert not [*tmp_path.iterdir()]


@dataclass(frozen=True)
class Late:
    """Writes down whether the ledger was there when a unit beyond the tune units was carried out."""

    ledger: str

    def __call__(self, given: Any, plans: Any, rngs: Any) -> tuple[Any, Any]:
        if given["ids"].max() >= 60:
            raise InvalidInput(f"looks: {len(read_ledger(self.ledger))}")
        return Slip()(given, plans, rngs)


def test_the_ledger_is_written_before_a_unit_is_run(tmp_path: Path) -> None:
    runs = replace(RUNS, carry_out=Late(str(tmp_path / "ledger")))
    with pytest.raises(ShardFailed, match="looks: 1"):
        certify_candidates(runs, RunFolder(tmp_path / "run"), [LEVEL], tmp_path / "ledger", **SIZES)


@dataclass(frozen=True, eq=False)
class Searching(Steps):
    """Keeps plans that its guard thinks safe: the search of CEM with a guard in it."""

    guard: Any = field(kw_only=True)

    def propose(self, starts: Any, rngs: Any) -> Any:
        plans = super().propose(starts, rngs)
        upper = self.guard.tube(walk(starts.repeat(self.k, axis=0), plans[0])).support([1.0])
        return np.where((upper < 5).all(axis=1)[None, :, None, None], plans, 0.0)


class Remembering(Steps):
    """Begins where the last call ended."""

    def propose(self, starts: Any, rngs: Any) -> Any:
        before = vars(self).setdefault("before", [0.0])
        before[0] += 1.0
        return super().propose(starts, rngs) + before[0]


class Hiding(Steps):
    """Holds its threshold where nobody looks, and says so."""

    def at_threshold(self, value: float) -> Any:
        return Steps(K if value else 2)


def test_a_planner_that_sees_the_guard_is_refused(tmp_path: Path) -> None:
    """By every way a guard may be held; one that ignores its guard is none."""
    score = score_of(tmp_path / "tune")
    tubes = FittedTubes(score, 2.0)
    forecast = walk(np.zeros((100, 1)), np.zeros((100, H, 1)))
    predictor = Predictor(score, fit_threshold(np.arange(100.0), LEVEL), forecast.domain)
    start, ways = np.zeros(1), "preliminary T0 .* at the end with T; or certify whole episodes"
    for planner in (Searching(guard=tubes), Searching(guard=predictor), Remembering(), Hiding()):
        with pytest.raises(InvalidInput, match=ways):
            propose_unguarded(planner, start, 7)
    with pytest.raises(InvalidInput, match=ways):
        replace(RUNS, planner=Searching(guard=tubes)).arrays(range(9), RunFolder(tmp_path / "guarded"))

    class Idle(Searching):
        propose = Steps.propose

    assert propose_unguarded(Idle(guard=tubes), start, 7).shape == (K, H, 1)
    assert at_threshold(Idle(guard=tubes), 9.0).guard.threshold == 9.0
    plain = Steps()
    assert at_threshold(plain, 9.0) is plain


def test_a_mean_counts_only_as_a_candidate(tmp_path: Path) -> None:
    plans = Steps().propose(np.zeros((1, 1)), [np.random.default_rng(0)])[0]
    assert find_picked(plans[2], plans) == 2
    with pytest.raises(InvalidInput, match="only if it is proposed as one"):
        find_picked(plans.mean(axis=0), plans)

    class Mean(Steps):
        def pick(self, forecast: Any, plans: Any) -> Any:
            return plans.mean(axis=1)

    class Proposed(Mean):
        def propose(self, starts: Any, rngs: Any) -> Any:
            plans = super().propose(starts, rngs)
            for _ in range(200):  # until it is the mean of all, itself included
                plans[:, -1] = plans.mean(axis=1)
            return plans

    shard = cut(range(5), 5)[0]
    given = Starts(device="cpu")(shard, {})
    with pytest.raises(InvalidInput, match="only if it is proposed as one"):
        CarryOutCandidates(Mean(), walk, Slip())(shard, given)
    score = score_of(tmp_path / "tune")
    found = CarryOutCandidates(Proposed(), walk, Slip(), score)(shard, given)
    assert found["pick"].tolist() == [K - 1] * 5


def test_streams_are_separate_and_of_the_id() -> None:
    """Other noise of what happens changes no byte of a plan, and a unit is the same in any shard."""
    seen: list[bytes] = []

    def spy(given: Any, plans: Any, rngs: Any) -> tuple[Any, Any]:
        seen.append(plans.tobytes())
        [rng.normal() for rng in rngs]
        return Slip(0.5)(given, plans, rngs)

    shard = cut(range(6), 6)[0]
    given = Starts(device="cpu")(shard, {})
    usual = CarryOutCandidates(Steps(), walk, Slip())(shard, given)
    other = CarryOutCandidates(Steps(), walk, spy)(shard, given)
    np.testing.assert_array_equal(usual["mean"], other["mean"])
    assert not np.array_equal(usual["truth"], other["truth"])
    alone = cut(range(4, 5), 1)[0]
    one = CarryOutCandidates(Steps(), walk, Slip())(alone, Starts(device="cpu")(alone, {}))
    for name in usual:
        np.testing.assert_array_equal(usual[name][4:5], one[name])
    drawn = np.random.default_rng((EXECUTION, 4)).normal(size=(K, H, 1))
    slipped = usual["truth"][4] - usual["mean"][4]
    np.testing.assert_allclose(slipped, 0.1 * drawn.cumsum(axis=1), atol=1e-12)


def test_units_that_fail_or_have_no_decision(tmp_path: Path) -> None:
    score = score_of(tmp_path / "tune")
    shard = cut(range(4), 4)[0]
    given = Starts(device="cpu")(shard, {}) | {"reached": np.array([1, 0, -1, 1])}
    found = CarryOutCandidates(Steps(), walk, Slip(broken=3), score)(shard, given)
    assert found["scores"][1] == NO_DECISION
    assert np.isinf(found["scores"]).tolist() == [False, False, True, True]
    tuned = CarryOutCandidates(Steps(), walk, Slip(broken=3))(shard, given)
    assert np.isinf(tuned["truth"]).any(axis=(1, 2, 3)).tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"planner": Steps(0)}, "propose must return finite plans"),
        ({"forecast": lambda starts, plans: walk(starts[:1], plans[:1])}, "forecast must be Gaussian"),
        ({"carry_out": lambda given, plans, rngs: (plans[:, :1], None)}, "states of carry_out must be"),
        ({"carry_out": lambda given, plans, rngs: (plans, None)}, "lengths of carry_out must be"),
    ],
)
def test_what_a_user_returns_is_checked_on_one_unit_first(change: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=words):
        replace(RUNS, **change).arrays(range(99), RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_another_number_of_plans_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="as many plans as the tune units had, 4, got 3"):
        replace(RUNS, planner=Steps(3)).arrays(
            range(9), RunFolder(tmp_path / "run"), score_of(tmp_path / "tune")
        )


class Driven(Starts):
    """Starts of a guard with T: the wider its tube, the less it dares."""

    def __init__(self, value: float, *, device: str) -> None:
        self.value = value

    def __call__(self, shard: Any, given: Any) -> dict[str, Any]:
        found = super().__call__(shard, given)
        return found | {"start": found["start"] / self.value}


def test_a_descent_over_thresholds_for_the_acting_guard(tmp_path: Path) -> None:
    """Errors are those of all candidates, carried out where the guard with this T led, above this T."""
    score = score_of(tmp_path / "tune")
    grid, n = (4.0, 2.0, 1.0, 0.2), 29
    plan = Descent(
        scales=grid,
        n=n,
        allowed=0,
        level=PACLevel(0.1, 0.05),
        episodes=1000 + np.arange(len(grid) * n).reshape(-1, n),
        error="any candidate of the drawn step leaves its tube",
        tested={"score": "box"},
    )
    run = RUNS.errors(lambda value: Stage(Driven, (value,)), score, tmp_path / "episodes")
    shown = descend(plan, run, ledger=tmp_path / "ledger")
    assert all(check.holds for check in verify_descent(shown, tmp_path / "ledger"))
    counts = []
    for value, ids in zip(grid, plan.episodes, strict=True):
        shard = cut(ids.tolist(), n)[0]
        found = CarryOutCandidates(Steps(), walk, Slip())(shard, Driven(value, device="cpu")(shard, {}))
        scores = score.scores(GaussianForecast(found["mean"], found["var"]), found["truth"])
        counts.append(int((scores > value).sum()))
    assert [trial.errors for trial in shown.trials] == counts[: len(shown.trials)]
    assert 0 < len(shown.trials) <= 4
    assert counts[-1] > 0 == counts[0]


def test_a_start_is_where_the_episode_stood(controller: Controller) -> None:
    """One drawn step of each episode; it would catch a start before or after it, and steps not of the id."""
    seeds, ahead = np.arange(5) + 77, np.eye(18)[0]
    shard = cut(seeds.tolist(), 5)[0]
    traces = run_episodes(controller, seeds, steps=6, along=ahead).traces
    held = run_episodes(
        replace(controller, limits=(HalfSpace("never", ahead, -9.0),)), seeds, steps=6, along=ahead
    )
    assert traces is not None
    assert held.traces is not None
    drawn = [int(np.random.default_rng((3, seed)).integers(6)) for seed in seeds.tolist()]
    assert len(set(drawn)) > 2
    starts = RunToStarts(controller, 6)(shard, {})
    mixed = RunToStarts(controller, 6, alone=True)(shard, {})
    assert starts["reached"].tolist() == mixed["reached"].tolist() == [1] * 5
    for row, t in enumerate(drawn):
        if t:
            np.testing.assert_array_equal(starts["start"][row], traces.states[row, t - 1])
            odd = held.traces if seeds[row] % 2 else traces  # every second one by the fallback alone
            np.testing.assert_array_equal(mixed["start"][row], odd.states[row, t - 1])
        np.testing.assert_array_equal(controller.system.see(starts["rows"])[row], starts["start"][row])
    stops = replace(controller, tubes=FittedTubes(NoTube(), 1.0), fallback="stop")
    assert RunToStarts(stops, 6)(shard, {})["reached"].tolist() == [int(t == 0) for t in drawn]


class NoTube:
    """Nothing is ever safe."""

    def sets(self, forecast: Any, threshold: Any) -> Any:
        from pac_core.sets import gaussian_sets

        return gaussian_sets(forecast, -1e9)


def test_candidates_are_carried_out_from_the_physics_of_their_start(
    controller: Controller, policy: Network
) -> None:
    """Each from the very start, whatever the others did, as `execute` does it."""
    system: Any = controller.system
    shard = cut(range(2), 2)[0]
    given = SimulateRollouts("HalfCheetah-v5", policy, 1, (0, 3))(shard, {})
    plans = np.random.default_rng(0).uniform(-1, 1, (2, 3, 2, 6))
    states, lengths = PutRowsBack(system)(given, plans, [np.random.default_rng(i) for i in range(2)])
    assert lengths.tolist() == [[2] * 3] * 2
    blank = Rollouts(shard.array, given["start"], given["physics"], states[:, 0], plans[:, 0], lengths[:, 0])
    for k in range(3):
        np.testing.assert_array_equal(states[:, k], execute(system.environment, blank, plans[:, k]).states)


@dataclass(frozen=True)
class Ending:
    """Each step goes one on, or fails at the action 9; three is the end."""

    names, low, high = ("place",), np.array([0.0]), np.array([9.0])

    def see(self, rows: Any) -> Any:
        return rows

    def advance(self, rows: Any, actions: Any, rngs: Any) -> Any:
        return rows + 1, rows[:, 0] == 2, actions[:, 0] == 9


def test_candidates_that_end_or_fail_do_so_alone() -> None:
    """From 1 it ends after two of three steps, from 0 at the third; a start not reached is left alone."""
    given = {"rows": np.array([[1.0], [0.0], [0.0]]), "reached": np.array([1, 1, 0])}
    plans = np.zeros((3, 2, 3, 1))
    plans[1, 1, 1] = 9.0
    states, lengths = PutRowsBack(Ending())(given, plans, [np.random.default_rng(0)] * 3)  # type: ignore[arg-type]
    assert lengths.tolist() == [[2, 2], [3, 3], [3, 3]]
    inf = np.inf
    assert states[..., 0].tolist() == [
        [[2, 3, inf], [2, 3, inf]],
        [[1, 2, 3], [1, inf, inf]],
        [[inf] * 3, [inf] * 3],
    ]
