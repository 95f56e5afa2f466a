"""The half-cheetah's command runs as it is, its results hold, and what it has computed is kept."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from halfcheetah.__main__ import main
from halfcheetah.drawings import plot_episodes
from halfcheetah.experiment import SMOKE, Design, Experiment
from halfcheetah.figures import REPEATS, count_beyond, largest_kept
from halfcheetah.guard import GOVERNED, PARTS, PLANNED, TASKS, Guarded, SimulatePlanner, Sizes
from halfcheetah.guard_results import returns_and_violations
from pac_program import run as pac
from scipy.stats import binom, binomtest
from script_runs import ROOT, script, table_in

from pac_core import InvalidInput, PACError, PACLevel, read_certificate
from pac_core.bounds import max_errors
from pac_core.certificates import read_descent, read_family, verify_descent
from pac_core.datasets import file_digest
from pac_core.errors import OverlappingSplits
from pac_core.runs import run_here
from pac_core.splits import ids_digest
from pac_core.thresholds import fit_threshold
from pac_rl import Ensemble, Settings, load_policy
from pac_rl.policies import SHIPPED
from pac_rl.rollouts import TRAINING_SEEDS
from pac_rl.tasks import read_rollouts

SETTINGS = Settings(members=2, hidden=16, layers=2, epochs=1, batch=128)
TINY = replace(SMOKE, episodes=40, episode_steps=30, settings=SETTINGS)
SMALL = Sizes(steps=10, governed=GOVERNED[:2], planned=PLANNED[::5], epochs=2)


def halfcheetah(*arguments: object, code: int = 0) -> str:
    """What the command says in this process, its refusal included."""
    done = CliRunner().invoke(main, [str(word) for word in arguments])
    said = f"{done.output}{done.exception if isinstance(done.exception, PACError) else ''}"
    assert done.exit_code == code, said
    return said


def test_the_demo_ends_with_five_lines_and_a_page(tmp_path: Path) -> None:
    """As a user starts it; then again, and nothing is computed anew."""
    done = script("halfcheetah", "demo", "--smoke-test", "--out", tmp_path / "demo")
    assert done.returncode == 0, done.stderr
    promised, measured, guarded, page, _ = done.stdout.splitlines()[-5:]
    assert promised.endswith("contain a new rollout like these with probability 0.9, confidence 0.999")
    assert re.match(r"measured +\d+ of 256 test rollouts missed \([\d.]+%\)", measured)
    words = (
        r"guarded +over 3.2096 m/s in 0 of 4 simulated episodes, the policy alone in \d; certified: at most "
    )
    assert re.match(words + "50% of new ones, confidence 0.9", guarded), guarded
    html = (tmp_path / "demo" / "report.html").read_text()
    assert str(tmp_path / "demo" / "report.html") in page
    verdicts = re.findall(r'<p class="verdict">(.*?)</p>', html)
    assert verdicts == ["Certified", "Certified, and not refuted by the test"]
    assert 'data-kind="robots"' in html
    assert 'data-kind="tubes"' in html
    closed = tmp_path / "demo" / "closed"
    verified = pac("verify", closed / "certificate-0.1-0.001.json", closed / "scores.parquet")
    assert verified.exit_code == 0, verified.output
    descent = tmp_path / "demo" / "guard" / "episodes" / "scale-1.5" / "descent.json"
    verified = pac("verify", descent, "--ledger", tmp_path / "demo" / "pac-ledger")
    assert verified.exit_code == 0, verified.output
    again = halfcheetah("demo", "--smoke-test", "--out", tmp_path / "demo")
    assert "epoch" not in again
    assert "a second" not in again
    assert again.splitlines()[-5:-1] == done.stdout.splitlines()[-5:-1]


def test_every_figure_of_the_paper_from_nothing(tmp_path: Path) -> None:
    halfcheetah("figures", "--smoke-test", "--out", tmp_path)
    results = tmp_path / "results"
    figures = {path.stem for path in results.glob("*.png")}
    paper = {"ablation", "steps", "levels_epsilon", "levels_delta", "tables_boxes", "tables_steps"}
    paper |= {"baselines_error", "baselines_size"}
    ours = {f"shapes_{case}_{kind}" for case in ("closed", "plans") for kind in ("steps", "sizes", "tubes")}
    assert figures == paper | ours | {"coverage"}
    for case in ("closed", "plans"):
        rows = {row["shape"]: row for row in table_in(results / f"shapes_{case}.csv")}
        assert all(row["refuted"] == "no" for row in rows.values())
        assert float(rows["box"]["size"]) < float(rows["max"]["size"]) < float(rows["joint"]["size"])
    assert all(row["as predicted"] == "yes" for row in table_in(results / "coverage.csv"))
    levels = {(row["epsilon"], row["delta"]) for row in table_in(results / "tables.csv")}
    assert ("0.05", "1e-05") in levels
    summary = json.loads((results / "summary.json").read_text())
    assert summary["design"]["policy"] == file_digest(SHIPPED)  # no path of this machine
    assert str(ROOT) not in (results / "summary.json").read_text()
    found = summary["results"]
    for name, rows in (("ablation", found["ablation"]), ("shapes_plans", found["shapes"]["plans"])):
        written = table_in(results / f"{name}.csv")
        assert [str(row["error"]) for row in rows] == [row["error"] for row in written]
    sizes = {row["shape"]: row["size"] for row in found["shapes"]["closed"]}
    assert sizes["features"] is None  # it is of two numbers, not of the whole state
    promise = "The set of a new rollout misses its truth with probability at most 0.1;"
    assert found["certificate"].startswith(promise)
    scores = np.load(results / "scores.npz")
    assert (scores["part"] == "calibrate").sum() == 320
    assert len(np.unique(scores["seeds"])) == 832
    # The certificate's threshold follows from the raw scores that are kept beside it.
    box = scores["closed_box"][scores["part"] == "calibrate"]
    certificate = read_certificate(tmp_path / "closed" / "certificate-0.1-0.001.json")
    assert fit_threshold(box, PACLevel(0.1, 1e-3)).value == certificate.predictor.threshold.value
    for part in ("tune", "calibrate", "test"):
        assert certificate.parts[part].digest == ids_digest(scores["seeds"][scores["part"] == part])
    halfcheetah("figures", "propagation", "--smoke-test", "--out", tmp_path)
    rows = table_in(results / "propagation.csv")
    assert [row["propagation"] for row in rows] == ["one-step", "particles"] * 2
    assert all(row["refuted"] == "no" for row in rows)
    for change in (("--seed", 1), ("--policy-std", 0.3)):
        other = halfcheetah("figures", "steps", "--smoke-test", "--out", tmp_path, *change, code=1)
        assert "belongs to another run" in other


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--n", 1000], "1,000 calibration units cannot prove epsilon=0.01"),
        (["--smoke-test", "--epsilon", 0.01, "--delta", 1e-5], "1,146 are needed (826 more)"),
        (["--smoke-test", "--policy-std", -1], "std must be a number of at least 0, got -1.0"),
        (
            ["--smoke-test", "--env", "Ant-v5"],
            "a policy for Ant-v5 that sees the observation must have 29 inputs",
        ),
    ],
)
def test_a_design_that_leads_nowhere_is_refused_before_any_work(
    tmp_path: Path, options: list[Any], said: str
) -> None:
    done = halfcheetah("figures", "ablation", "--out", tmp_path / "none", *options, code=1)
    assert said in done
    assert "Traceback" not in done
    assert not (tmp_path / "none").exists()


def test_the_default_is_the_papers() -> None:
    design = Design()
    assert (design.horizon, design.calibrate, design.epsilon, design.delta) == (20, 5000, 0.01, 1e-5)
    assert max_errors(design.calibrate, design.level) == 22


def test_the_policy_search_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of its own, so that as many steps are done on a slow machine."""
    out = tmp_path / "policy.npz"
    monkeypatch.setattr("halfcheetah.train_policy.time", SimpleNamespace(monotonic=count().__next__))
    few = ("--minutes", 0.3, "--steps", 60, "--directions", 8, "--best", 4)
    lines = halfcheetah("train-policy", *few, "--out", out).splitlines()
    returns = [float(line.split()[3]) for line in lines if line.startswith("step")]
    assert max(returns) > returns[0]
    assert load_policy(out).inputs == 17


def test_guards_are_compared_weighed_and_certified_in_one_folder(tmp_path: Path) -> None:
    """Both kinds of certificates share a ledger; the same command again runs no episode."""
    first = ("--smoke-test", "--out", tmp_path / "first")
    halfcheetah("guard", *first)
    results = tmp_path / "first" / "results"
    rows = table_in(results / "guard_speed.csv")
    names = [row["guard"].split(",")[0] for row in rows]
    assert names == ["no guard", "mean", "worst member", "paper's tube", "ours"]
    assert all(row["violated"].endswith(" of 4") for row in rows)
    assert float(rows[0]["return"]) == max(float(row["return"]) for row in rows)
    for figure in ("guard_speed.png", "guard_speed_episode.png"):
        assert (results / figure).read_bytes().startswith(b"\x89PNG")

    halfcheetah("guard-settings", *first)
    rows = table_in(results / "guard_speed_settings.csv")
    settings = [("2", "2", "return"), ("2", "1", "factor")]
    assert [(row["horizon"], row["checked"], row["choice"]) for row in rows] == settings
    for row in rows:
        assert float(row["ours / mean"]) == float(row["return"]) / float(row["mean: return"])

    for kind in ("episode", "tube"):
        done = halfcheetah("guard-certificate", *first, "--kind", kind)
        assert "10 of 10 episodes, " in done
        assert "P(error in a fresh episode of exactly this controller at this scale) <= 0.4" in done
        again = halfcheetah("guard-certificate", *first, "--kind", kind)
        assert "a second" not in again, "no line of progress"
        found = read_descent(results / f"guard_speed_{kind}_certificate.json")
        assert str(found) in again
        assert all(check.holds for check in verify_descent(found, tmp_path / "guard-smoke-ledger.json"))
    assert "P(unsafe given accepted) <= " in done
    assert "with confidence 0.9, for" in done, "of the scale that was picked, not of one fixed before"
    family = read_family(tmp_path / "guard-smoke-ledger.json")
    assert (family.attempts, family.cost, family.budget) == (3, 0.9, 0.9), "two descents and a claim"
    other = ("--ledger", tmp_path / "other", "--sequential")
    for kind, words in (("episode", "P(error in"), ("share", "E[loss of")):
        more = ("--attempt", 1, "--episodes", 40, "--delta", 0.3, "--epsilon", 0.4)
        done = halfcheetah("guard-certificate", *first, "--kind", kind, *other, *more)
        assert f"{words} a fresh episode of exactly this controller at this scale" in done
        assert "until betting showed it; at most 40" in done
    shutil.copytree(tmp_path / "first", tmp_path / "copy", ignore=shutil.ignore_patterns("certify-*"))
    for folder in ("first", "copy"):  # another folder is no way around the ledger
        other = ("--smoke-test", "--scale", 3, "--out", tmp_path / folder)
        assert "A descent is never extended" in halfcheetah("guard-certificate", *other, code=1)


def test_the_loop_learns_and_its_guard_is_fitted_again(tmp_path: Path) -> None:
    """Each round learns from more, on units of its own, and all is charged to one budget."""
    done = halfcheetah("pets", "--smoke-test", "--out", tmp_path)
    rows = table_in(tmp_path / "results" / "pets.csv")
    assert [row["round"] for row in rows] == ["1", "2"]
    assert int(rows[1]["steps learnt from"]) > int(rows[0]["steps learnt from"])
    assert rows[0]["T"] != rows[1]["T"]
    assert "3 attempts or looks, charged" in done


def test_no_episode_has_two_uses(tmp_path: Path) -> None:
    """What the model was trained on is no unit, and not tuned, compared or certified on; a million each."""
    design = Design()
    uses = [np.arange(15_000), TRAINING_SEEDS + np.arange(design.episodes)]
    for task in TASKS:
        guards = Guarded(Experiment(design, tmp_path, run_here), task)
        uses += [guards.seeds(part, 10**6) for part in PARTS]
    learnt = [*guards.training_seeds("governed"), *guards.training_seeds("planned")]
    assert (len(learnt), len(PLANNED)) == (len(GOVERNED) + len(PLANNED), 8)
    ends = sorted((int(part[0]), int(part[-1])) for part in uses + learnt)
    assert all(np.ptp(part) == len(part) - 1 for part in uses + learnt), "each is a range of its own"
    assert all(last < first for (_, last), (first, _) in pairwise(ends))
    assert sum(map(len, learnt)) + design.episodes // 4 == design.episodes, "the budget is the same"


def test_the_guards_model_learns_from_the_planner_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    guards = Guarded(Experiment(TINY, tmp_path / "whole", run_here), "speed", SMALL)
    made = guards.ensemble
    first = Ensemble.load(tmp_path / "whole" / "guard" / "first.safetensors")
    assert len(made.trained_on) == TINY.episodes, "every training episode, the planner's too, is remembered"
    for part in PARTS:
        made.refuse_seen(guards.seeds(part, 1000))
    assert (len(first.history), len(made.history)) == (SETTINGS.epochs, SMALL.epochs)
    # 10 episodes of the policy, 20 governed and 10 planned, of 30 steps: more than the first has seen.
    assert not np.array_equal(first.shift.numpy(), made.shift.numpy())

    def stopped(job: Any, folder: Any) -> Any:
        if job.name == "planned":
            raise KeyboardInterrupt
        return run_here(job, folder)

    with pytest.raises(KeyboardInterrupt):
        Guarded(Experiment(TINY, tmp_path / "part", stopped), "speed", SMALL).ensemble  # noqa: B018
    file = tmp_path / "part" / "guard" / "first.safetensors"
    before = file.stat().st_mtime_ns
    again = Guarded(Experiment(TINY, tmp_path / "part", run_here), "speed", SMALL).ensemble
    assert file.stat().st_mtime_ns == before, "not trained again"
    for name, tensor in made.tensors().items():
        np.testing.assert_array_equal(tensor.numpy(), again.tensors()[name].numpy(), err_msg=name)

    # With a limit that nothing keeps, the planner holds.
    acting = (guards.experiment.policy, first, (((1, "factor"), 100.0),))
    guards.home = tmp_path / "held"
    guards.sizes = replace(SMALL, planned=acting[2])
    held = read_rollouts(*guards._collect("planned", SimulatePlanner, acting))
    assert held.actions.shape[:2] == (TINY.episodes // 4, TINY.episode_steps)
    assert not held.actions.any()

    # Tubes are not fitted on what the model was trained on.
    file = tmp_path / "part" / "guard" / "ensemble.safetensors"
    for seen, kind, said in (
        (guards.seeds("tubes", 1), OverlappingSplits, "'train' and 'tubes'"),
        (None, InvalidInput, "does not say which rollouts"),
    ):
        replace(again, trained_on=seen).save(file)
        with pytest.raises(kind, match=said):
            Guarded(Experiment(TINY, tmp_path / "part", run_here), "speed", SMALL).tubes(shape="joint")


def test_guards_of_the_same_return_are_all_named_and_none_covers_another() -> None:
    guards = dict.fromkeys(("mean", "worst", "paper", "ours"), (754.0, 0.0, (0.0, 0.06)))
    figure = returns_and_violations({"none": (940.0, 1.0, (0.98, 1.0))} | guards, "flip", allowed=0.05)
    figure.draw_without_rendering()
    [axes] = figure.axes
    boxes = [text.get_window_extent() for text in axes.get_legend().get_texts()]
    assert len(boxes) == 6
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert not any(box.overlaps(axes.get_window_extent()) for box in boxes)
    assert len({bars[0].get_markersize() for bars in axes.containers}) == 5


@pytest.mark.parametrize(
    ("epsilon", "size", "kept"),
    [
        (0.01, 10_000, 100),  # 1 - 9900 / 10000 is above 0.01 in floats
        (0.02, 10_000, 200),
        (0.29, 100, 29),  # 0.29 * 100 is below 29 in floats
        (0.07, 100, 7),
        (0.1, 576, 57),
        (1e-5, 99_999, 0),
    ],
)
def test_an_error_of_exactly_epsilon_keeps_the_promise(epsilon: float, size: int, kept: int) -> None:
    assert largest_kept(epsilon, size) == kept


def test_true_errors_are_counts_of_the_world() -> None:
    """In a world of 0..199, as many lie above T as T says."""
    level = PACLevel(0.1, 0.1)
    counts = count_beyond(np.arange(200.0), 60, level, np.random.default_rng(0))
    assert counts.dtype.kind == "i"
    again, k = np.random.default_rng(0), max_errors(60, level)
    limits = [np.sort(again.choice(np.arange(200.0), size=60))[-1 - k] for _ in range(REPEATS)]
    assert counts.tolist() == [199 - int(limit) for limit in limits]


def test_breaches_are_as_many_as_the_binomial_says() -> None:
    """In a small world an error of exactly epsilon is common: taken for a breach, it would show."""
    level, n, size = PACLevel(0.1, 0.1), 60, 40
    counts = count_beyond(np.arange(float(size)), n, level, np.random.default_rng(0))
    most = largest_kept(level.epsilon, size)
    exact = float(binom.cdf(max_errors(n, level), n, (most + 1) / size))
    assert (counts == most).sum() > 20
    assert binomtest(int((counts > most).sum()), REPEATS, exact).pvalue > 1e-3
    assert binomtest(int((counts >= most).sum()), REPEATS, exact).pvalue < 1e-3


def test_only_checked_steps_of_tubes_are_drawn() -> None:
    tubes = np.zeros((2, 8, 4))
    tubes[1, :, :2], tubes[1, :, 2:] = 1.0, 5.0
    figure = plot_episodes({"ours": (np.full(8, 0.5), tubes)}, [2.0], "speed", "t", checked=2)
    tops = [patch.get_data().values.max() for patch in figure.axes[0].patches]
    assert len(tops) == 2 * 4, "each tube filled and with its upper end, to the last step"
    assert max(tops) == 1.0
